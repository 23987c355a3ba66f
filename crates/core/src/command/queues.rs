//! Queues: their settings, pause and resume, deletion.

use std::sync::Arc;

use super::{Reach, Rejection};
use crate::batch::Counts;
use crate::queue::{Bucket, FairnessKey, Push, Queue, QueueSettings, Rate, Transport};
use crate::time::DurationMs;

/// Replaces all settings. A queue that does not exist is created: for the tenant that the reach names, or shared by all.
#[derive(Debug, Clone, PartialEq)]
pub struct SetQueue {
    pub queue: Arc<str>,
    pub settings: QueueSettings,
    /// `None` leaves it as it is.
    pub transport: Option<Transport>,
    /// Leaves the push target as it is, whatever the settings say.
    pub keep_push: bool,
    pub reach: Reach,
}

/// Changes what is named, at a queue that exists; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchQueue {
    pub queue: Arc<str>,
    pub change: QueueChange,
    pub reach: Reach,
}

/// An inner `None` is the default: no limit, no push.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueChange {
    pub max_running: Option<Option<u32>>,
    pub rate: Option<Option<Rate>>,
    pub fairness_key: Option<Option<FairnessKey>>,
    pub lease_ttl_ms: Option<Option<DurationMs>>,
    pub heartbeat_ms: Option<Option<DurationMs>>,
    pub no_dead_letter: Option<bool>,
    pub strict: Option<bool>,
    pub transport: Option<Transport>,
    pub push: Option<Option<Arc<Push>>>,
}

impl QueueChange {
    /// The settings with the change in them.
    pub fn applied(&self, settings: &QueueSettings) -> QueueSettings {
        let QueueSettings {
            max_running,
            rate,
            fairness_key,
            lease_ttl_ms,
            heartbeat_ms,
            no_dead_letter,
            strict,
            push,
            dispatch,
        } = settings.clone();
        QueueSettings {
            max_running: self.max_running.unwrap_or(max_running),
            rate: self.rate.unwrap_or(rate),
            fairness_key: self.fairness_key.clone().unwrap_or(fairness_key),
            lease_ttl_ms: self.lease_ttl_ms.unwrap_or(lease_ttl_ms),
            heartbeat_ms: self.heartbeat_ms.unwrap_or(heartbeat_ms),
            no_dead_letter: self.no_dead_letter.unwrap_or(no_dead_letter),
            strict: self.strict.unwrap_or(strict),
            push: self.push.clone().unwrap_or(push),
            dispatch,
        }
    }
}

/// Pausing stops grants; running tasks continue. The queue must exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseQueue {
    pub queue: Arc<str>,
    pub paused: bool,
    pub reach: Reach,
}

/// Deletes an empty queue with its settings. Its ended tasks stay until retention removes them, but cannot be put back. A
/// queue that is created later under the same name is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteQueue {
    pub queue: Arc<str>,
    /// Deletes a queue that has dead letters too.
    pub force: bool,
    pub reach: Reach,
}

/// Whether a caller with this reach may change a queue. A queue of another tenant is treated as missing. A shared queue
/// is visible to everybody, so no single tenant may change it.
pub fn may_set(queue: &Queue, reach: &Reach) -> Result<(), Rejection> {
    match (queue.tenant.as_deref(), reach.tenant()) {
        (_, None) => Ok(()),
        (None, Some(_)) => Err(Rejection::QueueShared),
        (Some(own), Some(tenant)) if own == tenant => Ok(()),
        (Some(_), Some(_)) => Err(Rejection::QueueNotFound),
    }
}

pub fn set(queue: &Queue, set: &SetQueue) -> Queue {
    let mut settings = set.settings.clone();
    // Only a deployment changes what a job says about its queue.
    settings.dispatch.clone_from(&queue.settings.dispatch);
    if set.keep_push {
        settings.push.clone_from(&queue.settings.push);
    }
    // A new rate starts with a full bucket; the same rate keeps its level.
    let bucket = if queue.settings.pace() == settings.pace() { queue.bucket } else { Bucket::default() };
    let fair_cursor =
        if queue.settings.fairness_key == settings.fairness_key { queue.fair_cursor.clone() } else { None };
    // Deliveries are woken inside the control plane.
    let transport = match settings.push {
        Some(_) => Transport::Embedded,
        None => set.transport.unwrap_or(queue.transport),
    };
    Queue { settings, transport, bucket, fair_cursor, ..queue.clone() }
}

pub fn patch(queue: &Queue, patch: &PatchQueue) -> Queue {
    let settings = patch.change.applied(&queue.settings);
    let (name, reach) = (Arc::clone(&patch.queue), patch.reach.clone());
    set(queue, &SetQueue { queue: name, settings, transport: patch.change.transport, keep_push: false, reach })
}

pub fn pause(queue: &Queue, paused: bool) -> Queue {
    Queue { paused, ..queue.clone() }
}

/// Whether a queue with these tasks may be deleted. Tasks that have not ended need their queue. Dead letters wait for
/// somebody to decide about them, so the caller must say that they may be left behind.
pub fn delete(queue: &Queue, tasks: Counts, delete: &DeleteQueue) -> Result<(), Rejection> {
    may_set(queue, &delete.reach)?;
    if tasks.open() > 0 || (tasks.dead_lettered > 0 && !delete.force) {
        return Err(Rejection::QueueNotEmpty(tasks));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::testing::{at, queue};

    fn set(queue: &Queue, settings: &QueueSettings, transport: Option<Transport>) -> Queue {
        super::set(queue, &setting(settings, transport, false))
    }

    fn setting(settings: &QueueSettings, transport: Option<Transport>, keep_push: bool) -> SetQueue {
        SetQueue { queue: "q".into(), settings: settings.clone(), transport, keep_push, reach: Reach::All }
    }

    #[test]
    fn a_setting_keeps_what_a_limit_has_seen_unless_the_limit_changes() {
        let rate = |per_second| Some(Rate { per_second, burst: 1.0 });
        let limited =
            QueueSettings { rate: rate(1.0), fairness_key: Some(FairnessKey::Tenant), ..QueueSettings::default() };
        let mut used = set(&queue(), &limited, None);
        used.spend(at(0));
        used.fair_cursor = Some("acme".into());

        let slots = set(&used, &QueueSettings { max_running: Some(3), ..limited.clone() }, None);
        assert_eq!((slots.bucket, slots.fair_cursor.as_deref()), (used.bucket, Some("acme")));
        let faster = set(&used, &QueueSettings { rate: rate(2.0), ..limited.clone() }, None);
        assert_eq!((faster.bucket, faster.fair_cursor.as_deref()), (Bucket::default(), Some("acme")));
        let by_workspace = set(&used, &QueueSettings { fairness_key: Some(FairnessKey::Workspace), ..limited }, None);
        assert_eq!((by_workspace.bucket, by_workspace.fair_cursor), (used.bucket, None));
    }

    #[test]
    fn a_queue_is_set_by_its_tenant_and_a_shared_one_by_whoever_reaches_all() {
        let owner = |tenant: &str| Reach::Owner { tenant: tenant.into(), owner: "ann".into() };
        for (tenant, reach, expected) in [
            (None, Reach::All, Ok(())),
            (None, Reach::Tenant("acme".into()), Err(Rejection::QueueShared)),
            (None, owner("acme"), Err(Rejection::QueueShared)),
            (Some("acme"), Reach::All, Ok(())),
            (Some("acme"), Reach::Tenant("acme".into()), Ok(())),
            (Some("acme"), owner("acme"), Ok(())),
            (Some("acme"), Reach::Tenant("other".into()), Err(Rejection::QueueNotFound)),
            (Some("acme"), owner("other"), Err(Rejection::QueueNotFound)),
        ] {
            let queue = Queue { tenant: tenant.map(Into::into), ..queue() };
            assert_eq!(may_set(&queue, &reach), expected, "{tenant:?} {reach:?}");
        }
    }

    #[test]
    fn a_queue_is_deleted_when_it_has_no_open_task_and_no_dead_letter_that_nobody_gave_up() {
        let none = Counts::default();
        let ended = Counts { finished: 3, ..none };
        let dead = Counts { dead_lettered: 1, ..ended };
        let judge = |tasks, force, reach| {
            let queue = Queue { tenant: Some("acme".into()), ..queue() };
            delete(&queue, tasks, &DeleteQueue { queue: "q".into(), force, reach })
        };
        for (tasks, force, deleted) in [
            (none, false, true),
            (ended, false, true),
            (dead, false, false),
            (dead, true, true),
            (Counts { blocked: 1, ..none }, true, false),
            (Counts { scheduled: 1, ..none }, true, false),
            (Counts { ready: 1, ..none }, true, false),
            (Counts { running: 1, ..none }, true, false),
        ] {
            let expected = if deleted { Ok(()) } else { Err(Rejection::QueueNotEmpty(tasks)) };
            assert_eq!(judge(tasks, force, Reach::All), expected, "{tasks:?}, force {force}");
            assert_eq!(judge(tasks, force, Reach::Tenant("other".into())), Err(Rejection::QueueNotFound));
        }
    }

    #[test]
    fn pause_touches_nothing_else() {
        let paused = pause(&queue(), true);
        assert_eq!((paused.paused, pause(&paused, false)), (true, queue()));
    }

    #[test]
    fn a_setting_that_names_no_transport_leaves_it() {
        let on_redis = set(&queue(), &QueueSettings::default(), Some(Transport::Redis));
        assert_eq!(on_redis.transport, Transport::Redis);
        assert_eq!(set(&on_redis, &QueueSettings::default(), None).transport, Transport::Redis);
        assert_eq!(set(&on_redis, &QueueSettings::default(), Some(Transport::Embedded)).transport, Transport::Embedded);
    }

    #[test]
    fn where_tasks_are_pushed_stays_unless_the_setting_is_about_it() {
        let push = Arc::new(Push::to("https://worker.example/dispatch".into()));
        let pushed = QueueSettings { push: Some(push), ..QueueSettings::default() };
        let on_redis = set(&queue(), &QueueSettings::default(), Some(Transport::Redis));
        let queue = set(&on_redis, &pushed, Some(Transport::Redis));
        assert_eq!((queue.settings.push.is_some(), queue.transport), (true, Transport::Embedded));

        let slots = QueueSettings { max_running: Some(3), ..QueueSettings::default() };
        let kept = super::set(&queue, &setting(&slots, Some(Transport::Redis), true));
        assert_eq!((&kept.settings.push, kept.settings.max_running), (&pushed.push, Some(3)));
        assert_eq!(kept.transport, Transport::Embedded);
        assert_eq!(set(&queue, &slots, None).settings.push, None);
    }

    #[test]
    fn a_patch_changes_what_it_names_and_nothing_else() {
        let rate = Some(Rate { per_second: 5.0, burst: 5.0 });
        let settings = QueueSettings {
            max_running: Some(3),
            rate,
            fairness_key: Some(FairnessKey::Tenant),
            lease_ttl_ms: Some(10_000),
            heartbeat_ms: Some(1_000),
            no_dead_letter: true,
            strict: true,
            push: None,
            dispatch: None,
        };
        let mut used = set(&queue(), &settings, Some(Transport::Redis));
        used.spend(at(0));
        let patched = |change| patch(&used, &PatchQueue { queue: "q".into(), change, reach: Reach::All });
        assert_eq!(patched(QueueChange::default()), used);
        let more = patched(QueueChange { max_running: Some(Some(9)), ..QueueChange::default() });
        assert_eq!(more.settings, QueueSettings { max_running: Some(9), ..settings.clone() });
        assert_eq!((more.bucket, more.transport), (used.bucket, Transport::Redis));
        let open = patched(QueueChange { rate: Some(None), no_dead_letter: Some(false), ..QueueChange::default() });
        assert_eq!(open.settings, QueueSettings { rate: None, no_dead_letter: false, ..settings });
    }
}
