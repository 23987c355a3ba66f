//! Leases on resources other than tasks. One process has the file; the rules are the same.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::lease::Lease;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_core::{Fence, LeaseToken};

use super::{Sqlite, sql};
use crate::error::StoreError;
use crate::leases::{Holder, LeaseRefusal, LeaseStore, Resource, ResourceLease, ResourceType, held, lost};
use crate::store::Lane;

/// Whoever opens the file has it alone: what control planes held before is free.
pub fn end_all(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute(sql::LEASES_END, [])?;
    Ok(())
}

fn lease(row: &Row<'_>) -> rusqlite::Result<ResourceLease> {
    let kind: String = row.get(0)?;
    Ok(ResourceLease {
        resource: Resource { kind: ResourceType::parse(&kind).unwrap_or(ResourceType::System), id: row.get(1)? },
        lease: Lease {
            holder: row.get(2)?,
            token: LeaseToken::from_u128(u128::from_be_bytes(row.get(3)?)),
            generation: Fence(row.get::<_, i64>(4)?.cast_unsigned()),
            expires_at: Timestamp::from_millis(row.get(7)?),
        },
        acquired_at: Timestamp::from_millis(row.get(5)?),
        renewed_at: Timestamp::from_millis(row.get(6)?),
        released_at: row.get::<_, Option<i64>>(8)?.map(Timestamp::from_millis),
    })
}

pub fn get(tx: &Connection, resource: &Resource) -> rusqlite::Result<Option<ResourceLease>> {
    tx.prepare_cached(sql::LEASE_GET)?.query_row(params![resource.kind.as_str(), resource.id], lease).optional()
}

/// No row: another holder has it.
pub fn acquire(
    tx: &Connection,
    resource: &Resource,
    holder: &Holder,
    now: Timestamp,
    ttl_ms: DurationMs,
) -> rusqlite::Result<ResourceLease> {
    let params = params![
        resource.kind.as_str(),
        resource.id,
        holder.name,
        holder.token.reveal().to_be_bytes(),
        now.as_millis(),
        now.plus(ttl_ms).as_millis(),
        resource.kind.step(),
    ];
    tx.prepare_cached(sql::LEASES_ACQUIRE)?.query_row(params, lease)
}

/// Whether the holder had it.
pub fn release(tx: &Connection, resource: &Resource, holder: &Holder, now: Timestamp) -> rusqlite::Result<bool> {
    let token = holder.token.reveal().to_be_bytes();
    let params = params![resource.kind.as_str(), resource.id, holder.name, token, now.as_millis()];
    Ok(tx.prepare_cached(sql::LEASE_RELEASE)?.execute(params)? > 0)
}

#[async_trait]
impl LeaseStore for Sqlite {
    async fn acquire_leases(
        &self,
        resources: &[Resource],
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Vec<Result<ResourceLease, LeaseRefusal>>, StoreError> {
        let (clock, resources, holder) = (Arc::clone(&self.clock), resources.to_vec(), holder.clone());
        self.write("acquire leases", move |tx| {
            let now = clock.read_process().now;
            let mut answers = Vec::with_capacity(resources.len());
            for resource in &resources {
                answers.push(match acquire(tx, resource, &holder, now, ttl_ms).optional()? {
                    Some(acquired) => Ok(acquired),
                    None => Err(held(get(tx, resource)?)),
                });
            }
            Ok(answers)
        })
        .await
    }

    async fn renew_lease(
        &self,
        resource: &Resource,
        holder: &Holder,
        ttl_ms: DurationMs,
    ) -> Result<Result<ResourceLease, LeaseRefusal>, StoreError> {
        let (clock, resource, holder) = (Arc::clone(&self.clock), resource.clone(), holder.clone());
        self.write_in(Lane::Heartbeat, "renew a lease", move |tx| {
            let now = clock.read_process().now;
            let params = params![
                resource.kind.as_str(),
                resource.id,
                holder.name,
                holder.token.reveal().to_be_bytes(),
                now.as_millis(),
                now.plus(ttl_ms).as_millis(),
                resource.kind.step(),
            ];
            match tx.prepare_cached(sql::LEASE_RENEW)?.query_row(params, lease).optional()? {
                Some(renewed) => Ok(Ok(renewed)),
                None => Ok(Err(lost(get(tx, &resource)?, &holder, now))),
            }
        })
        .await
    }

    async fn release_lease(
        &self,
        resource: &Resource,
        holder: &Holder,
    ) -> Result<Result<(), LeaseRefusal>, StoreError> {
        let (clock, resource, holder) = (Arc::clone(&self.clock), resource.clone(), holder.clone());
        self.write("release a lease", move |tx| {
            let now = clock.read_process().now;
            if release(tx, &resource, &holder, now)? {
                return Ok(Ok(()));
            }
            Ok(Err(lost(get(tx, &resource)?, &holder, now)))
        })
        .await
    }

    async fn leases(&self, kind: ResourceType) -> Result<Vec<ResourceLease>, StoreError> {
        let now = self.clock.read_process().now;
        self.read("list leases", move |tx| {
            let all = tx
                .prepare_cached(sql::LEASES_LIST)?
                .query_map([kind.as_str()], lease)?
                .collect::<Result<Vec<_>, _>>()?;
            Ok(all.into_iter().filter(|lease| lease.is_live(now)).collect())
        })
        .await
    }

    async fn prune_replicas(&self, before: Timestamp) -> Result<usize, StoreError> {
        let prune = move |tx: &Connection| tx.prepare_cached(sql::LEASES_PRUNE)?.execute([before.as_millis()]);
        self.write("prune leases", prune).await
    }
}
