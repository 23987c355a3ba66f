//! Firings of schedules: from a template to a task or a run.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tenure_auth::Role;
use tenure_contract::user::TaskSubmission;
use tenure_core::command::Rejection;
use tenure_core::command::submit::{NewTask, Submit};
use tenure_core::schedule::Work;
use tenure_core::{Seq, TaskId, Timestamp, limits};
use tenure_engine::store::{ScheduleRow, TemplateKind};
use tenure_engine::{FiringKey, NotSubmitted, Submitter};

use crate::access::caller::Caller;
use crate::api::errors;
use crate::api::tasks::admit;
use crate::error::{BadRequest, Fault};
use crate::request::Raw;
use crate::run_plan::Submission;
use crate::state::App;
use crate::validate::{self, At};

/// Tags of a task and labels of a run that say where they come from.
pub const STAMPS: [&str; 2] = ["schedule", "scheduled_at"];

/// Submits what templates say.
#[derive(Debug)]
pub struct Templates(pub App);

#[async_trait]
impl Submitter for Templates {
    async fn submit(&self, schedule: &ScheduleRow, template: &str, firing: &FiringKey) -> Result<Work, NotSubmitted> {
        submit(&self.0, schedule, template, firing).await.map_err(|fault| {
            let message = errors::message(&fault);
            match fault {
                // A tenant that is over its limits is one of these: the slot fires when there is room again.
                Fault::Unavailable(_) | Fault::Internal => NotSubmitted::Unavailable(message),
                _ => NotSubmitted::Refused(message),
            }
        })
    }
}

/// Submits the work of one firing. The same key again gives the same work.
pub async fn submit(app: &App, schedule: &ScheduleRow, template: &str, firing: &FiringKey) -> Result<Work, Fault> {
    let caller = caller_of(schedule.maker.as_deref(), schedule.owner.as_deref(), &schedule.name);
    let stamp = Stamp { tenant: &schedule.tenant, name: &schedule.name, firing };
    match schedule.setting.kind {
        TemplateKind::Task => {
            let minted = app.engine.mint(1).await?;
            let task = new_task(template, &caller, &stamp, minted[0])?;
            admit(app, [&task]).await?;
            let submit = Submit { tasks: vec![task], maker: caller.queues_of().map(Into::into) };
            match app.engine.submit(submit, template.len()).await? {
                Ok(submitted) => submitted.first().map(|task| Work::Task(task.id)).ok_or(Fault::Internal),
                // The template has changed since the first try.
                Err(Rejection::IdempotencyConflict { existing: Some(id), .. }) => Ok(Work::Task(id)),
                Err(rejection) => Err(Fault::Refused(rejection).of_one()),
            }
        }
        TemplateKind::Run => {
            let submission = run_template(template)?;
            let minted = app.engine.mint(submission.ids()?).await?;
            let run = stamped(submission, &stamp)?.plan(&minted, &caller)?;
            admit(app, run.tasks.iter().map(|one| &one.task)).await?;
            match app.engine.submit_run(run, template.len()).await? {
                Ok(submitted) => Ok(Work::Run(submitted.id)),
                Err(Rejection::RunKeyConflict { existing: Some((id, _)), .. }) => Ok(Work::Run(id)),
                Err(rejection) => Err(Fault::Refused(rejection)),
            }
        }
    }
}

/// Judges a template as its first firing would, without the limits of its tenant. Returns the queues that it names.
pub fn check(
    kind: TemplateKind,
    template: &str,
    caller: &Caller,
    tenant: &str,
    name: &str,
) -> Result<Vec<Arc<str>>, Fault> {
    let firing = FiringKey::of_slot("00000000-0000-0000-0000-000000000000", Timestamp::MAX);
    let stamp = Stamp { tenant, name, firing: &firing };
    let field = kind.as_str();
    if template.len() > limits::SCHEDULE_TEMPLATE_BYTES {
        let message = format!("may have at most {} bytes", limits::SCHEDULE_TEMPLATE_BYTES);
        return Err(Fault::invalid(field, &message));
    }
    let id = |n: usize| TaskId::new(0, 0, Seq(n as i64 + 1));
    let queues = match kind {
        TemplateKind::Task => new_task(template, caller, &stamp, id(0)).map(|task| vec![task.queue]),
        TemplateKind::Run => run_template(template).and_then(|submission| {
            let ids: Vec<TaskId> = (0..submission.ids()?).map(id).collect();
            let run = stamped(submission, &stamp)?.plan(&ids, caller)?;
            Ok(run.tasks.into_iter().map(|one| one.task.queue).collect())
        }),
    };
    queues.map_err(|fault| within(field, fault))
}

/// Where a firing comes from.
struct Stamp<'a> {
    tenant: &'a str,
    name: &'a str,
    firing: &'a FiringKey,
}

impl Stamp<'_> {
    fn pairs(&self) -> [(String, String); 2] {
        let [name, slot] = STAMPS.map(ToOwned::to_owned);
        [(name, self.name.to_owned()), (slot, self.firing.slot.to_string())]
    }
}

/// Whoever made the schedule, without its credential.
fn caller_of(maker: Option<&str>, owner: Option<&str>, name: &str) -> Caller {
    Caller {
        role: Role::Api,
        tenant: maker.map(Into::into),
        owner: owner.map(Into::into),
        subject: owner.map(Into::into),
        actor: format!("schedule:{name}").into(),
    }
}

fn raw(template: &str) -> Raw {
    Raw::from(Bytes::copy_from_slice(template.as_bytes()))
}

fn new_task(template: &str, caller: &Caller, stamp: &Stamp<'_>, id: TaskId) -> Result<NewTask, Fault> {
    let mut task: TaskSubmission = raw(template).decode()?;
    let fixed = [("idempotency_key", &task.idempotency_key), ("run_at", &task.run_at), ("deadline", &task.deadline)];
    refuse_fixed(fixed.map(|(name, value)| (name, value.is_some())), "")?;
    if task.tenant.as_deref().is_some_and(|tenant| tenant != stamp.tenant) {
        return Err(Fault::invalid("tenant", "must equal that of the schedule, or be omitted"));
    }
    let tags = task.tags.get_or_insert_default();
    refuse_stamps(tags.keys(), "tags")?;
    tags.extend(stamp.pairs());
    task.tenant = Some(stamp.tenant.to_owned());
    task.idempotency_key = Some(stamp.firing.key.clone());
    validate::submission(task, id, caller, At(None))
}

fn run_template(template: &str) -> Result<Submission, Fault> {
    let submission: Submission = raw(template).decode()?;
    let (run_key, deadline, labels) = submission.fixed();
    refuse_fixed([("run_key", run_key), ("deadline", deadline)], "")?;
    refuse_stamps(labels, "labels")?;
    for (index, names) in submission.entries().enumerate() {
        let fixed = ["idempotency_key", "run_at", "deadline"];
        refuse_fixed(fixed.map(|name| (name, names.contains(&name.to_owned()))), &At(Some(index)).field(""))?;
    }
    Ok(submission)
}

fn stamped(submission: Submission, stamp: &Stamp<'_>) -> Result<Submission, Fault> {
    submission.fired(&stamp.firing.key, stamp.tenant, stamp.pairs())
}

/// Fields that would be the same for every firing and must not be.
fn refuse_fixed<const N: usize>(fields: [(&str, bool); N], at: &str) -> Result<(), Fault> {
    match fields.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => {
            let message = "cannot be set in a template: each firing has its own, or has none";
            Err(Fault::invalid(format!("{at}{name}"), message))
        }
    }
}

fn refuse_stamps<'a>(mut names: impl Iterator<Item = &'a String>, field: &str) -> Result<(), Fault> {
    match names.find(|name| STAMPS.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Fault::invalid(format!("{field}.{name}"), "is set by the schedule: use another name")),
    }
}

/// The fault of a template, with the path of its field from the body.
fn within(template: &str, fault: Fault) -> Fault {
    match fault {
        Fault::Request(BadRequest::Invalid { field, message }) => {
            let path = if field == "body" { template.to_owned() } else { format!("{template}.{field}") };
            BadRequest::Invalid { field: path, message }.into()
        }
        Fault::Request(BadRequest::UnknownField { field, message }) => {
            BadRequest::UnknownField { field: format!("{template}.{field}"), message }.into()
        }
        Fault::Request(BadRequest::PayloadTooLarge { field }) => {
            BadRequest::PayloadTooLarge { field: format!("{template}.{field}") }.into()
        }
        other => other,
    }
}
