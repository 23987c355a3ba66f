//! Files of any size.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response};
use tenure_contract::worker_rpc::{FilePathParams, MAX_CONTENT_BYTES};
use tokio::time::{Instant, timeout_at};

use crate::address::encode;
use crate::answer::{self, Expected};
use crate::client::Live;
use crate::exchange::{Outgoing, Payload};
use crate::methods::observe;
use crate::upload::{Progress, upload};
use crate::{Call, Client, Content, Error, Target};

/// What is read of an answer that is only about a failure.
const FAILURE_BYTES: usize = 64 << 10;

impl Client {
    /// Reads a file. Without the capability `stream_files` up to 64 MiB, in memory.
    pub async fn read_file(&self, target: &Target, call: Call<'_>, place: &FilePathParams) -> Result<Content, Error> {
        if !target.capabilities.has("stream_files") {
            return self.file_read(target, call, place).await.map(Content::whole);
        }
        let started = Instant::now();
        let live = self.live();
        let outgoing =
            Outgoing { repeatable: true, ..Outgoing::session(Method::GET, files_path(place, ""), call.request_id) };
        let content = self.download(&live, target, call, outgoing).await.map(Response::into_body);
        observe("GET /rpc/files", target, call, started, content.as_ref().err());
        content
    }

    /// Writes a file, which appears when it is complete. A blank `mode` is the worker's default, 0644. `size` is checked
    /// if it is given. Without the capability `stream_files` up to 64 MiB, in memory.
    pub async fn write_file<S, E>(
        &self,
        target: &Target,
        call: Call<'_>,
        place: &FilePathParams,
        mode: &str,
        size: Option<u64>,
        content: S,
    ) -> Result<(), Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: std::fmt::Display + 'static,
    {
        let live = self.live();
        if !target.capabilities.has("stream_files") {
            let content = self.gather(&live, size, content).await?;
            return self.file_write(target, call, place, mode, content).await;
        }
        let started = Instant::now();
        let (body, progress) = upload(content, size);
        let mut outgoing = Outgoing::session(Method::PUT, files_path(place, mode), call.request_id);
        outgoing.body = Payload::Upload(Some(body));
        let written = self.send_upload(&live, target, call, outgoing, &progress).await.map(drop);
        observe("PUT /rpc/files", target, call, started, written.as_ref().err());
        written
    }

    /// A small file from a caller who sends it in pieces.
    async fn gather<S, E>(&self, live: &Live, size: Option<u64>, content: S) -> Result<Bytes, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: std::fmt::Display,
    {
        let too_large = || {
            let most = MAX_CONTENT_BYTES >> 20;
            Error::invalid(format!("the file is larger than {most} MiB, and the worker does not take it in pieces"))
        };
        if size.is_some_and(|size| size > MAX_CONTENT_BYTES as u64) {
            return Err(too_large());
        }
        let mut content = std::pin::pin!(content);
        let mut gathered = BytesMut::new();
        let mut reserved = self.reserve(live, 0).await?;
        while let Some(piece) = content.next().await {
            let piece = piece.map_err(|error| Error::Content { message: crate::error::shown(&error.to_string()) })?;
            let total = gathered.len() + piece.len();
            if total > MAX_CONTENT_BYTES {
                return Err(too_large());
            }
            if total > reserved.bytes() {
                reserved.merge(self.reserve(live, (total - reserved.bytes()).max(1 << 20)).await?);
            }
            gathered.extend_from_slice(&piece);
        }
        if size.is_some_and(|size| size != gathered.len() as u64) {
            return Err(Error::Content { message: "its length is not the announced one".to_owned() });
        }
        Ok(gathered.freeze())
    }

    /// Sends a request whose answer has a body of its own kind if it is a success.
    pub(crate) async fn download(
        &self,
        live: &Live,
        target: &Target,
        call: Call<'_>,
        outgoing: Outgoing<'_>,
    ) -> Result<Response<Content>, Error> {
        let deadline = Instant::now() + live.settings.times.call;
        let response = self.exchange(live, target, outgoing, Some(deadline)).await?;
        self.succeeded(live, target, call, response).await
    }

    /// Sends an upload for as long as it makes progress.
    pub(crate) async fn send_upload(
        &self,
        live: &Live,
        target: &Target,
        call: Call<'_>,
        mut outgoing: Outgoing<'_>,
        progress: &Progress,
    ) -> Result<Response<Content>, Error> {
        outgoing.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let sending = async {
            let response = self.exchange(live, target, outgoing, None).await?;
            self.succeeded(live, target, call, response).await
        };
        let sent = tokio::select! {
            sent = sending => sent,
            stalled = progress.stalled(&live.settings.times) => Err(stalled),
        };
        // When the caller's content fails, the connection is cut, and that is all that can be seen of it here.
        match (sent, progress.failure()) {
            (Err(_), Some(failure)) => Err(failure),
            (sent, _) => sent,
        }
    }

    /// The answer itself, or why it is a failure.
    pub(crate) async fn succeeded(
        &self,
        live: &Live,
        target: &Target,
        call: Call<'_>,
        response: Response<Content>,
    ) -> Result<Response<Content>, Error> {
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, mut content) = response.into_parts();
        let times = &live.settings.times;
        let reading = content.collect(FAILURE_BYTES, &self.0.budget, times.room);
        // The status alone says enough.
        let body = timeout_at(Instant::now() + times.call, reading).await;
        let body = body.ok().and_then(Result::ok).map(|(bytes, _)| bytes).unwrap_or_default();
        let expected = Expected { request_id: call.request_id, worker_id: &target.worker_id };
        Err(answer::failure(parts.status, &body, Some(expected)))
    }
}

fn files_path(place: &FilePathParams, mode: &str) -> String {
    let mut path = format!("/rpc/files?path={}", encode(&place.path));
    for (name, value) in [
        ("sandbox_id", place.sandbox_id.as_str()),
        ("runtime_id", &place.runtime_id),
        ("provider", &place.provider),
        ("mode", mode),
    ] {
        if !value.is_empty() {
            path.push_str(&format!("&{name}={}", encode(value)));
        }
    }
    path
}
