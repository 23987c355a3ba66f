//! Event streams end with their key, and one tenant does not take the places of others.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use crate::cases;
use crate::harness::{SOON, Server};
use crate::identity::people::{ADMIN, Header, delete, made, with_users};

cases!(
    Server,
    on_sqlite: [a_tenant_has_its_share_of_streams],
    on_both_stores: [a_stream_ends_with_its_key],
);

async fn watch(server: &Server, who: Header<'_>) -> reqwest::Response {
    let request = reqwest::Client::new().get(format!("{}/api/v1/events", server.url)).header(who.0, who.1);
    request.send().await.unwrap()
}

/// How long a stream goes on.
async fn ends(mut stream: reqwest::Response) -> Duration {
    let started = Instant::now();
    let ended = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(SOON, ended).await.expect("the stream goes on");
    started.elapsed()
}

async fn a_stream_ends_with_its_key(server: Server) {
    with_users(&server);
    let revoked = made(&server, json!({"tenant": "acme"})).await;
    let expiring = made(&server, json!({"tenant": "acme", "expires_in": "4s"})).await;
    let kept = watch(&server, ADMIN).await;
    let (first, second) = (watch(&server, revoked.header()).await, watch(&server, expiring.header()).await);
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    delete(&server, &[ADMIN], &format!("/api/v1/admin/api-keys/{}", revoked.id)).await.ok();
    let (first, second) = tokio::join!(ends(first), ends(second));
    // 5 s are promised; the rest is for a machine that does other things too.
    assert!(first < Duration::from_secs(15) && second < Duration::from_secs(20), "{first:?} {second:?}");
    let mut kept = kept;
    let quiet = tokio::time::timeout(Duration::from_secs(3), async { while let Ok(Some(_)) = kept.chunk().await {} });
    assert!(quiet.await.is_err(), "a stream of a valid key goes on");
}

async fn a_tenant_has_its_share_of_streams(server: Server) {
    with_users(&server);
    let (hostile, honest) =
        (made(&server, json!({"tenant": "evil"})).await, made(&server, json!({"tenant": "acme"})).await);
    let mut open = Vec::new();
    let refused = loop {
        let stream = watch(&server, hostile.header()).await;
        if stream.status().as_u16() != 200 {
            break stream;
        }
        open.push(stream);
        assert!(open.len() < 200, "a key may open any number of streams");
    };
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"5".parse().unwrap()));
    let body: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(body["error"], "tenant_limit", "{body}");
    assert_eq!(watch(&server, honest.header()).await.status().as_u16(), 200);
    let gauge = server.call(Method::GET, "/metrics", &[ADMIN], None).await.body;
    assert!(gauge.as_str().unwrap().lines().any(|line| line.starts_with("tenure_event_streams ")), "{gauge}");
}
