//! Bundles of code.

use async_trait::async_trait;
use tokio_postgres::Row;
use uuid::Uuid;

use super::load::query;
use super::rows::{self, Time, text, time};
use super::{Postgres, sql};
use crate::bundles::{BundleRow, BundleStore, NewBundle};
use crate::error::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

fn bundle(row: &Row) -> rows::Result<BundleRow> {
    Ok(BundleRow {
        id: row.try_get(0)?,
        org: text(row, 1)?,
        sha256: text(row, 2)?,
        manifest: text(row, 3)?,
        bytes: row.try_get(4)?,
        created_at: time(row, 5)?,
    })
}

#[async_trait]
impl BundleStore for Postgres {
    async fn add_bundle(&self, org: &str, new: &NewBundle, limit: usize) -> Result<()> {
        self.outbox_write("record a bundle", async |conn, now| {
            let (sha256, manifest) = (&*new.sha256, &*new.manifest);
            let (now, limit) = (Time(now), limit as i64);
            query(conn, sql::BUNDLES_INSERT, &[&new.id, &org, &sha256, &manifest, &new.bytes, &now, &limit])
                .await
                .map(drop)
        })
        .await
    }

    async fn bundle_of(&self, org: &str, sha256: &str) -> Result<Option<BundleRow>> {
        let found = self.list("look for a bundle", sql::BUNDLES_OF_CONTENT, &[&org, &sha256], bundle).await?;
        Ok(found.into_iter().next())
    }

    async fn known_bundles(&self, ids: &[Uuid]) -> Result<Vec<Uuid>> {
        self.list("look for bundles", sql::BUNDLES_KNOWN, &[&ids], |row| row.try_get(0)).await
    }

    async fn bundles(&self, org: &str, ids: &[Uuid]) -> Result<Vec<BundleRow>> {
        self.list("read bundles", sql::BUNDLES_GET, &[&org, &ids], bundle).await
    }
}
