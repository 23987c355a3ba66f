//! What both stores do with what they have read: the decisions are those of `core/src/sandbox`.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::WorkerId;
use tenure_core::sandbox::placement::{self, Capacity, Caps, Counts, Fleet, NoPlace, Rules, Usage, Worker};
use tenure_core::sandbox::{Change, Held, Sandbox, SandboxId, Spec, State, state};
use tenure_core::time::{DurationMs, Timestamp};

use super::{
    Beat, Changed, INVENTORY_ITEMS, KEY_KEPT_MS, LeaseTerms, NewSandbox, NotPlaced, Placed, QueuedSpawn, Queueing,
    RequestKey, SNAPSHOT_PIECE, SPEC_BYTES,
};
use crate::error::StoreError;

/// How many rows that wait before another are looked at. A row with more before it waits.
pub(crate) const AHEAD: i64 = 256;
/// How many warm sandboxes a claim looks at.
pub(crate) const WARM: i64 = 32;
/// How many abandoned uploads are removed at once.
pub(crate) const ABANDONED: i64 = 64;
/// The most rows of settings that are read at once.
pub(crate) const SETTINGS: i64 = 10_000;
/// More than any machine has; keeps sums in range.
const MEMORY_MB_MAX: u64 = 1 << 40;

/// A row that waits for room, with what counts against the caps of its owner.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub sandbox: SandboxId,
    pub deadline: Timestamp,
    pub per_owner: u64,
    pub per_tenant: u64,
    pub tenant: Arc<str>,
    pub owner: Option<Arc<str>>,
    pub spec: Spec,
    pub refused_by: Vec<WorkerId>,
    pub of_tenant: u64,
    pub of_owner: u64,
}

/// What a key was used for.
#[derive(Debug)]
pub(crate) struct KnownKey {
    pub fingerprint: [u8; 32],
    pub created_at: Timestamp,
    pub row: Sandbox,
}

/// What has room on a worker, as a store sums it up.
#[derive(Debug)]
pub(crate) struct WorkerUsage {
    pub worker: WorkerId,
    pub usage: Usage,
    pub ids: Vec<SandboxId>,
}

/// What a placement looks at, read under the lock.
#[derive(Debug)]
pub(crate) struct Scene {
    pub now: Timestamp,
    pub fleet: Fleet,
    /// Rows of the same provider that came before, in order.
    pub ahead: Vec<Waiting>,
}

/// A sandbox that has a place.
#[derive(Debug)]
pub(crate) struct Place {
    pub row: Sandbox,
    pub worker: Worker,
    pub lease_ms: DurationMs,
}

/// A sandbox that begins to wait.
#[derive(Debug)]
pub(crate) struct Wait {
    pub row: Sandbox,
    pub provider: String,
    pub deadline: Timestamp,
}

/// What becomes of a new sandbox.
#[derive(Debug)]
pub(crate) enum Outcome {
    Place(Box<Place>),
    Wait(Box<Wait>),
    Refuse(NotPlaced),
}

/// Puts together what was read: workers with the ids that their inventories name, and what rows reserve.
pub(crate) fn fleet(
    workers: Vec<(Worker, Vec<SandboxId>)>,
    usage: Vec<WorkerUsage>,
    (tenant, owner): (u64, u64),
) -> Fleet {
    let mut fleet = Fleet { counts: Counts { total: 0, owner, tenant }, ..Fleet::default() };
    let mut rows = HashMap::new();
    for of_worker in usage {
        fleet.counts.total += of_worker.usage.sandboxes;
        rows.insert(Arc::clone(&of_worker.worker), of_worker.ids.into_iter().collect());
        fleet.usage.insert(of_worker.worker, of_worker.usage);
    }
    let none = std::collections::HashSet::new();
    for (worker, held) in workers {
        if !held.is_empty() {
            fleet.note_strays(&worker.id, &held, rows.get(&worker.id).unwrap_or(&none));
        }
        fleet.workers.push(worker);
    }
    fleet
}

/// An answer that needs no placement: the key or the id is known.
pub(crate) fn known(
    new: &NewSandbox,
    key: Option<KnownKey>,
    row: Option<Sandbox>,
    is_taken: bool,
    now: Timestamp,
) -> Option<Result<Placed, NotPlaced>> {
    if let Some(answer) = known_key(new.key.as_ref(), key, now) {
        return Some(answer.map(|row| Placed::Known(Box::new(row))));
    }
    match row {
        // The answer to an earlier try was lost.
        Some(row) if row.request_id == new.request_id => Some(Ok(Placed::Known(Box::new(row)))),
        Some(_) => Some(Err(NotPlaced::IdTaken)),
        None if is_taken => Some(Err(NotPlaced::IdTaken)),
        None => None,
    }
}

pub(crate) fn known_key(
    key: Option<&RequestKey>,
    found: Option<KnownKey>,
    now: Timestamp,
) -> Option<Result<Sandbox, NotPlaced>> {
    let found = found.filter(|found| now.since(found.created_at) < KEY_KEPT_MS)?;
    let (_, fingerprint) = key?;
    Some(if *fingerprint == found.fingerprint { Ok(found.row) } else { Err(NotPlaced::KeyTaken) })
}

/// What becomes of a new sandbox, when `waiting` rows wait in all.
pub(crate) fn decide(new: &NewSandbox, scene: Scene, waiting: u64, caps: Caps, rules: &Rules) -> Outcome {
    let now = scene.now;
    let row = |start: Timestamp, worker| Sandbox {
        id: Arc::clone(&new.id),
        tenant: Arc::clone(&new.tenant),
        owner: new.owner.clone(),
        state: State::Creating,
        reason: None,
        spec: Arc::clone(&new.spec),
        worker,
        runtime_id: None,
        request_id: Arc::clone(&new.request_id),
        pool: new.pool.clone(),
        created_at: now,
        changed_at: now,
        expires_at: start.plus(new.ttl_ms),
        spawn_deadline: start.plus(new.spawn_timeout_ms),
        refused_by: Vec::new(),
    };
    let applicant = row(now, None);
    match choose(scene, &applicant, caps, rules) {
        Ok(worker) => {
            let row = row(now, Some(Arc::clone(&worker.id)));
            let lease_ms = lease_ms(&worker, &row, new.lease, now);
            Outcome::Place(Box::new(Place { row, worker, lease_ms }))
        }
        Err(no_place) => match new.queue {
            Some(Queueing { timeout_ms, places }) if no_place.is_queueable() => {
                if waiting >= places {
                    return Outcome::Refuse(NotPlaced::QueueFull(no_place));
                }
                // Its times count from when it has a place, at the latest from the end of the wait.
                let deadline = now.plus(timeout_ms);
                let provider = placement::provider_kind(&new.spec.provider).to_owned();
                Outcome::Wait(Box::new(Wait { row: row(deadline, None), provider, deadline }))
            }
            _ => Outcome::Refuse(NotPlaced::NoPlace(no_place)),
        },
    }
}

/// Gives a row that waits a place. `entry` is its place in the queue; a row that a worker refused has none.
pub(crate) fn decide_again(
    row: &Sandbox,
    entry: Option<&QueuedSpawn>,
    scene: Scene,
    lease: LeaseTerms,
    caps: Caps,
    rules: &Rules,
) -> Result<Place, NoPlace> {
    let now = scene.now;
    let worker = choose(scene, row, caps, rules)?;
    let mut row = row.clone();
    row.worker = Some(Arc::clone(&worker.id));
    if let Some(entry) = entry {
        row.expires_at = now.plus(row.expires_at.since(entry.deadline));
        row.spawn_deadline = now.plus(row.spawn_deadline.since(entry.deadline));
    }
    let lease_ms = lease_ms(&worker, &row, lease, now);
    Ok(Place { row, worker, lease_ms })
}

/// Rows that came before get their places first, in thought: what is left is for this one.
fn choose(scene: Scene, row: &Sandbox, caps: Caps, rules: &Rules) -> Result<Worker, NoPlace> {
    let Scene { now, mut fleet, ahead } = scene;
    if ahead.len() >= AHEAD as usize {
        return Err(NoPlace::WorkerUnavailable { why: "capacity" });
    }
    let own = fleet.counts;
    let (mut of_tenants, mut of_owners) = (HashMap::<&str, u64>::new(), HashMap::<(&str, &str), u64>::new());
    for waiting in ahead.iter().filter(|waiting| waiting.deadline > now && waiting.sandbox != row.id) {
        let owner = waiting.owner.as_deref().map(|owner| (&*waiting.tenant, owner));
        let given = |map: &HashMap<(&str, &str), u64>| owner.and_then(|owner| map.get(&owner).copied()).unwrap_or(0);
        fleet.counts.tenant = waiting.of_tenant + of_tenants.get(&*waiting.tenant).copied().unwrap_or(0);
        fleet.counts.owner = waiting.of_owner + given(&of_owners);
        let caps = Caps { total: caps.total, per_owner: waiting.per_owner, per_tenant: waiting.per_tenant };
        if let Ok(worker) = placement::place(&fleet, &waiting.spec, caps, rules, &waiting.refused_by, now) {
            fleet.reserve(&worker, &waiting.spec);
            *of_tenants.entry(&waiting.tenant).or_default() += 1;
            if let Some(owner) = owner {
                *of_owners.entry(owner).or_default() += 1;
            }
        }
    }
    fleet.counts.tenant = own.tenant + of_tenants.get(&*row.tenant).copied().unwrap_or(0);
    let owner = row.owner.as_deref().and_then(|owner| of_owners.get(&(&*row.tenant, owner)).copied());
    fleet.counts.owner = own.owner + owner.unwrap_or(0);
    let chosen = placement::place(&fleet, &row.spec, caps, rules, &row.refused_by, now)?;
    let worker = fleet.workers.into_iter().find(|worker| worker.id == chosen);
    worker.ok_or(NoPlace::WorkerUnavailable { why: "no_workers" })
}

fn lease_ms(worker: &Worker, row: &Sandbox, terms: LeaseTerms, now: Timestamp) -> DurationMs {
    if worker.renews_leases() {
        terms.ttl_ms
    } else {
        row.expires_at.since(now).saturating_add(terms.without_renewal_ms)
    }
}

/// The oldest of these warm sandboxes that may be claimed.
fn claimable(rows: Vec<Sandbox>, fleet: &Fleet, rules: &Rules, now: Timestamp) -> Option<Sandbox> {
    let serves = |row: &Sandbox| {
        let worker = fleet.workers.iter().find(|worker| Some(&worker.id) == row.worker.as_ref());
        worker.is_some_and(|worker| worker.can_serve(rules, now))
    };
    rows.into_iter().find(|row| now < row.expires_at && serves(row))
}

/// What becomes of a claim. A change that changes nothing is that of a key that is known.
#[allow(clippy::too_many_arguments, reason = "all that was read for it")]
pub(crate) fn claim(
    change: &Change,
    key: Option<&RequestKey>,
    found: Option<KnownKey>,
    idle: Vec<Sandbox>,
    fleet: &Fleet,
    caps: Caps,
    rules: &Rules,
    now: Timestamp,
) -> Option<Result<Changed, NotPlaced>> {
    if let Some(answer) = known_key(key, found, now) {
        return Some(answer.map(|row| Changed { before: row.clone(), after: row }));
    }
    let before = claimable(idle, fleet, rules, now)?;
    if let Err(no_place) = fleet.counts.fit(Caps { total: 0, ..caps }) {
        return Some(Err(NotPlaced::NoPlace(no_place)));
    }
    let (after, _) = state::apply(&before, change, now).ok()?;
    Some(Ok(Changed { before, after }))
}

/// A heartbeat that a later one of the same start has overtaken.
pub(crate) fn is_overtaken(before: &Worker, beat: &Beat) -> bool {
    match (&beat.boot_id, beat.seq) {
        (Some(boot), Some(seq)) => *boot == before.boot_id && seq < before.seq,
        _ => false,
    }
}

/// The row of a worker after a heartbeat.
pub(crate) fn after_beat(before: &Worker, beat: &Beat, now: Timestamp) -> Worker {
    let status = beat.status.trim().to_ascii_lowercase();
    let inventory = beat.inventory.as_deref().unwrap_or_default();
    Worker {
        id: Arc::clone(&beat.worker),
        hostname: beat.hostname.clone(),
        status: if status.is_empty() { "online".to_owned() } else { status },
        providers: beat.providers.clone(),
        capabilities: beat.capabilities.clone(),
        capacity: beat.capacity.clone(),
        boot_id: beat.boot_id.clone().unwrap_or_default(),
        seq: beat.seq.unwrap_or_default(),
        inventory: merge(&before.inventory, inventory, now),
        desired_status: before.desired_status.clone(),
        drain_reason: before.drain_reason.clone(),
        last_heartbeat: now,
        created_at: before.created_at,
        updated_at: now,
        is_barred: false,
    }
}

/// What was known of a runtime stays known.
fn merge(before: &[Held], inventory: &[Held], now: Timestamp) -> Vec<Held> {
    let known: HashMap<(&str, &str), &Held> =
        before.iter().map(|held| ((&*held.sandbox_id, &*held.runtime_id), held)).collect();
    let merged = inventory.iter().map(|held| {
        let known = known.get(&(&*held.sandbox_id, &*held.runtime_id));
        Held {
            since: known.map_or(now, |known| known.since),
            orphan_beats: known.map_or(0, |known| known.orphan_beats),
            ..held.clone()
        }
    });
    merged.collect()
}

/// Whether any count changed.
pub(crate) fn count_orphans(inventory: &mut [Held], runtimes: &[Arc<str>]) -> bool {
    let mut is_changed = false;
    for held in inventory {
        let beats = if runtimes.contains(&held.runtime_id) { held.orphan_beats.saturating_add(1) } else { 0 };
        is_changed |= beats != held.orphan_beats;
        held.orphan_beats = beats;
    }
    is_changed
}

pub(crate) fn check_spec(operation: &'static str, spec: &Spec) -> Result<(), StoreError> {
    let size = json(spec).len();
    if size <= SPEC_BYTES {
        return Ok(());
    }
    Err(StoreError::Failed { operation, source: format!("the spec has {size} bytes, at most {SPEC_BYTES}").into() })
}

pub(crate) fn check_inventory(operation: &'static str, beat: &Beat) -> Result<(), StoreError> {
    let items = beat.inventory.as_ref().map_or(0, Vec::len);
    if items <= INVENTORY_ITEMS {
        return Ok(());
    }
    let source = format!("the inventory has {items} entries, at most {INVENTORY_ITEMS}");
    Err(StoreError::Failed { operation, source: source.into() })
}

pub(crate) fn check_piece(operation: &'static str, bytes: &[u8]) -> Result<(), StoreError> {
    if bytes.len() <= SNAPSHOT_PIECE {
        return Ok(());
    }
    let source = format!("a piece has {} bytes, at most {SNAPSHOT_PIECE}", bytes.len());
    Err(StoreError::Failed { operation, source: source.into() })
}

/// Whether pieces make up an archive of this size: how many there are, their bytes, and the number of the last one.
pub(crate) fn check_pieces(
    operation: &'static str,
    size_bytes: u64,
    (pieces, bytes, last): (i64, i64, i64),
) -> Result<(), StoreError> {
    if bytes.unsigned_abs() == size_bytes && last + 1 == pieces {
        return Ok(());
    }
    let source = format!("{pieces} pieces with {bytes} bytes are stored, the archive has {size_bytes}");
    Err(StoreError::Failed { operation, source: source.into() })
}

/// An id that another row has.
pub(crate) fn id_is_taken(operation: &'static str) -> StoreError {
    StoreError::Failed { operation, source: "its id is that of another row: draw a new one".into() }
}

/// Another holder has the lease of a row that waits, which no change leaves behind.
pub(crate) fn lease_is_held(operation: &'static str) -> StoreError {
    StoreError::Failed { operation, source: "another holder has the lease of the sandbox".into() }
}

pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// JSON of a list, unless it is empty.
pub(crate) fn json_if<T: Serialize>(list: &[T]) -> Option<String> {
    if list.is_empty() { None } else { Some(json(list)) }
}

/// A text that does not decode is reported, and read as empty: a damaged row must not hide the others.
pub(crate) fn from_json<T: DeserializeOwned + Default>(text: &str, what: &'static str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::error!(column = what, %error, "cannot decode a stored row: using the default");
        T::default()
    })
}

pub(crate) fn memory(spec: &Spec) -> i64 {
    spec.memory_mb.min(MEMORY_MB_MAX).cast_signed()
}

pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The columns of a worker that are JSON: providers, capabilities, capacity, inventory, ids of the inventory.
pub(crate) fn worker_json(worker: &Worker) -> [String; 5] {
    let held: Vec<&str> = worker.inventory.iter().map(|held| &*held.sandbox_id).collect();
    [
        json(&worker.providers),
        json(&worker.capabilities),
        json::<Capacity>(&worker.capacity),
        json(&worker.inventory),
        json(&held),
    ]
}
