//! Where a new sandbox goes, and whether there is room for it. The store calls this while it holds the lock under which
//! sandboxes are placed, so that control planes never overshoot a cap together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Held, SandboxId, Spec};
use crate::id::WorkerId;
use crate::time::{DurationMs, Timestamp};

/// A row of `sandbox_workers`: what a worker said in its last heartbeat, and what admins want of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    pub id: WorkerId,
    pub hostname: String,
    /// In lower case.
    pub status: String,
    pub providers: Vec<String>,
    pub capabilities: Vec<String>,
    pub capacity: Capacity,
    pub boot_id: String,
    pub seq: u64,
    pub inventory: Vec<Held>,
    /// `online` or `draining`, once an admin has asked for one.
    pub desired_status: Option<String>,
    pub drain_reason: Option<String>,
    pub last_heartbeat: Timestamp,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Removed by an admin: no sandbox goes there until its next heartbeat.
    pub is_barred: bool,
}

/// 0 is without a cap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capacity {
    pub max_sandboxes: u64,
    pub memory_mb: u64,
    pub vcpus: u64,
    pub rpc_url: Option<String>,
    pub preview_domain: Option<String>,
}

/// What is in use on a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub sandboxes: u64,
    pub memory_mb: u64,
    pub vcpus: u64,
}

/// How workers are compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// A heartbeat older than this makes a worker stale.
    pub freshness_ms: DurationMs,
    pub memory: f64,
    pub vcpus: f64,
    pub count: f64,
    /// Workers that this control plane can call: those it has a credential for. `None` is all.
    pub callable: Option<Vec<WorkerId>>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { freshness_ms: 120_000, memory: 0.5, vcpus: 0.3, count: 0.2, callable: None }
    }
}

/// Caps on how many sandboxes there are. 0 is without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Caps {
    pub total: u64,
    pub per_owner: u64,
    pub per_tenant: u64,
}

/// How many sandboxes count against the caps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub total: u64,
    pub owner: u64,
    pub tenant: u64,
}

/// Why there is no place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPlace {
    /// No worker is eligible; the word says what the nearest one lacks.
    WorkerUnavailable {
        why: &'static str,
    },
    /// A worker would do, but cannot be called.
    RpcUnavailable,
    MaxSandboxes,
    MaxSandboxesPerOwner,
    MaxSandboxesPerTenant,
}

impl NoPlace {
    /// The word of an admission decision.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::WorkerUnavailable { .. } => "worker_unavailable",
            Self::RpcUnavailable => "remote_worker_rpc_unavailable",
            Self::MaxSandboxes => "max_sandboxes",
            Self::MaxSandboxesPerOwner => "max_sandboxes_per_owner",
            Self::MaxSandboxesPerTenant => "max_sandboxes_per_tenant",
        }
    }

    /// Whether waiting may help.
    pub const fn is_queueable(&self) -> bool {
        match self {
            Self::WorkerUnavailable { why } => matches!(why.as_bytes(), b"capacity"),
            Self::RpcUnavailable => false,
            Self::MaxSandboxes | Self::MaxSandboxesPerOwner | Self::MaxSandboxesPerTenant => true,
        }
    }
}

/// What there is to choose from.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// Their inventories may be left out: what takes room is in `strays`.
    pub workers: Vec<Worker>,
    /// What rows that count reserve, by worker.
    pub usage: HashMap<WorkerId, Usage>,
    pub counts: Counts,
    /// Runtimes in the inventory of a worker that no such row names: they take room too.
    pub strays: HashMap<WorkerId, u64>,
}

impl Worker {
    pub fn is_stale(&self, freshness_ms: DurationMs, now: Timestamp) -> bool {
        now.since(self.last_heartbeat) > freshness_ms
    }

    pub fn is_draining(&self) -> bool {
        self.status == "draining" || self.desired_status.as_deref() == Some("draining")
    }

    pub fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|own| own == capability)
    }

    /// Whether the worker renews the leases of its sandboxes. For others a lease lasts as long as its sandbox.
    pub fn renews_leases(&self) -> bool {
        self.can("lease_renewal")
    }

    /// Whether a warm sandbox on this worker may get its owner now.
    pub fn can_serve(&self, rules: &Rules, now: Timestamp) -> bool {
        self.is_present(rules, now).is_ok() && self.is_callable(rules)
    }

    fn is_present(&self, rules: &Rules, now: Timestamp) -> Result<(), Lack> {
        if self.is_barred || !(self.status == "online" || self.status == "draining") {
            Err(Lack::Offline)
        } else if self.is_stale(rules.freshness_ms, now) {
            Err(Lack::Stale)
        } else if self.is_draining() {
            Err(Lack::Draining)
        } else {
            Ok(())
        }
    }

    fn is_callable(&self, rules: &Rules) -> bool {
        self.capacity.rpc_url.is_some() && rules.callable.as_ref().is_none_or(|callable| callable.contains(&self.id))
    }
}

/// Chooses a worker, or says why there is none. `not` names workers that have refused.
pub fn place(
    fleet: &Fleet,
    spec: &Spec,
    caps: Caps,
    rules: &Rules,
    not: &[WorkerId],
    now: Timestamp,
) -> Result<WorkerId, NoPlace> {
    let mut best: Option<(f64, u64, &WorkerId)> = None;
    let mut lacking = Lack::None;
    for worker in &fleet.workers {
        let used = fleet.used_on(worker);
        match eligible(worker, used, spec, rules, not, now) {
            Ok(()) => {
                let share = share(worker, used, spec, rules);
                let better =
                    best.is_none_or(|(least, count, id)| (share, used.sandboxes, &worker.id) < (least, count, id));
                if better {
                    best = Some((share, used.sandboxes, &worker.id));
                }
            }
            Err(lack) => lacking = lacking.max(lack),
        }
    }
    let Some((_, _, worker)) = best else { return Err(lacking.refusal()) };
    fleet.counts.fit(caps)?;
    Ok(Arc::clone(worker))
}

/// Workers that could take the sandbox now.
pub fn eligible_workers(fleet: &Fleet, spec: &Spec, rules: &Rules, now: Timestamp) -> Vec<WorkerId> {
    let fits = |worker: &&Worker| eligible(worker, fleet.used_on(worker), spec, rules, &[], now).is_ok();
    fleet.workers.iter().filter(fits).map(|worker| Arc::clone(&worker.id)).collect()
}

impl Fleet {
    /// Rows that count, and runtimes that no such row names.
    pub fn used_on(&self, worker: &Worker) -> Usage {
        let mut used = self.usage.get(&worker.id).copied().unwrap_or_default();
        used.sandboxes += self.strays.get(&worker.id).copied().unwrap_or_default();
        used
    }

    /// Notes what a worker's inventory has beyond the rows that count there.
    pub fn note_strays(&mut self, worker: &WorkerId, inventory: &[SandboxId], rows: &HashSet<SandboxId>) {
        let strays = inventory.iter().filter(|id| !rows.contains(*id)).count() as u64;
        self.strays.insert(Arc::clone(worker), strays);
    }

    /// Gives room to a sandbox that is about to go to a worker. The counts of its owner are the caller's.
    pub fn reserve(&mut self, worker: &WorkerId, spec: &Spec) {
        let used = self.usage.entry(Arc::clone(worker)).or_default();
        used.sandboxes += 1;
        used.memory_mb = used.memory_mb.saturating_add(spec.memory_mb);
        used.vcpus = used.vcpus.saturating_add(u64::from(spec.vcpus));
        self.counts.total += 1;
    }
}

impl Counts {
    /// Whether one more is below every cap.
    pub fn fit(self, caps: Caps) -> Result<(), NoPlace> {
        let full = |cap: u64, count: u64| cap > 0 && count >= cap;
        if full(caps.total, self.total) {
            Err(NoPlace::MaxSandboxes)
        } else if full(caps.per_owner, self.owner) {
            Err(NoPlace::MaxSandboxesPerOwner)
        } else if full(caps.per_tenant, self.tenant) {
            Err(NoPlace::MaxSandboxesPerTenant)
        } else {
            Ok(())
        }
    }
}

/// What keeps a worker from taking a sandbox, from the farthest to the nearest miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    None,
    Refused,
    Offline,
    Stale,
    Draining,
    Provider,
    Capability,
    Capacity,
    Rpc,
}

impl Lack {
    fn refusal(self) -> NoPlace {
        let why = match self {
            Self::None => "no_workers",
            Self::Refused => "refused",
            Self::Offline => "offline",
            Self::Stale => "stale",
            Self::Draining => "draining",
            Self::Provider => "provider",
            Self::Capability => "capability",
            Self::Capacity => "capacity",
            Self::Rpc => return NoPlace::RpcUnavailable,
        };
        NoPlace::WorkerUnavailable { why }
    }
}

fn eligible(
    worker: &Worker,
    used: Usage,
    spec: &Spec,
    rules: &Rules,
    not: &[WorkerId],
    now: Timestamp,
) -> Result<(), Lack> {
    let check = |holds: bool, lack: Lack| if holds { Ok(()) } else { Err(lack) };
    let capacity = &worker.capacity;
    check(!not.contains(&worker.id), Lack::Refused)?;
    worker.is_present(rules, now)?;
    let named = |name: &str| worker.providers.iter().any(|own| same_provider(own, name));
    check(worker.providers.is_empty() || spec.provider.is_empty() || named(&spec.provider), Lack::Provider)?;
    check(spec.requires.iter().chain(&spec.labels).all(|needed| worker.can(needed)), Lack::Capability)?;
    let fits = |cap: u64, used: u64, asked: u64| cap == 0 || used.saturating_add(asked) <= cap;
    check(
        fits(capacity.max_sandboxes, used.sandboxes, 1)
            && fits(capacity.memory_mb, used.memory_mb, spec.memory_mb)
            && fits(capacity.vcpus, used.vcpus, u64::from(spec.vcpus)),
        Lack::Capacity,
    )?;
    check(worker.is_callable(rules), Lack::Rpc)
}

pub fn same_provider(one: &str, other: &str) -> bool {
    provider_kind(one) == provider_kind(other)
}

/// The provider that a name means: `mock` is another name of `process`.
pub fn provider_kind(name: &str) -> &str {
    if name == "mock" { "process" } else { name }
}

/// How full the worker would be: the weighted share of its capped dimensions.
fn share(worker: &Worker, used: Usage, spec: &Spec, rules: &Rules) -> f64 {
    let capacity = &worker.capacity;
    let of = |weight: f64, cap: u64, used: u64, asked: u64| {
        if cap == 0 { 0.0 } else { weight * (used.saturating_add(asked) as f64) / (cap as f64) }
    };
    let sum = of(rules.memory, capacity.memory_mb, used.memory_mb, spec.memory_mb)
        + of(rules.vcpus, capacity.vcpus, used.vcpus, u64::from(spec.vcpus))
        + of(rules.count, capacity.max_sandboxes, used.sandboxes, 1);
    let weights = rules.memory + rules.vcpus + rules.count;
    if weights > 0.0 { sum / weights } else { 0.0 }
}
