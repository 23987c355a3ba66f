//! A worker process that tasks are pushed to, and that behaves as badly as workers do.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::routing::post;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::history::{Answer, Attempt, Call, Recorder};
use super::{SECRET, TTL_MS};
use crate::http::Http;
use crate::rng::Rng;

/// How often a call without an answer is sent again.
const TRIES: usize = 8;

/// How one worker process is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct PushArgs {
    /// Names this process in the history, and is its worker id.
    #[arg(long)]
    pub process: String,
    #[arg(long)]
    pub seed: u64,
    #[arg(long)]
    pub port: u16,
    #[arg(long = "server", required = true)]
    pub servers: Vec<String>,
    /// Folder of the histories.
    #[arg(long)]
    pub history: PathBuf,
}

struct Worker {
    args: PushArgs,
    http: Http,
    recorder: Recorder,
    rng: Mutex<Rng>,
    /// Dispatches, and whether each is finished.
    known: Mutex<HashMap<String, bool>>,
}

/// How a push is answered.
#[derive(Debug, Clone, Copy)]
enum Welcome {
    /// At once, or after this long.
    Takes(Duration),
    /// With this status, and nothing is done.
    Fails(StatusCode),
}

/// What will happen to a task, drawn when it was accepted.
#[derive(Debug, Clone, Copy)]
struct Manners {
    works_for: Duration,
    /// Tells that it has begun.
    starts: bool,
    beats: bool,
    /// Goes on although it was told that the attempt is not its own any longer.
    deaf: bool,
    end: End,
    /// Sends the same again, after this time.
    again: Option<Duration>,
    /// Says something else afterwards.
    contradicts: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeds,
    Fails { retryable: bool },
    Silent,
}

fn welcome(rng: &mut Rng) -> Welcome {
    match rng.between(0, 100) {
        0..10 => Welcome::Fails(StatusCode::INTERNAL_SERVER_ERROR),
        10..13 => Welcome::Fails(StatusCode::SERVICE_UNAVAILABLE),
        13..14 => Welcome::Fails(StatusCode::BAD_REQUEST),
        14..22 => Welcome::Takes(Duration::from_millis(rng.between(200, 2_000))),
        _ => Welcome::Takes(Duration::ZERO),
    }
}

impl Manners {
    fn draw(rng: &mut Rng) -> Self {
        let works_for = match rng.between(0, 100) {
            0..60 => rng.between(1, 60),
            60..85 => rng.between(60, TTL_MS),
            _ => rng.between(TTL_MS, TTL_MS * 2),
        };
        let end = match rng.between(0, 100) {
            0..80 => End::Succeeds,
            80..92 => End::Fails { retryable: true },
            92..96 => End::Fails { retryable: false },
            _ => End::Silent,
        };
        Self {
            works_for: Duration::from_millis(works_for),
            starts: rng.chance(93),
            beats: rng.chance(65),
            deaf: rng.chance(50),
            end,
            again: rng.chance(15).then(|| Duration::from_millis(rng.between(0, TTL_MS * 2))),
            contradicts: rng.chance(4),
        }
    }
}

/// Works until it is killed.
pub async fn run(args: PushArgs) -> Result<()> {
    let parent = nix::unistd::getppid();
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", args.port)).await?;
    let worker = Arc::new(Worker {
        http: Http::plain(args.servers.clone())?,
        recorder: Recorder::create(&args.history, &args.process)?,
        rng: Mutex::new(Rng::fork(args.seed, &args.process)),
        known: Mutex::default(),
        args,
    });
    let orphaned = async {
        while nix::unistd::getppid() == parent {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let routes = Router::new().route("/dispatch", post(dispatch)).with_state(worker);
    tokio::select! {
        ended = async { axum::serve(listener, routes).await } => Ok(ended?),
        () = orphaned => Ok(()),
    }
}

async fn dispatch(
    State(worker): State<Arc<Worker>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, [(HeaderName, &'static str); 1]) {
    let after = [(axum::http::header::RETRY_AFTER, "1")];
    let envelope: Value = serde_json::from_slice(&body).unwrap_or_default();
    let op = worker.recorder.ask(delivery(&headers, &envelope));
    let welcome = worker.draw(welcome);
    let id = envelope["dispatchId"].as_str().unwrap_or_default().to_owned();
    let known = worker.known().get(&id).copied();
    let status = match (known, welcome) {
        (Some(true), _) => StatusCode::CONFLICT,
        (Some(false), _) => StatusCode::SERVICE_UNAVAILABLE,
        (None, Welcome::Fails(status)) => status,
        (None, Welcome::Takes(pause)) => {
            worker.known().insert(id.clone(), false);
            let manners = worker.draw(Manners::draw);
            let working = Arc::clone(&worker);
            tokio::spawn(async move {
                working.work(&envelope, manners).await;
                working.known().insert(id, true);
            });
            sleep(pause).await;
            StatusCode::ACCEPTED
        }
    };
    worker.recorder.answer(&op, &Answer::Took { status: status.as_u16() });
    (status, after)
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn attempt(envelope: &Value) -> Attempt {
    let number = envelope["attempt"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
    Attempt { nonce: text(&envelope["payload"], "nonce"), number, id: text(envelope, "attemptId") }
}

/// What was delivered, and what is wrong with it.
fn delivery(headers: &HeaderMap, envelope: &Value) -> Call {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = text(envelope, "taskToken");
    let mut parts = token.split('.').map(|part| BASE64_URL_SAFE_NO_PAD.decode(part).unwrap_or_default());
    let mut part = || serde_json::from_slice::<Value>(&parts.next().unwrap_or_default()).unwrap_or_default();
    let (signed, claims) = (part(), part());
    let checks = [
        ("the secret", header("x-tenure-dispatch-secret") == SECRET),
        ("the dispatch id of the header", header("x-tenure-dispatch-id") == envelope["dispatchId"]),
        ("the contract", header("x-tenure-contract") == "callback/1"),
        ("the scope", envelope["tenantId"] == "default" && envelope["workspaceId"] == "default"),
        ("the algorithm of the token", signed["alg"] == "ES256"),
        ("the audience of the token", claims["aud"] == "tenure.callback"),
        ("the task of the token", claims["taskId"] == envelope["taskId"] && claims["runId"] == envelope["runId"]),
        ("the attempt of the token", claims["attempt"] == envelope["attempt"]),
        ("the attempt id of the token", claims["attemptId"] == envelope["attemptId"]),
        ("the heartbeat time-out", envelope["heartbeatTimeoutMs"] == TTL_MS),
    ];
    Call::Delivery {
        attempt: attempt(envelope),
        queue: text(envelope, "workerQueue"),
        fence: envelope["fence"].as_u64().unwrap_or_default(),
        dispatch_id: text(envelope, "dispatchId"),
        count: header("x-tenure-delivery-count").parse().unwrap_or_default(),
        wrong: checks.into_iter().filter(|(_, right)| !right).map(|(what, _)| what.to_owned()).collect(),
    }
}

impl Worker {
    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work(&self, envelope: &Value, manners: Manners) {
        let attempt = attempt(envelope);
        let job = Job { worker: self, attempt: &attempt, envelope };
        if manners.starts {
            let call = Call::Started { attempt: attempt.clone() };
            let answer = job.say("started", &json!({}), call, TRIES, |_| Some(Answer::Started)).await;
            if matches!(answer, Answer::Refused { .. }) && !manners.deaf {
                return;
            }
        }
        let end = Instant::now() + manners.works_for;
        let mut next = Instant::now() + Duration::from_millis(TTL_MS / 3);
        while manners.beats && next < end {
            sleep_until(next).await;
            next += Duration::from_millis(TTL_MS / 3);
            let call = Call::Heartbeat { attempt: attempt.clone() };
            let answer = job.say("heartbeat", &json!({}), call, 1, |_| Some(Answer::Renewed)).await;
            if matches!(answer, Answer::Refused { .. }) && !manners.deaf {
                return;
            }
        }
        sleep_until(end).await;
        let completion = |end| {
            let by = format!("{} {} {:x}", self.args.process, attempt.number, self.draw(Rng::draw));
            match end {
                End::Succeeds => Some((true, json!({"outcome": "SUCCEEDED", "output": {"by": by}}))),
                End::Fails { retryable } => {
                    let error = json!({"category": "USER_CODE", "message": by, "retryable": retryable});
                    Some((false, json!({"outcome": "FAILED", "error": error})))
                }
                End::Silent => None,
            }
        };
        let Some(said) = completion(manners.end) else { return };
        let answer = job.complete(&said, TRIES).await;
        if let Some(pause) = manners.again {
            sleep(pause).await;
            job.complete(&said, 1).await;
        }
        if manners.contradicts && !answer.is_open() {
            let other = if said.0 { End::Fails { retryable: true } } else { End::Succeeds };
            if let Some(other) = completion(other) {
                job.complete(&other, 1).await;
            }
        }
    }
}

/// An attempt in the hands of a worker.
struct Job<'a> {
    worker: &'a Worker,
    attempt: &'a Attempt,
    envelope: &'a Value,
}

impl Job<'_> {
    /// One callback, noted in the history, until it is answered.
    async fn say(
        &self,
        verb: &str,
        extra: &Value,
        call: Call,
        tries: usize,
        read: impl Fn(&Value) -> Option<Answer>,
    ) -> Answer {
        let mut body = json!({"attempt": self.attempt.number, "attemptId": self.attempt.id,
            "workerId": self.worker.args.process});
        if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
            body.extend(extra.clone());
        }
        let path = format!("/v1/tasks/{}/{verb}", text(self.envelope, "taskId"));
        let bearer = format!("Bearer {}", text(self.envelope, "taskToken"));
        let mut answer = Answer::NotSent;
        for turn in 0..tries {
            let op = self.worker.recorder.ask(call.clone());
            let server = self.worker.draw(|rng| rng.index(self.worker.http.servers()));
            let reply = self.worker.http.send(server, &path, ("authorization", &bearer), Some(&body)).await;
            answer = Answer::of(&reply, |body| read(body).filter(|_| body["acknowledged"] == true));
            self.worker.recorder.answer(&op, &answer);
            if !answer.is_open() {
                break;
            }
            sleep(Duration::from_millis(100 << turn.min(4))).await;
        }
        answer
    }

    async fn complete(&self, said: &(bool, Value), tries: usize) -> Answer {
        let (succeeded, content) = said;
        let call =
            Call::Completed { attempt: self.attempt.clone(), succeeded: *succeeded, content: content.to_string() };
        let read = |body: &Value| {
            Some(Answer::Recorded {
                state: body["finalState"].as_str()?.to_owned(),
                disposition: text(body, "disposition"),
                at: body["serverTime"].as_str()?.to_owned(),
            })
        };
        self.say("completed", content, call, tries, read).await
    }
}
