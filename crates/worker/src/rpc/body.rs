//! Bodies of requests: bounded in bytes, in time and in memory.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body_util::BodyExt;
use tenure_contract::worker_rpc::{Code, MAX_BODY_BYTES, MAX_SMALL_BODY_BYTES};
use tokio::time::{Instant, timeout, timeout_at};

use super::budget::{Budget, Reserved};
use super::refusal::Refusal;
use super::settings::RpcTimes;

/// A body in memory, and the part of the budget that it takes.
#[derive(Debug)]
pub(super) struct ReadBody {
    pub bytes: Bytes,
    pub reserved: Reserved,
}

/// Reads a whole body. What a caller announces is reserved before a byte is read.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    budget: &Budget,
    times: &RpcTimes,
) -> Result<ReadBody, Refusal> {
    let announced = announced(headers);
    if announced.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
        return Err(too_large());
    }
    let announced = announced.and_then(|length| usize::try_from(length).ok());
    let room = announced.unwrap_or(MAX_SMALL_BODY_BYTES);
    // A file is in memory twice for a moment: as it came, and decoded.
    let reserved = budget.reserve(room.saturating_mul(2), times.body).await;
    let mut reserved = reserved.ok_or_else(no_memory)?;
    let deadline = Instant::now() + times.for_bytes(times.body, announced.unwrap_or(MAX_BODY_BYTES) as u64);
    let mut bytes = BytesMut::with_capacity(announced.unwrap_or(0));
    loop {
        let frame = timeout_at(deadline, timeout(times.body, body.frame())).await;
        let Ok(Ok(frame)) = frame else { return Err(too_slow(times.body)) };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| Refusal::bad_request("the body ended early"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_BODY_BYTES {
            return Err(too_large());
        }
        if announced.is_none() && bytes.len() <= room && bytes.len() + data.len() > room {
            reserved.merge(budget.try_reserve(2 * (MAX_BODY_BYTES - room)).ok_or_else(no_memory)?);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(ReadBody { bytes: bytes.freeze(), reserved })
}

/// A body that is passed on as it comes. Each piece must arrive in time.
pub(super) fn pieces(body: Body, wait: Duration) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
    let body = body.into_data_stream();
    futures_util::stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        match timeout(wait, body.next()).await {
            Ok(Some(Ok(bytes))) => Some((Ok(bytes), Some(body))),
            Ok(Some(Err(_))) => Some((Err(std::io::Error::other("the body ended early")), None)),
            Ok(None) => None,
            Err(_) => {
                let slow = std::io::Error::new(std::io::ErrorKind::TimedOut, "the body did not arrive in time");
                Some((Err(slow), None))
            }
        }
    })
}

pub(super) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large() -> Refusal {
    let message = format!("the body is larger than {} MiB", MAX_BODY_BYTES >> 20);
    Refusal::api(StatusCode::PAYLOAD_TOO_LARGE, "BAD_REQUEST", message)
}

fn too_slow(wait: Duration) -> Refusal {
    let message = format!("the body did not arrive in time: no progress for {} s, or too slow", wait.as_secs());
    Refusal::api(StatusCode::REQUEST_TIMEOUT, "BAD_REQUEST", message)
}

pub(super) fn no_memory() -> Refusal {
    Refusal::call(Code::ProviderUnavailable, "this worker has too many large calls in progress: try again later")
}
