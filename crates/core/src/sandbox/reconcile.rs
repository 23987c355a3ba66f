//! What becomes of a sandbox when the control plane looks at it and at its worker. A sandbox is never moved to another
//! worker, and no row is retried for ever.

use std::sync::Arc;

use super::placement::Worker;
use super::{Change, Held, Sandbox, Standing, State, standing};
use crate::time::{DurationMs, Timestamp};

/// An expired row whose worker never confirmed the end is destroyed after this.
pub const EXPIRED_KEPT_MS: DurationMs = 24 * 3_600_000;
/// A runtime that a heartbeat has named for less than this is not reaped: its row may be about to be written.
pub const ORPHAN_AGE_MS: DurationMs = 60_000;
/// How many heartbeats in a row must find a runtime an orphan.
pub const ORPHAN_BEATS: u32 = 2;

/// The worker that holds a sandbox, as the control plane knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Online,
    Draining,
    /// Fresh, with a status that serves nothing: `offline` and others.
    Other(String),
    Stale,
    Missing,
}

impl Owner {
    pub fn of(worker: Option<&Worker>, freshness_ms: DurationMs, now: Timestamp) -> Self {
        let Some(worker) = worker else { return Self::Missing };
        if worker.is_stale(freshness_ms, now) {
            Self::Stale
        } else if worker.status == "online" && !worker.is_draining() {
            Self::Online
        } else if worker.status == "online" || worker.status == "draining" {
            Self::Draining
        } else {
            Self::Other(worker.status.clone())
        }
    }

    fn is_reachable(&self) -> bool {
        matches!(self, Self::Online | Self::Draining)
    }

    fn doubt(&self) -> Arc<str> {
        match self {
            Self::Stale => "worker_stale".into(),
            Self::Missing => "worker_missing".into(),
            Self::Other(status) => format!("worker_{status}").into(),
            Self::Online | Self::Draining => "worker_rpc_unavailable".into(),
        }
    }
}

/// What to do about a row first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Ask the worker for the state of the runtime.
    Ask,
    /// Ask the worker to destroy the runtime.
    Destroy,
    Change(Change),
}

/// What the worker says about a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A word of the provider.
    State(String),
    Absent,
    /// The call failed.
    Failed,
}

pub fn first_step(row: &Sandbox, owner: &Owner, now: Timestamp) -> Step {
    let is_over = now >= row.expires_at;
    match row.state {
        // A spawn is resumed, not reconciled.
        State::Creating | State::Destroyed => Step::Nothing,
        State::Expired if now.since(row.changed_at) >= EXPIRED_KEPT_MS => Step::Change(destroyed("expired")),
        State::Expired if owner.is_reachable() => Step::Destroy,
        State::Expired => Step::Nothing,
        State::Error if !is_over => Step::Nothing,
        State::Error | State::Running | State::Idle | State::Unhealthy if is_over => {
            if row.worker.is_none() {
                // It never had a place.
                Step::Change(destroyed("expired"))
            } else if owner.is_reachable() {
                Step::Destroy
            } else {
                Step::Change(Change::Expire)
            }
        }
        State::Error | State::Running | State::Idle | State::Unhealthy => {
            if owner.is_reachable() {
                Step::Ask
            } else {
                doubt(row, owner.doubt()).map_or(Step::Nothing, Step::Change)
            }
        }
    }
}

/// What an answer to [`Step::Ask`] changes.
pub fn after_status(row: &Sandbox, owner: &Owner, answer: &Answer) -> Option<Change> {
    if !matches!(row.state, State::Running | State::Idle | State::Unhealthy) {
        return None;
    }
    match answer {
        Answer::State(word) => match word.as_str() {
            "running" | "idle" => (row.state == State::Unhealthy).then_some(Change::Recover),
            "stopped" | "error" => Some(Change::Break { reason: "runtime_error".into() }),
            "destroyed" => Some(destroyed("runtime_absent")),
            _ => doubt(row, "runtime_unhealthy".into()),
        },
        Answer::Absent => Some(destroyed("runtime_absent")),
        Answer::Failed if *owner == Owner::Draining => None,
        Answer::Failed => doubt(row, owner.doubt()),
    }
}

/// What the outcome of [`Step::Destroy`] changes. It is tried once: afterwards the row is expired, and the worker destroys
/// the runtime because nobody renews its lease.
pub fn after_destroy(row: &Sandbox, is_gone: bool) -> Option<Change> {
    match (is_gone, row.state) {
        (_, State::Destroyed) => None,
        (true, _) => Some(destroyed("expired")),
        (false, State::Running | State::Idle | State::Unhealthy | State::Error) => Some(Change::Expire),
        (false, _) => None,
    }
}

/// What to do with the runtime of a spawn whose row did not take the confirmation: `true` if nobody wants it.
pub fn is_unwanted(row: Option<&Sandbox>, worker: &str, runtime_id: &str) -> bool {
    match row {
        // Another control plane confirmed the same spawn, or it goes on there.
        Some(row) => standing(Some(row), worker, runtime_id) == Standing::Orphan,
        None => true,
    }
}

/// Whether an orphan is returned to its worker, which destroys it. `held` is as it was before this heartbeat.
pub fn is_reaped(held: &Held, now: Timestamp) -> bool {
    held.orphan_beats + 1 >= ORPHAN_BEATS && now.since(held.since) > ORPHAN_AGE_MS
}

/// The word of the event about a change.
pub const fn action(change: &Change) -> Option<&'static str> {
    match change {
        Change::Doubt { .. } | Change::Break { .. } => Some("marked_unhealthy"),
        Change::Expire => Some("marked_expired"),
        Change::Destroy { .. } => Some("marked_destroyed"),
        Change::Recover => Some("recovered"),
        Change::Confirm { .. } => Some("adopted_runtime"),
        _ => None,
    }
}

fn destroyed(reason: &str) -> Change {
    Change::Destroy { reason: Some(reason.into()) }
}

/// `None`: the row says so already.
fn doubt(row: &Sandbox, reason: Arc<str>) -> Option<Change> {
    let known = row.state == State::Unhealthy && row.reason.as_ref() == Some(&reason);
    let able = matches!(row.state, State::Running | State::Idle | State::Unhealthy);
    (able && !known).then_some(Change::Doubt { reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::placement::Capacity;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000_000);

    fn row(state: State, left_ms: DurationMs) -> Sandbox {
        Sandbox {
            id: "sb-1".into(),
            tenant: "default".into(),
            owner: None,
            state,
            reason: None,
            spec: Arc::default(),
            worker: Some("w".into()),
            runtime_id: Some("rt".into()),
            request_id: "req".into(),
            pool: None,
            created_at: NOW.plus(-1_000),
            changed_at: NOW.plus(-1_000),
            expires_at: NOW.plus(left_ms),
            spawn_deadline: NOW,
            refused_by: Vec::new(),
        }
    }

    fn worker(status: &str, age_ms: DurationMs, desired: Option<&str>) -> Worker {
        Worker {
            id: "w".into(),
            hostname: String::new(),
            status: status.to_owned(),
            providers: Vec::new(),
            capabilities: Vec::new(),
            capacity: Capacity::default(),
            boot_id: String::new(),
            seq: 0,
            inventory: Vec::new(),
            desired_status: desired.map(str::to_owned),
            drain_reason: None,
            last_heartbeat: NOW.plus(-age_ms),
            created_at: NOW,
            updated_at: NOW,
            is_barred: false,
        }
    }

    const LIVE: [State; 3] = [State::Running, State::Idle, State::Unhealthy];

    fn doubts(reason: &str) -> Step {
        Step::Change(Change::Doubt { reason: reason.into() })
    }

    #[test]
    fn owners_are_told_apart() {
        let of = |worker: &Worker| Owner::of(Some(worker), 120_000, NOW);
        assert_eq!(of(&worker("online", 120_000, None)), Owner::Online);
        assert_eq!(of(&worker("online", 120_001, None)), Owner::Stale);
        assert_eq!(of(&worker("draining", 120_001, None)), Owner::Stale);
        assert_eq!(of(&worker("draining", 0, None)), Owner::Draining);
        assert_eq!(of(&worker("online", 0, Some("draining"))), Owner::Draining);
        assert_eq!(of(&worker("offline", 0, None)), Owner::Other("offline".to_owned()));
        assert_eq!(of(&worker("offline", 0, Some("draining"))), Owner::Other("offline".to_owned()));
        assert_eq!(Owner::of(None, 120_000, NOW), Owner::Missing);
    }

    /// Column "not expired" of the table.
    #[test]
    fn a_live_row_takes_what_its_worker_says_or_is_doubted() {
        for state in LIVE {
            let row = row(state, 1);
            let first = |owner: &Owner| first_step(&row, owner, NOW);
            assert_eq!(first(&Owner::Online), Step::Ask, "{state:?}");
            assert_eq!(first(&Owner::Draining), Step::Ask, "{state:?}");
            assert_eq!(first(&Owner::Stale), doubts("worker_stale"), "{state:?}");
            assert_eq!(first(&Owner::Other("offline".to_owned())), doubts("worker_offline"), "{state:?}");
            assert_eq!(first(&Owner::Other("broken".to_owned())), doubts("worker_broken"), "{state:?}");
            assert_eq!(first(&Owner::Missing), doubts("worker_missing"), "{state:?}");
            for owner in [Owner::Online, Owner::Draining] {
                let absent = after_status(&row, &owner, &Answer::Absent);
                assert_eq!(absent, Some(destroyed("runtime_absent")), "{state:?}");
                let running = after_status(&row, &owner, &Answer::State("running".to_owned()));
                assert_eq!(running, (state == State::Unhealthy).then_some(Change::Recover), "{state:?}");
            }
            let failed = after_status(&row, &Owner::Online, &Answer::Failed);
            assert_eq!(failed, Some(Change::Doubt { reason: "worker_rpc_unavailable".into() }), "{state:?}");
            assert_eq!(after_status(&row, &Owner::Draining, &Answer::Failed), None, "{state:?}");
        }
    }

    /// Column "past expiry".
    #[test]
    fn a_row_that_is_over_is_destroyed_where_its_worker_answers_and_expired_elsewhere() {
        for state in [State::Running, State::Idle, State::Unhealthy, State::Error] {
            let row = row(state, 0);
            for owner in [Owner::Online, Owner::Draining] {
                assert_eq!(first_step(&row, &owner, NOW), Step::Destroy, "{state:?}");
            }
            for owner in [Owner::Stale, Owner::Missing, Owner::Other("offline".to_owned())] {
                assert_eq!(first_step(&row, &owner, NOW), Step::Change(Change::Expire), "{state:?} {owner:?}");
            }
            assert_eq!(after_destroy(&row, true), Some(destroyed("expired")), "{state:?}");
            assert_eq!(after_destroy(&row, false), Some(Change::Expire), "{state:?}");
        }
    }

    #[test]
    fn words_of_providers_map_to_states() {
        let row = row(State::Running, 1);
        let after = |word: &str| after_status(&row, &Owner::Online, &Answer::State(word.to_owned()));
        for word in ["paused", "restarting", "unknown", "unhealthy"] {
            assert_eq!(after(word), Some(Change::Doubt { reason: "runtime_unhealthy".into() }), "{word}");
        }
        for word in ["stopped", "error"] {
            assert_eq!(after(word), Some(Change::Break { reason: "runtime_error".into() }), "{word}");
        }
        assert_eq!(after("running"), None);
    }

    #[test]
    fn a_doubt_is_written_once() {
        let mut row = row(State::Unhealthy, 1);
        row.reason = Some("worker_stale".into());
        assert_eq!(first_step(&row, &Owner::Stale, NOW), Step::Nothing);
        assert_eq!(first_step(&row, &Owner::Missing, NOW), doubts("worker_missing"));
    }

    #[test]
    fn an_expired_row_is_destroyed_by_its_worker_or_after_a_day() {
        let mut row = row(State::Expired, -1);
        assert_eq!(first_step(&row, &Owner::Online, NOW), Step::Destroy);
        assert_eq!(first_step(&row, &Owner::Stale, NOW), Step::Nothing);
        assert_eq!(after_destroy(&row, false), None);
        assert_eq!(after_destroy(&row, true), Some(destroyed("expired")));
        row.changed_at = NOW.plus(-EXPIRED_KEPT_MS);
        assert_eq!(first_step(&row, &Owner::Stale, NOW), Step::Change(destroyed("expired")));
    }

    #[test]
    fn what_is_being_created_destroyed_or_broken_is_left_alone() {
        for (state, left_ms) in [(State::Creating, 1), (State::Creating, 0), (State::Destroyed, 0), (State::Error, 1)] {
            for owner in [Owner::Online, Owner::Missing] {
                assert_eq!(first_step(&row(state, left_ms), &owner, NOW), Step::Nothing, "{state:?}");
            }
            assert_eq!(after_status(&row(state, left_ms), &Owner::Online, &Answer::Absent), None, "{state:?}");
        }
        let mut failed = row(State::Error, 0);
        failed.worker = None;
        assert_eq!(first_step(&failed, &Owner::Missing, NOW), Step::Change(destroyed("expired")));
    }

    #[test]
    fn an_orphan_is_reaped_in_its_second_heartbeat_and_not_while_it_is_young() {
        let held = |orphan_beats, age_ms: DurationMs| Held {
            sandbox_id: "sb-1".into(),
            runtime_id: "rt".into(),
            provider: String::new(),
            state: String::new(),
            generation: 1,
            since: NOW.plus(-age_ms),
            orphan_beats,
        };
        assert!(!is_reaped(&held(0, 3_600_000), NOW));
        assert!(!is_reaped(&held(1, 60_000), NOW));
        assert!(is_reaped(&held(1, 60_001), NOW));
        assert!(is_reaped(&held(7, 60_001), NOW));
    }

    #[test]
    fn a_confirmation_that_came_second_destroys_nothing_that_is_wanted() {
        let confirmed = row(State::Running, 1);
        assert!(!is_unwanted(Some(&confirmed), "w", "rt"));
        assert!(is_unwanted(Some(&confirmed), "w", "other"));
        assert!(is_unwanted(Some(&confirmed), "other", "rt"));
        assert!(is_unwanted(Some(&row(State::Destroyed, 1)), "w", "rt"));
        assert!(is_unwanted(None, "w", "rt"));
    }
}
