//! `GET` and `PUT /rpc/files`: files of any size, streamed.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tenure_sandbox::FileWrite;
use tokio::io::AsyncReadExt;
use tokio_util::io::{ReaderStream, StreamReader};

use super::answer::Answer;
use super::body;
use super::call::{DEFAULT_FILE_MODE, file_mode};
use super::check;
use super::methods::within;
use super::refusal::Refusal;
use super::request::{REQUEST_ID_BYTES, text};
use super::state::Rpc;
use crate::node::{Held, Target};

/// What is read from a file at a time.
const READ_BYTES: usize = 256 << 10;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FileQuery {
    sandbox_id: String,
    runtime_id: String,
    provider: String,
    path: String,
    mode: String,
}

impl Rpc {
    /// The checks that a route beside `/rpc` shares with it.
    pub(super) fn route_caller(&self, headers: &HeaderMap, scope: &str) -> Result<(), Refusal> {
        check::scope(self.caller(headers)?, scope)
    }

    /// A failure on a route without an envelope of its own: the same body, with the id of the HTTP request.
    pub(super) fn route_refusal(&self, headers: &HeaderMap, refusal: &Refusal) -> Response {
        let id = text(headers, tenure_contract::worker_rpc::REQUEST_ID_HEADER).unwrap_or_default();
        let id: String = id.chars().take(REQUEST_ID_BYTES).collect();
        let mut response = Answer::refused(&id, self.worker_id(), refusal).into_response();
        response
            .headers_mut()
            .insert(tenure_contract::worker_rpc::ERROR_HEADER, HeaderValue::from_static(refusal.class.as_str()));
        response
    }

    async fn file_target(&self, headers: &HeaderMap, query: &FileQuery) -> Result<Held, Refusal> {
        self.route_caller(headers, "worker:files")?;
        if query.path.trim().is_empty() {
            return Err(Refusal::invalid("the query names no path"));
        }
        let target = Target {
            sandbox_id: query.sandbox_id.trim().to_owned(),
            runtime_id: query.runtime_id.trim().to_owned(),
            provider: query.provider.trim().to_owned(),
        };
        self.thawed(&target).await?;
        self.held(None, &target).await
    }

    async fn file_get(&self, headers: &HeaderMap, query: &FileQuery) -> Result<Response, Refusal> {
        let held = self.file_target(headers, query).await?;
        let opening = held.provider.read_file(&held.runtime_id, &query.path);
        let reader = within(self.settings.times.call, "opening the file", opening).await??;
        // Exactly what was announced: a file that grows is cut, and one that shrinks breaks the connection.
        let content = reader.content.take(reader.info.size);
        let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(content, READ_BYTES)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(reader.info.size));
        Ok(response)
    }

    async fn file_put(&self, headers: &HeaderMap, query: &FileQuery, body: Body) -> Result<(), Refusal> {
        let held = self.file_target(headers, query).await?;
        let mode = if query.mode.is_empty() { DEFAULT_FILE_MODE } else { file_mode(&query.mode)? };
        let content = StreamReader::new(Box::pin(body::pieces(body, self.settings.times.body)));
        let file = FileWrite { path: query.path.clone(), mode, content: Box::pin(content) };
        Ok(held.provider.write_file(&held.runtime_id, file).await?)
    }
}

pub(super) async fn read(State(rpc): State<Arc<Rpc>>, Query(query): Query<FileQuery>, headers: HeaderMap) -> Response {
    match rpc.file_get(&headers, &query).await {
        Ok(response) => response,
        Err(refusal) => rpc.route_refusal(&headers, &refusal),
    }
}

/// The file appears under its name when it is complete.
pub(super) async fn write(State(rpc): State<Arc<Rpc>>, Query(query): Query<FileQuery>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match rpc.file_put(&parts.headers, &query, body).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(refusal) => rpc.route_refusal(&parts.headers, &refusal),
    }
}
