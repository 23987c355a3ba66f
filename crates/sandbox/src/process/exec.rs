use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::sandbox::Sandbox;
use crate::console::ConsoleWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::execution::{
    Chunk, Control, Event, Execution, Exit, MAX_CHUNK_BYTES, MAX_WAITING_CHUNKS, OutputStream, Signal, Usage,
};
use crate::spec::{Command, Terminal};
use crate::start::{cannot_start, failed_program};
use crate::sys::supervisor::{self, REPORT_BYTES, Report};
use crate::sys::watched;
use crate::terminal;

/// Time that killed processes have to disappear before it is reported that they did not.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Time to read what the last process of a command wrote.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// What is read from a terminal after the command's end. The kernel keeps less than that.
const TERMINAL_REST_BYTES: usize = 1024 * 1024;

/// Starts a command under a supervisor.
pub(super) fn start(sandbox: &Arc<Sandbox>, command: &Command) -> Result<Execution> {
    let slot = sandbox.slot()?;
    let directory = sandbox.directory(command.workdir.as_deref())?;
    let mut program = std::process::Command::new(&command.argv[0]);
    program.args(&command.argv[1..]).env_clear().envs(sandbox.environment(command));
    let ends = connect(&mut program, command).map_err(cannot_start)?;
    let line = supervisor::supervise(&mut program, directory, command.terminal.is_some()).map_err(cannot_start)?;
    let started = Instant::now();
    let (send, events) = mpsc::channel(MAX_WAITING_CHUNKS);
    let spawned = tokio::process::Command::from(program).spawn();
    let supervisor = match spawned {
        Ok(supervisor) => supervisor,
        Err(error) => return failed_start(command, error, events, send),
    };
    let reports = pipe::Receiver::from_owned_fd(line.reports).map_err(cannot_start)?;
    let control = Arc::new(ProcessControl {
        supervisor: supervisor.id().unwrap_or(0),
        orders: Mutex::new(Some(line.orders)),
        input: tokio::sync::Mutex::new(ends.input),
        terminal: ends.terminal,
        ended: watch::Sender::new(false),
    });
    let gone = attend(sandbox, supervisor, &control, slot);
    let run = Run {
        sandbox: Arc::clone(sandbox),
        control: Arc::clone(&control),
        events: send,
        sources: ends.sources,
        reports,
        gone,
        started,
        timeout: command.timeout,
    };
    tokio::spawn(run.attend());
    Ok(Execution::new(events, control))
}

/// Waits for the supervisor, which ends after the last process of the command. Until then the sandbox holds the command.
fn attend(
    sandbox: &Arc<Sandbox>,
    mut supervisor: Child,
    control: &Arc<ProcessControl>,
    slot: OwnedSemaphorePermit,
) -> watch::Receiver<bool> {
    let held = sandbox.hold(control);
    let (gone, receiver) = watch::channel(false);
    let sandbox = Arc::clone(sandbox);
    tokio::spawn(async move {
        if let Err(error) = supervisor.wait().await {
            tracing::warn!(runtime.id = %sandbox.record.id, %error, "the supervisor of a command was lost");
        }
        sandbox.release(held);
        gone.send_replace(true);
        drop(slot);
    });
    receiver
}

/// A program that does not exist, or is not one, is an exit code as in a shell.
fn failed_start(
    command: &Command,
    error: io::Error,
    events: mpsc::Receiver<Event>,
    send: mpsc::Sender<Event>,
) -> Result<Execution> {
    let (code, text) = failed_program(&command.argv[0], error)?;
    let chunk = Chunk { stream: OutputStream::Stderr, bytes: Bytes::from(text) };
    let exit = Exit { code, out_of_memory: false, usage: Usage::default() };
    for event in [Event::Output(chunk), Event::Exited(exit)] {
        // The channel is new, so there is room, and `events` is its reader.
        let _ = send.try_send(event);
    }
    let control = ProcessControl {
        supervisor: 0,
        orders: Mutex::new(None),
        input: tokio::sync::Mutex::new(None),
        terminal: None,
        ended: watch::Sender::new(true),
    };
    Ok(Execution::new(events, Arc::new(control)))
}

/// This process's ends of a command's streams.
struct Ends {
    input: Option<Arc<AsyncFd<OwnedFd>>>,
    terminal: Option<Arc<AsyncFd<OwnedFd>>>,
    sources: Vec<(OutputStream, Arc<AsyncFd<OwnedFd>>)>,
}

fn connect(program: &mut std::process::Command, command: &Command) -> io::Result<Ends> {
    if let Some(size) = command.terminal {
        let (ours, theirs) = terminal::open(size)?;
        program.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
        let ours = Arc::new(watched(ours)?);
        return Ok(Ends {
            input: Some(Arc::clone(&ours)),
            terminal: Some(Arc::clone(&ours)),
            sources: vec![(OutputStream::Stdout, ours)],
        });
    }
    let input = if command.stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        program.stdin(theirs);
        Some(Arc::new(watched(ours)?))
    } else {
        program.stdin(Stdio::null());
        None
    };
    let (out, their_out) = pipe_with(PipeFlags::CLOEXEC)?;
    let (err, their_err) = pipe_with(PipeFlags::CLOEXEC)?;
    program.stdout(their_out).stderr(their_err);
    let sources =
        vec![(OutputStream::Stdout, Arc::new(watched(out)?)), (OutputStream::Stderr, Arc::new(watched(err)?))];
    Ok(Ends { input, terminal: None, sources })
}

#[derive(Debug)]
pub(super) struct ProcessControl {
    /// Its descendants are the processes of the command.
    pub(super) supervisor: u32,
    /// Closed to kill everything.
    orders: Mutex<Option<OwnedFd>>,
    input: tokio::sync::Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
    terminal: Option<Arc<AsyncFd<OwnedFd>>>,
    /// Whether the command has ended; what it left may still run.
    ended: watch::Sender<bool>,
}

#[async_trait]
impl Control for ProcessControl {
    async fn write_stdin(&self, bytes: Bytes) -> Result<()> {
        let input = self.input.lock().await;
        let Some(input) = input.as_ref() else { return Ok(()) };
        let mut ended = self.ended.subscribe();
        tokio::select! {
            result = write_all(input, &bytes) => result,
            _ = ended.wait_for(|ended| *ended) => Ok(()),
        }
    }

    async fn close_stdin(&self) -> Result<()> {
        if self.terminal.is_some() {
            return self.write_stdin(Bytes::from_static(terminal::END_OF_INPUT)).await;
        }
        self.input.lock().await.take();
        Ok(())
    }

    async fn resize(&self, size: Terminal) -> Result<()> {
        let Some(terminal) = &self.terminal else { return Err(Error::invalid("the command has no terminal")) };
        terminal::resize(terminal.as_fd(), size)
            .map_err(|error| Error::internal("the terminal cannot be resized").with_source(error))
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        if let Some(orders) = self.orders.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            let number = u8::try_from(signal as i32).unwrap_or(0);
            // It fails if the supervisor has ended, and the command with it.
            let _ = rustix::io::write(orders, &[number]);
        }
        Ok(())
    }

    fn kill(&self) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

async fn write_all(input: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let written = async {
            let mut ready = input.writable().await?;
            ready
                .try_io(|fd| Ok(rustix::io::write(fd, bytes)?))
                .unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()))
        };
        match written.await {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // The command closed its stdin or ended; a terminal answers so too when nobody has it open.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(()),
            Err(error) => return Err(Error::internal("writing to the command failed").with_source(error)),
        }
    }
    Ok(())
}

struct Run {
    sandbox: Arc<Sandbox>,
    control: Arc<ProcessControl>,
    events: mpsc::Sender<Event>,
    sources: Vec<(OutputStream, Arc<AsyncFd<OwnedFd>>)>,
    reports: pipe::Receiver,
    /// Whether every process of the command is gone.
    gone: watch::Receiver<bool>,
    started: Instant,
    timeout: Option<Duration>,
}

impl Run {
    async fn attend(mut self) {
        let mut pumps: Vec<Pump> = Vec::new();
        for (stream, source) in self.sources.drain(..) {
            pumps.push(Pump { stream, source, log: self.sandbox.console.writer(), open: true });
        }
        let report = self.deliver(&mut pumps).await;
        self.control.ended.send_replace(true);
        if report.is_none() || self.events.is_closed() {
            self.control.kill();
            self.wait().await;
        }
        for pump in &mut pumps {
            pump.rest(&self.events, self.control.terminal.is_some()).await;
        }
        let event = match report {
            _ if self.sandbox.is_destroyed() => {
                Event::Failed(Error::new(ErrorKind::Destroyed, "the sandbox was destroyed while the command ran"))
            }
            Some(report) => Event::Exited(exit(report, self.started)),
            None => Event::Failed(self.timed_out()),
        };
        // It fails if the reader is gone.
        let _ = self.events.send(event).await;
        drop(self.events);
        // What the command left running goes on writing to the log, and is killed with the sandbox.
        let mut logs = tokio::task::JoinSet::new();
        for pump in pumps {
            logs.spawn(pump.log_only());
        }
        let _ = self.gone.wait_for(|gone| *gone).await;
        // Somebody outside may have got hold of the streams; nobody waits for that.
        let _ = tokio::time::timeout(LOG_PATIENCE, logs.join_all()).await;
    }

    /// Passes output on until the command ends, its time is over (none), or nobody reads any more.
    async fn deliver(&mut self, pumps: &mut [Pump]) -> Option<Report> {
        let deadline = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let mut report = [0; REPORT_BYTES];
        let ended = self.reports.read_exact(&mut report);
        tokio::pin!(ended);
        let events = self.events.clone();
        let output = async {
            let mut pumps = pumps.iter_mut();
            match (pumps.next(), pumps.next()) {
                (Some(out), Some(err)) => {
                    tokio::join!(out.run(&events), err.run(&events));
                }
                (Some(out), None) => out.run(&events).await,
                _ => {}
            }
            std::future::pending::<Infallible>().await
        };
        let result = tokio::select! {
            biased;
            () = &mut deadline => return None,
            result = &mut ended => result,
            () = events.closed() => {
                self.control.kill();
                ended.await
            }
            never = output => match never {},
        };
        // Without a report the supervisor was killed, and with it the knowledge of what runs.
        Some(result.map_or(Report { status: 9, cpu_micros: 0, peak_memory_bytes: 0 }, |_| Report::parse(&report)))
    }

    async fn wait(&mut self) {
        if tokio::time::timeout(KILL_PATIENCE, self.gone.wait_for(|gone| *gone)).await.is_err() {
            tracing::warn!(runtime.id = %self.sandbox.record.id, "killed processes have not ended after 10 s");
        }
    }

    fn timed_out(&self) -> Error {
        let timeout = self.timeout.unwrap_or_default();
        Error::new(ErrorKind::Timeout, format!("exec timed out after {timeout:?}"))
    }
}

fn exit(report: Report, started: Instant) -> Exit {
    let status = ExitStatus::from_raw(report.status);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let usage = Usage {
        wall: started.elapsed(),
        cpu: Some(Duration::from_micros(report.cpu_micros)),
        peak_memory_bytes: Some(report.peak_memory_bytes),
    };
    Exit { code, out_of_memory: false, usage }
}

/// Moves one stream of a command to the reader and to the log.
struct Pump {
    stream: OutputStream,
    source: Arc<AsyncFd<OwnedFd>>,
    log: ConsoleWriter,
    open: bool,
}

impl Pump {
    /// Ends with the stream. Takes the room in the channel first: bytes that were read are never lost when it is dropped.
    async fn run(&mut self, events: &mpsc::Sender<Event>) {
        while self.open {
            let Ok(room) = events.reserve().await else { return };
            let Some(bytes) = self.read().await else { return };
            self.log.write(&bytes);
            room.send(Event::Output(Chunk { stream: self.stream, bytes }));
        }
    }

    /// What was written before the command ended.
    async fn rest(&mut self, events: &mpsc::Sender<Event>, terminal: bool) {
        let waiting = rustix::io::ioctl_fionread(self.source.get_ref()).unwrap_or(0);
        let mut left = if terminal { TERMINAL_REST_BYTES } else { usize::try_from(waiting).unwrap_or(usize::MAX) };
        while self.open && left > 0 {
            let mut buffer = vec![0; left.min(MAX_CHUNK_BYTES)];
            match rustix::io::read(self.source.get_ref(), &mut buffer) {
                Ok(0) | Err(Errno::AGAIN | Errno::IO) => return,
                Ok(length) => {
                    buffer.truncate(length);
                    left -= length;
                    self.log.write(&buffer);
                    let chunk = Chunk { stream: self.stream, bytes: Bytes::from(buffer) };
                    if events.send(Event::Output(chunk)).await.is_err() {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    async fn log_only(mut self) {
        while let Some(bytes) = self.read().await {
            self.log.write(&bytes);
        }
    }

    /// Waits without holding a buffer. None at the end of the stream.
    async fn read(&mut self) -> Option<Bytes> {
        while self.open {
            let mut ready = self.source.readable().await.ok()?;
            let mut buffer = [0; MAX_CHUNK_BYTES];
            let result = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut buffer)?));
            match result {
                Err(_) => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal that nobody has open any more answers with an error.
                Ok(Ok(0) | Err(_)) => self.open = false,
                Ok(Ok(length)) => return Some(Bytes::copy_from_slice(&buffer[..length])),
            }
        }
        None
    }
}
