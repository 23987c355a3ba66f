//! Pages that are written entry by entry: of a page that nobody reads, only what the store gave is in memory, and that counts
//! for its tenant.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tenure_core::limits::PAGE_BYTES;
use tenure_engine::store::Page;

use crate::api::errors::refuse;
use crate::error::Fault;
use crate::memory::{self, Room};
use crate::request::RequestId;

/// What is handed to a connection at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A page whose memory is counted.
#[derive(Debug)]
pub struct Counted<T> {
    page: Page<T>,
    room: Room,
}

/// Waits for memory for a page, reads it, and keeps what its entries need.
pub async fn counted<T, E: Into<Fault>>(
    read: impl Future<Output = Result<Page<T>, E>>,
    bytes_of: impl Fn(&T) -> usize,
) -> Result<Counted<T>, Fault> {
    let mut room = memory::room();
    room.enlarge(PAGE_BYTES).await?;
    let page = read.await.map_err(Into::into)?;
    let bytes = page.items.iter().map(bytes_of).sum();
    // One entry alone can be larger than a page.
    room.enlarge_now(bytes)?;
    room.shrink(bytes);
    Ok(Counted { page, room })
}

/// An answer in one piece. What is not small counts for its tenant until it has been sent.
pub fn whole<T: Serialize>(status: StatusCode, body: &T) -> Result<Response, Fault> {
    let bytes = serde_json::to_vec(body).map_err(|_| Fault::Internal)?;
    if bytes.len() <= PIECE_BYTES {
        return Ok((status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response());
    }
    let mut room = memory::room();
    room.enlarge_now(bytes.len())?;
    let length = bytes.len();
    let pieces = stream::unfold((Bytes::from(bytes), room), |(mut bytes, room)| async move {
        let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (bytes, room)))
    });
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    Ok((status, headers, Body::from_stream(pieces)).into_response())
}

impl<T> Counted<T> {
    pub fn empty() -> Self {
        Self { page: Page { items: Vec::new(), next: None }, room: memory::room() }
    }

    pub fn is_empty(&self) -> bool {
        self.page.items.is_empty()
    }
}

/// Writes a page as `{"items":[…],"next_cursor":…}`. Entries that `render` leaves out are not there any more.
pub fn respond<T: Send + 'static, W: Serialize + 'static>(
    answer: Result<Counted<T>, Fault>,
    render: fn(&T) -> Option<W>,
    id: &RequestId,
) -> Response {
    let Counted { page, room } = match answer {
        Ok(counted) => counted,
        Err(fault) => return refuse(fault, id),
    };
    let writing = Writing { left: page.items.into_iter(), next: Some(page.next), render, written: 0, room };
    let pieces = stream::unfold((writing, Bytes::new()), |(mut writing, mut ready)| async move {
        if ready.is_empty() {
            ready = writing.piece()?;
        }
        let piece = ready.split_to(ready.len().min(PIECE_BYTES));
        Some((Ok::<_, Infallible>(piece), (writing, ready)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

struct Writing<T, W> {
    left: std::vec::IntoIter<T>,
    /// `None` once it has been written, which is the end.
    next: Option<Option<String>>,
    render: fn(&T) -> Option<W>,
    written: usize,
    room: Room,
}

impl<T, W: Serialize> Writing<T, W> {
    /// The next part of the text: many small entries, or a large one.
    fn piece(&mut self) -> Option<Bytes> {
        let _counted_until_the_end = &self.room;
        self.next.as_ref()?;
        let mut text = Vec::new();
        if self.written == 0 {
            text.extend_from_slice(br#"{"items":["#);
        }
        while text.len() < PIECE_BYTES {
            let Some(entry) = self.left.next() else {
                text.extend_from_slice(br#"],"next_cursor":"#);
                write(&mut text, &self.next.take().flatten());
                text.push(b'}');
                break;
            };
            let Some(entry) = (self.render)(&entry) else { continue };
            if self.written > 0 {
                text.push(b',');
            }
            write(&mut text, &entry);
            self.written += 1;
        }
        Some(text.into())
    }
}

/// Types of the wire can be written: they have no maps with other keys than texts.
fn write(text: &mut Vec<u8>, value: &impl Serialize) {
    let begin = text.len();
    if serde_json::to_writer(&mut *text, value).is_err() {
        text.truncate(begin);
        text.extend_from_slice(b"null");
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tenure_contract::user;

    use super::*;

    async fn written(items: Vec<usize>, next: Option<&str>) -> Bytes {
        let page = Page { items, next: next.map(ToOwned::to_owned) };
        let counted = counted(async { Ok::<_, Fault>(page) }, |_| 10).await.unwrap();
        let render = |length: &usize| (*length > 0).then(|| "x".repeat(*length));
        let response = respond(Ok(counted), render, &RequestId("r".to_owned()));
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn a_page_reads_as_it_would_in_one_piece() {
        for (lengths, next) in [
            (vec![], None),
            (vec![3], Some("7")),
            (vec![1, 0, 2], None),
            (vec![0, 0], Some("a\"b")),
            (vec![200_000, 5, 0, 70_000, 9_000], Some("1")),
            (vec![40_000; 20], None),
        ] {
            let items = lengths.iter().filter(|length| **length > 0).map(|length| "x".repeat(*length)).collect();
            let whole = user::Page { items, next_cursor: next.map(ToOwned::to_owned) };
            assert_eq!(written(lengths, next).await, serde_json::to_vec(&whole).unwrap());
        }
    }
}
