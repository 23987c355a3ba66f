//! Fences in an object store.
//!
//! The task and its fence are kept with the object, as metadata. A put says which version of the object it replaces, and
//! the store refuses it if that version is no longer the current one: so no write comes between the look at the fence and
//! the write. S3 and what speaks like it can do this, and [`HttpObjects`] speaks to them; [`Objects`] is what is needed of
//! another store.
//!
//! An object belongs to one task: the fences of two tasks cannot be compared. The key should have the task in it, or what
//! the task stands for, such as its day.

use std::fmt;

use reqwest::header::{ETAG, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH};
use reqwest::{StatusCode, Url};

use super::{Fence, Stale};

/// Whose an object is and with which fence it was written, in the metadata of stores that speak as S3 does. The Python
/// SDK keeps it in the same place.
const TASK: HeaderName = HeaderName::from_static("x-amz-meta-tenure-task");
const FENCE: HeaderName = HeaderName::from_static("x-amz-meta-tenure-fence");

/// How often somebody else may come between before a put gives up.
const TRIES: usize = 16;

/// What is needed of an object store.
pub trait Objects {
    type Error;

    /// The current version of an object, if there is one.
    fn version(&self, key: &str) -> impl Future<Output = Result<Option<Version>, Self::Error>> + Send;

    /// Writes the object with the task and the fence, if `replaced` is still its current version; with `None`, if there
    /// is no object. Says whether it was written.
    fn put_if(
        &self,
        key: &str,
        content: &[u8],
        fence: &Fence,
        replaced: Option<&Version>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// A version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The store's own name of it.
    pub etag: String,
    /// Who wrote it; `None` if that is not to be read from it.
    pub written_by: Option<Fence>,
}

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum PutError<E> {
    #[error(transparent)]
    Stale(#[from] Stale),
    /// Its fence, if it has one, says nothing about this task's.
    #[error("the object belongs to another task, or to none")]
    Foreign,
    /// Others write the object all the time, and none of them is a later attempt.
    #[error("the object is written by others all the time")]
    Contended,
    #[error("the object store failed")]
    Store(#[source] E),
}

/// Writes an object unless a later attempt has. One that was not written by this task stays as it is.
pub async fn put<O: Objects>(objects: &O, key: &str, content: &[u8], fence: &Fence) -> Result<(), PutError<O::Error>> {
    for _ in 0..TRIES {
        let current = objects.version(key).await.map_err(PutError::Store)?;
        if let Some(version) = &current {
            let own = version.written_by.as_ref().filter(|writer| writer.task_id() == fence.task_id());
            fence.check(Some(own.ok_or(PutError::Foreign)?.value()))?;
        }
        let put = objects.put_if(key, content, fence, current.as_ref());
        if put.await.map_err(PutError::Store)? {
            return Ok(());
        }
    }
    Err(PutError::Contended)
}

/// A store that is spoken to by plain HTTP: `HEAD` with an `ETag`, `PUT` with `If-Match` and `If-None-Match`.
///
/// What proves who is calling is the caller's business: default headers of the client, or addresses that are signed.
#[derive(Clone)]
pub struct HttpObjects {
    client: reqwest::Client,
    base: Url,
}

impl HttpObjects {
    /// Objects below `base`.
    pub fn new(client: reqwest::Client, base: Url) -> Self {
        Self { client, base }
    }

    fn url(&self, key: &str) -> Url {
        let segments: Vec<_> = key.split('/').collect();
        crate::http::join(&self.base, &segments)
    }
}

fn version_of(headers: &HeaderMap) -> Option<Version> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let written_by = text(TASK).zip(text(FENCE).and_then(|fence| fence.parse().ok()));
    let written_by = written_by.map(|(task, fence)| Fence::new(task, fence));
    Some(Version { etag: text(ETAG)?.to_owned(), written_by })
}

impl fmt::Debug for HttpObjects {
    /// Without the address: one that is signed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpObjects").finish_non_exhaustive()
    }
}

/// What an object store answered that is neither yes nor no.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    #[error("no answer from the object store")]
    Network(#[source] reqwest::Error),
    #[error("the object store answered HTTP {0}")]
    Status(u16),
    /// Without one, no put can be conditional.
    #[error("the object store gave no ETag")]
    NoEtag,
}

impl Objects for HttpObjects {
    type Error = HttpError;

    async fn version(&self, key: &str) -> Result<Option<Version>, HttpError> {
        let answer = self.client.head(self.url(key)).send().await.map_err(network)?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => version_of(answer.headers()).ok_or(HttpError::NoEtag).map(Some),
            status => Err(HttpError::Status(status.as_u16())),
        }
    }

    async fn put_if(
        &self,
        key: &str,
        content: &[u8],
        fence: &Fence,
        replaced: Option<&Version>,
    ) -> Result<bool, HttpError> {
        let put = self.client.put(self.url(key)).header(TASK, fence.task_id()).header(FENCE, fence.value());
        let put = match replaced {
            Some(version) => put.header(IF_MATCH, &version.etag),
            None => put.header(IF_NONE_MATCH, "*"),
        };
        let answer = put.body(content.to_vec()).send().await.map_err(network)?;
        match answer.status() {
            status if status.is_success() => Ok(true),
            // S3 says 409 when two conditional puts meet.
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Ok(false),
            status => Err(HttpError::Status(status.as_u16())),
        }
    }
}

fn network(error: reqwest::Error) -> HttpError {
    HttpError::Network(error.without_url())
}
