//! What code in a sandbox reaches: the routes of tasks, and the object store that the control plane serves.
//!
//! The code connects to a port on the loopback of its sandbox, which leads here. Each request is read, judged by its path
//! and sent to the control plane by this process; nothing of the connection itself is passed on. Routes of workers
//! (`/internal/`) and of users (`/api/`) are not among the paths, however the path is written.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use reqwest::Url;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// The bucket of a local object store, which is the first part of the paths of its objects.
const BUCKET: &str = "tenure";
const TASK_PREFIX: &str = "/v1/task/";
/// The body of a request about the task. Objects may be larger.
const TASK_BODY_BYTES: usize = 17 << 20;
/// An answer that stands still for longer is broken off.
const SILENCE: Duration = Duration::from_secs(330);
/// Between two parties, or set anew by whoever sends on.
const NOT_PASSED_ON: [&str; 12] = [
    "connection",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "forwarded",
    "cookie",
    "content-length",
    "expect",
];
/// Credentials of workers, and what proxies say about a caller.
const NEVER_SENT: [&str; 3] = ["x-trace-worker-", "x-worker-", "x-forwarded-"];

/// It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Gateway {
    address: SocketAddr,
    task: AbortHandle,
}

#[derive(Clone)]
struct Upstream {
    http: reqwest::Client,
    server: Url,
}

impl Gateway {
    pub(super) async fn start(http: reqwest::Client, server: Url) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let app = Router::new().fallback(forward).with_state(Upstream { http, server });
        let task = tokio::spawn(async move { axum::serve(listener, app).await }).abort_handle();
        Ok(Self { address, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Task,
    Object,
}

/// `None` for a path that code in a sandbox has no business with.
fn kind(method: &Method, path: &str) -> Option<Kind> {
    if let Some(name) = path.strip_prefix(TASK_PREFIX) {
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        return (plain && matches!(*method, Method::GET | Method::POST)).then_some(Kind::Task);
    }
    let key = path.strip_prefix('/')?.strip_prefix(BUCKET)?;
    let known = matches!(*method, Method::GET | Method::HEAD | Method::PUT | Method::POST | Method::DELETE);
    (known && (key.is_empty() || key.starts_with('/'))).then_some(Kind::Object)
}

/// Where a request goes. An address that does not have the very path that was judged is not one.
fn target(server: &Url, path: &str, query: Option<&str>) -> Option<Url> {
    let base = server.path().trim_end_matches('/');
    let whole = format!("{base}{path}");
    let mut url = server.clone();
    url.set_path(&whole);
    url.set_query(query);
    url.set_fragment(None);
    (url.path() == whole).then_some(url)
}

async fn forward(State(upstream): State<Upstream>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let found = kind(&parts.method, parts.uri.path())
        .and_then(|kind| Some((kind, target(&upstream.server, parts.uri.path(), parts.uri.query())?)));
    let Some((kind, url)) = found else {
        let reason = "code in a sandbox reaches /v1/task/ and its object store, and nothing else\n";
        return (StatusCode::FORBIDDEN, reason).into_response();
    };
    let mut headers = passed_on(&parts.headers);
    let mut sent = upstream.http.request(parts.method, url);
    match kind {
        Kind::Task => {
            headers.remove(header::HOST);
            match http_body_util::Limited::new(body, TASK_BODY_BYTES).collect().await {
                Ok(body) => sent = sent.body(body.to_bytes()),
                Err(_) => return (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n").into_response(),
            }
        }
        Kind::Object => {
            // The signature of the request covers the host, and an upload without its length is not one.
            if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
                headers.insert(header::CONTENT_LENGTH, length.clone());
                sent = sent.body(reqwest::Body::wrap_stream(body.into_data_stream()));
            }
        }
    }
    match tokio::time::timeout(SILENCE, sent.headers(headers).send()).await {
        Ok(Ok(answer)) => answered(answer),
        Ok(Err(error)) => {
            tracing::debug!(error = %error.without_url(), "a request from a sandbox was not answered");
            (StatusCode::BAD_GATEWAY, "the control plane cannot be reached\n").into_response()
        }
        Err(_) => (StatusCode::GATEWAY_TIMEOUT, "the control plane did not answer in time\n").into_response(),
    }
}

fn is_passed_on(name: &HeaderName) -> bool {
    !NOT_PASSED_ON.contains(&name.as_str()) && !NEVER_SENT.iter().any(|start| name.as_str().starts_with(start))
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    headers.iter().filter(|(name, _)| is_passed_on(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn answered(answer: reqwest::Response) -> Response {
    let status = answer.status();
    let mut headers = passed_on(answer.headers());
    if let Some(length) = answer.headers().get(header::CONTENT_LENGTH) {
        headers.insert(header::CONTENT_LENGTH, length.clone());
    }
    let mut response = Body::from_stream(answer.bytes_stream()).into_response();
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_routes_of_tasks_and_objects_are_reached() {
        for (path, expected) in [
            ("/v1/task/complete", Some(Kind::Task)),
            ("/v1/task/buffer-publish", Some(Kind::Task)),
            ("/tenure", Some(Kind::Object)),
            ("/tenure/dataset/a.parquet", Some(Kind::Object)),
            ("/", None),
            ("/v1/task/", None),
            ("/v1/task/a/b", None),
            ("/v1/task/..", None),
            ("/v1/task/../../internal/task-claim", None),
            ("/v1/task/%2e%2e/%2e%2e/internal/task-claim", None),
            ("/v1/tasks/x/started", None),
            ("//v1/task/complete", None),
            ("/internal/task-claim", None),
            ("/internal/heartbeat", None),
            ("/INTERNAL/task-claim", None),
            ("/api/v1/dags", None),
            ("/metrics", None),
            ("/tenure-evil/x", None),
        ] {
            assert_eq!(kind(&Method::POST, path), expected, "{path}");
        }
        assert_eq!(kind(&Method::DELETE, "/v1/task/complete"), None);
        assert_eq!(kind(&Method::CONNECT, "/tenure/x"), None);
    }

    #[test]
    fn an_address_has_the_path_that_was_judged() {
        let server = Url::parse("https://plane.example/base/").unwrap();
        let url = target(&server, "/v1/task/query", Some("a=b")).unwrap();
        assert_eq!(url.as_str(), "https://plane.example/base/v1/task/query?a=b");
        for path in [
            "/tenure/../internal/task-claim",
            "/tenure/%2e%2e/internal/task-claim",
            "/tenure/.%2E/internal/task-claim",
            "/tenure/..\\internal/task-claim",
            "/tenure\\..\\internal",
            "/tenure/./x",
        ] {
            assert_eq!(target(&server, path, None), None, "{path}");
        }
    }

    #[test]
    fn credentials_of_workers_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for name in ["x-trace-worker-token", "x-worker-id", "x-worker-token", "x-forwarded-for", "cookie", "connection"]
        {
            headers.insert(HeaderName::from_static(name), "x".parse().unwrap());
        }
        headers.insert("x-trace-task-capability", "x".parse().unwrap());
        let passed: Vec<_> = passed_on(&headers).keys().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(passed, ["x-trace-task-capability"]);
    }
}
