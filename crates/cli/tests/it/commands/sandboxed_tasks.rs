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

#[tokio::test]
async fn a_worker_that_cannot_keep_the_promise_of_strict_queues_does_not_start() {
    let site = Site::new().await;
    for (provider, operator, part) in [
        ("process", "x=true", "those of the provider `process` do not"),
        ("process", "echo", "the operator `echo` does not"),
    ] {
        let file = site.home.path().join("tenure.yaml");
        std::fs::write(&file, format!("worker:\n  sandbox:\n    provider: {provider}\n")).unwrap();
        let args = ["worker", "--strict", "--sandbox", "--operator", operator, "--config", file.to_str().unwrap()];
        let output = site.run(&args).await;
        assert_ne!(code(&output), 0, "{output:?}");
        assert!(output.stderr.contains(part), "{}", output.stderr);
    }
}

/// The worker stands still while its lease ends: only the sandbox itself can end the attempt.
#[tokio::test]
async fn in_a_strict_queue_the_sandbox_of_a_lost_attempt_is_dead_before_the_next_begins() {
    let test = "in_a_strict_queue_the_sandbox_of_a_lost_attempt_is_dead_before_the_next_begins";
    if !providers(test).await.contains(&"namespace") {
        return;
    }
    let site = Site::new().await;
    site.ok(&["queue", "create", "q", "--strict", "--lease-ttl", "3s"]).await;
    let log = site.home.path().join("log");
    std::fs::create_dir(&log).unwrap();
    std::fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let settings = format!("    limits: mount={}:/log\n", log.display());
    let beats = "beats=while :; do date +%s%N >> /log/$TENURE_ATTEMPT; sleep 0.05; done";
    let mut first = strict_worker(&site, &settings, beats);
    let id = site.submit(&["q", "beats", "--max-attempts", "3"]).await;
    let file = |attempt: u32| log.join(attempt.to_string());
    wait_until("the first attempt runs", SOON, async || file(1).exists()).await;
    first.signal(Signal::SIGSTOP);

    let _second = strict_worker(&site, &settings, beats);
    wait_until("the second attempt runs", SOON, async || file(2).exists()).await;
    let times = |attempt: u32| -> Vec<u64> {
        let text = std::fs::read_to_string(file(attempt)).unwrap();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let (last, next) = (*times(1).last().unwrap(), times(2)[0]);
    assert!(last < next, "the first attempt was alive {} ms after the second began", (last - next) / 1_000_000);
    let length = times(1).len();
    first.signal(Signal::SIGCONT);
    // The one that was lost stays dead, also when its worker goes on.
    wait_until("the second attempt goes on", SOON, async || times(2).len() > 20).await;
    assert_eq!(times(1).len(), length);
    site.ok(&["task", "cancel", &id]).await;
}

#[tokio::test]
async fn a_worker_without_the_promise_gets_nothing_from_a_strict_queue() {
    let site = Site::new().await;
    site.ok(&["queue", "create", "q", "--strict"]).await;
    let _worker = worker(&site, "process", "", &["x=true"]);
    let id = site.submit(&["q", "x"]).await;
    wait_until("the reason is shown", SOON, async || {
        let why = site.run(&["task", "why", &id]).await;
        why.stdout.contains("requires workers that run tasks in sandboxes (strict)")
    })
    .await;
}

fn strict_worker(site: &Site, settings: &str, operator: &str) -> Child {
    let file = site.home.path().join("strict.yaml");
    std::fs::write(&file, format!("worker:\n  sandbox:\n    provider: namespace\n{settings}")).unwrap();
    let args = ["worker", "--strict", "--sandbox", "--queue", "q", "--operator", operator, "--config"];
    Child::spawn(site.command(&[&args[..], &[file.to_str().unwrap()]].concat()))
}
