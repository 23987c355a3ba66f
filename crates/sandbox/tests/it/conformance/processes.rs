use std::time::Duration;

use tenure_sandbox::{Command, Error, ErrorKind};

use super::{Bench, cases};
use crate::kit::{read_until, run, runs, sh, text, wait_until, write};

cases!(
    a_time_out_leaves_no_process,
    a_dropped_execution_leaves_no_process,
    a_destroyed_sandbox_leaves_no_process,
    processes_that_a_command_leaves_go_on_until_the_sandbox_ends,
    a_stopped_process_is_killed,
    commands_run_at_the_same_time,
    destroying_a_sandbox_ends_its_commands_with_an_error,
    statistics_count_what_runs,
);

/// Processes that resist: in the background, in a session of their own, twice forked, deaf to signals.
fn stubborn(marker: &str) -> String {
    format!(
        "sleep {marker} &
         setsid sleep {marker} &
         (setsid sh -c 'trap \"\" TERM HUP INT; sleep {marker} & wait' &)
         (env -i PATH=\"$PATH\" setsid sh -c '(sleep {marker} &)' &)
         trap '' TERM
         until [ $(ps -ef 2>/dev/null | grep -c '[s]leep {marker}') -ge 4 ] || [ ${{n:=0}} -gt 50 ]; do n=$((n+1)); sleep 0.02; done
         echo up; sleep {marker}"
    )
}

/// A number of seconds that nobody else sleeps for.
fn marker(bench: &Bench) -> String {
    let name = bench.folder.path().file_name().expect("a name").to_string_lossy().into_owned();
    let digits: String = name.bytes().map(|byte| (byte % 10).to_string()).collect();
    format!("9{}.5", &digits[digits.len() - 6..])
}

async fn a_time_out_leaves_no_process(bench: &mut Bench) {
    let (provider, id, marker) = (bench.provider(), bench.spawn().await, marker(bench));
    let command = Command::shell(&stubborn(&marker), &[]).timeout(Duration::from_secs(10));
    let mut execution = provider.exec(&id, command).await.expect("a command");
    read_until(&mut execution, "up").await;
    assert!(runs(&marker));
    let error = execution.output(100).await.expect_err("a time-out");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    wait_until("no process is left", async || !runs(&marker)).await;
    assert_eq!(text(provider, &id, "echo alive").await, "alive\n");
}

async fn a_dropped_execution_leaves_no_process(bench: &mut Bench) {
    let (provider, id, marker) = (bench.provider(), bench.spawn().await, marker(bench));
    let mut execution = provider.exec(&id, Command::shell(&stubborn(&marker), &[])).await.expect("a command");
    read_until(&mut execution, "up").await;
    drop(execution);
    wait_until("no process is left", async || !runs(&marker)).await;
}

async fn a_destroyed_sandbox_leaves_no_process(bench: &mut Bench) {
    let (provider, id, marker) = (bench.provider(), bench.spawn().await, marker(bench));
    let mut execution = provider.exec(&id, Command::shell(&stubborn(&marker), &[])).await.expect("a command");
    read_until(&mut execution, "up").await;
    provider.destroy(&id).await.expect("a destruction");
    assert!(!runs(&marker), "a process outlived the sandbox");
    let left = find(&bench.folder.path().join("data"), &id.0);
    assert!(left.is_empty(), "something is left: {left:?}");
}

/// Paths whose name contains a text.
fn find(folder: &std::path::Path, text: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a list").flatten() {
        if entry.file_name().to_string_lossy().contains(text) {
            found.push(entry.path());
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(find(&entry.path(), text));
        }
    }
    found
}

async fn processes_that_a_command_leaves_go_on_until_the_sandbox_ends(bench: &mut Bench) {
    let (provider, id, marker) = (bench.provider(), bench.spawn().await, marker(bench));
    let line = format!("sleep {marker} & (while [ ! -e go ]; do sleep 0.02; done; echo late; touch gone) & echo early");
    let output = tokio::time::timeout(crate::kit::PATIENCE, sh(provider, &id, &line)).await.expect("an exit in time");
    assert_eq!((output.stdout.as_slice(), output.exit().code), (b"early\n".as_slice(), 0));
    // The shell may end before what it left has become `sleep`.
    wait_until("it goes on after the command that left it", async || runs(&marker)).await;
    write(provider, &id, "go", b"").await.expect("a write");
    wait_until("the late line is logged", async || provider.console_log(&id, 1).await.expect("a log") == ["late"])
        .await;
    wait_until("it was not killed by writing", async || provider.stat_file(&id, "gone").await.is_ok()).await;
    provider.destroy(&id).await.expect("a destruction");
    assert!(!runs(&marker), "a process outlived the sandbox");
}

async fn a_stopped_process_is_killed(bench: &mut Bench) {
    let (provider, id, marker) = (bench.provider(), bench.spawn().await, marker(bench));
    let line = format!("sleep {marker} & kill -STOP $!; kill -STOP $$; echo never");
    let command = Command::shell(&line, &[]).timeout(Duration::from_millis(500));
    let error = run(provider, &id, command).await.expect_err("a time-out");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    wait_until("no process is left", async || !runs(&marker)).await;
}

async fn commands_run_at_the_same_time(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let mut waiting = Vec::new();
    for number in 0..20 {
        let line =
            format!("touch start-{number}; while [ ! -e all ]; do sleep 0.02; done; echo {number}; exit {number}");
        waiting.push((number, provider.exec(&id, Command::shell(&line, &[])).await.expect("a command")));
    }
    wait_until("all have started", async || provider.glob_files(&id, "start-*").await.expect("a list").len() == 20)
        .await;
    write(provider, &id, "all", b"").await.expect("a write");
    for (number, execution) in waiting {
        let output = execution.output(100).await.expect("an exit");
        assert_eq!((output.exit().code, output.stdout), (number, format!("{number}\n").into_bytes()));
    }
}

async fn destroying_a_sandbox_ends_its_commands_with_an_error(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let mut execution = provider.exec(&id, Command::shell("echo up; sleep 1000", &[])).await.expect("a command");
    read_until(&mut execution, "up").await;
    provider.destroy(&id).await.expect("a destruction");
    let error: Error = execution.output(100).await.expect_err("not an exit of its own");
    assert!(matches!(error.kind(), ErrorKind::Destroyed | ErrorKind::Unavailable), "{error}");
}

async fn statistics_count_what_runs(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    write(provider, &id, "file", &[1; 1 << 20]).await.expect("a write");
    let line = "echo up; i=0; while :; do i=$((i+1)); done";
    let mut execution = provider.exec(&id, Command::shell(line, &[])).await.expect("a command");
    read_until(&mut execution, "up").await;
    wait_until("the command is seen", async || {
        let stats = provider.stats(&id).await.expect("statistics");
        stats.pids > 0 && stats.memory_bytes > 0 && stats.cpu_percent > 0.0 && stats.disk_bytes >= 1 << 20
    })
    .await;
}
