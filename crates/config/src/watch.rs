//! Noticing that a file of the configuration has changed.
//!
//! By looking, not with the crate `notify`: file events do not cross network file systems, and Kubernetes replaces secrets
//! by moving a link two folders up, where nobody watches.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often files are looked at. With the time of a reload it stays well within the 5 s that are promised.
const PERIOD: Duration = Duration::from_secs(2);

/// Looks at files from time to time. It has no thread: callers poll it.
#[derive(Debug)]
pub struct Watcher {
    files: Vec<(PathBuf, Option<Mark>)>,
    looked_at: Instant,
}

/// What differs when a file was written, replaced, or reached through another link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// Where links lead. Kubernetes replaces secrets by pointing a link to another folder.
    target: Option<PathBuf>,
}

impl Watcher {
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let files = paths.into_iter().map(|path| {
            let mark = mark(&path);
            (path, mark)
        });
        Self { files: files.collect(), looked_at: Instant::now() }
    }

    /// Whether a file changed since the last question that found one. Looks at most every 2 s; before that it is no.
    pub fn changed(&mut self) -> bool {
        if self.looked_at.elapsed() < PERIOD {
            return false;
        }
        self.look()
    }

    /// The same at once, as after SIGHUP.
    pub fn look(&mut self) -> bool {
        self.looked_at = Instant::now();
        let mut changed = false;
        for (path, known) in &mut self.files {
            let now = mark(path);
            changed |= now != *known;
            *known = now;
        }
        changed
    }

    /// Watches these files from now on. What is known about those that stay is kept, so that no change between a
    /// reload and this call is missed.
    pub fn follow(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let known = std::mem::take(&mut self.files);
        self.files = paths
            .into_iter()
            .map(|path| match known.iter().find(|(old, _)| *old == path) {
                Some((_, mark)) => (path, mark.clone()),
                None => {
                    let mark = mark(&path);
                    (path, mark)
                }
            })
            .collect();
    }
}

/// A file that cannot be looked at is as one that is not there.
fn mark(path: &Path) -> Option<Mark> {
    let data = fs::metadata(path).ok()?;
    Some(Mark {
        device: data.dev(),
        inode: data.ino(),
        length: data.len(),
        modified: (data.mtime(), data.mtime_nsec()),
        changed: (data.ctime(), data.ctime_nsec()),
        target: fs::canonicalize(path).ok(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with a file `secret`, and a watcher that looks whenever it is asked.
    fn watched() -> (tempfile::TempDir, PathBuf, Watcher) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "one").unwrap();
        let watcher = Watcher::new([path.clone()]);
        (folder, path, watcher)
    }

    #[test]
    fn writing_replacing_and_removing_are_noticed_once_each() {
        let (folder, path, mut watcher) = watched();
        assert!(!watcher.look());
        fs::write(&path, "other").unwrap();
        assert!(watcher.look() && !watcher.look());
        // The same length and, set back, the same time.
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let new = folder.path().join("new");
        fs::write(&new, "third").unwrap();
        fs::File::open(&new).unwrap().set_modified(time).unwrap();
        fs::rename(&new, &path).unwrap();
        assert!(watcher.look() && !watcher.look());
        fs::remove_file(&path).unwrap();
        assert!(watcher.look() && !watcher.look());
        fs::write(&path, "back").unwrap();
        assert!(watcher.look() && !watcher.look());
    }

    #[test]
    fn a_link_that_is_swapped_is_noticed() {
        // As Kubernetes mounts secrets: token -> ..data/token, ..data -> ..1.
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for version in ["..1", "..2"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("token"), version).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/token", at("token")).unwrap();
        let mut watcher = Watcher::new([at("token")]);
        assert!(!watcher.look());
        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert!(watcher.look() && !watcher.look());
    }

    #[test]
    fn it_looks_only_now_and_then() {
        let (_folder, path, mut watcher) = watched();
        fs::write(&path, "other").unwrap();
        assert!(!watcher.changed(), "it looked too soon");
        watcher.looked_at = Instant::now().checked_sub(PERIOD).unwrap();
        assert!(watcher.changed());
    }

    #[test]
    fn following_other_files_forgets_nothing_about_those_that_stay() {
        let (folder, path, mut watcher) = watched();
        fs::write(&path, "other").unwrap();
        let second = folder.path().join("second");
        watcher.follow([path, second.clone()]);
        assert!(watcher.look() && !watcher.look());
        fs::write(&second, "here").unwrap();
        assert!(watcher.look() && !watcher.look());
    }
}
