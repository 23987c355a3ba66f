//! Plans a run: entries that name each other by key become a graph, and an ended run becomes the one that repeats it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::{Run, RunState, reference};
use crate::command::Rejection;
use crate::command::run::{Carried, NewMember, NewRun, SubmitRun};
use crate::command::submit::{NewTask, Start};
use crate::id::{RunId, Seq, TaskId};
use crate::task::{Body, End, Place, Spec};
use crate::time::Timestamp;
use crate::{fingerprint, limits};

/// A run as it was submitted.
#[derive(Debug)]
pub struct Plan {
    pub id: RunId,
    pub key: Option<Arc<str>>,
    pub tenant: Arc<str>,
    pub workspace: Arc<str>,
    pub owner: Option<Arc<str>>,
    pub labels: BTreeMap<String, String>,
    pub deadline: Option<Timestamp>,
    pub entries: Vec<Entry>,
    /// Tenant that will own any queue this creates; `None` is shared by all tenants.
    pub maker: Option<Arc<str>>,
}

/// A task of a submitted run.
#[derive(Debug)]
pub struct Entry {
    pub key: Arc<str>,
    /// Keys of other entries.
    pub depends_on: Vec<String>,
    pub task: NewTask,
}

/// Why a run cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// The entry, if one is to blame.
    pub entry: Option<usize>,
    pub field: String,
    pub message: String,
}

impl Flaw {
    fn of(entry: usize, field: impl Into<String>, message: String) -> Self {
        Self { entry: Some(entry), field: field.into(), message }
    }
}

impl Plan {
    pub fn submit(self) -> Result<SubmitRun, Flaw> {
        let tasks = members(self.entries)?;
        let mut run = NewRun {
            id: self.id,
            key: self.key,
            tenant: self.tenant,
            workspace: self.workspace,
            owner: self.owner,
            fingerprint: [0; 32],
            labels: self.labels,
            deadline: self.deadline,
            parent: None,
        };
        run.fingerprint = fingerprint::of_run(&run, &tasks);
        Ok(SubmitRun { run, tasks, maker: self.maker })
    }
}

/// Replaces keys by places in the list and refuses what does not fit together.
fn members(entries: Vec<Entry>) -> Result<Vec<NewMember>, Flaw> {
    let before = edges(&entries)?;
    let keys: Vec<&str> = entries.iter().map(|entry| &*entry.key).collect();
    if let Some((index, cycle)) = cycle(&before, &keys) {
        let message = format!("these tasks depend on each other in a cycle: {cycle}");
        return Err(Flaw::of(index, "depends_on", message));
    }
    let mut refs = Vec::with_capacity(entries.len());
    for (index, (entry, depends_on)) in entries.iter().zip(&before).enumerate() {
        let named = references(&entry.task.payload, depends_on, &keys);
        refs.push(named.map_err(|message| Flaw::of(index, "payload", message))?);
    }
    let parts = entries.into_iter().zip(before).zip(refs);
    let members = parts.map(|((Entry { key, task, .. }, depends_on), refs)| NewMember {
        key,
        task,
        depends_on,
        refs,
        carried: None,
    });
    Ok(members.collect())
}

/// For each entry the places of the entries that it depends on.
fn edges(entries: &[Entry]) -> Result<Vec<Vec<usize>>, Flaw> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (index, Entry { key, .. }) in entries.iter().enumerate() {
        if let Some(first) = places.insert(key, index) {
            return Err(Flaw::of(index, "key", format!("tasks[{first}] already has the key {key}")));
        }
    }
    let count: usize = entries.iter().map(|entry| entry.depends_on.len()).sum();
    if count > limits::RUN_EDGES {
        let message =
            format!("all depends_on of a run together may have at most {} entries, not {count}", limits::RUN_EDGES);
        return Err(Flaw { entry: None, field: "tasks".to_owned(), message });
    }
    let mut before = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let mut seen = HashSet::new();
        let mut found = Vec::with_capacity(entry.depends_on.len());
        for (place, key) in entry.depends_on.iter().enumerate() {
            let wrong = |message| Flaw::of(index, format!("depends_on[{place}]"), message);
            let other =
                places.get(key.as_str()).ok_or_else(|| wrong(format!("no task of this run has the key {key}")))?;
            if !seen.insert(*other) {
                return Err(wrong(format!("{key} is named twice")));
            }
            found.push(*other);
        }
        before.push(found);
    }
    Ok(before)
}

/// A cycle, if there is one: a task that is part of it, and the way around.
fn cycle(before: &[Vec<usize>], keys: &[&str]) -> Option<(usize, String)> {
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); before.len()];
    for (index, before) in before.iter().enumerate() {
        before.iter().for_each(|other| after[*other].push(index));
    }
    let mut free: Vec<usize> = (0..before.len()).filter(|index| waits[*index] == 0).collect();
    let mut freed = 0;
    while let Some(index) = free.pop() {
        freed += 1;
        for next in &after[index] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                free.push(*next);
            }
        }
    }
    if freed == before.len() {
        return None;
    }
    // Each task that still waits does so for another one that waits: following them leads around a cycle.
    let mut at = waits.iter().position(|waits| *waits > 0)?;
    let (mut path, mut seen) = (Vec::new(), HashSet::new());
    while seen.insert(at) {
        path.push(at);
        at = before[at].iter().copied().find(|other| waits[*other] > 0)?;
    }
    let around = &path[path.iter().position(|index| *index == at)?..];
    const SHOWN_KEYS: usize = 10;
    let mut names: Vec<&str> = around.iter().take(SHOWN_KEYS).map(|index| keys[*index]).collect();
    if around.len() > SHOWN_KEYS {
        names.push("…");
    }
    names.push(keys[at]);
    Some((at, names.join(" → ")))
}

/// The tasks whose outputs a payload names. Only those that it depends on have one in time.
fn references(payload: &str, depends_on: &[usize], keys: &[&str]) -> Result<Vec<usize>, String> {
    let named = reference::find(payload);
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let places: HashMap<&str, usize> = depends_on.iter().map(|other| (keys[*other], *other)).collect();
    let mut refs = BTreeSet::new();
    for named in named {
        let key = &named.key;
        let Some(other) = places.get(&**key) else {
            return Err(format!("{{\"$from\":\"{key}\"}} names a task that is not in depends_on of this one"));
        };
        if !named.has_good_path() {
            let path = named.path.unwrap_or_default();
            return Err(format!(
                "{{\"$from\":\"{key}\"}} has the path {path}, which is not a JSON pointer such as /rows/0/id"
            ));
        }
        if named.steps() > limits::PATH_STEPS {
            let (steps, limit) = (named.steps(), limits::PATH_STEPS);
            return Err(format!("{{\"$from\":\"{key}\"}} has a path of {steps} steps, the maximum is {limit}"));
        }
        refs.insert(*other);
    }
    if refs.len() > limits::REFERENCES {
        let (count, limit) = (refs.len(), limits::REFERENCES);
        return Err(format!(
            "refers to the outputs of {count} tasks, the maximum is {limit}: combine them in other tasks first"
        ));
    }
    Ok(refs.into_iter().collect())
}

/// A task of the run to repeat.
#[derive(Debug, Clone, Copy)]
pub struct PastTask<'a> {
    pub body: &'a Body,
    pub queue: &'a Arc<str>,
    pub place: &'a Place,
    pub depends_on: &'a [Seq],
}

/// Who repeats a run, and under which key.
#[derive(Debug, Default)]
pub struct Repeat {
    pub key: Option<Arc<str>>,
    pub owner: Option<Arc<str>>,
    pub maker: Option<Arc<str>>,
    /// The credential of the request.
    pub submitted_by: Option<Arc<str>>,
}

/// Only a run that failed or was canceled can be repeated. A run that has ended does not change any more, so the answer
/// is still right when the new run is submitted.
pub fn check_rerun(parent: &Run) -> Result<(), Rejection> {
    match parent.state() {
        RunState::Failed | RunState::Canceled => Ok(()),
        state => Err(Rejection::RunNotRerunnable { state }),
    }
}

/// Repeats a run from where it failed: tasks that succeeded are carried over with their outputs, all others run again.
/// `ids` were minted for the run and its tasks.
pub fn rerun(
    parent: &Run,
    tasks: &[PastTask<'_>],
    ids: &[TaskId],
    repeat: Repeat,
    now: Timestamp,
) -> Result<SubmitRun, Rejection> {
    check_rerun(parent)?;
    // Retention has begun to remove the run.
    let Some((run, ids)) = ids.split_first().filter(|_| tasks.len() == parent.counts.total() as usize) else {
        return Err(Rejection::RunNotFound);
    };
    let places: HashMap<Seq, usize> = tasks.iter().enumerate().map(|(index, task)| (task.body.seq(), index)).collect();
    let members = tasks.iter().zip(ids).map(|(task, id)| {
        let place = |row: &Seq| places.get(row).copied();
        let member = task.place.carry().run.as_ref();
        NewMember {
            key: task.body.run.as_ref().map_or_else(|| id.to_string().into(), |run| Arc::clone(&run.key)),
            task: NewTask { submitted_by: repeat.submitted_by.clone(), ..again(task, *id, now) },
            depends_on: task.depends_on.iter().filter_map(place).collect(),
            // Once its references are filled in, a payload names nothing any more.
            refs: member.map(|member| member.refs.values().filter_map(place).collect()).unwrap_or_default(),
            carried: carried(task.place),
        }
    });
    let run = NewRun {
        id: RunId::from_u128(run.as_u128()),
        key: repeat.key,
        tenant: Arc::clone(&parent.tenant),
        workspace: Arc::clone(&parent.workspace),
        owner: repeat.owner.or_else(|| parent.owner.clone()),
        fingerprint: fingerprint::of_rerun(parent.id),
        labels: parent.labels.clone(),
        deadline: parent.deadline.filter(|deadline| *deadline > now),
        parent: Some(parent.id),
    };
    Ok(SubmitRun { run, tasks: members.collect(), maker: repeat.maker })
}

fn carried(place: &Place) -> Option<Carried> {
    match place {
        Place::Finished(finished) if finished.end == End::Succeeded => {
            Some(Carried { result: finished.result.clone() })
        }
        _ => None,
    }
}

/// The same task once more. Times that have passed belonged to the first run, and so does its idempotency key.
fn again(task: &PastTask<'_>, id: TaskId, now: Timestamp) -> NewTask {
    let body = task.body;
    NewTask {
        id,
        queue: Arc::clone(task.queue),
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
        submitted_by: None,
        envelope: body.envelope.clone(),
    }
}

#[cfg(test)]
mod tests;
