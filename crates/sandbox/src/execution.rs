use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::error::{Error, ErrorKind, Result};
use crate::spec::Terminal;

/// Chunks that may wait in an execution for its reader. When it is full the provider stops reading from the command,
/// and the command blocks.
pub const MAX_WAITING_CHUNKS: usize = 16;

/// The largest chunk. With [`MAX_WAITING_CHUNKS`] it bounds the memory of an execution to 1 MiB.
pub const MAX_CHUNK_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// Bytes that a command wrote. A terminal has only stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub stream: OutputStream,
    pub bytes: Bytes,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 plus the number of the signal that killed the command.
    pub code: i32,
    /// Whether the kernel killed a process of the command for lack of memory.
    pub out_of_memory: bool,
    pub usage: Usage,
}

/// What a command used, as far as the provider can tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub wall: Duration,
    pub cpu: Option<Duration>,
    pub peak_memory_bytes: Option<u64>,
}

/// What happens in an execution. Exactly one `Exited` or `Failed` ends it.
#[derive(Debug)]
pub enum Event {
    Output(Chunk),
    /// Every byte that the command wrote has been delivered before it.
    Exited(Exit),
    Failed(Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Signal {
    Hup = 1,
    Int = 2,
    Quit = 3,
    Kill = 9,
    Usr1 = 10,
    Usr2 = 12,
    Term = 15,
    Cont = 18,
    Stop = 19,
}

impl Signal {
    /// Reads `INT` and `SIGINT`, in any case.
    pub fn parse(name: &str) -> Result<Self> {
        let upper = name.to_ascii_uppercase();
        Ok(match upper.strip_prefix("SIG").unwrap_or(&upper) {
            "HUP" => Self::Hup,
            "INT" => Self::Int,
            "QUIT" => Self::Quit,
            "KILL" => Self::Kill,
            "USR1" => Self::Usr1,
            "USR2" => Self::Usr2,
            "TERM" => Self::Term,
            "CONT" => Self::Cont,
            "STOP" => Self::Stop,
            _ => {
                return Err(Error::invalid(format!(
                    "unknown signal {name:?}: use one of HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP"
                )));
            }
        })
    }
}

/// Acts on a running command.
#[async_trait]
pub trait Control: Send + Sync + std::fmt::Debug {
    /// Writes to the command's stdin; returns when the bytes were accepted. An ended command is not an error.
    async fn write_stdin(&self, bytes: Bytes) -> Result<()>;
    async fn close_stdin(&self) -> Result<()>;
    async fn resize(&self, terminal: Terminal) -> Result<()>;
    /// Sends a signal to the command's process group.
    async fn signal(&self, signal: Signal) -> Result<()>;
    /// Kills every process that the command started. Called when the `Execution` is dropped, so it must not block.
    fn kill(&self);
}

/// A running command. Dropping it kills every process that the command started.
#[derive(Debug)]
pub struct Execution {
    events: mpsc::Receiver<Event>,
    control: Arc<dyn Control>,
    ended: bool,
}

impl Execution {
    /// `events` is a channel of [`MAX_WAITING_CHUNKS`]; the provider ends it with `Exited` or `Failed`.
    pub fn new(events: mpsc::Receiver<Event>, control: Arc<dyn Control>) -> Self {
        Self { events, control, ended: false }
    }

    pub fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    /// The next event; none after the end. A provider that stops without an end is reported as a failure.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self
            .events
            .recv()
            .await
            .unwrap_or_else(|| Event::Failed(Error::unavailable("the sandbox ended before the command did")));
        self.ended = !matches!(event, Event::Output(_));
        Some(event)
    }

    /// Runs to the end and keeps the first `limit` bytes of each stream.
    pub async fn output(mut self, limit: usize) -> Result<Output> {
        let mut output = Output::default();
        while let Some(event) = self.next().await {
            match event {
                Event::Output(chunk) => output.push(&chunk, limit),
                Event::Exited(exit) => {
                    output.exit = Some(exit);
                    return Ok(output);
                }
                Event::Failed(error) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::Internal, "the execution was read to its end before"))
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if !self.ended {
            self.control.kill();
        }
    }
}

/// What a command wrote, and how it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    exit: Option<Exit>,
}

impl Output {
    /// How the command ended.
    pub fn exit(&self) -> Exit {
        self.exit.unwrap_or(Exit { code: -1, out_of_memory: false, usage: Usage::default() })
    }

    fn push(&mut self, chunk: &Chunk, limit: usize) {
        let (kept, truncated) = match chunk.stream {
            OutputStream::Stdout => (&mut self.stdout, &mut self.stdout_truncated),
            OutputStream::Stderr => (&mut self.stderr, &mut self.stderr_truncated),
        };
        let room = limit.saturating_sub(kept.len());
        *truncated |= chunk.bytes.len() > room;
        kept.extend_from_slice(&chunk.bytes[..chunk.bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Killed(AtomicBool);

    #[async_trait]
    impl Control for Killed {
        async fn write_stdin(&self, _: Bytes) -> Result<()> {
            Ok(())
        }
        async fn close_stdin(&self) -> Result<()> {
            Ok(())
        }
        async fn resize(&self, _: Terminal) -> Result<()> {
            Ok(())
        }
        async fn signal(&self, _: Signal) -> Result<()> {
            Ok(())
        }
        fn kill(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn exited() -> Event {
        Event::Exited(Exit { code: 7, out_of_memory: false, usage: Usage::default() })
    }

    fn wrote(bytes: &'static [u8]) -> Event {
        Event::Output(Chunk { stream: OutputStream::Stdout, bytes: Bytes::from_static(bytes) })
    }

    #[tokio::test]
    async fn output_keeps_what_fits_and_says_so() {
        let (send, events) = mpsc::channel(4);
        let control = Arc::new(Killed::default());
        for event in [wrote(b"abc"), wrote(b"def"), exited()] {
            send.send(event).await.expect("room");
        }
        let output = Execution::new(events, control.clone()).output(4).await.expect("an exit");
        assert_eq!((output.stdout.as_slice(), output.stdout_truncated), (b"abcd".as_slice(), true));
        assert!(!output.stderr_truncated);
        assert_eq!(output.exit().code, 7);
        assert!(!control.0.load(Ordering::SeqCst), "an ended command is not killed");
    }

    #[tokio::test]
    async fn dropping_a_running_execution_kills_it() {
        let (_send, events) = mpsc::channel(4);
        let control = Arc::new(Killed::default());
        drop(Execution::new(events, control.clone()));
        assert!(control.0.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_lost_provider_is_a_failure_and_never_an_exit() {
        let (send, events) = mpsc::channel(4);
        send.send(wrote(b"half")).await.expect("room");
        drop(send);
        let mut execution = Execution::new(events, Arc::new(Killed::default()));
        assert!(matches!(execution.next().await, Some(Event::Output(_))));
        assert!(matches!(execution.next().await, Some(Event::Failed(_))));
        assert!(execution.next().await.is_none());
    }

    #[test]
    fn signals_are_read_with_and_without_prefix() {
        assert_eq!(Signal::parse("SIGINT").ok(), Some(Signal::Int));
        assert_eq!(Signal::parse("int").ok(), Some(Signal::Int));
        assert!(Signal::parse("SIGSEGV").is_err());
    }
}
