//! The client against a real HTTP server that answers as each test says.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tenure_client::admin::{NewApiKey, TenantLimits, WorkerTokenRequest};
use tenure_client::{AdminAuditFilter, Client, ClientError, OperationAuditFilter, TaskFilter, TaskSubmission};
use tokio::sync::watch;

const ID: &str = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";

async fn serve(app: Router) -> Client {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Client::builder(url).api_key("key").build().unwrap()
}

/// Answers one after the other, whatever is asked, and keeps what was asked.
#[derive(Clone, Default)]
struct Canned {
    answers: Arc<Mutex<VecDeque<(u16, Value)>>>,
    asked: Arc<Mutex<Vec<String>>>,
    retry_after: Arc<AtomicU64>,
}

impl Canned {
    async fn serve(answers: impl IntoIterator<Item = (u16, Value)>) -> (Self, Client) {
        let canned = Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() };
        let client = serve(Router::new().fallback(answer).with_state(canned.clone())).await;
        (canned, client)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(State(canned): State<Canned>, request: Request) -> Response {
    assert_eq!(request.headers()["x-api-key"], "key");
    canned.asked.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
    let (status, body) = canned.answers.lock().unwrap().pop_front().unwrap();
    let retry_after = canned.retry_after.load(Ordering::Relaxed).to_string();
    (StatusCode::from_u16(status).unwrap(), [("retry-after", retry_after)], body.to_string()).into_response()
}

fn task(state: &str) -> Value {
    json!({"task_id": ID, "queue": "q", "operator": "o", "state": state, "priority": 5, "attempt": 1, "max_attempts": 3,
        "fence": 1, "payload": {}, "tags": {}, "tenant": "t", "workspace": "w", "cancel_requested": false,
        "created_at": "2025-01-15T10:00:00Z", "run_at": "2025-01-15T10:00:00Z"})
}

fn refusal(error: &str) -> Value {
    json!({"code": "UNAVAILABLE", "error": error, "message": "as told", "request_id": "req_1"})
}

#[tokio::test]
async fn a_call_that_was_not_done_is_repeated() {
    let submitted = json!({"task_id": ID, "state": "Ready", "created": true});
    let refused = [(503, refusal("overloaded")), (503, refusal("shutting_down")), (429, refusal("rate_limited"))];
    let (canned, client) = Canned::serve(refused.into_iter().chain([(201, submitted)])).await;
    assert_eq!(client.submit(&TaskSubmission::default()).await.unwrap().task_id, ID);
    assert_eq!(canned.asked(), ["POST /api/v1/tasks"; 4]);
}

#[tokio::test]
async fn a_server_that_wants_fewer_requests_gets_them_later() {
    for status in [429, 503] {
        let (canned, client) = Canned::serve([(status, refusal("later")), (200, task("Ready"))]).await;
        canned.retry_after.store(1, Ordering::Relaxed);
        let start = std::time::Instant::now();
        client.get(ID).await.unwrap();
        assert!(start.elapsed() >= Duration::from_secs(1), "{status}: again after {:?}", start.elapsed());
        assert_eq!(canned.asked().len(), 2);
    }
}

#[tokio::test]
async fn repeats_are_bounded() {
    let (canned, client) = Canned::serve(vec![(503, refusal("store_unavailable")); 9]).await;
    let error = client.get(ID).await.unwrap_err();
    assert_eq!((error.status(), error.word()), (Some(503), Some("store_unavailable")));
    assert_eq!(canned.asked().len(), 5);
}

#[tokio::test]
async fn a_call_that_may_have_been_done_is_repeated_only_under_a_key() {
    // A proxy, and a store that went away while it committed.
    for unclear in [(502, Value::Null), (503, Value::Null), (504, Value::Null), (503, refusal("store_unavailable"))] {
        let (canned, client) = Canned::serve([unclear.clone(), unclear, (200, Value::Null)]).await;
        client.submit(&TaskSubmission::default()).await.unwrap_err();
        assert_eq!(canned.asked().len(), 1);
        let keyed = TaskSubmission { idempotency_key: Some("k".into()), ..TaskSubmission::default() };
        // The second answer is the same again, the third one is no submission.
        assert!(matches!(client.submit(&keyed).await, Err(ClientError::Decode { .. })));
        assert_eq!(canned.asked().len(), 3);
    }
}

#[tokio::test]
async fn filters_become_the_query() {
    let (canned, client) = Canned::serve([(200, json!({"items": [task("Ready")], "next_cursor": "c2"}))]).await;
    let filter = TaskFilter {
        queue: Some("a b".into()),
        tag: Some("team:etl".into()),
        limit: Some(1),
        cursor: Some("c1".into()),
        ..TaskFilter::default()
    };
    let page = client.list(&filter).await.unwrap();
    assert_eq!((page.items.len(), page.next_cursor.as_deref()), (1, Some("c2")));
    assert_eq!(canned.asked(), ["GET /api/v1/tasks?queue=a+b&tag=team%3Aetl&limit=1&cursor=c1"]);
}

#[tokio::test]
async fn what_admins_do_has_its_addresses() {
    let key = json!({"id": "1f", "name": "ci", "role": "api", "tenant": "acme", "created_at": "2026-01-01T00:00:00Z",
        "created_by": "config:admin"});
    let created = json!({"key": "tnr_1f_x", "id": "1f", "name": "ci", "role": "api", "tenant": "acme",
        "created_at": "2026-01-01T00:00:00Z", "created_by": "config:admin"});
    let token = json!({"token": "t", "worker_id": "w", "expires_at": "2026-01-01T00:05:00Z"});
    let tenant = json!({"tenant": {"name": "acme", "limits": {"max_ready": 5}}});
    let none = json!([]);
    let (canned, client) = Canned::serve([
        (200, json!({"actor": "key:1f", "role": "admin"})),
        (201, created),
        (200, json!({"items": [key], "next_cursor": "2"})),
        (200, key.clone()),
        (200, key),
        (200, token),
        (204, Value::Null),
        (200, json!({"items": ["a", "b"]})),
        (200, json!({"tenants": []})),
        (200, tenant.clone()),
        (200, tenant.clone()),
        (200, tenant),
        (204, Value::Null),
        (200, none.clone()),
        (200, none),
    ])
    .await;
    assert_eq!(client.whoami().await.unwrap().tenant, None);
    assert_eq!(client.create_api_key(&NewApiKey::default()).await.unwrap().key, "tnr_1f_x");
    assert_eq!(client.api_keys(Some("1".into())).await.unwrap().next_cursor.as_deref(), Some("2"));
    assert_eq!(client.api_key("a/b").await.unwrap().id, "1f");
    assert_eq!(client.revoke_api_key("1f").await.unwrap().name, "ci");
    assert_eq!(client.issue_worker_token(&WorkerTokenRequest::default()).await.unwrap().token, "t");
    client.revoke_worker_token("7").await.unwrap();
    assert_eq!(client.revoked_worker_tokens().await.unwrap(), ["a", "b"]);
    assert_eq!(client.tenants().await.unwrap(), []);
    assert_eq!(client.tenant("acme").await.unwrap().limits.max_ready, Some(5));
    client.set_tenant("acme", &TenantLimits::default()).await.unwrap();
    client.unset_tenant("acme").await.unwrap();
    client.delete_tenant("acme").await.unwrap();
    let filter =
        AdminAuditFilter { status: Some(403), path: Some("/api/v1/admin".into()), ..AdminAuditFilter::default() };
    client.admin_audit(&filter).await.unwrap();
    let filter = OperationAuditFilter { action: Some("task.submit".into()), limit: Some(5), ..Default::default() };
    client.operation_audit(&filter).await.unwrap();
    assert_eq!(
        canned.asked(),
        [
            "GET /api/v1/whoami",
            "POST /api/v1/admin/api-keys",
            "GET /api/v1/admin/api-keys?cursor=1",
            "GET /api/v1/admin/api-keys/a%2Fb",
            "DELETE /api/v1/admin/api-keys/1f",
            "POST /api/v1/admin/worker-tokens",
            "POST /api/v1/admin/worker-tokens/revocations",
            "GET /api/v1/admin/worker-tokens/revocations",
            "GET /api/v1/admin/tenants",
            "GET /api/v1/admin/tenants/acme",
            "PUT /api/v1/admin/tenants/acme",
            "PUT /api/v1/admin/tenants/acme",
            "DELETE /api/v1/admin/tenants/acme",
            "GET /api/v1/admin/audit?status=403&path=%2Fapi%2Fv1%2Fadmin",
            "GET /api/v1/audit?action=task.submit&limit=5",
        ]
    );
}

#[tokio::test]
async fn an_unavailable_server_has_a_health() {
    let health = json!({"status": "unavailable", "version": "0.1.0", "store": "sqlite", "message": "disk full"});
    let (_canned, client) = Canned::serve([(503, health)]).await;
    assert_eq!(client.health().await.unwrap().status, "unavailable");
}

#[tokio::test]
async fn waiting_works_without_events() {
    // The first request of all is the one for the feed.
    let answers = [(404, Value::Null), (200, task("Ready")), (200, task("Running")), (200, task("Succeeded"))];
    let (_canned, client) = Canned::serve(answers).await;
    assert_eq!(client.wait(ID, Duration::from_secs(20)).await.unwrap().state, "Succeeded");
}

#[tokio::test]
async fn waiting_ends_in_time_and_says_where_the_task_is() {
    let app = Router::new().route("/api/v1/tasks/{id}", get(|| async { task("Running").to_string() }));
    let error = serve(app).await.wait(ID, Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(&error, ClientError::StillRunning { state, .. } if state == "Running"), "{error}");
}

#[tokio::test]
async fn events_are_followed_and_resumed_where_they_broke_off() {
    #[derive(Clone)]
    struct Feed {
        state: watch::Sender<&'static str>,
        resumed_from: watch::Sender<Vec<Option<String>>>,
    }

    /// One event about each change of the state, then the connection ends.
    async fn events(State(feed): State<Feed>, request: Request) -> Response {
        let id = request.headers().get("last-event-id").map(|id| id.to_str().unwrap().to_owned());
        let number = id.as_ref().map_or(0, |id| id.parse::<u64>().unwrap()) + 1;
        feed.resumed_from.send_modify(|ids| ids.push(id));
        let mut state = feed.state.subscribe();
        let change = async move {
            state.changed().await.unwrap();
            let data = json!({"kind": "started", "task_id": ID, "queue": "q", "state": *state.borrow(), "attempt": 1,
                "at": "2025-01-15T10:00:00Z"});
            Ok::<_, Infallible>(Event::default().event("task").id(number.to_string()).data(data.to_string()))
        };
        Sse::new(futures_util::stream::once(change).boxed()).into_response()
    }

    let feed = Feed { state: watch::Sender::new("Ready"), resumed_from: watch::Sender::default() };
    let app = Router::new()
        .route(
            "/api/v1/tasks/{id}",
            get(|State(feed): State<Feed>| async move { task(*feed.state.borrow()).to_string() }),
        )
        .route("/api/v1/events", get(events))
        .with_state(feed.clone());
    let client = serve(app).await;
    let mut watch = client.watch(ID);
    assert_eq!(watch.next().await.unwrap().unwrap().state, "Ready");
    feed.state.send_replace("Running");
    assert_eq!(watch.next().await.unwrap().unwrap().state, "Running");
    let mut resumed = feed.resumed_from.subscribe();
    let finish = async {
        resumed.wait_for(|ids| ids.len() == 2).await.unwrap();
        feed.state.send_replace("Succeeded");
    };
    let (ended, ()) = tokio::join!(watch.next(), finish);
    assert_eq!(ended.unwrap().unwrap().state, "Succeeded");
    assert!(watch.next().await.is_none());
    assert_eq!(*feed.resumed_from.borrow(), [None, Some("1".into())]);
}
