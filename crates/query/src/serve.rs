//! The listener: HTTP/1 on a Unix socket that only its owner may open, or on TCP with a token.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use subtle::ConstantTimeEq;
use tenure_contract::query::process::{ASK_BYTES, Ask, Failure, Frame, HEALTH_PATH, PATH};
use tokio::net::{TcpListener, UnixListener};

use crate::failure::failed;
use crate::run::Runner;

/// What callers show on TCP.
#[derive(Clone)]
pub struct Token(pub String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(***)")
    }
}

#[derive(Debug, Clone)]
struct Service {
    runner: Arc<Runner>,
    token: Option<Token>,
}

pub fn router(runner: Arc<Runner>, token: Option<Token>) -> Router {
    Router::new()
        .route(PATH, post(query))
        .route(HEALTH_PATH, get(|| async { "ok" }))
        .with_state(Service { runner, token })
}

/// Listens where only the owner of this process may connect.
pub async fn on_socket(path: &Path, runner: Arc<Runner>) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    axum::serve(listener, router(runner, None)).await
}

pub async fn on_tcp(address: SocketAddr, token: Token, runner: Arc<Runner>) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    axum::serve(listener, router(runner, Some(token))).await
}

async fn query(State(service): State<Service>, headers: HeaderMap, body: Body) -> Response {
    if !service.lets_in(&headers) {
        return (StatusCode::UNAUTHORIZED, "the token is missing or wrong").into_response();
    }
    let Ok(body) = to_bytes(body, ASK_BYTES).await else {
        return refused(StatusCode::PAYLOAD_TOO_LARGE, "the request is larger than a query process takes");
    };
    let Ok(ask) = serde_json::from_slice::<Ask>(&body) else {
        return refused(
            StatusCode::BAD_REQUEST,
            "the request cannot be read: is the query process of the same version?",
        );
    };
    let frames = service.runner.start(ask);
    let frames = stream::unfold(frames, async |mut frames| {
        let frame = frames.recv().await?;
        Some((Ok::<Bytes, io::Error>(frame), frames))
    });
    Body::from_stream(frames).into_response()
}

fn refused(status: StatusCode, message: &str) -> Response {
    let frame: Frame<Vec<u8>> = Frame::Failed(failed(Failure::MalformedRequest, message));
    (status, frame.encode()).into_response()
}

impl Service {
    fn lets_in(&self, headers: &HeaderMap) -> bool {
        let Some(Token(token)) = &self.token else { return true };
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|sent| sent.strip_prefix("Bearer "));
        sent.is_some_and(|sent| sent.as_bytes().ct_eq(token.as_bytes()).into())
    }
}
