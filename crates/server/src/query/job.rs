//! Jobs with the operator `query`: a query process runs their tasks, and the result is their output.
//!
//! Nothing is written before the process has begun the query, and after that the delivery counts as accepted and is not
//! repeated: an attempt writes to its staging prefix once. A control plane that dies in the middle loses the attempt, which
//! another one follows when its time is over.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_contract::query::QueryRequest;
use tenure_contract::query::process::{Ask, Begun, Bounds, Format};
use tenure_core::attempt::{Category, Failure, Report};
use tenure_core::command::Rejection;
use tenure_core::command::claim::Grant;
use tenure_core::command::report::AttemptReport;
use tenure_core::dag::data::{DataReport, NewInvalidation, Scope};
use tenure_core::dag::judge::{Said, SaidOutput, SaidVersion, Where};
use tenure_core::dag::operators::{self, Circumstances, Plan, Query};
use tenure_core::dag::{InvalidationId, PartitionKey, VersionId, named_bits};
use tenure_core::objects::SUCCESS;
use tenure_core::queue::{Push, QueueSettings};
use tenure_engine::dags::{QUERY_URL, Sender, Stage};
use tenure_engine::delivery::{Courier, Handover, Outcome, Parcel};
use tenure_engine::random_bits;
use tenure_engine::store::Asker;
use tenure_objects::Output;
use tokio::time::Instant;
use uuid::Uuid;

use super::answer::{EXPORT_BYTES, GRACE, Question, audit, begin, timed_out};
use super::endpoint::Running;
use super::export::{Export, fault as object_fault};
use super::views::{of_job, views};
use super::{InFlight, Queries, QueryPlace, batch};
use crate::dispatch::render::JobTask;
use crate::dispatch::{DispatchFault, NO_OBJECT_STORE};
use crate::error::Fault;

/// When a task that found no room is tried again.
const ROOM_AFTER_MS: i64 = 2_000;

/// Runs tasks of queries.
#[derive(Debug)]
pub struct QueryCourier {
    /// The process ends with the server, whatever is still being delivered.
    queries: Weak<Queries>,
}

impl QueryCourier {
    pub fn new(queries: &Arc<Queries>) -> Self {
        Self { queries: Arc::downgrade(queries) }
    }
}

impl Courier for QueryCourier {
    fn serves(&self, settings: &QueueSettings) -> bool {
        settings.push.as_ref().is_some_and(|push| &*push.url == QUERY_URL)
    }

    fn check(&self, _: &Push) -> Result<(), String> {
        let Some(queries) = self.queries.upgrade() else { return Err("the server stops".to_owned()) };
        match &queries.config.place {
            QueryPlace::Nowhere(message) => Err(message.clone()),
            _ if queries.dispatch.config.objects.is_none() => Err(NO_OBJECT_STORE.to_owned()),
            _ => Ok(()),
        }
    }

    fn deliver(&self, parcel: Parcel) -> BoxFuture<'_, Handover> {
        async move {
            let Some(queries) = self.queries.upgrade() else { return Outcome::Withheld.into() };
            let task = parcel.grant.task;
            start(queries, parcel).await.unwrap_or_else(|fault| {
                tracing::warn!(task.id = %task, ?fault, "the task of a query cannot run now");
                Outcome::Withheld.into()
            })
        }
        .boxed()
    }
}

/// One attempt of a task.
struct Attempt {
    queries: Arc<Queries>,
    grant: Grant,
    task: JobTask,
}

/// A query that has begun.
struct Begin {
    running: Running,
    begun: Begun,
    id: String,
    question: Question,
    plan: Plan,
    deadline: Instant,
    /// Until the result is written.
    _place: InFlight,
}

/// What the operator cannot do, or not now.
fn unfit(fault: &operators::Fault) -> Trouble {
    Trouble { failure: fault.failure() }
}

/// Why a task has no result.
pub(super) struct Trouble {
    pub(super) failure: Failure,
}

impl Trouble {
    /// `None` if nothing could be found out about the query.
    pub(super) fn of(fault: &Fault) -> Option<Self> {
        let Fault::Dispatch(fault) = fault else { return None };
        let DispatchFault { code, message, .. } = &**fault;
        let (category, retryable) = match *code {
            "query_timeout" => (Category::Timeout, true),
            "query_unavailable" | "query_busy" | "object_store_unavailable" | "data_store_unavailable" => {
                (Category::Infrastructure, true)
            }
            "invalid_sql" | "query_memory_exceeded" => (Category::Configuration, false),
            _ => (Category::DataQuality, false),
        };
        let code = code.to_ascii_uppercase();
        Some(Self { failure: Failure::new(&code, message, None, Some(retryable)).of_category(Some(category)) })
    }
}

/// Begins a query. What is left to do is the rest of the delivery.
async fn start(queries: Arc<Queries>, parcel: Parcel) -> Result<Handover, Fault> {
    if &*parcel.queue == batch::QUEUE {
        return batch::start(queries, parcel).await;
    }
    let Parcel { grant, body, .. } = parcel;
    let Some(task) = queries.dispatch.job_task(&body).await? else {
        return Ok(Outcome::Rejected { message: "the job is not deployed any more".to_owned() }.into());
    };
    let Ok(place) = queries.enter(&task.org) else { return Ok(no_room("too many queries are running")) };
    let attempt = Attempt { queries, grant, task };
    let (query, plan) = match attempt.plan().await? {
        Ok((query, Some(plan))) => (query, plan),
        Ok((_, None)) => {
            attempt.succeed(&Said::default(), None).await?;
            return Ok(Outcome::Accepted.into());
        }
        Err(trouble) => {
            attempt.fail(trouble).await?;
            return Ok(Outcome::Accepted.into());
        }
    };
    match attempt.begin(&query, plan, place).await {
        Ok(begin) => {
            let rest = async move { attempt.finish(begin).await }.boxed();
            Ok(Handover { outcome: Outcome::Accepted, rest: Some(rest) })
        }
        Err(Fault::Dispatch(fault)) if ["query_busy", "query_unavailable"].contains(&fault.code) => {
            Ok(no_room(&fault.message))
        }
        Err(fault) => {
            let Some(trouble) = Trouble::of(&fault) else { return Err(fault) };
            attempt.fail(trouble).await?;
            Ok(Outcome::Accepted.into())
        }
    }
}

pub(super) fn no_room(why: &str) -> Handover {
    Outcome::NoRoom { why: why.into(), after_ms: ROOM_AFTER_MS }.into()
}

/// Sends a query whose whole result is wanted, and waits until it has begun.
pub(super) async fn ask(
    queries: &Queries,
    question: &Question,
    id: &str,
    format: Format,
    deadline: Instant,
) -> Result<(Running, Begun), Fault> {
    let (sql, timeout) = (&question.request.sql, question.timeout);
    let looking = views(queries, &question.org, sql, &question.datasets, timeout + GRACE);
    let views = tokio::time::timeout_at(deadline, looking).await.map_err(|_| timed_out(timeout))??;
    let left = deadline.saturating_duration_since(Instant::now());
    let ask = Ask {
        query_id: id.to_owned(),
        sql: sql.clone(),
        views,
        format,
        bounds: Bounds {
            rows: None,
            bytes: Some(EXPORT_BYTES),
            timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1),
            memory_bytes: queries.config.memory_bytes,
        },
    };
    let asking = async {
        let mut running = queries.ask(&ask, deadline).await?;
        let begun = begin(&mut running).await?;
        Ok::<_, Fault>((running, begun))
    };
    tokio::time::timeout_at(deadline + GRACE, asking).await.map_err(|_| timed_out(timeout))?
}

impl Attempt {
    /// The query of the job, and what it reads and writes this time.
    async fn plan(&self) -> Result<Result<(Query, Option<Plan>), Trouble>, Fault> {
        let query = match Query::of(&self.task.job.definition) {
            Ok(query) => query,
            Err(fault) => return Ok(Err(unfit(&fault.into()))),
        };
        let versions: Vec<VersionId> = self.task.input.inputs.iter().map(|input| input.version).collect();
        let state = self.queries.dispatch.dags.job_state(self.task.job.id, &versions).await?;
        let read = |version| state.cursors.iter().find(|(of, _)| *of == version).map_or(0, |(_, at)| *at);
        let is_table = |dataset| self.task.is_table(dataset);
        let now = Circumstances { ranges: self.task.ranges(), read: &read, is_table: &is_table };
        Ok(match query.plan(&self.task.input, &now) {
            Ok(plan) => Ok((query, plan)),
            Err(fault) => Err(unfit(&fault)),
        })
    }

    async fn begin(&self, query: &Query, plan: Plan, place: InFlight) -> Result<Begin, Fault> {
        let (queries, task) = (&self.queries, &self.task);
        let own = task.timeout_seconds().map(|seconds| Duration::from_secs(u64::from(seconds)));
        let timeout = own.unwrap_or(queries.config.task_timeout).min(queries.config.task_timeout);
        let deadline = Instant::now() + timeout;
        let question = Question {
            org: Arc::clone(&task.org),
            asker: Asker::Task(task.id.to_string(), self.grant.attempt),
            request: QueryRequest { sql: query.sql.to_string(), ..QueryRequest::default() },
            datasets: of_job(task, &plan),
            timeout,
            exports: None,
            with_url: false,
        };
        let id = Uuid::from_u128(random_bits()).to_string();
        let (running, begun) = ask(queries, &question, &id, Format::Parquet, deadline).await?;
        Ok(Begin { running, begun, id, question, plan, deadline, _place: place })
    }

    /// Writes the result and reports it.
    async fn finish(&self, mut begin: Begin) {
        let (ends, timeout) = (begin.deadline + GRACE, begin.question.timeout);
        let written = tokio::time::timeout_at(ends, self.write(&mut begin)).await;
        let reported = match written.unwrap_or_else(|_| Err(timed_out(timeout))) {
            Ok(said) => self.succeed(&said, Some(&begin.plan)).await,
            Err(fault) => {
                let internal = || Failure::new("INTERNAL", "the query could not be run", None, Some(true));
                let trouble = Trouble::of(&fault).unwrap_or_else(|| Trouble { failure: internal() });
                self.fail(trouble).await
            }
        };
        if let Err(fault) = reported {
            tracing::warn!(task.id = %self.task.id, ?fault, "the end of a query could not be recorded");
        }
    }

    /// Writes the result to the staging prefix of the attempt, and records the query.
    async fn write(&self, begin: &mut Begin) -> Result<Said, Fault> {
        let Begin { running, begun, id, question, plan, .. } = begin;
        let (queries, task) = (&self.queries, &self.task);
        let (Some(objects), Some(output)) = (&queries.dispatch.config.objects, task.input.outputs.first()) else {
            return Err(Fault::Internal);
        };
        let location = objects.layout().staging(&task.output_ref(0, *output, self.grant.attempt));
        let location = location.map_err(|_| Fault::Internal)?;
        let export = Export::of_output(objects, location.clone(), file_name(task, &plan.key)).await?;
        let done = export.write(running).await?.done;
        if done.truncated {
            let message = format!("the result has more than {} GiB: write it in parts", EXPORT_BYTES >> 30);
            return Err(DispatchFault::fault("query_failed", message));
        }
        audit(queries, question, id, begun, done.rows, None).await?;
        objects.put_new(&location, SUCCESS, "".into()).await.map_err(|error| object_fault(&error))?;
        let stored = Output {
            location: &location,
            dataset: Uuid::from_u128(output.dataset.as_u128()),
            version: Some(Uuid::from_u128(output.version.as_u128())),
        };
        let finished = objects.seal(&stored).await.map_err(|error| object_fault(&error))?;
        let said = SaidOutput {
            dataset: output.dataset,
            version: SaidVersion::Generation(output.version),
            at: Where { partition_key: Some(Arc::clone(&plan.key)), ..Where::default() },
            location: location.to_string().into(),
            row_count: i64::try_from(done.rows).ok(),
            bytes: i64::try_from(finished.bytes()).ok(),
            schema_hash: None,
            manifest: None,
        };
        Ok(Said { outputs: vec![said], ..Said::default() })
    }

    async fn succeed(&self, said: &Said, plan: Option<&Plan>) -> Result<(), Fault> {
        let (dags, task) = (&self.queries.dispatch.dags, &self.task);
        let mut data = dags.data(&self.sender(), &task.org, &task.input, said, Stage::End).await?;
        // What the next task reads depends on what this one has read.
        data.live_only = true;
        if let Some(plan) = plan.filter(|plan| plan.is_whole) {
            self.tell_readers(plan, &mut data).await?;
        }
        let rows = said.outputs.first().and_then(|output| output.row_count);
        let result = serde_json::json!({ "row_count": rows }).to_string();
        match self.report(Report::succeeded(Some(result.into())), data).await? {
            Err(Rejection::Data(refusal)) => {
                let message = format!("the output of the query was refused: {}", refusal.message);
                let failure = Failure::new("CONFIGURATION", &message, None, Some(false));
                self.fail(Trouble { failure: failure.of_category(Some(Category::Configuration)) }).await
            }
            Err(rejection) => {
                tracing::debug!(task.id = %task.id, reason = ?rejection, "the attempt of a query was over");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// A result that takes the place of an earlier one is changed data.
    async fn tell_readers(&self, plan: &Plan, data: &mut DataReport) -> Result<(), Fault> {
        let Some(output) = self.task.input.outputs.first() else { return Ok(()) };
        let known = self.queries.dispatch.dags.partition(output.version, &plan.key).await?;
        let scope = Scope::Partition { partition_key: Arc::clone(&plan.key) };
        let told = data.invalidations.iter().any(|told| told.version == output.version && told.scope == scope);
        if known.is_some_and(|row| row.location.is_some()) && !told {
            data.invalidations.push(NewInvalidation {
                id: InvalidationId::from_u128(named_bits(&format!("{}:{}:whole", self.task.id, output.dataset))),
                dataset: output.dataset,
                version: output.version,
                scope,
                reason: "correction".into(),
            });
        }
        Ok(())
    }

    async fn fail(&self, trouble: Trouble) -> Result<(), Fault> {
        let data = DataReport::of(Arc::clone(&self.task.org), self.task.input.job);
        if let Err(rejection) = self.report(Report::failed(trouble.failure), data).await? {
            tracing::debug!(task.id = %self.task.id, reason = ?rejection, "the attempt of a query was over");
        }
        Ok(())
    }

    async fn report(&self, report: Report, data: DataReport) -> Result<Result<(), Rejection>, Fault> {
        let Grant { task, attempt_id, token, .. } = self.grant;
        let report = AttemptReport { task, attempt_id, token, report, data: Some(Arc::new(data)) };
        let reply = self.queries.engine.report(report, 0).await?;
        if reply.is_ok() {
            self.queries.dispatch.dags.recorded();
        }
        Ok(reply.map(drop))
    }

    fn sender(&self) -> Sender {
        let Grant { task, attempt, attempt_id, token, .. } = self.grant;
        Sender { task, attempt, token, attempt_id: Some(attempt_id) }
    }
}

/// `{job}_{start}_{end}.parquet` for a range, both ends inside, else `{job}.parquet`.
fn file_name(task: &JobTask, key: &str) -> String {
    let job = &task.job.definition.name;
    let span = PartitionKey::parse(key).ok().and_then(|key| key.span(task.ranges())).filter(|span| !span.is_empty());
    match span {
        Some(span) => format!("{job}_{}_{}.parquet", span.start(), span.end() - 1),
        None => format!("{job}.parquet"),
    }
}
