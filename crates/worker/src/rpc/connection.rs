//! The clock of one connection: how long it may be idle, send a head, or leave an answer unread.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::settings::RpcTimes;

/// How long a connection is kept after its last answer, so that the answer can be read.
const LINGER: Duration = Duration::from_secs(1);
/// What is read meanwhile. More than that is left to the client's own buffers.
const LINGER_BYTES: usize = 64 << 10;

/// What a connection is doing.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing, since then.
    Idle(Instant),
    /// Sending a head, since then.
    Head(Instant),
    /// A request is being served.
    Busy,
}

/// Watches one connection. Clones watch the same.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    phase: Arc<Mutex<Phase>>,
    head: Duration,
    idle: Duration,
}

impl Clock {
    /// A new connection must send its first head at once.
    pub(super) fn new(times: &RpcTimes) -> Self {
        let phase = Arc::new(Mutex::new(Phase::Head(Instant::now())));
        Self { phase, head: times.head, idle: times.idle }
    }

    /// A request is served until the guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.set(Phase::Busy);
        Busy(self.clone())
    }

    fn set(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn heard(&self) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if let Phase::Idle(_) = *phase {
            *phase = Phase::Head(Instant::now());
        }
    }

    /// Ends when the connection took too long.
    pub(super) async fn expired(&self) {
        loop {
            let phase = *self.phase.lock().unwrap_or_else(PoisonError::into_inner);
            let deadline = match phase {
                Phase::Idle(since) => since + self.idle,
                Phase::Head(since) => since + self.head,
                // The phase that follows lasts longer than this.
                Phase::Busy => Instant::now() + self.head.min(self.idle),
            };
            if !matches!(phase, Phase::Busy) && deadline <= Instant::now() {
                return;
            }
            // Phases change without waking this: a head that begins while it sleeps must not wait for the idle time.
            sleep_until(deadline.min(Instant::now() + self.head.min(self.idle) / 4)).await;
        }
    }
}

/// While it lives, a request is served.
#[derive(Debug)]
pub(super) struct Busy(Clock);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(Phase::Idle(Instant::now()));
    }
}

/// A stream that tells its clock what it reads, and fails when nobody reads what it writes.
#[derive(Debug)]
pub(super) struct Timed<S> {
    stream: S,
    clock: Clock,
    stalled: Duration,
    /// Since when a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// After the end of the last answer: until when, and what was read of what the client still sends.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Timed<S> {
    pub(super) fn new(stream: S, clock: Clock, stalled: Duration) -> Self {
        Self { stream, clock, stalled, waiting: None, lingering: None }
    }

    fn written<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.waiting = None;
            return done;
        }
        let stalled = self.stalled;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(stalled)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads the answer")))
    }
}

impl<S: AsyncRead + Unpin> Timed<S> {
    /// Waits for the client to end its side too. A connection that is closed while the client still sends is reset, and
    /// the client may never see the answer that refused its request.
    fn linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (until, read) = self.lingering.get_or_insert_with(|| (Box::pin(sleep(LINGER)), 0));
        if until.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut scratch = [0; 4096];
        while *read < LINGER_BYTES {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *read += buffer.filled().len(),
                _ => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let done = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.clock.heard();
        }
        done
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.written(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let done = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.written(context, done))?;
        }
        self.linger(context).map(Ok)
    }
}
