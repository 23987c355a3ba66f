use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::confinement::{CommandConfinement, Confinement};
use super::launch::{Start, start};
use super::protocol::{
    Answer, End, ExecRequest, Failure, Frame, HEADER_BYTES, MAX_DATA_BYTES, encode, header, parse_header, wrong,
};
use super::reaper::Ended;
use super::server::Agent;
use crate::console::ConsoleWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::execution::MAX_CHUNK_BYTES;
use crate::spec::Terminal;
use crate::start::cannot_start;
use crate::sys::supervisor::{REPORT_BYTES, Report};
use crate::terminal;

/// Time that killed processes have to disappear before the execution ends with an error.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// What is read from a terminal after the command's end. The kernel keeps less than that.
const TERMINAL_REST_BYTES: usize = 1 << 20;

/// Runs a command for a client. Returns when every stream of the command is closed, which can be after the client left.
pub(super) fn run<C: Confinement>(agent: &Agent<C>, connection: &UnixStream, request: &ExecRequest) -> Result<()> {
    let _command = agent.count_command()?;
    let confinement = Arc::new(agent.confinement.prepare().map_err(cannot_start)?);
    let (streams, process) = match start(agent, request, &confinement)? {
        Start::Running(streams, process) => (streams, process),
        Start::Ended(code, text) => {
            answer_ended(connection, code, &text);
            return Ok(());
        }
    };
    let mut session = Session {
        agent,
        connection,
        process,
        confinement: confinement.as_ref(),
        input: Input { target: streams.input, pending: Vec::new(), written: 0, close: false },
        terminal: streams.terminal,
        outputs: streams.outputs,
        incoming: Vec::new(),
        outgoing: Vec::new(),
        sent: 0,
        started: Instant::now(),
        timeout: request.timeout_ms.map(Duration::from_millis),
        timed_out: false,
        state: State::Running,
    };
    session.push(Frame::Answer, &encode(&Answer::Done));
    session.serve();
    session.attend_background();
    Ok(())
}

/// The whole conversation about a program that could not be started.
fn answer_ended(mut connection: &UnixStream, code: i32, text: &str) {
    let end = End::Exited { code, out_of_memory: false, wall_us: 0, cpu_us: None, peak_memory_bytes: None };
    let mut bytes = Vec::new();
    push(&mut bytes, Frame::Answer, &encode(&Answer::Done));
    push(&mut bytes, Frame::Stderr, text.as_bytes());
    push(&mut bytes, Frame::End, &serde_json::to_vec(&end).unwrap_or_default());
    // It fails if the client has left.
    let _ = io::Write::write_all(&mut connection, &bytes);
}

fn push(bytes: &mut Vec<u8>, frame: Frame, payload: &[u8]) {
    bytes.extend_from_slice(&header(frame, payload.len()));
    bytes.extend_from_slice(payload);
}

/// A started command.
pub(super) struct Process {
    pub(super) leader: i32,
    /// Set if it has a supervisor.
    pub(super) child: Option<Child>,
    /// Of the child, if this process reaps for everybody.
    pub(super) ended: Option<Arc<Ended>>,
    /// Of the supervisor, if there is one.
    pub(super) reports: Option<OwnedFd>,
    /// Closed to let the supervisor kill everything.
    pub(super) orders: Option<OwnedFd>,
}

impl Process {
    /// Can be read when the command has ended.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.reports.as_ref().or(self.ended.as_ref().map(|ended| &ended.event)).map(AsFd::as_fd)
    }

    /// How the command ended, once the event says that it did. Without a report its supervisor was killed.
    fn report(&self) -> Report {
        let killed = Report { status: 9, cpu_micros: 0, peak_memory_bytes: 0 };
        let Some(reports) = &self.reports else {
            return self.ended.as_ref().and_then(|ended| ended.report()).unwrap_or(killed);
        };
        let mut bytes = [0; REPORT_BYTES];
        match rustix::io::read(reports, &mut bytes) {
            Ok(REPORT_BYTES) => Report::parse(&bytes),
            _ => killed,
        }
    }

    fn signal<C>(&self, agent: &Agent<C>, number: u8) {
        let Some(signal) = Signal::from_named_raw(i32::from(number)) else { return };
        if let Some(orders) = &self.orders {
            // It fails if the supervisor has ended.
            let _ = rustix::io::write(orders, &[number]);
        } else if let Some(reaper) = &agent.reaper {
            reaper.signal(self.leader, signal);
        }
    }
}

/// Where the bytes of a client go.
struct Input {
    target: Option<OwnedFd>,
    pending: Vec<u8>,
    written: usize,
    /// Whether to close it after the pending bytes.
    close: bool,
}

/// A stream of a command.
pub(super) struct Output {
    pub(super) frame: Frame,
    /// None at its end.
    pub(super) source: Option<OwnedFd>,
    pub(super) log: ConsoleWriter,
    /// Bytes that may still be read after the command's end.
    pub(super) left: usize,
}

impl Output {
    /// What can be read now, at most `limit` bytes.
    fn read(&mut self, limit: usize) -> Option<Vec<u8>> {
        let source = self.source.as_ref()?;
        let mut buffer = vec![0; limit.min(MAX_CHUNK_BYTES)];
        match rustix::io::read(source, &mut buffer) {
            Ok(length) if length > 0 => {
                buffer.truncate(length);
                self.log.write(&buffer);
                Some(buffer)
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            // A terminal that nobody has open any more answers with an error.
            Ok(_) | Err(_) => {
                self.source = None;
                None
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Running,
    /// Killed because its time is over; its end is waited for until then.
    Killed(Instant),
    /// The rest of the output is being sent.
    Rest(Report),
    /// The end is among the outgoing bytes.
    Ended,
    /// The client has left.
    Abandoned,
}

struct Session<'a, C: Confinement> {
    agent: &'a Agent<C>,
    connection: &'a UnixStream,
    process: Process,
    confinement: &'a C::Command,
    input: Input,
    terminal: Option<OwnedFd>,
    outputs: Vec<Output>,
    /// The beginning of a frame.
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// How many of the outgoing bytes are sent.
    sent: usize,
    started: Instant,
    timeout: Option<Duration>,
    timed_out: bool,
    state: State,
}

/// What a descriptor of a poll is.
#[derive(Debug, Clone, Copy)]
enum Source {
    Connection,
    Event,
    Input,
    Output(usize),
}

impl<C: Confinement> Session<'_, C> {
    fn push(&mut self, frame: Frame, payload: &[u8]) {
        push(&mut self.outgoing, frame, payload);
    }

    /// Moves bytes between the client and the command until the end was sent or the client has left. Output is read only
    /// when the former was sent, so that a slow client blocks the command.
    fn serve(&mut self) {
        let result = self.connection.set_nonblocking(true).and_then(|()| self.converse());
        if result.is_err() && matches!(self.state, State::Running | State::Killed(_)) {
            self.kill();
        }
        if result.is_err() {
            self.state = State::Abandoned;
        }
        self.input.target = None;
        self.outgoing = Vec::new();
        self.incoming = Vec::new();
    }

    fn converse(&mut self) -> io::Result<()> {
        loop {
            self.advance();
            self.send()?;
            match self.state {
                State::Ended if self.outgoing.is_empty() => return Ok(()),
                State::Rest(_) if self.outgoing.is_empty() => continue,
                _ => {}
            }
            for source in self.wait()? {
                match source {
                    Source::Connection => self.receive()?,
                    Source::Event => self.command_ended(),
                    Source::Input => self.feed(),
                    Source::Output(index) => {
                        let output = &mut self.outputs[index];
                        let frame = output.frame;
                        // The other stream may have taken the room.
                        if self.outgoing.is_empty()
                            && let Some(bytes) = output.read(MAX_CHUNK_BYTES)
                        {
                            self.push(frame, &bytes);
                        }
                    }
                }
            }
        }
    }

    fn kill(&mut self) {
        // It fails if there is nothing to kill.
        let _ = self.confinement.kill();
        self.process.orders = None;
    }

    /// Looks at the clock, and after the command's end at the rest of its output.
    fn advance(&mut self) {
        let now = Instant::now();
        match self.state {
            State::Running if self.timeout.is_some_and(|timeout| now >= self.started + timeout) => {
                self.timed_out = true;
                self.kill();
                self.state = State::Killed(now + KILL_PATIENCE);
            }
            State::Killed(until) if now >= until => {
                self.push_end(&failed(&Error::internal("processes of the command do not end")));
            }
            State::Rest(report) if self.outgoing.is_empty() => match self.rest() {
                Some((frame, bytes)) => self.push(frame, &bytes),
                None if self.timed_out => {
                    let timeout = self.timeout.unwrap_or_default();
                    let error = Error::new(ErrorKind::Timeout, format!("exec timed out after {timeout:?}"));
                    self.push_end(&failed(&error));
                }
                None => self.push_end(&self.exited(report)),
            },
            _ => {}
        }
    }

    /// The next piece of what was written before the command's end.
    fn rest(&mut self) -> Option<(Frame, Vec<u8>)> {
        self.outputs.iter_mut().find_map(|output| {
            let bytes = if output.left == 0 { None } else { output.read(output.left) };
            output.left = bytes.as_ref().map_or(0, |bytes| output.left.saturating_sub(bytes.len()));
            bytes.map(|bytes| (output.frame, bytes))
        })
    }

    fn push_end(&mut self, end: &End) {
        self.push(Frame::End, &serde_json::to_vec(end).unwrap_or_default());
        self.state = State::Ended;
    }

    fn exited(&self, report: Report) -> End {
        let status = ExitStatus::from_raw(report.status);
        let usage = self.confinement.usage();
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        End::Exited {
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            out_of_memory: usage.out_of_memory,
            wall_us: micros(self.started.elapsed()),
            cpu_us: Some(usage.cpu.map_or(report.cpu_micros, micros)),
            peak_memory_bytes: Some(usage.peak_memory_bytes.unwrap_or(report.peak_memory_bytes)),
        }
    }

    fn command_ended(&mut self) {
        if !matches!(self.state, State::Running | State::Killed(_)) {
            return;
        }
        let report = self.process.report();
        for output in &mut self.outputs {
            // Bytes that are written from now on are not the command's.
            let waiting = output.source.as_ref().map_or(0, |source| rustix::io::ioctl_fionread(source).unwrap_or(0));
            let waiting = usize::try_from(waiting).unwrap_or(usize::MAX);
            output.left = if self.terminal.is_some() { TERMINAL_REST_BYTES } else { waiting };
        }
        self.input.target = None;
        self.state = State::Rest(report);
    }

    fn send(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match rustix::net::send(self.connection, &self.outgoing[self.sent..], rustix::net::SendFlags::NOSIGNAL) {
                Ok(length) => self.sent += length,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Waits until something can be done.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut sources = vec![Source::Connection];
        let room = self.outgoing.is_empty();
        let reply = if room { PollFlags::empty() } else { PollFlags::OUT };
        let mut polled = vec![PollFd::new(self.connection, PollFlags::IN | reply)];
        let mut until = None;
        if matches!(self.state, State::Running | State::Killed(_)) {
            if let Some(event) = self.process.event() {
                sources.push(Source::Event);
                polled.push(PollFd::from_borrowed_fd(event, PollFlags::IN));
            }
            for (index, output) in self.outputs.iter().enumerate() {
                if let (true, Some(source)) = (room, &output.source) {
                    sources.push(Source::Output(index));
                    polled.push(PollFd::new(source, PollFlags::IN));
                }
            }
            if let (false, Some(target)) = (self.input.pending.is_empty(), &self.input.target) {
                sources.push(Source::Input);
                polled.push(PollFd::new(target, PollFlags::OUT));
            }
            until = match self.state {
                State::Killed(until) => Some(until),
                _ => self.timeout.map(|timeout| self.started + timeout),
            };
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = sources.into_iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(source, _)| source).collect())
    }

    /// Takes what the client sent. It fails when the client has left or broke the rules.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        match rustix::io::read(self.connection, &mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => self.incoming.extend_from_slice(&buffer[..length]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(bytes) = self.incoming.first_chunk::<HEADER_BYTES>() {
            let (frame, length) = parse_header(*bytes, MAX_DATA_BYTES)?;
            if self.incoming.len() < HEADER_BYTES + length {
                break;
            }
            let rest = self.incoming.split_off(HEADER_BYTES + length);
            let mut whole = std::mem::replace(&mut self.incoming, rest);
            self.obey(frame, whole.split_off(HEADER_BYTES))?;
        }
        Ok(())
    }

    fn obey(&mut self, frame: Frame, payload: Vec<u8>) -> io::Result<()> {
        match (frame, payload.as_slice()) {
            (Frame::Stdin, _) if !self.input.pending.is_empty() || self.input.close => {
                return Err(wrong("input before the former was accepted"));
            }
            (Frame::Stdin, _) => {
                self.input.pending = payload;
                self.feed();
            }
            (Frame::CloseStdin, _) if self.terminal.is_some() => {
                self.input.pending.extend_from_slice(terminal::END_OF_INPUT);
                self.feed();
            }
            (Frame::CloseStdin, _) => {
                self.input.close = true;
                self.feed();
            }
            (Frame::Resize, &[r0, r1, c0, c1]) => {
                let size = Terminal { rows: u16::from_le_bytes([r0, r1]), columns: u16::from_le_bytes([c0, c1]) };
                if let Some(terminal) = &self.terminal {
                    // It fails if nobody has the terminal open any more.
                    let _ = terminal::resize(terminal.as_fd(), size);
                }
            }
            (Frame::Signal, &[number]) => self.process.signal(self.agent, number),
            _ => return Err(wrong("a frame that does not belong here")),
        }
        Ok(())
    }

    /// Passes input on as far as the command takes it.
    fn feed(&mut self) {
        let had = self.input.pending.len();
        while let (Some(target), false) = (&self.input.target, self.input.pending.is_empty()) {
            match rustix::io::write(target, &self.input.pending[self.input.written..]) {
                Ok(length) => {
                    self.input.written += length;
                    if self.input.written == self.input.pending.len() {
                        self.input.pending.clear();
                        self.input.written = 0;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // The command closed its stdin.
                Err(_) => self.input.target = None,
            }
        }
        if self.input.target.is_none() {
            self.input.pending.clear();
        }
        if had > 0 {
            self.push(Frame::Accepted, &[]);
        }
        if self.input.close {
            self.input.target = None;
        }
    }

    /// What a command left running goes on writing to the log.
    fn attend_background(&mut self) {
        if matches!(self.state, State::Abandoned) || self.timed_out {
            self.kill();
        }
        loop {
            let mut polled: Vec<PollFd<'_>> = self
                .outputs
                .iter()
                .filter_map(|output| output.source.as_ref())
                .chain(self.process.reports.as_ref())
                .map(|fd| PollFd::new(fd, PollFlags::IN))
                .collect();
            if polled.is_empty() {
                break;
            }
            if poll(&mut polled, None).is_err_and(|error| error != Errno::INTR) {
                break;
            }
            drop(polled);
            for output in &mut self.outputs {
                output.read(BACKGROUND_CHUNK_BYTES);
            }
            if let Some(reports) = &self.process.reports {
                let mut report = [0; REPORT_BYTES];
                let mut one = [PollFd::new(reports, PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                // After the report of a command that was killed, the end of the pipe.
                if poll(&mut one, Some(&now)) == Ok(1) && rustix::io::read(reports, &mut report) != Ok(REPORT_BYTES) {
                    self.process.reports = None;
                }
            }
        }
        if self.process.ended.is_none() {
            // The supervisor has ended, or was killed.
            let _ = self.process.child.as_mut().map(Child::wait);
        }
    }
}

/// What is read at a time for the log only.
const BACKGROUND_CHUNK_BYTES: usize = 4096;

fn failed(error: &Error) -> End {
    End::Failed(Failure::from(error))
}
