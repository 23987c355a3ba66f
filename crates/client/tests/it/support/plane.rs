//! A control plane that speaks the callback contract, scripted by the test.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What the control plane does with one callback.
#[derive(Debug, Clone, Default)]
pub enum Say {
    #[default]
    Yes,
    /// Yes, and this is different in the answer.
    With(Value),
    /// No, with this word.
    No(u16, &'static str),
    /// Half an answer.
    Cut,
    /// Nothing, ever.
    Hang,
}

impl Say {
    /// `yes` is what a good answer has, `no` what a refusal has besides its word.
    pub async fn answer(self, contract: &str, mut yes: Value, mut no: Value) -> Response<Body> {
        let with =
            |value: &mut Value, more: Value| value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response =
            Response::builder().header("content-type", "application/json").header("x-tenure-contract", contract);
        match self {
            Self::Yes => response.body(yes.to_string().into()).unwrap(),
            Self::With(changes) => {
                with(&mut yes, changes);
                response.body(yes.to_string().into()).unwrap()
            }
            Self::No(status, word) => {
                with(&mut no, json!({"error": word, "message": "as scripted"}));
                response.status(status).body(no.to_string().into()).unwrap()
            }
            Self::Cut => {
                let text = yes.to_string();
                let pieces = [Ok(Bytes::from(text[..5].to_owned())), Err(std::io::Error::other("cut"))];
                let response = response.header("content-length", text.len());
                response.body(Body::from_stream(futures_util::stream::iter(pieces))).unwrap()
            }
            Self::Hang => std::future::pending().await,
        }
    }
}

#[derive(Default)]
pub struct Rules {
    /// Said first, one after the other; then what follows.
    pub started_first: VecDeque<Say>,
    pub started: Say,
    pub heartbeat_first: VecDeque<Say>,
    pub heartbeat: Say,
    pub completed_first: VecDeque<Say>,
    pub completed: Say,
    pub logs: Say,
}

/// A callback as it came.
#[derive(Debug, Clone)]
pub struct Called {
    pub at: Instant,
    pub task: String,
    pub call: String,
    pub token: String,
    pub body: Value,
}

#[derive(Clone)]
pub struct Plane {
    pub url: String,
    rules: Arc<Mutex<Rules>>,
    called: watch::Sender<Vec<Called>>,
}

impl Plane {
    pub async fn start(rules: Rules) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let plane = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            rules: Arc::new(Mutex::new(rules)),
            called: watch::Sender::default(),
        };
        let app = Router::new().route("/v1/tasks/{id}/{call}", post(callback)).with_state(plane.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        plane
    }

    /// Starts on a thread and a runtime of its own, so that a test may block its own.
    pub fn start_apart(rules: Rules) -> Self {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                send.send(Self::start(rules).await).unwrap();
                std::future::pending::<()>().await;
            });
        });
        receive.recv().unwrap()
    }

    pub fn rules(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules.lock().unwrap());
    }

    pub fn called(&self) -> Vec<Called> {
        self.called.borrow().clone()
    }

    /// The bodies of the calls of one kind.
    pub fn bodies(&self, call: &str) -> Vec<Value> {
        self.called().into_iter().filter(|called| called.call == call).map(|called| called.body).collect()
    }

    pub fn count(&self, call: &str) -> usize {
        self.bodies(call).len()
    }

    /// Waits until the calls so far satisfy `done`.
    pub async fn until(&self, done: impl Fn(&[Called]) -> bool) -> Vec<Called> {
        let mut called = self.called.subscribe();
        let wait = called.wait_for(|called| done(called));
        match tokio::time::timeout(Duration::from_secs(30), wait).await {
            Ok(called) => called.unwrap().clone(),
            Err(_) => panic!("the condition never came: {:#?}", self.called()),
        }
    }

    /// Waits for this many calls of one kind.
    pub async fn until_count(&self, call: &str, count: usize) -> Vec<Called> {
        let of = |called: &[Called]| called.iter().filter(|called| called.call == call).cloned().collect::<Vec<_>>();
        of(&self.until(|called| of(called).len() >= count).await)
    }

    /// An envelope of the first attempt of `task`, for `asset`.
    pub fn envelope(&self, task: &str, asset: &str) -> Value {
        json!({
            "taskId": task,
            "runId": "run_01HGW5N7XHJM4GX29KZRXQP6N8",
            "assetId": asset,
            "taskKey": "extract",
            "tenantId": "acme",
            "workspaceId": "prod",
            "attempt": 1,
            "attemptId": "att_01HGW5N7XHJM4GX29KZRXQP6NA",
            "dispatchId": format!("d_{task}"),
            "fence": 7,
            "resources": {"memoryBytes": 536870912, "cpuMillicores": 1000, "timeoutMs": 3600000},
            "payload": {"task": task},
            "enqueuedAt": "2025-01-15T10:00:00Z",
            "callbackBaseUrl": self.url,
            "taskToken": "token-1",
            "tokenExpiresAt": after(3600),
            "leaseExpiresAt": after(300),
            "heartbeatIntervalMs": 100,
            "heartbeatTimeoutMs": 30000,
            "cancelGracePeriodMs": 30000,
            "workerQueue": "etl",
            "heartbeatTimeoutSec": 30,
        })
    }
}

/// So many seconds from now.
pub fn after(seconds: i64) -> String {
    (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds)).to_string()
}

async fn callback(
    State(plane): State<Plane>,
    Path((task, call)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let token = headers["authorization"].to_str().unwrap().strip_prefix("Bearer ").unwrap().to_owned();
    assert_eq!(headers["content-type"], "application/json");
    let body: Value = serde_json::from_slice(&body).unwrap();
    if body.get("waitMs").is_some() {
        // It waits for a cancel, of which there is none here.
        std::future::pending::<()>().await;
    }
    let say = {
        let mut rules = plane.rules.lock().unwrap();
        let rules = &mut *rules;
        let mut none = VecDeque::new();
        let (first, then) = match call.as_str() {
            "logs" => (&mut none, &rules.logs),
            "started" => (&mut rules.started_first, &rules.started),
            "heartbeat" => (&mut rules.heartbeat_first, &rules.heartbeat),
            _ => (&mut rules.completed_first, &rules.completed),
        };
        first.pop_front().unwrap_or_else(|| then.clone())
    };
    let answer = match call.as_str() {
        "started" => json!({"acknowledged": true, "serverTime": after(0)}),
        "logs" => json!({"acknowledged": true}),
        "heartbeat" => json!({"acknowledged": true, "shouldCancel": false, "serverTime": after(0)}),
        _ => json!({
            "acknowledged": true, "finalState": body_outcome(&body), "serverTime": after(0), "disposition": "recorded"
        }),
    };
    plane.called.send_modify(|called| called.push(Called { at: Instant::now(), task, call, token, body }));
    say.answer("callback/1", answer, json!({"state": "RUNNING"})).await
}

fn body_outcome(body: &Value) -> Value {
    body["outcome"].clone()
}
