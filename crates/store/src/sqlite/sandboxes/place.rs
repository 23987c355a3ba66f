//! Changes of sandboxes. SQLite has one writer: a transaction that has begun is the only one.

use rusqlite::{Connection, OptionalExtension, Result, params};
use tenure_core::sandbox::placement::{Caps, Counts, Fleet, Rules};
use tenure_core::sandbox::{Change, LeaseStep, Refused, Sandbox, state};
use tenure_core::time::Timestamp;

use super::super::leases;
use super::super::sql;
use super::{Tx, rows};
use crate::error::StoreError;
use crate::leases::{Resource, ResourceLease, ResourceType};
use crate::sandboxes::plan::{self, Outcome, Place, Scene, Wait};
use crate::sandboxes::{
    Changed, LeaseTerms, NewSandbox, NewSandboxEvent, NotPlaced, Placed, QueuedSpawn, RequestKey, Told, worker_holder,
};

type Answer<T> = std::result::Result<T, StoreError>;

/// Everything that a placement for this owner looks at, apart from the queue.
pub fn fleet(tx: &Connection, tenant: &str, owner: Option<&str>) -> Result<Fleet> {
    let workers = tx.prepare_cached(sql::SANDBOX_WORKERS_FLEET)?.query_map([], rows::fleet_worker)?.collect();
    let usage = tx.prepare_cached(sql::SANDBOXES_USAGE)?.query_map([], rows::usage)?.collect();
    Ok(plan::fleet(Result::<Vec<_>>::from(workers)?, Result::<Vec<_>>::from(usage)?, counted(tx, tenant, owner)?))
}

fn counted(tx: &Connection, tenant: &str, owner: Option<&str>) -> Result<(u64, u64)> {
    let count = |row: &rusqlite::Row<'_>, column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    tx.prepare_cached(sql::SANDBOXES_COUNTED)?
        .query_row(params![tenant, owner], |row| Ok((count(row, 0)?, count(row, 1)?)))
}

pub fn counts(tx: &Connection, tenant: &str, owner: Option<&str>) -> Result<Counts> {
    let total: i64 = tx.prepare_cached(sql::SANDBOXES_TOTAL)?.query_row([], |row| row.get(0))?;
    let (tenant, owner) = counted(tx, tenant, owner)?;
    Ok(Counts { total: total.unsigned_abs(), owner, tenant })
}

fn key_of(
    tx: &Connection,
    key: Option<&RequestKey>,
    tenant: &str,
    owner: Option<&str>,
) -> Result<Option<plan::KnownKey>> {
    let Some((key, _)) = key else { return Ok(None) };
    let params = params![tenant, owner.unwrap_or_default(), key];
    tx.prepare_cached(sql::SANDBOX_KEY_GET)?.query_row(params, rows::known_key).optional()
}

fn put_key(tx: &Connection, key: Option<&RequestKey>, row: &Sandbox, now: Timestamp) -> Result<()> {
    if let Some((key, fingerprint)) = key {
        let owner = row.owner.as_deref().unwrap_or_default();
        let params = params![row.tenant, owner, key, fingerprint, row.id, now.as_millis()];
        tx.prepare_cached(sql::SANDBOX_KEY_PUT)?.execute(params)?;
    }
    Ok(())
}

/// Rows of a provider that wait before this place in the queue.
fn ahead(tx: &Connection, provider: &str, seq: i64) -> Result<Vec<plan::Waiting>> {
    let mut statement = tx.prepare_cached(sql::SPAWN_QUEUE_AHEAD)?;
    statement.query_map(params![provider, seq, plan::AHEAD], rows::waiting)?.collect()
}

fn acquire(tx: &Tx<'_>, place: &Place, now: Timestamp) -> Answer<ResourceLease> {
    let resource = Resource::new(ResourceType::Sandbox, place.row.id.clone());
    let holder = worker_holder(&place.worker.id);
    let acquired = tx.step("acquire the lease of a sandbox", |conn| {
        leases::acquire(conn, &resource, &holder, now, place.lease_ms).optional()
    })?;
    acquired.ok_or_else(|| plan::lease_is_held(tx.operation))
}

pub fn place(
    tx: &Tx<'_>,
    new: &NewSandbox,
    caps: Caps,
    rules: &Rules,
) -> Answer<std::result::Result<Placed, NotPlaced>> {
    let now = tx.now();
    let (tenant, owner) = (&*new.tenant, new.owner.as_deref());
    let known = tx.step("read what is known of a sandbox", |conn| {
        let taken = conn.prepare_cached(sql::SANDBOX_TAKEN)?.query_row([&new.id], |row| row.get(0))?;
        Ok(plan::known(
            new,
            key_of(conn, new.key.as_ref(), tenant, owner)?,
            rows::get_sandbox(conn, &new.id)?,
            taken,
            now,
        ))
    })?;
    if let Some(answer) = known {
        return Ok(answer);
    }
    let (scene, waiting) = tx.step("read the fleet", |conn| {
        let provider = tenure_core::sandbox::placement::provider_kind(&new.spec.provider);
        let scene = Scene { now, fleet: fleet(conn, tenant, owner)?, ahead: ahead(conn, provider, i64::MAX)? };
        let waiting: i64 = conn.prepare_cached(sql::SPAWN_QUEUE_COUNT)?.query_row([], |row| row.get(0))?;
        Ok((scene, waiting.unsigned_abs()))
    })?;
    let insert = |row: &Sandbox| {
        tx.step("write a sandbox", |conn| {
            rows::insert_sandbox(conn, row)?;
            put_key(conn, new.key.as_ref(), row, now)
        })
    };
    match plan::decide(new, scene, waiting, caps, rules) {
        Outcome::Place(place) => {
            insert(&place.row)?;
            let lease = acquire(tx, &place, now)?;
            tell(tx, &(new.told)(&place.row), now)?;
            Ok(Ok(Placed::On(Box::new(place.row), Box::new(place.worker), lease)))
        }
        Outcome::Wait(wait) => {
            insert(&wait.row)?;
            let Wait { row, provider, deadline } = *wait;
            tx.step("queue a sandbox", |conn| {
                conn.prepare_cached(sql::SPAWN_QUEUE_INSERT)?.execute(params![
                    row.id,
                    provider,
                    deadline.as_millis(),
                    plan::number(caps.per_owner),
                    plan::number(caps.per_tenant),
                ])
            })?;
            tell(tx, &(new.told)(&row), now)?;
            Ok(Ok(Placed::Queued(Box::new(row))))
        }
        Outcome::Refuse(refused) => Ok(Err(refused)),
    }
}

fn tell(tx: &Tx<'_>, events: &[NewSandboxEvent], now: Timestamp) -> Answer<()> {
    if events.is_empty() {
        return Ok(());
    }
    tx.step("write events", |conn| rows::insert_events(conn, events, now))
}

fn entry(tx: &Connection, id: &str) -> Result<Option<QueuedSpawn>> {
    tx.prepare_cached(sql::SPAWN_QUEUE_GET)?.query_row([id], rows::queued).optional()
}

pub fn leave_queue(tx: &Connection, id: &str) -> Result<bool> {
    Ok(tx.prepare_cached(sql::SPAWN_QUEUE_DELETE)?.execute([id])? > 0)
}

pub fn place_again(
    tx: &Tx<'_>,
    id: &str,
    lease: LeaseTerms,
    caps: Caps,
    rules: &Rules,
) -> Answer<std::result::Result<Placed, NotPlaced>> {
    let now = tx.now();
    let found = tx.step("read a sandbox", |conn| Ok((rows::get_sandbox(conn, id)?, entry(conn, id)?)))?;
    let (row, entry) = match found {
        (None, _) => return Ok(Err(NotPlaced::Gone)),
        (Some(row), _) if !row.is_queued() => return Ok(Ok(Placed::Known(Box::new(row)))),
        (Some(row), entry) => (row, entry),
    };
    let scene = tx.step("read the fleet", |conn| {
        let ahead = match &entry {
            Some(entry) => ahead(conn, &entry.provider, entry.seq)?,
            None => Vec::new(),
        };
        Ok(Scene { now, fleet: fleet(conn, &row.tenant, row.owner.as_deref())?, ahead })
    })?;
    match plan::decide_again(&row, entry.as_ref(), scene, lease, caps, rules) {
        Ok(place) => {
            tx.step("write a sandbox", |conn| {
                leave_queue(conn, id)?;
                rows::save_sandbox(conn, &place.row)
            })?;
            let lease = acquire(tx, &place, now)?;
            Ok(Ok(Placed::On(Box::new(place.row), Box::new(place.worker), lease)))
        }
        Err(no_place) => {
            tx.step("write the caps of a sandbox that waits", |conn| {
                let params = params![id, plan::number(caps.per_owner), plan::number(caps.per_tenant)];
                conn.prepare_cached(sql::SPAWN_QUEUE_CAPS)?.execute(params)
            })?;
            Ok(Err(NotPlaced::NoPlace(no_place)))
        }
    }
}

pub fn change(
    tx: &Tx<'_>,
    id: &str,
    change: &Change,
    events: &[NewSandboxEvent],
) -> Answer<Option<std::result::Result<Changed, Refused>>> {
    let now = tx.now();
    let Some(before) = tx.step("read a sandbox", |conn| rows::get_sandbox(conn, id))? else { return Ok(None) };
    let (after, lease) = match state::apply(&before, change, now) {
        Ok(applied) => applied,
        Err(refused) => return Ok(Some(Err(refused))),
    };
    tx.step("write a sandbox", |conn| {
        if before.is_queued() {
            leave_queue(conn, id)?;
        }
        rows::save_sandbox(conn, &after)
    })?;
    if let (LeaseStep::Release, Some(worker)) = (lease, &before.worker) {
        tx.step("release the lease of a sandbox", |conn| {
            let resource = Resource::new(ResourceType::Sandbox, id);
            leases::release(conn, &resource, &worker_holder(worker), now)
        })?;
    }
    tell(tx, events, now)?;
    Ok(Some(Ok(Changed { before, after })))
}

/// A claim of a warm sandbox: its change, and whose it becomes.
pub struct Claim {
    pub pool: String,
    pub change: Change,
    pub key: Option<RequestKey>,
    pub told: Told,
}

pub fn claim(
    tx: &Tx<'_>,
    claim: &Claim,
    caps: Caps,
    rules: &Rules,
) -> Answer<Option<std::result::Result<Changed, NotPlaced>>> {
    let now = tx.now();
    let Change::Claim { tenant, owner, .. } = &claim.change else { return Ok(None) };
    let (key, fleet, idle) = tx.step("read warm sandboxes", |conn| {
        let mut statement = conn.prepare_cached(sql::SANDBOXES_IDLE)?;
        let idle = statement.query_map(params![claim.pool, plan::WARM], rows::sandbox)?.collect::<Result<Vec<_>>>()?;
        let key = key_of(conn, claim.key.as_ref(), tenant, owner.as_deref())?;
        Ok((key, fleet(conn, tenant, owner.as_deref())?, idle))
    })?;
    let changed = match plan::claim(&claim.change, claim.key.as_ref(), key, idle, &fleet, caps, rules, now) {
        Some(Ok(changed)) if changed.before != changed.after => changed,
        other => return Ok(other),
    };
    tx.step("write a sandbox", |conn| {
        rows::save_sandbox(conn, &changed.after)?;
        put_key(conn, claim.key.as_ref(), &changed.after, now)
    })?;
    tell(tx, &(claim.told)(&changed.after), now)?;
    Ok(Some(Ok(changed)))
}
