//! Queues: their settings, pause and resume.

use std::sync::Arc;

use crate::queue::{Bucket, Queue, QueueSettings};

/// The whole setting, in place of what was there.
#[derive(Debug, Clone, PartialEq)]
pub struct SetQueue {
    pub queue: Arc<str>,
    pub settings: QueueSettings,
}

/// Pause stops grants; running work goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseQueue {
    pub queue: Arc<str>,
    pub paused: bool,
}

pub fn set(queue: &Queue, settings: &QueueSettings) -> Queue {
    // A new rate starts with a full bucket; the same rate keeps its level.
    let bucket = if queue.settings.rate == settings.rate { queue.bucket } else { Bucket::default() };
    let fair_cursor =
        if queue.settings.fairness_key == settings.fairness_key { queue.fair_cursor.clone() } else { None };
    Queue { settings: settings.clone(), bucket, fair_cursor, ..queue.clone() }
}

pub fn pause(queue: &Queue, paused: bool) -> Queue {
    Queue { paused, ..queue.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::testing::{at, queue};
    use crate::queue::{FairnessKey, Rate};

    #[test]
    fn a_setting_keeps_what_a_limit_has_seen_unless_the_limit_changes() {
        let rate = |per_second| Some(Rate { per_second, burst: 1.0 });
        let limited =
            QueueSettings { rate: rate(1.0), fairness_key: Some(FairnessKey::Tenant), ..QueueSettings::default() };
        let mut used = set(&queue(), &limited);
        used.spend(at(0));
        used.fair_cursor = Some("acme".into());

        let slots = set(&used, &QueueSettings { max_running: Some(3), ..limited.clone() });
        assert_eq!((slots.bucket, slots.fair_cursor.as_deref()), (used.bucket, Some("acme")));
        let faster = set(&used, &QueueSettings { rate: rate(2.0), ..limited.clone() });
        assert_eq!((faster.bucket, faster.fair_cursor.as_deref()), (Bucket::default(), Some("acme")));
        let by_workspace = set(&used, &QueueSettings { fairness_key: Some(FairnessKey::Workspace), ..limited });
        assert_eq!((by_workspace.bucket, by_workspace.fair_cursor), (used.bucket, None));
    }

    #[test]
    fn pause_touches_nothing_else() {
        let paused = pause(&queue(), true);
        assert_eq!((paused.paused, pause(&paused, false)), (true, queue()));
    }
}
