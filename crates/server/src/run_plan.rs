//! Decodes a submitted run. Every refusal names the entry and the field.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use tenure_contract::Json;
use tenure_contract::run::{EntryFields, snake};
use tenure_contract::suggest;
use tenure_contract::user::TaskSubmission;
use tenure_core::command::run::SubmitRun;
use tenure_core::run::plan::{self, Entry, PastTask, Plan, Repeat};
use tenure_core::{RunId, TaskId, Timestamp, limits};
use tenure_engine::store::RunMaterial;

use crate::access::caller::Caller;
use crate::error::{BadRequest, Fault};
use crate::request::Raw;
use crate::validate::{self, At};

/// A submitted run before its entries are understood.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    #[serde(default, alias = "runKey")]
    run_key: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    deadline: Option<String>,
    #[serde(default)]
    tasks: Option<Vec<BTreeMap<String, Json>>>,
}

impl Submission {
    /// How many ids it needs: one for itself, and one for each task.
    pub fn ids(&self) -> Result<usize, Fault> {
        match self.tasks.as_ref().map_or(0, Vec::len) {
            count @ 1..=limits::RUN_TASKS => Ok(count + 1),
            count => {
                let message = format!("a run must have 1 to {} tasks, not {count}", limits::RUN_TASKS);
                Err(Fault::invalid("tasks", &message))
            }
        }
    }

    /// Whether it has a key and a deadline of its own, and the names of its labels.
    pub fn fixed(&self) -> (bool, bool, impl Iterator<Item = &String>) {
        (self.run_key.is_some(), self.deadline.is_some(), self.labels.iter().flat_map(BTreeMap::keys))
    }

    /// The names of the fields of each entry that are not `null`.
    pub fn entries(&self) -> impl Iterator<Item = Vec<String>> {
        let entries = self.tasks.iter().flatten();
        entries.map(|fields| {
            fields.iter().filter(|(_, value)| value.as_str() != "null").map(|(name, _)| snake(name)).collect()
        })
    }

    /// As one firing of a schedule.
    pub fn fired(mut self, key: &str, tenant: &str, labels: [(String, String); 2]) -> Result<Self, Fault> {
        if self.tenant.as_deref().is_some_and(|own| own != tenant) {
            return Err(Fault::invalid("tenant", "must equal that of the schedule, or be omitted"));
        }
        (self.run_key, self.tenant) = (Some(key.to_owned()), Some(tenant.to_owned()));
        self.labels.get_or_insert_default().extend(labels);
        Ok(self)
    }

    /// The ids were minted for it.
    pub fn plan(self, ids: &[TaskId], caller: &Caller) -> Result<SubmitRun, Fault> {
        let (run, ids) = ids.split_first().ok_or(Fault::Internal)?;
        let key = run_key(self.run_key.as_deref())?;
        let tenant = caller.tenant_for(self.tenant.as_deref(), "tenant")?;
        let workspace = validate::scope(self.workspace.as_deref().unwrap_or("default"), "workspace")?;
        let labels = validate::pairs(self.labels.unwrap_or_default(), "labels")?;
        let deadline = self.deadline.as_deref().map(|text| validate::time(text, "deadline")).transpose()?;
        let mut entries = Vec::with_capacity(ids.len());
        for (index, (fields, id)) in self.tasks.unwrap_or_default().into_iter().zip(ids).enumerate() {
            let at = At(Some(index));
            let (key, depends_on, mut task) = decode(fields, at)?;
            for (given, own, name) in [(&task.tenant, &tenant, "tenant"), (&task.workspace, &workspace, "workspace")] {
                if given.as_deref().is_some_and(|given| *given != **own) {
                    return Err(Fault::invalid(at.field(name), "must equal that of the run, or be omitted"));
                }
            }
            (task.tenant, task.workspace) = (Some(tenant.to_string()), Some(workspace.to_string()));
            task.deadline = task.deadline.or_else(|| self.deadline.clone());
            entries.push(Entry {
                task: validate::submission(task, *id, caller, at)?,
                key: validate::text_of(&key, at.field("key"), limits::TASK_KEY_BYTES)?,
                depends_on,
            });
        }
        let (owner, maker) = (caller.subject.clone(), caller.queues_of().map(Into::into));
        let id = RunId::from_u128(run.as_u128());
        Plan { id, key, tenant, workspace, owner, labels, deadline, entries, maker }.submit().map_err(|flaw| {
            let field = flaw.entry.map_or_else(|| flaw.field.clone(), |index| At(Some(index)).field(&flaw.field));
            Fault::invalid(field, &flaw.message)
        })
    }
}

/// Repeats a run from where it failed, under ids that were minted for it.
pub fn rerun(
    material: &RunMaterial,
    ids: &[TaskId],
    key: Option<&str>,
    caller: &Caller,
    now: Timestamp,
) -> Result<SubmitRun, Fault> {
    let past = material.tasks.iter().map(|(view, depends_on)| PastTask {
        body: &view.body,
        queue: &view.queue,
        place: &view.place,
        depends_on,
    });
    let past: Vec<PastTask<'_>> = past.collect();
    let maker = caller.queues_of().map(Into::into);
    let (owner, submitted_by) = (caller.subject.clone(), caller.credential());
    let repeat = Repeat { key: run_key(key)?, owner, maker, submitted_by };
    plan::rerun(&material.run, &past, ids, repeat, now).map_err(Fault::Refused)
}

fn run_key(text: Option<&str>) -> Result<Option<Arc<str>>, Fault> {
    text.map(|key| validate::words(key, "run_key", limits::RUN_KEY_BYTES)).transpose()
}

/// An entry in either spelling.
fn decode(fields: BTreeMap<String, Json>, at: At) -> Result<(String, Vec<String>, TaskSubmission), Fault> {
    let fields = EntryFields::of(fields).map_err(|fault| Fault::invalid(at.field(&fault.field), &fault.message))?;
    let wrong = |name: &str, message: &str| Fault::invalid(at.field(name), message);
    let key = fields.key.map(|key| key.decode::<Option<String>>()).transpose();
    let key = key.map_err(|_| wrong("key", "must be a string"))?.flatten();
    let key = key.ok_or_else(|| wrong("key", "is required for every task of a run"))?;
    let depends_on = fields.depends_on.map(|keys| keys.decode::<Option<Vec<String>>>()).transpose();
    let depends_on = depends_on.map_err(|_| wrong("depends_on", "must be a list of keys"))?.flatten();
    let task = Raw::from(Bytes::from(fields.task)).decode::<TaskSubmission>().map_err(|fault| match fault {
        Fault::Request(BadRequest::Invalid { field, message }) => Fault::invalid(at.field(&field), &message),
        Fault::Request(BadRequest::UnknownField { field, message }) => {
            // A task of a run has two fields more than others.
            let message = match suggest::nearest(&field, ["key", "depends_on"]) {
                Some(near) => format!("unknown field `{field}`{}", suggest::meant(Some(near))),
                None => message,
            };
            BadRequest::UnknownField { field: at.field(&field), message }.into()
        }
        other => other,
    })?;
    Ok((key, depends_on.unwrap_or_default(), task))
}
