//! A server without keys, and web pages that a browser on its machine shows.

use reqwest::Method;
use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Answer, Server};
use crate::identity::people::{USER, set, with_users};

cases!(
    Server,
    on_sqlite: [
        other_names_of_this_machine_are_refused,
        pages_of_other_origins_change_nothing,
        what_a_form_can_send_changes_nothing,
        a_server_with_keys_has_no_such_rules,
    ],
);

const TASKS: &str = "/api/v1/tasks";

async fn submit(server: &Server, headers: &[(&str, &str)]) -> Answer {
    server.call(Method::POST, TASKS, headers, Some(&json!({"queue": "q", "operator": "op"}))).await
}

fn is_refused(answer: &Answer) -> bool {
    (answer.status.as_u16(), &answer.body["error"]) == (403, &json!("origin_forbidden"))
}

async fn other_names_of_this_machine_are_refused(server: Server) {
    for host in ["evil.example", "evil.example:7423", "127.0.0.1.evil.example", "10.0.0.1"] {
        for (method, path) in [(Method::GET, TASKS), (Method::GET, "/api/v1/events"), (Method::GET, "/metrics")] {
            let answer = server.call(method, path, &[("Host", host)], None).await;
            assert!(is_refused(&answer), "{host} {path}: {}", answer.status);
        }
        assert!(is_refused(&submit(&server, &[("Host", host)]).await), "{host}");
        // What needs no credential at all is no secret.
        assert_eq!(server.call(Method::GET, "/api/v1/live", &[("Host", host)], None).await.status.as_u16(), 200);
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:7423", "tenure.localhost"] {
        assert_eq!(submit(&server, &[("Host", host)]).await.status.as_u16(), 201, "{host}");
    }
    set(&server, |access| access.allowed_hosts = vec!["tenure.test".to_owned()]);
    assert_eq!(submit(&server, &[("Host", "tenure.test:7423")]).await.status.as_u16(), 201);
}

async fn pages_of_other_origins_change_nothing(server: Server) {
    for header in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://localhost:1"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        assert!(is_refused(&submit(&server, &[header]).await), "{header:?}");
        let delete = server.call(Method::DELETE, "/api/v1/queues/q", &[header], None).await;
        assert!(is_refused(&delete), "{header:?}");
    }
    let own = server.url.clone();
    for header in [("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "none")] {
        assert_eq!(submit(&server, &[header]).await.status.as_u16(), 201, "{header:?}");
    }
    set(&server, |access| access.cors_allowed_origins = vec!["https://app.example".to_owned()]);
    assert_eq!(submit(&server, &[("Origin", "https://app.example")]).await.status.as_u16(), 201);
}

async fn what_a_form_can_send_changes_nothing(server: Server) {
    let client = reqwest::Client::new();
    let url = format!("{}/api/v1/tasks/018c385a-9fb1-9509-0e89-33fe3b7b1aa9/cancel", server.url);
    let send = async |kind: &str, more: &[(&str, &str)]| {
        let mut request = client.post(&url).header("Content-Type", kind).body("{}");
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        Answer::of(request.send().await.unwrap()).await
    };
    for kind in [
        "text/plain",
        "text/plain; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ] {
        assert!(is_refused(&send(kind, &[]).await), "{kind}");
        // A header that a page cannot send shows that it is none.
        assert_eq!(send(kind, &[("X-Requested-With", "curl")]).await.status.as_u16(), 404, "{kind}");
    }
    assert_eq!(send("application/json", &[]).await.body["error"], Value::from("task_not_found"));
}

async fn a_server_with_keys_has_no_such_rules(server: Server) {
    with_users(&server);
    for header in [("Host", "evil.example"), ("Origin", "https://evil.example")] {
        assert_eq!(submit(&server, &[USER, header]).await.status.as_u16(), 201, "{header:?}");
        assert_eq!(submit(&server, &[header]).await.status.as_u16(), 401, "{header:?}");
    }
}
