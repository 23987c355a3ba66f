//! Tasks in sandboxes: the same conventions as for plain commands, in a sandbox of their own each.
//!
//! The task's folder is `/workspace`. A cancel and a lost lease end every process in the sandbox, and nothing of one
//! task is left for the next.

mod pool;
mod settings;
#[cfg(test)]
mod tests;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_client::pull::JobMetrics;
use tenure_client::{Json, LogStream, TaskContext, TaskError};
use tenure_sandbox::{
    Command, Control, Deadlines, ErrorKind, Event, Execution, Exit, FileWrite, OutputStream, Provider, RuntimeId,
    Signal, Stream, Usage, WORKSPACE,
};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use super::exit;
use super::output::{self, LastBytes, RESULT_BYTES};
use super::{STDERR_BYTES, STDOUT_BYTES};
use crate::run::Tools;
pub(crate) use pool::{Pool, Pools};
pub use settings::{SandboxError, SandboxSettings, Sandboxes};

const PAYLOAD: &str = "payload.json";
const RESULT: &str = "result.json";
/// Of a command that used more memory than its sandbox has.
const OUT_OF_MEMORY: &str = "OUT_OF_MEMORY";
/// Pieces in which the payload goes to standard input.
const INPUT_BYTES: usize = 64 * 1024;

/// Runs `line` in a sandbox of `pool`, which is for `settings`.
pub(crate) async fn run(
    line: &str,
    settings: &SandboxSettings,
    pool: &Pool,
    tools: &Tools,
    task: &TaskContext,
) -> Result<Json, TaskError> {
    let sandbox = pool.take().await.map_err(|error| failed("the sandbox was not created", &error))?;
    let provider = pool.provider();
    let payload = Bytes::copy_from_slice(task.raw_payload().as_str().as_bytes());
    let file = FileWrite { path: in_workspace(PAYLOAD), mode: 0o600, content: stream(payload.clone()) };
    let id = sandbox.id();
    provider.write_file(id, file).await.map_err(|error| failed("the payload was not written", &error))?;
    let lease_end = task.lease_end();
    if tools.strict {
        let set = provider.set_deadlines(id, ending_at(lease_end)).await;
        set.map_err(|error| failed("the sandbox has no deadline", &error))?;
    }
    let execution = provider.exec(id, command(line, &**provider, settings.timeout, task)).await;
    let execution = execution.map_err(|error| failed("the command was not started", &error))?;

    // No await between the start and what makes sure of the end.
    let control = execution.control();
    let on_lost = Arc::clone(&control);
    let _lost = task.on_lease_lost(move || on_lost.kill());
    let input = tokio::spawn(feed(Arc::clone(&control), payload));
    let ended = tokio::select! {
        ended = supervise(execution, &*control, tools.kill_grace, task) => ended,
        never = keep_deadline(&**provider, id, lease_end, task), if tools.strict => match never {},
    };
    input.abort();
    let outcome = match ended {
        Ended::Exited { exit, stdout, stderr } => {
            task.report_metrics(metrics(exit.usage));
            judge(&**provider, id, &exit, &stdout, &stderr, settings, task).await
        }
        Ended::TimedOut => {
            let limit = settings.timeout.unwrap_or_default().as_secs_f64();
            Err(TaskError::timeout(format!("the command ran longer than {limit} s in its sandbox and was killed")))
        }
        Ended::Failed(error) => Err(error),
    };
    sandbox.destroy().await;
    outcome
}

/// Keeps the deadline of the sandbox at the end of the lease. One that cannot be set leaves the former, which is earlier.
async fn keep_deadline(
    provider: &dyn Provider,
    id: &RuntimeId,
    mut lease_end: std::time::Instant,
    task: &TaskContext,
) -> std::convert::Infallible {
    while let Some(later) = task.lease_renewed(lease_end).await {
        lease_end = later;
        if let Err(error) = provider.set_deadlines(id, ending_at(lease_end)).await {
            tracing::warn!(task.id = task.task_id(), runtime.id = %id, %error, "cannot extend the deadline of a sandbox");
        }
    }
    // The lease is lost. What that means for the command is decided elsewhere.
    std::future::pending().await
}

fn ending_at(end: std::time::Instant) -> Deadlines {
    let left = end.saturating_duration_since(std::time::Instant::now());
    Deadlines { freeze_after: None, destroy_after: Some(left) }
}

fn in_workspace(name: &str) -> String {
    format!("{WORKSPACE}/{name}")
}

fn stream(bytes: Bytes) -> Stream {
    Box::pin(std::io::Cursor::new(bytes))
}

pub(crate) fn failed(what: &str, error: &tenure_sandbox::Error) -> TaskError {
    let message = format!("{what}: {error}");
    match error.kind() {
        ErrorKind::Invalid => TaskError::configuration(message),
        _ => TaskError::infrastructure(message),
    }
}

fn command(line: &str, provider: &dyn Provider, timeout: Option<Duration>, task: &TaskContext) -> Command {
    // Without a file system of its own a sandbox has no `/workspace`: there, the working directory is it.
    let path = |name: &str| if provider.name() == "process" { name.to_owned() } else { in_workspace(name) };
    let mut command = Command { timeout, stdin: true, ..Command::shell(line, &[]) };
    let mut set = |name: &str, value: String| command.env.insert(name.to_owned(), value);
    set("TENURE_TASK_ID", task.task_id().to_owned());
    set("TENURE_ATTEMPT", task.attempt().to_string());
    set("TENURE_FENCE", task.fence().to_string());
    set("TENURE_OPERATOR", task.operator().to_owned());
    set("TENURE_PAYLOAD_FILE", path(PAYLOAD));
    set("TENURE_RESULT_FILE", path(RESULT));
    if let Some(checkpoint) = task.raw_checkpoint() {
        set("TENURE_CHECKPOINT", checkpoint.as_str().to_owned());
    }
    command
}

pub(crate) async fn feed(control: Arc<dyn Control>, mut payload: Bytes) {
    while !payload.is_empty() {
        let piece = payload.split_to(payload.len().min(INPUT_BYTES));
        // A command need not read its payload.
        if control.write_stdin(piece).await.is_err() {
            return;
        }
    }
    let _ = control.close_stdin().await;
}

enum Ended {
    Exited { exit: Exit, stdout: LastBytes, stderr: LastBytes },
    TimedOut,
    Failed(TaskError),
}

/// Reads output until the command ends, and makes it end when it has to.
async fn supervise(mut execution: Execution, control: &dyn Control, kill_grace: Duration, task: &TaskContext) -> Ended {
    let (mut stdout, mut stderr) = (LastBytes::new(STDOUT_BYTES), LastBytes::new(STDERR_BYTES));
    let (mut out, mut err) = (task.log_output(LogStream::Stdout), task.log_output(LogStream::Stderr));
    let mut kill_at = None;
    loop {
        let kill = async {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = execution.next() => match event {
                Some(Event::Output(chunk)) => match chunk.stream {
                    OutputStream::Stdout => {
                        stdout.push(&chunk.bytes);
                        out.push(&chunk.bytes);
                    }
                    OutputStream::Stderr => {
                        stderr.push(&chunk.bytes);
                        err.push(&chunk.bytes);
                    }
                },
                Some(Event::Exited(exit)) => return Ended::Exited { exit, stdout, stderr },
                Some(Event::Failed(error)) if error.kind() == ErrorKind::Timeout => return Ended::TimedOut,
                Some(Event::Failed(error)) => return Ended::Failed(failed("the sandbox was lost", &error)),
                None => return Ended::Failed(TaskError::infrastructure("the sandbox was lost")),
            },
            () = task.cancellation().cancelled(), if kill_at.is_none() => {
                if let Err(error) = control.signal(Signal::Term).await {
                    tracing::warn!(task.id = task.task_id(), %error, "cannot signal a command in its sandbox");
                }
                kill_at = Some(Instant::now() + kill_grace);
            }
            () = kill => {
                control.kill();
                // It cannot refuse. Should its end be slow to come, there is nothing more to send.
                kill_at = Some(Instant::now() + Duration::from_secs(3600));
            }
        }
    }
}

fn metrics(usage: Usage) -> JobMetrics {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    JobMetrics { cpu_time_ms: usage.cpu.map(millis), peak_memory_bytes: usage.peak_memory_bytes }
}

async fn judge(
    provider: &dyn Provider,
    id: &RuntimeId,
    exit: &Exit,
    stdout: &LastBytes,
    stderr: &LastBytes,
    settings: &SandboxSettings,
    task: &TaskContext,
) -> Result<Json, TaskError> {
    if exit.out_of_memory && exit.code != 0 {
        let limit = settings.limits.memory_bytes.map_or_else(String::new, |bytes| format!(" of {} MiB", bytes >> 20));
        let message = format!("the command ran out of the memory{limit} of its sandbox and was killed");
        let error = TaskError::retryable(OUT_OF_MEMORY, message);
        return Err(if stderr.is_empty() { error } else { error.with_stack(stderr.text()) });
    }
    let status = ExitStatus::from_raw((exit.code & 0xff) << 8);
    let cancelled = task.cancellation().is_cancelled();
    if let Some(error) = exit::failure(status, cancelled, &stderr.text()) {
        return Err(error);
    }
    // A command says by its exit code whether it has finished.
    task.keep_result();
    let file = read_small(provider, id).await?;
    Ok(output::result_of(file, stdout))
}

/// The result file, if the command left one.
async fn read_small(provider: &dyn Provider, id: &RuntimeId) -> Result<Option<Vec<u8>>, TaskError> {
    let Ok(reader) = provider.read_file(id, &in_workspace(RESULT)).await else { return Ok(None) };
    if reader.info.size > RESULT_BYTES as u64 {
        return Err(output::too_large(reader.info.size));
    }
    let mut bytes = Vec::new();
    // The file can grow while it is read: what is over the limit is seen here.
    let read = reader.content.take(RESULT_BYTES as u64 + 1).read_to_end(&mut bytes).await;
    match read {
        Ok(_) if bytes.len() > RESULT_BYTES => Err(output::too_large(bytes.len() as u64)),
        Ok(_) => Ok(Some(bytes)),
        Err(error) => Err(TaskError::infrastructure(format!("the result file could not be read: {error}"))),
    }
}
