//! Queries of users that run as tasks: `mode` batch. The result is exported, and the task says what there is.
//!
//! They have one queue, which tenants share fairly. A task has the operator `query`, like those of jobs.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tenure_contract::query::{QueryBatch, QueryRequest};
use tenure_core::TaskId;
use tenure_core::attempt::{Failure, Report};
use tenure_core::command::Reach;
use tenure_core::command::claim::Grant;
use tenure_core::command::queues::SetQueue;
use tenure_core::command::report::AttemptReport;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::dag::operators::QUERY;
use tenure_core::limits;
use tenure_core::queue::{FairnessKey, Push, QueueSettings};
use tenure_core::task::Spec;
use tenure_core::time::DurationMs;
use tenure_engine::dags::QUERY_URL;
use tenure_engine::delivery::{Handover, Outcome, Parcel};
use tenure_engine::random_bits;
use tenure_engine::store::Asker;
use tokio::time::Instant;
use uuid::Uuid;

use super::answer::{GRACE, Question, SQL_BYTES, audit, format, timed_out};
use super::export::{Export, KEPT_MS};
use super::job::{Trouble, ask, no_room};
use super::{InFlight, Queries, QueryPlace, of_org, of_user};
use crate::access::caller::Caller;
use crate::dispatch::{DispatchFault, NO_OBJECT_STORE};
use crate::error::Fault;

/// Names that begin like this are not those of users' queues.
pub const QUEUE: &str = "dag:query";
const WORKSPACE: &str = "query";
const ATTEMPTS: u32 = 3;

/// What a task is given.
#[derive(Serialize, Deserialize)]
struct Payload {
    query_id: String,
    /// The user that asked.
    asker: String,
    request: QueryRequest,
}

/// The task of a query, and what its user is told.
pub async fn task(
    queries: &Queries,
    caller: &Caller,
    org: &Arc<str>,
    request: &QueryRequest,
    id: TaskId,
) -> Result<(NewTask, QueryBatch), Fault> {
    if let QueryPlace::Nowhere(message) = &queries.config.place {
        return Err(DispatchFault::fault("query_unavailable", message));
    }
    format(request)?;
    if request.sql.len() > SQL_BYTES {
        return Err(DispatchFault::fault("invalid_sql", format!("the SQL has more than {SQL_BYTES} bytes")));
    }
    // What cannot be read is said at once, as far as it is known.
    of_user(queries, org, request.datasets.as_deref(), request.dataset_id.as_deref()).await?;
    queries.queue.get_or_try_init(|| make_queue(queries)).await?;
    let query_id = Uuid::from_u128(random_bits()).to_string();
    let location = results(queries, org)?.below(&query_id).map_err(|_| Fault::Internal)?;
    let payload = Payload { query_id: query_id.clone(), asker: caller.actor.to_string(), request: request.clone() };
    let payload = serde_json::to_string(&payload).map_err(|_| Fault::Internal)?;
    let timeout_ms = millis(queries.config.task_timeout);
    let spec = Spec {
        max_attempts: Some(ATTEMPTS),
        lease_ttl_ms: Some(timeout_ms),
        timeout_ms: Some(timeout_ms),
        ..Spec::default()
    };
    let task = NewTask {
        id,
        queue: QUEUE.into(),
        operator: QUERY.into(),
        tenant: Arc::clone(org),
        owner: caller.subject.clone(),
        workspace: WORKSPACE.into(),
        priority: limits::PRIORITY_DEFAULT,
        payload: payload.into(),
        spec,
        start: Start::Now,
        tags: Default::default(),
        idempotency: None,
        traceparent: None,
        submitted_by: caller.credential(),
        envelope: None,
    };
    let answer = QueryBatch {
        mode: "batch".to_owned(),
        delivery: "export".to_owned(),
        query_id,
        task_id: id.to_string(),
        reason: "requested".to_owned(),
        output_location: location.to_string(),
    };
    Ok((task, answer))
}

fn results(queries: &Queries, org: &str) -> Result<tenure_core::objects::Prefix, Fault> {
    let objects = queries.dispatch.config.objects.as_ref();
    let below = objects.and_then(|objects| of_org(objects, org));
    below.ok_or_else(|| DispatchFault::fault("object_store_unavailable", NO_OBJECT_STORE))
}

fn millis(time: Duration) -> DurationMs {
    DurationMs::try_from(time.as_millis()).unwrap_or(DurationMs::MAX)
}

async fn make_queue(queries: &Queries) -> Result<(), Fault> {
    let timeout_ms = millis(queries.config.task_timeout + 2 * GRACE);
    // Nobody starts such a task, so that the time until a start is that of the whole attempt.
    let push = Push {
        dispatch_timeout_ms: timeout_ms,
        start_timeout_ms: timeout_ms,
        ack_timeout_ms: timeout_ms.min(limits::PUSH_ACK_MS_MAX),
        ..Push::to(QUERY_URL.into())
    };
    let settings = QueueSettings {
        push: Some(Arc::new(push)),
        fairness_key: Some(FairnessKey::Tenant),
        ..QueueSettings::default()
    };
    let set = SetQueue { queue: QUEUE.into(), settings, transport: None, keep_push: false, reach: Reach::All };
    queries.engine.set_queue(set).await??;
    Ok(())
}

/// Begins the query of a task. What is left to do is the rest of the delivery.
pub(super) async fn start(queries: Arc<Queries>, parcel: Parcel) -> Result<Handover, Fault> {
    let Parcel { grant, body, .. } = parcel;
    let Ok(Payload { query_id, asker, request }) = serde_json::from_str(&body.payload) else {
        return Ok(Outcome::Rejected { message: "the task has no query".to_owned() }.into());
    };
    let org = Arc::clone(&body.tenant);
    let Ok(place) = queries.enter(&org) else { return Ok(no_room("too many queries are running")) };
    let batch = Batch { queries, grant, query_id };
    let begun = batch.begin(org, asker, request).await;
    match begun {
        Ok(None) => Ok(Outcome::Accepted.into()),
        Ok(Some(begun)) => {
            let rest = async move { batch.finish(begun, place).await }.boxed();
            Ok(Handover { outcome: Outcome::Accepted, rest: Some(rest) })
        }
        Err(Fault::Dispatch(fault)) if ["query_busy", "query_unavailable"].contains(&fault.code) => {
            Ok(no_room(&fault.message))
        }
        Err(fault) => {
            let Some(trouble) = Trouble::of(&fault) else { return Err(fault) };
            batch.report(Report::failed(trouble.failure)).await?;
            Ok(Outcome::Accepted.into())
        }
    }
}

/// One attempt of a task.
struct Batch {
    queries: Arc<Queries>,
    grant: Grant,
    query_id: String,
}

struct Began {
    running: super::endpoint::Running,
    begun: tenure_contract::query::process::Begun,
    question: Question,
    deadline: Instant,
}

impl Batch {
    /// `None` if an attempt before has written and recorded the result, and could not say so.
    async fn begin(&self, org: Arc<str>, asker: String, request: QueryRequest) -> Result<Option<Began>, Fault> {
        let queries = &self.queries;
        let identity = queries.engine.identity();
        if identity.query_audit(&self.query_id).await.map_err(tenure_engine::EngineError::from)?.is_some() {
            self.report(Report::succeeded(Some("{}".into()))).await?;
            return Ok(None);
        }
        // Without a format for rows: the result is always exported.
        let request = QueryRequest { export: Some(true), ..request };
        let asked = request.timeout_seconds.map(|seconds| Duration::from_secs(u64::from(seconds.max(1))));
        let timeout = asked.unwrap_or(queries.config.task_timeout).min(queries.config.task_timeout);
        let deadline = Instant::now() + timeout;
        let datasets = of_user(queries, &org, request.datasets.as_deref(), request.dataset_id.as_deref()).await?;
        let exports = Some(results(queries, &org)?);
        let question =
            Question { org, asker: Asker::User(asker), request, datasets, timeout, exports, with_url: false };
        let (running, begun) = ask(queries, &question, &self.query_id, format(&question.request)?, deadline).await?;
        Ok(Some(Began { running, begun, question, deadline }))
    }

    /// Writes the result and reports it.
    async fn finish(&self, mut began: Began, _place: InFlight) {
        let (ends, timeout) = (began.deadline + GRACE, began.question.timeout);
        let written = tokio::time::timeout_at(ends, self.write(&mut began)).await;
        let report = match written.unwrap_or_else(|_| Err(timed_out(timeout))) {
            Ok(summary) => Report::succeeded(Some(summary.into())),
            Err(fault) => {
                let internal = || Failure::new("INTERNAL", "the query could not be run", None, Some(true));
                Report::failed(Trouble::of(&fault).map_or_else(internal, |trouble| trouble.failure))
            }
        };
        if let Err(fault) = self.report(report).await {
            tracing::warn!(task.id = %self.grant.task, ?fault, "the end of a query could not be recorded");
        }
    }

    async fn write(&self, began: &mut Began) -> Result<String, Fault> {
        let Began { running, begun, question, .. } = began;
        let queries = &self.queries;
        let export = Export::begin(queries, question, &self.query_id, format(&question.request)?).await?;
        let written = export.write(running).await?;
        let recorded =
            audit(queries, question, &self.query_id, begun, written.done.rows, Some(written.file.clone())).await;
        if let Err(fault) = recorded {
            written.remove(queries).await;
            return Err(fault);
        }
        Ok(written.summary(&queries.engine.now().await?.plus(KEPT_MS).to_string()))
    }

    async fn report(&self, report: Report) -> Result<(), Fault> {
        let Grant { task, attempt_id, token, .. } = self.grant;
        let report = AttemptReport { task, attempt_id, token, report, data: None };
        if let Err(rejection) = self.queries.engine.report(report, 0).await? {
            tracing::debug!(task.id = %task, reason = ?rejection, "the attempt of a query was over");
        }
        Ok(())
    }
}
