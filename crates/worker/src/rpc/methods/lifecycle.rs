//! Spawn, destroy, snapshot and restore.

use std::sync::Arc;
use std::time::Duration;

use tenure_contract::worker_rpc::{SnapshotResult, SpawnParams, SpawnResult};
use tenure_sandbox::{Egress, Limits, Provider, RuntimeId, Spec};

use super::within;
use crate::node::{Lease, NodeError, Prepare, SpawnOrder, Target};
use crate::rpc::answer::Answer;
use crate::rpc::refusal::Refusal;
use crate::rpc::snapshots::Archive;
use crate::rpc::state::Rpc;

impl Rpc {
    pub(super) async fn spawn(
        &self,
        id: &str,
        lease: Option<Lease>,
        params: SpawnParams,
        ttl: Duration,
    ) -> Result<Answer, Refusal> {
        let lease = lease.ok_or_else(|| Refusal::invalid("lease is missing"))?;
        let prepare = match params.snapshot.as_str() {
            "" => None,
            snapshot => Some(restoring(self.snapshots.open_archive(snapshot).await?)),
        };
        let (requested, owner_id) = (params.provider.trim().to_owned(), params.owner_id.clone());
        let order = SpawnOrder {
            provider: requested.clone(),
            owner_id: Some(owner_id).filter(|owner| !owner.is_empty()),
            ttl,
            prepare,
            spec: spec(params),
        };
        let held = within(self.settings.spawn_timeout, "the spawn", self.node.spawn(lease, order)).await??;
        let result = SpawnResult {
            sandbox_id: held.sandbox_id,
            runtime_id: held.runtime_id.0,
            state: "running".to_owned(),
            provider: if requested.is_empty() { held.provider_name } else { requested },
            worker_id: self.worker_id().to_owned(),
            metadata: held.metadata,
        };
        Ok(self.ok(id, result))
    }

    pub(super) async fn destroy(&self, id: &str, lease: Option<Lease>, target: Target) -> Result<Answer, Refusal> {
        let lease = lease.ok_or_else(|| Refusal::invalid("lease is missing"))?;
        let mut target = target;
        if target.sandbox_id.is_empty() {
            let owner = self.node.holdings().sandbox_of(&target.runtime_id);
            target.sandbox_id = owner.unwrap_or_else(|| lease.resource_id.clone());
        }
        within(self.settings.times.destroy, "the destroy", self.node.destroy(lease, target)).await??;
        Ok(self.done(id))
    }

    pub(super) async fn snapshot(
        &self,
        id: &str,
        lease: Option<Lease>,
        target: &Target,
        snapshot: String,
    ) -> Result<Answer, Refusal> {
        let held = self.held(lease.as_ref(), target).await?;
        let taking = async {
            let archive = held.provider.snapshot(&held.runtime_id).await?;
            self.snapshots.store(&snapshot, archive).await
        };
        let stored = within(self.settings.times.snapshot, "the snapshot", taking).await??;
        Ok(self.ok(id, result(snapshot, stored.size_bytes, stored.sha256)))
    }

    pub(super) async fn restore(
        &self,
        id: &str,
        lease: Option<Lease>,
        target: &Target,
        snapshot: String,
    ) -> Result<Answer, Refusal> {
        let held = self.held(lease.as_ref(), target).await?;
        let archive = self.snapshots.open_archive(&snapshot).await?;
        let (size_bytes, sha256) = (archive.size_bytes, archive.sha256.clone());
        let restoring = held.provider.restore(&held.runtime_id, archive.content);
        within(self.settings.times.snapshot, "the restore", restoring).await??;
        Ok(self.ok(id, result(snapshot, size_bytes, sha256)))
    }
}

fn result(snapshot_id: String, size_bytes: u64, sha256: String) -> SnapshotResult {
    SnapshotResult { snapshot_id, size_bytes, sha256 }
}

fn restoring(archive: Archive) -> Prepare {
    Box::new(move |provider: Arc<dyn Provider>, runtime: RuntimeId| {
        Box::pin(async move { provider.restore(&runtime, archive.content).await.map_err(NodeError::from) })
    })
}

/// Zero means the provider's default. Host directories can never be asked for over the network.
fn spec(params: SpawnParams) -> Spec {
    let given = |number: u64| Some(number).filter(|number| *number > 0);
    let mut spec = Spec::new(params.sandbox_id.trim(), params.image);
    spec.limits = Limits {
        memory_bytes: given(params.memory_mb).map(|mb| mb.saturating_mul(1 << 20)),
        cpus: Some(params.vcpus).filter(|vcpus| *vcpus > 0).map(f64::from),
        pids: Some(params.pids_limit).filter(|pids| *pids > 0),
        disk_bytes: given(params.disk_size_mb).map(|mb| mb.saturating_mul(1 << 20)),
    };
    spec.egress = if params.allowed_hosts.is_empty() { Egress::None } else { Egress::Allow(params.allowed_hosts) };
    spec.env = params.env;
    spec.metadata = params.metadata;
    spec.read_only_root = params.read_only_root;
    spec
}
