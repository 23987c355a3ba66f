//! Events about sandboxes, for those who watch.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::command::Reach;
use tenure_store::SandboxEvent;

use super::{SandboxError, Sandboxes};

/// What others record is found by looking.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const ROWS: usize = 256;

/// Which events are wanted. Joined by AND.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub reach: Reach,
    /// Empty: all.
    pub types: Vec<String>,
    pub sandbox: Option<String>,
}

impl EventFilter {
    fn covers(&self, event: &SandboxEvent) -> bool {
        let is_seen = match (&self.reach, &event.tenant) {
            (Reach::All, _) => true,
            (_, None) => false,
            (reach, Some(tenant)) => reach.covers(tenant, event.owner.as_deref()),
        };
        is_seen
            && (self.types.is_empty() || self.types.contains(&event.kind))
            && self.sandbox.as_deref().is_none_or(|id| event.sandbox.as_deref() == Some(id))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxNotice {
    Event(SandboxEvent),
    /// Events were removed before they could be replayed: the next one is after this id.
    Gap(i64),
}

/// Events as they are recorded.
#[derive(Debug)]
pub struct SandboxEvents {
    sandboxes: Sandboxes,
    filter: EventFilter,
    after: i64,
    ready: VecDeque<SandboxNotice>,
}

impl Sandboxes {
    /// Watches events from after an id, or from now on.
    pub async fn events(&self, filter: EventFilter, after: Option<i64>) -> Result<SandboxEvents, SandboxError> {
        let (first, last) = self.rows().sandbox_event_bounds().await?;
        let mut ready = VecDeque::new();
        let after = match after {
            None => last,
            Some(after) if first > 0 && after + 1 < first => {
                ready.push_back(SandboxNotice::Gap(first - 1));
                first - 1
            }
            Some(after) => after,
        };
        metrics::gauge!("tenure_event_subscribers").increment(1.0);
        Ok(SandboxEvents { sandboxes: self.clone(), filter, after, ready })
    }
}

impl Drop for SandboxEvents {
    fn drop(&mut self) {
        metrics::gauge!("tenure_event_subscribers").decrement(1.0);
    }
}

impl SandboxEvents {
    /// The next event. `None` when the engine stops.
    pub async fn next(&mut self) -> Result<Option<SandboxNotice>, SandboxError> {
        let inner = std::sync::Arc::clone(&self.sandboxes.inner);
        loop {
            if let Some(notice) = self.ready.pop_front() {
                return Ok(Some(notice));
            }
            let recorded = inner.recorded.notified();
            tokio::pin!(recorded);
            // Before the look: what is recorded after it is told.
            recorded.as_mut().enable();
            let events = inner.rows.sandbox_events(self.after, ROWS).await?;
            if let Some(last) = events.last() {
                self.after = last.id;
                let wanted = events.into_iter().filter(|event| self.filter.covers(event));
                self.ready.extend(wanted.map(SandboxNotice::Event));
                continue;
            }
            tokio::select! {
                () = recorded => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = inner.shared.stopping.cancelled() => return Ok(None),
            }
        }
    }
}
