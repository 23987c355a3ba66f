//! What is kept about sandboxes.

mod place;
mod rows;

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::{Caps, Counts, Fleet, Rules, Worker};
use tenure_core::sandbox::{Change, Refused, Sandbox, State};
use tenure_core::time::Timestamp;

use super::{Db, Sqlite, failed, leases, sql};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::faults::Faults;
use crate::identity::{page, without_nul};
use crate::leases::{Resource, ResourceLease, ResourceType};
use crate::model::Page;
use crate::sandboxes::plan;
use crate::sandboxes::{
    Beat, Beaten, Changed, KEY_KEPT_MS, LeaseTerms, NewSandbox, NewSandboxEvent, NotPlaced, PIECES_KEPT_MS, Placed,
    PolicyRow, QueuedSpawn, QuotaRow, Quotas, RequestKey, SANDBOX_PAGE, SandboxEvent, SandboxFilter, SandboxRoute,
    SandboxStore, Search, SnapshotRow, SpawnTerms, TemplateRow, Told,
};
use crate::store::Lane;

type Result<T> = std::result::Result<T, StoreError>;

/// A transaction whose steps can be made to fail.
pub struct Tx<'a> {
    conn: &'a Connection,
    faults: &'a Faults,
    clock: &'a Clock,
    operation: &'static str,
}

impl Tx<'_> {
    pub fn now(&self) -> Timestamp {
        self.clock.read_process().now
    }

    pub fn step<T>(&self, name: &'static str, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        self.faults.before(name)?;
        let done = work(self.conn).map_err(|error| failed(self.operation, error))?;
        self.faults.after(name)?;
        Ok(done)
    }
}

impl Sqlite {
    /// Several steps, committed together.
    pub(super) async fn transact<T: Send + 'static>(
        &self,
        lane: Lane,
        operation: &'static str,
        work: impl FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (faults, clock) = (Arc::clone(&self.faults), Arc::clone(&self.clock));
        self.writer.run(lane, move |db| commit(db, operation, &faults, &clock, work)).await
    }

    /// As [`Self::transact`], for steps that change queues.
    pub(super) async fn transact_queues<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (faults, clock) = (Arc::clone(&self.faults), Arc::clone(&self.clock));
        self.writer
            .run(Lane::Work, move |db| {
                let outcome = commit(db, operation, &faults, &clock, work);
                db.forget_cache();
                outcome
            })
            .await
    }
}

fn commit<T>(
    db: &mut Db,
    operation: &'static str,
    faults: &Faults,
    clock: &Clock,
    work: impl FnOnce(&Tx<'_>) -> Result<T>,
) -> Result<T> {
    faults.before(operation)?;
    let conn =
        db.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|error| failed(operation, error))?;
    let tx = Tx { conn: &conn, faults, clock, operation };
    let outcome = work(&tx)?;
    faults.before("commit")?;
    conn.commit().map_err(|error| failed("commit", error))?;
    faults.after("commit")?;
    Ok(outcome)
}

pub fn all<T>(
    tx: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    tx.prepare_cached(sql)?.query_map(params, read)?.collect()
}

pub fn one<T>(
    tx: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    tx.prepare_cached(sql)?.query_row(params, read).optional()
}

pub fn run(tx: &Connection, sql: &str, params: impl rusqlite::Params) -> rusqlite::Result<usize> {
    tx.prepare_cached(sql)?.execute(params)
}

fn ids(ids: &[&str]) -> String {
    plan::json(ids)
}

fn list(tx: &Connection, filter: &SandboxFilter) -> rusqlite::Result<Vec<Sandbox>> {
    let (at, id, limit) = filter.start();
    let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    let params = params![
        at.as_millis(),
        id,
        Some(ids(&states)).filter(|_| !states.is_empty()),
        filter.worker,
        filter.expired_by.map(Timestamp::as_millis),
        filter.changed_before.map(Timestamp::as_millis),
        limit as i64 + 1,
        filter.reach.tenant(),
        filter.reach.owner(),
    ];
    let sql = match filter.search() {
        Search::All => sql::SANDBOXES_LIST_ALL,
        Search::Time => sql::SANDBOXES_LIST,
        Search::Worker => sql::SANDBOXES_OF_WORKER,
        Search::End => sql::SANDBOXES_OVER,
        Search::Owner => sql::SANDBOXES_OF_OWNER,
        Search::Tenant => sql::SANDBOXES_OF_TENANT,
    };
    all(tx, sql, params, rows::sandbox)
}

fn quotas_of(tx: &Connection, tenant: &str, owner: Option<&str>, tenant_wide: &str) -> rusqlite::Result<Quotas> {
    let of = |owner: &str| one(tx, sql::SANDBOX_QUOTA_GET, [tenant, owner], rows::quota);
    Ok(Quotas {
        of_tenant: of(tenant_wide)?,
        of_owner: match owner {
            Some(owner) => of(owner)?,
            None => None,
        },
    })
}

fn beat_of(tx: &Tx<'_>, beat: &Beat) -> Result<Beaten> {
    let now = tx.now();
    let named: Vec<&str> = beat.inventory.iter().flatten().map(|held| &*held.sandbox_id).collect();
    let (before, rows) = tx.step("read a worker", |conn| {
        let rows = match named.is_empty() {
            true => Vec::new(),
            false => all(conn, sql::SANDBOXES_NAMED, [ids(&named)], rows::sandbox)?,
        };
        Ok((rows::get_worker(conn, &beat.worker)?, rows))
    })?;
    if let Some(worker) = before.as_ref().filter(|before| plan::is_overtaken(before, beat)) {
        return Ok(Beaten { worker: worker.clone(), before: before.clone(), is_ignored: true, rows });
    }
    let worker = tx.step("write a worker", |conn| {
        let known = match &before {
            Some(before) => before.clone(),
            None => {
                run(conn, sql::SANDBOX_WORKER_ADD, params![beat.worker, now.as_millis()])?;
                rows::get_worker(conn, &beat.worker)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?
            }
        };
        let worker = plan::after_beat(&known, beat, now);
        rows::save_worker(conn, &worker)?;
        Ok(worker)
    })?;
    Ok(Beaten { worker, before, is_ignored: false, rows })
}

fn record_snapshot(tx: &Tx<'_>, snapshot: &SnapshotRow) -> Result<SnapshotRow> {
    let row = SnapshotRow { created_at: tx.now(), ..snapshot.clone() };
    let (known, stored) = tx.step("read a snapshot", |conn| {
        let known = one(conn, sql::SANDBOX_SNAPSHOT_GET, [&row.id], rows::snapshot)?;
        let stored =
            one(conn, sql::SNAPSHOT_PIECES_SIZE, [&row.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok((known, stored.unwrap_or((0, 0, -1))))
    })?;
    if known.is_some() {
        return Err(plan::id_is_taken(tx.operation));
    }
    plan::check_pieces(tx.operation, row.size_bytes, stored)?;
    tx.step("write a snapshot", |conn| {
        run(
            conn,
            sql::SANDBOX_SNAPSHOT_INSERT,
            params![
                row.id,
                row.tenant,
                row.owner,
                row.name,
                row.sandbox,
                row.image,
                row.provider,
                plan::number(row.size_bytes),
                row.sha256,
                row.created_at.as_millis(),
            ],
        )
    })?;
    Ok(row)
}

#[async_trait]
impl SandboxStore for Sqlite {
    async fn spawn_terms(
        &self,
        tenant: &str,
        owner: Option<&str>,
        tenant_wide: &str,
        template: Option<&str>,
    ) -> Result<SpawnTerms> {
        let (tenant, owner) = (tenant.to_owned(), owner.map(ToOwned::to_owned));
        let (tenant_wide, template) = (tenant_wide.to_owned(), template.map(ToOwned::to_owned));
        self.read("read the terms of a sandbox", move |tx| {
            let template = match &template {
                Some(name) => one(tx, sql::SANDBOX_TEMPLATE_GET, [&tenant, name], rows::template)?,
                None => None,
            };
            Ok(SpawnTerms {
                template,
                policies: all(tx, sql::SANDBOX_POLICIES_OF_TENANT, params![tenant, plan::SETTINGS], rows::policy)?,
                quotas: quotas_of(tx, &tenant, owner.as_deref(), &tenant_wide)?,
                workers: all(tx, sql::SANDBOX_WORKERS_LIST, [], rows::worker)?,
            })
        })
        .await
    }

    async fn sandbox_route(&self, id: &str, tenant_wide: &str) -> Result<Option<SandboxRoute>> {
        let (id, tenant_wide) = (id.to_owned(), tenant_wide.to_owned());
        self.read("read the way to a sandbox", move |tx| {
            let Some(row) = rows::get_sandbox(tx, &id)? else { return Ok(None) };
            let worker = match &row.worker {
                Some(worker) => one(tx, sql::SANDBOX_WORKER_BARE, [worker], rows::worker)?,
                None => None,
            };
            let lease = leases::get(tx, &Resource::new(ResourceType::Sandbox, Arc::clone(&row.id)))?;
            let quotas = quotas_of(tx, &row.tenant, row.owner.as_deref(), &tenant_wide)?;
            Ok(Some(SandboxRoute { row, worker, lease: lease.filter(|lease| lease.released_at.is_none()), quotas }))
        })
        .await
    }

    async fn place_sandbox(
        &self,
        new: NewSandbox,
        caps: Caps,
        rules: &Rules,
    ) -> Result<std::result::Result<Placed, NotPlaced>> {
        let operation = "place a sandbox";
        plan::check_spec(operation, &new.spec)?;
        let rules = rules.clone();
        self.transact(Lane::Work, operation, move |tx| place::place(tx, &new, caps, &rules)).await
    }

    async fn place_again(
        &self,
        id: &str,
        lease: LeaseTerms,
        caps: Caps,
        rules: &Rules,
    ) -> Result<std::result::Result<Placed, NotPlaced>> {
        let (id, rules) = (id.to_owned(), rules.clone());
        self.transact(Lane::Work, "place a sandbox", move |tx| place::place_again(tx, &id, lease, caps, &rules)).await
    }

    async fn fleet(&self, tenant: &str, owner: Option<&str>) -> Result<(Fleet, Timestamp)> {
        let (tenant, owner, now) = (tenant.to_owned(), owner.map(ToOwned::to_owned), self.clock.read_process().now);
        self.read("read the fleet", move |tx| Ok((place::fleet(tx, &tenant, owner.as_deref())?, now))).await
    }

    async fn change_sandbox(
        &self,
        id: &str,
        change: &Change,
        events: Vec<NewSandboxEvent>,
    ) -> Result<Option<std::result::Result<Changed, Refused>>> {
        let (id, change) = (id.to_owned(), change.clone());
        self.transact(Lane::Work, "change a sandbox", move |tx| place::change(tx, &id, &change, &events)).await
    }

    async fn claim_warm(
        &self,
        pool: &str,
        claim: &Change,
        key: Option<RequestKey>,
        caps: Caps,
        rules: &Rules,
        told: Told,
    ) -> Result<Option<std::result::Result<Changed, NotPlaced>>> {
        let claim = place::Claim { pool: pool.to_owned(), change: claim.clone(), key, told };
        let rules = rules.clone();
        self.transact(Lane::Work, "claim a warm sandbox", move |tx| place::claim(tx, &claim, caps, &rules)).await
    }

    async fn sandbox(&self, id: &str, reach: &Reach) -> Result<Option<Sandbox>> {
        let id = id.to_owned();
        let found = self.read("read a sandbox", move |tx| rows::get_sandbox(tx, &id)).await?;
        Ok(found.filter(|row| row.is_covered(reach)))
    }

    async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Page<Sandbox>> {
        let (own, limit) = (filter.clone(), filter.start().2);
        let found = self.read("list sandboxes", move |tx| list(tx, &own)).await?;
        Ok(page(found, limit, SandboxFilter::cursor))
    }

    async fn count_sandboxes(&self) -> Result<Vec<(State, String, Option<WorkerId>, u64)>> {
        let read = |row: &rusqlite::Row<'_>| {
            let state: String = row.get(0)?;
            let count = row.get::<_, i64>(3)?.unsigned_abs();
            Ok((State::parse(&state).unwrap_or(State::Error), row.get(1)?, row.get(2)?, count))
        };
        self.read("count sandboxes", move |tx| all(tx, sql::SANDBOXES_COUNT, [], read)).await
    }

    async fn count_active(&self, tenant: &str, owner: Option<&str>) -> Result<Counts> {
        let (tenant, owner) = (tenant.to_owned(), owner.map(ToOwned::to_owned));
        self.read("count sandboxes", move |tx| place::counts(tx, &tenant, owner.as_deref())).await
    }

    async fn count_warm(&self) -> Result<Vec<(Arc<str>, u64, u64)>> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs(), row.get::<_, i64>(2)?.unsigned_abs()))
        };
        self.read("count warm sandboxes", move |tx| all(tx, sql::SANDBOXES_COUNT_WARM, [], read)).await
    }

    async fn prune_sandboxes(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let keys = self.clock.read_process().now.plus(-KEY_KEPT_MS).as_millis();
        self.write("prune sandboxes", move |tx| {
            run(tx, sql::SANDBOX_KEYS_PRUNE, [keys, limit as i64])?;
            run(tx, sql::SANDBOXES_PRUNE, [before.as_millis(), limit as i64])
        })
        .await
    }

    async fn count_sandbox_leases(&self) -> Result<(u64, u64)> {
        let now = self.millis();
        let read =
            |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs()));
        let found = self.read("count leases", move |tx| one(tx, sql::SANDBOXES_LEASES, [now], read)).await?;
        Ok(found.unwrap_or_default())
    }

    async fn sandbox_lease(&self, id: &str) -> Result<Option<ResourceLease>> {
        let resource = Resource::new(ResourceType::Sandbox, id);
        let found = self.read("read a lease", move |tx| leases::get(tx, &resource)).await?;
        Ok(found.filter(|lease| lease.released_at.is_none()))
    }

    async fn queued_spawns(&self) -> Result<Vec<QueuedSpawn>> {
        self.read("read the queue of sandboxes", |tx| {
            all(tx, sql::SPAWN_QUEUE_LIST, [SANDBOX_PAGE as i64], rows::queued)
        })
        .await
    }

    async fn leave_queue(&self, id: &str) -> Result<bool> {
        let id = id.to_owned();
        self.write("take a sandbox out of the queue", move |tx| place::leave_queue(tx, &id)).await
    }

    async fn worker_beat(&self, beat: &Beat) -> Result<Beaten> {
        let operation = "record a heartbeat";
        plan::check_inventory(operation, beat)?;
        let own = beat.clone();
        self.transact(Lane::Heartbeat, operation, move |tx| beat_of(tx, &own)).await
    }

    async fn count_orphans(&self, worker: &str, runtimes: &[Arc<str>]) -> Result<()> {
        let (worker, runtimes) = (worker.to_owned(), runtimes.to_vec());
        self.write_in(Lane::Heartbeat, "count orphans", move |tx| {
            let Some(mut found) = rows::get_worker(tx, &worker)? else { return Ok(()) };
            if plan::count_orphans(&mut found.inventory, &runtimes) {
                run(tx, sql::SANDBOX_WORKER_INVENTORY, params![worker, plan::json(&found.inventory)])?;
            }
            Ok(())
        })
        .await
    }

    async fn sandbox_worker(&self, id: &str) -> Result<Option<Worker>> {
        let id = id.to_owned();
        self.read("read a worker", move |tx| rows::get_worker(tx, &id)).await
    }

    async fn sandbox_workers(&self) -> Result<Vec<Worker>> {
        self.read("list workers", |tx| all(tx, sql::SANDBOX_WORKERS_LIST, [], rows::worker)).await
    }

    async fn desire_worker(&self, id: &str, status: &str, reason: Option<&str>) -> Result<Option<Worker>> {
        let (id, status, now) = (id.to_owned(), status.to_owned(), self.millis());
        let reason = reason.map(|reason| without_nul(reason).into_owned());
        self.write("drain a worker", move |tx| {
            one(tx, sql::SANDBOX_WORKER_DESIRE, params![id, status, reason, now], rows::worker)
        })
        .await
    }

    async fn remove_worker(&self, id: &str, keep: bool) -> Result<bool> {
        let id = id.to_owned();
        let sql = if keep { sql::SANDBOX_WORKER_BAR } else { sql::SANDBOX_WORKER_DELETE };
        self.write("remove a worker", move |tx| Ok(run(tx, sql, [id])? > 0)).await
    }

    async fn create_template(&self, tenant: &str, name: &str, body: &str) -> Result<Option<TemplateRow>> {
        let (tenant, name, body, now) = (tenant.to_owned(), name.to_owned(), body.to_owned(), self.millis());
        self.write("create a template", move |tx| {
            one(tx, sql::SANDBOX_TEMPLATE_INSERT, params![tenant, name, body, now], rows::template)
        })
        .await
    }

    async fn update_template(&self, tenant: &str, name: &str, body: &str) -> Result<Option<TemplateRow>> {
        let (tenant, name, body, now) = (tenant.to_owned(), name.to_owned(), body.to_owned(), self.millis());
        self.write("update a template", move |tx| {
            one(tx, sql::SANDBOX_TEMPLATE_UPDATE, params![tenant, name, body, now], rows::template)
        })
        .await
    }

    async fn template(&self, tenant: &str, name: &str) -> Result<Option<TemplateRow>> {
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        self.read("read a template", move |tx| one(tx, sql::SANDBOX_TEMPLATE_GET, [tenant, name], rows::template)).await
    }

    async fn templates(&self, tenant: Option<&str>) -> Result<Vec<TemplateRow>> {
        let tenant = tenant.map(ToOwned::to_owned);
        self.read("list templates", move |tx| {
            all(tx, sql::SANDBOX_TEMPLATES_LIST, params![tenant, plan::SETTINGS], rows::template)
        })
        .await
    }

    async fn delete_template(&self, tenant: &str, name: &str) -> Result<bool> {
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        self.write("delete a template", move |tx| Ok(run(tx, sql::SANDBOX_TEMPLATE_DELETE, [tenant, name])? > 0)).await
    }

    async fn put_quota(&self, quota: &QuotaRow) -> Result<QuotaRow> {
        let (own, now) = (quota.clone(), self.millis());
        self.write("set a quota", move |tx| {
            let most = plan::number(own.max_sandboxes);
            let params = params![own.tenant, own.owner, most, own.max_ttl_ms, own.max_exec_timeout_ms, now];
            tx.prepare_cached(sql::SANDBOX_QUOTA_PUT)?.query_row(params, rows::quota)
        })
        .await
    }

    async fn quota(&self, tenant: &str, owner: &str) -> Result<Option<QuotaRow>> {
        let (tenant, owner) = (tenant.to_owned(), owner.to_owned());
        self.read("read a quota", move |tx| one(tx, sql::SANDBOX_QUOTA_GET, [tenant, owner], rows::quota)).await
    }

    async fn quotas(&self, tenant: Option<&str>) -> Result<Vec<QuotaRow>> {
        let tenant = tenant.map(ToOwned::to_owned);
        self.read("list quotas", move |tx| {
            all(tx, sql::SANDBOX_QUOTAS_LIST, params![tenant, plan::SETTINGS], rows::quota)
        })
        .await
    }

    async fn delete_quota(&self, tenant: &str, owner: &str) -> Result<bool> {
        let (tenant, owner) = (tenant.to_owned(), owner.to_owned());
        self.write("delete a quota", move |tx| Ok(run(tx, sql::SANDBOX_QUOTA_DELETE, [tenant, owner])? > 0)).await
    }

    async fn create_policy(&self, policy: &PolicyRow) -> Result<PolicyRow> {
        let (own, now, operation) = (policy.clone(), self.millis(), "create a policy");
        let made = self.write(operation, move |tx| {
            let params = params![own.id, own.tenant, own.resource_type, own.effect, own.pattern, own.priority, now];
            one(tx, sql::SANDBOX_POLICY_INSERT, params, rows::policy)
        });
        made.await?.ok_or_else(|| plan::id_is_taken(operation))
    }

    async fn policies(&self, tenant: &str) -> Result<Vec<PolicyRow>> {
        let tenant = tenant.to_owned();
        self.read("list policies", move |tx| {
            all(tx, sql::SANDBOX_POLICIES_OF_TENANT, params![tenant, plan::SETTINGS], rows::policy)
        })
        .await
    }

    async fn delete_policy(&self, tenant: Option<&str>, id: &str) -> Result<bool> {
        let (tenant, id) = (tenant.map(ToOwned::to_owned), id.to_owned());
        self.write("delete a policy", move |tx| Ok(run(tx, sql::SANDBOX_POLICY_DELETE, params![id, tenant])? > 0)).await
    }

    async fn put_snapshot_piece(&self, id: &str, index: u32, bytes: Vec<u8>) -> Result<()> {
        let operation = "store a piece of a snapshot";
        plan::check_piece(operation, &bytes)?;
        let (id, now) = (id.to_owned(), self.millis());
        self.write(operation, move |tx| run(tx, sql::SNAPSHOT_PIECE_PUT, params![id, index, bytes, now]).map(drop))
            .await
    }

    async fn record_snapshot(&self, snapshot: &SnapshotRow) -> Result<SnapshotRow> {
        let own = snapshot.clone();
        self.transact(Lane::Work, "record a snapshot", move |tx| record_snapshot(tx, &own)).await
    }

    async fn snapshot_piece(&self, id: &str, index: u32) -> Result<Option<Vec<u8>>> {
        let id = id.to_owned();
        self.read("read a piece of a snapshot", move |tx| {
            one(tx, sql::SNAPSHOT_PIECE_GET, params![id, index], |row| row.get(0))
        })
        .await
    }

    async fn snapshot(&self, id: &str, reach: &Reach) -> Result<Option<SnapshotRow>> {
        let id = id.to_owned();
        let found =
            self.read("read a snapshot", move |tx| one(tx, sql::SANDBOX_SNAPSHOT_GET, [id], rows::snapshot)).await?;
        Ok(found.filter(|row| reach.covers(&row.tenant, row.owner.as_deref())))
    }

    async fn snapshots(&self, reach: &Reach, sandbox: Option<&str>, limit: usize) -> Result<Vec<SnapshotRow>> {
        let (reach, sandbox) = (reach.clone(), sandbox.map(ToOwned::to_owned));
        let limit = limit.min(SANDBOX_PAGE) as i64;
        self.read("list snapshots", move |tx| match sandbox {
            None => all(tx, sql::SANDBOX_SNAPSHOTS_LIST, params![reach.tenant(), reach.owner(), limit], rows::snapshot),
            Some(sandbox) => {
                let params = params![reach.tenant(), reach.owner(), limit, sandbox];
                all(tx, sql::SANDBOX_SNAPSHOTS_OF_SANDBOX, params, rows::snapshot)
            }
        })
        .await
    }

    async fn delete_snapshot(&self, id: &str, reach: &Reach) -> Result<bool> {
        let (id, reach) = (id.to_owned(), reach.clone());
        self.transact(Lane::Work, "delete a snapshot", move |tx| {
            let found =
                tx.step("read a snapshot", |conn| one(conn, sql::SANDBOX_SNAPSHOT_GET, [&id], rows::snapshot))?;
            if !found.is_some_and(|row| reach.covers(&row.tenant, row.owner.as_deref())) {
                return Ok(false);
            }
            tx.step("delete a snapshot", |conn| run(conn, sql::SANDBOX_SNAPSHOT_DELETE, [&id]))?;
            tx.step("delete pieces of a snapshot", |conn| run(conn, sql::SNAPSHOT_PIECES_DELETE, [&id]))?;
            Ok(true)
        })
        .await
    }

    async fn snapshot_bytes(&self, tenant: &str) -> Result<u64> {
        let tenant = tenant.to_owned();
        let sum = self.read("add up snapshots", move |tx| {
            tx.prepare_cached(sql::SANDBOX_SNAPSHOTS_BYTES)?.query_row([tenant], |row| row.get::<_, i64>(0))
        });
        Ok(sum.await?.unsigned_abs())
    }

    async fn prune_snapshot_pieces(&self) -> Result<usize> {
        let before = self.clock.read_process().now.plus(-PIECES_KEPT_MS).as_millis();
        self.write("prune pieces of snapshots", move |tx| {
            let abandoned = all(tx, sql::SNAPSHOT_PIECES_ABANDONED, [before, plan::ABANDONED], |row| row.get(0))?;
            abandoned.iter().map(|id: &String| run(tx, sql::SNAPSHOT_PIECES_DELETE, [id])).sum()
        })
        .await
    }

    async fn record_sandbox_events(&self, events: Vec<NewSandboxEvent>) -> Result<()> {
        let now = self.clock.read_process().now;
        self.write("record events of sandboxes", move |tx| rows::insert_events(tx, &events, now)).await
    }

    async fn sandbox_events(&self, after: i64, limit: usize) -> Result<Vec<SandboxEvent>> {
        let limit = limit.min(SANDBOX_PAGE) as i64;
        self.read("read events of sandboxes", move |tx| all(tx, sql::SANDBOX_EVENTS_AFTER, [after, limit], rows::event))
            .await
    }

    async fn sandbox_event_bounds(&self) -> Result<(i64, i64)> {
        self.read("read events of sandboxes", |tx| {
            tx.prepare_cached(sql::SANDBOX_EVENT_BOUNDS)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        })
        .await
    }

    async fn prune_sandbox_events(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.write("prune events of sandboxes", move |tx| {
            run(tx, sql::SANDBOX_EVENTS_PRUNE, [before.as_millis(), limit as i64])
        })
        .await
    }
}
