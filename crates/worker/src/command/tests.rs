//! Real processes, no server.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_client::{Json, TaskError, TestLease};

use super::OrphanGuard;
use crate::run::Tools;

fn tools() -> Tools {
    Tools::new(tenure_outbound::Policy::default(), Duration::from_secs(10), false).unwrap()
}

fn lease() -> TestLease {
    TestLease::new("test", &json!({"day": "2025-01-15"}))
}

async fn run(command: &str) -> Result<Value, TaskError> {
    super::run(command, &tools(), &lease().context()).await.map(|json| json.value())
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process ids that a command wrote to a file, one a line, once there are `count`.
fn pids(file: &Path, count: usize) -> Vec<u32> {
    let read = || -> Vec<u32> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
    };
    wait_until("the command says its process ids", || read().len() == count);
    read()
}

/// Gone, or dead and waiting for somebody to ask for its exit status.
fn is_dead(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// A command with a child that ignores the polite signal, both of which write down who they are.
fn stubborn_family(file: &Path) -> String {
    let file = file.display();
    format!("sh -c 'trap \"\" TERM; echo $$ >> {file}; while :; do sleep 1; done' & echo $$ >> {file}; wait")
}

#[tokio::test]
async fn exit_codes_are_categories() {
    let table = [
        (1, "USER_CODE", true),
        (2, "USER_CODE", true),
        (64, "CONFIGURATION", false),
        (65, "DATA_QUALITY", false),
        (75, "INFRASTRUCTURE", true),
        (78, "CONFIGURATION", false),
        (124, "TIMEOUT", true),
        (126, "USER_CODE", true),
        (127, "USER_CODE", true),
        (130, "INFRASTRUCTURE", true),
        (137, "INFRASTRUCTURE", true),
        (143, "INFRASTRUCTURE", true),
        (255, "USER_CODE", true),
    ];
    for (exit, code, retryable) in table {
        let error = run(&format!("exit {exit}")).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), (code, retryable), "exit code {exit}");
        assert_eq!(error.message(), format!("exit code {exit}"));
    }
    let killed = run("kill -9 $$").await.unwrap_err();
    assert_eq!((killed.code(), killed.message()), ("INFRASTRUCTURE", "killed by signal 9"));
}

#[tokio::test]
async fn a_signal_after_a_cancel_is_the_cancel() {
    for command in ["sleep 100", "trap 'exit 143' TERM; sleep 100 & wait", "trap 'exit 130' TERM; sleep 100 & wait"] {
        let (lease, tools) = (lease(), tools());
        let task = lease.context();
        let (ended, ()) = tokio::join!(super::run(command, &tools, &task), async { lease.cancel("user") });
        assert_eq!(ended.unwrap_err().code(), "CANCELLED", "{command}");
    }
}

#[tokio::test]
async fn a_command_may_finish_after_a_cancel() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let command = format!("trap 'echo 7; exit 0' TERM; touch {}; sleep 100 & wait", ready.display());
    let (lease, tools) = (lease(), tools());
    let task = lease.context();
    let cancel = async {
        let ready = ready.clone();
        tokio::task::spawn_blocking(move || wait_until("the trap is set", || ready.exists())).await.unwrap();
        lease.cancel("user");
    };
    let (ended, ()) = tokio::join!(super::run(&command, &tools, &task), cancel);
    assert_eq!(ended.unwrap().as_str(), "7");
}

#[tokio::test]
async fn the_result_file_wins_over_the_output() {
    assert_eq!(run(r#"echo '{"a":1}' > "$TENURE_RESULT_FILE"; echo 2"#).await.unwrap(), json!({"a": 1}));
    assert_eq!(run(r#"echo no json > "$TENURE_RESULT_FILE"; echo hello; echo 2; echo"#).await.unwrap(), json!(2));
    assert_eq!(run("echo hello; echo world").await.unwrap(), json!("hello\nworld\n"));
}

#[tokio::test]
async fn a_result_file_cannot_be_too_large_or_a_pipe() {
    let error = run(r#"head -c 1048577 /dev/zero > "$TENURE_RESULT_FILE""#).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), ("RESULT_TOO_LARGE", false));
    assert_eq!(run(r#"mkfifo "$TENURE_RESULT_FILE"; echo 3"#).await.unwrap(), json!(3));
}

#[tokio::test]
async fn the_end_of_standard_error_is_in_the_failure() {
    let error = run("head -c 100000 /dev/zero | tr '\\0' x >&2; printf '\\377\\nlast words\\n' >&2; exit 65").await;
    let error = error.unwrap_err();
    assert_eq!(error.message(), "exit code 65: last words");
    let stack = error.stack().unwrap();
    assert!(stack.ends_with("x\u{fffd}\nlast words\n"), "{}", &stack[stack.len() - 40..]);
    assert!(stack.len() <= super::STDERR_BYTES + 2 && stack.starts_with("xxx"));
}

#[tokio::test]
async fn the_payload_comes_by_standard_input_and_by_file() {
    let command = r#"cat > in; cmp in "$TENURE_PAYLOAD_FILE" && cat in; stat -c %a . >&2; [ $(stat -c %a .) = 700 ]"#;
    assert_eq!(run(command).await.unwrap(), json!({"day": "2025-01-15"}));
    // A payload that nobody reads does no harm, however large it is.
    let large = TestLease::new("test", &"x".repeat(1 << 20));
    assert_eq!(super::run("echo 1", &tools(), &large.context()).await.unwrap().as_str(), "1");
}

#[tokio::test]
async fn a_command_knows_its_task() {
    let lease = lease().attempt(2, Some(Json::from(json!({"row": 5}))));
    let command =
        r#"echo "[\"$TENURE_TASK_ID\",$TENURE_ATTEMPT,$TENURE_FENCE,\"$TENURE_OPERATOR\",$TENURE_CHECKPOINT]""#;
    let result = super::run(command, &tools(), &lease.context()).await.unwrap();
    assert_eq!(result.value(), json!([lease.context().task_id(), 2, 2, "test", {"row": 5}]));
}

#[tokio::test]
async fn the_work_folder_is_removed() {
    let path = run("touch rest; pwd").await.unwrap();
    assert!(!Path::new(path.as_str().unwrap().trim_end()).exists());
}

/// This test once more, in a process of its own and with these variables.
fn myself(test: &str, variables: &[(&str, &str)]) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("command::tests::{test}")]).envs(variables.iter().copied());
    command
}

#[tokio::test]
async fn no_secret_of_the_worker_reaches_the_command() {
    if std::env::var_os("TENURE_WORKER_TOKEN").is_some() {
        let env = run("env").await.unwrap();
        assert!(!env.as_str().unwrap().contains("hunter"), "{env}");
        assert!(env.as_str().unwrap().contains("UNRELATED=kept"));
        return;
    }
    let secrets = [
        ("TENURE_WORKER_TOKEN", "hunter1"),
        ("TENURE_API_KEY", "hunter2"),
        ("TENURE_DATABASE_URL", "hunter3"),
        ("UNRELATED", "kept"),
    ];
    let again = myself("no_secret_of_the_worker_reaches_the_command", &secrets).output().unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_whole_group_after_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let tools = Tools::new(tenure_outbound::Policy::default(), Duration::from_millis(100), false).unwrap();
    let lease = lease();
    let task = lease.context();
    let command = stubborn_family(&file);
    let run = tokio::spawn(async move { super::run(&command, &tools, &task).await });
    let pids = tokio::task::spawn_blocking(move || pids(&file, 2)).await.unwrap();
    lease.cancel("user");
    assert_eq!(run.await.unwrap().unwrap_err().code(), "CANCELLED");
    wait_until("all are dead", || pids.iter().all(|pid| is_dead(*pid)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_leaves_nobody_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let command = format!("sleep 1000 & echo $! >> {}; echo 1", file.display());
    let start = Instant::now();
    assert_eq!(run(&command).await.unwrap(), json!(1));
    assert!(start.elapsed() < Duration::from_secs(100));
    let pid = pids(&file, 1)[0];
    wait_until("the child is dead", || is_dead(pid));
}

#[test]
fn a_lost_lease_kills_the_group_while_the_runtime_is_blocked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let lease = lease();
    let (task, command) = (lease.context(), stubborn_family(&file));
    let (blocked, is_blocked) = mpsc::channel::<()>();
    let (release, released) = mpsc::channel::<()>();
    let (block, may_block) = tokio::sync::oneshot::channel::<()>();
    let runtime = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let block = async {
                may_block.await.unwrap();
                blocked.send(()).unwrap();
                released.recv().unwrap();
            };
            let tools = tools();
            let run = super::run(&command, &tools, &task);
            let (ended, ()) = tokio::join!(run, block);
            ended.unwrap_err()
        })
    });
    let pids = pids(&file, 2);
    block.send(()).unwrap();
    is_blocked.recv().unwrap();
    lease.lose();
    wait_until("all are dead", || pids.iter().all(|pid| is_dead(*pid)));
    release.send(()).unwrap();
    runtime.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_task_takes_its_group_along() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let (lease, command) = (lease(), stubborn_family(&file));
    let task = lease.context();
    let run = tokio::spawn(async move { super::run(&command, &tools(), &task).await });
    let pids = tokio::task::spawn_blocking(move || pids(&file, 2)).await.unwrap();
    run.abort();
    wait_until("all are dead", || pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn groups_that_are_held_die_with_the_guard() {
    use std::os::unix::process::CommandExt;
    let start = || std::process::Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
    let pid = |child: &std::process::Child| nix::unistd::Pid::from_raw(child.id() as i32);
    let (mut held, mut released) = (start(), start());
    let guard = OrphanGuard::start().unwrap();
    // As a worker that is killed: the pipe is closed, and nothing was taken back.
    std::mem::forget(guard.hold(pid(&held)));
    drop(guard.hold(pid(&released)));
    drop(guard);
    assert!(!held.wait().unwrap().success());
    assert!(released.try_wait().unwrap().is_none());
    released.kill().unwrap();
    released.wait().unwrap();
}

#[tokio::test]
async fn commands_die_with_a_worker_that_is_killed() {
    const FILE: &str = "FILE_FOR_PIDS";
    if let Some(file) = std::env::var_os(FILE) {
        run(&stubborn_family(Path::new(&file))).await.unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let temp = folder.path().join("with space");
    std::fs::create_dir(&temp).unwrap();
    let variables = [(FILE, file.to_str().unwrap()), ("TMPDIR", temp.to_str().unwrap())];
    let mut worker = myself("commands_die_with_a_worker_that_is_killed", &variables).spawn().unwrap();
    let pids = pids(&file, 2);
    worker.kill().unwrap();
    worker.wait().unwrap();
    wait_until("all are dead", || pids.iter().all(|pid| is_dead(*pid)));
    wait_until("their folders are gone", || std::fs::read_dir(&temp).unwrap().next().is_none());
}
