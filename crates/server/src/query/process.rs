//! A query process of this server: started, watched, and started again when it ends.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::FlockOperation;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::Endpoint;

/// Before the next start. Twice as long after each, if it does not live long.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const LONG_LIFE: Duration = Duration::from_secs(30);
/// Processes of servers that share a folder.
const FOLDERS: usize = 256;
/// A Unix socket cannot have a longer path.
const SOCKET_BYTES: usize = 100;
const SOCKET: &str = "query.sock";

/// What is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryProcess {
    pub binary: PathBuf,
    /// Where its socket is and what does not fit into memory.
    pub folder: PathBuf,
    pub at_once: u16,
    pub waiting: u16,
    pub memory_mib: u32,
    pub timeout: Duration,
}

/// Keeps one running. It ends with this.
#[derive(Debug)]
pub struct Supervisor {
    folder: PathBuf,
    _watch: AbortOnDropHandle<()>,
    /// The folder is this server's as long as it is locked.
    _lock: File,
}

impl Supervisor {
    pub fn start(settings: QueryProcess) -> io::Result<Self> {
        let (folder, lock) = own_folder(&settings.folder)?;
        let watch = AbortOnDropHandle::new(tokio::spawn(watch(settings, folder.clone())));
        Ok(Self { folder, _watch: watch, _lock: lock })
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.folder.join(SOCKET))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.folder.join(SOCKET));
    }
}

/// A folder that no other server uses. What one that was killed has left in it is removed by the process.
fn own_folder(base: &Path) -> io::Result<(PathBuf, File)> {
    let private = |folder: &Path| DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let fits = base.join("query-000").join(SOCKET).as_os_str().len() <= SOCKET_BYTES;
    if fits && private(base).is_ok() {
        return lock_one(base);
    }
    let user = rustix::process::getuid().as_raw();
    let base = std::env::temp_dir().join(format!("tenure-{user}"));
    private(&base)?;
    let meta = base.symlink_metadata()?;
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other("the folder for the query process in the temporary folder is not private"));
    }
    lock_one(&base)
}

fn lock_one(base: &Path) -> io::Result<(PathBuf, File)> {
    for number in 0..FOLDERS {
        let lock = base.join(format!("query-{number}.lock"));
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock)?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let folder = base.join(format!("query-{number}"));
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        return Ok((folder, lock));
    }
    Err(io::Error::other("too many servers share the folder"))
}

async fn watch(settings: QueryProcess, folder: PathBuf) {
    let mut pause = PAUSE;
    loop {
        let started = Instant::now();
        match spawn(&settings, &folder) {
            Ok(mut child) => {
                tracing::info!(process.id = child.id(), "query process started");
                // It ends when this is closed, as it is when this process is killed.
                let _stdin = child.stdin.take();
                let ended = child.wait().await;
                let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                tracing::warn!(status, "the query process ended: starting another one");
                metrics::counter!("tenure_query_process_restarts_total").increment(1);
            }
            Err(error) => tracing::error!(%error, "cannot start the query process"),
        }
        pause = if started.elapsed() >= LONG_LIFE { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tokio::time::sleep(pause).await;
    }
}

/// The process gets nothing of the environment of this one, which may hold credentials.
fn spawn(settings: &QueryProcess, folder: &Path) -> io::Result<Child> {
    let socket = folder.join(SOCKET);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    Command::new(&settings.binary)
        .arg("--with-parent")
        .arg("--socket")
        .arg(socket)
        .arg("--spill")
        .arg(folder.join("spill"))
        .args(["--at-once", &settings.at_once.to_string()])
        .args(["--waiting", &settings.waiting.to_string()])
        .args(["--memory-mib", &settings.memory_mib.to_string()])
        .args(["--timeout-seconds", &settings.timeout.as_secs().max(1).to_string()])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_on_one_folder_have_a_folder_each() {
        let base = tempfile::tempdir().unwrap();
        let first = own_folder(base.path()).unwrap();
        let second = own_folder(base.path()).unwrap();
        assert_ne!(first.0, second.0);
        let name = first.0.clone();
        drop(first);
        assert_eq!(own_folder(base.path()).unwrap().0, name);
    }

    #[test]
    fn a_folder_with_a_long_name_is_not_used_for_the_socket() {
        let base = tempfile::tempdir().unwrap();
        let long = base.path().join("x".repeat(100));
        let (folder, _lock) = own_folder(&long).unwrap();
        assert!(folder.join(SOCKET).as_os_str().len() <= SOCKET_BYTES, "{folder:?}");
    }
}
