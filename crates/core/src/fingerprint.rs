//! Digests of what was submitted. The same key with the same digest is the same task, or the same run.
//!
//! Defaults are filled in first: a field that is left out and one that is set to its default count as the same.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::command::run::{NewMember, NewRun};
use crate::command::submit::{NewTask, Start};
use crate::id::RunId;

pub fn of_task(task: &NewTask) -> [u8; 32] {
    digest(&task_content(task))
}

/// The order in which a task names what it depends on does not count; the order of the tasks does.
pub fn of_run(run: &NewRun, tasks: &[NewMember]) -> [u8; 32] {
    let members: Vec<Value> = tasks.iter().map(|member| member_content(member, tasks)).collect();
    digest(&json!({
        "tenant": &*run.tenant, "workspace": &*run.workspace, "labels": run.labels, "deadline": run.deadline,
        "tasks": members,
    }))
}

pub fn of_rerun(parent: RunId) -> [u8; 32] {
    digest(&json!({"mode": "from_failure", "parent_run_id": parent.to_string()}))
}

/// The holder of sandboxes that a worker is.
pub fn of_sandbox_holder(worker: &str) -> [u8; 32] {
    digest(&json!({"holds_sandboxes": worker}))
}

fn digest(content: &Value) -> [u8; 32] {
    // serde_json keeps the keys of a `Value` sorted.
    Sha256::digest(content.to_string().as_bytes()).into()
}

fn member_content(member: &NewMember, tasks: &[NewMember]) -> Value {
    let named = member.depends_on.iter().filter_map(|index| tasks.get(*index));
    let mut depends_on: Vec<&str> = named.map(|other| &*other.key).collect();
    depends_on.sort_unstable();
    let key = member.task.idempotency.as_ref().map(|idempotency| &*idempotency.key);
    json!({
        "key": &*member.key, "depends_on": depends_on, "idempotency_key": key, "task": task_content(&member.task),
    })
}

fn task_content(task: &NewTask) -> Value {
    // Equal payloads become equal texts. A payload that is nested too deeply for a `Value` counts as it was written.
    let payload = serde_json::from_str::<Value>(&task.payload)
        .map_or_else(|_| task.payload.to_string(), |value| value.to_string());
    let start = match task.start {
        Start::Now => json!(0),
        Start::After(ms) => json!(ms),
        Start::At(at) => json!(at.to_string()),
    };
    let spec = &task.spec;
    let mut content = json!({
        "queue": task.queue, "operator": task.operator, "tenant": task.tenant, "workspace": task.workspace,
        "priority": task.priority, "payload": payload, "start": start, "tags": task.tags,
        "max_attempts": spec.max_attempts(), "timeout_ms": spec.timeout_ms(), "retry": spec.retry(),
        "cancel_grace_ms": spec.cancel_grace_ms(), "lease_ttl_ms": spec.lease_ttl_ms, "heartbeat_ms": spec.heartbeat_ms,
        "deadline": spec.deadline,
    });
    if let Some(envelope) = &task.envelope {
        content["envelope"] = json!(envelope);
    }
    content
}
