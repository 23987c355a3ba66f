//! What tasks of jobs report: how their attempts ended, and what they wrote to datasets.
//!
//! Every completion of such a task comes through here: of workers, functions and built-in operators. What it says about datasets is judged against the
//! task's input before the report is sent; a refusal travels with the report, because only the holder of the attempt may
//! learn of it.

use std::collections::HashSet;
use std::sync::Arc;

use tenure_core::attempt::{Receipt, Report};
use tenure_core::command::Reach;
use tenure_core::command::emit::{Emit, Proof};
use tenure_core::command::report::AttemptReport;
use tenure_core::dag::data::Scope;
use tenure_core::dag::definition::UpdateStrategy;
use tenure_core::dag::judge::{self, Rules, Said};
use tenure_core::dag::task::TaskInput;
use tenure_core::dag::{DataReport, DatasetId, InvalidationId, VersionId, named_bits};
use tenure_core::{AttemptId, LeaseToken, TaskId};
use tenure_store::AttemptView;
use tenure_store::dags::DATA_PAGE;

use super::Dags;
use crate::commands::Reply;
use crate::error::EngineError;

/// About how much memory one output or event of a report takes.
const ENTRY_BYTES: usize = 512;

/// The sender of a report, and what shows that it holds the attempt.
#[derive(Debug, Clone, Copy)]
pub struct Sender {
    pub task: TaskId,
    /// The number of the attempt.
    pub attempt: u32,
    pub token: LeaseToken,
    /// The attempt itself, if the sender knows it; otherwise it is looked up by its number.
    pub attempt_id: Option<AttemptId>,
}

/// When something is said about datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before the attempt ends: nothing counts as read or done yet.
    Midway,
    End,
}

impl Dags {
    /// What a task was given. `None` if it is not the task of a job.
    pub fn input_of(&self, payload: &str) -> Option<TaskInput> {
        serde_json::from_str(payload).ok()
    }

    /// Reports the end of an attempt. What `said` contains is written only if the report counts as a success.
    pub async fn report(
        &self,
        sender: &Sender,
        org: &Arc<str>,
        input: &TaskInput,
        report: Report,
        said: &Said,
    ) -> Reply<Receipt> {
        let data = self.data(sender, org, input, said, Stage::End).await?;
        self.send(sender, report, data, said).await
    }

    /// Sends a report whose part about datasets is known.
    pub(super) async fn send(&self, sender: &Sender, report: Report, data: DataReport, said: &Said) -> Reply<Receipt> {
        let attempt_id = match sender.attempt_id {
            Some(id) => id,
            None => self.attempt_id(sender.task, sender.attempt).await?,
        };
        let Sender { task, token, .. } = *sender;
        let bytes = weight(said) + report.result().map_or(0, |result| result.len());
        let report = AttemptReport { task, attempt_id, token, report, data: Some(Arc::new(data)) };
        let reply = self.inner.engine.report(report, bytes).await?;
        if reply.is_ok() {
            self.recorded();
        }
        Ok(reply)
    }

    /// Records what a holder says about datasets before its attempt has ended.
    pub async fn emit(
        &self,
        sender: &Sender,
        proof: Proof,
        org: &Arc<str>,
        input: &TaskInput,
        said: &Said,
    ) -> Reply<bool> {
        let data = self.data(sender, org, input, said, Stage::Midway).await?;
        let emit = Emit { task: sender.task, attempt: sender.attempt, proof, data: Arc::new(data) };
        let reply = self.inner.engine.emit(emit, weight(said)).await?;
        if reply.is_ok() {
            self.recorded();
        }
        Ok(reply)
    }

    /// Judges what a task says about datasets. If that is refused, the report carries the refusal and nothing else.
    pub async fn data(
        &self,
        sender: &Sender,
        org: &Arc<str>,
        input: &TaskInput,
        said: &Said,
        stage: Stage,
    ) -> Result<DataReport, EngineError> {
        let job = self.job(input.job).await?;
        let replaces = job.is_some_and(|job| job.definition.update_strategy == UpdateStrategy::Replace);
        let known = self.known_versions(said).await?;
        let cascade = |dataset, scope: &Scope| {
            // Not of the attempt: what one attempt has told of before its end, the next one tells again.
            InvalidationId::from_u128(named_bits(&format!("{}:{dataset}:{scope:?}", sender.task)))
        };
        let knows = |dataset, version| known.contains(&(dataset, version));
        let ends = stage == Stage::End;
        let rules = Rules { org: Arc::clone(org), replaces, ends, knows: &knows, cascade: &cascade };
        Ok(judge::judge(input, said, &rules).unwrap_or_else(|refusal| DataReport {
            refusal: Some(refusal),
            ..DataReport::of(Arc::clone(org), input.job)
        }))
    }

    /// The versions of datasets that events name, as far as they ever existed.
    async fn known_versions(&self, said: &Said) -> Result<HashSet<(DatasetId, VersionId)>, EngineError> {
        let named: HashSet<VersionId> = said.events.iter().map(|event| event.version).collect();
        let named: Vec<VersionId> = named.into_iter().collect();
        let mut known = HashSet::new();
        for page in named.chunks(DATA_PAGE) {
            let rows = self.shared().store.generations(page).await?;
            known.extend(rows.into_iter().map(|row| (row.dataset, row.version)));
        }
        Ok(known)
    }

    /// The attempt of a task with this number. One that never was has an id that no attempt has.
    async fn attempt_id(&self, task: TaskId, number: u32) -> Result<AttemptId, EngineError> {
        if let Some(running) = self.shared().store.in_flight(task).await?
            && running.attempt == number
        {
            return Ok(running.attempt_id);
        }
        let attempts = self.inner.engine.attempts(task, &Reach::All).await?.unwrap_or_default();
        let found = attempts.iter().find_map(|attempt| match attempt {
            AttemptView::Open(running) => (running.attempt == number).then_some(running.attempt_id),
            AttemptView::Closed(closed) => (closed.number == number).then_some(closed.id),
        });
        Ok(found.unwrap_or(AttemptId::from_u128(0)))
    }
}

fn weight(said: &Said) -> usize {
    let entries = said.outputs.len() + said.events.len() + said.invalidations.len();
    entries * ENTRY_BYTES + said.operator_state.as_ref().map_or(0, |state| state.len())
}
