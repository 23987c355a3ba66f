//! Connections: those of one address, and those that nobody reads.

use std::time::Duration;

use serde_json::json;
use tenure_testkit::{RawClient, wait_until};

use crate::cases;
use crate::harness::{SOON, Server};

cases!(
    Server,
    on_sqlite: [
        an_address_has_so_many_connections_and_no_more,
        proxies_have_as_many_connections_as_they_need,
        who_sends_requests_and_reads_no_answers_is_disconnected,
    ],
);

const LIVE: &str = "GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n";

async fn is_served(client: &mut RawClient) -> bool {
    if client.send(LIVE).await.is_err() {
        return false;
    }
    let mut text = String::new();
    while !text.contains("\"alive\"") {
        let answer = client.read_for(Duration::from_millis(200)).await;
        text.push_str(&answer.text);
        if answer.closed {
            break;
        }
    }
    text.starts_with("HTTP/1.1 200 ")
}

async fn an_address_has_so_many_connections_and_no_more(server: Server) {
    let server = server.restart_with(|config, _| config.max_connections_per_address = 3).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = RawClient::connect(&server.url).await;
        assert!(is_served(&mut client).await);
        open.push(client);
    }
    let mut more = RawClient::connect(&server.url).await;
    assert!(!is_served(&mut more).await, "it is closed");
    open.pop();
    wait_until("there is a place again", SOON, async || {
        let mut client = RawClient::connect(&server.url).await;
        is_served(&mut client).await
    })
    .await;
}

async fn proxies_have_as_many_connections_as_they_need(server: Server) {
    let server = server
        .restart_with(|config, _| {
            config.max_connections_per_address = 1;
            config.access.update(|access| access.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()]);
        })
        .await;
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut client = RawClient::connect(&server.url).await;
        assert!(is_served(&mut client).await);
        open.push(client);
    }
}

async fn who_sends_requests_and_reads_no_answers_is_disconnected(server: Server) {
    let server = server
        .restart_with(|config, _| {
            config.max_connections = 4;
            config.write_timeout = Duration::from_secs(2);
        })
        .await;
    // Answers that are larger than what the system keeps for a socket that nobody reads.
    let request = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    let mut hostile = Vec::new();
    for _ in 0..4 {
        let mut client = RawClient::connect(&server.url).await;
        client.send(&request).await.unwrap();
        hostile.push(client);
    }
    // All places are taken until they are thrown out.
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({})).await.ok();
    drop(hostile);
}
