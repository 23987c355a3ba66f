//! Why a task is not running, or what it is doing instead.

use std::sync::Arc;

use crate::attempt::Reason;
use crate::queue::{Limit, Queue};
use crate::run::Upstream;
use crate::task::{End, Place};
use crate::time::Timestamp;

/// What is known in addition to the task itself.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    pub now: Timestamp,
    pub queue: &'a Queue,
    /// Open attempts of the queue.
    pub running: u32,
    /// When a worker last asked for work of this queue.
    pub worker_seen_at: Option<Timestamp>,
    /// Tasks of its run that it waits for.
    pub waiting_for: &'a [Upstream],
}

#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    /// Other tasks of its run come first.
    BlockedOnDependencies {
        waiting_on: u32,
        upstream: Vec<Upstream>,
    },
    WaitingUntil {
        at: Timestamp,
    },
    RetryBackoff {
        at: Timestamp,
        after: Option<Reason>,
        attempt: u32,
        since: Option<Timestamp>,
    },
    QueuePaused,
    /// The version of its job's DAG is not active.
    Held {
        since: Timestamp,
    },
    QueueLimit {
        running: u32,
        max_running: u32,
        since: Timestamp,
    },
    RateLimit {
        per_second: f64,
        next_at: Timestamp,
        since: Timestamp,
    },
    /// The task asks for a sandbox and the queue runs none, or the other way round. It fails when it would be granted.
    WrongRuntime {
        wants_sandbox: bool,
    },
    NoWorker {
        last_seen_at: Option<Timestamp>,
        since: Timestamp,
        /// The wake-up queue of its job, if it has one.
        wake: Option<Arc<str>>,
    },
    /// Ready, with a free slot and workers that ask: they are busy with tasks before it, or a strict queue does not serve
    /// them.
    NoFreeWorker {
        since: Timestamp,
        strict: bool,
    },
    /// Granted, and no room where it would run. It waits without spending an attempt.
    NoRoom {
        reason: Arc<str>,
        since: Timestamp,
    },
    /// Granted, and its worker cannot be reached. It waits without spending an attempt.
    Unreachable {
        reason: Arc<str>,
        since: Timestamp,
        next_at: Option<Timestamp>,
    },
    Running {
        since: Timestamp,
        cancel_requested: bool,
    },
    Ended {
        at: Timestamp,
        end: End,
    },
}

impl Why {
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BlockedOnDependencies { .. } => "blocked_on_dependencies",
            Self::WaitingUntil { .. } => "waiting_until",
            Self::RetryBackoff { .. } => "retry_backoff",
            Self::QueuePaused => "queue_paused",
            Self::Held { .. } => "held",
            Self::QueueLimit { .. } => "queue_limit",
            Self::RateLimit { .. } => "rate_limit",
            Self::WrongRuntime { .. } => "wrong_runtime",
            Self::NoWorker { .. } | Self::NoFreeWorker { .. } => "no_worker",
            Self::NoRoom { .. } => "no_room",
            Self::Unreachable { .. } => "push_target_down",
            Self::Running { .. } => "running",
            Self::Ended { .. } => "ended",
        }
    }
}

/// Everything that holds a task back, the nearest cause first.
pub fn why(place: &Place, around: &Around<'_>) -> Vec<Why> {
    let mut why = Vec::new();
    let queue = around.queue;
    match place {
        Place::Running(running) => {
            let waiting = running.carry.delivery.as_ref().filter(|delivery| delivery.started_at.is_none());
            if let Some(reason) = waiting.and_then(|delivery| delivery.no_room.clone()) {
                return vec![Why::NoRoom { reason, since: running.granted_at }];
            }
            if let Some(delivery) = waiting
                && let Some(reason) = delivery.unreachable.clone()
            {
                return vec![Why::Unreachable { reason, since: running.granted_at, next_at: delivery.next_at }];
            }
            return vec![Why::Running { since: running.granted_at, cancel_requested: running.cancel.is_some() }];
        }
        Place::Finished(finished) => return vec![Why::Ended { at: finished.finished_at, end: finished.end }],
        Place::Blocked(blocked) => {
            let upstream = around.waiting_for.to_vec();
            why.push(Why::BlockedOnDependencies { waiting_on: blocked.waiting_on, upstream });
            if blocked.at > around.now {
                why.push(Why::WaitingUntil { at: blocked.at });
            }
        }
        Place::Scheduled(waiting) => match &waiting.carry.last {
            Some(last) if waiting.attempt > 0 => why.push(Why::RetryBackoff {
                at: waiting.at,
                after: Some(last.reason),
                attempt: waiting.attempt,
                since: Some(last.ended_at),
            }),
            _ => why.push(Why::WaitingUntil { at: waiting.at }),
        },
        Place::Ready(_) => {}
    }
    let since = match place {
        Place::Ready(waiting) => waiting.at,
        _ => around.now,
    };
    let spec = match place {
        Place::Ready(waiting) | Place::Scheduled(waiting) => Some(&waiting.carry.spec),
        Place::Blocked(blocked) => Some(&blocked.carry.spec),
        _ => None,
    };
    if let Some(spec) = spec.filter(|spec| !queue.settings.runs(spec)) {
        why.push(Why::WrongRuntime { wants_sandbox: spec.sandbox });
    }
    if queue.paused {
        why.push(Why::QueuePaused);
    }
    if spec.is_some_and(|spec| queue.settings.holds(spec)) {
        why.push(Why::Held { since });
    }
    if let Place::Ready(_) = place {
        match queue.room(around.running, around.now).held_by {
            Some(Limit::Slots) => {
                let max_running = queue.settings.slots().unwrap_or_default();
                why.push(Why::QueueLimit { running: around.running, max_running, since });
            }
            Some(Limit::Rate) => {
                let per_second = queue.settings.pace().map_or(0.0, |rate| rate.per_second);
                let next_at = queue.next_token_at(around.now).unwrap_or(around.now);
                why.push(Why::RateLimit { per_second, next_at, since });
            }
            Some(Limit::Paused) | None => {}
        }
        let seen = around.worker_seen_at.is_some_and(|at| around.now.since(at) <= crate::limits::WORKER_SEEN_MS);
        if !seen {
            let wake = queue.settings.dispatch.as_ref().map(|dispatch| Arc::clone(&dispatch.wake));
            why.push(Why::NoWorker { last_seen_at: around.worker_seen_at, since, wake });
        }
        if why.is_empty() {
            why.push(Why::NoFreeWorker { since, strict: queue.settings.strict });
        }
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::testing::{
        at, blocked, dispatched, in_sandbox, ready, running, sandbox_settings, scheduled_retry,
    };
    use crate::queue::{QueueId, QueueSettings, Rate};
    use crate::task::{Blocked, Carry, Waiting};

    fn codes(place: &Place, queue: &Queue, running: u32, seen: Option<i64>) -> Vec<&'static str> {
        let around = Around { now: at(100_000), queue, running, worker_seen_at: seen.map(at), waiting_for: &[] };
        why(place, &around).iter().map(Why::code).collect()
    }

    fn queue(settings: QueueSettings, paused: bool) -> Queue {
        Queue { settings, paused, ..Queue::new(QueueId(1), "q".into()) }
    }

    #[test]
    fn each_cause_is_named() {
        let free = queue(QueueSettings::default(), false);
        let paused = queue(QueueSettings::default(), true);
        let full = queue(QueueSettings { max_running: Some(1), ..Default::default() }, false);
        let mut spent =
            queue(QueueSettings { rate: Some(Rate { per_second: 0.1, burst: 1.0 }), ..Default::default() }, false);
        spent.spend(at(100_000));

        assert_eq!(codes(&Place::Ready(ready()), &free, 0, Some(99_000)), ["no_worker"]);
        assert_eq!(codes(&Place::Ready(ready()), &free, 0, None), ["no_worker"]);
        assert_eq!(codes(&Place::Ready(ready()), &paused, 0, Some(99_000)), ["queue_paused"]);
        assert_eq!(codes(&Place::Ready(ready()), &full, 1, Some(99_000)), ["queue_limit"]);
        assert_eq!(codes(&Place::Ready(ready()), &full, 1, Some(1_000)), ["queue_limit", "no_worker"]);
        assert_eq!(codes(&Place::Ready(ready()), &spent, 0, Some(99_000)), ["rate_limit"]);
        assert_eq!(codes(&Place::Scheduled(ready()), &free, 0, None), ["waiting_until"]);
        assert_eq!(codes(&Place::Scheduled(scheduled_retry()), &paused, 0, None), ["retry_backoff", "queue_paused"]);
        assert_eq!(codes(&Place::Running(running()), &free, 1, None), ["running"]);
        let boxed = queue(sandbox_settings(), false);
        assert_eq!(codes(&Place::Ready(ready()), &boxed, 0, None), ["wrong_runtime", "no_worker"]);
        let asks = Waiting { carry: Carry::fresh(in_sandbox()), ..ready() };
        assert_eq!(codes(&Place::Ready(asks.clone()), &boxed, 0, None), ["no_worker"]);
        assert_eq!(codes(&Place::Ready(asks), &free, 0, Some(99_000)), ["wrong_runtime"]);
        let mut waits = dispatched(in_sandbox());
        waits.carry.delivery.as_mut().unwrap().no_room = Some("full".into());
        assert_eq!(codes(&Place::Running(waits), &boxed, 1, None), ["no_room"]);
        let mut alone = dispatched(crate::task::Spec::default());
        alone.carry.delivery.as_mut().unwrap().unreachable = Some("refused".into());
        assert_eq!(codes(&Place::Running(alone), &free, 1, None), ["push_target_down"]);
        let blocked = |at| Blocked { waiting_on: 2, at, ..blocked() };
        assert_eq!(codes(&Place::Blocked(blocked(at(0))), &free, 0, None), ["blocked_on_dependencies"]);
        let job = |held, max_running| {
            let dispatch = Some(Arc::new(crate::queue::Dispatch { wake: "worker.gpu".into(), held }));
            queue(QueueSettings { dispatch, max_running, ..QueueSettings::default() }, false)
        };
        assert_eq!(codes(&Place::Ready(ready()), &job(true, None), 0, Some(99_000)), ["held"]);
        assert_eq!(codes(&Place::Ready(ready()), &job(false, Some(1)), 1, None), ["queue_limit", "no_worker"]);
        let rebuild = crate::task::Spec { rebuild: true, ..Default::default() };
        let rebuild = Place::Ready(Waiting { carry: Carry::fresh(rebuild), ..ready() });
        assert_eq!(codes(&rebuild, &job(true, None), 0, None), ["no_worker"], "it need not wait for the version");
        let later = Place::Blocked(blocked(at(200_000)));
        assert_eq!(codes(&later, &paused, 0, None), ["blocked_on_dependencies", "waiting_until", "queue_paused"]);
    }
}
