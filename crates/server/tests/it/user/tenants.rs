//! What belongs to one tenant is as if it did not exist for another.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::{Secret, UserAuth};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{Answer, SOON, Server, TOKEN, fatal};

cases!(
    Server,
    on_sqlite: [
        a_tenant_submits_for_itself_only,
        a_task_of_another_tenant_is_not_found,
        idempotency_keys_of_tenants_do_not_meet,
        events_of_another_tenant_are_not_seen,
        workers_serve_every_tenant,
    ],
    on_both_stores: [lists_show_only_what_is_the_callers, a_redrive_touches_only_what_is_the_callers],
);

const USER: (&str, &str) = ("X-API-Key", "user-key");
const ADMIN: (&str, &str) = ("X-Admin-API-Key", "admin-key");

async fn with_users(server: Server) -> Server {
    server
        .restart_with(|config, _| {
            config.access.update(|access| {
                access.users = UserAuth {
                    enabled: true,
                    api_key: Secret::new("user-key"),
                    admin_api_key: Secret::new("admin-key"),
                    ..UserAuth::default()
                };
            });
        })
        .await
}

async fn by(server: &Server, who: (&str, &str), method: Method, path: &str, body: Value) -> Answer {
    let body = (method != Method::GET).then_some(&body);
    server.call(method, path, &[who], body).await
}

async fn get(server: &Server, who: (&str, &str), path: &str) -> Answer {
    by(server, who, Method::GET, path, Value::Null).await
}

async fn post(server: &Server, who: (&str, &str), path: &str, body: Value) -> Answer {
    by(server, who, Method::POST, path, body).await
}

async fn submit(server: &Server, tenant: &str, extra: Value) -> String {
    let mut task = json!({"queue": "q", "operator": "op", "tenant": tenant});
    crate::harness::merge(&mut task, extra);
    post(server, ADMIN, "/api/v1/tasks", task).await.ok()["task_id"].as_str().unwrap().to_owned()
}

fn ids(page: &Value) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|item| item["task_id"].as_str().unwrap().to_owned()).collect()
}

async fn a_tenant_submits_for_itself_only(server: Server) {
    let server = with_users(server).await;
    let task = json!({"queue": "q", "operator": "op"});
    let own = post(&server, USER, "/api/v1/tasks", task.clone()).await.ok();
    let shown = get(&server, USER, &format!("/api/v1/tasks/{}", own["task_id"].as_str().unwrap())).await.ok();
    assert_eq!(shown["tenant"], "default");
    post(&server, USER, "/api/v1/tasks", json!({"queue": "q", "operator": "op", "tenant": "default"})).await.ok();
    let other = json!({"queue": "q", "operator": "op", "tenant": "acme"});
    let refused = post(&server, USER, "/api/v1/tasks", other.clone()).await.refused(403);
    assert_eq!((&refused["error"], &refused["code"]), (&json!("tenant_forbidden"), &json!("FORBIDDEN")));
    post(&server, USER, "/api/v1/tasks/batch", json!({"tasks": [task, other]})).await.refused(403);
    assert_eq!(ids(&get(&server, ADMIN, "/api/v1/tasks").await.ok()).len(), 2);
}

async fn a_task_of_another_tenant_is_not_found(server: Server) {
    let server = with_users(server).await;
    let ready = submit(&server, "acme", json!({})).await;
    let failed = submit(&server, "acme", json!({"queue": "other"})).await;
    let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": failed})).await.ok();
    server.fail("w-1", &job, fatal()).await.ok();
    for id in [&ready, &failed] {
        let before = get(&server, ADMIN, &format!("/api/v1/tasks/{id}")).await.ok();
        for call in ["", "/attempts", "/why"] {
            let path = format!("/api/v1/tasks/{id}{call}");
            let refused = get(&server, USER, &path).await.refused(404);
            assert_eq!(refused["error"], "task_not_found", "{call}");
            get(&server, ADMIN, &path).await.ok();
        }
        for call in ["cancel", "retry"] {
            let refused = post(&server, USER, &format!("/api/v1/tasks/{id}/{call}"), json!({})).await.refused(404);
            assert_eq!(refused["error"], "task_not_found", "{call}");
        }
        let immediate = json!({"mode": "immediate"});
        post(&server, USER, &format!("/api/v1/tasks/{id}/cancel"), immediate).await.refused(404);
        assert_eq!(get(&server, ADMIN, &format!("/api/v1/tasks/{id}")).await.ok(), before);
    }
    // What does not exist at all looks the same.
    let unknown = "/api/v1/tasks/018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    let (a, b) = (
        get(&server, USER, unknown).await.refused(404),
        get(&server, USER, &format!("/api/v1/tasks/{ready}")).await.refused(404),
    );
    assert_eq!((&a["error"], &a["message"]), (&b["error"], &b["message"]));
    // The admin may.
    post(&server, ADMIN, &format!("/api/v1/tasks/{ready}/cancel"), json!({})).await.ok();
    post(&server, ADMIN, &format!("/api/v1/tasks/{failed}/retry"), json!({})).await.ok();
}

async fn lists_show_only_what_is_the_callers(server: Server) {
    let server = with_users(server).await;
    let mut own = Vec::new();
    for n in 0..6 {
        let tenant = if n % 2 == 0 { "default" } else { "acme" };
        let id = submit(&server, tenant, json!({"tags": {"n": n.to_string()}})).await;
        let job = server.claim("w-1").await;
        server.fail("w-1", &job, fatal()).await.ok();
        if n % 2 == 0 {
            own.push(id);
        }
    }
    own.reverse();
    assert_eq!(ids(&get(&server, USER, "/api/v1/tasks").await.ok()), own);
    assert_eq!(ids(&get(&server, ADMIN, "/api/v1/tasks").await.ok()).len(), 6);
    for query in ["tenant=acme", "tag=n:1", "tenant=acme&state=Failed"] {
        assert_eq!(
            ids(&get(&server, USER, &format!("/api/v1/tasks?{query}")).await.ok()),
            Vec::<String>::new(),
            "{query}"
        );
    }
    assert_eq!(ids(&get(&server, ADMIN, "/api/v1/tasks?tenant=acme").await.ok()).len(), 3);
    // Pages too: a page is full of what is visible, and none is lost between two.
    let first = get(&server, USER, "/api/v1/tasks?limit=2").await.ok();
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = get(&server, USER, &format!("/api/v1/tasks?limit=2&cursor={cursor}")).await.ok();
    assert_eq!([ids(&first), ids(&second)].concat(), own);
    let mut dead = ids(&get(&server, USER, "/api/v1/dead-letters").await.ok());
    dead.reverse();
    assert_eq!(dead, own);
    assert_eq!(ids(&get(&server, USER, "/api/v1/dead-letters?tenant=acme").await.ok()), Vec::<String>::new());
    assert_eq!(ids(&get(&server, ADMIN, "/api/v1/dead-letters").await.ok()).len(), 6);
}

async fn a_redrive_touches_only_what_is_the_callers(server: Server) {
    let server = with_users(server).await;
    let mut all = Vec::new();
    for tenant in ["default", "acme"] {
        all.push(submit(&server, tenant, json!({})).await);
        let job = server.claim("w-1").await;
        server.fail("w-1", &job, fatal()).await.ok();
    }
    let [own, other] = &all[..] else { unreachable!() };
    let path = "/api/v1/dead-letters/redrive";
    for filter in [json!({"queue": "q"}), json!({"task_ids": [own, other]}), json!({"tenant": "default"})] {
        let dry = post(&server, USER, path, json!({"filter": filter, "dry_run": true})).await.ok();
        assert_eq!(dry["matched"], 1, "{filter}");
    }
    let refused = post(&server, USER, path, json!({"filter": {"tenant": "acme"}})).await.refused(403);
    assert_eq!(refused["error"], "tenant_forbidden");
    // The same key of two callers is two keys.
    let redrive = json!({"filter": {"task_ids": [own, other]}, "idempotency_key": "r"});
    let by_user = post(&server, USER, path, redrive.clone()).await.ok();
    let state = async |id: &str| get(&server, ADMIN, &format!("/api/v1/tasks/{id}")).await.ok()["state"].clone();
    wait_until("the own one is released", SOON, async || state(own).await == "Ready").await;
    assert_eq!(state(other).await, "Failed");
    let by_admin = post(&server, ADMIN, path, redrive).await.ok();
    assert_ne!(by_user["redrive_id"], by_admin["redrive_id"]);
    wait_until("the other one is released", SOON, async || state(other).await == "Ready").await;
}

async fn idempotency_keys_of_tenants_do_not_meet(server: Server) {
    let server = with_users(server).await;
    let theirs = submit(&server, "acme", json!({"idempotency_key": "k"})).await;
    let task = json!({"queue": "q", "operator": "something else", "idempotency_key": "k"});
    let refused = post(&server, USER, "/api/v1/tasks", task).await.refused(422);
    assert_eq!(refused["field"], "operator");
    let task = json!({"queue": "q", "operator": "other", "idempotency_key": "k"});
    let own = post(&server, USER, "/api/v1/tasks", task).await;
    assert_eq!(own.status.as_u16(), 201);
    assert_ne!(own.body["task_id"], json!(theirs));
}

async fn events_of_another_tenant_are_not_seen(server: Server) {
    let server = with_users(server).await;
    let watch = async |who: (&str, &str)| {
        let request = reqwest::Client::new().get(format!("{}/api/v1/events", server.url)).header(who.0, who.1);
        let response = request.header("Last-Event-ID", "0-0").send().await.unwrap();
        assert!(response.status().is_success());
        response
    };
    let theirs = submit(&server, "acme", json!({})).await;
    let own = submit(&server, "default", json!({})).await;
    let read = async |mut response: reqwest::Response, until: &str| {
        let mut text = String::new();
        while !text.contains(until) {
            let chunk = tokio::time::timeout(SOON, response.chunk()).await.unwrap().unwrap().unwrap();
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        text
    };
    // The own event comes second: whatever of theirs could be seen would come before it.
    let seen = read(watch(USER).await, &own).await;
    assert!(!seen.contains(&theirs), "{seen}");
    let seen = read(watch(ADMIN).await, &own).await;
    assert!(seen.contains(&theirs));
}

async fn workers_serve_every_tenant(server: Server) {
    let server = with_users(server).await;
    submit(&server, "acme", json!({})).await;
    submit(&server, "default", json!({})).await;
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "max_jobs": 5});
    let headers = [("X-Worker-Token", TOKEN)];
    let answer = server.call(Method::POST, "/internal/worker/claim", &headers, Some(&claim)).await.ok();
    assert_eq!(answer["jobs"].as_array().unwrap().len(), 2);
}
