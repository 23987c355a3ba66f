//! Bundles of code.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use tenure_core::time::Timestamp;
use uuid::Uuid;

use super::{Sqlite, sql};
use crate::bundles::{BundleRow, BundleStore, NewBundle};
use crate::error::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

fn bundle(row: &Row<'_>) -> rusqlite::Result<BundleRow> {
    Ok(BundleRow {
        id: Uuid::from_bytes(row.get(0)?),
        org: row.get(1)?,
        sha256: row.get(2)?,
        manifest: row.get(3)?,
        bytes: row.get(4)?,
        created_at: Timestamp::from_millis(row.get(5)?),
    })
}

#[async_trait]
impl BundleStore for Sqlite {
    async fn add_bundle(&self, org: &str, new: &NewBundle, limit: usize) -> Result<()> {
        let (now, org, new) = (self.clock.read_process().now.as_millis(), org.to_owned(), new.clone());
        self.write("record a bundle", move |tx| {
            let params = params![new.id.as_bytes(), org, &*new.sha256, &*new.manifest, new.bytes, now, limit as i64];
            tx.prepare_cached(sql::BUNDLES_INSERT)?.execute(params).map(drop)
        })
        .await
    }

    async fn bundle_of(&self, org: &str, sha256: &str) -> Result<Option<BundleRow>> {
        let (org, sha256) = (org.to_owned(), sha256.to_owned());
        self.read("look for a bundle", move |conn| {
            conn.prepare_cached(sql::BUNDLES_OF_CONTENT)?.query_row([org, sha256], bundle).optional()
        })
        .await
    }

    async fn known_bundles(&self, ids: &[Uuid]) -> Result<Vec<Uuid>> {
        let ids = ids.to_vec();
        self.read("look for bundles", move |conn| {
            let mut statement = conn.prepare_cached(sql::BUNDLES_KNOWN)?;
            let mut known = Vec::new();
            for id in ids {
                if statement.exists([id.as_bytes()])? {
                    known.push(id);
                }
            }
            Ok(known)
        })
        .await
    }

    async fn bundles(&self, org: &str, ids: &[Uuid]) -> Result<Vec<BundleRow>> {
        let (org, ids) = (org.to_owned(), ids.to_vec());
        self.read("read bundles", move |conn| {
            let mut statement = conn.prepare_cached(sql::BUNDLES_GET)?;
            let found = ids.iter().map(|id| statement.query_row(params![org, id.as_bytes()], bundle).optional());
            Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
        .await
    }
}
