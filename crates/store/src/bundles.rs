//! Bundles of code that jobs run. Their bytes are in the object store; here is what is known about each.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::time::Timestamp;
use uuid::Uuid;

use crate::error::StoreError;

/// A bundle that was checked, and whose bytes are in the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBundle {
    /// Used if the organisation does not have the same bytes under another id.
    pub id: Uuid,
    /// Of the zip file, as 64 hex digits.
    pub sha256: Arc<str>,
    /// The manifest as JSON.
    pub manifest: Arc<str>,
    /// The size of the zip file.
    pub bytes: i64,
}

/// A bundle never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleRow {
    pub id: Uuid,
    pub org: Arc<str>,
    pub sha256: Arc<str>,
    pub manifest: Arc<str>,
    pub bytes: i64,
    pub created_at: Timestamp,
}

/// The part of a store that keeps bundles.
#[async_trait]
pub trait BundleStore {
    /// Records a bundle, unless the organisation has one with the same bytes, or `limit` others. A crash before leaves an
    /// object that nothing names, which the sweep of the object store removes.
    async fn add_bundle(&self, org: &str, new: &NewBundle, limit: usize) -> Result<(), StoreError>;

    /// The bundle of an organisation with these bytes.
    async fn bundle_of(&self, org: &str, sha256: &str) -> Result<Option<BundleRow>, StoreError>;

    /// Those of these bundles that any organisation has.
    async fn known_bundles(&self, ids: &[Uuid]) -> Result<Vec<Uuid>, StoreError>;

    /// Those of these bundles that the organisation has.
    async fn bundles(&self, org: &str, ids: &[Uuid]) -> Result<Vec<BundleRow>, StoreError>;
}
