//! Everybody at every operation of the OpenAPI document, on what is their own and on what is another tenant's.

use std::collections::BTreeSet;
use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::worker::{Audience, BootstrapKey, MintRequest, PrivateKey};
use tenure_auth::{
    CapabilityClaims, DEFAULT_ISSUER, Role, S3Grant, Secret, StaticKey, TaskClaims, TaskKeys, UserScope, WorkerAuth,
};
use tenure_server::{KeySource, SharedTaskKeys};

use crate::cases;
use crate::contracts::is_of_sandboxes;
use crate::harness::{Server, TOKEN, fatal};
use crate::identity::people::{
    ADMIN, Header, Key, get, key, made, post, put, restarted, said, set, submit, with_users,
};
use crate::identity::provider::{Signer, now, oidc};

cases!(
    Server,
    on_sqlite: [everybody_at_every_operation, headers_that_name_another_tenant_or_owner_are_refused_everywhere],
);

/// What the document says that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    Worker,
    Bootstrap,
    /// The token of that very task: none of the callers here has it.
    Task,
    User(UserScope),
}

#[derive(Debug)]
struct Operation {
    method: Method,
    path: String,
    needs: Needs,
}

async fn operations(server: &Server) -> Vec<Operation> {
    let document = server.get("/api/v1/openapi.json").await.ok();
    let mut operations = Vec::new();
    // Sandboxes have a matrix of their own. A delivery to a webhook is known by its signature alone.
    let elsewhere = |path: &str| is_of_sandboxes(path) || path.starts_with("/api/v1/webhooks/");
    let others = document["paths"].as_object().unwrap().iter().filter(|(path, _)| !elsewhere(path));
    for (path, methods) in others {
        for (method, operation) in methods.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            operations.push(Operation { method, path: path.clone(), needs: needs(&operation["security"]) });
        }
    }
    operations
}

fn needs(security: &Value) -> Needs {
    if security.is_null() {
        return Needs::Nothing;
    }
    let all = [UserScope::Read, UserScope::Api, UserScope::Operator, UserScope::TenantAdmin, UserScope::Admin];
    let users = all.into_iter().find(|scope| *security == json!([{"api_key": [scope.as_str()]}]));
    match users {
        Some(scope) => Needs::User(scope),
        None if *security == json!([{"worker_token": ["worker:lease"]}]) => Needs::Worker,
        None if *security == json!([{"bootstrap_key": []}]) => Needs::Bootstrap,
        None if *security == json!([{"task_token": []}]) => Needs::Task,
        None if *security == json!([{"capability_token": []}]) => Needs::Task,
        None => panic!("nobody knows what this means: {security}"),
    }
}

/// What a tenant has.
#[derive(Debug)]
struct Holdings {
    tenant: &'static str,
    task: String,
    dead: String,
    queue: String,
    run: String,
    schedule: String,
    dag: String,
    key: Key,
}

impl Holdings {
    async fn new(server: &Server, tenant: &'static str) -> Self {
        let key = made(server, json!({"tenant": tenant, "role": "api"})).await;
        let queue = format!("queue-of-{tenant}");
        let who = [key.header()];
        put(server, &who, &format!("/api/v1/queues/{queue}"), json!({"max_running": 5})).await.ok();
        let dead = submit(server, &who, json!({"queue": queue, "max_attempts": 1})).await;
        let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": dead})).await.ok();
        server.fail("w-1", &job, fatal()).await.ok();
        let task = submit(server, &who, json!({"queue": queue})).await;
        let entry = json!({"key": "only", "queue": queue, "operator": "op"});
        let run = post(server, &who, "/api/v1/runs", json!({"tasks": [entry]})).await.ok();
        let run = run["run_id"].as_str().unwrap().to_owned();
        let schedule = yearly(server, &who, &queue).await;
        let dag = two_versions(server, &who).await;
        Self { tenant, task, dead, queue, run, schedule, dag, key }
    }

    /// Texts that show that an answer is about this tenant.
    fn marks(&self) -> [&str; 7] {
        [&self.task, &self.dead, &self.queue, &self.run, &self.schedule, &self.dag, &self.key.id]
    }

    /// That nothing happened to it.
    async fn untouched(&self, server: &Server) {
        let who = [self.key.header()];
        let state = async |id: &str| get(server, &who, &format!("/api/v1/tasks/{id}")).await.ok()["state"].clone();
        assert_eq!((state(&self.task).await, state(&self.dead).await), (json!("Ready"), json!("Failed")));
        let run = get(server, &who, &format!("/api/v1/runs/{}", self.run)).await.ok();
        assert_eq!((&run["state"], &run["cancel_requested"]), (&json!("Running"), &json!(false)), "{run}");
        let queue = get(server, &who, &format!("/api/v1/queues/{}", self.queue)).await.ok();
        assert_eq!((&queue["paused"], &queue["limits"]["max_running"]), (&json!(false), &json!(5)), "{queue}");
        let schedule = get(server, &who, &format!("/api/v1/schedules/{}", self.schedule)).await.ok();
        assert_eq!((&schedule["paused"], &schedule["firings"]), (&json!(false), &json!([])), "{schedule}");
        let dag = get(server, &who, &format!("/api/v1/dags/{}", self.dag)).await.ok();
        assert_eq!((&dag["active_version"], &dag["latest_version"]), (&json!(2), &json!(2)), "{dag}");
    }
}

/// A schedule that does not fire while the test runs.
async fn yearly(server: &Server, who: &[Header<'_>], queue: &str) -> String {
    let name = format!("s-{:x}", tenure_engine::random_bits());
    let task = json!({"queue": queue, "operator": "op"});
    let schedule = json!({"name": name, "cron": "0 0 29 2 *", "task": task});
    let made = post(server, who, "/api/v1/schedules", schedule).await.ok();
    made["schedule_id"].as_str().unwrap().to_owned()
}

/// A DAG whose two versions were active, and which publishes a dataset of its name.
async fn two_versions(server: &Server, who: &[Header<'_>]) -> String {
    let name = format!("d{:x}", tenure_engine::random_bits());
    for n in 0..2 {
        assert_eq!(post(server, who, "/api/v1/dags", dag(&name, n)).await.ok()["state"], "Active");
    }
    name
}

/// JSON is YAML.
fn dag(name: &str, n: u32) -> Value {
    let source = json!({"name": "import", "activation": "source", "runtime": "worker", "operator": "op", "outputs": 1,
        "source": {"kind": "manual"}, "config": {"n": n}});
    json!({"name": name, "jobs": [source], "publish": {name: {"from": {"job": "import", "output": 0}}}})
}

/// What an operation does with something that belongs to another tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Foreign {
    /// As if it did not exist.
    NotFound,
    /// Naming another tenant is refused.
    Forbidden,
    /// It works and shows nothing of others.
    Nothing,
    /// As if it did not exist, to admins too: they name the tenant in a header.
    NotHome,
}

struct Call {
    path: String,
    body: Option<Value>,
    foreign: Foreign,
}

/// A good request of an operation about what this tenant has. Operations that end something get one of their own.
async fn request(server: &Server, operation: &Operation, of: &Holdings, fresh: bool) -> Call {
    use Foreign::{Forbidden, NotFound, NotHome, Nothing};
    let job = json!({"worker_id": "w-1", "job_id": of.dead, "attempt_id": "x", "lease_token": "x",
        "error": {"code": "E", "message": "m", "retryable": false}});
    let own = [of.key.header()];
    let (Holdings { tenant, queue, .. }, limits) = (of, json!({"max_ready": 100}));
    let task = json!({"queue": queue, "operator": "op", "tenant": tenant});
    let (body, foreign) = match (operation.method.as_str(), operation.path.as_str()) {
        ("POST", "/internal/worker/claim") => {
            (Some(json!({"worker_id": "w-1", "streams": ["nothing"], "max_wait_ms": 0})), Nothing)
        }
        ("POST", "/internal/worker/exchange") => (Some(json!({"worker_id": "w-1"})), Nothing),
        ("POST", "/internal/worker/logs") => {
            let lines = json!([{"job_id": of.task, "lease_token": "x", "lines": [{"text": "hello"}]}]);
            (Some(json!({"worker_id": "w-1", "logs": lines})), Nothing)
        }
        ("POST", "/internal/worker/heartbeat" | "/internal/worker/complete" | "/internal/worker/fail") => {
            (Some(job), Nothing)
        }
        ("POST", "/internal/task-claim" | "/internal/heartbeat" | "/internal/task-complete" | "/internal/events")
        | ("POST", "/v1/task/heartbeat" | "/v1/task/complete" | "/v1/task/events" | "/v1/task/buffer-publish")
        | ("POST", "/v1/task/credentials" | "/v1/task/query" | "/v1/task/logs" | "/internal/task-logs") => {
            let body = json!({"task_id": of.task, "worker_id": "w-1", "attempt": 1, "lease_token": "x", "status": "Completed"});
            (Some(body), Nothing)
        }
        ("GET", "/v1/task/bundle") => (None, Nothing),
        ("POST", "/api/v1/worker/{id}/token") => (None, Nothing),
        ("POST", path) if needs_task_token(path) => {
            (Some(json!({"attempt": 1, "workerId": "w-1", "lines": []})), Nothing)
        }
        ("POST", "/api/v1/tasks") => (Some(task), Forbidden),
        ("POST", "/api/v1/tasks/batch") => (Some(json!({"tasks": [task]})), Forbidden),
        (
            "GET",
            "/api/v1/tasks/{id}" | "/api/v1/tasks/{id}/attempts" | "/api/v1/tasks/{id}/why" | "/api/v1/tasks/{id}/logs",
        ) => (None, NotFound),
        ("POST", "/api/v1/tasks/{id}/cancel" | "/api/v1/tasks/{id}/retry") => (None, NotFound),
        ("POST", "/api/v1/runs") => {
            let mut entry = task.clone();
            entry["key"] = json!("only");
            (Some(json!({"tenant": tenant, "tasks": [entry]})), Forbidden)
        }
        ("GET", "/api/v1/runs/{id}") => (None, NotFound),
        ("POST", "/api/v1/runs/{id}/cancel" | "/api/v1/runs/{id}/rerun") => (None, NotFound),
        ("GET", "/api/v1/queues/{name}") => (None, NotFound),
        ("PUT" | "PATCH", "/api/v1/queues/{name}") => (Some(json!({"max_running": 5})), NotFound),
        ("DELETE", "/api/v1/queues/{name}") => (None, NotFound),
        ("POST", "/api/v1/queues/{name}/pause" | "/api/v1/queues/{name}/resume") => (None, NotFound),
        ("POST", "/api/v1/schedules") => {
            let name = format!("s-{:x}", tenure_engine::random_bits());
            (Some(json!({"name": name, "tenant": tenant, "cron": "0 0 29 2 *", "task": task})), Forbidden)
        }
        ("GET" | "DELETE", "/api/v1/schedules/{name}") => (None, NotFound),
        ("PATCH", "/api/v1/schedules/{name}") => (Some(json!({"cron": "0 1 29 2 *"})), NotFound),
        (
            "POST",
            "/api/v1/schedules/{name}/pause" | "/api/v1/schedules/{name}/resume" | "/api/v1/schedules/{name}/trigger",
        ) => (None, NotFound),
        ("POST", "/api/v1/dags") => (Some(dag(&format!("d{:x}", tenure_engine::random_bits()), 0)), Nothing),
        ("GET", "/api/v1/dags/{name}" | "/api/v1/dags/{name}/versions" | "/api/v1/datasets/{name}") => (None, NotHome),
        ("POST", "/api/v1/dags/{name}/cutover") => (Some(json!({"version": 1})), NotHome),
        ("POST", "/api/v1/dags/{name}/rollback" | "/api/v1/dags/{name}/jobs/{job}/trigger") => (None, NotHome),
        ("POST", "/api/v1/buffers/{dataset}/publish") => (Some(json!({"records": []})), NotHome),
        ("GET", "/api/v1/buffers/{dataset}/dead") | ("POST", "/api/v1/buffers/{dataset}/replay") => (None, NotHome),
        ("POST", "/api/v1/udf/bundles") | ("GET" | "DELETE", "/api/v1/udf/bundles/{id}") => (None, Nothing),
        ("POST", "/api/v1/query") => (Some(json!({"sql": "SELECT 1"})), Nothing),
        ("GET", "/api/v1/query/{id}/result") => (None, Nothing),
        ("POST", "/api/v1/datasets/{name}/invalidate") => {
            (Some(json!({"scope": "partition", "partition_key": "1-5"})), NotHome)
        }
        ("POST", "/api/v1/dead-letters/redrive") => {
            (Some(json!({"dry_run": true, "filter": {"tenant": tenant}})), Forbidden)
        }
        ("POST", "/api/v1/admin/api-keys") => {
            (Some(json!({"name": "n", "role": "viewer", "tenant": tenant})), Forbidden)
        }
        ("GET" | "DELETE", "/api/v1/admin/api-keys/{id}") => (None, NotFound),
        ("POST", "/api/v1/admin/worker-tokens") => (Some(json!({"worker_id": "w-9"})), Nothing),
        ("POST", "/api/v1/admin/worker-tokens/revocations") => (Some(json!({"token_id": "nobody's"})), Nothing),
        ("DELETE", "/api/v1/admin/task-keys/{id}") => (None, Nothing),
        ("POST", "/api/v1/admin/outbox/retry") => (Some(json!({"all": true, "queue": queue})), Nothing),
        ("POST", "/api/v1/admin/tenants") => (Some(json!({"name": "n"})), Nothing),
        ("GET", "/api/v1/redrives/{id}") => (None, NotFound),
        ("POST", "/api/v1/redrives/{id}/pause" | "/api/v1/redrives/{id}/resume" | "/api/v1/redrives/{id}/cancel") => {
            (None, NotFound)
        }
        ("GET" | "DELETE", "/api/v1/admin/tenants/{tenant}") => (None, NotFound),
        ("PUT", "/api/v1/admin/tenants/{tenant}") => (Some(limits), NotFound),
        ("GET", path) if !path.contains('{') => (None, Nothing),
        (method, path) => panic!("{method} {path} is new: say here how it is called and what others may not see"),
    };
    let id = match (operation.method.as_str(), operation.path.as_str()) {
        ("POST", "/api/v1/worker/{id}/token") => "w-boot".to_owned(),
        (_, path) if path.contains("/admin/task-keys/") => {
            server.engine.store().register_task_key("of-nobody", "{}").await.unwrap();
            "of-nobody".to_owned()
        }
        (_, path) if path.contains("/redrives/{id}") => {
            let none = json!({"filter": {"queue": queue, "error_code": "NONE"}});
            let redrive = post(server, &own, "/api/v1/dead-letters/redrive", none).await.ok();
            redrive["redrive_id"].as_str().unwrap().to_owned()
        }
        (_, path) if path.contains("/admin/api-keys/") && fresh => {
            made(server, json!({"tenant": tenant, "role": "viewer"})).await.id
        }
        (_, path) if path.contains("/admin/api-keys/") => of.key.id.clone(),
        ("POST", path) if path.contains("/tasks/{id}/") && fresh => {
            let id = submit(server, &own, json!({"queue": queue})).await;
            if path.ends_with("retry") {
                post(server, &own, &format!("/api/v1/tasks/{id}/cancel"), json!({})).await.ok();
            }
            id
        }
        (_, path) if path.contains("/runs/{id}") && fresh => {
            let entry = json!({"key": "only", "queue": queue, "operator": "op"});
            let run = post(server, &own, "/api/v1/runs", json!({"tasks": [entry]})).await.ok();
            let id = run["run_id"].as_str().unwrap().to_owned();
            if path.ends_with("rerun") {
                post(server, &own, &format!("/api/v1/runs/{id}/cancel"), json!({})).await.ok();
            }
            id
        }
        (_, path) if path.contains("/runs/{id}") => of.run.clone(),
        ("POST", path) if path.ends_with("/retry") => of.dead.clone(),
        _ => of.task.clone(),
    };
    let empty = format!("{queue}-empty");
    let name = if operation.method == "DELETE" && operation.path.contains("/queues/") && fresh {
        put(server, &own, &format!("/api/v1/queues/{empty}"), json!({})).await.ok();
        &empty
    } else {
        queue
    };
    let schedule = match operation.path.contains("/schedules/") {
        true if fresh && operation.method != "GET" => yearly(server, &own, queue).await,
        _ => of.schedule.clone(),
    };
    let name = if operation.path.contains("/schedules/") { &schedule } else { name };
    let fresh_dag = match operation.path.as_str() {
        "/api/v1/dags/{name}/cutover" | "/api/v1/dags/{name}/rollback" if fresh => two_versions(server, &own).await,
        _ => of.dag.clone(),
    };
    let of_dags = ["/dags/", "/datasets/"].iter().any(|part| operation.path.contains(part));
    let name = if of_dags { &fresh_dag } else { name };
    let path = operation.path.replace("{id}", &id).replace("{name}", name).replace("{tenant}", tenant);
    let path = path.replace("{job}", "import");
    Call { path, body, foreign }
}

fn needs_task_token(path: &str) -> bool {
    path == "/v1/tasks/{id}/logs"
        || ["/started", "/heartbeat", "/completed"]
            .iter()
            .any(|call| path.contains("v1/tasks/") && path.ends_with(call))
}

/// Who calls.
struct Who {
    name: String,
    header: (String, String),
    is: Is,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Nobody,
    Worker,
    Bootstrap,
    User(Role),
}

fn who(name: &str, (header, text): Header<'_>, is: Is) -> Who {
    Who { name: name.to_owned(), header: (header.to_owned(), text.to_owned()), is }
}

/// Task keys, and a token of each kind that they make.
fn task_tokens(keys: &TaskKeys) -> [String; 2] {
    let now = now();
    let task = TaskClaims {
        task_id: "t".into(),
        tenant_id: "acme".into(),
        workspace_id: "default".into(),
        run_id: "r".into(),
        attempt: 1,
        attempt_id: "a".into(),
    };
    let access = tenure_auth::Access::Inline { datasets: vec![], s3: S3Grant::default() };
    let capability = CapabilityClaims { org_id: "acme".into(), task_id: "t".into(), attempt: 1, fence: 1, access };
    [keys.issue_task(&task, now, 60).unwrap(), keys.issue_capability(&capability, now, 60).unwrap()]
        .map(|token| token.reveal().to_owned())
}

/// A server that knows every kind of credential, and one caller of each kind.
async fn all_kinds(server: Server) -> (Server, Vec<Who>) {
    let tasks = TaskKeys::new(DEFAULT_ISSUER, &TaskKeys::generate().unwrap()).unwrap();
    let tokens = task_tokens(&tasks);
    let server = restarted(server, |engine, config| {
        config.task_keys = Some(Arc::new(SharedTaskKeys::new(engine.clone(), tasks)));
    })
    .await;
    with_users(&server);
    let private = PrivateKey::random();
    let mut workers = WorkerAuth { shared: Secret::new(TOKEN), ..WorkerAuth::default() };
    workers.keys.private = Some(private);
    workers.bootstrap.insert("w-boot".to_owned(), BootstrapKey::parse("the-bootstrap-key").unwrap());
    let wanted = MintRequest { ed25519: true, ..MintRequest::new("w-signed", Audience::ControlPlane, now()) };
    let signed = workers.keys.mint(&wanted).unwrap().token.reveal().to_owned();
    set(&server, |access| {
        access.workers = workers;
        let provider = Signer::new("ES256", "k");
        access.oidc = Some(oidc(KeySource::Static(StaticKey::from_pem(&provider.pem()).unwrap())));
    });
    let bearer = |token: &str| format!("Bearer {token}");
    let mut all = vec![
        who("nobody", ("X-Nothing", "-"), Is::Nobody),
        who("a wrong key", key("wrong"), Is::Nobody),
        who("an unknown key", key(tenure_auth::NewApiKey::random().text.reveal()), Is::Nobody),
        who("a worker's shared token as a key", key(TOKEN), Is::Nobody),
        who("a signed worker token as a key", key(&signed), Is::Nobody),
        who("a bootstrap key as a key", key("the-bootstrap-key"), Is::Nobody),
        who("an admin key as a worker token", ("X-Worker-Token", ADMIN.1), Is::Nobody),
        who("an admin key as a bootstrap key", ("X-Worker-Bootstrap-Key", ADMIN.1), Is::Nobody),
        who("an admin key as a bearer token", ("Authorization", &bearer(ADMIN.1)), Is::Nobody),
        who("a task token", ("Authorization", &bearer(&tokens[0])), Is::Nobody),
        who("a capability token", ("Authorization", &bearer(&tokens[1])), Is::Nobody),
        who("a capability token in its header", ("X-Trace-Task-Capability", &tokens[1]), Is::Nobody),
        who("a bootstrap key", ("X-Worker-Bootstrap-Key", "the-bootstrap-key"), Is::Bootstrap),
        who("a worker with the shared token", ("X-Worker-Token", TOKEN), Is::Worker),
        who("a worker with a signed token", ("X-Worker-Token", &signed), Is::Worker),
        who("a worker with a signed bearer token", ("Authorization", &bearer(&signed)), Is::Worker),
    ];
    for role in Role::ALL {
        let key = made(&server, json!({"tenant": "acme", "role": role.as_str()})).await;
        all.push(who(role.as_str(), key.header(), Is::User(role)));
    }
    (server, all)
}

async fn everybody_at_every_operation(server: Server) {
    let (server, callers) = all_kinds(server).await;
    let (own, other) = (Holdings::new(&server, "acme").await, Holdings::new(&server, "other").await);
    let operations = operations(&server).await;
    assert!(operations.len() >= 43, "{operations:?}");
    let http = reqwest::Client::new();
    let mut seen = BTreeSet::new();
    for operation in &operations {
        for who in &callers {
            let let_in = let_in(operation.needs, who.is);
            for (of, is_own) in [(&own, true), (&other, false)] {
                let call = request(&server, operation, of, let_in.is_ok()).await;
                let mut request = http.request(operation.method.clone(), format!("{}{}", server.url, call.path));
                request = request.header(&who.header.0, &who.header.1);
                if let Some(body) = &call.body {
                    // The shared token does not speak for a worker that has a token of its own.
                    let own = if who.name.contains("a signed") { "w-signed" } else { "w-1" };
                    let body = body.to_string().replace("\"w-1\"", &format!("\"{own}\""));
                    request = request.header("Content-Type", "application/json").body(body);
                }
                let answer = request.send().await.unwrap();
                let status = answer.status().as_u16();
                let what = format!("{} at {} {}: {status}", who.name, operation.method, call.path);
                let streams = answer.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
                let body = if streams { String::new() } else { answer.text().await.unwrap() };
                match let_in {
                    Err(expected) => assert_eq!(status, expected, "{what} {body}"),
                    Ok(role) => judge(status, &call, role, is_own, &format!("{what} {body}")),
                }
                if is_own && let_in.is_ok_and(|role| role.is_some_and(|role| role != Role::Admin)) {
                    for mark in other.marks() {
                        assert!(!body.contains(mark), "{what} tells of another tenant: {body}");
                    }
                }
                seen.insert((status, is_own));
            }
        }
    }
    own.untouched(&server).await;
    other.untouched(&server).await;
    for status in [200, 401, 403] {
        assert!(seen.contains(&(status, true)) && seen.contains(&(status, false)), "{seen:?}");
    }
    assert!(seen.contains(&(404, false)));
}

/// The role of a user that is let in, nothing for others that are, or the status of the refusal.
fn let_in(needs: Needs, is: Is) -> Result<Option<Role>, u16> {
    match (needs, is) {
        (Needs::Nothing, _) | (Needs::Worker, Is::Worker) | (Needs::Bootstrap, Is::Bootstrap) => Ok(None),
        (Needs::User(scope), Is::User(role)) if role.may(scope) => Ok(Some(role)),
        (Needs::User(_), Is::User(_)) => Err(403),
        _ => Err(401),
    }
}

fn judge(status: u16, call: &Call, role: Option<Role>, is_own: bool, what: &str) {
    // Reports name a job that nobody holds.
    let reports = ["heartbeat", "complete", "fail"].map(|call| format!("/internal/worker/{call}"));
    if reports.contains(&call.path) {
        return assert!([404, 409].contains(&status), "{what}");
    }
    // The task is none of a job, and the questions lack their parameters.
    if call.path.starts_with("/internal/") && !call.path.starts_with("/internal/worker/") {
        return assert!([200, 400, 404].contains(&status), "{what}");
    }
    // This server has no data store.
    if call.path.starts_with("/api/v1/buffers/") {
        return assert_eq!(status, 503, "{what}");
    }
    // This server has no object store, and hence no bundle.
    if call.path.starts_with("/api/v1/udf/bundles") {
        return assert_eq!(status, if call.path.ends_with("bundles") { 503 } else { 404 }, "{what}");
    }
    // This server has no query process, and hence no result.
    if call.path.starts_with("/api/v1/query") {
        return assert_eq!(status, if call.path.ends_with("query") { 503 } else { 404 }, "{what}");
    }
    let covers = is_own || role.is_none_or(|role| role == Role::Admin);
    match call.foreign {
        Foreign::NotFound if !covers => assert_eq!(status, 404, "{what}"),
        Foreign::Forbidden if !covers => assert_eq!(status, 403, "{what}"),
        Foreign::NotHome if !is_own || role == Some(Role::Admin) => assert_eq!(status, 404, "{what}"),
        _ => assert!((200..300).contains(&status), "{what}"),
    }
}

/// Also an operation that looks at neither must refuse them.
async fn headers_that_name_another_tenant_or_owner_are_refused_everywhere(server: Server) {
    with_users(&server);
    let key = made(&server, json!({"tenant": "acme", "owner": "ann", "role": "tenant_admin"})).await;
    let own = Holdings::new(&server, "acme").await;
    for operation in operations(&server).await {
        let Needs::User(scope) = operation.needs else { continue };
        let call = request(&server, &operation, &own, false).await;
        for (header, text, expected) in [
            ("X-Tenant-ID", "other", (403, "tenant_forbidden")),
            ("X-User-ID", "bob", (403, "owner_forbidden")),
            ("X-Tenant-ID", "No Tenant", (400, "malformed_request")),
            ("X-User-ID", "a b", (400, "malformed_request")),
        ] {
            let headers = [key.header(), (header, text)];
            let answer = server.call(operation.method.clone(), &call.path, &headers, call.body.as_ref()).await;
            assert_eq!(said(&answer), expected, "{} {} {scope:?} {header}: {text}", operation.method, call.path);
        }
    }
    own.untouched(&server).await;
}
