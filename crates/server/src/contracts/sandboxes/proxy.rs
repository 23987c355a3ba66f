//! HTTP and WebSocket to a port of a sandbox, below the path of the sandbox or by the name of the port.
//!
//! What answers is code that somebody runs in a sandbox. It never sees who calls: credentials and cookies stay here. On the
//! address of the API its answers set no cookies, and a browser treats them as a page of nobody.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::Response;
use hyper_util::rt::TokioIo;
use tenure_contract::sandboxes::SandboxError;
use tenure_rpc::{Forwarded, Port};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::errors::refuse;
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::front::ByHost;
use crate::http::{Verbatim, any_method};
use crate::request::RequestId;
use crate::sandboxes::audit::Operation;
use crate::sandboxes::bounds::Place;
use crate::sandboxes::calls::{fault, reach};
use crate::state::App;

/// They say who calls. The worker removes most of them once more.
const CREDENTIALS: [&str; 12] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
    "x-admin-api-key",
    "x-user-id",
    "x-tenant-id",
    "x-worker-id",
    "x-worker-token",
    "x-worker-bootstrap-key",
    "x-trace-worker-token",
    "idempotency-key",
];

/// What an answer must not do to the origin of the API.
const OF_ORIGIN: [&str; 6] =
    ["set-cookie", "set-cookie2", "clear-site-data", "service-worker-allowed", "strict-transport-security", "alt-svc"];

/// A page without an origin: its scripts run, and reach nothing of the API.
const SANDBOXED: HeaderValue = HeaderValue::from_static("sandbox allow-scripts allow-forms");

/// An upgraded connection on which nothing moves for this long is closed.
const IDLE: Duration = Duration::from_secs(10 * 60);
const COPY_BYTES: usize = 16 << 10;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/sandboxes/{id}/proxy/{port}", any_method(root))
        .route("/api/v1/sandboxes/{id}/proxy/{port}/{*path}", any_method(below))
}

/// Call a port of a sandbox
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/proxy/{port}", operation_id = "proxy_sandbox_root", tag = "sandboxes", params(("id" = String, Path), ("port" = u16, Path)), security(("api_key" = ["api"])),
    responses((status = 200, description = "The answer of the port"), (status = 502, body = SandboxError, description = "nothing answers there")))]
pub async fn root(
    state: State<App>,
    id: Extension<RequestId>,
    caller: User,
    Path((sandbox, port)): Path<(String, String)>,
    request: Request,
) -> Response {
    answer(state, id, caller, sandbox, port, request).await
}

/// Call a port of a sandbox, with any method and below any path
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/proxy/{port}/{path}", operation_id = "proxy_sandbox", tag = "sandboxes", params(("id" = String, Path), ("port" = u16, Path), ("path" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 200, description = "The answer of the port"), (status = 502, body = SandboxError, description = "nothing answers there")))]
pub async fn below(
    state: State<App>,
    id: Extension<RequestId>,
    caller: User,
    Path((sandbox, port, _)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    answer(state, id, caller, sandbox, port, request).await
}

async fn answer(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    sandbox: String,
    port: String,
    request: Request,
) -> Response {
    let by_host = request.extensions().get::<ByHost>().is_some();
    let operation = Operation::new(&app, &caller, &id, "proxy", &sandbox).on(&port);
    match forward(&app, &caller, &sandbox, &port, request, by_host).await {
        Ok(response) => {
            operation.end_soon(None);
            response
        }
        Err(fault) => match operation.end::<()>(Err(fault)).await {
            Err(fault) => refuse(fault, &id),
            Ok(()) => refuse(Fault::Internal, &id),
        },
    }
}

async fn forward(
    app: &App,
    caller: &Caller,
    sandbox: &str,
    port: &str,
    mut request: Request,
    by_host: bool,
) -> Result<Response, Fault> {
    let part = app.sandboxes()?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| Fault::bad("port", "the port must be a number from 1 to 65535"))?;
    if !part.offer().preview.allows(port) {
        let message = format!("port {port} cannot be reached from outside: see server.preview_ports");
        return Err(SandboxFault::with_reason(SandboxFaultKind::Denied, message, "preview_ports"));
    }
    let to = reach(app, caller, sandbox).await?;
    // Names of ports may be open to everybody: they do not use up what the tenant has.
    let counted = if by_host { "preview".into() } else { caller.share() };
    let open = part.bounds.place(&counted)?;
    let upgrading = wants_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
    *request.uri_mut() = inner(request.uri())?;
    strip(request.headers_mut(), &CREDENTIALS);
    let runtime_id = to.runtime.runtime_id.clone();
    let port = Port { runtime_id: &runtime_id, port };
    match part.rpc.proxy(&to.target, to.call(), port, request).await {
        Ok(Forwarded::Answer(answer)) => {
            let (mut parts, content) = answer.into_parts();
            contain(&mut parts.headers, by_host);
            let mut response = Response::from_parts(parts, Body::new(Counted { content, _open: open }));
            if by_host {
                response.extensions_mut().insert(Verbatim);
            }
            Ok(response)
        }
        Ok(Forwarded::Upgraded(mut parts, inside)) => {
            contain(&mut parts.headers, by_host);
            let Some(outside) = upgrading else { return Err(Fault::Internal) };
            let stopping = app.clone();
            tokio::spawn(async move {
                let Ok(outside) = outside.await else { return };
                tokio::select! {
                    () = join(TokioIo::new(outside), inside) => {}
                    () = stopping.engine.stopped() => {}
                }
                drop(open);
            });
            let mut response = Response::from_parts(parts, Body::empty());
            response.extensions_mut().insert(Verbatim);
            Ok(response)
        }
        Err(error) => Err(no_answer(error)),
    }
}

/// Nothing listens at the port: the sandbox is well, and so is its worker.
fn no_answer(error: tenure_rpc::Error) -> Fault {
    match &error {
        tenure_rpc::Error::Failed { code: tenure_contract::worker_rpc::Code::ProviderUnavailable, message } => {
            SandboxFault::fault(SandboxFaultKind::NoAnswer, message.clone())
        }
        _ => fault(error),
    }
}

/// The path that the port sees, as it was sent.
fn inner(uri: &Uri) -> Result<Uri, Fault> {
    let whole = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let (path, query) = whole.split_once('?').map_or((whole, None), |(path, query)| (path, Some(query)));
    // "", "api", "v1", "sandboxes", id, "proxy", port, and then the path.
    let rest = path.splitn(8, '/').nth(7).unwrap_or_default();
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{rest}{query}").parse().map_err(|_| Fault::malformed("the path cannot be passed on"))
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case("upgrade"))
        && headers.contains_key(header::UPGRADE)
}

fn strip(headers: &mut HeaderMap, names: &[&'static str]) {
    for name in names {
        headers.remove(HeaderName::from_static(name));
    }
}

/// What an answer may say. By the name of the port it comes from an origin of its own.
fn contain(headers: &mut HeaderMap, by_host: bool) {
    if by_host {
        return;
    }
    strip(headers, &OF_ORIGIN);
    headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOXED);
}

/// The content of an answer, counted as a stream until it ends.
struct Counted {
    content: tenure_rpc::Content,
    _open: Place,
}

impl hyper::body::Body for Counted {
    type Data = bytes::Bytes;
    type Error = tenure_rpc::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, tenure_rpc::Error>>> {
        std::pin::Pin::new(&mut self.content).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.content.size_hint()
    }
}

/// Passes bytes on in both directions until one side ends, or nothing moves for long.
async fn join(outside: impl AsyncRead + AsyncWrite, inside: impl AsyncRead + AsyncWrite) {
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    let (mut from_inside, mut to_inside) = tokio::io::split(inside);
    let moved = tokio::sync::Notify::new();
    let watch = async { while tokio::time::timeout(IDLE, moved.notified()).await.is_ok() {} };
    tokio::select! {
        _ = copy(&mut from_outside, &mut to_inside, &moved) => {}
        _ = copy(&mut from_inside, &mut to_outside, &moved) => {}
        () = watch => {}
    }
    drop(to_outside.shutdown().await);
    drop(to_inside.shutdown().await);
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moved: &tokio::sync::Notify,
) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
        moved.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_sees_its_own_path_as_it_was_sent() {
        for (sent, expected) in [
            ("/api/v1/sandboxes/sb-0a1b2c3d/proxy/8080", "/"),
            ("/api/v1/sandboxes/sb-0a1b2c3d/proxy/8080/", "/"),
            ("/api/v1/sandboxes/sb-0a1b2c3d/proxy/8080/a/../b%2Fc?x=1&y=%20", "/a/../b%2Fc?x=1&y=%20"),
            ("/api/v1/sandboxes/sb-0a1b2c3d/proxy/8080//a", "//a"),
            ("/api/v1/sandboxes/sb-0a1b2c3d/proxy/8080?q", "/?q"),
        ] {
            assert_eq!(inner(&sent.parse().unwrap()).unwrap().to_string(), expected, "{sent}");
        }
    }

    #[test]
    fn answers_on_the_address_of_the_api_set_no_cookies_and_have_no_origin() {
        let answered = || {
            let mut headers = HeaderMap::new();
            headers.insert("set-cookie", "a=b".parse().unwrap());
            headers.insert("content-security-policy", "default-src *".parse().unwrap());
            headers.insert("service-worker-allowed", "/".parse().unwrap());
            headers.insert("content-type", "text/html".parse().unwrap());
            headers
        };
        let mut headers = answered();
        contain(&mut headers, false);
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["content-security-policy"], "sandbox allow-scripts allow-forms");
        let mut headers = answered();
        contain(&mut headers, true);
        assert_eq!(headers, answered());
    }
}
