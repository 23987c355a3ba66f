//! What a store keeps about sandboxes: their rows, the workers that hold them, and what is set for them.
//!
//! Nothing here decides. A change is judged by `core/src/sandbox`, on the row as it stands, in the transaction that writes
//! it. Leases of sandboxes are rows of `leases`, like those of [`LeaseStore`](crate::LeaseStore).

pub(crate) mod plan;

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::{Capacity, Caps, Fleet, NoPlace, Rules, Worker};
use tenure_core::sandbox::{Change, Held, Refused, Sandbox, SandboxId, Spec, State};
use tenure_core::time::{DurationMs, Timestamp};

use crate::error::StoreError;
use crate::leases::{Holder, ResourceLease};
use crate::model::Page;

/// A sandbox that is about to be created.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// Drawn by the caller. One that any lease row has, tombstones included, is refused as [`NotPlaced::IdTaken`]. With the
    /// `request_id` of its row it is the same create, sent again.
    pub id: SandboxId,
    pub request_id: Arc<str>,
    pub tenant: Arc<str>,
    pub owner: Option<Arc<str>>,
    pub spec: Arc<Spec>,
    pub pool: Option<Arc<str>>,
    pub ttl_ms: DurationMs,
    pub spawn_timeout_ms: DurationMs,
    pub lease: LeaseTerms,
    pub key: Option<RequestKey>,
    /// What to do when there is no room: wait this long, if fewer wait than `places`.
    pub queue: Option<Queueing>,
    pub told: Told,
}

/// What is told of a row that was written, in the same transaction.
pub type Told = fn(&Sandbox) -> Vec<NewSandboxEvent>;

/// A caller's idempotency key and a digest of its request. Keys are those of an owner in a tenant, for 24 hours.
pub type RequestKey = (Arc<str>, [u8; 32]);

/// How long the lease of a new sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    pub ttl_ms: DurationMs,
    /// Beyond the sandbox's own end, for workers that do not renew leases.
    pub without_renewal_ms: DurationMs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queueing {
    pub timeout_ms: DurationMs,
    pub places: u64,
}

/// What became of a placement.
#[derive(Debug, Clone)]
pub enum Placed {
    /// The row names a worker, which holds its lease.
    On(Box<Sandbox>, Box<Worker>, ResourceLease),
    /// It waits for room: the row names no worker.
    Queued(Box<Sandbox>),
    /// The idempotency key, or the same create, has made this one before. From [`SandboxStore::place_again`]: it does not wait any more.
    Known(Box<Sandbox>),
}

/// Why there is no sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPlaced {
    NoPlace(NoPlace),
    /// Nothing more can wait.
    QueueFull(NoPlace),
    IdTaken,
    /// The key belongs to another request.
    KeyTaken,
    /// There is no such row.
    Gone,
}

/// A change of a row that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub before: Sandbox,
    pub after: Sandbox,
}

/// Joined by AND.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    pub reach: Reach,
    /// Empty: all but destroyed ones.
    pub states: Vec<State>,
    pub worker: Option<WorkerId>,
    /// Rows that are over: `expires_at` at or before.
    pub expired_by: Option<Timestamp>,
    /// In this state since before then.
    pub changed_before: Option<Timestamp>,
    /// Newest first; only rows behind this one: time and id.
    pub after: Option<(Timestamp, SandboxId)>,
    pub limit: usize,
}

/// A heartbeat, read.
#[derive(Debug, Clone)]
pub struct Beat {
    pub worker: WorkerId,
    pub hostname: String,
    pub status: String,
    pub providers: Vec<String>,
    pub capabilities: Vec<String>,
    pub capacity: Capacity,
    pub boot_id: Option<String>,
    pub seq: Option<u64>,
    /// `None`: the worker does not tell.
    pub inventory: Option<Vec<Held>>,
}

/// What a heartbeat came to.
#[derive(Debug, Clone)]
pub struct Beaten {
    pub worker: Worker,
    /// What was known before; `None` for a new worker.
    pub before: Option<Worker>,
    /// A later heartbeat of the same start was here first.
    pub is_ignored: bool,
    /// Rows that the inventory names, as they stand.
    pub rows: Vec<Sandbox>,
}

/// What is set for an owner: the quotas of its tenant as a whole and its own, as far as there are any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    pub of_tenant: Option<QuotaRow>,
    pub of_owner: Option<QuotaRow>,
}

/// What a request for a sandbox is judged by.
#[derive(Debug, Clone)]
pub struct SpawnTerms {
    /// The template that was asked for, if there is one of this name.
    pub template: Option<TemplateRow>,
    /// Those of the tenant and those of all tenants, in the order in which they decide.
    pub policies: Vec<PolicyRow>,
    pub quotas: Quotas,
    /// All workers, without their inventories.
    pub workers: Vec<Worker>,
}

/// What a call to a sandbox needs.
#[derive(Debug, Clone)]
pub struct SandboxRoute {
    /// The row, destroyed or not.
    pub row: Sandbox,
    /// Without its inventory.
    pub worker: Option<Worker>,
    /// Unless it was released.
    pub lease: Option<ResourceLease>,
    pub quotas: Quotas,
}

/// A row that waits for room, in the order of its sequence within a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedSpawn {
    pub seq: i64,
    pub sandbox: SandboxId,
    pub provider: String,
    pub deadline: Timestamp,
}

/// A named way to create sandboxes. `body` is JSON that only the engine reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRow {
    pub tenant: Arc<str>,
    pub name: Arc<str>,
    pub version: i64,
    pub body: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Limits of an owner. 0 is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRow {
    pub tenant: Arc<str>,
    pub owner: Arc<str>,
    pub max_sandboxes: u64,
    pub max_ttl_ms: DurationMs,
    pub max_exec_timeout_ms: DurationMs,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A rule about what may be spawned. Without a tenant it holds for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRow {
    /// `pol-` and eight hexadecimal digits.
    pub id: Arc<str>,
    pub tenant: Option<Arc<str>>,
    pub resource_type: String,
    pub effect: String,
    pub pattern: String,
    pub priority: i64,
    pub created_at: Timestamp,
}

/// A snapshot whose archive is stored whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// `snap-` and eight hexadecimal digits.
    pub id: Arc<str>,
    pub tenant: Arc<str>,
    pub owner: Option<Arc<str>>,
    pub name: String,
    pub sandbox: SandboxId,
    pub image: String,
    pub provider: String,
    pub size_bytes: u64,
    /// In lower-case hexadecimal.
    pub sha256: String,
    pub created_at: Timestamp,
}

/// Something that happened, for those who watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandboxEvent {
    pub kind: &'static str,
    pub sandbox: Option<SandboxId>,
    /// Whose it is; `None` is for operators only.
    pub tenant: Option<Arc<str>>,
    pub owner: Option<Arc<str>>,
    /// JSON, or empty.
    pub data: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxEvent {
    pub id: i64,
    pub at: Timestamp,
    pub kind: String,
    pub sandbox: Option<SandboxId>,
    pub tenant: Option<Arc<str>>,
    pub owner: Option<Arc<str>>,
    pub data: String,
}

/// Bytes of a snapshot's archive are stored in pieces of this size; the last one may be smaller.
pub const SNAPSHOT_PIECE: usize = 1 << 20;
/// The largest spec that is stored, as JSON.
pub const SPEC_BYTES: usize = 64 << 10;
/// The most runtimes that an inventory names.
pub const INVENTORY_ITEMS: usize = 10_000;
/// The longest page of sandboxes, events or snapshots; a higher limit counts as this one.
pub const SANDBOX_PAGE: usize = 10_000;
/// How long an idempotency key is known.
pub const KEY_KEPT_MS: DurationMs = 24 * 3_600_000;
/// How long pieces without a snapshot are kept.
pub const PIECES_KEPT_MS: DurationMs = 24 * 3_600_000;

/// How a list is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// Destroyed rows too.
    All,
    Time,
    Tenant,
    Owner,
    Worker,
    End,
}

impl SandboxFilter {
    /// Reads what [`Page::next`] of a list of sandboxes says, for `after`.
    pub fn read_cursor(text: &str) -> Option<(Timestamp, SandboxId)> {
        let (millis, id) = text.split_once('.')?;
        Some((Timestamp::from_millis(millis.parse().ok()?), id.into()))
    }

    pub(crate) fn cursor(row: &Sandbox) -> String {
        format!("{}.{}", row.created_at.as_millis(), row.id)
    }

    /// Which index finds the rows.
    pub(crate) fn search(&self) -> Search {
        match &self.reach {
            _ if self.states.contains(&State::Destroyed) => Search::All,
            _ if self.worker.is_some() => Search::Worker,
            _ if self.expired_by.is_some() => Search::End,
            Reach::Owner { .. } => Search::Owner,
            Reach::Tenant(_) => Search::Tenant,
            Reach::All => Search::Time,
        }
    }

    /// Where the list begins: the row before the first one, and how many rows to read.
    pub(crate) fn start(&self) -> (Timestamp, SandboxId, usize) {
        let (at, id) = self.after.clone().unwrap_or_else(|| (Timestamp::MAX, "".into()));
        (at, id, self.limit.min(SANDBOX_PAGE))
    }
}

/// What a store keeps about sandboxes. Every method either happens whole or not at all, and rows carry the store's time.
///
/// Callers check lengths of names, ids and texts before. A spec larger than [`SPEC_BYTES`] and an inventory with more than
/// [`INVENTORY_ITEMS`] entries are refused here too, as [`StoreError::Failed`].
#[async_trait]
pub trait SandboxStore: Send + Sync {
    /// What a request of this owner is judged by, read at once. `tenant_wide` is the owner of a quota for all of a tenant.
    async fn spawn_terms(
        &self,
        tenant: &str,
        owner: Option<&str>,
        tenant_wide: &str,
        template: Option<&str>,
    ) -> Result<SpawnTerms, StoreError>;

    /// The way to a sandbox and what its owner may do, read at once. `None`: there is no such row.
    async fn sandbox_route(&self, id: &str, tenant_wide: &str) -> Result<Option<SandboxRoute>, StoreError>;

    /// Creates a row on a worker that `placement::place` chooses, and acquires its lease for that worker, in one
    /// transaction and under one lock for all placements. Without room the row waits, if it may. A crash before the commit
    /// leaves nothing; one after it leaves a row that is `creating`, which is resumed or fails at its deadline.
    async fn place_sandbox(
        &self,
        new: NewSandbox,
        caps: Caps,
        rules: &Rules,
    ) -> Result<Result<Placed, NotPlaced>, StoreError>;

    /// Gives a waiting row a place, under the same lock: one that waits for room, or whose worker has refused it. Waiting
    /// rows of a provider that came before it and could have the place keep it from one. It leaves the queue with its place.
    async fn place_again(
        &self,
        id: &str,
        lease: LeaseTerms,
        caps: Caps,
        rules: &Rules,
    ) -> Result<Result<Placed, NotPlaced>, StoreError>;

    /// Where a sandbox could go now, and what counts against the caps of this owner: for decisions that change nothing.
    async fn fleet(&self, tenant: &str, owner: Option<&str>) -> Result<(Fleet, Timestamp), StoreError>;

    /// Applies a change to a row, releases its lease if the change says so, and records events, in one transaction. A row
    /// that waits for room leaves the queue with any change that is made. No caps are looked at: claims go through
    /// [`Self::claim_warm`]. `None`: there is no such row.
    async fn change_sandbox(
        &self,
        id: &str,
        change: &Change,
        events: Vec<NewSandboxEvent>,
    ) -> Result<Option<Result<Changed, Refused>>, StoreError>;

    /// Takes the oldest warm sandbox of a template whose worker is fresh and has not been drained, for an owner. The caps of
    /// the owner and the tenant apply; the total does not change. A key that has claimed or created one before returns that
    /// row, unchanged: `before` equals `after`, and nothing is told. `None`: there is no such warm sandbox.
    async fn claim_warm(
        &self,
        pool: &str,
        claim: &Change,
        key: Option<RequestKey>,
        caps: Caps,
        rules: &Rules,
        told: Told,
    ) -> Result<Option<Result<Changed, NotPlaced>>, StoreError>;

    /// A row, destroyed or not.
    async fn sandbox(&self, id: &str, reach: &Reach) -> Result<Option<Sandbox>, StoreError>;

    /// Newest first. [`Page::next`] is read by [`SandboxFilter::read_cursor`].
    async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Page<Sandbox>, StoreError>;

    /// How many rows are in each state but `destroyed`, by provider and worker.
    async fn count_sandboxes(&self) -> Result<Vec<(State, String, Option<WorkerId>, u64)>, StoreError>;

    /// How many rows count against the caps: those with a worker that are `creating`, `running`, `idle` or `unhealthy`. Warm
    /// ones count in total only.
    async fn count_active(
        &self,
        tenant: &str,
        owner: Option<&str>,
    ) -> Result<tenure_core::sandbox::placement::Counts, StoreError>;

    /// Warm sandboxes by template: how many are idle, and how many are being created.
    async fn count_warm(&self) -> Result<Vec<(Arc<str>, u64, u64)>, StoreError>;

    /// Removes rows that were destroyed before then, and old idempotency keys. Their leases stay: with its row a resource would lose its generation.
    async fn prune_sandboxes(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// How many leases of sandboxes that are not destroyed are held, and how many have lapsed.
    async fn count_sandbox_leases(&self) -> Result<(u64, u64), StoreError>;

    /// The lease of a sandbox, unless it was released.
    async fn sandbox_lease(&self, id: &str) -> Result<Option<ResourceLease>, StoreError>;

    // Waiting for room.

    /// Everything that waits, in order.
    async fn queued_spawns(&self) -> Result<Vec<QueuedSpawn>, StoreError>;

    /// Takes a row out of the queue without a place. The caller says what becomes of the row.
    async fn leave_queue(&self, id: &str) -> Result<bool, StoreError>;

    // Workers.

    /// Writes down a heartbeat, by the store's clock. One with a lower `seq` of the same start changes nothing.
    async fn worker_beat(&self, beat: &Beat) -> Result<Beaten, StoreError>;

    /// Counts how often in a row each of these runtimes of a worker was an orphan; the others of its inventory start again.
    async fn count_orphans(&self, worker: &str, runtimes: &[Arc<str>]) -> Result<(), StoreError>;

    async fn sandbox_worker(&self, id: &str) -> Result<Option<Worker>, StoreError>;

    /// By id, without their inventories.
    async fn sandbox_workers(&self) -> Result<Vec<Worker>, StoreError>;

    /// Sets what an admin wants of a worker. `None`: there is none.
    async fn desire_worker(&self, id: &str, status: &str, reason: Option<&str>) -> Result<Option<Worker>, StoreError>;

    /// Removes a worker's row, or bars it from placement if `keep`. Its next heartbeat brings it back.
    async fn remove_worker(&self, id: &str, keep: bool) -> Result<bool, StoreError>;

    // Settings.

    /// `None`: there is one of this name.
    async fn create_template(&self, tenant: &str, name: &str, body: &str) -> Result<Option<TemplateRow>, StoreError>;

    /// Replaces the body and raises the version. `None`: there is none.
    async fn update_template(&self, tenant: &str, name: &str, body: &str) -> Result<Option<TemplateRow>, StoreError>;

    async fn template(&self, tenant: &str, name: &str) -> Result<Option<TemplateRow>, StoreError>;

    /// By name; of one tenant, or of all.
    async fn templates(&self, tenant: Option<&str>) -> Result<Vec<TemplateRow>, StoreError>;

    async fn delete_template(&self, tenant: &str, name: &str) -> Result<bool, StoreError>;

    async fn put_quota(&self, quota: &QuotaRow) -> Result<QuotaRow, StoreError>;

    async fn quota(&self, tenant: &str, owner: &str) -> Result<Option<QuotaRow>, StoreError>;

    async fn quotas(&self, tenant: Option<&str>) -> Result<Vec<QuotaRow>, StoreError>;

    async fn delete_quota(&self, tenant: &str, owner: &str) -> Result<bool, StoreError>;

    async fn create_policy(&self, policy: &PolicyRow) -> Result<PolicyRow, StoreError>;

    /// Those of a tenant and those of all tenants, by priority and then by age.
    async fn policies(&self, tenant: &str) -> Result<Vec<PolicyRow>, StoreError>;

    /// One of this tenant, or without a tenant one that applies to all.
    async fn delete_policy(&self, tenant: Option<&str>, id: &str) -> Result<bool, StoreError>;

    // Snapshots.

    /// Stores one piece of an archive; pieces of a snapshot that is never recorded are removed after a day.
    async fn put_snapshot_piece(&self, id: &str, index: u32, bytes: Vec<u8>) -> Result<(), StoreError>;

    /// Records a snapshot whose pieces are stored. An id that is taken is an error, and so is an archive whose pieces do
    /// not add up to its size.
    async fn record_snapshot(&self, snapshot: &SnapshotRow) -> Result<SnapshotRow, StoreError>;

    async fn snapshot_piece(&self, id: &str, index: u32) -> Result<Option<Vec<u8>>, StoreError>;

    async fn snapshot(&self, id: &str, reach: &Reach) -> Result<Option<SnapshotRow>, StoreError>;

    /// Newest first; of one sandbox, or of all.
    async fn snapshots(
        &self,
        reach: &Reach,
        sandbox: Option<&str>,
        limit: usize,
    ) -> Result<Vec<SnapshotRow>, StoreError>;

    /// Removes it with its pieces.
    async fn delete_snapshot(&self, id: &str, reach: &Reach) -> Result<bool, StoreError>;

    /// How many bytes of archives a tenant has.
    async fn snapshot_bytes(&self, tenant: &str) -> Result<u64, StoreError>;

    /// Removes pieces without a snapshot that are older than a day.
    async fn prune_snapshot_pieces(&self) -> Result<usize, StoreError>;

    // Events.

    async fn record_sandbox_events(&self, events: Vec<NewSandboxEvent>) -> Result<(), StoreError>;

    /// Events after `after`, oldest first. An event becomes visible after all events with lower ids.
    async fn sandbox_events(&self, after: i64, limit: usize) -> Result<Vec<SandboxEvent>, StoreError>;

    /// The first and the last id; 0 and 0 without any.
    async fn sandbox_event_bounds(&self) -> Result<(i64, i64), StoreError>;

    async fn prune_sandbox_events(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError>;
}

/// Who holds leases of sandboxes: the worker, known by its name. Its token is derived from the name, because the contract
/// proves possession by the worker's identity and the generation.
pub fn worker_holder(worker: &str) -> Holder {
    let digest = tenure_core::fingerprint::of_sandbox_holder(worker);
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    Holder { name: worker.into(), token: tenure_core::LeaseToken::from_u128(u128::from_be_bytes(half)) }
}
