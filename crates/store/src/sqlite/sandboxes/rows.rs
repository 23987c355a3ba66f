//! Rows about sandboxes as the core's types, and back.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use tenure_core::sandbox::placement::{Usage, Worker};
use tenure_core::sandbox::{Sandbox, SandboxId, State};
use tenure_core::time::Timestamp;

use super::super::sql;
use crate::identity::without_nul;
use crate::sandboxes::plan::{self, KnownKey, Waiting, WorkerUsage};
use crate::sandboxes::{NewSandboxEvent, PolicyRow, QueuedSpawn, QuotaRow, SandboxEvent, SnapshotRow, TemplateRow};

fn time(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    row.get(column).map(Timestamp::from_millis)
}

fn count(row: &Row<'_>, column: usize) -> Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}

fn decoded<T: serde::de::DeserializeOwned + Default>(row: &Row<'_>, column: usize, what: &'static str) -> Result<T> {
    let text = row.get_ref(column)?.as_str_or_null()?;
    Ok(text.map_or_else(T::default, |text| plan::from_json(text, what)))
}

pub fn sandbox(row: &Row<'_>) -> Result<Sandbox> {
    sandbox_at(row, 0)
}

fn sandbox_at(row: &Row<'_>, first: usize) -> Result<Sandbox> {
    let state: String = row.get(first + 3)?;
    Ok(Sandbox {
        id: row.get(first)?,
        tenant: row.get(first + 1)?,
        owner: row.get(first + 2)?,
        state: State::parse(&state).unwrap_or(State::Error),
        reason: row.get(first + 4)?,
        spec: Arc::new(decoded(row, first + 5, "sandboxes.spec")?),
        worker: row.get(first + 6)?,
        runtime_id: row.get(first + 7)?,
        request_id: row.get(first + 8)?,
        pool: row.get(first + 9)?,
        created_at: time(row, first + 10)?,
        changed_at: time(row, first + 11)?,
        expires_at: time(row, first + 12)?,
        spawn_deadline: time(row, first + 13)?,
        refused_by: decoded(row, first + 14, "sandboxes.refused_by")?,
    })
}

pub fn get_sandbox(tx: &Connection, id: &str) -> Result<Option<Sandbox>> {
    tx.prepare_cached(sql::SANDBOX_GET)?.query_row([id], sandbox).optional()
}

pub fn insert_sandbox(tx: &Connection, row: &Sandbox) -> Result<()> {
    tx.prepare_cached(sql::SANDBOX_INSERT)?.execute(params![
        row.id,
        row.tenant,
        row.owner,
        row.state.as_str(),
        row.reason,
        row.spec.provider,
        plan::memory(&row.spec),
        row.spec.vcpus,
        plan::json(&*row.spec),
        row.worker,
        row.runtime_id,
        row.request_id,
        row.pool,
        row.created_at.as_millis(),
        row.changed_at.as_millis(),
        row.expires_at.as_millis(),
        row.spawn_deadline.as_millis(),
        plan::json_if(&row.refused_by),
    ])?;
    Ok(())
}

pub fn save_sandbox(tx: &Connection, row: &Sandbox) -> Result<()> {
    tx.prepare_cached(sql::SANDBOX_SAVE)?.execute(params![
        row.id,
        row.tenant,
        row.owner,
        row.state.as_str(),
        row.reason,
        plan::json(&*row.spec),
        row.worker,
        row.runtime_id,
        row.pool,
        row.changed_at.as_millis(),
        row.expires_at.as_millis(),
        row.spawn_deadline.as_millis(),
        plan::json_if(&row.refused_by),
    ])?;
    Ok(())
}

/// A worker without the last column, which is the inventory or the ids in it.
fn worker_part(row: &Row<'_>) -> Result<Worker> {
    Ok(Worker {
        id: row.get(0)?,
        hostname: row.get(1)?,
        status: row.get(2)?,
        providers: decoded(row, 3, "sandbox_workers.providers")?,
        capabilities: decoded(row, 4, "sandbox_workers.capabilities")?,
        capacity: decoded(row, 5, "sandbox_workers.capacity")?,
        boot_id: row.get(6)?,
        seq: count(row, 7)?,
        inventory: Vec::new(),
        desired_status: row.get(8)?,
        drain_reason: row.get(9)?,
        last_heartbeat: time(row, 10)?,
        created_at: time(row, 11)?,
        updated_at: time(row, 12)?,
        is_barred: row.get(13)?,
    })
}

pub fn worker(row: &Row<'_>) -> Result<Worker> {
    Ok(Worker { inventory: decoded(row, 14, "sandbox_workers.inventory")?, ..worker_part(row)? })
}

pub fn fleet_worker(row: &Row<'_>) -> Result<(Worker, Vec<SandboxId>)> {
    Ok((worker_part(row)?, decoded(row, 14, "sandbox_workers.held")?))
}

pub fn get_worker(tx: &Connection, id: &str) -> Result<Option<Worker>> {
    tx.prepare_cached(sql::SANDBOX_WORKER_GET)?.query_row([id], worker).optional()
}

pub fn save_worker(tx: &Connection, worker: &Worker) -> Result<()> {
    let [providers, capabilities, capacity, inventory, held] = plan::worker_json(worker);
    tx.prepare_cached(sql::SANDBOX_WORKER_SAVE)?.execute(params![
        worker.id,
        without_nul(&worker.hostname),
        without_nul(&worker.status),
        providers,
        capabilities,
        capacity,
        without_nul(&worker.boot_id),
        plan::number(worker.seq),
        inventory,
        held,
        worker.last_heartbeat.as_millis(),
    ])?;
    Ok(())
}

pub fn usage(row: &Row<'_>) -> Result<WorkerUsage> {
    Ok(WorkerUsage {
        worker: row.get(0)?,
        usage: Usage { sandboxes: count(row, 1)?, memory_mb: count(row, 2)?, vcpus: count(row, 3)? },
        ids: decoded(row, 4, "sandboxes.id")?,
    })
}

pub fn waiting(row: &Row<'_>) -> Result<Waiting> {
    Ok(Waiting {
        sandbox: row.get(0)?,
        deadline: time(row, 1)?,
        per_owner: count(row, 2)?,
        per_tenant: count(row, 3)?,
        tenant: row.get(4)?,
        owner: row.get(5)?,
        spec: decoded(row, 6, "sandboxes.spec")?,
        refused_by: decoded(row, 7, "sandboxes.refused_by")?,
        of_tenant: count(row, 8)?,
        of_owner: count(row, 9)?,
    })
}

pub fn queued(row: &Row<'_>) -> Result<QueuedSpawn> {
    Ok(QueuedSpawn { seq: row.get(0)?, sandbox: row.get(1)?, provider: row.get(2)?, deadline: time(row, 3)? })
}

pub fn known_key(row: &Row<'_>) -> Result<KnownKey> {
    Ok(KnownKey { fingerprint: row.get(0)?, created_at: time(row, 1)?, row: sandbox_at(row, 2)? })
}

pub fn template(row: &Row<'_>) -> Result<TemplateRow> {
    Ok(TemplateRow {
        tenant: row.get(0)?,
        name: row.get(1)?,
        version: row.get(2)?,
        body: row.get(3)?,
        created_at: time(row, 4)?,
        updated_at: time(row, 5)?,
    })
}

pub fn quota(row: &Row<'_>) -> Result<QuotaRow> {
    Ok(QuotaRow {
        tenant: row.get(0)?,
        owner: row.get(1)?,
        max_sandboxes: count(row, 2)?,
        max_ttl_ms: row.get(3)?,
        max_exec_timeout_ms: row.get(4)?,
        created_at: time(row, 5)?,
        updated_at: time(row, 6)?,
    })
}

pub fn policy(row: &Row<'_>) -> Result<PolicyRow> {
    Ok(PolicyRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        resource_type: row.get(2)?,
        effect: row.get(3)?,
        pattern: row.get(4)?,
        priority: row.get(5)?,
        created_at: time(row, 6)?,
    })
}

pub fn snapshot(row: &Row<'_>) -> Result<SnapshotRow> {
    Ok(SnapshotRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        owner: row.get(2)?,
        name: row.get(3)?,
        sandbox: row.get(4)?,
        image: row.get(5)?,
        provider: row.get(6)?,
        size_bytes: count(row, 7)?,
        sha256: row.get(8)?,
        created_at: time(row, 9)?,
    })
}

pub fn event(row: &Row<'_>) -> Result<SandboxEvent> {
    Ok(SandboxEvent {
        id: row.get(0)?,
        at: time(row, 1)?,
        kind: row.get(2)?,
        sandbox: row.get(3)?,
        tenant: row.get(4)?,
        owner: row.get(5)?,
        data: row.get::<_, Option<String>>(6)?.unwrap_or_default(),
    })
}

pub fn insert_events(tx: &Connection, events: &[NewSandboxEvent], now: Timestamp) -> Result<()> {
    let mut statement = tx.prepare_cached(sql::SANDBOX_EVENT_INSERT)?;
    for event in events {
        let data = Some(&*event.data).filter(|data| !data.is_empty()).map(without_nul);
        statement.execute(params![now.as_millis(), event.kind, event.sandbox, event.tenant, event.owner, data])?;
    }
    Ok(())
}
