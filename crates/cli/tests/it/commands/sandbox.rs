//! `tenure sandbox`: one command in a sandbox of its own, as a shell would run it.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tenure_testkit::{Child, Output, Signal, wait_until};

use crate::commands::kit::{Home, SOON, code, finish, providers};

/// A home whose temporary folder is empty when nothing is left behind.
fn home() -> Home {
    let home = Home::new();
    std::fs::create_dir(home.path().join("tmp")).unwrap();
    home
}

fn command(home: &Home, provider: &str, args: &[&str]) -> std::process::Command {
    let mut command = home.command(&[&["sandbox", "run", "--provider", provider], args].concat());
    command.env("TMPDIR", home.path().join("tmp")).env("SECRET_OF_THE_SHELL", "hunter2");
    command
}

async fn run(home: &Home, provider: &str, args: &[&str]) -> Output {
    finish(command(home, provider, args)).await
}

async fn nothing_is_left(home: &Home) {
    let tmp = home.path().join("tmp");
    wait_until("the folder is empty", SOON, async || std::fs::read_dir(&tmp).unwrap().next().is_none()).await;
}

#[tokio::test]
async fn a_command_has_its_output_and_its_exit_code() {
    for provider in providers("a_command_has_its_output_and_its_exit_code").await {
        let home = home();
        let output = run(&home, provider, &["--", "sh", "-c", "echo out; echo err >&2; exit 7"]).await;
        assert_eq!((code(&output), output.stdout.as_str()), (7, "out\n"), "{provider}: {output:?}");
        assert!(output.stderr.contains("err\n"), "{provider}: {output:?}");
        let output = run(&home, provider, &["--", "sh", "-c", "kill -9 $$"]).await;
        assert_eq!(code(&output), 137, "{provider}: {output:?}");
        let output = run(&home, provider, &["--", "surely-no-such-program"]).await;
        assert_eq!(code(&output), 127, "{provider}: {output:?}");
        nothing_is_left(&home).await;
    }
}

#[tokio::test]
async fn a_command_reads_standard_input_to_its_end() {
    for provider in providers("a_command_reads_standard_input_to_its_end").await {
        let home = home();
        let input = home.path().join("input");
        std::fs::write(&input, vec![b'x'; 300_000]).unwrap();
        let mut command = command(&home, provider, &["--", "wc", "-c"]);
        command.stdin(std::fs::File::open(&input).unwrap());
        let output = finish(command).await;
        assert_eq!((code(&output), output.stdout.trim()), (0, "300000"), "{provider}: {output:?}");
    }
}

#[tokio::test]
async fn only_named_variables_reach_the_command() {
    for provider in providers("only_named_variables_reach_the_command").await {
        let home = home();
        let output = run(&home, provider, &["-e", "A=b=c", "--", "env"]).await;
        assert!(output.stdout.lines().any(|line| line == "A=b=c"), "{provider}: {output:?}");
        assert!(!output.stdout.contains("hunter2"), "{provider}: {output:?}");
        let output = run(&home, provider, &["--env", "SECRET_OF_THE_SHELL", "--", "env"]).await;
        assert!(output.stdout.contains("SECRET_OF_THE_SHELL=hunter2"), "{provider}: {output:?}");
    }
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed_with_all_that_it_started() {
    for provider in providers("a_command_that_takes_too_long_is_killed_with_all_that_it_started").await {
        let home = home();
        let marker = format!("7{}.25", std::process::id());
        let line = format!("(setsid sleep {marker} &) ; sleep {marker}");
        let output = run(&home, provider, &["--timeout", "1s", "--", "sh", "-c", &line]).await;
        assert_eq!(code(&output), 124, "{provider}: {output:?}");
        assert!(output.stderr.contains("ran longer than 1s"), "{provider}: {output:?}");
        wait_until("no process is left", SOON, async || processes(&marker) == 0).await;
        nothing_is_left(&home).await;
    }
}

#[tokio::test]
async fn a_signal_is_passed_on_and_the_command_decides() {
    for provider in providers("a_signal_is_passed_on_and_the_command_decides").await {
        let home = home();
        let line = "trap 'echo stopping; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
        let mut child = Child::spawn(command(&home, provider, &["--", "sh", "-c", line]));
        child.wait_for_stdout("ready", SOON).await;
        child.signal(Signal::SIGTERM);
        assert_eq!(child.wait(SOON).await.code(), Some(3), "{provider}");
        assert!(child.output().stdout.contains("stopping"), "{provider}");
        nothing_is_left(&home).await;
    }
}

#[tokio::test]
async fn a_killed_cli_leaves_nothing_behind() {
    for provider in providers("a_killed_cli_leaves_nothing_behind").await {
        let home = home();
        let marker = format!("8{}.25", std::process::id());
        let line = format!("(setsid sleep {marker} &) ; echo ready; sleep {marker}");
        let mut child = Child::spawn(command(&home, provider, &["--", "sh", "-c", &line]));
        child.wait_for_stdout("ready", SOON).await;
        wait_until("both run", SOON, async || processes(&marker) >= 2).await;
        child.signal(Signal::SIGKILL);
        child.wait(SOON).await;
        wait_until("no process is left", SOON, async || processes(&marker) == 0).await;
        nothing_is_left(&home).await;
    }
}

/// A pipe whose reader has gone ends the command, as it would without a sandbox.
#[tokio::test]
async fn a_reader_that_goes_away_ends_the_command() {
    for provider in providers("a_reader_that_goes_away_ends_the_command").await {
        let home = home();
        let program = command(&home, provider, &["--", "yes"]);
        let line = format!("{} | head -n 1; echo ${{PIPESTATUS[0]}}", quoted(&program));
        let mut shell = std::process::Command::new("bash");
        shell.arg("-c").arg(line).env("TMPDIR", home.path().join("tmp")).env("HOME", home.path());
        let output = finish(shell).await;
        assert_eq!(output.stdout, "y\n141\n", "{provider}: {output:?}");
        nothing_is_left(&home).await;
    }
}

fn quoted(command: &std::process::Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''"))).collect::<Vec<_>>().join(" ")
}

/// `script` gives the CLI a terminal. Its settings are the same before and after, also if a signal ends the command.
#[tokio::test]
async fn a_terminal_is_passed_on_and_restored() {
    for provider in providers("a_terminal_is_passed_on_and_restored").await {
        let home = home();
        let inside = command(&home, provider, &["--", "sh", "-c", "test -t 0 && test -t 1 && stty size; kill -INT $$"]);
        let line = format!("stty rows 33 cols 77; stty -g; {}; echo code=$?; stty -g", quoted(&inside));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped());
        script.env("TMPDIR", home.path().join("tmp")).env("HOME", home.path());
        let output = finish(script).await;
        let lines: Vec<&str> = output.stdout.lines().map(str::trim).collect();
        assert!(lines.contains(&"33 77"), "{provider}: {output:?}");
        assert!(lines.contains(&"code=130"), "{provider}: {output:?}");
        let settings: Vec<_> = lines.iter().filter(|line| line.matches(':').count() > 10).collect();
        assert_eq!(settings.len(), 2, "{provider}: {output:?}");
        assert_eq!(settings[0], settings[1], "{provider}: the settings of the terminal changed");
    }
}

#[tokio::test]
async fn what_cannot_run_is_explained_with_its_own_exit_code() {
    let home = home();
    for (args, part) in [
        (&["--memory", "lots", "--", "true"][..], "write it as 512k, 256m or 1g"),
        (&["--cpus", "0", "--", "true"], "a number above 0"),
        (&["--timeout", "5", "--", "true"], "write it as"),
        (&["--mount", "/nowhere:/data", "--", "true"], "/nowhere"),
        (&["--mount", "data", "--", "true"], "write it as DIR:/PATH"),
        (&["--env", "=x", "--", "true"], "the name is empty"),
        (&["--provider", "nothing", "--", "true"], "nothing"),
        (&[], "CMD"),
    ] {
        let mut command = home.command(&[&["sandbox", "run"], args].concat());
        command.env("TMPDIR", home.path().join("tmp"));
        let output = finish(command).await;
        assert_eq!(code(&output), 125, "{args:?}: {output:?}");
        assert!(output.stderr.contains(part), "{args:?}: {}", output.stderr);
    }
    // A limit that the provider does not enforce is refused, never ignored.
    let output = run(&home, "process", &["--memory", "64m", "--", "true"]).await;
    assert_eq!(code(&output), 125, "{output:?}");
    assert!(output.stderr.contains("enforces no limits"), "{output:?}");
    nothing_is_left(&home).await;
}

#[tokio::test]
async fn check_says_what_is_enforced_why_not_and_what_to_do() {
    let home = home();
    let output = finish(home.command(&["sandbox", "check", "--provider", "process"])).await;
    assert_eq!(code(&output), 0, "{output:?}");
    let line = output.stdout.lines().find(|line| line.contains("memory")).unwrap_or_default();
    assert!(line.contains("none") && line.contains("use the provider namespace"), "{output:?}");
    let output = finish(home.command(&["sandbox", "check", "--json"])).await;
    let found: Value = serde_json::from_str(&output.stdout).unwrap();
    let process = found.as_array().unwrap().iter().find(|found| found["provider"] == "process").unwrap();
    assert_eq!(process["available"], true);
    assert_eq!(process["capabilities"]["memory"]["enforcement"], "none");
}

#[tokio::test]
async fn images_are_added_listed_and_removed() {
    let home = home();
    let source = home.path().join("rootfs");
    std::fs::create_dir_all(source.join("bin")).unwrap();
    std::fs::write(source.join("bin/tool"), "#!/bin/sh\n").unwrap();
    let image = async |args: &[&str]| {
        let args = [&["sandbox", "image", "--data", "data"], args].concat();
        finish(home.command(&args)).await
    };
    let output = image(&["list"]).await;
    assert!(code(&output) == 0 && output.stdout.contains("No images"), "{output:?}");
    let output = image(&["add", "tools", "rootfs"]).await;
    assert!(code(&output) == 0 && output.stdout.contains("Added tools"), "{output:?}");
    let output = image(&["list", "--json"]).await;
    let images: Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(images[0]["name"].as_str().unwrap().starts_with("tools"), "{images}");
    assert!(images[0]["digest"].as_str().unwrap().starts_with("sha256:"), "{images}");
    assert_eq!(code(&image(&["add", "host", "rootfs"]).await), 2);
    assert_eq!(code(&image(&["add", "more", "nowhere"]).await), 2);
    assert_eq!(code(&image(&["rm", "tools"]).await), 0);
    let again = image(&["rm", "tools"]).await;
    assert!(matches!(code(&again), 2 | 3), "{again:?}");
}

/// What only a real sandbox can promise.
#[tokio::test]
async fn a_sandbox_keeps_host_files_network_and_memory_apart() {
    if !providers("a_sandbox_keeps_host_files_network_and_memory_apart").await.contains(&"namespace") {
        return;
    }
    let home = home();
    std::fs::write(home.path().join("secret"), "of the host").unwrap();
    let secret = home.path().join("secret");
    let line = format!("cat {} /etc/shadow; ls /root /home; cat /proc/net/dev | grep -c :", secret.display());
    let output = run(&home, "namespace", &["--", "sh", "-c", &line]).await;
    assert!(!output.stdout.contains("of the host") && !output.stdout.contains("root:"), "{output:?}");
    assert_eq!(output.stdout.trim(), "1", "only loopback: {output:?}");

    // A shared folder is as open as it was made.
    let folder = home.path().join("shared");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("in"), "given").unwrap();
    let mount = format!("{}:/data:ro", folder.display());
    let output = run(&home, "namespace", &["-v", &mount, "--", "sh", "-c", "cat /data/in; touch /data/out"]).await;
    assert!(output.stdout.contains("given") && code(&output) != 0, "{output:?}");
    assert!(!folder.join("out").exists());

    let hog = ["--memory", "48m", "--", "sh", "-c", "head -c 400000000 /dev/zero | tail -n 1 | wc -c; exit $?"];
    let output = run(&home, "namespace", &hog).await;
    assert!(output.stderr.contains("ran out of memory of 48 MiB"), "{output:?}");
    nothing_is_left(&home).await;
}

/// Processes of this machine with this word among their arguments.
fn processes(word: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| has_word(&entry.path(), word)).count()
}

fn has_word(process: &Path, word: &str) -> bool {
    let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
}
