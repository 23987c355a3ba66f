//! Results of queries: written piece by piece, read by processes without a credential, and removed when they are old.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{ObjectStoreExt, WriteMultipart};
use tenure_core::Timestamp;
use tenure_core::objects::Prefix;

use crate::error::ObjectError;
use crate::folder;
use crate::store::{Backing, Objects, blocking};

/// Parts of an upload that are on their way at the same time.
const PARTS: usize = 4;
/// Of a part.
const PART_BYTES: usize = 8 << 20;

/// How a process without a credential reaches objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// As files below this folder.
    Folder(PathBuf),
    /// Each by an address of its own.
    Address,
}

/// An object that is being written. There is none before [`Upload::finish`].
#[derive(Debug)]
pub struct Upload {
    parts: WriteMultipart,
    limit: Duration,
}

impl Upload {
    /// Adds to the object. Waits while too much is on its way.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), ObjectError> {
        let waiting = tokio::time::timeout(self.limit, self.parts.wait_for_capacity(PARTS)).await;
        waiting.map_err(|_| ObjectError::timed_out("write"))??;
        self.parts.put(bytes);
        Ok(())
    }

    pub async fn finish(self) -> Result<(), ObjectError> {
        let finished = tokio::time::timeout(self.limit, self.parts.finish()).await;
        finished.map_err(|_| ObjectError::timed_out("write"))??;
        Ok(())
    }

    /// Gives up. What cannot be removed is left to the rules of the store for unfinished uploads.
    pub async fn abort(self) {
        let aborted = tokio::time::timeout(self.limit, self.parts.abort()).await;
        if !matches!(aborted, Ok(Ok(()))) {
            tracing::warn!("an unfinished upload cannot be removed");
        }
    }
}

impl Objects {
    pub fn reach(&self) -> Reach {
        match &self.backing {
            Backing::Folder { folder, .. } => Reach::Folder(folder.clone()),
            Backing::S3 { .. } => Reach::Address,
        }
    }

    /// The path of an object below the folder of [`Self::reach`], or an address that is valid for a while.
    pub async fn reader_key(&self, prefix: &Prefix, name: &str, valid_for: Duration) -> Result<String, ObjectError> {
        match self.presigned_get(prefix, name, valid_for).await? {
            Some(address) => Ok(address),
            None => Ok(self.place(prefix)?.key(name)),
        }
    }

    /// Begins to write an object.
    pub async fn upload(&self, prefix: &Prefix, name: &str) -> Result<Upload, ObjectError> {
        let place = self.place(prefix)?;
        let path = place.path(name)?;
        self.check_links(&place, name).await?;
        let upload = self.within("write", async { Ok(place.store.put_multipart(&path).await?) }).await?;
        Ok(Upload { parts: WriteMultipart::new_with_chunk_size(upload, PART_BYTES), limit: self.limits.call })
    }

    /// An object and its length, piece by piece.
    pub async fn stream(
        &self,
        prefix: &Prefix,
        name: &str,
    ) -> Result<(u64, BoxStream<'static, Result<Bytes, ObjectError>>), ObjectError> {
        let place = self.place(prefix)?;
        let path = place.path(name)?;
        self.check_links(&place, name).await?;
        let found = self.within("read", async { Ok(place.store.get(&path).await?) }).await?;
        let length = found.meta.size;
        Ok((length, found.into_stream().map_err(ObjectError::from).boxed()))
    }

    /// Removes results of queries that were last changed before. Returns how many objects or folders.
    pub async fn sweep_results(&self, before: Timestamp) -> Result<u64, ObjectError> {
        let scratch = self.layout.all_scratch()?;
        let place = self.place(&scratch)?;
        if let Backing::Folder { folder, .. } = &self.backing {
            let (root, below) = (folder.clone(), place.key(""));
            return blocking(move || Ok(sweep_folder(&root, &below, before))).await?;
        }
        let (mut removed, mut objects) = (0, place.store.list(Some(&place.path("")?)));
        while let Some(meta) = self.within("list", async { Ok(objects.next().await) }).await? {
            let Ok(meta) = meta else { continue };
            let name = meta.location.as_ref().strip_prefix(&place.base).unwrap_or_default();
            let at = Timestamp::from_millis(meta.last_modified.timestamp_millis());
            if at < before && is_result(name) {
                self.within("remove", async { Ok(place.store.delete(&meta.location).await?) }).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// `results/{org}/{query}/…` of users and `{task}/{attempt}/results/{query}/…` of tasks.
fn is_result(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    matches!(parts.as_slice(), ["results", _, _, _, ..] | [_, _, "results", _, _, ..])
}

fn sweep_folder(root: &std::path::Path, below: &str, before: Timestamp) -> u64 {
    let below = below.trim_end_matches('/');
    let mut removed = 0;
    let mut sweep = |folders: &mut dyn Iterator<Item = (String, PathBuf)>, above: &str| {
        for (name, path) in folders {
            let is_old = folder::newest(&path).is_some_and(|newest| newest < before);
            if is_old && folder::remove(root, &format!("{above}/{name}"), &[]).is_ok() {
                removed += 1;
            }
        }
    };
    for (org, path) in folder::folders(&root.join(below).join("results")) {
        sweep(&mut folder::folders(&path), &format!("{below}/results/{org}"));
    }
    for (task, path) in folder::folders(&root.join(below)).filter(|(name, _)| name != "results") {
        for (attempt, path) in folder::folders(&path) {
            sweep(&mut folder::folders(&path.join("results")), &format!("{below}/{task}/{attempt}/results"));
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_are_results() {
        assert!(is_result("results/org/query/result.csv"));
        assert!(is_result("task/1/results/query/result.csv"));
        for name in ["results/x", "task/1/notes", "task/1/results/x", "task/results/1/x", ""] {
            assert!(!is_result(name), "{name}");
        }
    }

    #[tokio::test]
    async fn a_result_is_there_when_it_is_finished_and_goes_when_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let place = crate::Place::Folder { path: folder.path().to_owned(), allow_file: true };
        let objects = crate::Settings::new(place).open().unwrap();
        let scratch = objects.layout().all_scratch().unwrap();
        let user = scratch.below("results/o/q").unwrap();
        let task = scratch.below("t/1/results/q").unwrap();
        let kept = scratch.below("t/1/notes").unwrap();
        for prefix in [&user, &task, &kept] {
            let mut upload = objects.upload(prefix, "result.csv").await.unwrap();
            upload.write(Bytes::from_static(b"a,b\r\n")).await.unwrap();
            assert!(matches!(objects.stream(prefix, "result.csv").await, Err(ObjectError::NotFound)));
            upload.finish().await.unwrap();
        }
        let (length, pieces) = objects.stream(&user, "result.csv").await.unwrap();
        let pieces: Vec<Bytes> = pieces.try_collect().await.unwrap();
        assert_eq!((length, pieces.concat()), (5, b"a,b\r\n".to_vec()));
        let mut given_up = objects.upload(&user, "other.csv").await.unwrap();
        given_up.write(Bytes::from_static(b"a")).await.unwrap();
        given_up.abort().await;
        assert!(matches!(objects.stream(&user, "other.csv").await, Err(ObjectError::NotFound)));
        assert_eq!(objects.sweep_results(Timestamp::from_millis(0)).await.unwrap(), 0);
        assert_eq!(objects.sweep_results(Timestamp::MAX).await.unwrap(), 2);
        assert!(matches!(objects.stream(&task, "result.csv").await, Err(ObjectError::NotFound)));
        assert!(objects.stream(&kept, "result.csv").await.is_ok());
    }
}
