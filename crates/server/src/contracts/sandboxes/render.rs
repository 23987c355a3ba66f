//! What is stored, in the words of the contract.

use std::time::Duration;

use tenure_contract::duration;
use tenure_contract::sandboxes::{Policy, Quota, Sandbox, SandboxState, Snapshot, WorkerInfo, WorkerUsage};
use tenure_contract::worker_plane::Capacity;
use tenure_core::sandbox::placement::{Usage, Worker};
use tenure_core::sandbox::{self, State};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_engine::store::{PolicyRow, QuotaRow, SnapshotRow};

pub fn state(state: State) -> SandboxState {
    match state {
        State::Creating => SandboxState::Creating,
        State::Running => SandboxState::Running,
        State::Idle => SandboxState::Idle,
        State::Unhealthy => SandboxState::Unhealthy,
        State::Error => SandboxState::Error,
        State::Expired => SandboxState::Expired,
        State::Destroyed => SandboxState::Destroyed,
    }
}

/// `preview_domain` is that of its worker, or of this server.
pub fn sandbox(row: &sandbox::Sandbox, preview_domain: Option<String>) -> Sandbox {
    Sandbox {
        id: row.id.to_string(),
        state: state(row.state),
        provider: row.spec.provider.clone(),
        image: row.spec.image.clone(),
        memory_mb: row.spec.memory_mb,
        vcpus: row.spec.vcpus,
        owner_id: row.owner.as_deref().map(ToOwned::to_owned),
        tenant_id: Some(row.tenant.to_string()),
        vm_id: row.runtime_id.as_deref().map(ToOwned::to_owned),
        worker_id: row.worker.as_deref().map(ToOwned::to_owned),
        created_at: row.created_at.to_string(),
        expires_at: row.expires_at.to_string(),
        metadata: row.spec.metadata.clone(),
        preview_domain,
        reason: row.reason.as_deref().map(ToOwned::to_owned),
    }
}

/// Times of workers have whole seconds.
pub fn whole_seconds(at: Timestamp) -> String {
    Timestamp::from_millis(at.as_millis().div_euclid(1000) * 1000).to_string()
}

pub fn worker(worker: &Worker, stale: bool, usage: Option<Usage>) -> WorkerInfo {
    WorkerInfo {
        id: worker.id.to_string(),
        hostname: worker.hostname.clone(),
        status: worker.status.clone(),
        providers: worker.providers.clone(),
        capabilities: worker.capabilities.clone(),
        capacity: capacity(worker),
        last_heartbeat: whole_seconds(worker.last_heartbeat),
        created_at: whole_seconds(worker.created_at),
        updated_at: whole_seconds(worker.updated_at),
        stale,
        desired_status: worker.desired_status.clone(),
        drain_reason: worker.drain_reason.clone(),
        usage: usage.map(|used| WorkerUsage {
            sandboxes: used.sandboxes,
            memory_mb: used.memory_mb,
            vcpus: used.vcpus,
        }),
        ..WorkerInfo::default()
    }
}

fn capacity(worker: &Worker) -> Capacity {
    let own = worker.capacity.clone();
    Capacity {
        max_sandboxes: own.max_sandboxes,
        memory_mb: own.memory_mb,
        vcpus: own.vcpus,
        rpc_url: own.rpc_url,
        preview_domain: own.preview_domain,
    }
}

/// A limit of an owner; without one it is empty.
fn limit(ms: DurationMs) -> String {
    if ms <= 0 { String::new() } else { canonical(ms) }
}

pub fn canonical(ms: DurationMs) -> String {
    duration::canonical(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

pub fn quota(row: &QuotaRow) -> Quota {
    Quota {
        owner_id: row.owner.to_string(),
        max_sandboxes: row.max_sandboxes,
        max_ttl: limit(row.max_ttl_ms),
        max_exec_timeout: limit(row.max_exec_timeout_ms),
        created_at: whole_seconds(row.created_at),
        updated_at: whole_seconds(row.updated_at),
    }
}

pub fn snapshot(row: &SnapshotRow) -> Snapshot {
    Snapshot {
        id: row.id.to_string(),
        name: row.name.clone(),
        sandbox_id: row.sandbox.to_string(),
        image: row.image.clone(),
        provider: row.provider.clone(),
        size_bytes: row.size_bytes,
        sha256: row.sha256.clone(),
        created_at: row.created_at.to_string(),
    }
}

pub fn policy(row: &PolicyRow) -> Policy {
    Policy {
        id: row.id.to_string(),
        tenant_id: row.tenant.as_deref().unwrap_or_default().to_owned(),
        resource_type: row.resource_type.clone(),
        effect: row.effect.clone(),
        pattern: row.pattern.clone(),
        priority: row.priority,
        created_at: row.created_at.to_string(),
    }
}
