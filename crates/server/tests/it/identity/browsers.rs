//! What browsers are told: which origins may call, and what an answer may be used for.

use reqwest::Method;
use serde_json::json;

use crate::cases;
use crate::harness::{Answer, Server, TOKEN};
use crate::identity::people::{USER, set, with_users};

cases!(
    Server,
    on_sqlite: [
        no_origin_is_allowed_by_default,
        an_origin_that_is_named_may_call_and_no_other,
        every_answer_has_the_headers_of_a_careful_server,
    ],
);

const TASKS: &str = "/api/v1/tasks";

async fn preflight(server: &Server, origin: &str, method: &str) -> Answer {
    let headers = [
        ("Origin", origin),
        ("Access-Control-Request-Method", method),
        ("Access-Control-Request-Headers", "x-api-key,content-type"),
    ];
    server.call(Method::OPTIONS, TASKS, &headers, None).await
}

async fn no_origin_is_allowed_by_default(server: Server) {
    with_users(&server);
    for origin in ["https://app.example.com", "http://localhost:3000", "null"] {
        for answer in [
            preflight(&server, origin, "POST").await,
            server.call(Method::GET, TASKS, &[USER, ("Origin", origin)], None).await,
            server.call(Method::GET, TASKS, &[("Origin", origin)], None).await,
        ] {
            assert_eq!(answer.header("access-control-allow-origin"), "", "{origin} {}", answer.status);
            assert_eq!(answer.header("access-control-allow-credentials"), "");
        }
    }
}

async fn an_origin_that_is_named_may_call_and_no_other(server: Server) {
    with_users(&server);
    let own = "https://app.example.com";
    set(&server, |access| access.cors_allowed_origins = vec![own.to_owned()]);
    for (origin, allowed) in [
        (own, own),
        ("https://app.example.com.evil.example", ""),
        ("https://app.example.com:8443", ""),
        ("http://app.example.com", ""),
        ("https://APP.example.com", ""),
        ("null", ""),
    ] {
        let preflight = preflight(&server, origin, "PUT").await;
        assert!(preflight.status.is_success());
        assert_eq!(preflight.header("access-control-allow-origin"), allowed, "{origin}");
        if !allowed.is_empty() {
            let methods = preflight.header("access-control-allow-methods").to_owned();
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
                assert!(methods.contains(method), "{methods}");
            }
            assert!(!methods.contains("TRACE"), "{methods}");
            let headers = preflight.header("access-control-allow-headers").to_lowercase();
            let mut listed: Vec<_> = headers.split(',').map(str::trim).collect();
            listed.sort_unstable();
            let mut expected = [
                "content-type",
                "x-api-key",
                "x-admin-api-key",
                "x-request-id",
                "x-user-id",
                "x-tenant-id",
                "authorization",
            ];
            expected.sort_unstable();
            assert_eq!(listed, expected);
            // Tokens of workers are none of a browser's.
            assert!(!headers.contains("worker") && !headers.contains('*'), "{headers}");
        }
        assert_eq!(preflight.header("access-control-allow-credentials"), "");
        let answer = server.call(Method::GET, TASKS, &[USER, ("Origin", origin)], None).await;
        assert_eq!((answer.status.as_u16(), answer.header("access-control-allow-origin")), (200, allowed), "{origin}");
        // A page must be able to read why it was refused.
        let refused = server.call(Method::GET, TASKS, &[("Origin", origin)], None).await;
        assert_eq!((refused.status.as_u16(), refused.header("access-control-allow-origin")), (401, allowed));
        assert!(answer.header("vary").to_lowercase().contains("origin"), "caches keep origins apart");
    }
    // Changed while the server runs: all, then none.
    set(&server, |access| access.cors_allowed_origins = vec!["*".to_owned()]);
    assert_ne!(preflight(&server, "https://any.example", "GET").await.header("access-control-allow-origin"), "");
    set(&server, |access| access.cors_allowed_origins = vec![]);
    assert_eq!(preflight(&server, own, "GET").await.header("access-control-allow-origin"), "");
}

async fn every_answer_has_the_headers_of_a_careful_server(server: Server) {
    with_users(&server);
    let worker = ("X-Worker-Token", TOKEN);
    for (method, path, headers, status) in [
        (Method::GET, "/api/v1/live", vec![], 200),
        (Method::GET, TASKS, vec![USER], 200),
        (Method::GET, TASKS, vec![], 401),
        (Method::GET, "/metrics", vec![USER], 403),
        (Method::GET, "/nothing", vec![USER], 404),
        (Method::PATCH, TASKS, vec![USER], 405),
        (Method::POST, TASKS, vec![USER], 422),
        (Method::POST, "/internal/worker/claim", vec![worker], 422),
        (Method::POST, "/internal/worker/claim", vec![], 401),
        (Method::POST, "/api/v1/worker/w-1/token", vec![], 503),
        (Method::OPTIONS, TASKS, vec![("Origin", "https://x.example"), ("Access-Control-Request-Method", "GET")], 200),
    ] {
        let answer = server.call(method.clone(), path, &headers, Some(&json!({}))).await;
        let what = format!("{method} {path}");
        assert_eq!(answer.status.as_u16(), status, "{what}");
        for (name, expected) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), expected, "{what} {name}");
        }
        assert_ne!(answer.header("x-request-id"), "", "{what}");
        assert_eq!(answer.header("server"), "", "{what}");
    }
}
