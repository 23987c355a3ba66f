//! Logs of tasks: kept as workers send them, read by those who watch. Dropping them is never a reason to fail.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::TaskId;
use tenure_core::command::Reach;
use tenure_core::command::callback::SentAttemptId;
use tenure_core::task::{Place, Running};
use tenure_store::{LogKept, LogPiece, NewLogPiece};
use tokio::sync::{Notify, Semaphore};

use crate::commands::CallbackSender;
use crate::engine::Engine;
use crate::error::EngineError;

/// Bytes of logs that a control plane writes a second, on average and at once. More are dropped.
const BYTES_PER_SECOND: f64 = (4 << 20) as f64;
const BURST_BYTES: f64 = (16 << 20) as f64;
/// Readers that wait for more at a time. Others are answered at once.
const FOLLOWERS: usize = 256;
/// Another control plane may have written.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pieces that are read at a time.
const PIECES: usize = 64;

#[derive(Debug)]
pub struct TaskLogs {
    budget: Mutex<Budget>,
    written: Notify,
    followers: Arc<Semaphore>,
}

#[derive(Debug)]
struct Budget {
    bytes: f64,
    at: Instant,
}

impl Default for TaskLogs {
    fn default() -> Self {
        Self {
            budget: Mutex::new(Budget { bytes: BURST_BYTES, at: Instant::now() }),
            written: Notify::new(),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
        }
    }
}

impl TaskLogs {
    /// Whether there is room for so many bytes now.
    fn spend(&self, bytes: usize) -> bool {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let earned = now.duration_since(budget.at).as_secs_f64() * BYTES_PER_SECOND;
        budget.bytes = (budget.bytes + earned).min(BURST_BYTES);
        budget.at = now;
        let fits = budget.bytes >= bytes as f64;
        if fits {
            budget.bytes -= bytes as f64;
        }
        fits
    }
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogOutcome {
    Kept,
    /// Too much, of this attempt or of all together.
    Dropped,
    /// The attempt is not held under this token.
    NotHeld,
}

/// Logs of a task, up to a point.
#[derive(Debug)]
pub struct LogsRead {
    pub pieces: Vec<LogPiece>,
    /// There are more by now.
    pub more: bool,
    /// The task has ended, so that no more will come.
    pub ended: bool,
}

impl Engine {
    /// Keeps logs of attempts that are held under the tokens that come with them.
    pub async fn keep_logs(&self, pieces: Vec<NewLogPiece>) -> Result<Vec<LogOutcome>, EngineError> {
        let logs = &self.shared.task_logs;
        let fits: Vec<bool> = pieces.iter().map(|piece| logs.spend(piece.lines.len())).collect();
        let kept: Vec<NewLogPiece> =
            pieces.into_iter().zip(&fits).filter(|(_, fits)| **fits).map(|(piece, _)| piece).collect();
        let mut kept = if kept.is_empty() { Vec::new() } else { self.shared.store.keep_logs(&kept).await? }.into_iter();
        let outcomes: Vec<LogOutcome> = fits
            .iter()
            .map(|fits| match fits.then(|| kept.next()).flatten() {
                Some(LogKept::Kept) => LogOutcome::Kept,
                Some(LogKept::NotHeld) => LogOutcome::NotHeld,
                Some(LogKept::Full) | None => LogOutcome::Dropped,
            })
            .collect();
        let dropped = outcomes.iter().filter(|outcome| **outcome == LogOutcome::Dropped).count();
        metrics::counter!("tenure_task_log_pieces_dropped_total").increment(dropped as u64);
        logs.written.notify_waiters();
        Ok(outcomes)
    }

    /// Keeps logs of a pushed attempt, from the worker that has its token.
    pub async fn keep_pushed_logs(&self, sender: &CallbackSender, lines: Arc<str>) -> Result<LogOutcome, EngineError> {
        let is_sent = |running: &Running| {
            let holder = running.lease.holder.as_ref().is_none_or(|holder| *holder == sender.worker);
            let id = sender.attempt_id.as_ref().is_none_or(|id| *id == SentAttemptId::Id(running.attempt_id));
            holder && id && sender.attempt == running.attempt && sender.proof.attempt_id == running.attempt_id
        };
        let Some(running) = self.shared.store.in_flight(sender.task).await?.filter(is_sent) else {
            return Ok(LogOutcome::NotHeld);
        };
        let piece = NewLogPiece { task: sender.task, token: running.lease.token, worker: None, lines };
        Ok(self.keep_logs(vec![piece]).await?.pop().unwrap_or(LogOutcome::NotHeld))
    }

    /// Logs of a task after the piece `after`, oldest first. Waits up to `wait` while there are none and the task has not
    /// ended. `None` for a task that does not exist or is out of reach.
    pub async fn task_logs(
        &self,
        task: TaskId,
        reach: &Reach,
        attempt: Option<u32>,
        after: i64,
        wait: Duration,
    ) -> Result<Option<LogsRead>, EngineError> {
        let until = Instant::now() + wait;
        let place = Arc::clone(&self.shared.task_logs.followers).try_acquire_owned().ok();
        loop {
            let written = self.shared.task_logs.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            let Some(view) = self.task(task, reach).await? else { return Ok(None) };
            let ended = matches!(view.place, Place::Finished(_));
            let mut pieces = self.shared.store.task_logs(task.seq(), attempt, after, PIECES + 1).await?;
            let more = pieces.len() > PIECES;
            pieces.truncate(PIECES);
            let now = Instant::now();
            if !pieces.is_empty() || ended || place.is_none() || now >= until {
                return Ok(Some(LogsRead { pieces, more, ended }));
            }
            tokio::select! {
                () = &mut written => {}
                () = tokio::time::sleep_until(until.min(now + LOOK_EVERY).into()) => {}
                () = self.shared.stopping.cancelled() => return Ok(Some(LogsRead { pieces, more, ended })),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_logs_is_dropped() {
        let logs = TaskLogs::default();
        let kept = (0..64).filter(|_| logs.spend(1 << 20)).count();
        assert!((16..=20).contains(&kept), "{kept}");
    }
}
