//! Files of sandboxes. Contents are streamed from end to end; only a body of JSON is held in memory.

use std::ops::Range;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use tenure_contract::sandboxes::{FileChmod, FileInfo, FileMove, FileWrite, Outcome, SandboxError};
use tenure_contract::worker_rpc::{self as wire, MAX_BODY_BYTES};
use tenure_rpc::Content;

use super::errors::refuse;
use super::{Params, params, respond};
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
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
pub async fn write(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let operation = Operation::new(&app, &caller, &id, "file_write", &sandbox);
    let part = app.sandboxes();
    let answer = async {
        let part = part?;
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        // Without a length it may become the largest.
        let _room = part.bounds.room(announced.unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES) * 2).await?;
        let asked: FileWrite = params::read_up_to(&headers, body, MAX_BODY_BYTES).await?;
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
        let written = call(&app, &caller, &sandbox, |to| async move {
            let whole = stream::iter([Ok::<_, std::io::Error>(content.clone())]);
            part.rpc.write_file(&to.target, to.call(), &place(&to, path), mode, Some(size), whole).await
        });
        written.await.map(|()| path.to_owned())
    };
    let answer = answer.await;
    let operation = match &answer {
        Ok(path) => {
            tell_of_file(&app, &caller, &sandbox, "file.written", path);
            operation.on(path)
        }
        Err(_) => operation,
    };
    respond(operation.end(answer.map(|_| Outcome::new("written"))).await, &id)
}

/// Write a file from the body as it is
#[utoipa::path(put, path = "/api/v1/sandboxes/{id}/files", operation_id = "upload_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query), ("mode" = Option<String>, Query, description = "octal, default 0644")),
    request_body(content = String, content_type = "application/octet-stream"), security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "written")))]
pub async fn upload(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let operation = Operation::new(&app, &caller, &id, "file_write", &sandbox);
    let answer = async {
        let part = app.sandboxes()?;
        let params = Params::of(&uri)?;
        let path = params.required("path")?;
        let _open = part.bounds.place(&caller.home())?;
        let to = reach(&app, &caller, &sandbox).await?;
        let size = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let mode = params.text("mode").unwrap_or_default();
        // The body can be read once only, so that a lease that has just lapsed is a refusal here.
        let content = body.into_data_stream();
        let written = part.rpc.write_file(&to.target, to.call(), &place(&to, path), mode, size, content).await;
        written.map_err(fault)
    };
    let answer = answer.await;
    let path = Params::of(&uri).ok().and_then(|params| params.text("path").map(ToOwned::to_owned)).unwrap_or_default();
    if answer.is_ok() {
        tell_of_file(&app, &caller, &sandbox, "file.written", &path);
    }
    respond(operation.on(&path).end(answer.map(|()| Outcome::new("written"))).await, &id)
}

/// Read a file
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files", operation_id = "read_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query), ("Range" = Option<String>, Header, description = "one range of bytes")), security(("api_key" = ["read"])),
    responses((status = 200, description = "The content", content_type = "application/octet-stream"),
              (status = 206, description = "A part of the content", content_type = "application/octet-stream"),
              (status = 416, body = SandboxError, description = "the file is shorter")))]
pub async fn read(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let params = match Params::of(&uri) {
        Ok(params) => params,
        Err(fault) => return refuse(fault, &id),
    };
    let path = params.text("path").unwrap_or_default().to_owned();
    let operation = Operation::new(&app, &caller, &id, "file_read", &sandbox).on(&path);
    let answer = async {
        let part = app.sandboxes()?;
        let path = params.required("path")?;
        let open = part.bounds.place(&caller.home())?;
        let content = call(&app, &caller, &sandbox, |to| async move {
            part.rpc.read_file(&to.target, to.call(), &place(&to, path)).await
        });
        Ok((content.await?, open))
    };
    match operation.end(answer.await).await {
        Err(fault) => refuse(fault, &id),
        Ok((content, open)) => {
            tell_of_file(&app, &caller, &sandbox, "file.read", &path);
            send(content, open, &headers, &id)
        }
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

/// Delete a file or a folder
#[utoipa::path(delete, path = "/api/v1/sandboxes/{id}/files", operation_id = "delete_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query), ("recursive" = Option<bool>, Query)), security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "deleted")))]
pub async fn delete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    uri: Uri,
) -> Response {
    let (operation, params) = match begin(&app, &caller, &id, "file_delete", &sandbox, &uri, "path") {
        Ok(begun) => begun,
        Err(fault) => return refuse(fault, &id),
    };
    let answer = async {
        let part = app.sandboxes()?;
        let (path, recursive) = (params.required("path")?, params.flag("recursive")?.unwrap_or_default());
        let deleted = call(&app, &caller, &sandbox, |to| async move {
            let wire::FilePathParams { sandbox_id, provider, runtime_id, path } = place(&to, path);
            let params = wire::FileDeleteParams { sandbox_id, provider, runtime_id, path, recursive };
            part.rpc.file_delete(&to.target, to.call(), &params).await
        });
        deleted.await.map(|()| Outcome::new("deleted"))
    };
    respond(operation.end(answer.await).await, &id)
}

/// An operation on what a parameter names.
fn begin(
    app: &App,
    caller: &crate::access::caller::Caller,
    id: &RequestId,
    action: &str,
    sandbox: &str,
    uri: &Uri,
    name: &str,
) -> Result<(Operation, Params), Fault> {
    let params = Params::of(uri)?;
    let operation = Operation::new(app, caller, id, action, sandbox).on(params.text(name).unwrap_or_default());
    Ok((operation, params))
}

/// List a folder
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/list", operation_id = "list_sandbox_files", tag = "sandboxes",
    params(("id" = String, Path), ("path" = Option<String>, Query, description = "default /")), security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<FileInfo>, description = "The files, by path")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    uri: Uri,
) -> Response {
    let (operation, params) = match begin(&app, &caller, &id, "file_list", &sandbox, &uri, "path") {
        Ok(begun) => begun,
        Err(fault) => return refuse(fault, &id),
    };
    let answer = async {
        let part = app.sandboxes()?;
        let path = params.text("path").unwrap_or("/");
        let files = call(&app, &caller, &sandbox, |to| async move {
            part.rpc.file_list(&to.target, to.call(), &place(&to, path)).await
        });
        Ok(files.await?.into_iter().map(FileInfo::from).collect::<Vec<_>>())
    };
    respond(operation.end(answer.await).await, &id)
}

/// Show a file
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/stat", operation_id = "stat_sandbox_file", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Query)), security(("api_key" = ["read"])),
    responses((status = 200, body = FileInfo, description = "The file")))]
pub async fn stat(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    uri: Uri,
) -> Response {
    let (operation, params) = match begin(&app, &caller, &id, "file_stat", &sandbox, &uri, "path") {
        Ok(begun) => begun,
        Err(fault) => return refuse(fault, &id),
    };
    let answer = async {
        let part = app.sandboxes()?;
        let path = params.required("path")?;
        let file = call(&app, &caller, &sandbox, |to| async move {
            part.rpc.file_stat(&to.target, to.call(), &place(&to, path)).await
        });
        file.await.map(FileInfo::from)
    };
    respond(operation.end(answer.await).await, &id)
}

/// Find files by pattern
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/files/glob", operation_id = "glob_sandbox_files", tag = "sandboxes",
    params(("id" = String, Path), ("pattern" = String, Query)), security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<String>, description = "The paths")))]
pub async fn glob(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    uri: Uri,
) -> Response {
    let (operation, params) = match begin(&app, &caller, &id, "file_glob", &sandbox, &uri, "pattern") {
        Ok(begun) => begun,
        Err(fault) => return refuse(fault, &id),
    };
    let answer = async {
        let part = app.sandboxes()?;
        let pattern = params.required("pattern")?;
        let found = call(&app, &caller, &sandbox, |to| async move {
            let wire::TargetParams { sandbox_id, provider, runtime_id } = to.runtime.clone();
            let params = wire::FileGlobParams { sandbox_id, provider, runtime_id, pattern: pattern.to_owned() };
            part.rpc.file_glob(&to.target, to.call(), &params).await
        });
        found.await
    };
    respond(operation.end(answer.await).await, &id)
}

/// Move a file
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/move", operation_id = "move_sandbox_file", tag = "sandboxes", params(("id" = String, Path)), request_body = FileMove, security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "moved")))]
pub async fn rename(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let asked: FileMove = match params::read(&headers, body).await {
        Ok(asked) => asked,
        Err(fault) => return refuse(fault, &id),
    };
    let operation = Operation::new(&app, &caller, &id, "file_move", &sandbox).on(&asked.old_path);
    let operation = operation.detail(format!("to {}", asked.new_path));
    let answer = async {
        let part = app.sandboxes()?;
        let (old_path, new_path) = (given(&asked.old_path, "old_path")?, given(&asked.new_path, "new_path")?);
        let moved = call(&app, &caller, &sandbox, |to| async move {
            let wire::TargetParams { sandbox_id, provider, runtime_id } = to.runtime.clone();
            let (old_path, new_path) = (old_path.to_owned(), new_path.to_owned());
            let params = wire::FileMoveParams { sandbox_id, provider, runtime_id, old_path, new_path };
            part.rpc.file_move(&to.target, to.call(), &params).await
        });
        moved.await.map(|()| Outcome::new("moved"))
    };
    respond(operation.end(answer.await).await, &id)
}

/// Change the mode of a file
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/files/chmod", operation_id = "chmod_sandbox_file", tag = "sandboxes", params(("id" = String, Path)), request_body = FileChmod, security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "chmod applied")))]
pub async fn chmod(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let asked: FileChmod = match params::read(&headers, body).await {
        Ok(asked) => asked,
        Err(fault) => return refuse(fault, &id),
    };
    let operation = Operation::new(&app, &caller, &id, "file_chmod", &sandbox).on(&asked.path);
    let operation = operation.detail(format!("mode {}", asked.mode));
    let answer = async {
        let part = app.sandboxes()?;
        let (path, mode) = (given(&asked.path, "path")?, given(&asked.mode, "mode")?);
        let changed = call(&app, &caller, &sandbox, |to| async move {
            let wire::FilePathParams { sandbox_id, provider, runtime_id, path } = place(&to, path);
            let params = wire::FileChmodParams { sandbox_id, provider, runtime_id, path, mode: mode.to_owned() };
            part.rpc.file_chmod(&to.target, to.call(), &params).await
        });
        changed.await.map(|()| Outcome::new("chmod applied"))
    };
    respond(operation.end(answer.await).await, &id)
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
