//! Removes what attempts have left in the object store without committing it, and bundles that are not on record.
//!
//! What can still be committed stays, and what was committed once stays too: a reader may have its files. Whether an
//! attempt has committed is on record as long as its task is. After that an output goes only if it was never finished,
//! for an unfinished one cannot have been committed.
//!
//! A bundle is written before it is on record, and marked as finished afterwards. One that is old, neither marked nor on
//! record, is of an upload that did not end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::TaskId;
use tenure_core::attempt::AttemptState;
use tenure_core::command::{Reach, live};
use tenure_core::dag::buffer::Content;
use tenure_core::objects::Staged;
use tenure_objects::{Judge, Left, ObjectError, Objects, Swept};
use tenure_store::{AttemptRange, AttemptView};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::Dags;
use crate::background::Pacer;
use crate::duty::Duty;
use crate::error::EngineError;

/// How often all names are read.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);
/// How soon a round follows one that had more to remove.
const NEXT_ROUND: Duration = Duration::from_secs(1);
/// What one round removes.
const ROUND: u64 = 1_000;
/// Batches that wait for their sink, or are dead letters, with their rows in the object store.
const OPEN_BATCHES: usize = 100_000;
const PAGE: usize = 500;

/// How long what nobody has committed is kept, unless a setting says otherwise.
pub const STAGING_KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);

impl Dags {
    /// Removes stale staging from now on, when this control plane has the duty. To be called once.
    pub fn clean_staging(&self, objects: Arc<Objects>, kept: Duration) {
        self.engine().deliveries.spawn(self.clone().keep_cleaning(objects, kept));
    }

    async fn keep_cleaning(self, objects: Arc<Objects>, kept: Duration) {
        let shared = Arc::clone(&self.engine().shared);
        let (mut pacer, mut pause) = (Pacer::new(&shared), Duration::ZERO);
        while pacer.turn(Duty::Staging, pause).await {
            pause = match self.sweep_staging(&objects, kept, ROUND).await {
                Ok(swept) if swept.has_more => NEXT_ROUND,
                Ok(_) => SWEEP_EVERY,
                Err(error) if shared.stopping.is_cancelled() || !shared.duties.is_mine(Duty::Staging) => {
                    tracing::debug!(error = %error, "stale staging is left to another control plane");
                    NEXT_ROUND
                }
                Err(error) => {
                    tracing::warn!(error = %error, reason = ?std::error::Error::source(&error), "cannot remove stale staging now");
                    SWEEP_EVERY
                }
            };
        }
    }

    /// Looks at everything that attempts have left, and removes up to about `most` that are older than `kept` and not
    /// needed.
    pub async fn sweep_staging(&self, objects: &Objects, kept: Duration, most: u64) -> Result<Swept, ObjectError> {
        let now = self.shared().store.now().await.map_err(EngineError::from).map_err(away)?;
        let kept_ms = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
        let judge = Records { dags: self, objects, open: OnceCell::new() };
        let swept = objects.sweep(now.plus(kept_ms.saturating_neg()), most, &judge).await?;
        metrics::counter!("tenure_staging_removed_total").increment(swept.removed);
        metrics::counter!("tenure_staging_failures_total").increment(swept.failed);
        if swept.removed + swept.failed > 0 {
            tracing::info!(
                removed = swept.removed,
                failed = swept.failed,
                kept = swept.kept,
                "removed staged outputs, scratch folders and bundles that nobody has committed"
            );
        }
        Ok(swept)
    }
}

fn away(error: EngineError) -> ObjectError {
    ObjectError::Unavailable(Box::new(error))
}

/// Judges by what the store has on record.
struct Records<'a> {
    dags: &'a Dags,
    objects: &'a Objects,
    /// Where batches are that a sink has not written.
    open: OnceCell<HashSet<Staged>>,
}

#[async_trait]
impl Judge for Records<'_> {
    async fn removable(&self, left: &[Left]) -> Result<Vec<bool>, ObjectError> {
        let shared = self.dags.shared();
        if shared.stopping.is_cancelled() {
            return Err(ObjectError::Unavailable("the control plane stops".into()));
        }
        let bundles: Vec<Uuid> = left.iter().filter_map(|left| left.staged.bundle()).collect();
        let bundles = shared.store.known_bundles(&bundles).await.map_err(EngineError::from).map_err(away)?;
        let tasks: Vec<_> = left.iter().filter_map(|left| Some(attempt_of(&left.staged)?.0.seq())).collect();
        let known = shared.store.whose(&tasks).await.map_err(EngineError::from).map_err(away)?;
        let mut removable = Vec::with_capacity(left.len());
        for left in left {
            let removes = match attempt_of(&left.staged) {
                None => left.staged.bundle().is_some_and(|bundle| !left.is_finished && !bundles.contains(&bundle)),
                Some(of) => {
                    let is_known = known.contains_key(&of.0.seq());
                    self.is_dead(left, of, is_known).await.map_err(away)? && !self.has_batch(&left.staged).await?
                }
            };
            removable.push(removes);
        }
        Ok(removable)
    }
}

impl Records<'_> {
    /// Whether an attempt has left it that can commit nothing any more, and has not committed it.
    async fn is_dead(&self, left: &Left, (task, attempt): (TaskId, u32), is_known: bool) -> Result<bool, EngineError> {
        let is_scratch = matches!(left.staged, Staged::Scratch { .. });
        let store = &self.dags.shared().store;
        let view = if is_known { store.task(task, &Reach::All).await? } else { None };
        let Some(view) = view else { return Ok(is_scratch || !left.is_finished) };
        if live::may_report(&view.place, attempt) {
            return Ok(false);
        }
        if is_scratch {
            return Ok(true);
        }
        let asked = AttemptRange { after: attempt.saturating_sub(1), limit: 1 };
        let page = store.attempts_page(task, &Reach::All, asked).await?;
        let found = page.and_then(|page| page.items.into_iter().next());
        Ok(match found {
            Some(AttemptView::Closed(closed)) if closed.number == attempt => closed.state != AttemptState::Succeeded,
            // It was granted meanwhile.
            Some(AttemptView::Open(running)) if running.attempt == attempt => false,
            _ => !left.is_finished,
        })
    }

    /// Whether rows in it wait to be written to a table, or can be replayed.
    async fn has_batch(&self, staged: &Staged) -> Result<bool, ObjectError> {
        Ok(self.open.get_or_try_init(|| self.open_batches()).await?.contains(staged))
    }

    async fn open_batches(&self) -> Result<HashSet<Staged>, ObjectError> {
        let (mut open, mut after) = (HashSet::new(), 0);
        loop {
            let page = self.dags.shared().store.open_publishes(after, PAGE).await;
            let page = page.map_err(EngineError::from).map_err(away)?;
            let uris = page.items.iter().filter_map(|row| match &row.batch.as_ref()?.content {
                Content::Artifact { uri, .. } => Some(uri),
                Content::Records(_) => None,
            });
            open.extend(uris.filter_map(|uri| self.objects.staged(uri)));
            if open.len() > OPEN_BATCHES {
                let message =
                    format!("more than {OPEN_BATCHES} batches wait or are dead letters: replay or remove them");
                return Err(ObjectError::Unavailable(message.into()));
            }
            match (page.next, page.items.last()) {
                (Some(_), Some(last)) => after = last.number,
                _ => return Ok(open),
            }
        }
    }
}

/// The attempt that left it, if one did.
fn attempt_of(staged: &Staged) -> Option<(TaskId, u32)> {
    match staged {
        Staged::Output(output) => Some((TaskId::from_u128(output.task.as_u128()), output.attempt)),
        Staged::Scratch { task, attempt } => Some((TaskId::from_u128(task.as_u128()), *attempt)),
        Staged::Bundle { .. } => None,
    }
}
