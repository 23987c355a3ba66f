//! `tenure worker --sandbox`: each command of a task in a sandbox of its own.

use serde_json::{Value, json};
use tenure_testkit::{Child, Signal, wait_until};

use crate::commands::kit::{SOON, Site, code, providers};

/// A worker that runs these operators in sandboxes, with this in its configuration below `worker.sandbox`.
fn worker(site: &Site, provider: &str, settings: &str, operators: &[&str]) -> Child {
    let file = site.home.path().join("tenure.yaml");
    std::fs::write(&file, format!("worker:\n  sandbox:\n    provider: {provider}\n{settings}")).unwrap();
    let mut args =
        vec!["worker", "--queue", "q", "--concurrency", "2", "--grace", "1s", "--config", file.to_str().unwrap()];
    for operator in operators {
        args.extend(["--operator", operator]);
    }
    args.push("--sandbox");
    let mut command = site.command(&args);
    let tmp = site.home.path().join("tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    command.env("TMPDIR", tmp).env("SECRET_OF_THE_WORKER", "hunter2");
    Child::spawn(command)
}

async fn ended(site: &Site, args: &[&str]) -> Value {
    let output = site.run(&[&["task", "submit", "q"], args, &["--wait", "--json"]].concat()).await;
    assert!(matches!(code(&output), 0 | 10 | 11), "{output:?}");
    let last = output.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

async fn attempt(site: &Site, task: &Value) -> Value {
    site.json(&["task", "attempts", task["task_id"].as_str().unwrap()]).await["items"][0].clone()
}

#[tokio::test]
async fn a_task_in_a_sandbox_has_the_conventions_of_a_plain_command() {
    for provider in providers("a_task_in_a_sandbox_has_the_conventions_of_a_plain_command").await {
        let site = Site::new().await;
        let about = r#"about=cat > in; cmp in "$TENURE_PAYLOAD_FILE" && printf '{"task":"%s","attempt":%s,"in":%s}' "$TENURE_TASK_ID" "$TENURE_ATTEMPT" "$(cat in)" > "$TENURE_RESULT_FILE""#;
        let fails = "fails=echo no such row >&2; exit 65";
        let spy = "spy=env";
        let _worker = worker(&site, provider, "", &[about, fails, spy]);
        let task = ended(&site, &["about", "--payload", r#"{"day":"2025-01-15"}"#]).await;
        let expected = json!({"task": task["task_id"], "attempt": 1, "in": {"day": "2025-01-15"}});
        assert_eq!(task["result"], expected, "{provider}: {task}");
        let attempt = attempt(&site, &task).await;
        assert!(attempt["metrics"]["cpu_time_ms"].is_u64(), "{provider}: {attempt}");
        let task = ended(&site, &["fails"]).await;
        assert_eq!(task["error"]["code"], "DATA_QUALITY", "{provider}: {task}");
        assert_eq!(task["error"]["message"], "exit code 65: no such row", "{provider}: {task}");
        let task = ended(&site, &["spy"]).await;
        assert!(!task["result"].as_str().unwrap().contains("hunter2"), "{provider}: {task}");
    }
}

#[tokio::test]
async fn nothing_of_one_task_is_left_for_the_next() {
    for provider in providers("nothing_of_one_task_is_left_for_the_next").await {
        let site = Site::new().await;
        let leaver = "leaver=ls -A; touch trace";
        let _worker = worker(&site, provider, "    warm: 1\n", &[leaver]);
        for _ in 0..4 {
            let task = ended(&site, &["leaver"]).await;
            assert_eq!(task["result"], "payload.json\n", "{provider}: {task}");
        }
    }
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_a_timeout_by_the_settings_of_its_operator() {
    for provider in providers("a_command_that_takes_too_long_is_a_timeout_by_the_settings_of_its_operator").await {
        let site = Site::new().await;
        let settings = "    operators:\n      slow: timeout=1s\n";
        let _worker = worker(&site, provider, settings, &["slow=sleep 600", "quick=sleep 2; echo 1"]);
        let task = ended(&site, &["slow", "--max-attempts", "1"]).await;
        assert_eq!(task["error"]["code"], "TIMEOUT", "{provider}: {task}");
        assert!(task["error"]["message"].as_str().unwrap().contains("longer than 1 s"), "{provider}: {task}");
        let task = ended(&site, &["quick"]).await;
        assert_eq!(task["result"], 1, "{provider}: another operator keeps its own time: {task}");
    }
}

#[tokio::test]
async fn a_cancel_and_a_killed_worker_end_every_process_of_a_sandbox() {
    for provider in providers("a_cancel_and_a_killed_worker_end_every_process_of_a_sandbox").await {
        let site = Site::new().await;
        let marker = format!("9{}.25", std::process::id());
        let stubborn = format!("stubborn=trap '' TERM; (trap '' TERM; setsid sleep {marker} &); sleep {marker}");
        let mut worker = worker(&site, provider, "", &[&stubborn]);
        let id = site.submit(&["q", "stubborn"]).await;
        wait_until("it runs", SOON, async || processes(&marker) >= 2).await;
        site.ok(&["task", "cancel", &id]).await;
        wait_until("all are dead", SOON, async || processes(&marker) == 0).await;
        wait_until("it is canceled", SOON, async || site.json(&["task", "show", &id]).await["state"] == "Canceled")
            .await;

        site.submit(&["q", "stubborn"]).await;
        wait_until("it runs", SOON, async || processes(&marker) >= 2).await;
        worker.signal(Signal::SIGKILL);
        worker.wait(SOON).await;
        wait_until("all are dead", SOON, async || processes(&marker) == 0).await;
        let tmp = site.home.path().join("tmp");
        wait_until("the folder is empty", SOON, async || std::fs::read_dir(&tmp).unwrap().next().is_none()).await;
    }
}

#[tokio::test]
async fn a_task_that_needs_more_memory_than_its_sandbox_has_fails_clearly() {
    if !providers("a_task_that_needs_more_memory_than_its_sandbox_has_fails_clearly").await.contains(&"namespace") {
        return;
    }
    let site = Site::new().await;
    let hog = "hog=head -c 400000000 /dev/zero | tail -n 1 > /dev/null; exit 1";
    let spin = "spin=i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; echo 1";
    let _worker = worker(&site, "namespace", "    limits: memory=48m\n", &[hog, spin]);
    let task = ended(&site, &["hog", "--max-attempts", "1"]).await;
    assert_eq!(task["error"]["code"], "OUT_OF_MEMORY", "{task}");
    assert!(task["error"]["message"].as_str().unwrap().contains("48 MiB"), "{task}");
    let task = ended(&site, &["spin"]).await;
    let used = attempt(&site, &task).await["metrics"].clone();
    assert!(used["cpu_time_ms"].as_u64().unwrap() > 0 && used["peak_memory_bytes"].as_u64().unwrap() > 0, "{used}");
}

#[tokio::test]
async fn settings_that_make_no_sense_are_explained() {
    let site = Site::new().await;
    for (settings, flags, part) in [
        ("    limits: memory=lots\n", &["--sandbox"][..], "memory=lots: write it as 512k, 256m or 1g"),
        ("    operators:\n      x: colour=red\n", &[], "`colour` is not a setting of a sandbox"),
        ("    operators:\n      nobody: memory=1g\n", &[], "`nobody` is not an operator with a command"),
        ("    warm: 1000\n", &[], "a number from 0 to 64"),
        ("    warm: 1\n", &["--sandbox-limits", "memory=1g"], "--sandbox-limits needs a sandbox"),
        ("    warm: 1\n", &["--sandbox", "--sandbox-limits", "cpus=-1"], "--sandbox-limits: cpus=-1: a number above 0"),
    ] {
        let file = site.home.path().join("tenure.yaml");
        std::fs::write(&file, format!("worker:\n  sandbox:\n{settings}")).unwrap();
        let args = [&["worker", "--operator", "x=true", "--config", file.to_str().unwrap()], flags].concat();
        let output = site.run(&args).await;
        assert_eq!(code(&output), 2, "{settings}{flags:?}: {output:?}");
        assert!(output.stderr.contains(part), "{settings}{flags:?}: {}", output.stderr);
    }
}

/// Processes of this machine with this word among their arguments.
fn processes(word: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands.filter(|command| command.split(|byte| *byte == 0).any(|part| part == word.as_bytes())).count()
}
