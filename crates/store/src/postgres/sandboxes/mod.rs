//! What is kept about sandboxes.

mod place;
mod rows;

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::WorkerId;
use tenure_core::command::Reach;
use tenure_core::sandbox::placement::{Caps, Counts, Fleet, Rules, Worker};
use tenure_core::sandbox::{Change, Refused, Sandbox, State};
use tenure_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::conn::{Conn, failed};
use super::deal::{Ask, Deal, Params, Write, clock};
use super::rows::{Time, text, text_if};
use super::{Postgres, leases, sql};
use crate::error::StoreError;
use crate::identity::{page, without_nul};
use crate::leases::{ResourceLease, ResourceType};
use crate::model::Page;
use crate::sandboxes::plan;
use crate::sandboxes::{
    Beat, Beaten, Changed, KEY_KEPT_MS, LeaseTerms, NewSandbox, NewSandboxEvent, NotPlaced, PIECES_KEPT_MS, Placed,
    PolicyRow, QueuedSpawn, QuotaRow, Quotas, RequestKey, SANDBOX_PAGE, SandboxEvent, SandboxFilter, SandboxRoute,
    SandboxStore, Search, SnapshotRow, SpawnTerms, TemplateRow, Told,
};

type Result<T> = std::result::Result<T, StoreError>;

impl Postgres {
    /// Reads with one statement.
    pub(super) async fn list<T>(
        &self,
        operation: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        read: impl Fn(&Row) -> super::rows::Result<T>,
    ) -> Result<Vec<T>> {
        let conn = Conn::get(&self.read).await?;
        self.read_all(operation, conn, sql, params, read).await
    }

    /// Writes with one statement, which is a transaction by itself, and returns its first row.
    pub(super) async fn put<T>(
        &self,
        operation: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        read: impl Fn(&Row) -> super::rows::Result<T>,
    ) -> Result<Option<T>> {
        let conn = Conn::get(&self.work).await?;
        let found = self.write_one(operation, conn, sql, params).await?;
        found.first().map(read).transpose().map_err(|error| failed(operation, error))
    }

    /// Writes with one statement, and returns how many rows it returned.
    pub(super) async fn run(
        &self,
        operation: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<usize> {
        let conn = Conn::get(&self.work).await?;
        Ok(self.write_one(operation, conn, sql, params).await?.len())
    }

    /// The time, for rows that say when they were written.
    pub(super) async fn written_at(&self) -> Result<Timestamp> {
        let conn = Conn::get(&self.work).await?;
        let now = self.reading(&conn).await?;
        conn.give_back();
        Ok(now)
    }
}

async fn beat_of(store: &Postgres, beat: &Beat) -> Result<Beaten> {
    let id = &*beat.worker;
    let named: Vec<&str> = beat.inventory.iter().flatten().map(|held| &*held.sandbox_id).collect();
    let (frozen, ahead_ms) = store.clock.settings();
    let frozen = frozen.map(Time);
    let mut asks = vec![
        Ask(sql::SANDBOX_WORKER_ADD, vec![&id, &frozen, &ahead_ms]),
        Ask(sql::SANDBOX_WORKER_LOCK, vec![&id]),
        clock(),
    ];
    if !named.is_empty() {
        asks.push(Ask(sql::SANDBOXES_NAMED, vec![&named]));
    }
    let (deal, mut answers) = Deal::begin(store, &store.heartbeat, "record a heartbeat", asks).await?;
    let is_new = answers.one(|row| text(row, 0))?.is_some();
    let known = answers.one(rows::worker)?;
    let now = answers.now(store)?;
    let rows = answers.all(rows::sandbox)?;
    // Another transaction removed the row in between.
    let Some(known) = known else { return Err(StoreError::Contention) };
    let before = Some(known.clone()).filter(|_| !is_new);
    if before.as_ref().is_some_and(|before| plan::is_overtaken(before, beat)) {
        deal.end().await?;
        return Ok(Beaten { worker: known, before, is_ignored: true, rows });
    }
    let worker = plan::after_beat(&known, beat, now);
    let columns = plan::worker_json(&worker);
    let [providers, capabilities, capacity, inventory, held] = &columns;
    let texts = [&worker.hostname, &worker.status, &worker.boot_id].map(|text| without_nul(text));
    let [hostname, status, boot_id] = &texts;
    let (seq, at) = (plan::number(worker.seq), Time(now));
    let params: Params<'_> =
        vec![&id, hostname, status, providers, capabilities, capacity, boot_id, &seq, inventory, held, &at];
    deal.commit(vec![Write("write a worker", sql::SANDBOX_WORKER_SAVE, params)]).await?;
    Ok(Beaten { worker, before, is_ignored: false, rows })
}

async fn record_snapshot(store: &Postgres, snapshot: &SnapshotRow) -> Result<SnapshotRow> {
    let id = &*snapshot.id;
    let asks = vec![clock(), Ask(sql::SANDBOX_SNAPSHOT_GET, vec![&id]), Ask(sql::SNAPSHOT_PIECES_SIZE, vec![&id])];
    let (deal, mut answers) = Deal::begin(store, &store.work, "record a snapshot", asks).await?;
    let now = answers.now(store)?;
    let known = answers.one(rows::snapshot)?;
    let stored = answers.one(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))?;
    let operation = deal.operation;
    let check = match known {
        Some(_) => Err(plan::id_is_taken(operation)),
        None => plan::check_pieces(operation, snapshot.size_bytes, stored.unwrap_or((0, 0, -1))),
    };
    if let Err(error) = check {
        deal.end().await?;
        return Err(error);
    }
    let row = SnapshotRow { created_at: now, ..snapshot.clone() };
    let (tenant, owner, sandbox) = (&*row.tenant, row.owner.as_deref(), &*row.sandbox);
    let (size, at) = (plan::number(row.size_bytes), Time(now));
    let params: Params<'_> =
        vec![&id, &tenant, &owner, &row.name, &sandbox, &row.image, &row.provider, &size, &row.sha256, &at];
    deal.commit(vec![Write("write a snapshot", sql::SANDBOX_SNAPSHOT_INSERT, params)]).await?;
    Ok(row)
}

#[async_trait]
impl SandboxStore for Postgres {
    async fn spawn_terms(
        &self,
        tenant: &str,
        owner: Option<&str>,
        tenant_wide: &str,
        template: Option<&str>,
    ) -> Result<SpawnTerms> {
        // What is not asked for has a name that nothing has.
        let (owner, template) = (owner.unwrap_or_default(), template.unwrap_or_default());
        let asks = vec![
            Ask(sql::SANDBOX_TEMPLATE_GET, vec![&tenant, &template]),
            Ask(sql::SANDBOX_POLICIES_OF_TENANT, vec![&tenant, &plan::SETTINGS]),
            Ask(sql::SANDBOX_QUOTA_GET, vec![&tenant, &tenant_wide]),
            Ask(sql::SANDBOX_QUOTA_GET, vec![&tenant, &owner]),
            Ask(sql::SANDBOX_WORKERS_LIST, Vec::new()),
        ];
        let mut answers = Deal::look(self, &self.read, "read the terms of a sandbox", asks).await?;
        Ok(SpawnTerms {
            template: answers.one(rows::template)?,
            policies: answers.all(rows::policy)?,
            quotas: Quotas { of_tenant: answers.one(rows::quota)?, of_owner: answers.one(rows::quota)? },
            workers: answers.all(rows::worker)?,
        })
    }

    async fn sandbox_route(&self, id: &str, tenant_wide: &str) -> Result<Option<SandboxRoute>> {
        let (kinds, ids) = (vec![ResourceType::Sandbox.as_str()], vec![id]);
        let asks = vec![
            Ask(sql::SANDBOX_GET, vec![&id]),
            Ask(sql::SANDBOX_WORKER_OF, vec![&id]),
            Ask(sql::LEASES_GET, vec![&kinds, &ids]),
            Ask(sql::SANDBOX_QUOTA_OF_TENANT, vec![&id, &tenant_wide]),
            Ask(sql::SANDBOX_QUOTA_OF, vec![&id]),
        ];
        let mut answers = Deal::look(self, &self.read, "read the way to a sandbox", asks).await?;
        let Some(row) = answers.one(rows::sandbox)? else { return Ok(None) };
        // Placed on another worker between two questions: the lease tells, and the call is made again.
        let worker = answers.one(rows::worker)?.filter(|worker| Some(&worker.id) == row.worker.as_ref());
        let lease = answers.one(leases::lease)?.filter(|lease| lease.released_at.is_none());
        let quotas = Quotas { of_tenant: answers.one(rows::quota)?, of_owner: answers.one(rows::quota)? };
        Ok(Some(SandboxRoute { row, worker, lease, quotas }))
    }

    async fn place_sandbox(
        &self,
        new: NewSandbox,
        caps: Caps,
        rules: &Rules,
    ) -> Result<std::result::Result<Placed, NotPlaced>> {
        plan::check_spec("place a sandbox", &new.spec)?;
        place::place(self, &new, caps, rules).await
    }

    async fn place_again(
        &self,
        id: &str,
        lease: LeaseTerms,
        caps: Caps,
        rules: &Rules,
    ) -> Result<std::result::Result<Placed, NotPlaced>> {
        place::place_again(self, id, lease, caps, rules).await
    }

    async fn fleet(&self, tenant: &str, owner: Option<&str>) -> Result<(Fleet, Timestamp)> {
        place::fleet(self, &self.read, tenant, owner).await
    }

    async fn change_sandbox(
        &self,
        id: &str,
        change: &Change,
        events: Vec<NewSandboxEvent>,
    ) -> Result<Option<std::result::Result<Changed, Refused>>> {
        place::change(self, id, change, &events).await
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
        place::claim(self, pool, claim, key.as_ref(), caps, rules, told).await
    }

    async fn sandbox(&self, id: &str, reach: &Reach) -> Result<Option<Sandbox>> {
        let found = self.list("read a sandbox", sql::SANDBOX_GET, &[&id], rows::sandbox).await?;
        Ok(found.into_iter().next().filter(|row| row.is_covered(reach)))
    }

    async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Page<Sandbox>> {
        let (at, id, limit) = filter.start();
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        let sql = match filter.search() {
            Search::All => sql::SANDBOXES_LIST_ALL,
            Search::Time => sql::SANDBOXES_LIST,
            Search::Worker => sql::SANDBOXES_OF_WORKER,
            Search::End => sql::SANDBOXES_OVER,
            Search::Owner => sql::SANDBOXES_OF_OWNER,
            Search::Tenant => sql::SANDBOXES_OF_TENANT,
        };
        let params: [&(dyn ToSql + Sync); 9] = [
            &Time(at),
            &&*id,
            &Some(&states).filter(|states| !states.is_empty()),
            &filter.worker.as_deref(),
            &filter.expired_by.map(Time),
            &filter.changed_before.map(Time),
            &(limit as i64 + 1),
            &filter.reach.tenant(),
            &filter.reach.owner(),
        ];
        Ok(page(self.list("list sandboxes", sql, &params, rows::sandbox).await?, limit, SandboxFilter::cursor))
    }

    async fn count_sandboxes(&self) -> Result<Vec<(State, String, Option<WorkerId>, u64)>> {
        let read = |row: &Row| {
            let state = State::parse(row.try_get(0)?).unwrap_or(State::Error);
            Ok((state, row.try_get(1)?, text_if(row, 2)?, rows::count(row, 3)?))
        };
        self.list("count sandboxes", sql::SANDBOXES_COUNT, &[], read).await
    }

    async fn count_active(&self, tenant: &str, owner: Option<&str>) -> Result<Counts> {
        place::counts(self, &self.read, tenant, owner).await
    }

    async fn count_warm(&self) -> Result<Vec<(Arc<str>, u64, u64)>> {
        let read = |row: &Row| Ok((text(row, 0)?, rows::count(row, 1)?, rows::count(row, 2)?));
        self.list("count warm sandboxes", sql::SANDBOXES_COUNT_WARM, &[], read).await
    }

    async fn prune_sandboxes(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let keys = Time(self.written_at().await?.plus(-KEY_KEPT_MS));
        let operation = "prune sandboxes";
        self.run(operation, sql::SANDBOX_KEYS_PRUNE, &[&keys, &(limit as i64)]).await?;
        self.run(operation, sql::SANDBOXES_PRUNE, &[&Time(before), &(limit as i64)]).await
    }

    async fn count_sandbox_leases(&self) -> Result<(u64, u64)> {
        let now = Time(crate::store::Store::now(self).await?);
        let read = |row: &Row| Ok((rows::count(row, 0)?, rows::count(row, 1)?));
        let found = self.list("count leases", sql::SANDBOXES_LEASES, &[&now], read).await?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    async fn sandbox_lease(&self, id: &str) -> Result<Option<ResourceLease>> {
        let (kinds, ids) = (vec![ResourceType::Sandbox.as_str()], vec![id]);
        let found = self.list("read a lease", sql::LEASES_GET, &[&kinds, &ids], leases::lease).await?;
        Ok(found.into_iter().next().filter(|lease| lease.released_at.is_none()))
    }

    async fn queued_spawns(&self) -> Result<Vec<QueuedSpawn>> {
        let limit = SANDBOX_PAGE as i64;
        self.list("read the queue of sandboxes", sql::SPAWN_QUEUE_LIST, &[&limit], rows::queued).await
    }

    async fn leave_queue(&self, id: &str) -> Result<bool> {
        Ok(self.run("take a sandbox out of the queue", sql::SPAWN_QUEUE_DELETE, &[&id]).await? > 0)
    }

    async fn worker_beat(&self, beat: &Beat) -> Result<Beaten> {
        plan::check_inventory("record a heartbeat", beat)?;
        // The row may be removed between its insert and its lock.
        match beat_of(self, beat).await {
            Err(StoreError::Contention) => beat_of(self, beat).await,
            other => other,
        }
    }

    async fn count_orphans(&self, worker: &str, runtimes: &[Arc<str>]) -> Result<()> {
        let asks = vec![Ask(sql::SANDBOX_WORKER_LOCK, vec![&worker])];
        let (deal, mut answers) = Deal::begin(self, &self.heartbeat, "count orphans", asks).await?;
        let mut inventory = answers.one(rows::worker)?.map_or_else(Vec::new, |worker| worker.inventory);
        if !plan::count_orphans(&mut inventory, runtimes) {
            return deal.end().await;
        }
        let inventory = plan::json(&inventory);
        let params: Params<'_> = vec![&worker, &inventory];
        deal.commit(vec![Write("write a worker", sql::SANDBOX_WORKER_INVENTORY, params)]).await.map(drop)
    }

    async fn sandbox_worker(&self, id: &str) -> Result<Option<Worker>> {
        let found = self.list("read a worker", sql::SANDBOX_WORKER_GET, &[&id], rows::worker).await?;
        Ok(found.into_iter().next())
    }

    async fn sandbox_workers(&self) -> Result<Vec<Worker>> {
        self.list("list workers", sql::SANDBOX_WORKERS_LIST, &[], rows::worker).await
    }

    async fn desire_worker(&self, id: &str, status: &str, reason: Option<&str>) -> Result<Option<Worker>> {
        let (now, reason) = (Time(self.written_at().await?), reason.map(without_nul));
        self.put("drain a worker", sql::SANDBOX_WORKER_DESIRE, &[&id, &status, &reason, &now], rows::worker).await
    }

    async fn remove_worker(&self, id: &str, keep: bool) -> Result<bool> {
        let sql = if keep { sql::SANDBOX_WORKER_BAR } else { sql::SANDBOX_WORKER_DELETE };
        Ok(self.run("remove a worker", sql, &[&id]).await? > 0)
    }

    async fn create_template(&self, tenant: &str, name: &str, body: &str) -> Result<Option<TemplateRow>> {
        let now = Time(self.written_at().await?);
        let params: [&(dyn ToSql + Sync); 4] = [&tenant, &name, &body, &now];
        self.put("create a template", sql::SANDBOX_TEMPLATE_INSERT, &params, rows::template).await
    }

    async fn update_template(&self, tenant: &str, name: &str, body: &str) -> Result<Option<TemplateRow>> {
        let now = Time(self.written_at().await?);
        let params: [&(dyn ToSql + Sync); 4] = [&tenant, &name, &body, &now];
        self.put("update a template", sql::SANDBOX_TEMPLATE_UPDATE, &params, rows::template).await
    }

    async fn template(&self, tenant: &str, name: &str) -> Result<Option<TemplateRow>> {
        let found = self.list("read a template", sql::SANDBOX_TEMPLATE_GET, &[&tenant, &name], rows::template).await?;
        Ok(found.into_iter().next())
    }

    async fn templates(&self, tenant: Option<&str>) -> Result<Vec<TemplateRow>> {
        let params: [&(dyn ToSql + Sync); 2] = [&tenant, &plan::SETTINGS];
        self.list("list templates", sql::SANDBOX_TEMPLATES_LIST, &params, rows::template).await
    }

    async fn delete_template(&self, tenant: &str, name: &str) -> Result<bool> {
        Ok(self.run("delete a template", sql::SANDBOX_TEMPLATE_DELETE, &[&tenant, &name]).await? > 0)
    }

    async fn put_quota(&self, quota: &QuotaRow) -> Result<QuotaRow> {
        let (now, operation) = (Time(self.written_at().await?), "set a quota");
        let most = plan::number(quota.max_sandboxes);
        let params: [&(dyn ToSql + Sync); 6] =
            [&&*quota.tenant, &&*quota.owner, &most, &quota.max_ttl_ms, &quota.max_exec_timeout_ms, &now];
        let put = self.put(operation, sql::SANDBOX_QUOTA_PUT, &params, rows::quota).await?;
        put.ok_or_else(|| StoreError::Failed { operation, source: "the store returned no row".into() })
    }

    async fn quota(&self, tenant: &str, owner: &str) -> Result<Option<QuotaRow>> {
        let found = self.list("read a quota", sql::SANDBOX_QUOTA_GET, &[&tenant, &owner], rows::quota).await?;
        Ok(found.into_iter().next())
    }

    async fn quotas(&self, tenant: Option<&str>) -> Result<Vec<QuotaRow>> {
        self.list("list quotas", sql::SANDBOX_QUOTAS_LIST, &[&tenant, &plan::SETTINGS], rows::quota).await
    }

    async fn delete_quota(&self, tenant: &str, owner: &str) -> Result<bool> {
        Ok(self.run("delete a quota", sql::SANDBOX_QUOTA_DELETE, &[&tenant, &owner]).await? > 0)
    }

    async fn create_policy(&self, policy: &PolicyRow) -> Result<PolicyRow> {
        let (now, operation) = (Time(self.written_at().await?), "create a policy");
        let params: [&(dyn ToSql + Sync); 7] = [
            &&*policy.id,
            &policy.tenant.as_deref(),
            &policy.resource_type,
            &policy.effect,
            &policy.pattern,
            &policy.priority,
            &now,
        ];
        let made = self.put(operation, sql::SANDBOX_POLICY_INSERT, &params, rows::policy).await?;
        made.ok_or_else(|| plan::id_is_taken(operation))
    }

    async fn policies(&self, tenant: &str) -> Result<Vec<PolicyRow>> {
        let params: [&(dyn ToSql + Sync); 2] = [&tenant, &plan::SETTINGS];
        self.list("list policies", sql::SANDBOX_POLICIES_OF_TENANT, &params, rows::policy).await
    }

    async fn delete_policy(&self, tenant: Option<&str>, id: &str) -> Result<bool> {
        Ok(self.run("delete a policy", sql::SANDBOX_POLICY_DELETE, &[&id, &tenant]).await? > 0)
    }

    async fn put_snapshot_piece(&self, id: &str, index: u32, bytes: Vec<u8>) -> Result<()> {
        let operation = "store a piece of a snapshot";
        plan::check_piece(operation, &bytes)?;
        let now = Time(self.written_at().await?);
        let params: [&(dyn ToSql + Sync); 4] = [&id, &i64::from(index), &bytes, &now];
        self.run(operation, sql::SNAPSHOT_PIECE_PUT, &params).await.map(drop)
    }

    async fn record_snapshot(&self, snapshot: &SnapshotRow) -> Result<SnapshotRow> {
        record_snapshot(self, snapshot).await
    }

    async fn snapshot_piece(&self, id: &str, index: u32) -> Result<Option<Vec<u8>>> {
        let params: [&(dyn ToSql + Sync); 2] = [&id, &i64::from(index)];
        let found =
            self.list("read a piece of a snapshot", sql::SNAPSHOT_PIECE_GET, &params, |row| row.try_get(0)).await?;
        Ok(found.into_iter().next())
    }

    async fn snapshot(&self, id: &str, reach: &Reach) -> Result<Option<SnapshotRow>> {
        let found = self.list("read a snapshot", sql::SANDBOX_SNAPSHOT_GET, &[&id], rows::snapshot).await?;
        Ok(found.into_iter().next().filter(|row| reach.covers(&row.tenant, row.owner.as_deref())))
    }

    async fn snapshots(&self, reach: &Reach, sandbox: Option<&str>, limit: usize) -> Result<Vec<SnapshotRow>> {
        let (tenant, owner, limit) = (reach.tenant(), reach.owner(), limit.min(SANDBOX_PAGE) as i64);
        let params: [&(dyn ToSql + Sync); 4] = [&tenant, &owner, &limit, &sandbox];
        let operation = "list snapshots";
        match sandbox {
            Some(_) => self.list(operation, sql::SANDBOX_SNAPSHOTS_OF_SANDBOX, &params, rows::snapshot).await,
            None => self.list(operation, sql::SANDBOX_SNAPSHOTS_LIST, &params[..3], rows::snapshot).await,
        }
    }

    async fn delete_snapshot(&self, id: &str, reach: &Reach) -> Result<bool> {
        let asks = vec![Ask(sql::SANDBOX_SNAPSHOT_GET, vec![&id])];
        let (deal, mut answers) = Deal::begin(self, &self.work, "delete a snapshot", asks).await?;
        let found = answers.one(rows::snapshot)?;
        if !found.is_some_and(|row| reach.covers(&row.tenant, row.owner.as_deref())) {
            deal.end().await?;
            return Ok(false);
        }
        let delete = |sql| Write("delete a snapshot", sql, vec![&id as &(dyn ToSql + Sync)]);
        deal.commit(vec![delete(sql::SANDBOX_SNAPSHOT_DELETE), delete(sql::SNAPSHOT_PIECES_DELETE)]).await?;
        Ok(true)
    }

    async fn snapshot_bytes(&self, tenant: &str) -> Result<u64> {
        let read = |row: &Row| rows::count(row, 0);
        let sum = self.list("add up snapshots", sql::SANDBOX_SNAPSHOTS_BYTES, &[&tenant], read).await?;
        Ok(sum.into_iter().next().unwrap_or_default())
    }

    async fn prune_snapshot_pieces(&self) -> Result<usize> {
        let operation = "prune pieces of snapshots";
        let before = Time(self.written_at().await?.plus(-PIECES_KEPT_MS));
        let params: [&(dyn ToSql + Sync); 2] = [&before, &plan::ABANDONED];
        let read = |row: &Row| row.try_get::<_, String>(0);
        let mut removed = 0;
        for id in self.list(operation, sql::SNAPSHOT_PIECES_ABANDONED, &params, read).await? {
            removed += self.run(operation, sql::SNAPSHOT_PIECES_DELETE, &[&id]).await?;
        }
        Ok(removed)
    }

    async fn record_sandbox_events(&self, events: Vec<NewSandboxEvent>) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        let (deal, mut answers) = Deal::begin(self, &self.work, "record events of sandboxes", vec![clock()]).await?;
        let events = place::Events::of(&events, answers.now(self)?);
        let mut writes = Vec::new();
        events.write(&mut writes);
        deal.commit(writes).await.map(drop)
    }

    async fn sandbox_events(&self, after: i64, limit: usize) -> Result<Vec<SandboxEvent>> {
        let limit = limit.min(SANDBOX_PAGE) as i64;
        self.list("read events of sandboxes", sql::SANDBOX_EVENTS_AFTER, &[&after, &limit], rows::event).await
    }

    async fn sandbox_event_bounds(&self) -> Result<(i64, i64)> {
        let read = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        let found = self.list("read events of sandboxes", sql::SANDBOX_EVENT_BOUNDS, &[], read).await?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    async fn prune_sandbox_events(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let params: [&(dyn ToSql + Sync); 2] = [&Time(before), &(limit as i64)];
        self.run("prune events of sandboxes", sql::SANDBOX_EVENTS_PRUNE, &params).await
    }
}
