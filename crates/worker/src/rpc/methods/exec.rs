//! Commands whose output is returned when they have ended.

use std::time::Duration;

use tenure_contract::duration;
use tenure_contract::worker_rpc::{Code, ExecResult, ExecStreamResult, MAX_OUTPUT_BYTES, Method};
use tenure_sandbox::{Command, Event, Execution, Exit, OutputStream};

use crate::node::Held;
use crate::rpc::answer::Answer;
use crate::rpc::budget::{Budget, Reserved};
use crate::rpc::output::{Text, lossy};
use crate::rpc::refusal::Refusal;
use crate::rpc::state::Rpc;
use crate::rpc::stream::failed;

/// Memory is reserved in steps of this.
const STEP_BYTES: usize = 1 << 20;

impl Rpc {
    pub(super) async fn exec(&self, id: &str, method: Method, held: Held, command: Command) -> Result<Answer, Refusal> {
        let timeout = command.timeout;
        let shown = timeout.map(duration::canonical).unwrap_or_default();
        let running = async {
            let execution = held.provider.exec(&held.runtime_id, command).await?;
            collect(execution, &self.budget).await
        };
        let limit = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_add(self.settings.times.exec_margin));
        let output = match tokio::time::timeout(limit, running).await {
            Ok(output) => output.map_err(|error| failed(error, &shown))?,
            Err(_) => return Err(Refusal::call(Code::Timeout, format!("exec timed out after {shown}")).executed()),
        };
        let sandbox_id = held.sandbox_id;
        let answer = match method {
            Method::ExecStream => self.ok(id, output.chunks(sandbox_id)),
            _ => self.ok(id, output.result(sandbox_id)),
        };
        Ok(answer)
    }
}

/// What a command wrote, in order.
#[derive(Debug)]
struct Collected {
    pieces: Vec<(OutputStream, bytes::Bytes)>,
    kept: [usize; 2],
    truncated: [bool; 2],
    exit: Exit,
}

/// Keeps the first part of each stream. When this worker is short of memory that part is smaller.
async fn collect(mut execution: Execution, budget: &Budget) -> tenure_sandbox::Result<Collected> {
    let (mut pieces, mut kept, mut truncated) = (Vec::new(), [0; 2], [false; 2]);
    let mut reserved: Option<Reserved> = None;
    let mut room = 0_usize;
    while let Some(event) = execution.next().await {
        match event {
            Event::Output(chunk) => {
                let index = chunk.stream as usize;
                // What follows a gap would read as if it belonged there.
                if truncated[index] {
                    continue;
                }
                let mut fits = chunk.bytes.len().min(MAX_OUTPUT_BYTES - kept[index]);
                // As bytes, and once more in the answer.
                if fits > room {
                    match budget.try_reserve(2 * STEP_BYTES) {
                        Some(more) => {
                            room += STEP_BYTES;
                            match &mut reserved {
                                Some(reserved) => reserved.merge(more),
                                None => reserved = Some(more),
                            }
                        }
                        None => fits = room,
                    }
                }
                truncated[index] = fits < chunk.bytes.len();
                room -= fits;
                kept[index] += fits;
                pieces.push((chunk.stream, chunk.bytes.slice(..fits)));
            }
            Event::Exited(exit) => return Ok(Collected { pieces, kept, truncated, exit }),
            Event::Failed(error) => return Err(error),
        }
    }
    Err(tenure_sandbox::Error::internal("the command ended without an exit code"))
}

impl Collected {
    fn result(self, sandbox_id: String) -> ExecResult {
        let mut outputs = self.kept.map(Vec::with_capacity);
        for (stream, bytes) in &self.pieces {
            outputs[*stream as usize].extend_from_slice(bytes);
        }
        let [(stdout, stdout_b64), (stderr, stderr_b64)] = outputs.map(text);
        ExecResult {
            sandbox_id,
            exit_code: self.exit.code,
            stdout,
            stderr,
            stdout_b64,
            stderr_b64,
            stdout_truncated: self.truncated[0],
            stderr_truncated: self.truncated[1],
            duration_ms: millis(self.exit.usage.wall),
        }
    }

    fn chunks(self, sandbox_id: String) -> ExecStreamResult {
        let mut text = Text::default();
        for (stream, bytes) in &self.pieces {
            text.push(*stream, bytes);
        }
        text.flush();
        ExecStreamResult {
            sandbox_id,
            chunks: text.ready.into(),
            exit_code: Some(self.exit.code),
            duration_ms: Some(millis(self.exit.usage.wall)),
            stdout_truncated: self.truncated[0],
            stderr_truncated: self.truncated[1],
        }
    }
}

/// Without a copy in the usual case.
fn text(bytes: Vec<u8>) -> (String, Option<String>) {
    String::from_utf8(bytes).map_or_else(|error| lossy(error.as_bytes()), |text| (text, None))
}

fn millis(wall: Duration) -> u64 {
    u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)
}
