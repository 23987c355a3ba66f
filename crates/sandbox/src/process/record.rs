use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::provider::RuntimeId;
use crate::spec::Spec;

const FILE: &str = "sandbox.json";
const ROOT: &str = "root";

/// Begins the name of a folder that is not a sandbox yet, or not any more.
const SCRAP: &str = "scrap-";

/// What is kept of a sandbox on disk, in its folder beside the folder `root` that is its `/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: RuntimeId,
    pub(super) sandbox_id: String,
    pub(super) image: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) die_with_parent: bool,
    created_ms: u64,
}

impl Record {
    pub(super) fn new(id: RuntimeId, spec: Spec) -> Self {
        let created_ms = since_epoch_ms(SystemTime::now());
        let Spec { sandbox_id, image, env, metadata, die_with_parent, .. } = spec;
        Self { id, sandbox_id, image, env, metadata, die_with_parent, created_ms }
    }

    pub(super) fn created(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.created_ms)
    }
}

fn since_epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The folder that has the folders of all sandboxes.
#[derive(Debug)]
pub(super) struct Folders {
    path: PathBuf,
    /// Locked as long as this process uses the folder.
    _lock: fs::File,
}

impl Folders {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let path = path.canonicalize()?;
        let lock = fs::File::create(path.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => {
                Err(io::Error::other(format!("another process uses {}", path.display())))
            }
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    pub(super) fn root(&self, id: &RuntimeId) -> PathBuf {
        self.path.join(&id.0).join(ROOT)
    }

    /// Makes the folder of a sandbox. It appears when it is complete.
    pub(super) fn create(&self, record: &Record) -> io::Result<()> {
        let scrap = self.scrap(&record.id);
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        private.create(&scrap)?;
        for name in ["", "workspace", "tmp"] {
            private.create(scrap.join(ROOT).join(name))?;
        }
        fs::write(scrap.join(FILE), serde_json::to_vec(record)?)?;
        fs::rename(&scrap, self.path.join(&record.id.0))
    }

    /// Takes a sandbox's folder away; the rest is `sweep`'s. An absent folder is not an error.
    pub(super) fn discard(&self, id: &RuntimeId) -> io::Result<()> {
        match fs::rename(self.path.join(&id.0), self.scrap(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn scrap(&self, id: &RuntimeId) -> PathBuf {
        self.path.join(format!("{SCRAP}{id}"))
    }

    /// Removes what was discarded.
    pub(super) fn sweep(&self, id: &RuntimeId) -> crate::Result<()> {
        self.remove(&format!("{SCRAP}{id}"))
    }

    fn remove(&self, name: &str) -> crate::Result<()> {
        match crate::files::Root::open(&self.path)?.delete(&format!("/{name}"), true) {
            Err(error) if error.kind() == crate::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// The sandboxes that are there besides those that are held. Folders that are none are removed, and those of sandboxes
    /// that ended with their parent.
    pub(super) fn adopt(&self, held: &[RuntimeId]) -> crate::Result<Vec<Record>> {
        let read = |error: io::Error| {
            crate::Error::internal(format!("{} cannot be read", self.path.display())).with_source(error)
        };
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(read)? {
            let entry = entry.map_err(read)?;
            if !entry.file_type().map_err(read)?.is_dir() {
                continue;
            }
            match (Self::record(&entry.path()), entry.file_name().into_string()) {
                (Some(record), _) if held.contains(&record.id) => {}
                (Some(record), Ok(name)) if name == record.id.0 && !record.die_with_parent => records.push(record),
                (_, Ok(name)) => self.remove(&name)?,
                (_, Err(name)) => tracing::warn!(?name, "a folder that is not a sandbox was left alone"),
            }
        }
        records.sort_by_key(|record| record.created_ms);
        Ok(records)
    }

    fn record(folder: &Path) -> Option<Record> {
        serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()
    }
}
