//! What control planes of one store tell each other, so that a claim that waits at one is woken by a submit at another.
//!
//! Told is what nobody here was woken for, after its commit, and only if there is anybody to tell. Notices are collected
//! while the last ones travel. One that is lost costs time: the sweeper looks every second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::batch::Stop;
use tenure_store::Notice;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::background;
use crate::engine::Shared;
use crate::fleet;

/// Between two notices others get their turn.
const TELL_EVERY: Duration = Duration::from_millis(5);
/// Facts come with almost every batch, and those who watch can wait a little.
const TELL_FACTS_EVERY: Duration = Duration::from_millis(50);
/// Tasks that are to stop, told in one go. The workers of others learn it from their heartbeats.
const STOPS: usize = 128;
/// More queues than this are told as "look at everything".
const QUEUES: usize = 256;

/// What is to be told.
#[derive(Debug, Default)]
pub struct Telling {
    pending: Mutex<Pending>,
    dirty: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    ready: HashMap<Arc<str>, usize>,
    scheduled: bool,
    redrive: bool,
    facts: bool,
    transports: bool,
    workers: bool,
    everything: bool,
    stops: Vec<Stop>,
}

impl Pending {
    fn is_urgent(&self) -> bool {
        !self.ready.is_empty()
            || !self.stops.is_empty()
            || self.scheduled
            || self.redrive
            || self.transports
            || self.workers
            || self.everything
    }

    fn notices(self) -> Vec<Notice> {
        let mut notices: Vec<Notice> =
            self.ready.into_iter().map(|(queue, tasks)| Notice::Ready { queue, tasks }).collect();
        let flags = [
            (self.scheduled, Notice::Scheduled),
            (self.redrive, Notice::Redrive),
            (self.facts, Notice::Facts),
            (self.transports, Notice::Transports),
            (self.workers, Notice::Workers),
            (self.everything, Notice::Everything),
        ];
        notices.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, notice)| notice));
        if !self.stops.is_empty() {
            notices.push(Notice::Stops(self.stops));
        }
        notices
    }
}

impl Telling {
    pub fn tell(&self, notice: Notice) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        match notice {
            Notice::Ready { .. } if pending.everything => {}
            Notice::Ready { queue, tasks } => {
                let known = pending.ready.entry(queue).or_default();
                *known = known.saturating_add(tasks);
                if pending.ready.len() > QUEUES {
                    pending.ready.clear();
                    pending.everything = true;
                }
            }
            Notice::Scheduled => pending.scheduled = true,
            Notice::Redrive => pending.redrive = true,
            Notice::Facts => pending.facts = true,
            Notice::Stops(tasks) => {
                let room = STOPS.saturating_sub(pending.stops.len());
                pending.stops.extend(tasks.into_iter().take(room));
            }
            Notice::Transports => pending.transports = true,
            Notice::Workers => pending.workers = true,
            Notice::Replicas | Notice::Everything => pending.everything = true,
        }
        drop(pending);
        self.dirty.notify_one();
    }

    fn is_urgent(&self) -> bool {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).is_urgent()
    }

    fn take(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner)).notices()
    }
}

/// Tells others, from the first word that this control plane is there.
pub async fn tell(shared: Arc<Shared>) {
    let told = |notices: Vec<Notice>| {
        let shared = Arc::clone(&shared);
        async move {
            match shared.store.notify(shared.duties.name(), &notices).await {
                Ok(()) => metrics::counter!("tenure_notices_sent_total").increment(1),
                Err(error) => {
                    tracing::debug!(
                        error = error.chain(),
                        "cannot notify other control planes: they will find out by themselves"
                    );
                }
            }
        }
    };
    told(vec![Notice::Replicas]).await;
    let mut last = Instant::now();
    loop {
        tokio::select! {
            () = shared.telling.dirty.notified() => {}
            () = shared.stopping.cancelled() => return,
        }
        loop {
            let due = last + if shared.telling.is_urgent() { TELL_EVERY } else { TELL_FACTS_EVERY };
            tokio::select! {
                () = tokio::time::sleep_until(due) => break,
                () = shared.telling.dirty.notified() => {}
                () = shared.stopping.cancelled() => return,
            }
        }
        let notices = shared.telling.take();
        if !notices.is_empty() {
            told(notices).await;
            last = Instant::now();
        }
    }
}

/// Acts on what others tell.
pub async fn hear(shared: Arc<Shared>) {
    let Some(mut heard) = shared.store.listen(shared.duties.name()) else { return };
    loop {
        let notice = tokio::select! {
            notice = heard.recv() => notice,
            () = shared.stopping.cancelled() => return,
        };
        let Some(notice) = notice else { return };
        metrics::counter!("tenure_notices_heard_total").increment(1);
        match notice {
            Notice::Ready { queue, tasks } => {
                shared.waiters.wake(&queue, tasks);
            }
            Notice::Scheduled => shared.scheduled.notify_one(),
            Notice::Redrive => shared.redriving.notify_one(),
            Notice::Facts => shared.recorded.notify_waiters(),
            Notice::Stops(tasks) => shared.stops.tell(&tasks),
            Notice::Transports => shared.sweep.send_replace(()),
            Notice::Workers => fleet::read_drains(&shared).await,
            Notice::Replicas => shared.duties.look.notify_one(),
            Notice::Everything => {
                shared.duties.look.notify_one();
                shared.scheduled.notify_one();
                shared.redriving.notify_one();
                shared.recorded.notify_waiters();
                background::sweep(&shared).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_yet_is_told_together() {
        let telling = Telling::default();
        for _ in 0..3 {
            telling.tell(Notice::Ready { queue: "a".into(), tasks: 2 });
            telling.tell(Notice::Facts);
        }
        assert!(telling.is_urgent());
        assert_eq!(telling.take(), [Notice::Ready { queue: "a".into(), tasks: 6 }, Notice::Facts]);
        assert_eq!(telling.take(), []);
        telling.tell(Notice::Facts);
        assert!(!telling.is_urgent());
    }

    #[test]
    fn too_many_queues_are_a_look_at_everything() {
        let telling = Telling::default();
        for n in 0..=2 * QUEUES {
            telling.tell(Notice::Ready { queue: format!("q{n}").into(), tasks: 1 });
        }
        assert_eq!(telling.take(), [Notice::Everything]);
    }
}
