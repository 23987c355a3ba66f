//! Why a task is where it is, with what is known of its attempt, its failure and its workers.

use axum::extract::{Extension, Path, State};
use axum::response::Response;
use serde_json::json;
use tenure_contract::Json;
use tenure_contract::user::{Why, WhyReason};
use tenure_core::command::Rejection;
use tenure_core::task::{End, Finished, Place, PushProgress, Running};
use tenure_core::time::DurationMs;
use tenure_core::{Timestamp, why as causes};
use tenure_engine::store::{TaskView, WorkerRecord};

use super::{render, respond, words};
use crate::access::guard::User;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;
use crate::{push, validate};

/// Workers that are looked at.
const WORKERS: usize = 1_000;
/// A worker that has not called for this long is worth a word.
const SILENT_MS: DurationMs = 30_000;
/// A worker that has not called for this long is taken for gone.
const GONE_MS: DurationMs = 120_000;
const ERROR_BYTES: usize = 300;

/// Why a task is not running
#[utoipa::path(get, path = "/api/v1/tasks/{id}/why", operation_id = "explain_task", tag = "tasks", params(("id" = String, Path, description = "UUID, task_<ULID> or ULID")), security(("api_key" = ["read"])),
    responses((status = 200, body = Why, description = "The reasons")))]
pub async fn why(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(task): Path<String>,
) -> Response {
    let answer = async {
        let found = app.engine.why(validate::task_id(&task, "id")?, &caller.reach()).await?;
        let (view, why) = found.ok_or(Fault::Refused(Rejection::NotFound))?;
        let now = app.engine.now().await?;
        let target_down = match view.place {
            Place::Ready(_) => push::target_down(&app, view.body.queue),
            _ => None,
        };
        let mut reasons: Vec<WhyReason> = target_down.clone().into_iter().collect();
        let strict = why.iter().find_map(|why| match why {
            causes::Why::NoFreeWorker { strict, .. } => Some(*strict),
            _ => None,
        });
        if let Some(strict) = strict.filter(|_| target_down.is_none()) {
            reasons.extend(about_workers(&workers(&app, &view).await?, &view, strict, now));
        }
        let is_explained = !reasons.is_empty();
        for why in &why {
            let mut reason = render::why(why);
            // Nobody asks for tasks of a target that is down, or takes them: what is known already says more.
            if reason.code == "no_worker" && is_explained {
                continue;
            }
            match (why, &view.place) {
                (causes::Why::Running { .. }, Place::Running(running)) => about_attempt(&mut reason, running, now),
                (causes::Why::Ended { .. }, Place::Finished(finished)) => about_end(&mut reason, finished),
                _ => {}
            }
            reasons.push(reason);
        }
        Ok(Why { task_id: view.body.id.to_string(), state: words::task(view.place.state()), why: reasons })
    };
    respond(answer.await, &id)
}

/// Workers that ask for tasks of the queue and are not gone.
async fn workers(app: &App, view: &TaskView) -> Result<Vec<WorkerRecord>, Fault> {
    let now = app.engine.now().await?;
    let found = app.engine.worker_records("", WORKERS).await?.items;
    let serves = |record: &WorkerRecord| {
        record.queues.contains(&view.queue) && (record.held > 0 || now.since(record.seen_at) <= GONE_MS)
    };
    Ok(found.into_iter().filter(serves).collect())
}

/// What holds a task back although workers ask for its queue. Names no worker: who may read a task need not know them.
fn about_workers(workers: &[WorkerRecord], view: &TaskView, strict: bool, now: Timestamp) -> Option<WhyReason> {
    if workers.is_empty() {
        return None;
    }
    let count = workers.len();
    let drained = workers.iter().filter(|worker| worker.drained_at.is_some()).count();
    let silent: Vec<&WorkerRecord> =
        workers.iter().filter(|worker| now.since(worker.seen_at) > SILENT_MS && worker.held > 0).collect();
    let (held, slots) = (workers.iter().map(|worker| worker.held).sum::<u64>(), slots(workers));
    let operator = &view.body.operator;
    let lacks =
        |worker: &WorkerRecord| !worker.details.operators.is_empty() && !worker.details.operators.contains(operator);
    let detail = json!({"workers": count, "drained": drained, "silent": silent.len(), "held": held, "slots": slots});
    let (code, message) = if drained == count {
        ("workers_drained", format!("{} of this queue {} drained", workers_of(count), are(count)))
    } else if workers.iter().all(lacks) {
        let message =
            format!("no worker of this queue has the operator `{operator}`: a worker that takes the task fails it");
        ("unknown_operator", message)
    } else {
        let mut message = format!("{} for this queue", asks(count));
        message += &match slots {
            Some(slots) => format!("; {held} of {slots} slots are in use"),
            None => format!("; {} {}", hold(count), tasks_of(held)),
        };
        if let Some(oldest) = silent.iter().map(|worker| worker.seen_at).min() {
            let tasks = silent.iter().map(|worker| worker.held).sum::<u64>();
            let age = seconds(now.since(oldest));
            message += &format!(
                "; {} with {} {} not been seen for {age} and may be frozen",
                workers_of(silent.len()),
                tasks_of(tasks),
                if silent.len() == 1 { "has" } else { "have" }
            );
        }
        if strict {
            message += "; the queue requires workers that run tasks in sandboxes (strict)";
        }
        ("no_worker", message)
    };
    let since = match &view.place {
        Place::Ready(waiting) => Some(waiting.at.to_string()),
        _ => None,
    };
    Some(WhyReason { code: code.to_owned(), message, since, detail: Some(Json::from(detail)) })
}

fn slots(workers: &[WorkerRecord]) -> Option<u64> {
    workers.iter().map(|worker| worker.details.slots.map(u64::from)).sum()
}

fn workers_of(count: usize) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

fn tasks_of(count: u64) -> String {
    if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") }
}

const fn hold(count: usize) -> &'static str {
    if count == 1 { "it holds" } else { "they hold" }
}

fn asks(count: usize) -> String {
    format!("{} {}", workers_of(count), if count == 1 { "asks" } else { "ask" })
}

const fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

fn seconds(ms: DurationMs) -> String {
    format!("{} s", ms.max(0) / 1_000)
}

/// How an attempt that runs is: who holds it, its last heartbeat, the end of its lease, or how far its push is.
fn about_attempt(reason: &mut WhyReason, running: &Running, now: Timestamp) {
    let left = running.lease.expires_at.since(now);
    let lease_end = if left >= 0 { format!("in {}", seconds(left)) } else { format!("{} ago", seconds(-left)) };
    let mut detail = json!({
        "attempt": running.attempt,
        "lease_expires_at": running.lease.expires_at.to_string(),
        "heartbeat_interval_seconds": running.heartbeat_ms / 1_000,
    });
    let push = running.carry.delivery.as_deref().filter(|push| push.started_at.is_none());
    let message = match (push, &running.lease.holder) {
        (Some(push), _) => pushed(push, now, &mut detail),
        (None, holder) => {
            let on = holder.as_deref().filter(|id| !id.is_empty());
            detail["worker_id"] = json!(on);
            let last = running.last_heartbeat_at.unwrap_or(running.granted_at);
            let age = now.since(last);
            detail["heartbeat_age_ms"] = json!(age);
            let on = on.map(|id| format!(" on {id}")).unwrap_or_default();
            if age > 2 * running.heartbeat_ms {
                let every = seconds(running.heartbeat_ms);
                format!(
                    "running{on}; no heartbeat for {} (expected every {every}): the worker may be frozen or cut off. The lease \
                     ends {lease_end}, then the task is tried again",
                    seconds(age)
                )
            } else {
                format!(
                    "running{on}; last heartbeat {} ago, the lease ends {lease_end} unless it is renewed",
                    seconds(age)
                )
            }
        }
    };
    reason.message = if running.cancel.is_some() { format!("{message}; asked to stop") } else { message };
    reason.detail = Some(Json::from(detail));
}

fn pushed(push: &PushProgress, now: Timestamp, detail: &mut serde_json::Value) -> String {
    detail["pushes"] = json!(push.deliveries);
    detail["accepted_at"] = json!(push.accepted_at.map(|at| at.to_string()));
    detail["next_push_at"] = json!(push.next_at.map(|at| at.to_string()));
    let times = if push.deliveries == 1 { "once".to_owned() } else { format!("{} times", push.deliveries) };
    let next = push.next_at.map(|at| format!("; pushed again in {}", seconds(at.since(now)))).unwrap_or_default();
    match push.accepted_at {
        Some(at) => {
            format!("pushed {times} and accepted {} ago; the worker has not started it{next}", seconds(now.since(at)))
        }
        None if push.deliveries == 0 => "about to be pushed".to_owned(),
        None => format!("pushed {times}, not accepted yet{next}"),
    }
}

/// What a task ended with.
fn about_end(reason: &mut WhyReason, finished: &Finished) {
    let max_attempts = finished.carry.allowed_attempts();
    let mut detail = json!({"attempts": finished.attempt, "max_attempts": max_attempts});
    let error = finished.failure.as_ref().map(|failure| {
        detail["error_code"] = json!(&*failure.code);
        format!(": {}: {}", failure.code, tenure_core::limits::cut(&failure.message, ERROR_BYTES))
    });
    let error = error.unwrap_or_default();
    detail["dead_letter"] = json!(finished.dead_lettered_at.is_some());
    reason.message = match finished.end {
        End::Succeeded => "succeeded".to_owned(),
        End::Failed => {
            let why = finished.reason.map(|reason| format!(" ({})", reason.as_str())).unwrap_or_default();
            let attempts = if max_attempts == 1 { "attempt" } else { "attempts" };
            format!("failed after {} of {max_attempts} {attempts}{why}{error}", finished.attempt)
        }
        End::Canceled => {
            let by = finished.cancel_reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("canceled{by}")
        }
        End::Skipped => "skipped: a task that it depends on did not succeed".to_owned(),
    };
    reason.detail = Some(Json::from(detail));
}
