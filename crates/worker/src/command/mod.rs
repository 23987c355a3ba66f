//! Tasks as processes.
//!
//! A task runs as `sh -c <command>` in a process group and a folder of its own. It finds its payload on standard input
//! and in the file `TENURE_PAYLOAD_FILE`, and the rest in `TENURE_*` variables. What it leaves in `TENURE_RESULT_FILE`,
//! or else prints last, is its result; its exit code says how it failed. When it ends, and when it has to end, its
//! whole group ends.
//!
//! The process does not inherit any `TENURE_*` variable of the worker, hence not its token. It runs as the same user
//! as the worker, though: code that is not trusted needs a sandbox, see [`sandbox`].

mod exit;
mod folder;
mod group;
mod orphans;
mod output;
mod sandbox;

#[cfg(test)]
mod tests;

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tenure_client::{Json, LogStream, TaskContext, TaskError};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::run::Tools;
use folder::Folder;
use group::Group;
pub(crate) use orphans::OrphanGuard;
pub(crate) use output::LastBytes;
use output::Tail;
pub(crate) use sandbox::{Pool, Pools, failed, feed, run as run_in_sandbox};
pub use sandbox::{SandboxError, SandboxSettings, Sandboxes};

/// As much of standard output as can become the result.
const STDOUT_BYTES: usize = 1 << 20;
const STDERR_BYTES: usize = 8 << 10;
/// How long output is read after the group is gone. Only a process that left the group can still hold it open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

pub(crate) async fn run(command: &str, tools: &Tools, task: &TaskContext) -> Result<Json, TaskError> {
    let orphans = tools.orphans().await.map_err(|error| no_shell(&error))?;
    let folder = Folder::create(orphans.folders(), task).await?;
    let mut child = start(command, &folder, task)?;
    // No await between the start and what makes sure of the end.
    let group = Arc::new(Group::of(&child)?);
    let _orphan = orphans.hold(group.id());
    let on_lost = Arc::clone(&group);
    let _lost = task.on_lease_lost(move || on_lost.signal(Signal::SIGKILL));
    let _killed_on_drop = group::KillOnDrop(Arc::clone(&group));

    let mut stdout = Tail::new(child.stdout.take(), STDOUT_BYTES).logged(task.log_output(LogStream::Stdout));
    let mut stderr = Tail::new(child.stderr.take(), STDERR_BYTES).logged(task.log_output(LogStream::Stderr));
    let status = supervise(&mut child, &group, tools.kill_grace, task, &mut stdout, &mut stderr).await?;
    group.signal(Signal::SIGKILL);
    group.close();
    let rest = async { tokio::join!(stdout.read_all(), stderr.read_all()) };
    let _ = tokio::time::timeout(LAST_OUTPUT, rest).await;
    stdout.end_log();
    stderr.end_log();

    let cancelled = task.cancellation().is_cancelled();
    let outcome = match exit::failure(status, cancelled, &stderr.last().text()) {
        None => {
            // A command says by its exit code whether it has finished.
            task.keep_result();
            output::result(&folder.result_file(), stdout.last()).await
        }
        Some(error) => Err(error),
    };
    folder.remove().await;
    outcome
}

fn start(command: &str, folder: &Folder, task: &TaskContext) -> Result<Child, TaskError> {
    let mut process = Command::new("sh");
    process.arg("-c").arg(command).current_dir(folder.path()).process_group(0).kill_on_drop(true);
    process.stdin(folder.payload()?).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TENURE_")) {
        process.env_remove(name);
    }
    process
        .env("TENURE_TASK_ID", task.task_id())
        .env("TENURE_ATTEMPT", task.attempt().to_string())
        .env("TENURE_FENCE", task.fence().to_string())
        .env("TENURE_OPERATOR", task.operator())
        .env("TENURE_PAYLOAD_FILE", folder.payload_file())
        .env("TENURE_RESULT_FILE", folder.result_file());
    if let Some(checkpoint) = task.raw_checkpoint() {
        process.env("TENURE_CHECKPOINT", checkpoint.as_str());
    }
    process.spawn().map_err(|error| no_shell(&error))
}

fn no_shell(error: &std::io::Error) -> TaskError {
    TaskError::infrastructure(format!("`sh` could not be started: {error}"))
}

/// Reads output until the process ends, and makes it end when it has to.
async fn supervise(
    child: &mut Child,
    group: &Group,
    kill_grace: Duration,
    task: &TaskContext,
    stdout: &mut Tail<impl tokio::io::AsyncRead + Unpin>,
    stderr: &mut Tail<impl tokio::io::AsyncRead + Unpin>,
) -> Result<ExitStatus, TaskError> {
    let mut kill_at = None;
    loop {
        let kill = async {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = child.wait() => {
                return status.map_err(|error| TaskError::infrastructure(format!("the process was lost: {error}")));
            }
            () = stdout.read() => {}
            () = stderr.read() => {}
            () = task.cancellation().cancelled(), if kill_at.is_none() => {
                group.signal(Signal::SIGTERM);
                kill_at = Some(Instant::now() + kill_grace);
            }
            () = kill => {
                group.signal(Signal::SIGKILL);
                // It cannot refuse. Should its end be slow to come, there is nothing more to send.
                kill_at = Some(Instant::now() + Duration::from_secs(3600));
            }
        }
    }
}
