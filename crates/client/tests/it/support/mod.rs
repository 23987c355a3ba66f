//! A server that speaks the exchange, scripted by the test.

pub mod dispatch;
pub mod plane;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use tenure_client::Json;
use tenure_client::pull::{ExchangeRequest, ExchangeResponse, ItemAnswer, Job};
use tokio::sync::watch;

/// What the server does with one part of a request.
#[derive(Debug, Clone, Default)]
pub enum Reply {
    #[default]
    Accept,
    /// Accept the heartbeat and ask for a cancel, with this reason.
    Cancel(&'static str),
    /// Refuse the item.
    Refuse(u16, &'static str),
    /// Refuse the whole request.
    RefuseAll(u16, &'static str),
    /// Something in between answers.
    Proxy(u16),
    /// Something in between refuses requests with a report of this job.
    Block(&'static str),
    /// Refuse requests with more than so many reports.
    RefuseMoreThan(usize),
    /// Take the request and never answer.
    Hang,
}

#[derive(Default)]
pub struct Script {
    pub jobs: VecDeque<Job>,
    pub heartbeat: Reply,
    pub report: Reply,
    pub claim: Reply,
    /// So many answers with jobs break off in the middle.
    pub cut_answers: usize,
    pub granted: Vec<(String, Vec<Job>)>,
    /// `Retry-After` of refusals.
    pub retry_after: Option<u64>,
    /// What the server says, one after the other, before it issues tokens.
    pub issuer_refusals: VecDeque<(u16, &'static str)>,
    /// How long issued tokens last.
    pub token_seconds: i64,
    /// Only requests with this token pass.
    pub only_token: Option<String>,
}

/// A request for a token, and when it came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub at: Instant,
    pub worker_id: String,
    pub headers: HeaderMap,
    pub body: serde_json::Value,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub at: Instant,
    pub headers: HeaderMap,
    pub body: ExchangeRequest,
}

#[derive(Clone)]
pub struct FakeServer {
    pub url: String,
    script: Arc<Mutex<Script>>,
    seen: watch::Sender<Vec<Seen>>,
    changed: watch::Sender<u64>,
    asked: watch::Sender<Vec<Asked>>,
}

impl FakeServer {
    pub async fn start(script: Script) -> Self {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let server = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            script: Arc::new(Mutex::new(script)),
            seen: watch::Sender::default(),
            changed: watch::Sender::default(),
            asked: watch::Sender::default(),
        };
        let app = Router::new()
            .route("/internal/worker/exchange", post(exchange))
            .route("/api/v1/worker/{id}/token", post(issue))
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        server
    }

    pub fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
    }

    /// Waits until the requests so far satisfy `done`, and returns them.
    pub async fn until(&self, done: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let mut seen = self.seen.subscribe();
        let wait = seen.wait_for(|seen| done(seen));
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the condition never came").unwrap().clone()
    }

    /// The requests for tokens so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    async fn answer(&self, request: &ExchangeRequest) -> Result<ExchangeResponse, Reply> {
        let (heartbeat, report, claim) = {
            let script = self.script.lock().unwrap();
            (script.heartbeat.clone(), script.report.clone(), script.claim.clone())
        };
        let items = |count: Option<usize>, reply: &Reply| count.map(|count| vec![item(reply); count]);
        let part = [(request.heartbeat.is_some(), &heartbeat), (request.claim.is_some(), &claim)];
        if let Some((_, reply)) = part.into_iter().find(|(there, reply)| *there && whole(reply)) {
            return Err(reply.clone());
        }
        let reports = request.complete.as_ref().map_or(0, Vec::len) + request.fail.as_ref().map_or(0, Vec::len);
        if matches!(report, Reply::RefuseMoreThan(most) if reports > most) {
            return Err(Reply::Proxy(413));
        }
        if matches!(report, Reply::Block(job) if reported(request).any(|id| id == job)) {
            return Err(Reply::Proxy(403));
        }
        let mut response = ExchangeResponse {
            heartbeat: items(request.heartbeat.as_ref().map(Vec::len), &heartbeat),
            complete: items(request.complete.as_ref().map(Vec::len), &report),
            fail: items(request.fail.as_ref().map(Vec::len), &report),
            ..ExchangeResponse::default()
        };
        if request.claim.is_some() {
            response.jobs = Some(self.claim(request).await);
        }
        Ok(response)
    }

    async fn claim(&self, request: &ExchangeRequest) -> Vec<Job> {
        let claim = request.claim.as_ref().unwrap();
        let (id, max) = (claim.claim_id.clone().unwrap(), claim.max_jobs.unwrap() as usize);
        let reported = request.complete.is_some() || request.fail.is_some();
        let wait = if reported { 0 } else { claim.max_wait_ms.unwrap() as u64 };
        let until = tokio::time::Instant::now() + Duration::from_millis(wait);
        let mut changed = self.changed.subscribe();
        loop {
            {
                let mut script = self.script.lock().unwrap();
                if let Some((_, jobs)) = script.granted.iter().find(|(granted, _)| *granted == id) {
                    return jobs.clone();
                }
                let count = script.jobs.len().min(max);
                let jobs: Vec<_> = script.jobs.drain(..count).collect();
                if !jobs.is_empty() {
                    script.granted.push((id, jobs.clone()));
                    return jobs;
                }
            }
            if tokio::time::timeout_at(until, changed.changed()).await.is_err() {
                return Vec::new();
            }
        }
    }
}

/// The jobs that a request reports about.
pub fn reported(request: &ExchangeRequest) -> impl Iterator<Item = &str> {
    let completes = request.complete.iter().flatten().map(|item| item.job_id.as_str());
    completes.chain(request.fail.iter().flatten().map(|item| item.job_id.as_str()))
}

fn whole(reply: &Reply) -> bool {
    matches!(reply, Reply::RefuseAll(..) | Reply::Proxy(_) | Reply::Hang)
}

fn item(reply: &Reply) -> ItemAnswer {
    match *reply {
        Reply::Cancel(reason) => ItemAnswer {
            ok: true,
            should_cancel: Some(true),
            cancel_reason: Some(reason.into()),
            ..ItemAnswer::default()
        },
        Reply::Refuse(status, error) => {
            ItemAnswer { error: Some(error.into()), http_status: Some(status), ..ItemAnswer::default() }
        }
        _ => ItemAnswer { ok: true, ack: Some(true), should_cancel: Some(false), ..ItemAnswer::default() },
    }
}

async fn exchange(State(server): State<FakeServer>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let body: ExchangeRequest = serde_json::from_slice(&body).unwrap();
    let token = headers.get("x-worker-token").map(|token| token.to_str().unwrap().to_owned());
    server.seen.send_modify(|seen| seen.push(Seen { at: Instant::now(), headers, body: body.clone() }));
    let (stranger, retry_after) = {
        let script = server.script.lock().unwrap();
        (script.only_token.is_some() && script.only_token != token, script.retry_after)
    };
    let answer = match stranger {
        true => Err(Reply::RefuseAll(401, "invalid_worker_token")),
        false => server.answer(&body).await,
    };
    let proxied = matches!(answer, Err(Reply::Proxy(_)));
    let (status, text) = match answer {
        Err(Reply::Proxy(status)) => (StatusCode::from_u16(status).unwrap(), "<html>".to_owned()),
        Ok(answer) => (StatusCode::OK, serde_json::to_string(&answer).unwrap()),
        Err(Reply::RefuseAll(status, error)) => {
            let text = format!(r#"{{"ok":false,"error":"{error}","message":"as scripted","request_id":"req_1"}}"#);
            (StatusCode::from_u16(status).unwrap(), text)
        }
        Err(_) => std::future::pending().await,
    };
    let cut = body.claim.is_some() && text.contains("job_id") && {
        let mut script = server.script.lock().unwrap();
        let cut = script.cut_answers > 0;
        script.cut_answers = script.cut_answers.saturating_sub(1);
        cut
    };
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    if !proxied {
        response = response.header("x-tenure-contract", "pull/1");
    }
    if let Some(seconds) = retry_after.filter(|_| !status.is_success()) {
        response = response.header("retry-after", seconds);
    }
    if cut {
        // More is promised than comes: the connection ends with the answer half said.
        response = response.header("content-length", text.len());
        let half = text.len() / 2;
        let pieces = [Ok(Bytes::from(text[..half].to_owned())), Err(std::io::Error::other("cut"))];
        return response.body(Body::from_stream(futures_util::stream::iter(pieces))).unwrap();
    }
    response.body(text.into()).unwrap()
}

/// Gives out `token-1`, `token-2` and so on.
async fn issue(
    State(server): State<FakeServer>,
    Path(worker_id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let (refusal, lasts) = {
        let mut script = server.script.lock().unwrap();
        (script.issuer_refusals.pop_front(), script.token_seconds)
    };
    let body = serde_json::from_slice(&body).unwrap();
    server
        .asked
        .send_modify(|asked| asked.push(Asked { at: Instant::now(), worker_id: worker_id.clone(), headers, body }));
    let (status, text) = match refusal {
        Some((status, error)) => {
            (status, serde_json::json!({"code": "UNAVAILABLE", "error": error, "message": "as scripted"}))
        }
        None => {
            let number = server.asked.borrow().len();
            let expires_at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(lasts);
            let token = format!("token-{number}");
            (200, serde_json::json!({"token": token, "worker_id": worker_id, "expires_at": expires_at.to_string()}))
        }
    };
    Response::builder().status(status).body(text.to_string().into()).unwrap()
}

/// A job with a lease of `ttl` seconds.
pub fn job(id: &str, operator: &str, ttl: u64) -> Job {
    Job {
        job_id: id.into(),
        attempt_id: format!("att_{id}"),
        lease_token: format!("lt_{id}"),
        stream: "q".into(),
        message_id: "1".into(),
        payload: Json::from(serde_json::json!({"id": id})),
        lease_ttl_seconds: ttl,
        heartbeat_interval_seconds: ttl / 3,
        attempt: 1,
        fence: 7,
        operator: operator.into(),
        deadline: None,
        traceparent: None,
        previous_progress: None,
    }
}

pub fn heartbeats(seen: &[Seen]) -> usize {
    seen.iter().filter_map(|seen| seen.body.heartbeat.as_ref()).map(Vec::len).sum()
}

/// The ids of completed jobs.
pub fn completed(seen: &[Seen]) -> Vec<String> {
    let completes = seen.iter().filter_map(|seen| seen.body.complete.as_ref()).flatten();
    completes.map(|item| item.job_id.clone()).collect()
}

/// The ids and codes of failed jobs.
pub fn failed(seen: &[Seen]) -> Vec<(String, String)> {
    let fails = seen.iter().filter_map(|seen| seen.body.fail.as_ref()).flatten();
    fails.map(|item| (item.job_id.clone(), item.error.code.clone())).collect()
}
