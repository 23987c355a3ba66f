//! Opening a store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use tenure_core::objects::{Layout, Prefix};

use crate::error::ObjectError;
use crate::store::{Backing, Objects};

/// The bucket under whose name a local folder is known to those who do not see its files.
pub const LOCAL_BUCKET: &str = "tenure";

/// Where AWS looks without a region.
const DEFAULT_REGION: &str = "us-east-1";

#[derive(Debug, Clone)]
pub enum Place {
    /// `allow_file`: names begin with `file:`, for workers that see the same files. Otherwise they are those of a bucket.
    Folder { path: PathBuf, allow_file: bool },
    /// The root is a bucket or a prefix in it.
    S3 { root: Prefix, endpoint_url: Option<String>, region: Option<String>, path_style: bool },
}

/// For a store that knows them. Without them the environment is asked, as by other programs.
#[derive(Clone)]
pub struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub place: Place,
    /// Buckets beside that of the root: of `dispatch.write_prefixes`.
    pub buckets: BTreeSet<String>,
    pub credentials: Option<Credentials>,
    pub limits: Limits,
}

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of one request, its repeats not counted.
    pub request: Duration,
    /// Of one call, with all its requests and repeats.
    pub call: Duration,
    /// How often a request that failed is repeated.
    pub retries: usize,
    /// Objects of one output.
    pub objects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), call: Duration::from_secs(30), retries: 3, objects: 10_000 }
    }
}

impl Settings {
    pub fn new(place: Place) -> Self {
        Self { place, buckets: BTreeSet::new(), credentials: None, limits: Limits::default() }
    }

    /// Opens the store. A folder is created; S3 is not asked before it is needed.
    pub fn open(&self) -> Result<Objects, ObjectError> {
        let (backing, root) = match &self.place {
            Place::Folder { path, allow_file } => {
                std::fs::create_dir_all(path).map_err(ObjectError::unavailable)?;
                let folder = path.canonicalize().map_err(ObjectError::unavailable)?;
                let name = folder.to_str().filter(|name| name.starts_with('/'));
                let name = name.ok_or_else(|| ObjectError::Denied("the path of the folder is not UTF-8".into()))?;
                let own = Prefix::parse_root(&format!("file://{name}"), true)?;
                let bucket = Prefix::parse_root(&format!("s3://{LOCAL_BUCKET}"), false)?;
                let store = LocalFileSystem::new_with_prefix(&folder)?;
                let root = if *allow_file { own.clone() } else { bucket };
                (Backing::Folder { store, folder, own, allow_file: *allow_file }, root)
            }
            Place::S3 { root, endpoint_url, region, path_style } => {
                let named = root.bucket().map(str::to_owned);
                let buckets: BTreeSet<String> = self.buckets.iter().cloned().chain(named).collect();
                let open = |bucket: &String| {
                    let store = self.bucket(bucket, endpoint_url.as_deref(), region.as_deref(), *path_style)?;
                    Ok((bucket.clone(), Arc::new(store)))
                };
                let stores = buckets.iter().map(open).collect::<Result<BTreeMap<_, _>, ObjectError>>()?;
                let region = region.as_deref().unwrap_or(DEFAULT_REGION);
                let endpoint_url = endpoint_url.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
                (Backing::S3 { stores, endpoint_url }, root.clone())
            }
        };
        Ok(Objects { backing, layout: Layout::new(root), limits: self.limits })
    }

    fn bucket(
        &self,
        bucket: &str,
        endpoint_url: Option<&str>,
        region: Option<&str>,
        path_style: bool,
    ) -> Result<AmazonS3, ObjectError> {
        let Limits { request, call, retries, .. } = self.limits;
        let options = ClientOptions::new()
            .with_timeout(request)
            .with_connect_timeout(request.min(Duration::from_secs(5)))
            .with_allow_http(endpoint_url.is_some_and(|url| url.starts_with("http://")));
        let backoff =
            BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(2), base: 2.0 };
        let mut builder = AmazonS3Builder::from_env()
            .with_client_options(options)
            .with_retry(RetryConfig { backoff, max_retries: retries, retry_timeout: call })
            .with_bucket_name(bucket)
            .with_virtual_hosted_style_request(!path_style);
        if let Some(url) = endpoint_url {
            builder = builder.with_endpoint(url);
        }
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        if let Some(Credentials { access_key_id, secret_access_key }) = &self.credentials {
            builder = builder.with_access_key_id(access_key_id).with_secret_access_key(secret_access_key);
        }
        Ok(builder.build()?)
    }
}
