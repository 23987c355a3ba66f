use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::confinement::Confinement;
use super::protocol::{Answer, Failure, Frame, MAX_REQUEST_BYTES, Request, encode, read_frame, write_frame, wrong};
use super::reaper::Reaper;
use super::threads::{Threads, spawn};
use super::{exec, files};
use crate::console::Console;
use crate::error::{Error, ErrorKind, Result};
use crate::files::Root;

/// Connections that are served at a time; others wait.
const MAX_CONNECTIONS: usize = 256;

/// Commands that run at a time, with those that left processes behind. Fewer than connections, so that a sandbox full of
/// commands can be controlled.
const MAX_COMMANDS: usize = 192;

/// Without progress for that long, a client is given up.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);

/// Time for a connection to a port.
const DIAL_PATIENCE: Duration = Duration::from_secs(10);

/// Settings of an agent.
#[derive(Debug)]
pub(crate) struct AgentSettings {
    /// What paths are resolved beneath: `/`, unless the agent is not in a root of its own.
    pub(crate) root: PathBuf,
    /// The agent exits when this connection ends.
    pub(crate) parent: Option<OwnedFd>,
}

/// The state of the agent.
pub(super) struct Agent<C> {
    pub(super) confinement: C,
    pub(super) root: Root,
    pub(super) console: Console,
    /// In the first process of a PID namespace.
    pub(super) reaper: Option<Reaper>,
    frozen: AtomicBool,
    commands: AtomicUsize,
    connections: AtomicUsize,
    /// A connection has ended.
    room: (Mutex<()>, Condvar),
    deadlines: Mutex<Deadlines>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, Default)]
struct Deadlines {
    freeze_at: Option<Instant>,
    destroy_at: Option<Instant>,
}

/// Serves the sandbox that this process is in until it is killed or its deadline passes.
pub(crate) fn serve<C: Confinement>(
    listener: UnixListener,
    confinement: C,
    settings: AgentSettings,
) -> Result<Infallible> {
    let first = std::process::id() == 1;
    if !first && !confinement.supervised() {
        return Err(Error::internal("the agent must be the first process of a PID namespace"));
    }
    let agent = Arc::new(Agent {
        confinement,
        root: Root::open(&settings.root)?,
        console: Console::default(),
        reaper: first.then(Reaper::default),
        frozen: AtomicBool::new(false),
        commands: AtomicUsize::new(0),
        connections: AtomicUsize::new(0),
        room: (Mutex::new(()), Condvar::new()),
        deadlines: Mutex::default(),
        changed: Condvar::new(),
    });
    let failed = |error| Error::internal("the agent has no thread").with_source(error);
    if first {
        let agent = Arc::clone(&agent);
        spawn("reaper", move || agent.reaper.as_ref().map(|reaper| reaper.run())).map_err(failed)?;
    }
    let keeper = Arc::clone(&agent);
    spawn("deadlines", move || keeper.keep_deadlines()).map_err(failed)?;
    if let Some(parent) = settings.parent {
        let agent = Arc::clone(&agent);
        spawn("parent", move || agent.end_with(&parent)).map_err(failed)?;
    }
    let threads = Arc::new(Threads::default());
    loop {
        agent.wait_for_room();
        match listener.accept() {
            Ok((connection, _)) => {
                let place = Place::new(&agent);
                // Without a thread the client sees the end of its connection.
                let _ = threads.run(move || place.0.call(&connection));
            }
            // Out of descriptors or memory: what is being served will free some.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// One of the connections that are served at a time.
struct Place<C>(Arc<Agent<C>>);

impl<C> Place<C> {
    fn new(agent: &Arc<Agent<C>>) -> Self {
        agent.connections.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(agent))
    }
}

impl<C> Drop for Place<C> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
        let _room = self.0.room.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.room.1.notify_one();
    }
}

/// One of the commands that run at a time.
pub(super) struct CommandPlace<'a>(&'a AtomicUsize);

impl Drop for CommandPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<C> Agent<C> {
    fn wait_for_room(&self) {
        let guard = self.room.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |_: &mut ()| self.connections.load(Ordering::SeqCst) >= MAX_CONNECTIONS;
        drop(self.room.1.wait_while(guard, full));
    }

    pub(super) fn count_command(&self) -> Result<CommandPlace<'_>> {
        let place = CommandPlace(&self.commands);
        if self.commands.fetch_add(1, Ordering::SeqCst) >= MAX_COMMANDS {
            return Err(Error::unavailable(format!("the sandbox runs {MAX_COMMANDS} commands already")));
        }
        Ok(place)
    }
}

impl<C: Confinement> Agent<C> {
    /// Serves one connection.
    fn call(&self, connection: &UnixStream) {
        let result = self.request(connection).and_then(|request| {
            // A frozen sandbox can be looked at, thawed and destroyed.
            if self.frozen.load(Ordering::SeqCst) && uses_sandbox(&request) {
                return Err(Error::new(ErrorKind::Frozen, "the sandbox is frozen: thaw it first"));
            }
            self.answer(connection, request)
        });
        let answer = match result {
            Ok(None) => return,
            Ok(Some(answer)) => answer,
            Err(error) => Answer::Failed(Failure::from(&error)),
        };
        // It fails if the client has left.
        let _ = write_frame(&mut &*connection, Frame::Answer, &encode(&answer));
    }

    fn request(&self, connection: &UnixStream) -> Result<Request> {
        let received = connection
            .set_read_timeout(Some(CLIENT_PATIENCE))
            .and_then(|()| connection.set_write_timeout(Some(CLIENT_PATIENCE)))
            .and_then(|()| match read_frame(&mut &*connection, MAX_REQUEST_BYTES)? {
                (Frame::Request, bytes) => Ok(serde_json::from_slice(&bytes)?),
                _ => Err(wrong("a frame that is not a request")),
            });
        received.map_err(|error| Error::invalid("the request cannot be read").with_source(error))
    }

    /// None if the answer was sent.
    fn answer(&self, connection: &UnixStream, request: Request) -> Result<Option<Answer>> {
        Ok(Some(match request {
            Request::Ping => Answer::Status { frozen: self.frozen.load(Ordering::SeqCst) },
            Request::Exec(request) => {
                exec::run(self, connection, &request)?;
                return Ok(None);
            }
            Request::Log { lines } => Answer::Texts(self.console.last(lines)),
            Request::Dial { port } => {
                let address = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
                let dialled = TcpStream::connect_timeout(&address, DIAL_PATIENCE).map_err(|error| {
                    Error::unavailable(format!("nothing answers on port {port}")).with_source(error)
                })?;
                pass(connection, dialled.as_fd())?;
                return Ok(None);
            }
            Request::Deadlines { freeze_after_ms, destroy_after_ms } => {
                let now = Instant::now();
                let after = |ms: Option<u64>| ms.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
                let deadlines = Deadlines { freeze_at: after(freeze_after_ms), destroy_at: after(destroy_after_ms) };
                *self.deadlines.lock().unwrap_or_else(PoisonError::into_inner) = deadlines;
                self.changed.notify_one();
                Answer::Done
            }
            Request::Freeze => self.set_frozen(true)?,
            Request::Thaw => self.set_frozen(false)?,
            other => return files::answer(&self.root, connection, other),
        }))
    }

    fn set_frozen(&self, frozen: bool) -> Result<Answer> {
        if frozen {
            self.frozen.store(true, Ordering::SeqCst);
        }
        self.confinement.set_frozen(frozen).map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::Unsupported => ErrorKind::Invalid,
                _ => ErrorKind::Internal,
            };
            Error::new(kind, format!("the sandbox cannot be {}", if frozen { "frozen" } else { "thawed" }))
                .with_source(error)
        })?;
        self.frozen.store(frozen, Ordering::SeqCst);
        Ok(Answer::Done)
    }

    fn keep_deadlines(&self) {
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            if deadlines.destroy_at.is_some_and(|at| at <= now) {
                self.exit();
            }
            if deadlines.freeze_at.is_some_and(|at| at <= now) {
                deadlines.freeze_at = None;
                // Where commands cannot be frozen, calls are refused at least.
                let _ = self.set_frozen(true);
                continue;
            }
            let next = [deadlines.freeze_at, deadlines.destroy_at].into_iter().flatten().min();
            deadlines = match next {
                Some(next) => {
                    let waited = self.changed.wait_timeout(deadlines, next.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(deadlines).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Waits for the end of a connection, and exits.
    fn end_with(&self, parent: &OwnedFd) {
        let mut buffer = [0; 64];
        loop {
            let mut polled = [PollFd::new(parent, PollFlags::IN)];
            if poll(&mut polled, None).is_ok_and(|ready| ready > 0)
                && matches!(rustix::io::read(parent, &mut buffer), Ok(0) | Err(rustix::io::Errno::CONNRESET))
            {
                self.exit();
            }
        }
    }

    /// Every process of the sandbox ends with its first.
    fn exit(&self) -> ! {
        self.confinement.end();
        std::process::exit(0)
    }
}

fn uses_sandbox(request: &Request) -> bool {
    !matches!(
        request,
        Request::Ping | Request::Log { .. } | Request::Deadlines { .. } | Request::Freeze | Request::Thaw
    )
}

/// Answers with a descriptor.
fn pass(connection: &UnixStream, fd: std::os::fd::BorrowedFd<'_>) -> Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let payload = encode(&Answer::Done);
    let mut bytes = super::protocol::header(Frame::Answer, payload.len()).to_vec();
    bytes.extend_from_slice(&payload);
    let fds = [fd];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    // A few bytes in an empty buffer are sent whole.
    sendmsg(connection, &[io::IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
        .map_err(|error| Error::internal("the connection cannot be passed").with_source(io::Error::from(error)))
}
