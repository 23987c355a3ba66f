//! Ports of sandboxes, below the path of the sandbox and by name.

use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_testkit::wait_until;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::kit::Plane;
use crate::cases;
use crate::harness::{Home, SOON};

cases!(
    Plane,
    on_sqlite: [
        a_port_answers_and_never_sees_who_calls,
        a_port_is_reached_by_its_name,
        ports_that_are_closed_or_not_allowed_are_refused,
    ],
);

/// A server that answers with what it was sent, on a port of this machine: the provider `process` shares its network.
async fn echo() -> (u16, tokio::task::JoinHandle<()>) {
    use axum::extract::ws::{Message as Inner, WebSocketUpgrade};
    use axum::routing::any;
    let answer = async |request: axum::extract::Request| {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let headers: serde_json::Map<String, Value> =
            parts.headers.iter().map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap()))).collect();
        let told = json!({"method": parts.method.as_str(), "uri": parts.uri.to_string(), "headers": headers,
            "body": String::from_utf8_lossy(&body)});
        ([("set-cookie", "evil=1"), ("content-security-policy", "default-src *"), ("x-own", "1")], axum::Json(told))
    };
    let upgrade = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.recv().await {
                if let Inner::Text(text) = message {
                    let _ = socket.send(Inner::Text(format!("echo {text}").into())).await;
                }
            }
        })
    };
    let router = axum::Router::new().route("/ws", any(upgrade)).fallback(answer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }))
}

const SECRETS: [(&str, &str); 6] = [
    ("Cookie", "session=secret"),
    ("X-API-Key", "secret"),
    ("X-Admin-API-Key", "secret"),
    ("Authorization", "Bearer secret"),
    ("X-User-ID", "secret"),
    ("X-Plain", "seen"),
];

async fn a_port_answers_and_never_sees_who_calls(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let (port, _server) = echo().await;
    // Who calls with X-User-ID sees its own sandboxes only.
    let headers: Vec<_> = SECRETS.iter().filter(|(name, _)| *name != "X-User-ID").copied().collect();
    let path = format!("/api/v1/sandboxes/{sandbox}/proxy/{port}/a/../b%2Fc/?x=1");
    for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE] {
        let answer = plane.server.call(method.clone(), &path, &headers, None).await;
        assert_eq!(answer.header("content-security-policy"), "sandbox allow-scripts allow-forms");
        assert_eq!((answer.header("set-cookie"), answer.header("x-own")), ("", "1"));
        let told = answer.ok();
        assert_eq!(told["method"], method.as_str());
        assert!(!told["headers"].to_string().contains("secret"), "{told}");
        assert_eq!(told["headers"]["x-plain"], "seen");
    }
    let posted = plane.server.call(Method::POST, &path, &[], Some(&json!({"a": 1}))).await.ok();
    assert_eq!((&posted["method"], &posted["body"]), (&json!("POST"), &json!("{\"a\":1}")));

    let host = plane.server.url.trim_start_matches("http://").to_owned();
    let request = format!("ws://{host}/api/v1/sandboxes/{sandbox}/proxy/{port}/ws").into_client_request().unwrap();
    let stream = tokio::net::TcpStream::connect(&host).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    socket.send(Message::text("hi")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("echo hi"));
    let audited = async || {
        let rows = plane.server.get("/api/v1/audit?action=proxy").await.ok();
        (rows.as_array().unwrap().len() >= 6).then_some(())
    };
    wait_until("every opening is in the audit", SOON, audited).await;
}

async fn a_port_is_reached_by_its_name(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let (port, _server) = echo().await;
    let name = format!("{port}-{sandbox}.localhost");
    let answer = plane.server.call(Method::GET, "/api/v1/sandboxes", &[("Host", &name)], None).await;
    // It is an origin of its own: what the port says about itself goes out as it is.
    assert_eq!((answer.header("set-cookie"), answer.header("content-security-policy")), ("evil=1", "default-src *"));
    assert_eq!(answer.header("x-frame-options"), "");
    assert_eq!(answer.ok()["uri"], "/api/v1/sandboxes");
    for (path, host) in [("/", name.as_str()), (&format!("/api/v1/sandboxes/{sandbox}/proxy/{port}/"), "localhost")] {
        let root = plane.server.call(Method::GET, path, &[("Host", host)], None).await.ok();
        assert_eq!(root["uri"], "/", "{path}");
    }
    let other = format!("{port}-sb-00000000.localhost");
    assert_eq!(plane.server.call(Method::GET, "/", &[("Host", &other)], None).await.status, 404);
    assert_eq!(plane.server.call(Method::GET, "/api/v1/live", &[("Host", "localhost")], None).await.status, 200);
}

async fn ports_that_are_closed_or_not_allowed_are_refused(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let traced = plane.server.call(Method::TRACE, &format!("/api/v1/sandboxes/{sandbox}/proxy/8080/"), &[], None).await;
    assert_eq!(traced.status, 405);
    let closed = tenure_testkit::Port::reserve();
    let at = |port: &str| format!("/api/v1/sandboxes/{sandbox}/proxy/{port}/x");
    let refused = plane.server.get(&at(&closed.number().to_string())).await.refused(502);
    assert_eq!(refused["code"], "UNAVAILABLE");
    let message = refused["message"].as_str().unwrap();
    assert_eq!(message.matches("nothing answers").count(), 1, "{message}");
    for (port, status) in [("80", 403), ("0", 400), ("65536", 400), ("x", 400), ("-1", 400)] {
        assert_eq!(plane.server.get(&at(port)).await.status.as_u16(), status, "{port}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_ports_need_a_key_unless_they_are_open() {
    for is_open in [false, true] {
        let plane = Plane::with(Home::Sqlite(tempfile::tempdir().unwrap()), |config| {
            config.sandboxes.as_mut().unwrap().offer.update(|offer| offer.preview.is_open = is_open);
        })
        .await;
        let sandbox = plane.sandbox().await;
        let (port, _server) = echo().await;
        plane.server.config.access.update(|access| {
            access.users.enabled = true;
            access.users.api_key = tenure_auth::Secret::new("the-key-of-a-user");
        });
        let name = format!("{port}-{sandbox}.localhost");
        let answer = plane.server.call(Method::GET, "/x", &[("Host", &name)], None).await;
        assert_eq!(answer.status.as_u16(), if is_open { 200 } else { 401 });
        let headers = [("Host", name.as_str()), ("X-API-Key", "the-key-of-a-user")];
        let told = plane.server.call(Method::GET, "/x", &headers, None).await.ok();
        assert!(told["headers"].get("x-api-key").is_none(), "{told}");
        // The path of the proxy needs a key in either case.
        let path = format!("/api/v1/sandboxes/{sandbox}/proxy/{port}/x");
        assert_eq!(plane.server.get(&path).await.status, 401);
    }
}
