//! Bodies of answers.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    let pieces: Pin<Box<dyn Stream<Item = io::Result<Frame<Bytes>>> + Send>> =
        Box::pin(futures_util::StreamExt::map(pieces, |piece| piece.map(Frame::data)));
    StreamBody::new(pieces).boxed_unsync()
}
