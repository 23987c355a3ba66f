//! Files of sandboxes. Contents are streamed from end to end; only a body of JSON is held in memory.

use std::ops::Range;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_contract::sandboxes::{FileChmod, FileInfo, FileMove, FileWrite, Outcome, SandboxError};
use tenure_contract::worker_rpc::{self as wire, MAX_BODY_BYTES};
use tenure_rpc::{Client, Content};

use super::errors::refuse;
use super::{Params, params, respond_whole};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::memory::Room;
use crate::request::RequestId;
use crate::sandboxes::audit::Operation;
use crate::sandboxes::bounds::Place;
use crate::sandboxes::calls::{Reached, call, fault, reach};
use crate::sandboxes::watch::tell_of_file;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/sandboxes/{id}/files", post(write).put(upload).get(read).delete(delete))
        .route("/api/v1/sandboxes/{id}/files/list", get(list))
        .route("/api/v1/sandboxes/{id}/files/stat", get(stat))
        .route("/api/v1/sandboxes/{id}/files/glob", get(glob))
        .route("/api/v1/sandboxes/{id}/files/move", post(rename))
        .route("/api/v1/sandboxes/{id}/files/chmod", post(chmod))
}

fn place(to: &Reached, path: &str) -> wire::FilePathParams {
    let wire::TargetParams { sandbox_id, provider, runtime_id } = to.runtime.clone();
    wire::FilePathParams { sandbox_id, provider, runtime_id, path: path.to_owned() }
}

/// A path that a body names.
fn given<'a>(path: &'a str, field: &str) -> Result<&'a str, Fault> {
    match path {
        "" => Err(Fault::bad(field, &format!("{field} is required"))),
        path if path.contains('\0') => Err(Fault::bad(field, &format!("{field} must not contain NUL"))),
        path => Ok(path),
    }
}

/// Write a file
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files", operation_id = "write_sandbox_file", tag = "sandboxes", params(("id" = String, Path)), request_body = FileWrite, security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "written")))]
pub async fn write(ask: Ask, headers: HeaderMap, body: Body) -> Response {
    let operation = ask.operation("file_write");
    let answer = async {
        let rpc = ask.rpc()?;
        let read = params::read_up_to(&ask.app, &ask.caller, &headers, body, MAX_BODY_BYTES);
        let (asked, _room): (FileWrite, _) = read.await?;
        let path = given(&asked.path, "path")?;
        let content: Bytes = match (asked.content, asked.content_b64) {
            (_, Some(encoded)) => STANDARD
                .decode(encoded)
                .map_err(|_| Fault::bad("content_b64", "content_b64 is not padded base64"))?
                .into(),
            (content, None) => content.unwrap_or_default().into(),
        };
        let mode = asked.mode.unwrap_or_default();
        let size = content.len() as u64;
        let (content, mode) = (&content, mode.as_str());
        let writing = ask.call(|to| async move {
            let whole = stream::iter([Ok::<_, std::io::Error>(content.clone())]);
            rpc.write_file(&to.target, to.call(), &place(&to, path), mode, Some(size), whole).await
        });
        writing.await.map(|()| path.to_owned())
    };
    let answer = answer.await;
    let operation = match &answer {
        Ok(path) => {
            tell_of_file(&ask.app, &ask.caller, &ask.sandbox, "file.written", path);
            operation.on(path)
        }
        Err(_) => operation,
    };
    ask.answer(operation, answer.map(|_| Outcome::new("written"))).await
}

/// Write a file from the body as it is
#[utoipa::path(put, path = "/api/v1/sandboxes/{id}/files", operation_id = "upload_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query), ("mode" = Option<String>, Query, description = "octal, default 0644")),
    request_body(content = String, content_type = "application/octet-stream"), security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "written")))]
pub async fn upload(ask: Ask, uri: Uri, headers: HeaderMap, body: Body) -> Result<Response, Response> {
    let (operation, params) = ask.query("file_write", &uri, "path")?;
    let answer = async {
        let part = ask.app.sandboxes()?;
        let path = params.required("path")?;
        let _open = part.bounds.place(&ask.caller.share())?;
        let to = reach(&ask.app, &ask.caller, &ask.sandbox).await?;
        let size = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let mode = params.text("mode").unwrap_or_default();
        // The body can be read once only, so that a lease that has just lapsed is a refusal here.
        let content = body.into_data_stream();
        let written = part.rpc.write_file(&to.target, to.call(), &place(&to, path), mode, size, content).await;
        written.map_err(fault)?;
        tell_of_file(&ask.app, &ask.caller, &ask.sandbox, "file.written", path);
        Ok(Outcome::new("written"))
    };
    Ok(ask.answer(operation, answer.await).await)
}

/// Read a file
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files", operation_id = "read_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query), ("Range" = Option<String>, Header, description = "one range of bytes")), security(("api_key" = ["read"])),
    responses((status = 200, description = "The content", content_type = "application/octet-stream"),
              (status = 206, description = "A part of the content", content_type = "application/octet-stream"),
              (status = 416, body = SandboxError, description = "the file is shorter")))]
pub async fn read(ask: Ask, uri: Uri, headers: HeaderMap) -> Result<Response, Response> {
    let (operation, params) = ask.query("file_read", &uri, "path")?;
    let answer = async {
        let part = ask.app.sandboxes()?;
        let path = params.required("path")?;
        let open = part.bounds.place(&ask.caller.share())?;
        let reading = ask.call(|to| async move { part.rpc.read_file(&to.target, to.call(), &place(&to, path)).await });
        let content = reading.await?;
        tell_of_file(&ask.app, &ask.caller, &ask.sandbox, "file.read", path);
        Ok((content, open))
    };
    match operation.end(answer.await).await {
        Err(fault) => Err(refuse(fault, &ask.id)),
        Ok((content, open)) => Ok(send(content, open, &headers, &ask.id)),
    }
}

/// Sends the content, or the range of it that was asked for.
fn send(content: Content, open: Place, headers: &HeaderMap, id: &RequestId) -> Response {
    let size = content.size();
    let asked = headers.get(header::RANGE).and_then(|range| range.to_str().ok()).zip(size);
    let range = match asked.map(|(text, size)| (range_of(text, size), size)) {
        Some((Asked::Unsatisfiable, size)) => {
            let mut response = refuse(SandboxFault::fault(SandboxFaultKind::Range, "the file is shorter"), id);
            insert(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
            return response;
        }
        Some((Asked::Part(range), _)) => Some(range),
        Some((Asked::All, _)) | None => None,
    };
    let wanted = range.clone().or(size.map(|size| 0..size));
    let part = wanted.clone().unwrap_or(0..u64::MAX);
    let sending =
        Sending { content, skip: part.start, left: part.end - part.start, exact: wanted.is_some(), _open: open };
    let pieces = stream::unfold(sending, |mut sending| async move { Some((sending.next().await?, sending)) });
    let mut response = Body::from_stream(pieces).into_response();
    let sent = response.headers_mut();
    insert(sent, header::CONTENT_TYPE, "application/octet-stream");
    insert(sent, header::ACCEPT_RANGES, "bytes");
    if let Some(wanted) = &wanted {
        insert(sent, header::CONTENT_LENGTH, &(wanted.end - wanted.start).to_string());
    }
    if let Some((range, size)) = range.zip(size) {
        insert(sent, header::CONTENT_RANGE, &format!("bytes {}-{}/{size}", range.start, range.end - 1));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// A file on its way, piece by piece. Nothing is read ahead of the client.
struct Sending {
    content: Content,
    skip: u64,
    left: u64,
    /// Whether the client was told how much comes.
    exact: bool,
    _open: Place,
}

impl Sending {
    async fn next(&mut self) -> Option<std::io::Result<Bytes>> {
        while self.left > 0 {
            let mut piece = match self.content.next().await {
                Some(Ok(piece)) => piece,
                Some(Err(error)) => {
                    self.left = 0;
                    return Some(Err(std::io::Error::other(error)));
                }
                // A file that is shorter than announced must not look complete.
                None if self.exact => {
                    self.left = 0;
                    return Some(Err(std::io::ErrorKind::UnexpectedEof.into()));
                }
                None => return None,
            };
            let skipped = self.skip.min(piece.len() as u64);
            self.skip -= skipped;
            drop(piece.split_to(skipped as usize));
            piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= piece.len() as u64;
            if !piece.is_empty() {
                return Some(Ok(piece));
            }
        }
        None
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// No range, or one that is not understood.
    All,
    Part(Range<u64>),
    Unsatisfiable,
}

/// One range of bytes. Several at once are answered with everything, as the standard allows.
fn range_of(text: &str, size: u64) -> Asked {
    let Some(range) = text.trim().strip_prefix("bytes=") else { return Asked::All };
    let Some((first, last)) = range.split_once('-').map(|(first, last)| (first.trim(), last.trim())) else {
        return Asked::All;
    };
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..size.min(last.saturating_add(1)),
        (Ok(first), Err(_)) if last.is_empty() => first..size,
        (Err(_), Ok(last)) if first.is_empty() => size.saturating_sub(last)..size,
        _ => return Asked::All,
    };
    if range.start >= size || range.is_empty() { Asked::Unsatisfiable } else { Asked::Part(range) }
}

/// A request about files of a sandbox.
pub struct Ask {
    app: App,
    id: RequestId,
    caller: Caller,
    sandbox: String,
}

impl FromRequestParts<App> for Ask {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let found = <(Extension<RequestId>, User, Path<String>)>::from_request_parts(parts, app).await;
        let (Extension(id), Extension(caller), Path(sandbox)) = found.map_err(IntoResponse::into_response)?;
        Ok(Self { app: app.clone(), id, caller, sandbox })
    }
}

impl Ask {
    fn operation(&self, action: &str) -> Operation {
        Operation::new(&self.app, &self.caller, &self.id, action, &self.sandbox)
    }

    /// An operation on what a parameter names.
    #[allow(clippy::result_large_err, reason = "a refusal goes out as it is")]
    fn query(&self, action: &str, uri: &Uri, name: &str) -> Result<(Operation, Params), Response> {
        let params = Params::of(uri).map_err(|fault| refuse(fault, &self.id))?;
        Ok((self.operation(action).on(params.text(name).unwrap_or_default()), params))
    }

    async fn body<T: DeserializeOwned>(&self, headers: &HeaderMap, body: Body) -> Result<(T, Room), Response> {
        params::read(&self.app, &self.caller, headers, body).await.map_err(|fault| refuse(fault, &self.id))
    }

    fn rpc(&self) -> Result<&Client, Fault> {
        Ok(&self.app.sandboxes()?.rpc)
    }

    async fn call<T: Send, R>(&self, calling: impl Fn(Reached) -> R + Send + Sync) -> Result<T, Fault>
    where
        R: Future<Output = Result<T, tenure_rpc::Error>> + Send,
    {
        call(&self.app, &self.caller, &self.sandbox, calling).await
    }

    async fn answer<T: Serialize>(&self, operation: Operation, answer: Result<T, Fault>) -> Response {
        respond_whole(&self.app, &self.caller, operation.end(answer).await, &self.id).await
    }
}

/// Delete a file or a folder
#[utoipa::path(delete, path = "/api/v1/sandboxes/{id}/files", operation_id = "delete_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query), ("recursive" = Option<bool>, Query)), security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "deleted")))]
pub async fn delete(ask: Ask, uri: Uri) -> Result<Response, Response> {
    let (operation, params) = ask.query("file_delete", &uri, "path")?;
    let answer = async {
        let rpc = ask.rpc()?;
        let (path, recursive) = (params.required("path")?, params.flag("recursive")?.unwrap_or_default());
        let deleting = ask.call(|to| async move {
            let wire::FilePathParams { sandbox_id, provider, runtime_id, path } = place(&to, path);
            let params = wire::FileDeleteParams { sandbox_id, provider, runtime_id, path, recursive };
            rpc.file_delete(&to.target, to.call(), &params).await
        });
        deleting.await.map(|()| Outcome::new("deleted"))
    };
    Ok(ask.answer(operation, answer.await).await)
}

/// List a folder
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/list", operation_id = "list_sandbox_files", tag = "sandboxes",
    params(("id" = String, Path), ("path" = Option<String>, Query, description = "default /")), security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<FileInfo>, description = "The files, by path")))]
pub async fn list(ask: Ask, uri: Uri) -> Result<Response, Response> {
    let (operation, params) = ask.query("file_list", &uri, "path")?;
    let answer = async {
        let (rpc, path) = (ask.rpc()?, params.text("path").unwrap_or("/"));
        let listing = ask.call(|to| async move { rpc.file_list(&to.target, to.call(), &place(&to, path)).await });
        Ok(listing.await?.into_iter().map(FileInfo::from).collect::<Vec<_>>())
    };
    Ok(ask.answer(operation, answer.await).await)
}

/// Show a file
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/stat", operation_id = "stat_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query)), security(("api_key" = ["read"])),
    responses((status = 200, body = FileInfo, description = "The file")))]
pub async fn stat(ask: Ask, uri: Uri) -> Result<Response, Response> {
    let (operation, params) = ask.query("file_stat", &uri, "path")?;
    let answer = async {
        let (rpc, path) = (ask.rpc()?, params.required("path")?);
        let looking = ask.call(|to| async move { rpc.file_stat(&to.target, to.call(), &place(&to, path)).await });
        looking.await.map(FileInfo::from)
    };
    Ok(ask.answer(operation, answer.await).await)
}

/// Find files by pattern
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/glob", operation_id = "glob_sandbox_files", tag = "sandboxes",
    params(("id" = String, Path), ("pattern" = String, Query)), security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<String>, description = "The paths")))]
pub async fn glob(ask: Ask, uri: Uri) -> Result<Response, Response> {
    let (operation, params) = ask.query("file_glob", &uri, "pattern")?;
    let answer = async {
        let (rpc, pattern) = (ask.rpc()?, params.required("pattern")?);
        let finding = ask.call(|to| async move {
            let wire::TargetParams { sandbox_id, provider, runtime_id } = to.runtime.clone();
            let params = wire::FileGlobParams { sandbox_id, provider, runtime_id, pattern: pattern.to_owned() };
            rpc.file_glob(&to.target, to.call(), &params).await
        });
        finding.await
    };
    Ok(ask.answer(operation, answer.await).await)
}

/// Move a file
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/move", operation_id = "move_sandbox_file", tag = "sandboxes", params(("id" = String, Path)), request_body = FileMove, security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "moved")))]
pub async fn rename(ask: Ask, headers: HeaderMap, body: Body) -> Result<Response, Response> {
    let (asked, _room): (FileMove, _) = ask.body(&headers, body).await?;
    let operation = ask.operation("file_move").on(&asked.old_path).detail(format!("to {}", asked.new_path));
    let answer = async {
        let rpc = ask.rpc()?;
        let (old_path, new_path) = (given(&asked.old_path, "old_path")?, given(&asked.new_path, "new_path")?);
        let moving = ask.call(|to| async move {
            let wire::TargetParams { sandbox_id, provider, runtime_id } = to.runtime.clone();
            let (old_path, new_path) = (old_path.to_owned(), new_path.to_owned());
            let params = wire::FileMoveParams { sandbox_id, provider, runtime_id, old_path, new_path };
            rpc.file_move(&to.target, to.call(), &params).await
        });
        moving.await.map(|()| Outcome::new("moved"))
    };
    Ok(ask.answer(operation, answer.await).await)
}

/// Change the mode of a file
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/chmod", operation_id = "chmod_sandbox_file", tag = "sandboxes", params(("id" = String, Path)), request_body = FileChmod, security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "chmod applied")))]
pub async fn chmod(ask: Ask, headers: HeaderMap, body: Body) -> Result<Response, Response> {
    let (asked, _room): (FileChmod, _) = ask.body(&headers, body).await?;
    let operation = ask.operation("file_chmod").on(&asked.path).detail(format!("mode {}", asked.mode));
    let answer = async {
        let rpc = ask.rpc()?;
        let (path, mode) = (given(&asked.path, "path")?, given(&asked.mode, "mode")?);
        let changing = ask.call(|to| async move {
            let wire::FilePathParams { sandbox_id, provider, runtime_id, path } = place(&to, path);
            let params = wire::FileChmodParams { sandbox_id, provider, runtime_id, path, mode: mode.to_owned() };
            rpc.file_chmod(&to.target, to.call(), &params).await
        });
        changing.await.map(|()| Outcome::new("chmod applied"))
    };
    Ok(ask.answer(operation, answer.await).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        for (text, expected) in [
            ("bytes=0-3", Asked::Part(0..4)),
            ("bytes=2-", Asked::Part(2..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-30", Asked::Part(0..10)),
            ("bytes=8-99", Asked::Part(8..10)),
            ("bytes=10-", Asked::Unsatisfiable),
            ("bytes=-0", Asked::Unsatisfiable),
            ("bytes=5-18446744073709551615", Asked::Part(5..10)),
            ("bytes=3-1", Asked::All),
            ("bytes=0-1,3-4", Asked::All),
            ("items=0-1", Asked::All),
            ("bytes=x-y", Asked::All),
            ("bytes=-", Asked::All),
            ("", Asked::All),
        ] {
            assert_eq!(range_of(text, 10), expected, "{text}");
        }
        assert_eq!(range_of("bytes=0-0", 0), Asked::Unsatisfiable);
    }
}
