//! A server with task keys, and a worker of the callback contract.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::{DEFAULT_ISSUER, TaskClaims, TaskKeys};
use tenure_core::command::Reach;
use tenure_core::command::claim::{Claim, Claimer, Grant};
use tenure_core::command::queues::SetQueue;
use tenure_core::queue::{Push, QueueSettings};
use tenure_engine::store::Retention;
use tenure_engine::{ClaimWait, random_seed};
use tenure_server::{ServerConfig, SharedTaskKeys};

use crate::harness::{Answer, Server, merge};

/// A server whose queue `q` pushes, and the keys that sign for it.
pub struct Plane {
    pub server: Server,
    pub keys: TaskKeys,
}

impl Plane {
    pub async fn new(server: Server) -> Self {
        Self::with(server, TaskKeys::new(DEFAULT_ISSUER, &TaskKeys::generate().unwrap()).unwrap()).await
    }

    pub async fn with(server: Server, keys: TaskKeys) -> Self {
        let plane = Self { server: signing(server, keys.clone()).await, keys };
        plane.push(Push::to("https://worker.example/dispatch".into())).await;
        plane
    }

    pub async fn push(&self, push: Push) {
        let settings = QueueSettings { push: Some(Arc::new(push)), ..QueueSettings::default() };
        let set = SetQueue { queue: "q".into(), settings, transport: None, keep_push: false, reach: Reach::All };
        self.server.engine.set_queue(set).await.unwrap().unwrap();
    }

    /// The same store behind a new process.
    pub async fn restart(self) -> Self {
        Self { server: signing(self.server, self.keys.clone()).await, keys: self.keys }
    }

    /// A task of queue `q`, granted to be pushed.
    pub async fn dispatched(&self, extra: Value) -> Held {
        self.server.submit(extra).await;
        self.dispatch().await
    }

    pub async fn dispatch(&self) -> Held {
        self.try_dispatch().await.expect("something is ready")
    }

    pub async fn try_dispatch(&self) -> Option<Held> {
        let claimer = Claimer::delivery(random_seed());
        let claim = Claim { claimer, queues: vec!["q".into()], max_jobs: 1 };
        let mut claimed = self.server.engine.claim(claim, ClaimWait::NONE).await.unwrap();
        claimed.grants.pop().map(|grant| Held { token: self.token(&grant, 3600), grant, worker: "w-1".to_owned() })
    }

    pub fn token(&self, grant: &Grant, ttl_s: u32) -> String {
        self.token_at(grant, ttl_s, now())
    }

    pub fn token_at(&self, grant: &Grant, ttl_s: u32, at_s: i64) -> String {
        self.keys.issue_task(&claims(grant), at_s, ttl_s).unwrap().reveal().to_owned()
    }

    pub async fn call(&self, held: &Held, call: &str, extra: Value) -> Answer {
        self.call_at(&format!("/v1/tasks/{}/{call}", held.grant.task), &held.token, held.body(extra)).await
    }

    pub async fn call_at(&self, path: &str, token: &str, body: Value) -> Answer {
        let bearer = format!("Bearer {token}");
        self.server.call(Method::POST, path, &[("Authorization", &bearer)], Some(&body)).await
    }

    pub async fn started(&self, held: &Held) -> Value {
        self.call(held, "started", json!({})).await.ok()
    }

    pub async fn succeeded(&self, held: &Held) -> Answer {
        self.call(held, "completed", json!({"outcome": "SUCCEEDED", "output": {"rows": 7}})).await
    }

    pub async fn task(&self, held: &Held) -> Value {
        self.server.get(&format!("/api/v1/tasks/{}", held.grant.task)).await.ok()
    }

    pub async fn attempts(&self, held: &Held) -> Vec<Value> {
        let answer = self.server.get(&format!("/api/v1/tasks/{}/attempts", held.grant.task)).await.ok();
        answer["items"].as_array().unwrap().clone()
    }
}

async fn signing(mut server: Server, keys: TaskKeys) -> Server {
    server.stop().await;
    let (home, clock) = (Arc::clone(&server.home), Arc::clone(&server.clock));
    let config = ServerConfig { task_keys: None, ..server.config.clone() };
    drop(server);
    Server::start_with(home, Retention::default(), clock, |engine| ServerConfig {
        task_keys: Some(Arc::new(SharedTaskKeys::new(engine.clone(), keys))),
        ..config
    })
    .await
}

/// One attempt in the hands of a worker.
pub struct Held {
    pub grant: Grant,
    pub token: String,
    pub worker: String,
}

impl Held {
    /// What every call has, and what this one adds.
    pub fn body(&self, extra: Value) -> Value {
        let mut body = json!({"attempt": self.grant.attempt, "workerId": self.worker});
        merge(&mut body, extra);
        body
    }
}

pub fn claims(grant: &Grant) -> TaskClaims {
    let body = grant.body.as_ref().unwrap();
    TaskClaims {
        task_id: grant.task.to_ulid_text(),
        tenant_id: body.tenant.to_string(),
        workspace_id: body.workspace.to_string(),
        run_id: grant.task.to_ulid_text().replace("task_", "run_"),
        attempt: grant.attempt,
        attempt_id: grant.attempt_id.to_string(),
    }
}

pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Retries at once, so that nothing has to be waited for.
pub fn at_once(max_attempts: u32) -> Value {
    json!({"max_attempts": max_attempts, "retry": {"initial_backoff_ms": 0}})
}
