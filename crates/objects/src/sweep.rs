//! Removes what attempts and uploads have left behind and nobody has committed.

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::path::Path;
use tenure_core::Timestamp;
use tenure_core::objects::{MANIFEST, SUCCESS, Staged};
use tokio::sync::mpsc;

use crate::error::ObjectError;
use crate::folder;
use crate::store::{Backing, Objects, blocking};

/// How many are judged at a time.
const PAGE: usize = 100;

/// How many groups wait to be judged.
const AHEAD: usize = 1_000;

/// What an attempt or an upload left in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub staged: Staged,
    /// It has a `_SUCCESS` or a manifest: without either it was never committed.
    pub is_finished: bool,
}

/// Knows what is committed.
#[async_trait]
pub trait Judge: Send + Sync {
    /// For each, whether it may be removed. It may not if it is committed, or if its attempt may still report: the
    /// report could commit it between this answer and the removal.
    async fn removable(&self, left: &[Left]) -> Result<Vec<bool>, ObjectError>;
}

/// What one sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Outputs, scratch folders and bundles that were looked at.
    pub seen: u64,
    /// Those that were old enough and are kept, because they are committed or may still be.
    pub kept: u64,
    pub removed: u64,
    /// Those that could not be removed; the next sweep tries again.
    pub failed: u64,
    /// It stopped because it had removed as many as it may.
    pub has_more: bool,
}

/// All objects of one attempt for one output, or of one upload.
struct Group {
    left: Left,
    newest: Timestamp,
}

impl Objects {
    /// Removes staged outputs, scratch folders and bundles in which nothing has changed since `before`, if the judge lets it,
    /// and stops soon after it has removed `most`. Reads the names of all objects there are; memory does not grow with them. A
    /// crash in between leaves parts without their `_SUCCESS`, for the next sweep.
    pub async fn sweep(&self, before: Timestamp, most: u64, judge: &dyn Judge) -> Result<Swept, ObjectError> {
        let (send, mut groups) = mpsc::channel(AHEAD);
        let mut swept = Swept::default();
        let judging = async {
            let mut page = Vec::with_capacity(PAGE);
            while groups.recv_many(&mut page, PAGE).await > 0 {
                swept.seen += page.len() as u64;
                page.retain(|group: &Group| group.newest < before);
                let old: Vec<Left> = page.drain(..).map(|group| group.left).collect();
                self.remove_old(&old, judge, &mut swept).await?;
                if swept.removed >= most {
                    swept.has_more = true;
                    break;
                }
            }
            // Nobody reads any more names.
            drop(groups);
            Ok(())
        };
        let (found, judged) = tokio::join!(self.groups(send), judging);
        found.and(judged)?;
        Ok(swept)
    }

    async fn remove_old(&self, old: &[Left], judge: &dyn Judge, swept: &mut Swept) -> Result<(), ObjectError> {
        if old.is_empty() {
            return Ok(());
        }
        let removable = judge.removable(old).await?;
        for (at, left) in old.iter().enumerate() {
            if !removable.get(at).is_some_and(|removable| *removable) {
                swept.kept += 1;
                continue;
            }
            match self.remove(&left.staged).await {
                Ok(()) => swept.removed += 1,
                Err(error) => {
                    tracing::warn!(error = %error, "cannot remove what was left in the object store");
                    swept.failed += 1;
                }
            }
        }
        Ok(())
    }

    /// Removes all that lies there, first what says that it is finished.
    pub async fn remove(&self, staged: &Staged) -> Result<(), ObjectError> {
        let markers = [SUCCESS, MANIFEST];
        let prefix = self.layout.root().below(&staged.path())?;
        let place = self.place(&prefix)?;
        if let Backing::Folder { folder, .. } = &self.backing {
            let (root, below) = (folder.clone(), place.key(""));
            return self
                .within("remove", async move { blocking(move || folder::remove(&root, &below, &markers)).await? })
                .await;
        }
        let first: Vec<_> = markers.iter().map(|name| place.path(name)).collect::<Result<_, _>>()?;
        let rest = place.store.list(Some(&place.path("")?)).map(|found| found.map(|meta| meta.location));
        let all = futures_util::stream::iter(first.into_iter().map(Ok)).chain(rest);
        let mut removed = place.store.delete_stream(all.boxed());
        while let Some(result) = self.within("remove", async { Ok(removed.next().await) }).await? {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends what there is, each output once: its objects follow each other in every listing.
    async fn groups(&self, send: mpsc::Sender<Group>) -> Result<(), ObjectError> {
        if let Backing::Folder { folder, .. } = &self.backing {
            let root = folder.clone();
            return blocking(move || walk(&root, &send)).await;
        }
        let base = self.place(self.layout.root())?.base;
        for top in ["dataset", "scratch", "bundles"] {
            let place = self.place(&self.layout.root().below(top)?)?;
            let mut objects = place.store.list(Some(&place.path("")?));
            let mut group: Option<Group> = None;
            while let Some(meta) = self.within("list", async { Ok(objects.next().await) }).await? {
                let meta = match meta {
                    // A name that cannot be used is none of ours.
                    Err(object_store::Error::InvalidPath { .. }) => continue,
                    other => other?,
                };
                let Some(staged) = staged_of(&meta.location, &base) else { continue };
                let at = Timestamp::from_millis(meta.last_modified.timestamp_millis());
                let name = meta.location.as_ref().strip_prefix(&format!("{base}{}", staged.path()));
                let is_finished = name.is_some_and(|name| name == SUCCESS || name == MANIFEST);
                match &mut group {
                    Some(group) if group.left.staged == staged => {
                        group.newest = group.newest.max(at);
                        group.left.is_finished |= is_finished;
                    }
                    _ => {
                        let left = Left { staged, is_finished };
                        let before = group.replace(Group { left, newest: at });
                        if !send_all(&send, before).await {
                            return Ok(());
                        }
                    }
                }
            }
            if !send_all(&send, group).await {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Returns false when nobody wants to hear more.
async fn send_all(send: &mpsc::Sender<Group>, group: Option<Group>) -> bool {
    match group {
        Some(group) => send.send(group).await.is_ok(),
        None => true,
    }
}

fn staged_of(path: &Path, base: &str) -> Option<Staged> {
    Staged::of(path.as_ref().strip_prefix(base)?)
}

/// The same for a folder: level by level, without following links.
fn walk(root: &std::path::Path, send: &mpsc::Sender<Group>) {
    let mut found = |path: &std::path::Path, below: &str| {
        let Some(staged) = Staged::of(&format!("{below}/x")) else { return true };
        let Some(newest) = folder::newest(path) else { return true };
        let is_finished = [SUCCESS, MANIFEST].iter().any(|marker| path.join(marker).is_file());
        send.blocking_send(Group { left: Left { staged, is_finished }, newest }).is_ok()
    };
    let _ = descend(&root.join("dataset"), "dataset", &["*", "version", "*", "staging", "*", "*", "*"], &mut found)
        && descend(&root.join("scratch"), "scratch", &["*", "*"], &mut found)
        && descend(&root.join("bundles"), "bundles", &["*", "*"], &mut found);
}

fn descend(
    path: &std::path::Path,
    below: &str,
    levels: &[&str],
    found: &mut dyn FnMut(&std::path::Path, &str) -> bool,
) -> bool {
    let Some((level, deeper)) = levels.split_first() else { return found(path, below) };
    let mut inside = folder::folders(path).filter(|(name, _)| *level == "*" || name == level);
    inside.all(|(name, path)| descend(&path, &format!("{below}/{name}"), deeper, found))
}
