//! Who may do what with sandboxes.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::Secret;

use super::kit::{Plane, id};
use crate::cases;
use crate::contracts::is_of_sandboxes;
use crate::harness::{Answer, Server, TOKEN};

cases!(
    Plane,
    on_sqlite: [
        every_route_needs_the_scope_of_the_document,
        worker_tokens_do_not_open_user_routes_and_keys_no_worker_routes,
        a_foreign_page_cannot_use_a_server_without_keys,
        policies_deny_images_and_networks,
        refusals_have_limits_and_request_ids,
    ],
    on_both_stores: [nobody_reaches_the_sandbox_of_another, headers_and_bodies_narrow_and_never_widen],
);

const USER: &str = "the-key-of-a-user-of-the-default-tenant";
const ADMIN: &str = "the-key-of-an-admin-of-all-tenants-here";

type Header<'a> = (&'a str, &'a str);

fn guard(server: &Server) {
    server.config.access.update(|access| {
        access.users.enabled = true;
        access.users.api_key = Secret::new(USER);
        access.users.admin_api_key = Secret::new(ADMIN);
    });
}

async fn made(server: &Server, tenant: &str, role: &str, owner: Option<&str>) -> String {
    let mut body = json!({"tenant": tenant, "role": role, "name": format!("{role} of {tenant}")});
    if let Some(owner) = owner {
        body["owner"] = json!(owner);
    }
    let made = ask(server, "POST", "/api/v1/admin/api-keys", &[("X-Admin-API-Key", ADMIN)], Some(body)).await.ok();
    made["key"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

async fn ask(server: &Server, method: &str, path: &str, headers: &[Header<'_>], body: Option<Value>) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    server.call(method, path, headers, body.as_ref()).await
}

async fn every_route_needs_the_scope_of_the_document(plane: Plane) {
    let server = &plane.server;
    guard(server);
    let viewer = made(server, "default", "viewer", None).await;
    let api = made(server, "default", "api", None).await;
    let operator = made(server, "default", "operator", None).await;
    let tenant_admin = made(server, "default", "tenant_admin", None).await;
    let ranks = ["read", "api", "operator", "tenant:admin", "admin"];
    let callers = [(viewer.as_str(), 0), (&api, 1), (&operator, 2), (&tenant_admin, 3), (ADMIN, 4)];
    let document = server.get("/api/v1/openapi.json").await.ok();
    let mut seen = 0;
    for (route, operations) in document["paths"].as_object().unwrap().iter().filter(|(path, _)| is_of_sandboxes(path)) {
        for (method, operation) in operations.as_object().unwrap() {
            let Some(scope) = operation["security"][0]["api_key"][0].as_str() else { continue };
            let needed = ranks.iter().position(|rank| *rank == scope).unwrap();
            let path = route
                .replace("{tenant}", "default")
                .replace("{id}", if route.contains("/workers/") { "nobody" } else { "sb-00000000" })
                .replace("{port}", "8080");
            let path: String = path
                .split('/')
                .map(|part| if part.starts_with('{') { "nothing" } else { part })
                .collect::<Vec<_>>()
                .join("/");
            let method = method.to_uppercase();
            let body = (method != "GET").then(|| json!({}));
            for (name, value) in [("X-None", ""), ("X-API-Key", "wrong"), ("Authorization", "Bearer x")] {
                let answer = ask(server, &method, &path, &[(name, value)], body.clone()).await;
                assert_eq!(
                    (answer.status.as_u16(), &answer.body["code"]),
                    (401, &json!("UNAUTHORIZED")),
                    "{method} {path} {name}"
                );
            }
            for (key, rank) in callers {
                let answer = ask(server, &method, &path, &[("X-API-Key", key)], body.clone()).await;
                let status = answer.status.as_u16();
                assert!(
                    status != 401 && status < 500 || status == 501 || status == 502,
                    "{method} {path} as {rank}: {}",
                    answer.body
                );
                assert_eq!(
                    status == 403,
                    rank < needed,
                    "{method} {path} needs {scope}, as {}: {status} {}",
                    ranks[rank],
                    answer.body
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
}

async fn worker_tokens_do_not_open_user_routes_and_keys_no_worker_routes(plane: Plane) {
    let server = &plane.server;
    guard(server);
    for headers in
        [[("X-Worker-Token", TOKEN), ("X-Worker-ID", "worker-a")], [("X-API-Key", TOKEN), ("X-Worker-ID", "worker-a")]]
    {
        assert_eq!(ask(server, "GET", "/api/v1/sandboxes", &headers, None).await.status, 401);
    }
    for (name, key) in
        [("X-API-Key", USER), ("X-Admin-API-Key", ADMIN), ("X-Worker-Token", USER), ("Authorization", "Bearer x")]
    {
        let headers = [(name, key), ("X-Worker-ID", "worker-a")];
        for path in ["/api/v1/worker/worker-a/heartbeat", "/api/v1/worker/worker-a/leases/sb-00000000/renew"] {
            assert_eq!(ask(server, "POST", path, &headers, Some(json!({}))).await.status, 401, "{name} {path}");
        }
    }
}

async fn nobody_reaches_the_sandbox_of_another(plane: Plane) {
    let server = &plane.server;
    guard(server);
    let (ours, theirs) = (made(server, "ours", "api", None).await, made(server, "theirs", "api", None).await);
    let created = ask(server, "POST", "/api/v1/sandboxes", &[("X-API-Key", &ours)], Some(json!({}))).await.ok();
    assert_eq!(created["tenant_id"], "ours");
    let at = |rest: &str| format!("/api/v1/sandboxes/{}{rest}", id(&created));
    let command = json!({"command": "ls"});
    for (method, path, body) in [
        ("GET", at(""), None),
        ("DELETE", at(""), None),
        ("POST", at("/extend"), Some(json!({"ttl": "1h"}))),
        ("POST", at("/exec"), Some(command.clone())),
        ("POST", at("/exec"), Some(json!({"command": "ls", "stream": true}))),
        ("GET", at("/exec/ws"), None),
        ("POST", at("/files"), Some(json!({"path": "/workspace/a", "content": "x"}))),
        ("PUT", at("/files?path=/workspace/a"), Some(json!({}))),
        ("GET", at("/files?path=/etc/passwd"), None),
        ("DELETE", at("/files?path=/workspace"), None),
        ("GET", at("/files/list?path=/"), None),
        ("GET", at("/files/stat?path=/"), None),
        ("GET", at("/files/glob?pattern=*"), None),
        ("POST", at("/files/move"), Some(json!({"old_path": "/a", "new_path": "/b"}))),
        ("POST", at("/files/chmod"), Some(json!({"path": "/a", "mode": "0777"}))),
        ("GET", at("/logs"), None),
        ("GET", at("/stats"), None),
        ("GET", at("/snapshots"), None),
        ("POST", at("/snapshots"), Some(json!({}))),
        ("POST", at("/restore"), Some(json!({"snapshot": "snap-00000000"}))),
        ("GET", at("/proxy/8080/"), None),
    ] {
        let foreign = ask(server, method, &path, &[("X-API-Key", &theirs)], body.clone()).await;
        assert_eq!(
            (foreign.status.as_u16(), &foreign.body["code"]),
            (404, &json!("NOT_FOUND")),
            "{method} {path}: {}",
            foreign.body
        );
        // The same as for one that does not exist, but for its name.
        let unknown = path.replace(&id(&created), "sb-00000000");
        let missing = ask(server, method, &unknown, &[("X-API-Key", &theirs)], body).await;
        let plain = |text: &Value| text.as_str().unwrap().replace(&id(&created), "sb-00000000");
        assert_eq!(plain(&foreign.body["message"]), plain(&missing.body["message"]), "{method} {path}");
    }
    assert_eq!(ask(server, "GET", "/api/v1/sandboxes", &[("X-API-Key", &theirs)], None).await.ok(), json!([]));
    let still = ask(server, "POST", &at("/exec"), &[("X-API-Key", &ours)], Some(command)).await.ok();
    assert_eq!(still["exit_code"], 0);
}

async fn headers_and_bodies_narrow_and_never_widen(plane: Plane) {
    let server = &plane.server;
    guard(server);
    let (shared, bound) = (made(server, "ours", "api", None).await, made(server, "ours", "api", Some("ann")).await);
    let create =
        async |headers: &[Header<'_>], body: Value| ask(server, "POST", "/api/v1/sandboxes", headers, Some(body)).await;
    let count = async |headers: &[Header<'_>]| {
        ask(server, "GET", "/api/v1/sandboxes", headers, None).await.ok().as_array().unwrap().len()
    };
    let made = create(&[("X-API-Key", &bound)], json!({})).await.ok();
    assert_eq!((&made["owner_id"], &made["tenant_id"]), (&json!("ann"), &json!("ours")));
    // X-User-ID takes precedence over the body.
    let bob = create(&[("X-API-Key", &shared), ("X-User-ID", "bob")], json!({"owner_id": "eve"})).await.ok();
    assert_eq!(bob["owner_id"], "bob");
    let carl = create(&[("X-API-Key", &shared)], json!({"owner_id": "carl"})).await.ok();
    assert_eq!(carl["owner_id"], "carl");
    assert_eq!(count(&[("X-API-Key", &bound)]).await, 1);
    assert_eq!(count(&[("X-API-Key", &shared), ("X-User-ID", "bob")]).await, 1);
    assert_eq!(count(&[("X-API-Key", &shared)]).await, 3);
    assert_eq!(count(&[("X-Admin-API-Key", ADMIN), ("X-Tenant-ID", "theirs")]).await, 0);
    let path = format!("/api/v1/sandboxes/{}", id(&carl));
    assert_eq!(ask(server, "GET", &path, &[("X-API-Key", &shared), ("X-User-ID", "bob")], None).await.status, 404);
    for (headers, body) in [
        (vec![("X-API-Key", bound.as_str()), ("X-User-ID", "bob")], json!({})),
        (vec![("X-API-Key", bound.as_str())], json!({"owner_id": "bob"})),
        (vec![("X-API-Key", shared.as_str()), ("X-Tenant-ID", "theirs")], json!({})),
        (vec![("X-API-Key", shared.as_str())], json!({"tenant_id": "theirs"})),
    ] {
        let refused = create(&headers, body).await.refused(403);
        assert_eq!(refused["code"], "FORBIDDEN", "{headers:?}");
    }
    let odd = create(&[("X-API-Key", &shared), ("X-User-ID", "a/b")], json!({})).await;
    assert_eq!(odd.status, 400);
    let chosen = create(&[("X-Admin-API-Key", ADMIN)], json!({"tenant_id": "theirs"})).await.ok();
    assert_eq!(chosen["tenant_id"], "theirs");
}

async fn a_foreign_page_cannot_use_a_server_without_keys(plane: Plane) {
    let server = &plane.server;
    let host = server.url.trim_start_matches("http://").to_owned();
    let own = format!("http://{host}");
    for (origin, status) in [("https://evil.example", 403), ("null", 403), (own.as_str(), 201)] {
        // As a form or a script without a preflight would send it.
        let headers = [("Origin", origin), ("Content-Type", "text/plain")];
        let answer = server.call(Method::POST, "/api/v1/sandboxes", &headers, Some(&json!({}))).await;
        assert_eq!(answer.status.as_u16(), status, "{origin}: {}", answer.body);
    }
    server.config.access.update(|access| access.cors_allowed_origins = vec!["https://evil.example".to_owned()]);
    let headers = [("Origin", "https://evil.example")];
    let answer = server.call(Method::POST, "/api/v1/sandboxes/admission", &headers, Some(&json!({}))).await;
    assert_eq!(answer.status, 200);
}

async fn policies_deny_images_and_networks(plane: Plane) {
    let server = &plane.server;
    guard(server);
    let admin = [("X-Admin-API-Key", ADMIN)];
    let (ours, theirs) = (made(server, "ours", "api", None).await, made(server, "theirs", "api", None).await);
    let deny = json!({"resource_type": "image", "effect": "deny", "pattern": "evil*"});
    let policy = ask(server, "POST", "/api/v1/admin/tenants/ours/policies", &admin, Some(deny)).await;
    assert_eq!(policy.status, 201, "{}", policy.body);
    let policy = policy.body["policy"].clone();
    assert!(policy["id"].as_str().unwrap().starts_with("pol-") && policy["priority"] == 10, "{policy}");
    let evil = json!({"image": "evil"});
    let refused =
        ask(server, "POST", "/api/v1/sandboxes", &[("X-API-Key", &ours)], Some(evil.clone())).await.refused(403);
    assert_eq!((&refused["code"], &refused["reason"]), (&json!("FORBIDDEN"), &json!("policy_denied")));
    ask(server, "POST", "/api/v1/sandboxes", &[("X-API-Key", &theirs)], Some(evil.clone())).await.ok();
    // A template is judged by what it comes to.
    let template = json!({"name": "t", "image": "evil"});
    ask(server, "POST", "/api/v1/templates", &[("X-API-Key", &ours)], Some(template)).await.ok();
    let spawned = ask(server, "POST", "/api/v1/templates/t/spawn", &[("X-API-Key", &ours)], Some(json!({}))).await;
    assert_eq!(spawned.status, 403);
    let path = format!("/api/v1/admin/tenants/ours/policies/{}", policy["id"].as_str().unwrap());
    assert_eq!(ask(server, "DELETE", &path, &admin, None).await.status, 204);
    assert_eq!(ask(server, "DELETE", &path, &admin, None).await.status, 404);
    ask(server, "POST", "/api/v1/sandboxes", &[("X-API-Key", &ours)], Some(evil)).await.ok();
    let global = json!({"resource_type": "network", "effect": "deny", "pattern": "*", "priority": 1});
    ask(server, "POST", "/api/v1/admin/policies", &admin, Some(global)).await.ok();
    let listed = ask(server, "GET", "/api/v1/admin/policies", &admin, None).await.ok();
    assert_eq!(listed["policies"].as_array().unwrap().len(), 1);
    for body in [json!({}), json!({"resource_type": "image", "effect": "maybe", "pattern": "x"})] {
        assert_eq!(ask(server, "POST", "/api/v1/admin/policies", &admin, Some(body)).await.status, 400);
    }
}

async fn refusals_have_limits_and_request_ids(plane: Plane) {
    let server = &plane.server;
    guard(server);
    server.config.access.update(|access| {
        access.rate_limit = Some(tenure_server::RateLimit {
            requests_per_minute: 60,
            burst: 2,
            key_by: tenure_server::KeyBy::ApiKey,
            bucket_ttl: std::time::Duration::from_secs(60),
            cleanup_interval: std::time::Duration::from_secs(60),
        });
    });
    let headers = [("X-API-Key", USER), ("X-Request-ID", "mine-7")];
    let first = ask(server, "GET", "/api/v1/sandboxes", &headers, None).await;
    assert_eq!((first.header("x-request-id"), first.header("x-ratelimit-limit")), ("mine-7", "60"));
    assert_eq!(first.header("x-ratelimit-remaining"), "1");
    let mut last = first;
    for _ in 0..5 {
        last = ask(server, "GET", "/api/v1/sandboxes", &headers, None).await;
    }
    assert_eq!(
        (last.status.as_u16(), &last.body["code"], &last.body["request_id"]),
        (429, &json!("RESOURCE_LIMIT"), &json!("mine-7"))
    );
    assert!(!last.header("retry-after").is_empty());
}
