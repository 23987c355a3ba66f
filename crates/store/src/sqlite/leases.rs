//! Leases on shared work. One process has the file, so they are taken at once; the rules are the same.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::lease::Lease;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Fence, LeaseToken};

use super::{Sqlite, sql};
use crate::error::StoreError;
use crate::leases::{Holder, LeaseStore, SystemLease, asked, ends, is_live};

/// Whoever opens the file has it alone: what an earlier process held is free.
pub fn end_all(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute(sql::LEASES_END, [])?;
    Ok(())
}

fn lease(row: &Row<'_>) -> rusqlite::Result<SystemLease> {
    Ok(SystemLease {
        resource: row.get(0)?,
        lease: Lease {
            holder: row.get(1)?,
            token: LeaseToken::from_u128(u128::from_be_bytes(row.get(2)?)),
            generation: Fence(row.get::<_, i64>(3)?.cast_unsigned()),
            expires_at: Timestamp::from_millis(row.get(5)?),
        },
        acquired_at: Timestamp::from_millis(row.get(4)?),
    })
}

fn get(tx: &Connection, resource: &str) -> rusqlite::Result<Option<SystemLease>> {
    tx.prepare_cached(sql::LEASE_GET)?.query_row([resource], lease).optional()
}

#[async_trait]
impl LeaseStore for Sqlite {
    async fn acquire_leases(
        &self,
        resources: &[Arc<str>],
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Vec<SystemLease>, StoreError> {
        let (clock, resources, holder) = (Arc::clone(&self.clock), resources.to_vec(), holder.clone());
        self.write("acquire leases", move |tx| {
            let now = clock.read_process().now;
            let mut held = Vec::new();
            for resource in &resources {
                let Some(new) = asked(resource, get(tx, resource)?, &holder, ttl_ms, now) else { continue };
                tx.prepare_cached(sql::LEASES_PUT)?.execute(params![
                    new.resource,
                    new.lease.holder,
                    new.lease.token.reveal().to_be_bytes(),
                    new.lease.generation.0.cast_signed(),
                    new.acquired_at.as_millis(),
                    new.lease.expires_at.as_millis(),
                ])?;
                held.push(new);
            }
            Ok(held)
        })
        .await
    }

    async fn release_lease(&self, resource: &str, holder: &Holder, generation: Fence) -> Result<bool, StoreError> {
        let (clock, resource, holder) = (Arc::clone(&self.clock), resource.to_owned(), holder.clone());
        self.write("release a lease", move |tx| {
            let now = clock.read_process().now;
            let ended = get(tx, &resource)?.is_some_and(|found| ends(&found, &holder, generation, now));
            if ended {
                tx.prepare_cached(sql::LEASE_END)?.execute(params![resource, now.as_millis()])?;
            }
            Ok(ended)
        })
        .await
    }

    async fn leases(&self) -> Result<Vec<SystemLease>, StoreError> {
        let now = self.clock.read_process().now;
        let all: Vec<SystemLease> =
            self.read("list leases", |tx| tx.prepare_cached(sql::LEASES_LIST)?.query_map([], lease)?.collect()).await?;
        Ok(all.into_iter().filter(|lease| is_live(lease, now)).collect())
    }

    async fn prune_leases(&self, prefix: &str, before: Timestamp) -> Result<usize, StoreError> {
        let prefix = prefix.to_owned();
        let prune =
            move |tx: &Connection| tx.prepare_cached(sql::LEASES_PRUNE)?.execute(params![prefix, before.as_millis()]);
        self.write("prune leases", prune).await
    }
}
