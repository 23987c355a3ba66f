//! Bodies of answers.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::Error;
use crate::budget::{Budget, Reserved};
use crate::error::chain;
use crate::pool::{Connection, Permit, Worker};

/// Answers up to this size need no reservation.
const SMALL_BYTES: usize = 64 << 10;
/// Memory is reserved in steps of this.
const STEP_BYTES: usize = 1 << 20;

/// The content of an answer, read piece by piece. Nothing is read ahead of its reader. Dropping it before its end closes
/// the connection, which tells the worker.
pub struct Content {
    source: Source,
    /// How long the worker may be silent while the reader waits; none for ports in sandboxes.
    stalled: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
}

enum Source {
    Worker { incoming: Incoming, held: Held },
    Whole(Bytes),
    Ended,
}

/// What lasts as long as the answer is read.
pub(crate) struct Held {
    pub connection: Connection,
    pub worker: Arc<Worker>,
    pub permit: Permit,
}

impl Content {
    pub(crate) fn new(incoming: Incoming, held: Held, stalled: Duration) -> Self {
        Self { source: Source::Worker { incoming, held }, stalled: Some(stalled), timer: None }
    }

    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { source: Source::Whole(bytes), stalled: None, timer: None }
    }

    /// How many bytes are left, if the worker announced it.
    pub fn size(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    /// The next piece; none at the end. A connection that ends early is an error. May be canceled.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut *self).poll_frame(context)).await?;
            // Trailers mean nothing here.
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => return Some(Ok(data)),
                Ok(Err(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The reader may wait for as long as it likes.
    pub(crate) fn unhurried(mut self) -> Self {
        self.stalled = None;
        self
    }

    /// All of it, up to `limit` bytes, with a reservation of memory for it and what is made of it.
    pub(crate) async fn collect(
        &mut self,
        limit: usize,
        budget: &Budget,
        wait: Duration,
    ) -> Result<(Vec<u8>, Option<Reserved>), Error> {
        let too_large = || Error::unknown(format!("the answer is larger than {limit} bytes"));
        if self.size().is_some_and(|size| size > limit as u64) {
            return Err(too_large());
        }
        let (mut bytes, mut reserved) = (Vec::new(), None::<Reserved>);
        while let Some(piece) = self.next().await {
            let piece = piece?;
            let size = bytes.len() + piece.len();
            if size > limit {
                return Err(too_large());
            }
            // As bytes, and once more as the result.
            let (needed, has) = (2 * size, reserved.as_ref().map_or(0, Reserved::bytes));
            if size > SMALL_BYTES && needed > has {
                let step = (needed - has).max(STEP_BYTES);
                let more = budget.reserve(step, wait).await;
                let more =
                    more.ok_or_else(|| Error::unknown("too many large answers at once: no memory for this one"))?;
                match &mut reserved {
                    Some(reserved) => reserved.merge(more),
                    None => reserved = Some(more),
                }
            }
            if bytes.capacity() < size {
                bytes.reserve_exact(piece.len().max(bytes.len() / 2).min(limit - bytes.len()));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok((bytes, reserved))
    }

    /// What held the connection, when the connection has become something else.
    pub(crate) fn into_held(mut self) -> Option<Held> {
        match std::mem::replace(&mut self.source, Source::Ended) {
            Source::Worker { held, .. } => Some(held),
            Source::Whole(_) | Source::Ended => None,
        }
    }

    /// Gives the connection back for the next call.
    fn finish(&mut self) {
        if let Source::Worker { held, .. } = std::mem::replace(&mut self.source, Source::Ended) {
            let Held { connection, worker, permit } = held;
            worker.put(connection);
            drop(permit);
        }
    }

    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.source {
            Source::Ended => Poll::Ready(None),
            Source::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                self.source = Source::Ended;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Source::Worker { incoming, .. } => {
                let frame = std::task::ready!(Pin::new(incoming).poll_frame(context));
                Poll::Ready(match frame {
                    None => {
                        self.finish();
                        None
                    }
                    Some(Ok(frame)) => Some(Ok(frame)),
                    Some(Err(error)) => {
                        self.source = Source::Ended;
                        Some(Err(Error::unknown(format!("the answer ended early: {}", chain(&error)))))
                    }
                })
            }
        }
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = self.poll_source(context) {
            self.timer = None;
            return Poll::Ready(frame);
        }
        let Some(stalled) = self.stalled else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(stalled)));
        std::task::ready!(timer.as_mut().poll(context));
        self.timer = None;
        self.source = Source::Ended;
        let message = format!("the worker sent nothing more for {} s", stalled.as_secs_f32());
        Poll::Ready(Some(Err(Error::unknown(message))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Worker { incoming, .. } => incoming.is_end_stream(),
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Worker { incoming, .. } => incoming.size_hint(),
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Ended => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        // Some readers stop at the announced size and never ask for the end.
        if let Source::Worker { incoming, .. } = &self.source
            && incoming.is_end_stream()
        {
            self.finish();
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("size", &self.size()).finish_non_exhaustive()
    }
}
