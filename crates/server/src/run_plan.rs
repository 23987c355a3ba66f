//! Checks a submitted run and turns it into a command: its entries, the graph that they make, and the outputs that their
//! payloads name. Every refusal names the entry and the field.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tenure_contract::Json;
use tenure_contract::run::EntryFields;
use tenure_contract::user::TaskSubmission;
use tenure_core::command::run::{Carried, NewMember, NewRun, SubmitRun};
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::run::{Run, RunState, reference};
use tenure_core::task::{Body, End, Place, Spec};
use tenure_core::{RunId, Seq, TaskId, Timestamp, limits};
use tenure_engine::store::{RunMaterial, TaskView};

use crate::access::caller::Caller;
use crate::error::Fault;
use crate::request::Raw;
use crate::validate::{self, At};

/// A submitted run before its entries are understood.
#[derive(Debug, Deserialize)]
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
            let (key, depends_on, mut task) = decode(fields, index)?;
            for (given, own, name) in [(&task.tenant, &tenant, "tenant"), (&task.workspace, &workspace, "workspace")] {
                if given.as_deref().is_some_and(|given| *given != **own) {
                    return Err(Fault::invalid(
                        At(Some(index)).field(name),
                        "must equal that of the run, or be omitted",
                    ));
                }
            }
            (task.tenant, task.workspace) = (Some(tenant.to_string()), Some(workspace.to_string()));
            task.deadline = task.deadline.or_else(|| self.deadline.clone());
            entries.push((key, depends_on, validate::submission(task, *id, caller, At(Some(index)))?));
        }
        let tasks = graph(entries)?;
        let content: Vec<_> = tasks.iter().map(|member| content(member, &tasks)).collect();
        let content = serde_json::json!({
            "tenant": &*tenant, "workspace": &*workspace, "labels": labels, "deadline": deadline, "tasks": content,
        });
        let run = NewRun {
            id: RunId::from_u128(run.as_u128()),
            key,
            tenant,
            workspace,
            owner: caller.subject.clone(),
            fingerprint: digest(&content),
            labels,
            deadline,
            parent: None,
        };
        Ok(SubmitRun { run, tasks, maker: caller.queues_of().map(Into::into) })
    }
}

fn digest(content: &serde_json::Value) -> [u8; 32] {
    // serde_json keeps the keys of a `Value` sorted.
    Sha256::digest(content.to_string().as_bytes()).into()
}

/// A task as it counts for the fingerprint of its run. The order of what it depends on does not matter.
fn content(member: &NewMember, tasks: &[NewMember]) -> serde_json::Value {
    let mut depends_on: Vec<&str> =
        member.depends_on.iter().filter_map(|index| tasks.get(*index)).map(|other| &*other.key).collect();
    depends_on.sort_unstable();
    let key = member.task.idempotency.as_ref().map(|idempotency| &*idempotency.key);
    serde_json::json!({
        "key": &*member.key, "depends_on": depends_on, "idempotency_key": key, "task": validate::content(&member.task),
    })
}

fn run_key(text: Option<&str>) -> Result<Option<Arc<str>>, Fault> {
    text.map(|key| validate::words(key, "run_key", limits::RUN_KEY_BYTES)).transpose()
}

/// An entry in either spelling.
fn decode(fields: BTreeMap<String, Json>, index: usize) -> Result<(String, Vec<String>, TaskSubmission), Fault> {
    let at = At(Some(index));
    let fields = EntryFields::of(fields).map_err(|fault| Fault::invalid(at.field(&fault.field), &fault.message))?;
    let wrong = |name: &str, message: &str| Fault::invalid(at.field(name), message);
    let key = fields.key.map(|key| key.decode::<Option<String>>()).transpose();
    let key = key.map_err(|_| wrong("key", "must be a string"))?.flatten();
    let key = key.ok_or_else(|| wrong("key", "is required for every task of a run"))?;
    let depends_on = fields.depends_on.map(|keys| keys.decode::<Option<Vec<String>>>()).transpose();
    let depends_on = depends_on.map_err(|_| wrong("depends_on", "must be a list of keys"))?.flatten();
    let task = Raw { bytes: Bytes::from(fields.task) }.decode::<TaskSubmission>().map_err(|fault| match fault {
        Fault::Invalid { field, message } => Fault::Invalid { field: at.field(&field), message },
        other => other,
    })?;
    Ok((key, depends_on.unwrap_or_default(), task))
}

/// Keys become places in the list; what does not fit together is refused.
fn graph(entries: Vec<(String, Vec<String>, NewTask)>) -> Result<Vec<NewMember>, Fault> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (index, (key, _, _)) in entries.iter().enumerate() {
        validate::text_of(key, At(Some(index)).field("key"), limits::TASK_KEY_BYTES)?;
        if let Some(first) = places.insert(key, index) {
            let message = format!("tasks[{first}] already has the key {key}");
            return Err(Fault::invalid(At(Some(index)).field("key"), &message));
        }
    }
    let edges: usize = entries.iter().map(|(_, depends_on, _)| depends_on.len()).sum();
    if edges > limits::RUN_EDGES {
        let message =
            format!("all depends_on of a run together may have at most {} entries, not {edges}", limits::RUN_EDGES);
        return Err(Fault::invalid("tasks", &message));
    }
    let mut before = Vec::with_capacity(entries.len());
    for (index, (_, depends_on, _)) in entries.iter().enumerate() {
        let mut seen = HashSet::new();
        let mut found = Vec::with_capacity(depends_on.len());
        for (entry, key) in depends_on.iter().enumerate() {
            let wrong =
                |message: String| Fault::invalid(At(Some(index)).field(&format!("depends_on[{entry}]")), &message);
            let other =
                places.get(key.as_str()).ok_or_else(|| wrong(format!("no task of this run has the key {key}")))?;
            if !seen.insert(*other) {
                return Err(wrong(format!("{key} is named twice")));
            }
            found.push(*other);
        }
        before.push(found);
    }
    let keys: Vec<&str> = entries.iter().map(|(key, _, _)| key.as_str()).collect();
    if let Some((index, circle)) = circle(&before, &keys) {
        let message = format!("these tasks depend on each other in a cycle: {circle}");
        return Err(Fault::invalid(At(Some(index)).field("depends_on"), &message));
    }
    let mut members = Vec::with_capacity(entries.len());
    for (index, depends_on) in before.into_iter().enumerate() {
        let (key, _, task) = &entries[index];
        let refs = refs(index, &task.payload, &depends_on, &keys)?;
        members.push(NewMember { key: key.as_str().into(), task: task.clone(), depends_on, refs, carried: None });
    }
    Ok(members)
}

/// A circle, if there is one: a task of it, and how it goes.
fn circle(before: &[Vec<usize>], keys: &[&str]) -> Option<(usize, String)> {
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); before.len()];
    for (index, before) in before.iter().enumerate() {
        before.iter().for_each(|other| behind[*other].push(index));
    }
    let mut free: Vec<usize> = (0..before.len()).filter(|index| waits[*index] == 0).collect();
    let mut freed = 0;
    while let Some(index) = free.pop() {
        freed += 1;
        for next in &behind[index] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                free.push(*next);
            }
        }
    }
    if freed == before.len() {
        return None;
    }
    // Whoever still waits waits for somebody who does: going back and back leads around.
    let mut at = waits.iter().position(|waits| *waits > 0)?;
    let mut path = Vec::new();
    let mut seen: HashMap<usize, usize> = HashMap::new();
    while seen.insert(at, path.len()).is_none() {
        path.push(at);
        at = before[at].iter().copied().find(|other| waits[*other] > 0)?;
    }
    let around = &path[seen_at(&path, at)..];
    const SHOWN: usize = 10;
    let mut names: Vec<&str> = around.iter().take(SHOWN).map(|index| keys[*index]).collect();
    if around.len() > SHOWN {
        names.push("…");
    }
    names.push(keys[at]);
    Some((at, names.join(" → ")))
}

fn seen_at(path: &[usize], at: usize) -> usize {
    path.iter().position(|index| *index == at).unwrap_or(0)
}

/// The tasks whose outputs a payload names: only those that it waits for have one in time.
fn refs(index: usize, payload: &str, depends_on: &[usize], keys: &[&str]) -> Result<Vec<usize>, Fault> {
    let wrong = |message: String| Fault::invalid(At(Some(index)).field("payload"), &message);
    let named = reference::find(payload);
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let places: HashMap<&str, usize> = depends_on.iter().map(|other| (keys[*other], *other)).collect();
    let mut refs = BTreeSet::new();
    for named in named {
        let key = &named.key;
        let Some(other) = places.get(&**key) else {
            return Err(wrong(format!("{{\"$from\":\"{key}\"}} names a task that is not in depends_on of this one")));
        };
        if !named.has_good_path() {
            let path = named.path.unwrap_or_default();
            return Err(wrong(format!(
                "{{\"$from\":\"{key}\"}} has the path {path}, which is not a JSON pointer such as /rows/0/id"
            )));
        }
        if named.steps() > limits::PATH_STEPS {
            let (steps, limit) = (named.steps(), limits::PATH_STEPS);
            return Err(wrong(format!("{{\"$from\":\"{key}\"}} has a path of {steps} steps, the maximum is {limit}")));
        }
        refs.insert(*other);
    }
    if refs.len() > limits::REFERENCES {
        let (count, limit) = (refs.len(), limits::REFERENCES);
        return Err(wrong(format!(
            "refers to the outputs of {count} tasks, the maximum is {limit}: combine them in other tasks first"
        )));
    }
    Ok(refs.into_iter().collect())
}

/// Repeats a run from where it failed: what succeeded comes along with its output, all else runs anew.
pub fn rerun(
    material: &RunMaterial,
    ids: &[TaskId],
    key: Option<&str>,
    caller: &Caller,
    now: Timestamp,
) -> Result<SubmitRun, Fault> {
    let (run, ids) = ids.split_first().ok_or(Fault::Internal)?;
    let parent = &material.run;
    let places: HashMap<Seq, usize> =
        material.tasks.iter().enumerate().map(|(index, (view, _))| (view.body.seq(), index)).collect();
    let tasks = material.tasks.iter().zip(ids).map(|((view, waits), id)| {
        let place = |row: &Seq| places.get(row).copied();
        let member = view.place.carry().run.as_ref();
        NewMember {
            key: view.body.run.as_ref().map_or_else(|| id.to_string().into(), |run| Arc::clone(&run.key)),
            task: again(view, *id, now),
            depends_on: waits.iter().filter_map(place).collect(),
            // Once filled in, a payload names nothing any more.
            refs: member.map(|member| member.refs.values().filter_map(place).collect()).unwrap_or_default(),
            carried: carried(&view.place),
        }
    });
    let content = serde_json::json!({"mode": "from_failure", "parent_run_id": parent.id.to_string()});
    let run = NewRun {
        id: RunId::from_u128(run.as_u128()),
        key: run_key(key)?,
        tenant: Arc::clone(&parent.tenant),
        workspace: Arc::clone(&parent.workspace),
        owner: caller.subject.clone().or_else(|| parent.owner.clone()),
        fingerprint: digest(&content),
        labels: parent.labels.clone(),
        deadline: parent.deadline.filter(|deadline| *deadline > now),
        parent: Some(parent.id),
    };
    Ok(SubmitRun { run, tasks: tasks.collect(), maker: caller.queues_of().map(Into::into) })
}

pub fn is_rerunnable(run: &Run) -> bool {
    matches!(run.state(), RunState::Failed | RunState::Canceled)
}

fn carried(place: &Place) -> Option<Carried> {
    match place {
        Place::Finished(finished) if finished.end == End::Succeeded => {
            Some(Carried { result: finished.result.clone() })
        }
        _ => None,
    }
}

/// The same task once more. Times that have passed were those of the first run; its idempotency key belongs to it.
fn again(view: &TaskView, id: TaskId, now: Timestamp) -> NewTask {
    let body: &Body = &view.body;
    NewTask {
        id,
        queue: Arc::clone(&view.queue),
        operator: Arc::clone(&body.operator),
        tenant: Arc::clone(&body.tenant),
        owner: body.owner.clone(),
        workspace: Arc::clone(&body.workspace),
        priority: body.priority,
        payload: Arc::clone(&body.payload),
        spec: Spec { deadline: body.spec.deadline.filter(|deadline| *deadline > now), ..body.spec },
        start: if body.run_at > now { Start::At(body.run_at) } else { Start::Now },
        tags: body.tags.clone(),
        idempotency: None,
        traceparent: body.traceparent.clone(),
        envelope: body.envelope.clone(),
    }
}
