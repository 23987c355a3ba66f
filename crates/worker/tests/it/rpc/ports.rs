//! The proxy to ports in a sandbox.

use axum::Router;
use axum::extract::Request;
use axum::extract::ws::{Message as ServerMessage, WebSocketUpgrade};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::kit::*;

/// A server on this machine. Sandboxes of the provider `process` share its ports.
async fn server() -> u16 {
    let echo = async |request: Request| {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let mut names: Vec<&str> = parts.headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        let seen = json!({"verb": parts.method.as_str(), "path": parts.uri.to_string(), "headers": names,
            "body": String::from_utf8_lossy(&body)});
        ([("x-from", "sandbox"), ("connection", "x-hop"), ("x-hop", "1")], seen.to_string()).into_response()
    };
    let socket = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(|mut socket| async move {
            while let Some(Ok(ServerMessage::Text(text))) = socket.next().await {
                let answer = format!("echo {}", text.as_str());
                socket.send(ServerMessage::Text(answer.into())).await.unwrap();
            }
        })
    };
    let app = Router::new().route("/socket", get(socket)).fallback(any(echo));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    port
}

#[tokio::test]
async fn a_request_reaches_the_port_without_credentials() {
    let (worker, port) = (Worker::start().await, server().await);
    let runtime = worker.spawn("sb-1").await;
    let url = worker.url(&format!("/rpc/proxy/{runtime}/{port}/a/b%20c?q=1"));
    let request = worker.signed(worker.http.patch(url));
    let request = request.header("cookie", "s=1").header("x-api-key", "k").header("x-kept", "1").bearer_auth("secret");
    let response = request.body("hello").send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-from"], "sandbox");
    let (_, seen) = answer(response).await;
    assert_eq!(
        (&seen["verb"], &seen["path"], &seen["body"]),
        (&json!("PATCH"), &json!("/a/b%20c?q=1"), &json!("hello"))
    );
    let names: Vec<&str> = seen["headers"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.contains(&"x-kept"));
    for name in ["authorization", "cookie", "x-api-key", "x-worker-id", "x-worker-token"] {
        assert!(!names.contains(&name), "{name} reached the sandbox");
    }
}

#[tokio::test]
async fn a_web_socket_goes_through() {
    let (worker, port) = (Worker::start().await, server().await);
    let runtime = worker.spawn("sb-1").await;
    let url = format!("ws://{}/rpc/proxy/{runtime}/{port}/socket", worker.address);
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("x-worker-id", WORKER.parse().unwrap());
    request.headers_mut().insert("x-worker-token", TOKEN.parse().unwrap());
    let stream = TcpStream::connect(worker.address).await.unwrap();
    let (mut socket, response) = client_async(request, stream).await.unwrap();
    assert_eq!(response.status(), 101);
    for text in ["one", "two"] {
        socket.send(Message::text(text)).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(format!("echo {text}")));
    }
}

#[tokio::test]
async fn a_port_without_a_server_and_a_strange_target_are_told_apart() {
    let worker = Worker::start().await;
    let runtime = worker.spawn("sb-1").await;
    // Bound and not listening: nobody else gets it meanwhile.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = bound.local_addr().unwrap().port();
    for (path, status, code) in [
        (format!("{runtime}/{closed}/"), 502, "provider_unavailable"),
        (format!("{runtime}/0/"), 400, "invalid"),
        (format!("{runtime}/http/"), 400, "invalid"),
        ("rt-none/80/".to_owned(), 404, "not_found"),
    ] {
        let response = worker.signed(worker.http.get(worker.url(&format!("/rpc/proxy/{path}")))).send().await.unwrap();
        assert_eq!(response.headers()["x-worker-error"], code, "{path}");
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
}
