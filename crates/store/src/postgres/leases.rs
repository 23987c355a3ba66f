//! Leases on shared work, among all control planes of a database.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::lease::Lease;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Fence, LeaseToken};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::conn::{Conn, commit_failed, failed};
use super::load::query;
use super::rows::{self, Time};
use super::{Postgres, sql};
use crate::error::StoreError;
use crate::leases::{Holder, LeaseStore, SystemLease, asked, ends, is_live};

fn lease(row: &Row) -> rows::Result<SystemLease> {
    Ok(SystemLease {
        resource: rows::text(row, 0)?,
        lease: Lease {
            holder: rows::text(row, 1)?,
            token: LeaseToken::from_u128(row.try_get::<_, Uuid>(2)?.as_u128()),
            generation: Fence(row.try_get::<_, i64>(3)?.cast_unsigned()),
            expires_at: rows::time(row, 5)?,
        },
        acquired_at: rows::time(row, 4)?,
    })
}

impl Postgres {
    /// Begins a transaction and locks these leases. The time is read behind the locks.
    async fn lock_leases(&self, resources: &[&str]) -> Result<(Conn, Vec<SystemLease>, Timestamp), StoreError> {
        let fail = |error| failed("lock leases", error);
        let conn = Conn::get(&self.work).await?;
        conn.batch_execute("BEGIN").await.map_err(fail)?;
        let found = query(&conn, sql::LEASES_LOCK, &[&resources]).await.map_err(fail)?;
        let found = found.iter().map(lease).collect::<rows::Result<_>>().map_err(fail)?;
        let now = self.reading(&conn).await?;
        Ok((conn, found, now))
    }
}

#[async_trait]
impl LeaseStore for Postgres {
    async fn acquire_leases(
        &self,
        resources: &[Arc<str>],
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Vec<SystemLease>, StoreError> {
        self.faults.before("acquire leases")?;
        let names: Vec<&str> = resources.iter().map(|resource| &**resource).collect();
        let (conn, found, now) = self.lock_leases(&names).await?;
        let of = |resource: &Arc<str>| found.iter().find(|found| found.resource == *resource).cloned();
        let asks = resources.iter().filter_map(|resource| asked(resource, of(resource), holder, ttl_ms, now));
        let mut held: Vec<SystemLease> = asks.collect();
        if !held.is_empty() {
            let resources: Vec<&str> = held.iter().map(|held| &*held.resource).collect();
            let generations: Vec<i64> = held.iter().map(|held| held.lease.generation.0.cast_signed()).collect();
            let acquired: Vec<Time> = held.iter().map(|held| Time(held.acquired_at)).collect();
            let expires: Vec<Time> = held.iter().map(|held| Time(held.lease.expires_at)).collect();
            let token = Uuid::from_u128(holder.token.reveal());
            let fail = |error| failed("acquire leases", error);
            let params: [&(dyn ToSql + Sync); 6] =
                [&resources, &&*holder.name, &token, &generations, &acquired, &expires];
            let put = query(&conn, sql::LEASES_PUT, &params).await.map_err(fail)?;
            let put = put.iter().map(|row| rows::text(row, 0)).collect::<rows::Result<Vec<_>>>().map_err(fail)?;
            held.retain(|held| put.contains(&held.resource));
        }
        conn.batch_execute("COMMIT").await.map_err(commit_failed)?;
        conn.give_back();
        self.faults.after("acquire leases")?;
        Ok(held)
    }

    async fn release_lease(&self, resource: &str, holder: &Holder, generation: Fence) -> Result<bool, StoreError> {
        self.faults.before("release a lease")?;
        let (conn, found, now) = self.lock_leases(&[resource]).await?;
        let ended = found.first().is_some_and(|found| ends(found, holder, generation, now));
        if ended {
            let end = query(&conn, sql::LEASE_END, &[&resource, &Time(now)]).await;
            end.map_err(|error| failed("release a lease", error))?;
        }
        conn.batch_execute("COMMIT").await.map_err(commit_failed)?;
        conn.give_back();
        self.faults.after("release a lease")?;
        Ok(ended)
    }

    async fn leases(&self) -> Result<Vec<SystemLease>, StoreError> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let all = self.read_all("list leases", conn, sql::LEASES_LIST, &[], lease).await?;
        Ok(all.into_iter().filter(|lease| is_live(lease, now)).collect())
    }

    async fn prune_leases(&self, prefix: &str, before: Timestamp) -> Result<usize, StoreError> {
        let conn = Conn::get(&self.work).await?;
        Ok(self.write_one("prune leases", conn, sql::LEASES_PRUNE, &[&prefix, &Time(before)]).await?.len())
    }
}
