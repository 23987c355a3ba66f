//! Runs the tasks of `runtime: dispatcher`: built-in operators, inside the control plane.
//!
//! A task runs under the lease of its attempt and reports like any other. A control plane that dies in the middle leaves
//! the delivery, which another one repeats: an operator decides the same again, and what it writes has keys.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::attempt::Report;
use tenure_core::command::Rejection;
use tenure_core::command::emit::Proof;
use tenure_core::dag::data::Position;
use tenure_core::dag::judge::{Said, SaidOutput, SaidVersion, Where};
use tenure_core::dag::operators::{Builtin, Done, Fault, Turn};
use tenure_core::dag::task::TaskInput;
use tenure_core::dag::{Cursor, DataReport, Ranges};
use tenure_core::queue::{Push, QueueSettings};

use super::report::{Sender, Stage};
use super::{Dags, JobOf};
use crate::delivery::{Courier, Handover, Outcome, Parcel};
use crate::error::EngineError;

/// Where queues of such jobs push their tasks.
pub(super) const BUILTIN_URL: &str = "builtin:";
/// Positions of one transaction.
const POSITIONS: usize = 1_000;
/// The location of an output without data.
const NO_DATA: &str = "none:";

impl Dags {
    /// The courier that runs tasks of built-in operators.
    pub fn builtin(&self) -> Arc<dyn Courier> {
        Arc::new(BuiltinCourier { dags: self.clone() })
    }
}

#[derive(Debug)]
struct BuiltinCourier {
    dags: Dags,
}

impl Courier for BuiltinCourier {
    fn serves(&self, settings: &QueueSettings) -> bool {
        settings.push.as_ref().is_some_and(|push| &*push.url == BUILTIN_URL)
    }

    fn check(&self, _: &Push) -> Result<(), String> {
        Ok(())
    }

    fn deliver(&self, parcel: Parcel) -> BoxFuture<'_, Handover> {
        async move {
            let task = parcel.grant.task;
            let outcome = match self.run(&parcel).await {
                // The attempt has ended, here or by the report of another delivery.
                Ok(()) => Outcome::Accepted,
                Err(error) => {
                    tracing::warn!(task.id = %task, %error, "a built-in operator cannot run now");
                    Outcome::Withheld
                }
            };
            outcome.into()
        }
        .boxed()
    }
}

impl BuiltinCourier {
    async fn run(&self, parcel: &Parcel) -> Result<(), EngineError> {
        let Parcel { grant, body, .. } = parcel;
        let sender =
            Sender { task: grant.task, attempt: grant.attempt, token: grant.token, attempt_id: Some(grant.attempt_id) };
        let org = &body.tenant;
        let Some(input) = self.dags.input_of(&body.payload) else {
            tracing::error!(task.id = %grant.task, "the task of a job has no readable input");
            return Err(EngineError::Internal);
        };
        let answer = match self.decide(&sender, org, &input).await? {
            Ok((done, alone)) => self.succeed(&sender, org, &input, &done, alone).await?,
            Err(fault) => self.fail(&sender, org, &input, &fault).await?,
        };
        match answer {
            Err(Rejection::Data(refusal)) => {
                let message = format!("the outputs of a built-in operator were refused: {}", refusal.message);
                let fault = Fault { category: tenure_core::attempt::Category::Configuration, message };
                self.fail(&sender, org, &input, &fault).await?.ok();
                Ok(())
            }
            Err(rejection) => {
                tracing::debug!(task.id = %grant.task, reason = ?rejection, "the attempt was over");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// What the operator does, and whether it depends on every task before.
    async fn decide(
        &self,
        sender: &Sender,
        org: &str,
        input: &TaskInput,
    ) -> Result<Result<(Done, bool), Fault>, EngineError> {
        let Some(job) = self.dags.job(input.job).await? else {
            let message = "the job is not deployed any more".to_owned();
            return Ok(Err(Fault { category: tenure_core::attempt::Category::Configuration, message }));
        };
        let builtin = match Builtin::of(&job.definition) {
            Ok(builtin) => builtin,
            Err(fault) => return Ok(Err(fault.into())),
        };
        let ranges = self.ranges(org, &job, input.dag_version).await?;
        let state = if builtin.runs_alone() {
            self.dags.shared().store.job_state(input.job, &[]).await?.operator_state
        } else {
            None
        };
        let turn = Turn { input, number: sender.task.seq().0, ranges, state: state.as_deref() };
        Ok(builtin.run(&turn).map(|done| (done, builtin.runs_alone())))
    }

    /// How the DAG of a task writes ranges.
    async fn ranges(&self, org: &str, job: &JobOf, version: i64) -> Result<Ranges, EngineError> {
        let view = self.dags.view(org).await?;
        Ok(view.deployment.version(&job.dag, version).map_or(Ranges::default(), |version| version.ranges))
    }

    async fn succeed(
        &self,
        sender: &Sender,
        org: &Arc<str>,
        input: &TaskInput,
        done: &Done,
        alone: bool,
    ) -> Result<Result<(), Rejection>, EngineError> {
        let (mut pages, mut last) = (done.positions.chunks(POSITIONS).peekable(), &[][..]);
        while let Some(page) = pages.next() {
            if pages.peek().is_none() {
                last = page;
                break;
            }
            let said = wrote(input, page, None);
            if let Err(refused) = self.dags.emit(sender, Proof::Token(sender.token), org, input, &said).await? {
                return Ok(Err(refused));
            }
        }
        let said = wrote(input, last, done.state.clone());
        let data = self.dags.data(sender, org, input, &said, Stage::End).await?;
        let data = DataReport { live_only: alone, ..data };
        let report = Report::succeeded(Some(format!(r#"{{"positions":{}}}"#, done.positions.len()).into()));
        Ok(self.dags.send(sender, report, data, &said).await?.map(drop))
    }

    async fn fail(
        &self,
        sender: &Sender,
        org: &Arc<str>,
        input: &TaskInput,
        fault: &Fault,
    ) -> Result<Result<(), Rejection>, EngineError> {
        let report = Report::failed(fault.failure());
        Ok(self.dags.report(sender, org, input, report, &Said::default()).await?.map(drop))
    }
}

/// Every output of the task, written at these positions.
fn wrote(input: &TaskInput, positions: &[Position], operator_state: Option<Arc<str>>) -> Said {
    let outputs = input.outputs.iter().flat_map(|output| {
        positions.iter().map(|position| SaidOutput {
            dataset: output.dataset,
            version: SaidVersion::Generation(output.version),
            at: place(position),
            location: NO_DATA.into(),
            row_count: None,
            bytes: None,
            schema_hash: None,
            manifest: None,
        })
    });
    Said { outputs: outputs.collect(), operator_state, ..Said::default() }
}

fn place(position: &Position) -> Where {
    match position {
        Position::Cursor(cursor) => {
            let cursor = u64::try_from(*cursor).ok().and_then(Cursor::new);
            Where { cursor, ..Where::default() }
        }
        Position::Partition(partition) => Where { partition_key: Some(Arc::clone(&partition.key)), ..Where::default() },
    }
}
