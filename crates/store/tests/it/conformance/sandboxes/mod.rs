//! Sandboxes: where they go, how they change, who waits, and what is set for them.

mod changes;
mod concurrency;
mod events;
mod leases;
mod lists;
mod placing;
mod plans;
mod queue;
mod settings;
mod snapshots;
mod warm;
mod workers;

use std::sync::Arc;

use tenure_core::command::Reach;
use tenure_core::sandbox::placement::{Capacity, Caps, Rules, Worker};
use tenure_core::sandbox::{Change, Held, Refused, Sandbox, Spec, State};
use tenure_core::time::Timestamp;
use tenure_store::{
    Beat, Changed, LeaseTerms, NewSandbox, NewSandboxEvent, NotPlaced, Placed, Queueing, ResourceLease, Store,
    worker_holder,
};

use crate::common::{Fixture, Kind};

pub const LEASE: LeaseTerms = LeaseTerms { ttl_ms: 60_000, without_renewal_ms: 300_000 };
pub const TTL: i64 = 600_000;
pub const SPAWN: i64 = 120_000;
pub const NO_CAPS: Caps = Caps { total: 0, per_owner: 0, per_tenant: 0 };
pub const WAIT: Queueing = Queueing { timeout_ms: 30_000, places: 100 };

pub fn id(number: u32) -> Arc<str> {
    format!("sb-{number:08x}").into()
}

pub fn spec() -> Spec {
    Spec { provider: "process".into(), image: "alpine".into(), memory_mb: 512, vcpus: 1, ..Spec::default() }
}

/// A sandbox of `ann` in `acme`.
pub fn new(number: u32) -> NewSandbox {
    NewSandbox {
        id: id(number),
        request_id: format!("req-{number}").into(),
        tenant: "acme".into(),
        owner: Some("ann".into()),
        spec: Arc::new(spec()),
        pool: None,
        ttl_ms: TTL,
        spawn_timeout_ms: SPAWN,
        lease: LEASE,
        key: None,
        queue: None,
        told: |_| Vec::new(),
    }
}

/// An event of a row, as it was written.
pub fn told(kind: &'static str, row: &Sandbox) -> NewSandboxEvent {
    let worker = row.worker.as_deref().unwrap_or("nobody");
    NewSandboxEvent {
        kind,
        sandbox: Some(Arc::clone(&row.id)),
        tenant: Some(Arc::clone(&row.tenant)),
        owner: row.owner.clone(),
        data: format!("{{\"worker\":\"{worker}\"}}"),
    }
}

pub fn queued(number: u32) -> NewSandbox {
    NewSandbox { queue: Some(WAIT), ..new(number) }
}

pub fn beat(worker: &str) -> Beat {
    Beat {
        worker: worker.into(),
        hostname: format!("{worker}.internal"),
        status: "Online".into(),
        providers: vec!["process".into()],
        capabilities: vec!["lease_renewal".into()],
        capacity: Capacity { rpc_url: Some(format!("http://{worker}:7430")), ..Capacity::default() },
        boot_id: Some("boot".into()),
        seq: Some(1),
        inventory: Some(Vec::new()),
    }
}

pub fn room_for(max_sandboxes: u64, worker: &str) -> Beat {
    let mut beat = beat(worker);
    beat.capacity.max_sandboxes = max_sandboxes;
    beat
}

pub fn held(sandbox: &str, runtime: &str) -> Held {
    Held {
        sandbox_id: sandbox.into(),
        runtime_id: runtime.into(),
        provider: "process".into(),
        state: "running".into(),
        generation: 1,
        since: Timestamp::MIN,
        orphan_beats: 0,
    }
}

pub async fn worker(t: &Fixture, beat: Beat) -> Worker {
    t.store.worker_beat(&beat).await.unwrap().worker
}

pub async fn place(store: &dyn Store, new: NewSandbox, caps: Caps) -> Result<Placed, NotPlaced> {
    store.place_sandbox(new, caps, &Rules::default()).await.unwrap_or_else(|error| panic!("{}", error.chain()))
}

pub async fn again(store: &dyn Store, number: u32, caps: Caps) -> Result<Placed, NotPlaced> {
    store.place_again(&id(number), LEASE, caps, &Rules::default()).await.unwrap()
}

/// A sandbox that must have a place: the row, the worker, its lease.
pub async fn placed(t: &Fixture, new: NewSandbox) -> (Sandbox, Worker, ResourceLease) {
    match place(&*t.store, new, NO_CAPS).await {
        Ok(Placed::On(row, worker, lease)) => (*row, *worker, lease),
        other => panic!("{other:?}"),
    }
}

pub async fn row(t: &Fixture, number: u32) -> Sandbox {
    t.store.sandbox(&id(number), &Reach::All).await.unwrap().unwrap_or_else(|| panic!("no {}", id(number)))
}

pub async fn change(store: &dyn Store, number: u32, change: Change) -> Result<Changed, Refused> {
    store.change_sandbox(&id(number), &change, Vec::new()).await.unwrap().unwrap_or_else(|| panic!("no {}", id(number)))
}

pub fn confirm(row: &Sandbox) -> Change {
    Change::Confirm { worker: row.worker.clone().unwrap(), runtime_id: format!("rt-{}", row.id).into() }
}

pub fn destroy() -> Change {
    Change::Destroy { reason: None }
}

/// A sandbox that runs.
pub async fn running(t: &Fixture, number: u32) -> Sandbox {
    let (row, _, _) = placed(t, new(number)).await;
    change(&*t.store, number, confirm(&row)).await.unwrap().after
}

/// As many handles on the store as contenders; on Postgres of two control planes.
pub async fn stores(t: &Fixture, count: usize) -> Vec<Arc<dyn Store>> {
    match t.kind {
        Kind::Sqlite => (0..count).map(|_| Arc::clone(&t.store)).collect(),
        Kind::Postgres => {
            let other = t.replica().await;
            (0..count).map(|n| Arc::clone(if n % 2 == 0 { &t.store } else { &other.store })).collect()
        }
    }
}

/// What holds whenever no change is under way.
pub async fn check(t: &Fixture) {
    let zero = async |what: &str, sql: &str| assert_eq!(t.raw.number(sql).await, 0, "{what}");
    zero(
        "every row that takes room has the lease of its worker",
        "SELECT count(*) FROM sandboxes s WHERE worker_id IS NOT NULL
           AND state IN ('creating', 'running', 'idle', 'unhealthy') AND NOT EXISTS (SELECT 1 FROM leases l
             WHERE l.resource_type = 'sandbox' AND l.resource_id = s.id AND l.holder_id = s.worker_id
               AND l.released_at IS NULL)",
    )
    .await;
    zero(
        "no row that is over, or waits, has a lease",
        "SELECT count(*) FROM sandboxes s JOIN leases l ON l.resource_id = s.id AND l.resource_type = 'sandbox'
         WHERE l.released_at IS NULL AND (s.state IN ('expired', 'destroyed') OR s.worker_id IS NULL)",
    )
    .await;
    zero(
        "what is in the queue waits",
        "SELECT count(*) FROM spawn_queue q WHERE NOT EXISTS (SELECT 1 FROM sandboxes s
             WHERE s.id = q.sandbox_id AND s.worker_id IS NULL AND s.state = 'creating')",
    )
    .await;
    for row in all(t).await {
        let Some(lease) = t.store.sandbox_lease(&row.id).await.unwrap() else { continue };
        let holder = worker_holder(row.worker.as_deref().unwrap());
        assert_eq!((&lease.lease.holder, lease.lease.token), (&holder.name, holder.token), "{row:?}");
    }
}

/// Every row that is not destroyed.
pub async fn all(t: &Fixture) -> Vec<Sandbox> {
    let filter = tenure_store::SandboxFilter { limit: 10_000, ..Default::default() };
    t.store.sandboxes(&filter).await.unwrap().items
}

pub fn states(rows: &[Sandbox]) -> Vec<State> {
    rows.iter().map(|row| row.state).collect()
}
