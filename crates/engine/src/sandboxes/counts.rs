//! Numbers for metrics and diagnostics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::WorkerId;
use tenure_core::sandbox::State;

use super::templates::pool_key;
use super::{SandboxError, Sandboxes};
use crate::background::Pacer;

const COUNT_EVERY: Duration = Duration::from_secs(10);

/// Warm sandboxes of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmPool {
    pub tenant: Arc<str>,
    pub template: Arc<str>,
    pub ready: u64,
    pub target: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolStatus {
    pub is_enabled: bool,
    pub warm: Vec<WarmPool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    pub active: u64,
    pub expired: u64,
}

/// How many of what there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxCounts {
    pub by_state: BTreeMap<State, u64>,
    pub by_provider: BTreeMap<String, u64>,
    pub by_worker: BTreeMap<WorkerId, u64>,
    /// Workers by status; stale ones count as `stale`.
    pub workers: BTreeMap<String, u64>,
    /// Milliseconds since the last heartbeat.
    pub heartbeat_age_ms: BTreeMap<WorkerId, i64>,
    pub leases: LeaseCounts,
    pub queue_depth: u64,
    pub queue_capacity: u64,
    pub quotas: u64,
    pub quotas_with_max_sandboxes: u64,
    pub quotas_with_max_ttl: u64,
    pub quotas_with_max_exec_timeout: u64,
    /// The first and the last id of stored events.
    pub events: (i64, i64),
    /// Spawns that this control plane drives.
    pub spawning: usize,
}

impl Sandboxes {
    pub async fn counts(&self) -> Result<SandboxCounts, SandboxError> {
        let mut counts = SandboxCounts { spawning: super::lock(&self.inner.driving).len(), ..SandboxCounts::default() };
        for (state, provider, worker, count) in self.rows().count_sandboxes().await? {
            *counts.by_state.entry(state).or_default() += count;
            if state.counts() {
                *counts.by_provider.entry(provider).or_default() += count;
                if let Some(worker) = worker {
                    *counts.by_worker.entry(worker).or_default() += count;
                }
            }
        }
        let (now, freshness_ms) = (self.now().await?, self.settings().freshness_ms);
        for worker in self.rows().sandbox_workers().await? {
            let status = if worker.is_stale(freshness_ms, now) { "stale".to_owned() } else { worker.status };
            *counts.workers.entry(status).or_default() += 1;
            counts.heartbeat_age_ms.insert(worker.id, now.since(worker.last_heartbeat).max(0));
        }
        (counts.leases.active, counts.leases.expired) = self.rows().count_sandbox_leases().await?;
        counts.queue_depth = self.rows().queued_spawns().await?.len() as u64;
        counts.queue_capacity = self.settings().max_spawn_queue;
        for quota in self.rows().quotas(None).await? {
            counts.quotas += 1;
            counts.quotas_with_max_sandboxes += u64::from(quota.max_sandboxes > 0);
            counts.quotas_with_max_ttl += u64::from(quota.max_ttl_ms > 0);
            counts.quotas_with_max_exec_timeout += u64::from(quota.max_exec_timeout_ms > 0);
        }
        counts.events = self.rows().sandbox_event_bounds().await?;
        Ok(counts)
    }

    /// Warm sandboxes of a tenant's templates, or of all.
    pub async fn pool_status(&self, tenant: Option<&str>) -> Result<PoolStatus, SandboxError> {
        let warm = self.rows().count_warm().await?;
        let mut status = PoolStatus::default();
        for view in self.templates(tenant).await? {
            let target = self.pool_target(&view.tenant, &view.name, &view.template);
            if target == 0 {
                continue;
            }
            status.is_enabled = true;
            let key = pool_key(&view.tenant, &view.name, view.version);
            let ready = warm.iter().find(|(pool, ..)| *pool == key).map_or(0, |(_, ready, _)| *ready);
            status.warm.push(WarmPool { tenant: view.tenant, template: view.name, ready, target });
        }
        Ok(status)
    }

    /// Shows the numbers as metrics.
    pub(super) async fn keep_counted(self) {
        let mut last = SandboxCounts::default();
        let mut pacer = Pacer::new(&self.inner.shared);
        while pacer.pause(COUNT_EVERY).await {
            match self.counts().await {
                Ok(counts) => {
                    show(&with_zeros(&counts, &last));
                    last = counts;
                }
                Err(error) => tracing::debug!("cannot count sandboxes: {error}"),
            }
        }
    }
}

/// What is gone since the last time shows as 0.
fn with_zeros(counts: &SandboxCounts, last: &SandboxCounts) -> SandboxCounts {
    fn fill<K: Ord + Clone>(now: &mut BTreeMap<K, u64>, last: &BTreeMap<K, u64>) {
        for key in last.keys() {
            now.entry(key.clone()).or_default();
        }
    }
    let mut shown = counts.clone();
    fill(&mut shown.by_provider, &last.by_provider);
    fill(&mut shown.by_worker, &last.by_worker);
    fill(&mut shown.workers, &last.workers);
    shown
}

fn show(counts: &SandboxCounts) {
    for state in State::ALL {
        let count = counts.by_state.get(&state).copied().unwrap_or_default();
        metrics::gauge!("tenure_sandboxes_total", "state" => state.as_str()).set(count as f64);
    }
    for (provider, count) in &counts.by_provider {
        metrics::gauge!("tenure_sandboxes_by_provider_total", "provider" => provider.clone()).set(*count as f64);
    }
    for (worker, count) in &counts.by_worker {
        metrics::gauge!("tenure_sandboxes_by_worker_total", "worker" => worker.to_string()).set(*count as f64);
    }
    for (status, count) in &counts.workers {
        metrics::gauge!("tenure_workers_total", "status" => status.clone()).set(*count as f64);
    }
    for (worker, age_ms) in &counts.heartbeat_age_ms {
        metrics::gauge!("tenure_worker_heartbeat_age_seconds", "worker" => worker.to_string())
            .set(*age_ms as f64 / 1_000.0);
    }
    metrics::gauge!("tenure_leases_total", "status" => "active").set(counts.leases.active as f64);
    metrics::gauge!("tenure_leases_total", "status" => "expired").set(counts.leases.expired as f64);
    metrics::gauge!("tenure_spawn_queue_depth").set(counts.queue_depth as f64);
    metrics::gauge!("tenure_spawn_queue_capacity").set(counts.queue_capacity as f64);
    metrics::gauge!("tenure_owner_quotas_total").set(counts.quotas as f64);
    let overrides = [
        ("max_sandboxes", counts.quotas_with_max_sandboxes),
        ("max_ttl", counts.quotas_with_max_ttl),
        ("max_exec_timeout", counts.quotas_with_max_exec_timeout),
    ];
    for (kind, count) in overrides {
        metrics::gauge!("tenure_owner_quota_overrides_total", "type" => kind).set(count as f64);
    }
    let (first, last) = counts.events;
    metrics::gauge!("tenure_event_history_size").set(if last == 0 { 0.0 } else { (last - first + 1) as f64 });
}
