//! `tenure worker` and `tenure up`.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_testkit::{Child, Signal, wait_until};

use crate::commands::kit::{Home, SOON, Site, code, finish};

#[tokio::test]
async fn a_command_is_an_operator() {
    let site = Site::new().await;
    let upper = "upper=tr a-z A-Z";
    let about = r#"about=printf '{"task":"%s","attempt":%s}' "$TENURE_TASK_ID" "$TENURE_ATTEMPT""#;
    let broken = "broken=echo no such row >&2; exit 3";
    let mut worker =
        site.worker(&["--queue", "a", "--queue", "b", "--operator", upper, "--operator", about, "--operator", broken]);
    let said = worker.wait_for_stderr("worker: ", SOON).await;
    assert!(said.contains("from a, b; woken by pull; operators about, broken, echo, fail, sleep, upper"), "{said}");

    let upper = site.json(&["task", "submit", "a", "upper", "--payload", "\"loud\"", "--wait"]).await;
    assert_eq!(upper["result"], "LOUD");
    let about = site.json(&["task", "submit", "b", "about", "--wait"]).await;
    assert_eq!(about["result"], json!({"task": about["task_id"], "attempt": 1}));
    let failed = site.run(&["task", "submit", "b", "broken", "--max-attempts", "1", "--wait"]).await;
    assert_eq!(code(&failed), 10);
    assert!(failed.stderr.contains("no such row"), "{}", failed.stderr);
}

#[tokio::test]
async fn operators_can_come_from_the_configuration() {
    let site = Site::new().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.yaml");
    std::fs::write(&file, "worker:\n  operators:\n    upper: tr a-z A-Z\n    lower: 'false'\n").unwrap();
    let file = file.to_str().unwrap();
    let _worker = site.worker(&["--queue", "q", "--config", file, "--operator", "lower=tr A-Z a-z"]);
    let upper = site.json(&["task", "submit", "q", "upper", "--payload", "\"a\"", "--wait"]).await;
    assert_eq!(upper["result"], "A");
    let lower = site.json(&["task", "submit", "q", "lower", "--payload", "\"B\"", "--wait"]).await;
    assert_eq!(lower["result"], "b", "the flag wins");
}

#[tokio::test]
async fn a_worker_drains_and_ends_with_0() {
    let site = Site::new().await;
    let go = site.home.path().join("go");
    let hold = format!("hold=until [ -e {} ]; do sleep 0.05; done", go.display());
    let mut worker = site.worker(&["--queue", "q", "--operator", &hold]);
    let id = site.submit(&["q", "hold"]).await;
    let mut watcher = Child::spawn(site.command(&["task", "watch", &id]));
    watcher.wait_for_stderr("Running", SOON).await;
    // It reads its files for every request anyway.
    worker.signal(Signal::SIGHUP);
    worker.signal(Signal::SIGTERM);
    worker.wait_for_stderr("worker draining", SOON).await;
    std::fs::write(&go, "").unwrap();
    assert_eq!(worker.wait(SOON).await.code(), Some(0));
    assert_eq!(watcher.wait(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn a_worker_ends_with_its_standard_input_if_told_so() {
    let site = Site::new().await;
    // Standard input of these tests is empty.
    let mut worker = site.worker(&["--until-eof"]);
    assert_eq!(worker.wait(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn a_worker_without_the_right_token_is_told_where_to_find_it() {
    let site = Site::new().await;
    let stranger = Home::new();
    let without = stranger.run(&["worker", "--server", site.server.url()]).await;
    assert_eq!(code(&without), 4, "{without:?}");
    assert!(
        without.stderr.contains("missing_worker_token") && without.stderr.contains("--token-file"),
        "{}",
        without.stderr
    );

    std::fs::write(stranger.path().join("token"), "wrong").unwrap();
    let wrong = stranger.run(&["worker", "--server", site.server.url(), "--token-file", "token"]).await;
    assert_eq!(code(&wrong), 4, "{wrong:?}");
    assert!(wrong.stderr.contains("invalid_worker_token"), "{}", wrong.stderr);

    let mut both = stranger.command(&["worker"]);
    both.env("TENURE_WORKER_TOKEN", "a").env("TENURE_WORKER_TOKEN_FILE", "b");
    let both = finish(both).await;
    assert_eq!(code(&both), 2);
    assert!(both.stderr.contains("are both set"), "{}", both.stderr);

    let token = std::fs::read_to_string(site.server.data().join("worker-token")).unwrap();
    let mut command = stranger.command(&["worker", "--server", site.server.url()]);
    command.env("TENURE_WORKER_TOKEN", token.trim());
    let mut worker = Child::spawn(command);
    worker.wait_for_stderr("worker started", SOON).await;
    let done = site.run(&["task", "submit", "default", "echo", "--wait"]).await;
    assert_eq!(code(&done), 0);
    assert!(!format!("{:?}", worker.output()).contains(token.trim()), "the token was printed");
}

#[tokio::test]
async fn two_workers_of_one_name_do_not_share_it() {
    let site = Site::new().await;
    let mut old = site.worker(&["--name", "w-1"]);
    old.wait_for_stderr("worker started", SOON).await;
    assert_eq!(code(&site.run(&["task", "submit", "default", "echo", "--wait"]).await), 0);
    // Names of processes are ordered by time; two in one millisecond would not be.
    let seen = Instant::now();
    wait_until("the next milliseconds", SOON, async || seen.elapsed() > Duration::from_millis(5)).await;
    let mut new = site.worker(&["--name", "w-1"]);
    assert_eq!(old.wait(SOON).await.code(), Some(4));
    assert!(old.output().stderr.contains("its own name"), "{:?}", old.output());
    assert_eq!(new.output().status, None);
}

#[tokio::test]
async fn wrong_flags_are_refused() {
    let home = Home::new();
    for (args, part) in [
        (&["--operator", "upper"][..], "is not a built-in operator"),
        (&["--operator", "a b=true"], "cannot name an operator"),
        (&["--operator", "a=./a.sh"], "hint: write the full path: /"),
        (&["--concurrency", "0"], "must be a whole number, at least 1"),
        (&["--token-file", "missing"], "--token-file names missing, which cannot be read"),
        (
            &["--bootstrap-key-file", "missing", "--name", "w"],
            "--bootstrap-key-file names missing, which cannot be read",
        ),
        (&["--grace", "long"], "write it as"),
        (&["--server", "ftp://x"], "is not a server address"),
    ] {
        let output = home.run(&[&["worker"], args].concat()).await;
        assert_eq!(code(&output), 2, "{args:?}: {output:?}");
        assert!(output.stderr.contains(part), "{args:?}: {}", output.stderr);
        assert!(!output.stderr.contains("worker started"), "{args:?}: {}", output.stderr);
    }
}

#[tokio::test]
async fn up_is_a_server_with_a_worker() {
    let home = Home::new();
    let mut up = Child::spawn(home.command(&["up", "--listen", "127.0.0.1:0", "--queue", "q"]));
    let line = up.wait_for_stdout("tenure listening on ", SOON).await;
    let url = line.trim_start_matches("tenure listening on ");
    up.wait_for_stdout("Press Ctrl-C to stop", SOON).await;
    let stdout = up.output().stdout;
    for part in ["/api/v1/openapi.json", "tenure task submit q echo", "tenure.db"] {
        assert!(stdout.contains(part), "{stdout}");
    }
    let done = home.run(&["task", "submit", "q", "echo", "--payload", "7", "--wait", "--server", url]).await;
    assert_eq!(code(&done), 0, "{done:?}");
    // Others can join with the token in the data folder.
    let mut worker = Child::spawn(home.command(&["worker", "--server", url, "--queue", "other"]));
    worker.wait_for_stderr("worker started", SOON).await;
    let done = home.run(&["task", "submit", "other", "echo", "--wait", "--server", url]).await;
    assert_eq!(code(&done), 0, "{done:?}");
    up.signal(Signal::SIGINT);
    assert_eq!(up.wait(SOON).await.code(), Some(0), "{:?}", up.output());
}

/// A command says by its exit code whether it has finished, also after it was told to stop.
#[tokio::test]
async fn a_command_that_ends_well_after_a_cancel_has_succeeded() {
    let site = Site::new().await;
    site.ok(&["queue", "create", "q", "--lease-ttl", "20s", "--heartbeat", "1s"]).await;
    let ready = site.home.path().join("ready");
    let command = format!("late=trap 'echo 7; exit 0' TERM; touch {}; sleep 100 & wait", ready.display());
    let _worker = site.worker(&["--queue", "q", "--operator", &command]);
    let id = site.submit(&["q", "late"]).await;
    wait_until("the trap is set", SOON, async || ready.exists()).await;
    site.ok(&["task", "cancel", &id]).await;
    let ended = wait_until("the task has ended", SOON, async || {
        let task = site.json(&["task", "show", &id]).await;
        let task = task.get("task").cloned().unwrap_or(task);
        task.get("finished_at").is_some().then_some(task)
    })
    .await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("Succeeded"), &json!(7)), "{ended}");
}

/// `up` with this provider, and where it listens.
async fn up_with(home: &Home, provider: Option<&str>) -> (Child, String) {
    let mut command = home.command(&["up", "--listen", "127.0.0.1:0", "--queue", "q"]);
    command.env("TENURE_PROVIDERS__NAMESPACE__ENABLED", "false");
    if let Some(provider) = provider {
        command.env("TENURE_PROVIDERS__DEFAULT", provider);
        command.env(format!("TENURE_PROVIDERS__{}__ENABLED", provider.to_uppercase()), "true");
    }
    let mut up = Child::spawn(command);
    let line = up.wait_for_stdout("tenure listening on ", SOON).await;
    up.wait_for_stdout("Press Ctrl-C to stop", SOON).await;
    (up, line.trim_start_matches("tenure listening on ").to_owned())
}

#[tokio::test]
async fn up_holds_sandboxes_itself() {
    let home = Home::new();
    let (mut up, url) = up_with(&home, Some("process")).await;
    let http = reqwest::Client::new();
    let ready = async || {
        let answer = http.get(format!("{url}/api/v1/ready")).send().await.ok()?;
        answer.status().is_success().then_some(())
    };
    wait_until("its worker has sent a heartbeat", SOON, ready).await;
    let post = async |path: &str, body: serde_json::Value| {
        let answer = http.post(format!("{url}{path}")).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<serde_json::Value>().await.unwrap())
    };
    let (status, sandbox) = post("/api/v1/sandboxes", json!({})).await;
    assert_eq!((status, &sandbox["worker_id"]), (201, &json!("local")), "{sandbox}");
    let path = format!("/api/v1/sandboxes/{}/exec", sandbox["id"].as_str().unwrap());
    let (status, ended) = post(&path, json!({"command": "echo hello"})).await;
    assert_eq!((status, &ended["stdout"]), (200, &json!("hello\n")), "{ended}");
    let deleted = http.delete(format!("{url}/api/v1/sandboxes/{}", sandbox["id"].as_str().unwrap())).send().await;
    assert_eq!(deleted.unwrap().status(), 200);
    up.signal(Signal::SIGINT);
    assert_eq!(up.wait(SOON).await.code(), Some(0), "{:?}", up.output());
}

#[tokio::test]
async fn up_without_a_provider_says_so_and_goes_on() {
    let home = Home::new();
    let (mut up, url) = up_with(&home, None).await;
    assert!(up.output().stdout.contains("none on this machine"), "{:?}", up.output());
    let done = home.run(&["task", "submit", "q", "echo", "--payload", "7", "--wait", "--server", &url]).await;
    assert_eq!(code(&done), 0, "{done:?}");
    up.signal(Signal::SIGINT);
    assert_eq!(up.wait(SOON).await.code(), Some(0), "{:?}", up.output());
}
