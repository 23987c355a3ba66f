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
