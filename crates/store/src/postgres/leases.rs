//! Leases on resources other than tasks, among all control planes of a database.
//!
//! A statement may wait for the lock on a row. It reads the clock after that, in the server.

use async_trait::async_trait;
use tenure_core::lease::Lease;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Fence, LeaseToken};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::conn::{Conn, Pool, failed};
use super::load::query;
use super::rows::{self, Time};
use super::{Postgres, sql};
use crate::error::StoreError;
use crate::leases::{Holder, LeaseRefusal, LeaseStore, Resource, ResourceLease, ResourceType, held, lost};
use crate::store::Store;

pub fn lease(row: &Row) -> rows::Result<ResourceLease> {
    Ok(ResourceLease {
        resource: Resource {
            kind: ResourceType::parse(row.try_get(0)?).unwrap_or(ResourceType::System),
            id: rows::text(row, 1)?,
        },
        lease: Lease {
            holder: rows::text(row, 2)?,
            token: LeaseToken::from_u128(row.try_get::<_, Uuid>(3)?.as_u128()),
            generation: Fence(row.try_get::<_, i64>(4)?.cast_unsigned()),
            expires_at: rows::time(row, 7)?,
        },
        acquired_at: rows::time(row, 5)?,
        renewed_at: rows::time(row, 6)?,
        released_at: rows::time_if(row, 8)?,
    })
}

impl Postgres {
    /// One statement that changes leases, and then the leases themselves: what they are now says why one was refused.
    async fn change_leases(
        &self,
        pool: &Pool,
        operation: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        resources: &[Resource],
    ) -> Result<(Vec<ResourceLease>, Vec<ResourceLease>), StoreError> {
        self.faults.before(operation)?;
        let fail = |error| failed(operation, error);
        let conn = Conn::get(pool).await?;
        let changed = query(&conn, sql, params).await.map_err(fail)?;
        let changed = changed.iter().map(lease).collect::<rows::Result<Vec<_>>>().map_err(fail)?;
        let mut found = Vec::new();
        if changed.len() < resources.len() {
            let (kinds, ids) = names(resources);
            let rows = query(&conn, sql::LEASES_GET, &[&kinds, &ids]).await.map_err(fail)?;
            found = rows.iter().map(lease).collect::<rows::Result<Vec<_>>>().map_err(fail)?;
        }
        conn.give_back();
        self.faults.after(operation)?;
        Ok((changed, found))
    }
}

/// Types whose renewals keep the generation.
pub fn keeps_generation() -> Vec<&'static str> {
    ResourceType::ALL.iter().filter(|kind| kind.step() == 0).map(|kind| kind.as_str()).collect()
}

fn names(resources: &[Resource]) -> (Vec<&'static str>, Vec<&str>) {
    resources.iter().map(|resource| (resource.kind.as_str(), &*resource.id)).unzip()
}

fn of(leases: &[ResourceLease], resource: &Resource) -> Option<ResourceLease> {
    leases.iter().find(|lease| lease.resource == *resource).cloned()
}

#[async_trait]
impl LeaseStore for Postgres {
    async fn acquire_leases(
        &self,
        resources: &[Resource],
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Vec<Result<ResourceLease, LeaseRefusal>>, StoreError> {
        let (kinds, ids) = names(resources);
        let keep = keeps_generation();
        let token = Uuid::from_u128(holder.token.reveal());
        let (frozen, ahead_ms) = self.clock.settings();
        let params: [&(dyn ToSql + Sync); 8] =
            [&kinds, &ids, &keep, &&*holder.name, &token, &ttl_ms, &frozen.map(Time), &ahead_ms];
        let (acquired, found) =
            self.change_leases(&self.work, "acquire leases", sql::LEASES_ACQUIRE, &params, resources).await?;
        let answer = |resource| of(&acquired, resource).ok_or_else(|| held(of(&found, resource)));
        Ok(resources.iter().map(answer).collect())
    }

    async fn renew_lease(
        &self,
        resource: &Resource,
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Result<ResourceLease, LeaseRefusal>, StoreError> {
        let token = Uuid::from_u128(holder.token.reveal());
        let (frozen, ahead_ms) = self.clock.settings();
        let (kind, step) = (resource.kind.as_str(), resource.kind.step());
        let params: [&(dyn ToSql + Sync); 8] =
            [&kind, &&*resource.id, &step, &&*holder.name, &token, &ttl_ms, &frozen.map(Time), &ahead_ms];
        let resources = std::slice::from_ref(resource);
        // Whoever holds something must not lose it to a flood of work.
        let (renewed, found) =
            self.change_leases(&self.heartbeat, "renew a lease", sql::LEASE_RENEW, &params, resources).await?;
        match of(&renewed, resource) {
            Some(renewed) => Ok(Ok(renewed)),
            None => Ok(Err(lost(of(&found, resource), holder, self.now().await?))),
        }
    }

    async fn release_lease(
        &self,
        resource: &Resource,
        holder: &Holder,
    ) -> Result<Result<(), LeaseRefusal>, StoreError> {
        let token = Uuid::from_u128(holder.token.reveal());
        let (frozen, ahead_ms) = self.clock.settings();
        let kind = resource.kind.as_str();
        let params: [&(dyn ToSql + Sync); 6] =
            [&kind, &&*resource.id, &&*holder.name, &token, &frozen.map(Time), &ahead_ms];
        let resources = std::slice::from_ref(resource);
        let (released, found) =
            self.change_leases(&self.work, "release a lease", sql::LEASE_RELEASE, &params, resources).await?;
        match released.first() {
            Some(_) => Ok(Ok(())),
            None => Ok(Err(lost(of(&found, resource), holder, self.now().await?))),
        }
    }

    async fn leases(&self, kind: ResourceType) -> Result<Vec<ResourceLease>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let all = self.read_all("list leases", conn, sql::LEASES_LIST, &[&kind.as_str()], lease).await?;
        Ok(all.into_iter().filter(|lease| lease.is_live(now)).collect())
    }

    async fn prune_replicas(&self, before: Timestamp) -> Result<usize, StoreError> {
        let conn = Conn::get(&self.work).await?;
        Ok(self.write_one("prune leases", conn, sql::LEASES_PRUNE, &[&Time(before)]).await?.len())
    }
}
