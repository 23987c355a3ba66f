//! Spawns that wait for room. The queue is in the store: whoever finds room for a row drives its spawn.

use std::time::Duration;

use serde_json::json;
use tenure_core::sandbox::Sandbox;
use tenure_core::sandbox::placement::NoPlace;
use tenure_store::{NotPlaced, Placed, QueuedSpawn};

use super::{ErrorClass, SandboxError, Sandboxes, event};
use crate::background::Pacer;
use crate::duty::Duty;

const POLL_EVERY: Duration = Duration::from_secs(1);
/// How many rows are tried in one turn.
const ROWS: usize = 256;

impl Sandboxes {
    /// Looks for room when there may be some; the control plane that has the duty also looks every second.
    pub(super) async fn keep_queue(self) {
        let shared = &self.inner.shared;
        let mut pacer = Pacer::new(shared);
        loop {
            tokio::select! {
                more = pacer.pause(POLL_EVERY) => {
                    if !more { return }
                    if !shared.duties.is_mine(Duty::Sandboxes) { continue }
                }
                () = self.inner.room.notified() => {}
            }
            if let Err(error) = self.serve_queue().await {
                tracing::warn!("cannot look for room for waiting sandboxes: {error}");
            }
        }
    }

    async fn serve_queue(&self) -> Result<(), SandboxError> {
        let waiting = self.rows().queued_spawns().await?;
        metrics::gauge!("tenure_spawn_queue_depth").set(waiting.len() as f64);
        metrics::gauge!("tenure_spawn_queue_capacity").set(self.settings().max_spawn_queue as f64);
        let now = if waiting.is_empty() { return Ok(()) } else { self.now().await? };
        let (rules, mut is_full) = (self.rules().await?, false);
        for queued in waiting.into_iter().take(ROWS) {
            if self.is_stopping() {
                return Ok(());
            }
            if is_full && now < queued.deadline {
                continue;
            }
            let Some(row) = self.any_row(&queued.sandbox).await? else { continue };
            if now >= queued.deadline {
                self.time_out(&row, &queued).await?;
                continue;
            }
            let Some(driving) = self.begin_driving(&row.id) else { continue };
            match self.place_again(&row, &rules).await? {
                Ok(Placed::On(row, worker, lease)) => {
                    self.dequeued(&row, now.since(row.created_at)).await;
                    self.start_spawn(driving, *row, *worker, lease);
                }
                Ok(Placed::Queued(_) | Placed::Known(_)) | Err(NotPlaced::Gone) => {}
                // There is room for none of those behind it either.
                Err(NotPlaced::NoPlace(NoPlace::MaxSandboxes)) => is_full = true,
                Err(why) => tracing::trace!(sandbox.id = &*row.id, ?why, "no room yet"),
            }
        }
        Ok(())
    }

    async fn time_out(&self, row: &Sandbox, queued: &QueuedSpawn) -> Result<(), SandboxError> {
        if !self.rows().leave_queue(&queued.sandbox).await? {
            return Ok(());
        }
        metrics::counter!("tenure_spawn_queue_timeout_total").increment(1);
        let message = format!("sandbox {} waited too long for room", row.id);
        let error = SandboxError::new(ErrorClass::ResourceLimit, "spawn_queue_timeout", message);
        self.record(vec![event("spawn.queue_timeout", row, None)]).await;
        let outcome = self.fail(row, "spawn_queue_timeout", error).await;
        self.ended(&row.id, &outcome);
        Ok(())
    }

    /// A row waits; its events say so.
    pub(super) fn queued(&self) {
        metrics::counter!("tenure_spawn_queue_enqueued_total").increment(1);
        self.recorded(2);
    }

    async fn dequeued(&self, row: &Sandbox, waited_ms: i64) {
        metrics::counter!("tenure_spawn_queue_dequeued_total").increment(1);
        metrics::histogram!("tenure_spawn_queue_wait_milliseconds").record(waited_ms as f64);
        let longest = self.longest("spawn queue".to_owned(), waited_ms as f64);
        metrics::gauge!("tenure_spawn_queue_wait_milliseconds_max").set(longest);
        let data = json!({"worker": row.worker, "waited_ms": waited_ms});
        self.record(vec![event("spawn.dequeued", row, Some(data))]).await;
    }
}
