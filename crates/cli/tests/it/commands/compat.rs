//! The profile `stacyvm`: the same program under another name.

use std::process::Command;

use tenure_testkit::{Child, Output, wait_until};

use crate::commands::kit::{Home, SOON, code, finish};

/// A command of the link that `tenure compat link` made in the home.
fn stacyvm(home: &Home, args: &[&str]) -> Command {
    let mut command = Command::new(home.path().join("bin/stacyvm"));
    let own = home.command(&[]);
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(args).current_dir(home.path());
    command
}

async fn linked() -> Home {
    let home = Home::new();
    std::fs::create_dir(home.path().join("bin")).unwrap();
    let output = home.run(&["compat", "link", "bin"]).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(output.stdout.starts_with("bin/stacyvm links to /"), "{}", output.stdout);
    home
}

fn line<'a>(output: &'a Output, check: &str) -> &'a str {
    let start = format!("] {check}: ");
    output.stdout.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("no {check}: {output:?}"))
}

#[tokio::test]
async fn a_link_is_made_once_and_overwrites_nothing() {
    let home = linked().await;
    let again = home.run(&["compat", "link", "bin"]).await;
    assert_eq!(code(&again), 0, "{again:?}");
    assert!(again.stdout.contains("already links to"), "{}", again.stdout);
    let nowhere = home.run(&["compat", "link", "nowhere"]).await;
    assert_eq!(code(&nowhere), 1);
    assert!(nowhere.stderr.contains("mkdir -p nowhere"), "{}", nowhere.stderr);
    std::fs::create_dir(home.path().join("other")).unwrap();
    std::fs::write(home.path().join("other/stacyvm"), "mine").unwrap();
    let taken = home.run(&["compat", "link", "other"]).await;
    assert_eq!(code(&taken), 1);
    assert!(taken.stderr.contains("hint: remove the file first"), "{}", taken.stderr);
    assert_eq!(std::fs::read_to_string(home.path().join("other/stacyvm")).unwrap(), "mine");
}

#[tokio::test]
async fn the_name_of_the_program_turns_the_profile_on() {
    let home = linked().await;
    let lint = finish(stacyvm(&home, &["config", "lint"])).await;
    assert_eq!(code(&lint), 0, "{lint:?}");
    assert_eq!(line(&lint, "compat"), "[WARN] compat: the profile stacyvm is on: the program was started as stacyvm");
    let production = finish(stacyvm(&home, &["config", "lint", "--production"])).await;
    assert_eq!(code(&production), 1);
    assert!(line(&production, "server.cors_allowed_origins").starts_with("[FAIL]"));
    let own = home.run(&["config", "lint"]).await;
    assert_eq!(line(&own, "compat"), "[PASS] compat: no profile is on");
    assert!(line(&own, "server.cors_allowed_origins").starts_with("[PASS]"));
}

#[tokio::test]
async fn a_file_of_the_other_name_is_found_and_its_variables_are_read() {
    let home = Home::new();
    std::fs::write(home.path().join("stacyvm.yaml"), "pool: {enabled: true}\nserver: {port: 9}\n").unwrap();
    let mut command = home.command(&["config", "show"]);
    command.env("STACYVM_LOGGING_LEVEL", "debug").env("STACYVM_SERVER_PORT", "");
    let shown = finish(command).await;
    assert_eq!(code(&shown), 0, "{shown:?}");
    let row = |key: &str| {
        let found = shown.stdout.lines().find(|line| line.split_whitespace().next() == Some(key));
        found.unwrap_or_else(|| panic!("no {key}")).split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("server.port"), "9 stacyvm.yaml line 2");
    assert_eq!(row("logging.level"), "debug the variable STACYVM_LOGGING_LEVEL");
    assert_eq!(row("worker.local"), "true the profile stacyvm");
    let lint = home.run(&["config", "lint"]).await;
    assert!(
        lint.stdout.contains("[WARN] compat: the profile stacyvm is on: the configuration was found at stacyvm.yaml")
    );
    assert!(lint.stdout.contains("[WARN] compat: stacyvm.yaml line 1: pool is enabled but not available"));
    // An own file takes precedence, and then nothing of the profile applies.
    std::fs::write(home.path().join("tenure.yaml"), "server: {port: 10}\n").unwrap();
    let mut command = home.command(&["config", "show"]);
    command.env("STACYVM_LOGGING_LEVEL", "debug");
    let shown = finish(command).await;
    assert!(shown.stdout.lines().any(|line| line.contains("logging.level") && line.contains("default")), "{shown:?}");
    // A variable that names a file of any name does the same.
    std::fs::write(home.path().join("other.yaml"), "pool: {enabled: false}\n").unwrap();
    std::fs::remove_file(home.path().join("tenure.yaml")).unwrap();
    let mut command = home.command(&["config", "lint"]);
    command.env("STACYVM_CONFIG", "other.yaml");
    let lint = finish(command).await;
    assert_eq!(code(&lint), 0, "{lint:?}");
    assert!(line(&lint, "compat").ends_with("found at other.yaml"), "{}", lint.stdout);
}

#[tokio::test]
async fn under_the_other_name_it_has_the_other_verbs() {
    let home = linked().await;
    let help = finish(stacyvm(&home, &["--help"])).await;
    assert_eq!(code(&help), 0, "{help:?}");
    for verb in ["serve", "worker", "config", "spawn", "exec", "kill", "list", "version", "--server", "--api-key"] {
        assert!(help.stdout.contains(verb), "{verb}: {}", help.stdout);
    }
    assert!(!help.stdout.contains("dead-letter"), "{}", help.stdout);
    let version = finish(stacyvm(&home, &["version"])).await;
    let expected = format!("stacyvm {} (linux/", env!("CARGO_PKG_VERSION"));
    assert!(version.stdout.starts_with(&expected), "{}", version.stdout);
    // Started as `tenure`, the program does not have these verbs.
    assert_eq!(code(&home.run(&["spawn"]).await), 2);
    let nobody = finish(stacyvm(&home, &["list", "--server", "http://127.0.0.1:1"])).await;
    assert_eq!(code(&nobody), 5, "{nobody:?}");
}

/// A server under the other name, with everything that it has by default there.
async fn serve(home: &Home, more: &str) -> (Child, String) {
    let text = format!(
        "server: {{host: 127.0.0.1, port: 0}}\nproviders: {{default: mock, mock: {{enabled: true}}, namespace: {{enabled: false}}}}\n{more}"
    );
    std::fs::write(home.path().join("stacyvm.yaml"), text).unwrap();
    let mut server = Child::spawn(stacyvm(home, &["serve", "--data", "data"]));
    let line = server.wait_for_stdout("tenure listening on http://127.0.0.1:", SOON).await;
    let url = line.rsplit_once(' ').unwrap().1.trim().to_owned();
    (server, url)
}

#[tokio::test]
async fn the_verbs_work_on_a_server_that_has_a_worker_inside() {
    let home = linked().await;
    let (mut server, url) = serve(&home, "auth: {api_key: key-of-the-tests}\n").await;
    let run = async |args: &[&str]| {
        let mut command = stacyvm(&home, &[&["--server", &url], args].concat());
        command.env("STACYVM_API_KEY", "key-of-the-tests");
        finish(command).await
    };
    let ok = async |args: &[&str]| {
        let output = run(args).await;
        assert_eq!(code(&output), 0, "{args:?}: {output:?}");
        output.stdout
    };
    assert_eq!(ok(&["list"]).await, "No active sandboxes\n");
    // The worker inside says hello a moment after the server listens.
    let mut spawned = String::new();
    wait_until("a sandbox is spawned", SOON, async || {
        let output = run(&["spawn", "--provider", "mock", "--ttl", "10m", "--memory", "64"]).await;
        spawned.clone_from(&output.stdout);
        code(&output) == 0
    })
    .await;
    let rest = spawned.strip_prefix("Sandbox sb-").unwrap_or_else(|| panic!("{spawned}"));
    let (digits, rest) = rest.split_once(' ').unwrap();
    assert_eq!(rest, "spawned (provider: mock, image: alpine:latest)\n");
    let id = format!("sb-{digits}");
    assert_eq!(ok(&["exec", &id, "--", "echo", "hello", "there"]).await, "hello there\n");
    assert_eq!(ok(&["exec", &id, "printf '\\377'; echo oops >&2"]).await.len(), "\u{fffd}".len());
    let failed = run(&["exec", &id, "--", "echo out; echo err >&2; exit 7"]).await;
    assert_eq!((code(&failed), failed.stdout.as_str()), (1, "out\n"));
    assert!(failed.stderr.contains("err\n") && failed.stderr.contains("exit code: 7"), "{}", failed.stderr);
    for verb in ["list", "ls"] {
        let listed = ok(&[verb]).await;
        let mut lines = listed.lines();
        let words = |line: Option<&str>| {
            line.unwrap_or_default().split_whitespace().take(4).map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(lines.next()), ["ID", "STATE", "PROVIDER", "IMAGE"]);
        assert_eq!(words(lines.next()), [id.as_str(), "running", "mock", "alpine:latest"]);
        assert_eq!(lines.next(), None);
    }
    assert_eq!(ok(&["kill", &id]).await, format!("Sandbox {id} destroyed\n"));
    assert_eq!(ok(&["list"]).await, "No active sandboxes\n");
    assert_eq!(code(&run(&["exec", &id, "--", "true"]).await), 3);
    // The key is required, and belongs to an operator: it reads the metrics, which have both names.
    assert_eq!(code(&finish(stacyvm(&home, &["list", "--server", &url])).await), 4);
    let metrics = reqwest::Client::new().get(format!("{url}/metrics")).header("X-API-Key", "key-of-the-tests");
    let metrics = metrics.send().await.unwrap().error_for_status().unwrap().text().await.unwrap();
    for name in ["tenure_uptime_seconds", "stacyvm_uptime_seconds"] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name}: {metrics}");
    }
    assert!(server.output().stderr.contains("the profile stacyvm is on"));
    assert_eq!(server.terminate().await.code(), Some(0));
}
