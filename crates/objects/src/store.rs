//! One store, and the calls that all else is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::aws::AmazonS3;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tenure_core::Timestamp;
use tenure_core::objects::{Layout, Prefix, Scheme, Staged};

use crate::error::ObjectError;
use crate::folder;
use crate::open::{LOCAL_BUCKET, Limits};

#[derive(Debug)]
pub(crate) enum Backing {
    Folder {
        store: LocalFileSystem,
        /// Without links in it.
        folder: PathBuf,
        own: Prefix,
        allow_file: bool,
    },
    S3 {
        stores: BTreeMap<String, Arc<AmazonS3>>,
        /// Where clients reach it.
        endpoint_url: String,
    },
}

/// The object store of an installation.
#[derive(Debug)]
pub struct Objects {
    pub(crate) backing: Backing,
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
}

/// An object below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As it follows the prefix.
    pub name: String,
    pub bytes: u64,
    pub modified_at: Timestamp,
}

impl Objects {
    /// The names of outputs.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where clients of S3 reach the store; `None` for a folder.
    pub fn endpoint_url(&self) -> Option<&str> {
        match &self.backing {
            Backing::S3 { endpoint_url, .. } => Some(endpoint_url),
            Backing::Folder { .. } => None,
        }
    }

    /// Whether locations may begin with `file:`.
    pub fn allows_file(&self) -> bool {
        matches!(self.backing, Backing::Folder { allow_file: true, .. })
    }

    /// The folder that the objects lie in, without S3.
    pub fn folder(&self) -> Option<&std::path::Path> {
        match &self.backing {
            Backing::Folder { folder, .. } => Some(folder),
            Backing::S3 { .. } => None,
        }
    }

    /// A prefix by the name that it has for those who do not see files: that of a bucket. `None` if it has none.
    pub fn in_bucket(&self, prefix: &Prefix) -> Option<Prefix> {
        match (&self.backing, prefix.scheme()) {
            (Backing::Folder { own, .. }, Scheme::File) if own.covers(prefix) => {
                let below = &prefix.path()[own.path().len()..];
                Prefix::parse(&format!("s3://{LOCAL_BUCKET}/{below}"), false).ok()
            }
            (Backing::Folder { .. }, Scheme::S3 { bucket }) => (&**bucket == LOCAL_BUCKET).then(|| prefix.clone()),
            (Backing::S3 { .. }, Scheme::S3 { .. }) => Some(prefix.clone()),
            (_, Scheme::File) => None,
        }
    }

    /// Whether a prefix covers another, by whichever of its names each is called.
    pub fn covers(&self, prefix: &Prefix, other: &Prefix) -> bool {
        let in_bucket = || self.in_bucket(prefix).zip(self.in_bucket(other));
        prefix.covers(other) || in_bucket().is_some_and(|(prefix, other)| prefix.covers(&other))
    }

    /// Reads a location that somebody sent.
    pub fn parse(&self, location: &str) -> Result<Prefix, ObjectError> {
        Ok(Prefix::parse(location, self.allows_file())?)
    }

    /// The attempt whose prefix an object is in, if it is a staged output or a scratch folder of this store.
    pub fn staged(&self, uri: &str) -> Option<Staged> {
        let (folder, name) = uri.rsplit_once('/')?;
        let (prefix, root) = (self.parse(&format!("{folder}/")).ok()?, self.layout.root());
        if matches!(self.backing, Backing::S3 { .. }) && prefix.bucket() != root.bucket() {
            return None;
        }
        let (base, root) = (self.place(&prefix).ok()?.base, self.place(root).ok()?.base);
        Staged::of(&format!("{}{name}", base.strip_prefix(&root)?))
    }

    /// All objects below a prefix, in no order.
    pub async fn list(&self, prefix: &Prefix) -> Result<Vec<Entry>, ObjectError> {
        let limit = self.limits.objects;
        let place = self.place(prefix)?;
        let entries = match &self.backing {
            Backing::Folder { folder, .. } => {
                let (root, below) = (folder.clone(), place.key(""));
                self.within("list", async move { blocking(move || folder::list(&root, &below, limit)).await? }).await?
            }
            Backing::S3 { .. } => {
                let mut found = place.store.list(Some(&place.path("")?)).take(limit + 1);
                self.within("list", async {
                    let mut entries = Vec::new();
                    while let Some(meta) = found.next().await {
                        entries.push(entry(&meta?, &place.base)?);
                    }
                    Ok(entries)
                })
                .await?
            }
        };
        if entries.len() > limit { Err(ObjectError::TooMany(limit)) } else { Ok(entries) }
    }

    /// An object of at most `limit` bytes.
    pub async fn get(&self, prefix: &Prefix, name: &str, limit: u64) -> Result<Bytes, ObjectError> {
        let place = self.place(prefix)?;
        let path = place.path(name)?;
        self.check_links(&place, name).await?;
        self.within("read", async {
            let found = place.store.get_opts(&path, Default::default()).await?;
            if found.meta.size > limit {
                return Err(ObjectError::TooLarge(limit));
            }
            let mut stream = found.into_stream();
            let mut bytes = BytesMut::new();
            while let Some(part) = stream.next().await {
                bytes.extend_from_slice(&part?);
                // It may have grown since.
                if bytes.len() as u64 > limit {
                    return Err(ObjectError::TooLarge(limit));
                }
            }
            Ok(bytes.freeze())
        })
        .await
    }

    /// Writes an object, or leaves the one that is there. Returns whether it was written.
    pub async fn put_new(&self, prefix: &Prefix, name: &str, bytes: Bytes) -> Result<bool, ObjectError> {
        let place = self.place(prefix)?;
        let path = place.path(name)?;
        self.check_links(&place, name).await?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        self.within("write", async {
            match place.store.put_opts(&path, bytes.into(), options).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    /// Removes an object. One that is not there is not an error.
    pub async fn delete(&self, prefix: &Prefix, name: &str) -> Result<(), ObjectError> {
        let place = self.place(prefix)?;
        let path = place.path(name)?;
        self.check_links(&place, name).await?;
        self.within("remove", async {
            match place.store.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    /// An address that whoever has it may read the object from for a while. `None` if the store has no addresses.
    pub async fn presigned_get(
        &self,
        prefix: &Prefix,
        name: &str,
        valid_for: Duration,
    ) -> Result<Option<String>, ObjectError> {
        let (Backing::S3 { stores, .. }, Some(bucket)) = (&self.backing, prefix.bucket()) else { return Ok(None) };
        let store = stores.get(bucket).ok_or(ObjectError::NotGranted)?;
        let path = self.place(prefix)?.path(name)?;
        let signed = async { Ok(store.signed_url(http::Method::GET, &path, valid_for).await?) };
        Ok(Some(self.within("sign an address", signed).await?.to_string()))
    }

    /// Asks the store for something, to see that it is there and lets this process in.
    pub async fn check(&self) -> Result<(), ObjectError> {
        if let Backing::Folder { folder, .. } = &self.backing {
            let folder = folder.clone();
            return self
                .within("look for the folder", async { blocking(move || folder::exists(&folder)).await? })
                .await;
        }
        let place = self.place(self.layout.root())?;
        let mut found = place.store.list(Some(&place.path("")?));
        match self.within("list", async { Ok(found.next().await) }).await? {
            Some(Err(error)) => Err(error.into()),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Where a prefix lies. Buckets that are not configured, and folders beside the one that is, cannot be reached.
    pub(crate) fn place(&self, prefix: &Prefix) -> Result<Place<'_>, ObjectError> {
        match (&self.backing, prefix.scheme()) {
            (Backing::Folder { store, own, allow_file: true, .. }, Scheme::File) if own.covers(prefix) => {
                Ok(Place { store, base: prefix.path()[own.path().len()..].into() })
            }
            (Backing::Folder { store, .. }, Scheme::S3 { bucket }) if &**bucket == LOCAL_BUCKET => {
                Ok(Place { store, base: prefix.path().into() })
            }
            (Backing::S3 { stores, .. }, Scheme::S3 { bucket }) => {
                let store = stores.get(&**bucket).ok_or(ObjectError::NotGranted)?;
                Ok(Place { store: &**store, base: prefix.path().into() })
            }
            _ => Err(ObjectError::NotGranted),
        }
    }

    /// What a worker has put into a folder may be a link to anywhere.
    pub(crate) async fn check_links(&self, place: &Place<'_>, name: &str) -> Result<(), ObjectError> {
        let Backing::Folder { folder, .. } = &self.backing else { return Ok(()) };
        let (root, key) = (folder.clone(), place.key(name));
        self.within("look for links", async move { blocking(move || folder::check_links(&root, &key)).await? }).await
    }

    pub(crate) async fn within<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, ObjectError>>,
    ) -> Result<T, ObjectError> {
        tokio::time::timeout(self.limits.call, call).await.unwrap_or_else(|_| Err(ObjectError::timed_out(what)))
    }
}

/// A prefix in the store that has it.
pub(crate) struct Place<'a> {
    pub store: &'a dyn ObjectStore,
    /// Empty, or ends with a slash.
    pub base: String,
}

impl Place<'_> {
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }

    pub fn path(&self, name: &str) -> Result<Path, ObjectError> {
        Path::parse(self.key(name).trim_end_matches('/')).map_err(|_| ObjectError::OddObject)
    }
}

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ObjectError> {
    tokio::task::spawn_blocking(work).await.map_err(ObjectError::unavailable)
}

fn entry(meta: &ObjectMeta, base: &str) -> Result<Entry, ObjectError> {
    let name = meta.location.as_ref().strip_prefix(base).ok_or(ObjectError::OddObject)?;
    let modified_at = Timestamp::from_millis(meta.last_modified.timestamp_millis());
    Ok(Entry { name: name.to_owned(), bytes: meta.size, modified_at })
}
