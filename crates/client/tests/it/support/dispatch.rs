//! A control plane that speaks the dispatch contract, scripted by the test.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Response, Uri};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::plane::Say;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Rules {
    /// Said first, one after the other, to calls of this name.
    first: HashMap<&'static str, VecDeque<Say>>,
    /// Said after those.
    always: HashMap<&'static str, Say>,
    /// Answers to claims of tasks that nobody has claimed.
    waiting: Vec<Value>,
    /// Granted claims by their `claim_id`.
    granted: HashMap<String, Value>,
    /// Calls of this name wait for a permit before anything comes of them.
    held: HashMap<&'static str, Arc<Semaphore>>,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Called {
    /// The last part of the path.
    pub call: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
}

#[derive(Clone)]
pub struct DispatchPlane {
    pub url: String,
    rules: Arc<Mutex<Rules>>,
    called: watch::Sender<Vec<Called>>,
    announced: watch::Sender<()>,
}

impl DispatchPlane {
    pub async fn start() -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let plane = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            rules: Arc::default(),
            called: watch::Sender::default(),
            announced: watch::Sender::default(),
        };
        let app = Router::new()
            .route("/internal/task-wakeups", get(wakeups))
            .route("/internal/{call}", post(call))
            .route("/v1/task/{call}", post(call))
            .with_state(plane.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        plane
    }

    /// What the next calls of this name are answered with.
    pub fn first(&self, call: &'static str, says: impl IntoIterator<Item = Say>) {
        self.rules.lock().unwrap().first.entry(call).or_default().extend(says);
    }

    /// What calls of this name are answered with after those.
    pub fn always(&self, call: &'static str, say: Say) {
        self.rules.lock().unwrap().always.insert(call, say);
    }

    /// Calls of this name wait, each for a permit of what is returned.
    pub fn hold(&self, call: &'static str) -> Arc<Semaphore> {
        Arc::clone(self.rules.lock().unwrap().held.entry(call).or_insert_with(|| Arc::new(Semaphore::new(0))))
    }

    /// A task that can be claimed.
    pub fn task(&self, claimed: Value) {
        self.rules.lock().unwrap().waiting.push(claimed);
        self.announced.send_replace(());
    }

    pub fn of(&self, call: &str) -> Vec<Called> {
        self.called.borrow().iter().filter(|called| called.call == call).cloned().collect()
    }

    pub fn bodies(&self, call: &str) -> Vec<Value> {
        self.of(call).into_iter().map(|called| called.body).collect()
    }

    /// Waits for this many calls of one name, and returns their bodies.
    pub async fn until(&self, call: &str, count: usize) -> Vec<Value> {
        let mut called = self.called.subscribe();
        let came = called.wait_for(|called| called.iter().filter(|called| called.call == call).count() >= count);
        if tokio::time::timeout(PATIENCE, came).await.is_err() {
            panic!("{count} times {call} never came: {:#?}", self.called.borrow());
        }
        self.bodies(call)
    }

    fn say(&self, call: &str) -> Say {
        let mut rules = self.rules.lock().unwrap();
        let first = rules.first.get_mut(call).and_then(VecDeque::pop_front);
        first.or_else(|| rules.always.get(call).cloned()).unwrap_or_default()
    }

    fn note(&self, uri: &Uri, headers: HeaderMap, body: Value) -> String {
        let call = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let path = uri.path().to_owned();
        let called = Called { call: call.clone(), path, headers, body };
        self.called.send_modify(|all| all.push(called));
        call
    }

    fn claim(&self, request: &Value) -> Value {
        let mut rules = self.rules.lock().unwrap();
        let claim_id = request["claim_id"].as_str().unwrap().to_owned();
        if let Some(granted) = rules.granted.get(&claim_id) {
            return granted.clone();
        }
        match rules.waiting.iter().position(|claimed| claimed["task_id"] == request["task_id"]) {
            Some(at) => {
                let claimed = rules.waiting.remove(at);
                rules.granted.insert(claim_id, claimed.clone());
                claimed
            }
            None => json!({"status": "NotClaimed", "reason": "AlreadyRunning"}),
        }
    }
}

/// The id of a task of a test.
pub fn id(number: u32) -> String {
    format!("0190c0de-0000-7000-8000-{number:012}")
}

/// The answer to a claim that was granted. `task` changes fields of the task.
pub fn claimed(number: u32, operator: &str, staging: Option<&Path>, task: Value) -> Value {
    let outputs = [0, 1].map(|index| {
        json!({
            "output_index": index,
            "dataset_uuid": format!("dataset-{index}"),
            "dataset_version": format!("version-{index}"),
            "storage": "s3",
            "write_mode": "direct",
            "update_strategy": "replace",
            "unique_key": [],
            "staging_prefix": staging.map(|folder| format!("file://{}/{index}/", folder.display())),
        })
    });
    let mut whole = json!({
        "task_id": id(number),
        "attempt": 1,
        "fence": 7,
        "org_id": id(99),
        "job": {"dag_name": "chain", "name": "decode", "dag_version": 3},
        "operator": operator,
        "runtime": "worker",
        "config": {"abi": "erc20"},
        "timeout_seconds": 1800,
        "trigger": {"kind": "event"},
        "inputs": [{
            "input_index": 0,
            "alias": "raw",
            "dataset_uuid": "dataset-9",
            "dataset_version": "version-9",
            "storage_ref": {"scheme": "file", "prefix": "/d/", "glob": "*.parquet"},
            "partition": {"partition_key": "1-5", "start": 1, "end": 5, "location": "file:///d/p/"},
            "cursor": null,
            "where": "a = 1",
        }],
        "outputs": outputs,
        "operator_state": {"seen": 4},
        "invalidation": null,
        "bundle": null,
        "bundle_url": "",
    });
    whole.as_object_mut().unwrap().extend(task.as_object().unwrap().clone());
    json!({
        "status": "Claimed",
        "task_id": id(number),
        "attempt": 1,
        "lease_token": "0190c0de-0000-7000-8000-000000000777",
        "lease_expires_at": "2099-01-01T00:00:00Z",
        "capability_token": "first-capability",
        "fence": 7,
        // A lease that outlives the test, unless it asks for less.
        "heartbeat_interval_seconds": 1,
        "deadline_at": "2099-01-01T00:30:00Z",
        "work_payload": {"abi": "erc20", "start": 1},
        "task": whole,
    })
}

async fn wakeups(
    State(plane): State<DispatchPlane>,
    Query(query): Query<HashMap<String, String>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response<Body> {
    let mut announced = plane.announced.subscribe();
    let call = plane.note(&uri, headers, json!(query));
    let number = |name: &str| query[name].parse::<u64>().unwrap();
    let until = tokio::time::Instant::now() + Duration::from_secs(number("wait_seconds"));
    let say = plane.say(&call);
    loop {
        let ids: Vec<_> = {
            let rules = plane.rules.lock().unwrap();
            rules.waiting.iter().take(number("max") as usize).map(|claimed| claimed["task_id"].clone()).collect()
        };
        let over = !matches!(say, Say::Yes) || !ids.is_empty();
        if over || tokio::time::timeout_at(until, announced.changed()).await.is_err() {
            let messages: Vec<_> = ids.into_iter().map(|id| json!({"task_id": id})).collect();
            return answer(say, json!({"messages": messages})).await;
        }
    }
}

async fn call(State(plane): State<DispatchPlane>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let call = plane.note(&uri, headers, body.clone());
    let held = plane.rules.lock().unwrap().held.get(call.as_str()).cloned();
    if let Some(held) = held {
        held.acquire().await.unwrap().forget();
    }
    let say = plane.say(&call);
    let said = match call.as_str() {
        // What is refused is still there.
        "task-claim" if matches!(say, Say::No(..)) => json!({}),
        "task-claim" => plane.claim(&body),
        "heartbeat" => json!({"status": "Running", "lease_expires_at": "2099-01-01T00:00:00Z", "fence": 7}),
        "events" => json!({"accepted": 1, "duplicates": 0}),
        "task-logs" => json!({"kept": true}),
        _ => json!({
            "status": body["status"], "task_id": body["task_id"], "attempt": 1, "fence": 7, "events_accepted": 0,
            "next_retry_at": null,
        }),
    };
    answer(say, said).await
}

async fn answer(say: Say, said: Value) -> Response<Body> {
    say.answer("dispatch/1", said, json!({"detail": "as scripted", "request_id": "r"})).await
}
