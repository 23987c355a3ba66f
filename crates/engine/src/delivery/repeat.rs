//! Repeats deliveries that are due, whoever began them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::Seq;
use tenure_core::command::Command;
use tenure_core::command::push::TakePush;
use tenure_core::mutant;
use tenure_core::queue::{Queue, QueueId};

use super::circuit::{Gate, Name, Probe};
use super::places::Place;
use super::{BATCH_TASKS, Depot, LOOK_EVERY};
use crate::background::Pacer;
use crate::commands::{typed, variant};
use crate::error::EngineError;

/// Due deliveries are not looked for more often than this.
const SCAN_AT_MOST_EVERY: Duration = Duration::from_millis(20);

/// A queue from which deliveries can be repeated now.
struct Open {
    queue: Arc<Queue>,
    circuit: Name,
}

/// A delivery that is to be repeated here, unless another control plane has taken it.
struct Candidate {
    row: Seq,
    queue: Arc<Queue>,
    place: Place,
    probe: Option<Probe>,
}

impl Depot {
    pub(super) async fn repeat(self: Arc<Self>) {
        let mut pacer = Pacer::new(&self.engine.shared);
        loop {
            let sleep = match self.repeat_due().await {
                Ok(sleep) => sleep,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for due pushes");
                    LOOK_EVERY
                }
            };
            tokio::select! {
                // The clock of a test may be moved.
                more = pacer.pause(sleep) => if !more { return },
                () = self.again.notified() => tokio::time::sleep(SCAN_AT_MOST_EVERY).await,
            }
        }
    }

    /// One look. Returns how long until the next.
    async fn repeat_due(self: &Arc<Self>) -> Result<Duration, EngineError> {
        let (mut rooms, mut open) = (Vec::new(), HashMap::new());
        let now = Instant::now();
        for outlet in self.outlets.all() {
            let queue = outlet.queue();
            let Ok((_, circuit)) = self.route(&queue) else { continue };
            let room = match self.circuits.gate(&circuit, now) {
                Gate::Free => self.places.room(queue.id).min(BATCH_TASKS),
                Gate::Probe => 1,
                Gate::Shut { .. } => 0,
            };
            if room > 0 {
                rooms.push((queue.id, room));
                open.insert(queue.id, Open { queue, circuit });
            }
        }
        if rooms.is_empty() || mutant!("push-not-repeated") {
            return Ok(LOOK_EVERY);
        }
        let due = self.engine.shared.store.pushes_due(&rooms).await?;
        let found = due.rows.len();
        let taken = self.take(&open, due.rows).await?;
        if taken > 0 && found >= BATCH_TASKS {
            return Ok(SCAN_AT_MOST_EVERY);
        }
        let ms = due.next_at.map_or(i64::MAX, |at| at.since(due.now));
        Ok(Duration::from_millis(u64::try_from(ms).unwrap_or(0)).clamp(SCAN_AT_MOST_EVERY, LOOK_EVERY))
    }

    /// Takes these deliveries, as far as others have not done so, and sends what was taken. Returns how many.
    async fn take(
        self: &Arc<Self>,
        open: &HashMap<QueueId, Open>,
        rows: Vec<(QueueId, Seq)>,
    ) -> Result<usize, EngineError> {
        let rows = rows.into_iter().filter_map(|(queue, row)| self.candidate(open.get(&queue)?, row));
        let candidates: Vec<Candidate> = rows.collect();
        let commands = candidates.iter().map(|one| Command::TakePush(TakePush { row: one.row })).collect();
        let replies = self.engine.shared.work.send(commands, 0).await?;
        let mut taken = 0;
        for (candidate, reply) in candidates.into_iter().zip(replies) {
            match typed(reply, variant!(Claimed)) {
                Ok(Ok(claimed)) => {
                    let Some(grant) = claimed.grants.into_iter().next() else { continue };
                    taken += 1;
                    self.send(candidate.queue, grant, candidate.place, candidate.probe);
                }
                Ok(Err(_)) => {}
                // The others were taken all the same.
                Err(error) => tracing::warn!(task.seq = candidate.row.0, %error, "cannot take a due push"),
            }
        }
        Ok(taken)
    }

    /// `None` if there is no place for it, or nothing may go to its target now.
    fn candidate(&self, open: &Open, row: Seq) -> Option<Candidate> {
        let place = self.places.try_take(open.queue.id)?;
        let now = Instant::now();
        let probe = match self.circuits.gate(&open.circuit, now) {
            Gate::Free => None,
            Gate::Probe => Some(self.circuits.probe(&open.circuit, now)?),
            Gate::Shut { .. } => return None,
        };
        Some(Candidate { row, queue: Arc::clone(&open.queue), place, probe })
    }
}
