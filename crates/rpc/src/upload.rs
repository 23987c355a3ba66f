//! Bodies of requests.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};

use crate::pool::lock;
use crate::{Error, Times};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

pub(crate) fn whole(bytes: Bytes) -> RequestBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// How far an upload has come. The request owns the upload itself.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    last: Instant,
    bytes: u64,
    failure: Option<String>,
}

impl Progress {
    /// Why the caller's content ended early, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.0).failure.clone().map(|message| Error::Content { message })
    }

    /// Ends when nothing has moved for too long. A worker may take a while to store what it got.
    pub(crate) async fn stalled(&self, times: &Times) -> Error {
        loop {
            let deadline = {
                let state = lock(&self.0);
                state.last + times.stalled + Duration::from_secs(state.bytes >> 20)
            };
            if deadline <= Instant::now() {
                return Error::unknown("the transfer to the worker stands still");
            }
            sleep_until(deadline).await;
        }
    }

    fn moved(&self, bytes: usize) {
        let mut state = lock(&self.0);
        state.last = Instant::now();
        state.bytes += bytes as u64;
    }

    fn failed(&self, message: &str) -> BoxError {
        lock(&self.0).failure.get_or_insert_with(|| crate::error::shown(message));
        message.into()
    }
}

/// Content that a caller provides piece by piece. With a size it must have exactly that many bytes: a worker must not
/// take the first part of a file for the whole.
pub(crate) fn upload<S, E>(content: S, size: Option<u64>) -> (RequestBody, Progress)
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: std::fmt::Display + 'static,
{
    let state = State { last: Instant::now(), bytes: 0, failure: None };
    let progress = Progress(Arc::new(Mutex::new(state)));
    let upload = Upload { content: Box::pin(content), left: size, ended: false, progress: progress.clone() };
    (upload.boxed_unsync(), progress)
}

struct Upload<S> {
    content: Pin<Box<S>>,
    left: Option<u64>,
    ended: bool,
    progress: Progress,
}

impl<S, E> Body for Upload<S>
where
    S: Stream<Item = Result<Bytes, E>>,
    E: std::fmt::Display,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let piece = std::task::ready!(this.content.as_mut().poll_next(context));
        let frame = match piece {
            Some(Ok(piece)) => {
                this.progress.moved(piece.len());
                match this.left.map(|left| left.checked_sub(piece.len() as u64)) {
                    Some(None) => Some(Err(this.progress.failed("it is longer than announced"))),
                    Some(left) => {
                        this.left = left;
                        Some(Ok(Frame::data(piece)))
                    }
                    None => Some(Ok(Frame::data(piece))),
                }
            }
            Some(Err(error)) => Some(Err(this.progress.failed(&error.to_string()))),
            None if this.left.is_some_and(|left| left > 0) => {
                Some(Err(this.progress.failed("it is shorter than announced")))
            }
            None => None,
        };
        this.ended = !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
