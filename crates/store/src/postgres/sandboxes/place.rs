//! Changes of sandboxes, among all control planes of a database.
//!
//! A placement locks the gate first, then reads everything, and writes with the commit: two trips. A change locks its row
//! only. Whoever needs both locks takes the gate first.

use std::time::Duration;

use tenure_core::sandbox::placement::{Caps, Counts, Fleet, Rules, provider_kind};
use tenure_core::sandbox::{Change, LeaseStep, Refused, Sandbox, state};
use tenure_core::time::{DurationMs, Timestamp};
use tokio::sync::MutexGuard;
use tokio_postgres::Row;
use uuid::Uuid;

use super::super::conn::Pool;
use super::super::deal::{Answers, Ask, Deal, Params, Write, clock};
use super::super::leases::{self, keeps_generation};
use super::super::rows::Time;
use super::super::{Postgres, sql};
use super::rows;
use crate::error::StoreError;
use crate::identity::without_nul;
use crate::leases::{Holder, ResourceLease, ResourceType};
use crate::sandboxes::plan::{self, Outcome, Place, Scene, Wait};
use crate::sandboxes::{
    Changed, LeaseTerms, NewSandbox, NewSandboxEvent, NotPlaced, Placed, QueuedSpawn, RequestKey, Told, worker_holder,
};

type Result<T> = std::result::Result<T, StoreError>;

/// How long a placement waits for others of this control plane.
const TURN_WITHIN: Duration = Duration::from_secs(5);
const SANDBOX: &str = ResourceType::Sandbox.as_str();

/// A row to write, for as long as its statement needs the parameters.
struct Saved<'a> {
    id: &'a str,
    tenant: &'a str,
    owner: Option<&'a str>,
    state: &'static str,
    reason: Option<&'a str>,
    provider: &'a str,
    memory: i64,
    vcpus: i64,
    spec: String,
    worker: Option<&'a str>,
    runtime_id: Option<&'a str>,
    request_id: &'a str,
    pool: Option<&'a str>,
    times: [Time; 4],
    refused_by: Option<String>,
}

impl<'a> Saved<'a> {
    fn of(row: &'a Sandbox) -> Self {
        Self {
            id: &row.id,
            tenant: &row.tenant,
            owner: row.owner.as_deref(),
            state: row.state.as_str(),
            reason: row.reason.as_deref(),
            provider: &row.spec.provider,
            memory: plan::memory(&row.spec),
            vcpus: i64::from(row.spec.vcpus),
            spec: plan::json(&*row.spec),
            worker: row.worker.as_deref(),
            runtime_id: row.runtime_id.as_deref(),
            request_id: &row.request_id,
            pool: row.pool.as_deref(),
            times: [row.created_at, row.changed_at, row.expires_at, row.spawn_deadline].map(Time),
            refused_by: plan::json_if(&row.refused_by),
        }
    }

    fn insert(&self) -> Write<'_> {
        let [created, changed, expires, deadline] = &self.times;
        Write(
            "write a sandbox",
            sql::SANDBOX_INSERT,
            vec![
                &self.id,
                &self.tenant,
                &self.owner,
                &self.state,
                &self.reason,
                &self.provider,
                &self.memory,
                &self.vcpus,
                &self.spec,
                &self.worker,
                &self.runtime_id,
                &self.request_id,
                &self.pool,
                created,
                changed,
                expires,
                deadline,
                &self.refused_by,
            ],
        )
    }

    fn save(&self) -> Write<'_> {
        let [_, changed, expires, deadline] = &self.times;
        Write(
            "write a sandbox",
            sql::SANDBOX_SAVE,
            vec![
                &self.id,
                &self.tenant,
                &self.owner,
                &self.state,
                &self.reason,
                &self.spec,
                &self.worker,
                &self.runtime_id,
                &self.pool,
                changed,
                expires,
                deadline,
                &self.refused_by,
            ],
        )
    }
}

/// The lease that a placement acquires.
struct Acquire<'a> {
    kinds: [&'static str; 1],
    ids: [&'a str; 1],
    keep: Vec<&'static str>,
    holder: Holder,
    token: Uuid,
    ttl_ms: DurationMs,
    now: Option<Time>,
}

impl<'a> Acquire<'a> {
    fn of(place: &'a Place, now: Timestamp) -> Self {
        let holder = worker_holder(&place.worker.id);
        Self {
            kinds: [SANDBOX],
            ids: [&place.row.id],
            keep: keeps_generation(),
            token: Uuid::from_u128(holder.token.reveal()),
            holder,
            ttl_ms: place.lease_ms,
            now: Some(Time(now)),
        }
    }
}

/// A key to write.
struct Key<'a> {
    tenant: &'a str,
    owner: &'a str,
    key: &'a str,
    fingerprint: &'a [u8],
    sandbox: &'a str,
    at: Time,
}

impl<'a> Key<'a> {
    fn of(key: Option<&'a RequestKey>, row: &'a Sandbox, now: Timestamp) -> Option<Self> {
        let (key, fingerprint) = key?;
        let (tenant, owner) = (&*row.tenant, row.owner.as_deref().unwrap_or_default());
        Some(Self { tenant, owner, key, fingerprint, sandbox: &row.id, at: Time(now) })
    }

    fn put(&self) -> Write<'_> {
        let params: Params<'_> = vec![&self.tenant, &self.owner, &self.key, &self.fingerprint, &self.sandbox, &self.at];
        Write("write a key", sql::SANDBOX_KEY_PUT, params)
    }
}

/// Events to write, one array per column.
pub struct Events<'a> {
    at: Time,
    kinds: Vec<&'a str>,
    sandboxes: Vec<Option<&'a str>>,
    tenants: Vec<Option<&'a str>>,
    owners: Vec<Option<&'a str>>,
    data: Vec<Option<std::borrow::Cow<'a, str>>>,
}

impl<'a> Events<'a> {
    pub fn of(events: &'a [NewSandboxEvent], now: Timestamp) -> Self {
        let data = |event: &'a NewSandboxEvent| Some(&*event.data).filter(|data| !data.is_empty()).map(without_nul);
        Self {
            at: Time(now),
            kinds: events.iter().map(|event| event.kind).collect(),
            sandboxes: events.iter().map(|event| event.sandbox.as_deref()).collect(),
            tenants: events.iter().map(|event| event.tenant.as_deref()).collect(),
            owners: events.iter().map(|event| event.owner.as_deref()).collect(),
            data: events.iter().map(data).collect(),
        }
    }

    /// The last writes of a transaction.
    pub fn write<'w>(&'w self, writes: &mut Vec<Write<'w>>) {
        if !self.kinds.is_empty() {
            writes.push(Write("order events", sql::SANDBOX_EVENT_ORDER, Vec::new()));
            let params: Params<'_> =
                vec![&self.at, &self.kinds, &self.sandboxes, &self.tenants, &self.owners, &self.data];
            writes.push(Write("write events", sql::SANDBOX_EVENT_INSERT, params));
        }
    }
}

fn counted(row: &Row) -> super::super::rows::Result<(u64, u64)> {
    Ok((rows::count(row, 0)?, rows::count(row, 1)?))
}

fn fleet_asks<'a>(tenant: &'a &'a str, owner: &'a Option<&'a str>) -> Vec<Ask<'a>> {
    vec![
        Ask(sql::SANDBOX_WORKERS_FLEET, Vec::new()),
        Ask(sql::SANDBOXES_USAGE, Vec::new()),
        Ask(sql::SANDBOXES_COUNTED, vec![tenant, owner]),
    ]
}

fn fleet_of(answers: &mut Answers) -> Result<Fleet> {
    let workers = answers.all(rows::fleet_worker)?;
    let usage = answers.all(rows::usage)?;
    Ok(plan::fleet(workers, usage, answers.one(counted)?.unwrap_or_default()))
}

pub async fn fleet(store: &Postgres, pool: &Pool, tenant: &str, owner: Option<&str>) -> Result<(Fleet, Timestamp)> {
    let mut asks = vec![clock()];
    asks.extend(fleet_asks(&tenant, &owner));
    let (deal, mut answers) = Deal::begin(store, pool, "read the fleet", asks).await?;
    deal.end().await?;
    let now = answers.now(store)?;
    Ok((fleet_of(&mut answers)?, now))
}

pub async fn counts(store: &Postgres, pool: &Pool, tenant: &str, owner: Option<&str>) -> Result<Counts> {
    let asks = vec![Ask(sql::SANDBOXES_TOTAL, Vec::new()), Ask(sql::SANDBOXES_COUNTED, vec![&tenant, &owner])];
    let (deal, mut answers) = Deal::begin(store, pool, "count sandboxes", asks).await?;
    deal.end().await?;
    let total = answers.one(|row| rows::count(row, 0))?.unwrap_or_default();
    let (tenant, owner) = answers.one(counted)?.unwrap_or_default();
    Ok(Counts { total, owner, tenant })
}

impl Postgres {
    /// One placement of this control plane at a time asks for the gate.
    async fn turn(&self, operation: &'static str) -> Result<MutexGuard<'_, ()>> {
        let turn = tokio::time::timeout(TURN_WITHIN, self.placing.lock()).await;
        turn.map_err(|error| StoreError::Unavailable { operation, source: error.into() })
    }
}

pub async fn place(
    store: &Postgres,
    new: &NewSandbox,
    caps: Caps,
    rules: &Rules,
) -> Result<std::result::Result<Placed, NotPlaced>> {
    let operation = "place a sandbox";
    let _turn = store.turn(operation).await?;
    let (tenant, owner, id) = (&*new.tenant, new.owner.as_deref(), &*new.id);
    let owner_text = owner.unwrap_or_default();
    let key = new.key.as_ref().map_or("", |(key, _)| key);
    let provider = provider_kind(&new.spec.provider);
    let mut asks = vec![
        Ask(sql::SANDBOX_GATE_LOCK, Vec::new()),
        clock(),
        Ask(sql::SANDBOX_KEY_GET, vec![&tenant, &owner_text, &key]),
        Ask(sql::SANDBOX_GET, vec![&id]),
        Ask(sql::SANDBOX_TAKEN, vec![&id]),
        Ask(sql::SPAWN_QUEUE_AHEAD, vec![&provider, &i64::MAX, &plan::AHEAD]),
        Ask(sql::SPAWN_QUEUE_COUNT, Vec::new()),
    ];
    asks.extend(fleet_asks(&tenant, &owner));
    let (deal, mut answers) = Deal::begin(store, &store.work, operation, asks).await?;
    answers.skip();
    let now = answers.now(store)?;
    let (key, row) = (answers.one(rows::known_key)?, answers.one(rows::sandbox)?);
    let is_taken = answers.one(|row| row.try_get(0))?.unwrap_or_default();
    if let Some(answer) = plan::known(new, key, row, is_taken, now) {
        deal.end().await?;
        return Ok(answer);
    }
    let ahead = answers.all(rows::waiting)?;
    let waiting = answers.one(|row| rows::count(row, 0))?.unwrap_or_default();
    let scene = Scene { now, ahead, fleet: fleet_of(&mut answers)? };
    match plan::decide(new, scene, waiting, caps, rules) {
        Outcome::Place(place) => {
            let told = (new.told)(&place.row);
            let lease = commit_place(deal, &place, new.key.as_ref(), None, &told, now).await?;
            Ok(Ok(Placed::On(Box::new(place.row), Box::new(place.worker), lease)))
        }
        Outcome::Wait(wait) => {
            let Wait { row, provider, deadline } = *wait;
            let saved = Saved::of(&row);
            let key = Key::of(new.key.as_ref(), &row, now);
            let (deadline, caps) = (Time(deadline), [caps.per_owner, caps.per_tenant].map(plan::number));
            let mut writes = vec![saved.insert()];
            writes.extend(key.as_ref().map(Key::put));
            let params: Params<'_> = vec![&id, &provider, &deadline, &caps[0], &caps[1]];
            writes.push(Write("queue a sandbox", sql::SPAWN_QUEUE_INSERT, params));
            let told = (new.told)(&row);
            let events = Events::of(&told, now);
            events.write(&mut writes);
            deal.commit(writes).await?;
            Ok(Ok(Placed::Queued(Box::new(row))))
        }
        Outcome::Refuse(refused) => {
            deal.end().await?;
            Ok(Err(refused))
        }
    }
}

/// Writes a row that has a place, with its lease. `waited` is the id of a row that leaves the queue.
async fn commit_place(
    deal: Deal<'_>,
    place: &Place,
    key: Option<&RequestKey>,
    waited: Option<&str>,
    told: &[NewSandboxEvent],
    now: Timestamp,
) -> Result<ResourceLease> {
    let operation = deal.operation;
    let saved = Saved::of(&place.row);
    let key = Key::of(key, &place.row, now);
    let lease = Acquire::of(place, now);
    let holder = &*lease.holder.name;
    let kinds = lease.kinds.as_slice();
    let ids = lease.ids.as_slice();
    let params: Params<'_> = vec![&kinds, &ids, &lease.keep, &holder, &lease.token, &lease.ttl_ms, &lease.now, &0_i64];
    let mut writes = vec![Write("acquire the lease of a sandbox", sql::LEASES_ACQUIRE, params)];
    match &waited {
        Some(id) => writes.extend([saved.save(), Write("leave the queue", sql::SPAWN_QUEUE_DELETE, vec![id])]),
        None => writes.push(saved.insert()),
    }
    writes.extend(key.as_ref().map(Key::put));
    let events = Events::of(told, now);
    events.write(&mut writes);
    let mut answers = deal.commit(writes).await?;
    answers.one(leases::lease)?.ok_or_else(|| plan::lease_is_held(operation))
}

pub async fn place_again(
    store: &Postgres,
    id: &str,
    lease: LeaseTerms,
    caps: Caps,
    rules: &Rules,
) -> Result<std::result::Result<Placed, NotPlaced>> {
    let operation = "place a sandbox";
    let _turn = store.turn(operation).await?;
    let asks = vec![
        Ask(sql::SANDBOX_GATE_LOCK, Vec::new()),
        Ask(sql::SANDBOX_LOCK, vec![&id]),
        // Its lease must be free. While it is locked nobody else can acquire it.
        Ask(sql::LEASE_LOCK, vec![&SANDBOX, &id]),
        clock(),
        Ask(sql::SPAWN_QUEUE_GET, vec![&id]),
    ];
    let (deal, mut answers) = Deal::begin(store, &store.work, operation, asks).await?;
    answers.skip();
    let row = answers.one(rows::sandbox)?;
    let held = answers.one(leases::lease)?;
    let now = answers.now(store)?;
    let entry = answers.one(rows::queued)?;
    let row = match row {
        None => {
            deal.end().await?;
            return Ok(Err(NotPlaced::Gone));
        }
        Some(row) if !row.is_queued() => {
            deal.end().await?;
            return Ok(Ok(Placed::Known(Box::new(row))));
        }
        Some(row) => row,
    };
    let scene = scene(&deal, &row, entry.as_ref(), now).await?;
    match plan::decide_again(&row, entry.as_ref(), scene, lease, caps, rules) {
        Ok(place) => {
            if held.is_some_and(|held| held.is_live(now) && held.lease.holder != place.worker.id) {
                deal.end().await?;
                return Err(plan::lease_is_held(operation));
            }
            let lease = commit_place(deal, &place, None, Some(id), &[], now).await?;
            Ok(Ok(Placed::On(Box::new(place.row), Box::new(place.worker), lease)))
        }
        Err(no_place) => {
            let caps = [caps.per_owner, caps.per_tenant].map(plan::number);
            let params: Params<'_> = vec![&id, &caps[0], &caps[1]];
            let step = "write the caps of a sandbox that waits";
            deal.commit(vec![Write(step, sql::SPAWN_QUEUE_CAPS, params)]).await?;
            Ok(Err(NotPlaced::NoPlace(no_place)))
        }
    }
}

async fn scene(deal: &Deal<'_>, row: &Sandbox, entry: Option<&QueuedSpawn>, now: Timestamp) -> Result<Scene> {
    let (tenant, owner) = (&*row.tenant, row.owner.as_deref());
    let mut asks = fleet_asks(&tenant, &owner);
    let before = entry.map(|entry| (entry.provider.as_str(), entry.seq));
    if let Some((provider, seq)) = &before {
        asks.push(Ask(sql::SPAWN_QUEUE_AHEAD, vec![provider, seq, &plan::AHEAD]));
    }
    let mut answers = deal.ask(asks).await?;
    Ok(Scene { now, fleet: fleet_of(&mut answers)?, ahead: answers.all(rows::waiting)? })
}

pub async fn change(
    store: &Postgres,
    id: &str,
    change: &Change,
    events: &[NewSandboxEvent],
) -> Result<Option<std::result::Result<Changed, Refused>>> {
    let asks = vec![Ask(sql::SANDBOX_LOCK, vec![&id]), clock()];
    let (deal, mut answers) = Deal::begin(store, &store.work, "change a sandbox", asks).await?;
    let (row, now) = (answers.one(rows::sandbox)?, answers.now(store)?);
    let Some(before) = row else {
        deal.end().await?;
        return Ok(None);
    };
    let (after, lease) = match state::apply(&before, change, now) {
        Ok(applied) => applied,
        Err(refused) => {
            deal.end().await?;
            return Ok(Some(Err(refused)));
        }
    };
    let saved = Saved::of(&after);
    let mut writes = vec![saved.save()];
    if before.is_queued() {
        writes.push(Write("leave the queue", sql::SPAWN_QUEUE_DELETE, vec![&id]));
    }
    let held = before.worker.as_deref().filter(|_| lease == LeaseStep::Release).map(worker_holder);
    let held = held.map(|holder| (holder.name, Uuid::from_u128(holder.token.reveal())));
    let held = held.as_ref().map(|(name, token)| (&**name, token));
    let at = Some(Time(now));
    if let Some((holder, token)) = &held {
        let params: Params<'_> = vec![&SANDBOX, &id, holder, *token, &at, &0_i64];
        writes.push(Write("release the lease of a sandbox", sql::LEASE_RELEASE, params));
    }
    let events = Events::of(events, now);
    events.write(&mut writes);
    deal.commit(writes).await?;
    Ok(Some(Ok(Changed { before, after })))
}

pub async fn claim(
    store: &Postgres,
    pool: &str,
    change: &Change,
    key: Option<&RequestKey>,
    caps: Caps,
    rules: &Rules,
    told: Told,
) -> Result<Option<std::result::Result<Changed, NotPlaced>>> {
    let Change::Claim { tenant, owner, .. } = change else { return Ok(None) };
    let operation = "claim a warm sandbox";
    let _turn = store.turn(operation).await?;
    let (tenant, owner) = (&**tenant, owner.as_deref());
    let (owner_text, key_text) = (owner.unwrap_or_default(), key.map_or("", |(key, _)| key));
    let mut asks = vec![
        Ask(sql::SANDBOX_GATE_LOCK, Vec::new()),
        Ask(sql::SANDBOXES_IDLE, vec![&pool, &plan::WARM]),
        clock(),
        Ask(sql::SANDBOX_KEY_GET, vec![&tenant, &owner_text, &key_text]),
    ];
    asks.extend(fleet_asks(&tenant, &owner));
    let (deal, mut answers) = Deal::begin(store, &store.work, operation, asks).await?;
    answers.skip();
    let idle = answers.all(rows::sandbox)?;
    let now = answers.now(store)?;
    let found = answers.one(rows::known_key)?;
    let fleet = fleet_of(&mut answers)?;
    let changed = match plan::claim(change, key, found, idle, &fleet, caps, rules, now) {
        Some(Ok(changed)) if changed.before != changed.after => changed,
        other => {
            deal.end().await?;
            return Ok(other);
        }
    };
    let saved = Saved::of(&changed.after);
    let key = Key::of(key, &changed.after, now);
    let mut writes = vec![saved.save()];
    writes.extend(key.as_ref().map(Key::put));
    let told = told(&changed.after);
    let events = Events::of(&told, now);
    events.write(&mut writes);
    deal.commit(writes).await?;
    Ok(Some(Ok(changed)))
}
