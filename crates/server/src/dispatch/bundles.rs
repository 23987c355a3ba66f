//! Bundles: their place in the object store, and what a worker is told of one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tenure_bundle::BundleError;
use tenure_contract::Json;
use tenure_contract::dispatch::Task;
use tenure_core::dag::org_id;
use tenure_core::objects::{Prefix, SUCCESS, Staged};
use tenure_engine::dags::Bundle;
use tenure_objects::{LOCAL_BUCKET, Objects};
use uuid::Uuid;

use super::render::JobTask;
use super::{DispatchFault, NO_OBJECT_STORE, Part};
use crate::error::{Fault, Unavailable};

/// The name of the zip file in the prefix of its bundle.
pub const ZIP: &str = "bundle.zip";
/// How long whoever has the address of a bundle can read it.
const ADDRESS_VALID: Duration = Duration::from_secs(3600);
/// The path of the bundle of a task, for stores without addresses of their own.
const OWN_PATH: &str = "/v1/task/bundle";
/// Uploads at a time: all together, and of one tenant. Each takes up to 64 MiB of disk, and a thread while it is checked.
const UPLOADS: usize = 16;
const UPLOADS_OF_TENANT: usize = 4;
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Uploads that are on their way, by tenant.
#[derive(Debug, Clone, Default)]
pub struct Uploads(Arc<Mutex<HashMap<Arc<str>, usize>>>);

/// A place among them, until it is dropped.
#[derive(Debug)]
pub struct Upload {
    uploads: Uploads,
    org: Arc<str>,
}

impl Uploads {
    pub fn enter(&self, org: &Arc<str>) -> Result<Upload, Fault> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, own) = (open.values().sum::<usize>(), open.get(org).copied().unwrap_or(0));
        if all >= UPLOADS || own >= UPLOADS_OF_TENANT {
            return Err(Unavailable::Busy { retry_after: AGAIN_AFTER }.into());
        }
        *open.entry(Arc::clone(org)).or_default() += 1;
        Ok(Upload { uploads: self.clone(), org: Arc::clone(org) })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut open = self.uploads.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.org) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.org);
            }
        }
    }
}

/// The bundle of a task, as its worker is told of it.
#[derive(Debug)]
pub struct Ran {
    pub told: Json,
    pub url: String,
    pub handler: Option<String>,
}

impl Part {
    pub fn objects(&self) -> Result<&Arc<Objects>, Fault> {
        self.config.objects.as_ref().ok_or_else(|| DispatchFault::fault("object_store_unavailable", NO_OBJECT_STORE))
    }

    /// Where a bundle is: its zip file is called [`ZIP`] there. Another bundle of the same bytes is elsewhere, so that whoever
    /// removes one does not take the bytes of another that is uploaded meanwhile.
    pub fn bundle_place(&self, org: &str, bundle: Uuid) -> Result<Prefix, Fault> {
        self.objects()?.layout().bundle(org_id(org), bundle).map_err(|_| Fault::Internal)
    }

    /// Marks a bundle as finished that is on record. Without the mark it is safe for as long as it is on record.
    pub async fn finish_bundle(&self, org: &str, bundle: Uuid) -> Result<(), Fault> {
        if let Err(error) = self.objects()?.put_new(&self.bundle_place(org, bundle)?, SUCCESS, "".into()).await {
            tracing::warn!(bundle.id = %bundle, error = %error, "a bundle is not marked as finished");
        }
        Ok(())
    }

    /// Removes the bytes of a bundle that is not on record any more.
    pub async fn remove_bundle_bytes(&self, org: &str, bundle: Uuid) -> Result<(), Fault> {
        if let Err(error) = self.objects()?.remove(&Staged::Bundle { org: org_id(org), bundle }).await {
            tracing::warn!(bundle.id = %bundle, error = %error, "the bytes of a bundle are left in the object store");
        }
        Ok(())
    }

    /// The bundle that a task runs, if it runs one.
    pub async fn bundle_of_task(&self, task: &JobTask) -> Result<Option<Bundle>, Fault> {
        let Some(udf) = &task.job.definition.udf else { return Ok(None) };
        let bundle = self.dags.bundle(&task.org, udf.bundle_id).await?;
        bundle.map(Some).ok_or_else(|| {
            tracing::error!(task.id = %task.id, bundle.id = %udf.bundle_id, "the bundle of a job is gone");
            Fault::Internal
        })
    }

    pub async fn bundle(&self, task: &JobTask) -> Result<Option<Ran>, Fault> {
        let Some(bundle) = self.bundle_of_task(task).await? else { return Ok(None) };
        let Some(udf) = &task.job.definition.udf else { return Ok(None) };
        let objects = self.objects()?;
        let prefix = self.bundle_place(&task.org, bundle.id)?;
        let own = || format!("{}{OWN_PATH}", self.config.base_url.as_deref().unwrap_or_default());
        let url = objects.presigned_get(&prefix, ZIP, ADDRESS_VALID).await.map_err(unavailable)?.unwrap_or_else(own);
        let is_file = |name: &str| bundle.manifest.files.iter().any(|file| file.path == name);
        let handler = udf.entrypoint.as_deref().filter(|name| !is_file(name)).map(ToOwned::to_owned);
        let bucket = objects.layout().root().bucket().unwrap_or(LOCAL_BUCKET);
        let told = json!({
            "bundle_id": bundle.id, "sha256": bundle.sha256, "runtime": bundle.manifest.runtime,
            "entrypoint": bundle.manifest.entrypoint, "bytes": bundle.bytes, "env": udf.env,
            "object_store": {"bucket": bucket, "endpoint_url": objects.endpoint_url()},
        });
        Ok(Some(Ran { told: Json::from_trusted(told.to_string()), url, handler }))
    }
}

/// The language of the bundle that a task runs.
pub fn language(task: &Task) -> Option<String> {
    #[derive(Deserialize)]
    struct Told {
        runtime: String,
    }
    task.bundle.as_ref()?.decode::<Told>().ok().map(|told| told.runtime)
}

pub fn unavailable(error: tenure_objects::ObjectError) -> Fault {
    tracing::warn!(%error, "the object store does not serve bundles");
    DispatchFault::fault("object_store_unavailable", "the object store is not available: try again")
}

impl From<BundleError> for Fault {
    fn from(error: BundleError) -> Self {
        match error {
            BundleError::TooLarge(message) => DispatchFault::fault("bundle_too_large", message),
            BundleError::Invalid(message) => DispatchFault::fault("invalid_bundle", message),
            BundleError::Io(error) => {
                tracing::error!(%error, "an uploaded bundle cannot be read back");
                Self::Internal
            }
        }
    }
}
