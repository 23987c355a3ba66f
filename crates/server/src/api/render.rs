//! The core's types as the user API shows them.

use tenure_contract::Json;
use tenure_contract::pull::{JobError, JobMetrics};
use tenure_contract::run;
use tenure_contract::user::{self, Attempt, CallbackAttempt, DeadLetter, LateReport, WhyReason};
use tenure_contract::words::{AttemptState, RedriveState};
use tenure_core::attempt::{CallbackPart, ClosedAttempt, Evidence, Failure};
use tenure_core::batch::Counts;
use tenure_core::id::ulid;
use tenure_core::run::{Run, Upstream};
use tenure_core::task::{End, FailReason, Place, State};
use tenure_core::time::Timestamp;
use tenure_core::why::Why;
use tenure_engine::store::{AttemptView, QueueStats, RedriveFilter, RedriveView, RunTaskView, RunView, TaskView};

use super::words;
use crate::contracts::category;
use crate::error::runtime_message;
use crate::validate::runtime;

/// At least 1: a worker that was told 0 would never rest.
pub fn whole_seconds(ms: i64) -> u64 {
    (ms / 1000).max(1).unsigned_abs()
}

pub fn time(at: Timestamp) -> String {
    at.to_string()
}

pub fn failure(failure: &Failure) -> JobError {
    JobError {
        code: failure.code.to_string(),
        message: failure.message.to_string(),
        stack: failure.stack.as_deref().map(ToOwned::to_owned),
        retryable: failure.retryable,
        handed_back: failure.handed_back.then_some(true),
    }
}

pub fn task(view: &TaskView) -> user::Task {
    let body = &view.body;
    let place = &view.place;
    let extra = place.carry().extra_attempts;
    let mut task = user::Task {
        task_id: body.id.to_string(),
        queue: view.queue.to_string(),
        operator: body.operator.to_string(),
        state: words::task(place.state()),
        priority: body.priority,
        attempt: place.attempt(),
        max_attempts: body.spec.max_attempts().saturating_add(extra),
        fence: place.fence().0,
        payload: Json::from_trusted(body.payload.clone()),
        tags: body.tags.clone(),
        tenant: body.tenant.to_string(),
        workspace: body.workspace.to_string(),
        owner: body.owner.as_deref().map(ToOwned::to_owned),
        submitted_by: body.submitted_by.as_deref().map(ToOwned::to_owned),
        cancel_requested: false,
        created_at: time(body.created_at),
        run_at: time(body.run_at),
        started_at: place.last_attempt().and_then(|last| last.started_at()).map(time),
        finished_at: None,
        result: None,
        error: place.last_attempt().and_then(|last| last.failure.as_ref()).map(failure),
        reason: None,
        dead_lettered_at: None,
        cancel_reason: None,
        worker_id: place.last_attempt().and_then(|last| last.worker.as_deref()).map(ToOwned::to_owned),
        lease_expires_at: None,
        not_started: None,
        progress_pct: place.last_attempt().and_then(|last| last.progress.pct),
        progress_message: place.last_attempt().and_then(|last| last.progress.message.as_deref().map(ToOwned::to_owned)),
        idempotency_key: body.idempotency.as_ref().map(|idempotency| idempotency.key.to_string()),
        deadline: body.spec.deadline.map(time),
        run_id: body.run.as_ref().map(|run| run.run.to_string()),
        task_key: body.run.as_ref().map(|run| run.key.to_string()),
        runtime: body.envelope.as_ref().and_then(|envelope| envelope.sandbox.as_ref()).map(runtime::shown),
    };
    match place {
        Place::Blocked(blocked) => task.run_at = time(blocked.at),
        Place::Scheduled(waiting) | Place::Ready(waiting) => task.run_at = time(waiting.at),
        Place::Running(running) => {
            task.started_at = running.started_at().map(time);
            task.worker_id = running.lease.holder.as_deref().map(ToOwned::to_owned);
            task.lease_expires_at = Some(time(running.lease.expires_at));
            task.cancel_requested = running.cancel.is_some();
            task.cancel_reason = running.cancel.as_ref().map(|cancel| cancel.reason.to_string());
            task.progress_pct = running.progress.pct;
            task.progress_message = running.progress.message.as_deref().map(ToOwned::to_owned);
            let delivery = running.carry.delivery.as_ref().filter(|delivery| delivery.started_at.is_none());
            let waits = delivery.and_then(|delivery| delivery.unreachable.as_deref().or(delivery.no_room.as_deref()));
            task.not_started = waits.map(ToOwned::to_owned);
        }
        Place::Finished(finished) => {
            task.finished_at = Some(time(finished.finished_at));
            task.result = finished.result.clone().map(Json::from_trusted);
            task.error = finished.failure.as_ref().map(failure);
            task.reason = finished.reason.map(|reason| reason.as_str().to_owned());
            task.dead_lettered_at = finished.dead_lettered_at.map(time);
            task.cancel_reason = finished.cancel_reason.as_deref().map(ToOwned::to_owned);
            task.cancel_requested = finished.cancel_reason.is_some();
            if finished.end == End::Succeeded {
                // Whatever its worker said last.
                task.progress_pct = task.progress_pct.map(|_| 100);
            }
        }
    }
    task
}

pub fn attempt(view: &AttemptView) -> Attempt {
    match view {
        AttemptView::Closed(closed) => closed_attempt(closed),
        AttemptView::Open(running) => Attempt {
            attempt: running.attempt,
            attempt_id: running.attempt_id.to_string(),
            fence: running.lease.generation.0,
            worker_id: running.lease.holder.as_deref().unwrap_or_default().to_owned(),
            state: AttemptState::Running,
            reason: None,
            granted_at: time(running.granted_at),
            started_at: running.started_at().map(time),
            last_heartbeat_at: running.last_heartbeat_at.map(time),
            ended_at: None,
            error: None,
            category: None,
            progress_pct: running.progress.pct,
            progress_message: running.progress.message.as_deref().map(ToOwned::to_owned),
            late_report: None,
            metrics: None,
            callback: running.carry.delivery.as_deref().map(|delivery| CallbackAttempt {
                deliveries: delivery.deliveries,
                worker_started_at: delivery.told_started_at.or(delivery.started_at).map(time),
                worker_heartbeat_at: delivery.told_heartbeat_at.or(running.last_heartbeat_at).map(time),
                worker_completed_at: None,
                cancel_reason: running.cancel.as_ref().map(|cancel| cancel.reason.to_string()),
                cancelled_during_phase: None,
                partial_progress: None,
                metrics: None,
            }),
        },
    }
}

fn closed_attempt(closed: &ClosedAttempt) -> Attempt {
    Attempt {
        attempt: closed.number,
        attempt_id: closed.id.to_string(),
        fence: closed.fence.0,
        worker_id: closed.worker.as_deref().unwrap_or_default().to_owned(),
        state: words::attempt(closed.state),
        reason: Some(closed.reason.as_str().to_owned()),
        granted_at: time(closed.granted_at),
        started_at: closed.started_at().map(time),
        last_heartbeat_at: closed.last_heartbeat_at.map(time),
        ended_at: Some(time(closed.ended_at)),
        error: closed.failure.as_ref().map(failure),
        category: closed.category().map(|kind| category::word(kind).to_owned()),
        progress_pct: closed.progress.pct,
        progress_message: closed.progress.message.as_deref().map(ToOwned::to_owned),
        late_report: closed
            .evidence
            .as_ref()
            .map(|evidence| late_report(evidence, closed.worker.as_deref().unwrap_or_default())),
        metrics: closed
            .metrics
            .map(|used| JobMetrics { cpu_time_ms: used.cpu_time_ms, peak_memory_bytes: used.peak_memory_bytes }),
        callback: closed.callback.as_deref().map(|part| callback_attempt(part, closed)),
    }
}

/// Where the worker told no time, that of receipt stands.
fn callback_attempt(part: &CallbackPart, closed: &ClosedAttempt) -> CallbackAttempt {
    let completion = part.completion.as_deref();
    CallbackAttempt {
        deliveries: part.deliveries,
        worker_started_at: part.told_started_at.or(part.started_at).map(time),
        worker_heartbeat_at: part.told_heartbeat_at.or(closed.last_heartbeat_at).map(time),
        worker_completed_at: completion.map(|sent| time(sent.told_completed_at.unwrap_or(closed.ended_at))),
        cancel_reason: part.cancel_reason.as_deref().map(ToOwned::to_owned),
        cancelled_during_phase: completion.and_then(|sent| sent.phase.as_deref()).map(ToOwned::to_owned),
        partial_progress: completion.and_then(|sent| sent.partial_progress.clone()).map(Json::from_trusted),
        metrics: completion.and_then(|sent| sent.metrics.clone()).map(Json::from_trusted),
    }
}

fn late_report(evidence: &Evidence, worker: &str) -> LateReport {
    LateReport {
        received_at: time(evidence.received_at),
        outcome: words::attempt(evidence.state),
        worker_id: Some(evidence.worker.as_deref().unwrap_or(worker).to_owned()),
        result: evidence.result.clone().map(Json::from_trusted),
        error: evidence.failure.as_ref().map(failure),
        more: (evidence.more > 0).then_some(evidence.more),
    }
}

/// The first few by their keys, and how many more there are.
fn named(upstream: &[Upstream], waiting_on: u32) -> String {
    const NAMED: usize = 5;
    let mut names: Vec<String> =
        upstream.iter().take(NAMED).map(|one| format!("{} ({})", one.key, words::task(one.state))).collect();
    let more = (waiting_on as usize).saturating_sub(names.len());
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

pub fn why(why: &Why) -> WhyReason {
    let (message, since, detail) = match why {
        Why::BlockedOnDependencies { waiting_on, upstream } => {
            let tasks = upstream.iter().map(|one| {
                serde_json::json!({"key": &*one.key, "task_id": one.task.to_string(), "state": words::task(one.state)})
            });
            let detail = serde_json::json!({"waiting_on": waiting_on, "tasks": tasks.collect::<Vec<_>>()});
            (format!("waits for {}", named(upstream, *waiting_on)), None, Some(detail))
        }
        Why::WaitingUntil { at } => (format!("due at {at}"), None, Some(serde_json::json!({"until": time(*at)}))),
        Why::RetryBackoff { at, after, attempt, since } => {
            let cause = after.map_or("a failure", |reason| reason.as_str());
            let detail = serde_json::json!({"until": time(*at), "after": cause, "attempt": attempt});
            (format!("attempt {attempt} ended with {cause}; the next one may start at {at}"), *since, Some(detail))
        }
        Why::QueuePaused => ("the queue is paused".to_owned(), None, None),
        Why::Held { since } => ("the version of its DAG is not active yet".to_owned(), Some(*since), None),
        Why::QueueLimit { running, max_running, since } => {
            let detail = serde_json::json!({"max_running": max_running, "running": running});
            (format!("{running} of {max_running} slots in use"), Some(*since), Some(detail))
        }
        Why::RateLimit { per_second, next_at, since } => {
            let detail = serde_json::json!({"per_second": per_second, "next_at": time(*next_at)});
            (
                format!("the queue is limited to {per_second} tasks per second; the next may start at {next_at}"),
                Some(*since),
                Some(detail),
            )
        }
        Why::WrongRuntime { wants_sandbox } => (runtime_message(*wants_sandbox).to_owned(), None, None),
        Why::NoRoom { reason, since } => (format!("there is no room for the task now: {reason}"), Some(*since), None),
        Why::Unreachable { reason, since, next_at } => {
            let detail = serde_json::json!({"next_push_at": next_at.map(time)});
            (format!("{reason}; no attempt is spent, and the push is repeated"), Some(*since), Some(detail))
        }
        Why::NoWorker { last_seen_at, since, wake } => {
            let detail = match (last_seen_at, wake) {
                (None, None) => None,
                (Some(at), None) => Some(serde_json::json!({"last_seen_at": time(*at)})),
                (at, Some(wake)) => Some(serde_json::json!({"last_seen_at": at.map(time), "wake_up_queue": &**wake})),
            };
            let asked = match wake {
                None => "asked for this queue".to_owned(),
                Some(wake) => format!("asked for wake-ups of {wake} or claimed a task of this job"),
            };
            let message = match last_seen_at {
                Some(at) => format!("no worker has {asked} since {at}"),
                None => format!("no worker has ever {asked}"),
            };
            (message, Some(*since), detail)
        }
        Why::NoFreeWorker { since, strict: false } => {
            ("workers ask for this queue but are busy with earlier tasks".to_owned(), Some(*since), None)
        }
        Why::NoFreeWorker { since, strict: true } => {
            let message = "workers ask for this queue but are busy with earlier tasks, or do not run tasks in \
                           sandboxes, which this queue requires (strict)";
            (message.to_owned(), Some(*since), None)
        }
        Why::Running { since, cancel_requested: true } => ("running; asked to stop".to_owned(), Some(*since), None),
        Why::Running { since, .. } => ("running".to_owned(), Some(*since), None),
        Why::Ended { at, end } => (format!("ended: {end:?}"), Some(*at), None),
    };
    WhyReason { code: why.code().to_owned(), message, since: since.map(time), detail: detail.map(Json::from) }
}

pub fn queue(stats: &QueueStats) -> user::Queue {
    let settings = &stats.queue.settings;
    user::Queue {
        name: stats.queue.name.to_string(),
        tenant: stats.queue.tenant.as_deref().map(ToOwned::to_owned),
        paused: stats.queue.paused,
        kind: if settings.push.is_some() { "push" } else { "pull" }.to_owned(),
        transport: stats.queue.transport.as_str().to_owned(),
        limits: user::QueueLimits {
            max_running: settings.max_running.map(u64::from),
            rate: settings.rate.map(|rate| user::QueueRate { per_second: rate.per_second, burst: rate.burst }),
            fairness_key: settings.fairness_key.as_ref().map(ToString::to_string),
        },
        lease_ttl_seconds: settings.lease_ttl_ms.map(whole_seconds),
        heartbeat_interval_seconds: settings.heartbeat_ms.map(whole_seconds),
        dead_letter: !settings.no_dead_letter,
        strict: settings.strict,
        push: settings.push.as_deref().map(crate::push::shown),
        counts: counts(&stats.counts),
        oldest_ready_at: stats.oldest_ready_at.map(time),
    }
}

fn counts(counts: &Counts) -> user::QueueCounts {
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    user::QueueCounts {
        scheduled: number(counts.scheduled),
        ready: number(counts.ready),
        running: number(counts.running),
        dead_lettered: number(counts.dead_lettered),
    }
}

/// `None` for a task that left the dead letters meanwhile.
pub fn dead_letter(view: &TaskView) -> Option<DeadLetter> {
    let Place::Finished(finished) = &view.place else { return None };
    Some(DeadLetter {
        task_id: view.body.id.to_string(),
        queue: view.queue.to_string(),
        operator: view.body.operator.to_string(),
        reason: finished.reason.map_or("", FailReason::as_str).to_owned(),
        last_error: finished.failure.as_ref().map(failure),
        attempts: finished.attempt,
        redrive_count: finished.carry.redrives,
        dead_lettered_at: time(finished.dead_lettered_at?),
    })
}

pub fn redrive(view: &RedriveView) -> user::Redrive {
    user::Redrive {
        redrive_id: Some(format!("rd_{}", ulid::encode(view.redrive_id))),
        dry_run: false,
        matched: view.matched,
        released: view.released,
        state: match (view.canceled, view.finished, view.paused) {
            (true, _, _) => RedriveState::Canceled,
            (_, true, _) => RedriveState::Done,
            (_, _, true) => RedriveState::Paused,
            _ => RedriveState::Running,
        },
        filter: Some(redrive_filter(&view.filter)),
        named_tasks: view.filter.rows.as_ref().map(|rows| rows.len() as u64),
        rate: view.rate,
        started_at: Some(view.started_at.to_string()),
    }
}

/// Tasks that it names are counted only: a redrive may name a thousand.
pub fn redrive_filter(filter: &RedriveFilter) -> user::RedriveFilter {
    user::RedriveFilter {
        queue: filter.queue.clone(),
        operator: filter.operator.clone(),
        reason: filter.reason.clone(),
        error_code: filter.error_code.clone(),
        tenant: filter.tenant.clone(),
        after: filter.after.map(|at| at.to_string()),
        before: filter.before.map(|at| at.to_string()),
        task_ids: None,
    }
}

pub fn fingerprint(digest: &[u8; 32]) -> String {
    digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// A run without its tasks, as lists show it.
pub fn run(run: &Run) -> run::Run {
    let counts = &run.counts;
    run::Run {
        run_id: run.id.to_string(),
        run_key: run.key.as_deref().map(ToOwned::to_owned),
        state: words::run(run.state()),
        created: None,
        fingerprint: fingerprint(&run.fingerprint),
        tenant: run.tenant.to_string(),
        workspace: run.workspace.to_string(),
        owner: run.owner.as_deref().map(ToOwned::to_owned),
        labels: run.labels.clone(),
        deadline: run.deadline.map(time),
        cancel_requested: run.cancel_reason.is_some(),
        cancel_reason: run.cancel_reason.as_deref().map(ToOwned::to_owned),
        parent_run_id: run.parent.map(|parent| parent.to_string()),
        created_at: time(run.created_at),
        finished_at: run.finished_at.map(time),
        counts: run::RunCounts {
            total: counts.total(),
            open: counts.open,
            succeeded: counts.succeeded,
            failed: counts.failed,
            skipped: counts.skipped,
            canceled: counts.canceled,
            ..run::RunCounts::default()
        },
        tasks: Vec::new(),
    }
}

/// A run with its tasks.
pub fn whole_run(view: &RunView) -> run::Run {
    let mut whole = run(&view.run);
    whole.tasks = view.tasks.iter().map(run_task).collect();
    let count = |state| Some(view.tasks.iter().filter(|task| task.state == state).count() as u32);
    whole.counts.blocked = count(State::Blocked);
    whole.counts.scheduled = count(State::Scheduled);
    whole.counts.ready = count(State::Ready);
    whole.counts.running = count(State::Running);
    whole
}

fn run_task(task: &RunTaskView) -> run::RunTask {
    run::RunTask {
        key: task.key.to_string(),
        task_id: task.id.to_string(),
        state: words::task(task.state),
        attempt: task.attempt,
        depends_on: task.depends_on.iter().map(ToString::to_string).collect(),
        operator: task.operator.to_string(),
        queue: task.queue.to_string(),
        started_at: task.started_at.map(time),
        finished_at: task.finished_at.map(time),
        run_at: task.due_at.map(time),
        progress_pct: task.progress.pct,
        progress_message: task.progress.message.as_deref().map(ToOwned::to_owned),
        error: task.failure.as_ref().map(failure),
        cancel_reason: task.cancel_reason.as_deref().map(ToOwned::to_owned),
    }
}
