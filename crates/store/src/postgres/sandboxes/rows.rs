//! Rows about sandboxes as the core's types.

use std::sync::Arc;

use tenure_core::sandbox::placement::{Usage, Worker};
use tenure_core::sandbox::{Sandbox, SandboxId, State};
use tokio_postgres::Row;

use super::super::rows::{Result, text, text_if, time};
use crate::sandboxes::plan::{self, KnownKey, Waiting, WorkerUsage};
use crate::sandboxes::{PolicyRow, QueuedSpawn, QuotaRow, SandboxEvent, SnapshotRow, TemplateRow};

pub fn count(row: &Row, column: usize) -> Result<u64> {
    row.try_get::<_, i64>(column).map(i64::unsigned_abs)
}

fn decoded<T: serde::de::DeserializeOwned + Default>(row: &Row, column: usize, what: &'static str) -> Result<T> {
    let text: Option<&str> = row.try_get(column)?;
    Ok(text.map_or_else(T::default, |text| plan::from_json(text, what)))
}

pub fn sandbox(row: &Row) -> Result<Sandbox> {
    sandbox_at(row, 0)
}

fn sandbox_at(row: &Row, first: usize) -> Result<Sandbox> {
    let state: String = row.try_get(first + 3)?;
    Ok(Sandbox {
        id: text(row, first)?,
        tenant: text(row, first + 1)?,
        owner: text_if(row, first + 2)?,
        state: State::parse(&state).unwrap_or(State::Error),
        reason: text_if(row, first + 4)?,
        spec: Arc::new(decoded(row, first + 5, "sandboxes.spec")?),
        worker: text_if(row, first + 6)?,
        runtime_id: text_if(row, first + 7)?,
        request_id: text(row, first + 8)?,
        pool: text_if(row, first + 9)?,
        created_at: time(row, first + 10)?,
        changed_at: time(row, first + 11)?,
        expires_at: time(row, first + 12)?,
        spawn_deadline: time(row, first + 13)?,
        refused_by: decoded(row, first + 14, "sandboxes.refused_by")?,
    })
}

/// A worker without the last column, which is the inventory or the ids in it.
fn worker_part(row: &Row) -> Result<Worker> {
    Ok(Worker {
        id: text(row, 0)?,
        hostname: row.try_get(1)?,
        status: row.try_get(2)?,
        providers: decoded(row, 3, "sandbox_workers.providers")?,
        capabilities: decoded(row, 4, "sandbox_workers.capabilities")?,
        capacity: decoded(row, 5, "sandbox_workers.capacity")?,
        boot_id: row.try_get(6)?,
        seq: count(row, 7)?,
        inventory: Vec::new(),
        desired_status: row.try_get(8)?,
        drain_reason: row.try_get(9)?,
        last_heartbeat: time(row, 10)?,
        created_at: time(row, 11)?,
        updated_at: time(row, 12)?,
        is_barred: row.try_get(13)?,
    })
}

pub fn worker(row: &Row) -> Result<Worker> {
    Ok(Worker { inventory: decoded(row, 14, "sandbox_workers.inventory")?, ..worker_part(row)? })
}

pub fn fleet_worker(row: &Row) -> Result<(Worker, Vec<SandboxId>)> {
    Ok((worker_part(row)?, decoded(row, 14, "sandbox_workers.held")?))
}

pub fn usage(row: &Row) -> Result<WorkerUsage> {
    Ok(WorkerUsage {
        worker: text(row, 0)?,
        usage: Usage { sandboxes: count(row, 1)?, memory_mb: count(row, 2)?, vcpus: count(row, 3)? },
        ids: decoded(row, 4, "sandboxes.id")?,
    })
}

pub fn waiting(row: &Row) -> Result<Waiting> {
    Ok(Waiting {
        sandbox: text(row, 0)?,
        deadline: time(row, 1)?,
        per_owner: count(row, 2)?,
        per_tenant: count(row, 3)?,
        tenant: text(row, 4)?,
        owner: text_if(row, 5)?,
        spec: decoded(row, 6, "sandboxes.spec")?,
        refused_by: decoded(row, 7, "sandboxes.refused_by")?,
        of_tenant: count(row, 8)?,
        of_owner: count(row, 9)?,
    })
}

pub fn queued(row: &Row) -> Result<QueuedSpawn> {
    Ok(QueuedSpawn { seq: row.try_get(0)?, sandbox: text(row, 1)?, provider: row.try_get(2)?, deadline: time(row, 3)? })
}

pub fn known_key(row: &Row) -> Result<KnownKey> {
    Ok(KnownKey {
        fingerprint: row.try_get::<_, &[u8]>(0)?.try_into().unwrap_or([0; 32]),
        created_at: time(row, 1)?,
        row: sandbox_at(row, 2)?,
    })
}

pub fn template(row: &Row) -> Result<TemplateRow> {
    Ok(TemplateRow {
        tenant: text(row, 0)?,
        name: text(row, 1)?,
        version: row.try_get(2)?,
        body: row.try_get(3)?,
        created_at: time(row, 4)?,
        updated_at: time(row, 5)?,
    })
}

pub fn quota(row: &Row) -> Result<QuotaRow> {
    Ok(QuotaRow {
        tenant: text(row, 0)?,
        owner: text(row, 1)?,
        max_sandboxes: count(row, 2)?,
        max_ttl_ms: row.try_get(3)?,
        max_exec_timeout_ms: row.try_get(4)?,
        created_at: time(row, 5)?,
        updated_at: time(row, 6)?,
    })
}

pub fn policy(row: &Row) -> Result<PolicyRow> {
    Ok(PolicyRow {
        id: text(row, 0)?,
        tenant: text_if(row, 1)?,
        resource_type: row.try_get(2)?,
        effect: row.try_get(3)?,
        pattern: row.try_get(4)?,
        priority: row.try_get(5)?,
        created_at: time(row, 6)?,
    })
}

pub fn snapshot(row: &Row) -> Result<SnapshotRow> {
    Ok(SnapshotRow {
        id: text(row, 0)?,
        tenant: text(row, 1)?,
        owner: text_if(row, 2)?,
        name: row.try_get(3)?,
        sandbox: text(row, 4)?,
        image: row.try_get(5)?,
        provider: row.try_get(6)?,
        size_bytes: count(row, 7)?,
        sha256: row.try_get(8)?,
        created_at: time(row, 9)?,
    })
}

pub fn event(row: &Row) -> Result<SandboxEvent> {
    Ok(SandboxEvent {
        id: row.try_get(0)?,
        at: time(row, 1)?,
        kind: row.try_get(2)?,
        sandbox: text_if(row, 3)?,
        tenant: text_if(row, 4)?,
        owner: text_if(row, 5)?,
        data: row.try_get::<_, Option<String>>(6)?.unwrap_or_default(),
    })
}
