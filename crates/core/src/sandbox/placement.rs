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

/// Why a sandbox cannot be placed.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(10_000_000);
    const NO_CAPS: Caps = Caps { total: 0, per_owner: 0, per_tenant: 0 };

    fn worker(id: &str) -> Worker {
        Worker {
            id: id.into(),
            hostname: "h".into(),
            status: "online".into(),
            providers: vec!["namespace".into(), "process".into()],
            capabilities: vec!["snapshots".into(), "zone=a".into()],
            capacity: Capacity { rpc_url: Some("http://w".into()), ..Capacity::default() },
            boot_id: "b".into(),
            seq: 1,
            inventory: Vec::new(),
            desired_status: None,
            drain_reason: None,
            last_heartbeat: NOW,
            created_at: NOW,
            updated_at: NOW,
            is_barred: false,
        }
    }

    fn sized(id: &str, max_sandboxes: u64, memory_mb: u64, vcpus: u64) -> Worker {
        let capacity = Capacity { max_sandboxes, memory_mb, vcpus, ..worker(id).capacity };
        Worker { capacity, ..worker(id) }
    }

    fn spec() -> Spec {
        Spec { provider: "process".into(), memory_mb: 512, vcpus: 1, ..Spec::default() }
    }

    fn fleet(workers: Vec<Worker>) -> Fleet {
        Fleet { workers, ..Fleet::default() }
    }

    fn go(fleet: &Fleet, spec: &Spec, caps: Caps, rules: &Rules) -> Result<String, NoPlace> {
        place(fleet, spec, caps, rules, &[], NOW).map(|id| id.to_string())
    }

    fn why(worker: Worker, spec: &Spec, rules: &Rules) -> Option<&'static str> {
        match go(&fleet(vec![worker]), spec, NO_CAPS, rules) {
            Ok(_) => None,
            Err(NoPlace::WorkerUnavailable { why }) => Some(why),
            Err(other) => Some(other.reason()),
        }
    }

    #[test]
    fn each_lack_has_its_word() {
        let rules = Rules::default();
        let with = |change: fn(&mut Worker)| {
            let mut worker = worker("a");
            change(&mut worker);
            why(worker, &spec(), &rules)
        };
        assert_eq!(with(|_| {}), None);
        assert_eq!(
            go(&fleet(Vec::new()), &spec(), NO_CAPS, &rules),
            Err(NoPlace::WorkerUnavailable { why: "no_workers" })
        );
        assert_eq!(with(|w| w.is_barred = true), Some("offline"));
        assert_eq!(with(|w| w.status = "offline".into()), Some("offline"));
        assert_eq!(with(|w| w.last_heartbeat = NOW.plus(-120_000)), None, "two minutes old");
        assert_eq!(with(|w| w.last_heartbeat = NOW.plus(-120_001)), Some("stale"));
        assert_eq!(with(|w| w.status = "draining".into()), Some("draining"));
        assert_eq!(with(|w| w.desired_status = Some("draining".into())), Some("draining"));
        assert_eq!(with(|w| w.desired_status = Some("online".into())), None);
        assert_eq!(with(|w| w.providers = vec!["docker".into()]), Some("provider"));
        assert_eq!(with(|w| w.providers = vec!["mock".into()]), None, "another name of process");
        assert_eq!(with(|w| w.providers.clear()), None, "any");
        assert_eq!(with(|w| w.capacity.max_sandboxes = 1), None);
        assert_eq!(with(|w| w.capacity.memory_mb = 511), Some("capacity"));
        assert_eq!(with(|w| (w.capacity.memory_mb, w.capacity.vcpus) = (512, 1)), None);
        assert_eq!(with(|w| w.capacity.rpc_url = None), Some("remote_worker_rpc_unavailable"));
        let refused = place(&fleet(vec![worker("a")]), &spec(), NO_CAPS, &rules, &["a".into()], NOW);
        assert_eq!(refused, Err(NoPlace::WorkerUnavailable { why: "refused" }));
        let needs = |requires: &[&str], labels: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
            why(worker("a"), &Spec { requires: owned(requires), labels: owned(labels), ..spec() }, &rules)
        };
        assert_eq!(needs(&["snapshots"], &["zone=a"]), None);
        assert_eq!(needs(&["proxy"], &[]), Some("capability"));
        assert_eq!(needs(&[], &["zone=b"]), Some("capability"));
        assert_eq!(why(worker("a"), &Spec { provider: String::new(), ..spec() }, &rules), None, "any provider");
        let callable =
            |ids: &[&str]| Rules { callable: Some(ids.iter().map(|id| (*id).into()).collect()), ..Rules::default() };
        assert_eq!(why(worker("a"), &spec(), &callable(&["a"])), None);
        assert_eq!(why(worker("a"), &spec(), &callable(&["b"])), Some("remote_worker_rpc_unavailable"));
    }

    #[test]
    fn the_nearest_miss_is_told() {
        let stale = Worker { last_heartbeat: Timestamp::MIN, ..worker("a") };
        let full = sized("b", 0, 100, 0);
        let no_url = Worker { capacity: Capacity::default(), ..worker("c") };
        let rules = Rules::default();
        let told = |workers: Vec<Worker>| go(&fleet(workers), &spec(), NO_CAPS, &rules).unwrap_err();
        assert_eq!(told(vec![stale.clone(), full.clone()]), NoPlace::WorkerUnavailable { why: "capacity" });
        assert_eq!(told(vec![full.clone(), stale]), NoPlace::WorkerUnavailable { why: "capacity" });
        assert_eq!(told(vec![no_url, full]), NoPlace::RpcUnavailable);
    }

    #[test]
    fn only_what_may_pass_is_waited_for() {
        let waits = [NoPlace::MaxSandboxes, NoPlace::MaxSandboxesPerOwner, NoPlace::MaxSandboxesPerTenant];
        assert!(waits.iter().all(NoPlace::is_queueable));
        assert!(NoPlace::WorkerUnavailable { why: "capacity" }.is_queueable());
        for why in ["no_workers", "refused", "offline", "stale", "draining", "provider", "capability"] {
            assert!(!NoPlace::WorkerUnavailable { why }.is_queueable(), "{why}");
        }
        assert!(!NoPlace::RpcUnavailable.is_queueable());
    }

    #[test]
    fn the_emptiest_by_weight_is_chosen() {
        let usage = |entries: &[(&str, u64, u64, u64)]| {
            let usage = |(id, sandboxes, memory_mb, vcpus): &(&str, u64, u64, u64)| {
                (WorkerId::from(*id), Usage { sandboxes: *sandboxes, memory_mb: *memory_mb, vcpus: *vcpus })
            };
            entries.iter().map(usage).collect()
        };
        let workers = vec![sized("a", 10, 10_240, 10), sized("b", 10, 10_240, 10)];
        let both = |entries| Fleet { workers: workers.clone(), usage: usage(entries), ..Fleet::default() };
        let rules = Rules::default();
        assert_eq!(go(&both(&[("a", 1, 512, 1)]), &spec(), NO_CAPS, &rules).unwrap(), "b");
        // Memory weighs more than processors, and those more than the number.
        let by_memory = both(&[("a", 0, 2_048, 0), ("b", 0, 0, 2)]);
        assert_eq!(go(&by_memory, &spec(), NO_CAPS, &rules).unwrap(), "b");
        let by_vcpus = both(&[("a", 0, 0, 2), ("b", 2, 0, 0)]);
        assert_eq!(go(&by_vcpus, &spec(), NO_CAPS, &rules).unwrap(), "b");
        let only_count = Rules { memory: 0.0, vcpus: 0.0, ..Rules::default() };
        assert_eq!(go(&by_vcpus, &spec(), NO_CAPS, &only_count).unwrap(), "a");
        // A dimension without a cap weighs nothing: such a worker is the emptiest.
        let open = Fleet { workers: vec![sized("a", 10, 0, 0), worker("z")], ..Fleet::default() };
        assert_eq!(go(&open, &spec(), NO_CAPS, &rules).unwrap(), "z");
    }

    #[test]
    fn ties_go_by_count_and_then_by_id() {
        let usage = |counts: &[(&str, u64)]| -> HashMap<WorkerId, Usage> {
            counts
                .iter()
                .map(|(id, sandboxes)| ((*id).into(), Usage { sandboxes: *sandboxes, ..Usage::default() }))
                .collect()
        };
        let workers = vec![worker("c"), worker("b"), worker("a")];
        let rules = Rules::default();
        let tie = Fleet { workers: workers.clone(), usage: usage(&[("a", 2), ("b", 1), ("c", 1)]), ..Fleet::default() };
        assert_eq!(go(&tie, &spec(), NO_CAPS, &rules).unwrap(), "b");
        assert_eq!(go(&fleet(workers), &spec(), NO_CAPS, &rules).unwrap(), "a");
        let weightless = Rules { memory: 0.0, vcpus: 0.0, count: 0.0, ..Rules::default() };
        assert_eq!(go(&fleet(vec![sized("b", 9, 9_999, 9), worker("a")]), &spec(), NO_CAPS, &weightless).unwrap(), "a");
    }

    #[test]
    fn runtimes_without_rows_take_room() {
        let mut fleet = fleet(vec![sized("a", 3, 0, 0)]);
        let id: WorkerId = "a".into();
        fleet.usage.insert(Arc::clone(&id), Usage { sandboxes: 1, memory_mb: 512, vcpus: 1 });
        let inventory: Vec<SandboxId> = vec!["sb-1".into(), "sb-gone".into(), "sb-old".into()];
        fleet.note_strays(&id, &inventory, &HashSet::from(["sb-1".into()]));
        assert_eq!(fleet.used_on(&fleet.workers[0]), Usage { sandboxes: 3, memory_mb: 512, vcpus: 1 });
        assert_eq!(
            go(&fleet, &spec(), NO_CAPS, &Rules::default()),
            Err(NoPlace::WorkerUnavailable { why: "capacity" })
        );
        fleet.note_strays(&id, &inventory[..2], &HashSet::from(["sb-1".into()]));
        assert_eq!(go(&fleet, &spec(), NO_CAPS, &Rules::default()).unwrap(), "a");
        assert_eq!(eligible_workers(&fleet, &spec(), &Rules::default(), NOW), ["a".into()]);
    }

    #[test]
    fn caps_are_looked_at_after_workers() {
        let counts = Counts { total: 5, owner: 2, tenant: 3 };
        let fleet = Fleet { counts, ..fleet(vec![worker("a")]) };
        let rules = Rules::default();
        let under = |caps: Caps| go(&fleet, &spec(), caps, &rules);
        assert_eq!(under(Caps { total: 6, per_owner: 3, per_tenant: 4 }).unwrap(), "a");
        assert_eq!(under(Caps { total: 5, per_owner: 2, per_tenant: 3 }), Err(NoPlace::MaxSandboxes));
        assert_eq!(under(Caps { total: 0, per_owner: 2, per_tenant: 3 }), Err(NoPlace::MaxSandboxesPerOwner));
        assert_eq!(under(Caps { total: 0, per_owner: 0, per_tenant: 3 }), Err(NoPlace::MaxSandboxesPerTenant));
        let nobody = Fleet { counts, ..Fleet::default() };
        let refused = go(&nobody, &spec(), Caps { total: 1, ..NO_CAPS }, &rules);
        assert_eq!(refused, Err(NoPlace::WorkerUnavailable { why: "no_workers" }));
    }

    #[test]
    fn a_warm_sandbox_is_served_by_a_worker_that_is_there() {
        let rules = Rules::default();
        assert!(worker("a").can_serve(&rules, NOW));
        assert!(sized("a", 1, 1, 1).can_serve(&rules, NOW), "it has its room already");
        assert!(!worker("a").can_serve(&rules, NOW.plus(120_001)));
        assert!(!Worker { is_barred: true, ..worker("a") }.can_serve(&rules, NOW));
        assert!(!Worker { desired_status: Some("draining".into()), ..worker("a") }.can_serve(&rules, NOW));
        assert!(!worker("a").can_serve(&Rules { callable: Some(Vec::new()), ..rules }, NOW));
        assert!(Worker { capabilities: vec!["lease_renewal".into()], ..worker("a") }.renews_leases());
        assert!(!worker("a").renews_leases());
    }

    proptest! {
        /// However many are placed one after the other: no worker has more than its capacity, and a place is refused only
        /// if no worker has room.
        #[test]
        fn no_worker_is_overfilled(
            sizes in prop::collection::vec((0..4_u64, 0..4_000_u64, 0..6_u64), 1..5),
            specs in prop::collection::vec((0..1_500_u64, 0..3_u32), 0..30),
        ) {
            let worker = |(n, size): (usize, &(u64, u64, u64))| sized(&format!("w{n}"), size.0, size.1, size.2);
            let mut fleet = fleet(sizes.iter().enumerate().map(worker).collect());
            for (memory_mb, vcpus) in specs {
                let spec = Spec { memory_mb, vcpus, ..spec() };
                match place(&fleet, &spec, NO_CAPS, &Rules::default(), &[], NOW) {
                    Ok(id) => fleet.reserve(&id, &spec),
                    Err(_) => prop_assert!(eligible_workers(&fleet, &spec, &Rules::default(), NOW).is_empty()),
                }
                for worker in &fleet.workers {
                    let (used, capacity) = (fleet.used_on(worker), &worker.capacity);
                    let fits = |cap: u64, used: u64| cap == 0 || used <= cap;
                    prop_assert!(fits(capacity.max_sandboxes, used.sandboxes));
                    prop_assert!(fits(capacity.memory_mb, used.memory_mb) && fits(capacity.vcpus, used.vcpus));
                }
            }
            let placed: u64 = fleet.usage.values().map(|usage| usage.sandboxes).sum();
            prop_assert_eq!(placed, fleet.counts.total);
        }
    }
}
