//! What control planes of one database tell each other.
//!
//! A notice is a hint and may be lost: whoever would be woken by it also looks by itself from time to time.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tenure_core::TaskId;
use tenure_core::batch::Stop;
use tokio::sync::mpsc;

use crate::error::StoreError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A queue has this many ready tasks that nobody was woken for.
    Ready { queue: Arc<str>, tasks: usize },
    /// Something is due soon: whoever has the timers should look.
    Scheduled,
    /// A redrive was started.
    Redrive,
    /// Facts were recorded.
    Facts,
    /// These tasks are to stop.
    Stops(Vec<Stop>),
    /// A queue has another transport: wake-ups should be swept.
    Transports,
    /// A worker was drained, or that was taken back.
    Workers,
    /// A control plane came or went, or gave up what it did for all.
    Replicas,
    /// Something may have been missed: look at everything.
    Everything,
}

#[async_trait]
pub trait NoticeStore: Send + Sync {
    /// Tells all others. Never part of a batch: sent when what it tells of is durable.
    async fn notify(&self, sender: &str, notices: &[Notice]) -> Result<(), StoreError>;

    /// What others tell, from now on, without what `own` tells. Goes on through any outage; [`Notice::Everything`]
    /// comes first, and again after each gap. `None` if a store has one control plane only.
    fn listen(&self, own: &str) -> Option<mpsc::Receiver<Notice>>;
}

/// The payload of a notification must be shorter than 8,000 bytes.
const PAYLOAD_BYTES: usize = 7_900;

/// Several notices as one payload.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Payload {
    from: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    ready: BTreeMap<Arc<str>, usize>,
    #[serde(skip_serializing_if = "is_not")]
    scheduled: bool,
    #[serde(skip_serializing_if = "is_not")]
    redrive: bool,
    #[serde(skip_serializing_if = "is_not")]
    facts: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stops: Vec<(String, Option<Arc<str>>)>,
    #[serde(skip_serializing_if = "is_not")]
    transports: bool,
    #[serde(skip_serializing_if = "is_not")]
    workers: bool,
    #[serde(skip_serializing_if = "is_not")]
    replicas: bool,
    #[serde(skip_serializing_if = "is_not")]
    everything: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_not(flag: &bool) -> bool {
    !flag
}

impl Payload {
    fn new(sender: &str, notices: &[Notice]) -> Self {
        let mut payload = Self { from: sender.to_owned(), ..Self::default() };
        for notice in notices {
            match notice {
                Notice::Ready { queue, tasks } => {
                    let known = payload.ready.entry(Arc::clone(queue)).or_default();
                    *known = known.saturating_add(*tasks);
                }
                Notice::Scheduled => payload.scheduled = true,
                Notice::Redrive => payload.redrive = true,
                Notice::Facts => payload.facts = true,
                Notice::Stops(tasks) => {
                    payload.stops.extend(tasks.iter().map(|stop| (stop.task.to_string(), stop.worker.clone())));
                }
                Notice::Transports => payload.transports = true,
                Notice::Workers => payload.workers = true,
                Notice::Replicas => payload.replicas = true,
                Notice::Everything => payload.everything = true,
            }
        }
        payload
    }

    /// What does not fit is told as "look at everything".
    pub(crate) fn text(sender: &str, notices: &[Notice]) -> String {
        let whole = serde_json::to_string(&Self::new(sender, notices)).unwrap_or_default();
        if whole.len() <= PAYLOAD_BYTES && !whole.is_empty() {
            return whole;
        }
        serde_json::to_string(&Self::new(sender, &[Notice::Everything])).unwrap_or_default()
    }

    /// What another told; nothing for what came from `own`. What is no payload at all is a look at
    /// everything; hints that only a newer control plane knows are nothing to this one.
    pub(crate) fn notices(text: &str, own: &str) -> Vec<Notice> {
        let Ok(payload) = serde_json::from_str::<Self>(text) else { return vec![Notice::Everything] };
        if payload.from == own {
            return Vec::new();
        }
        let read = |(task, worker): (String, _)| Some(Stop { task: TaskId::parse(&task).ok()?, worker });
        let stops: Vec<Stop> = payload.stops.into_iter().filter_map(read).collect();
        let stops = (!stops.is_empty()).then_some(Notice::Stops(stops));
        let ready = payload.ready.into_iter().map(|(queue, tasks)| Notice::Ready { queue, tasks });
        let flags = [
            (payload.scheduled, Notice::Scheduled),
            (payload.redrive, Notice::Redrive),
            (payload.facts, Notice::Facts),
            (payload.transports, Notice::Transports),
            (payload.workers, Notice::Workers),
            (payload.replicas, Notice::Replicas),
            (payload.everything, Notice::Everything),
        ];
        ready.chain(flags.into_iter().filter(|(set, _)| *set).map(|(_, notice)| notice)).chain(stops).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(queue: &str, tasks: usize) -> Notice {
        Notice::Ready { queue: queue.into(), tasks }
    }

    #[test]
    fn notices_travel_together_and_come_back_as_they_were() {
        let stop = Stop { task: TaskId::from_u128(7), worker: Some("w-1".into()) };
        let all = [
            ready("a", 3),
            ready("b", 1),
            Notice::Scheduled,
            Notice::Redrive,
            Notice::Facts,
            Notice::Replicas,
            Notice::Stops(vec![stop]),
        ];
        assert_eq!(Payload::notices(&Payload::text("x", &all), "y"), all);
        let doubled = Payload::text("x", &[ready("a", 3), ready("a", usize::MAX)]);
        assert_eq!(Payload::notices(&doubled, "y"), [ready("a", usize::MAX)]);
    }

    #[test]
    fn ones_own_are_not_heard() {
        assert_eq!(Payload::notices(&Payload::text("x", &[Notice::Facts, ready("a", 1)]), "x"), []);
    }

    #[test]
    fn what_does_not_fit_becomes_a_look_at_everything() {
        let many: Vec<Notice> = (0..1_000).map(|n| ready(&format!("queue-{n}"), n)).collect();
        let text = Payload::text("x", &many);
        assert!(text.len() <= PAYLOAD_BYTES);
        assert_eq!(Payload::notices(&text, "y"), [Notice::Everything]);
        let long = Payload::text("x", &[ready(&"\u{1}".repeat(7_000), 1)]);
        assert_eq!(Payload::notices(&long, "y"), [Notice::Everything]);
    }

    #[test]
    fn what_is_no_payload_becomes_a_look_at_everything() {
        assert_eq!(Payload::notices("?", "y"), [Notice::Everything]);
        assert_eq!(Payload::notices(r#"{"from":"x","later":7,"facts":true}"#, "y"), [Notice::Facts]);
    }
}
