//! The exchange: one request per turn of a worker's loop, so that throughput is not bound by round trips.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tenure_auth::Worker;
use tenure_contract::pull::{ExchangeClaim, ExchangeRequest, ExchangeResponse, ItemAnswer, WatchAnswer};
use tenure_core::attempt::Receipt;
use tenure_core::command::claim::{Claim, Claimer};
use tenure_core::command::heartbeat::{Heartbeat, Renewed};
use tenure_core::command::report::AttemptReport;
use tenure_core::limits;
use tenure_core::mutant;
use tenure_engine::{ClaimWait, Reply, Watched};
use tokio_stream::wrappers::ReceiverStream;

use super::errors;
use crate::access::guard::AsWorker;
use crate::contracts::pull::{self, SentBy};
use crate::error::Fault;
use crate::request::{self, RequestId};
use crate::state::App;
use crate::{audit, validate};

/// A request, checked. The commands of faulty items are missing; their answers are ready.
struct Exchange {
    complete: Option<Part<AttemptReport>>,
    fail: Option<Part<AttemptReport>>,
    heartbeat: Option<Part<Heartbeat>>,
    claim: Option<(Claim, ClaimWait)>,
    watch: Option<Watching>,
    split: bool,
    bytes: usize,
    worker: String,
}

/// Whose jobs are watched, from where on, and for how long.
struct Watching {
    watched: Watched,
    cursor: Option<String>,
    wait: ClaimWait,
}

/// Items of one kind: what to run, or what is wrong.
type Part<T> = Vec<Result<T, Fault>>;

/// `POST /internal/worker/exchange`
#[utoipa::path(post, path = "/internal/worker/exchange", tag = "pull contract", request_body = ExchangeRequest,
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, content((ExchangeResponse = "application/json"), (String = "application/x-ndjson"))), (status = "4XX", body = tenure_contract::error::WorkerError),
              (status = 503, body = tenure_contract::error::WorkerError)))]
pub async fn exchange(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let exchange = match check(&app, &worker, &headers, body).await {
        Ok(exchange) => exchange,
        Err(fault) => return errors::refuse(fault, &id),
    };
    if exchange.split {
        return split(app, exchange, id);
    }
    match whole(&app, exchange).await {
        Ok(answer) => Json(answer).into_response(),
        Err(fault) => errors::refuse(fault, &id),
    }
}

async fn check(app: &App, worker: &Worker, headers: &HeaderMap, body: Body) -> Result<Exchange, Fault> {
    let raw = request::read(headers, body, limits::BATCH_BODY_BYTES).await?;
    let request: ExchangeRequest = raw.decode()?;
    let complete = part(request.complete, "complete", |item| Ok(pull::success_of(item)?.sent_by(worker)))?;
    let fail = part(request.fail, "fail", |item| Ok(pull::failure_of(item)?.sent_by(worker)))?;
    let heartbeat = part(request.heartbeat, "heartbeat", |item| Ok(pull::heartbeat_of(item)?.sent_by(worker)))?;
    let claim = request.claim.as_ref();
    let claim_id = claim.and_then(|claim| claim.claim_id.as_deref());
    let asked = claim.map(check_claim).transpose()?;
    let kills_on_expiry = claim.is_some_and(|claim| claim.kills_on_expiry);
    let incarnation = request.incarnation.as_deref();
    let claimer = pull::claimer(app, worker, &request.worker_id, claim_id, incarnation, kills_on_expiry)?;
    let streams = claim.map(|claim| claim.streams.as_slice());
    pull::note_worker(app, &claimer, streams, request.worker.as_ref());
    pull::hello(app, &claimer).await?;
    if claim.is_some() && request.watch.is_some() {
        return Err(Fault::invalid("watch", "cannot wait together with a claim: use two requests"));
    }
    let watch = request.watch.map(|watch| {
        let wait = pull::wait_of(watch.max_wait_ms, "watch.max_wait_ms")?;
        let cursor = watch.cursor.filter(|cursor| cursor.len() <= limits::CLAIM_ID_BYTES);
        let worker = claimer.worker.as_ref().map(|worker| Arc::clone(&worker.id)).ok_or(Fault::Internal)?;
        Ok::<_, Fault>(Watching { watched: Watched::Worker(worker), cursor, wait })
    });
    Ok(Exchange {
        watch: watch.transpose()?,
        complete,
        fail,
        heartbeat,
        claim: asked.map(|asked| asked.by(claimer)),
        split: request.split == Some(true),
        bytes: raw.bytes.len(),
        worker: request.worker_id,
    })
}

fn part<T, C>(
    items: Option<Vec<T>>,
    field: &str,
    command: impl Fn(T) -> Result<C, Fault>,
) -> Result<Option<Part<C>>, Fault> {
    let Some(items) = items else { return Ok(None) };
    if items.len() > limits::EXCHANGE_ITEMS {
        return Err(Fault::invalid(field, &format!("at most {} items", limits::EXCHANGE_ITEMS)));
    }
    Ok(Some(items.into_iter().map(command).collect()))
}

struct Asked {
    queues: Vec<Arc<str>>,
    max_jobs: usize,
    wait: ClaimWait,
}

impl Asked {
    fn by(self, claimer: Claimer) -> (Claim, ClaimWait) {
        (Claim { claimer, queues: self.queues, max_jobs: self.max_jobs }, self.wait)
    }
}

fn check_claim(claim: &ExchangeClaim) -> Result<Asked, Fault> {
    let max_jobs = claim.max_jobs.unwrap_or(1);
    let max_jobs = validate::within(max_jobs, 1, limits::EXCHANGE_ITEMS as i64, "claim.max_jobs")?;
    Ok(Asked {
        queues: pull::streams(&claim.streams, "claim.streams")?,
        max_jobs: usize::try_from(max_jobs).unwrap_or(1),
        wait: pull::wait(claim.max_wait_ms)?,
    })
}

/// The answers to the reports, and what was claimed without waiting.
struct Turn {
    reports: ExchangeResponse,
    jobs: Option<Vec<tenure_contract::pull::Job>>,
}

/// Reports and a first try of the claim are committed together; heartbeats go their own way beside them.
async fn turn(app: &App, exchange: &mut Exchange) -> Result<Turn, Fault> {
    let mut reports = valid(exchange.complete.as_deref());
    reports.extend(valid(exchange.fail.as_deref()));
    let left_out = if reports.len() > 1 && mutant!("exchange-item-left-out") { reports.pop() } else { None };
    let beats = valid(exchange.heartbeat.as_deref());
    let claim = exchange.claim.as_ref().map(|(claim, _)| claim.clone());
    let senders: Vec<audit::Sender> = beats.iter().map(audit::Sender::of).collect();
    let (reported, beaten) =
        tokio::join!(app.engine.report_and_claim(reports, claim, exchange.bytes), app.engine.heartbeats(beats, 0));
    let beaten = beaten?;
    audit::heartbeats_of_another(app, &senders, &beaten).await;
    let (receipts, claimed) = reported?;
    let mut receipts = receipts.into_iter().chain(left_out.map(|_| Ok(Ok(Receipt::Completed))));
    let reports = ExchangeResponse {
        complete: answers(exchange.complete.take(), &mut receipts, show_receipt),
        fail: answers(exchange.fail.take(), &mut receipts, show_receipt),
        heartbeat: answers(exchange.heartbeat.take(), &mut beaten.into_iter(), show_lease),
        ..ExchangeResponse::default()
    };
    let jobs = match claimed {
        Some(claimed) => Some(pull::jobs(app, claimed).await?),
        None => None,
    };
    Ok(Turn { reports, jobs })
}

fn valid<T: Clone>(part: Option<&[Result<T, Fault>]>) -> Vec<T> {
    part.into_iter().flatten().filter_map(|item| item.as_ref().ok()).cloned().collect()
}

/// The answers to a part. Those of faulty items are ready; every other item has the next reply.
fn answers<T, A>(
    part: Option<Part<T>>,
    replies: &mut impl Iterator<Item = Reply<A>>,
    show: impl Fn(A) -> ItemAnswer,
) -> Option<Vec<ItemAnswer>> {
    let mut answer = |item: Result<T, Fault>| {
        item?;
        Ok::<_, Fault>(show(replies.next().ok_or(Fault::Internal)???))
    };
    part.map(|items| items.into_iter().map(|item| answer(item).unwrap_or_else(|fault| errors::item(&fault))).collect())
}

fn show_receipt(receipt: Receipt) -> ItemAnswer {
    let (requeued, dlq) = match receipt {
        Receipt::Completed => (None, None),
        Receipt::Failed { requeued, dlq } => (Some(requeued), Some(dlq)),
    };
    ItemAnswer { ok: true, ack: Some(true), requeued, dlq, ..ItemAnswer::default() }
}

fn show_lease(renewed: Renewed) -> ItemAnswer {
    ItemAnswer {
        ok: true,
        lease_expires_at: Some(renewed.expires_at.to_string()),
        should_cancel: Some(renewed.cancel.is_some()),
        cancel_reason: renewed.cancel.map(|reason| reason.to_string()),
        ..ItemAnswer::default()
    }
}

fn has_reports(exchange: &Exchange) -> bool {
    let Exchange { complete, fail, heartbeat, .. } = exchange;
    let counts = [complete.as_ref().map(Vec::len), fail.as_ref().map(Vec::len), heartbeat.as_ref().map(Vec::len)];
    counts.into_iter().flatten().sum::<usize>() > 0
}

/// One body. The claim waits only if nothing was reported: answers to reports are not held back.
async fn whole(app: &App, mut exchange: Exchange) -> Result<ExchangeResponse, Fault> {
    let may_wait = !has_reports(&exchange);
    let mut turn = turn(app, &mut exchange).await?;
    if may_wait && turn.jobs.as_ref().is_some_and(Vec::is_empty) {
        turn.jobs = wait(app, exchange.claim.take()).await?;
    }
    let watch = match exchange.watch {
        Some(watch) => Some(watched(app, watch, may_wait).await),
        None => None,
    };
    let drained = turn.jobs.is_some() && app.engine.is_drained(&exchange.worker);
    Ok(ExchangeResponse { jobs: turn.jobs, watch, drained, ..turn.reports })
}

/// What is to stop. Waits for it, unless something was reported.
async fn watched(app: &App, watch: Watching, may_wait: bool) -> WatchAnswer {
    let wait = if may_wait { watch.wait.0 } else { Duration::ZERO };
    let (stop, cursor) = app.engine.stops(&watch.watched, watch.cursor.as_deref(), wait).await;
    WatchAnswer { stop: stop.iter().map(ToString::to_string).collect(), cursor }
}

async fn wait(app: &App, claim: Option<(Claim, ClaimWait)>) -> Result<Option<Vec<tenure_contract::pull::Job>>, Fault> {
    let Some((claim, wait)) = claim else { return Ok(None) };
    let claimed = app.engine.claim(claim, wait).await?;
    Ok(Some(pull::jobs(app, claimed).await?))
}

/// NDJSON: a line for each part, the reports' lines at once, the claim's when it has an answer.
fn split(app: App, mut exchange: Exchange, id: RequestId) -> Response {
    let (lines, stream) = tokio::sync::mpsc::channel::<Result<Bytes, std::convert::Infallible>>(8);
    tokio::spawn(async move {
        let send = async |part: ExchangeResponse| {
            let mut line = serde_json::to_vec(&part).unwrap_or_default();
            line.push(b'\n');
            lines.send(Ok(line.into())).await.is_ok()
        };
        let failed = |fault: Fault| ExchangeResponse { claim_error: Some(errors::item(&fault)), ..Default::default() };
        let turn = match turn(&app, &mut exchange).await {
            Ok(turn) => turn,
            Err(fault) => {
                tracing::warn!(request.id = id.0, ?fault, "exchange failed");
                send(failed(fault)).await;
                return;
            }
        };
        let ExchangeResponse { complete, fail, heartbeat, .. } = turn.reports;
        let parts = [
            complete.map(|complete| ExchangeResponse { complete: Some(complete), ..Default::default() }),
            fail.map(|fail| ExchangeResponse { fail: Some(fail), ..Default::default() }),
            heartbeat.map(|heartbeat| ExchangeResponse { heartbeat: Some(heartbeat), ..Default::default() }),
        ];
        for part in parts.into_iter().flatten() {
            send(part).await;
        }
        let jobs = match turn.jobs {
            // A worker that is gone takes no job.
            Some(jobs) if jobs.is_empty() => tokio::select! {
                jobs = wait(&app, exchange.claim.take()) => jobs,
                () = lines.closed() => return,
            },
            jobs => Ok(jobs),
        };
        if let Some(watch) = exchange.watch {
            let watch = Some(watched(&app, watch, true).await);
            send(ExchangeResponse { watch, ..Default::default() }).await;
        }
        match jobs {
            Ok(None) => {}
            Ok(jobs) => {
                let drained = app.engine.is_drained(&exchange.worker);
                send(ExchangeResponse { jobs, drained, ..Default::default() }).await;
            }
            Err(fault) => {
                send(failed(fault)).await;
            }
        }
    });
    let mut response = Body::from_stream(ReceiverStream::new(stream)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}
