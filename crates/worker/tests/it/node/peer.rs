//! The control plane of a test: the other side of heartbeats and renewals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What happens to a renewal.
#[derive(Debug, Clone, Default)]
pub enum Renewal {
    #[default]
    Grant,
    /// 409 with this reason, or without one.
    Refuse(Option<&'static str>),
    /// 503: as if nobody were there.
    Fail,
    /// No answer.
    Hang,
}

#[derive(Debug, Default)]
pub struct Script {
    pub knows_no_renewal: bool,
    pub renewal: Renewal,
    pub lease: Option<Duration>,
    pub sandbox_expires_at: Option<Timestamp>,
    pub orphans: Vec<Value>,
    pub revoked: Vec<&'static str>,
    pub desired_status: Option<&'static str>,
    /// The next heartbeats fail.
    pub failing_beats: usize,
    pub date: Option<&'static str>,
    pub generations: HashMap<String, i64>,
    // What came in.
    pub beats: Vec<Value>,
    pub renewals: Vec<(String, Value)>,
    pub tokens: Vec<String>,
    pub bootstrap_calls: usize,
}

#[derive(Debug, Clone)]
pub struct Peer {
    pub url: String,
    script: Arc<Mutex<Script>>,
}

impl Peer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let peer = Self { url, script: Arc::default() };
        let app = Router::new()
            .route("/api/v1/worker/{id}/heartbeat", post(heartbeat))
            .route("/api/v1/worker/{id}/leases/{resource}/renew", post(renew))
            .route("/api/v1/worker/{id}/token", post(token))
            .with_state(peer.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        peer
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut Script) -> T) -> T {
        act(&mut self.script.lock().unwrap())
    }

    pub fn renewals_of(&self, sandbox_id: &str) -> usize {
        self.with(|script| script.renewals.iter().filter(|(id, _)| id == sandbox_id).count())
    }

    /// By `seq`: one that was given up on the way may come late.
    pub fn last_beat(&self) -> Value {
        let last = |script: &mut Script| script.beats.iter().max_by_key(|beat| beat["seq"].as_u64()).cloned();
        self.with(last).unwrap_or_default()
    }
}

async fn heartbeat(
    State(peer): State<Peer>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    assert_eq!(headers["x-worker-id"], id.as_str());
    peer.with(|script| {
        script.tokens.push(token_of(&headers));
        script.beats.push(body.clone());
        if script.failing_beats > 0 {
            script.failing_beats -= 1;
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let mut answer = json!({"id": id, "status": body["status"], "providers": body["providers"], "stale": false});
        if !script.knows_no_renewal {
            answer["features"] = json!(["lease_renewal"]);
        }
        if let Some(status) = script.desired_status {
            answer["desired_status"] = json!(status);
        }
        answer["orphans"] = json!(script.orphans);
        answer["revoked_token_ids"] = json!(script.revoked);
        let mut response = Json(answer).into_response();
        if let Some(date) = script.date {
            response.headers_mut().insert("date", date.parse().unwrap());
        }
        response
    })
}

async fn renew(
    State(peer): State<Peer>,
    Path((id, resource)): Path<(String, String)>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    assert_eq!(headers["x-worker-id"], id.as_str());
    assert!(headers.contains_key("x-request-id"));
    let renewal = peer.with(|script| {
        script.tokens.push(token_of(&headers));
        script.renewals.push((resource.clone(), body.clone()));
        script.renewal.clone()
    });
    match renewal {
        Renewal::Hang => std::future::pending().await,
        Renewal::Fail => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Renewal::Refuse(reason) => {
            let mut answer = json!({"code": "CONFLICT", "message": "no"});
            if let Some(reason) = reason {
                answer["reason"] = json!(reason);
            }
            (StatusCode::CONFLICT, Json(answer)).into_response()
        }
        Renewal::Grant => peer.with(|script| {
            let generation = script.generations.entry(resource.clone()).or_insert(1);
            *generation += 1;
            let ttl = script.lease.unwrap_or(super::HOUR);
            let after = |wait: Duration| Timestamp::now().checked_add(wait).unwrap().to_string();
            let lease =
                json!({"resource_id": resource, "holder_id": id, "generation": *generation, "expires_at": after(ttl)});
            let mut answer = json!({"lease": lease});
            if let Some(at) = script.sandbox_expires_at {
                answer["sandbox_expires_at"] = json!(at.to_string());
            }
            Json(answer).into_response()
        }),
    }
}

async fn token(State(peer): State<Peer>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let calls = peer.with(|script| {
        script.bootstrap_calls += 1;
        script.bootstrap_calls
    });
    if headers.get("x-worker-bootstrap-key").is_none_or(|key| key != "the-key") {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let expires_at = Timestamp::now().checked_add(Duration::from_secs(300)).unwrap().to_string();
    Json(json!({"token": format!("issued-{calls}"), "worker_id": id, "expires_at": expires_at})).into_response()
}

fn token_of(headers: &HeaderMap) -> String {
    headers.get("x-worker-token").map_or_else(String::new, |token| token.to_str().unwrap().to_owned())
}
