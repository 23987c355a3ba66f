//! One server for all test processes of a workspace, which outlives each of them.
//!
//! A folder with a lock file stands for the server. Who holds the lock either joins the server that
//! the file names or starts one and writes its name there. See `supervise.sh` for how it ends.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_localpg::{Cluster, Pauses, Programs};
use tokio::net::TcpStream;

use super::SETTINGS;
use crate::ports::Port;
use crate::scratch;

const SUPERVISE: &str = include_str!("supervise.sh");

/// How long the server stays when no test uses it.
const IDLE: Duration = Duration::from_secs(120);

/// How often a test process says that it uses the server.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// How long a busy server may take to let a test in.
const ENTRY: Duration = Duration::from_secs(90);

/// The port of the shared server. The server stays while this process runs.
pub(super) async fn join_or_start() -> Result<u16> {
    let programs = Programs::find()?;
    let home = scratch::folder(&home_name())?;
    // The script that ends the server deletes its folder from here.
    programs.hand_over(&home)?;
    let path = home.join("lock");
    let mut lock = tokio::task::spawn_blocking(move || lock(&path)).await??;
    let mut recorded = String::new();
    lock.read_to_string(&mut recorded)?;
    // Empty when nobody has started a server yet.
    if !recorded.is_empty() {
        let server = PathBuf::from(recorded);
        if let Some(port) = join(&server).await? {
            keep_in_use(server);
            return Ok(port);
        }
    }
    let (server, port) = start(&programs, &home, IDLE).await?;
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(server.as_os_str().as_encoded_bytes())?;
    keep_in_use(server);
    Ok(port)
}

/// Workspaces do not share a server, and neither do versions of these helpers that would start it
/// in different ways.
fn home_name() -> String {
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_MANIFEST_DIR"), SETTINGS, SUPERVISE).hash(&mut hasher);
    format!("postgres-{:016x}", hasher.finish())
}

/// Waits for the lock, which is let go when the file is closed.
fn lock(path: &Path) -> Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    file.lock()?;
    Ok(file)
}

/// The port of the server in this folder, unless the server has ended or is about to.
async fn join(server: &Path) -> Result<Option<u16>> {
    // Before the look at the port, see `supervise.sh`. Fails when there is no such folder.
    if use_once(server).is_err() {
        return Ok(None);
    }
    let Ok(port) = fs::read_to_string(server.join("port")) else {
        return Ok(None);
    };
    let port = port.parse().context("the port of the shared server")?;
    let cluster = Cluster::at(server.to_owned());
    let mut pauses = Pauses::until(ENTRY);
    loop {
        match cluster.answers(port).await {
            Ok(true) => return Ok(Some(port)),
            // Somebody listens there, who may have no place left just now.
            Err(_) if TcpStream::connect(("127.0.0.1", port)).await.is_ok() => {}
            // It was not ended on purpose, so nobody else deletes what is left of it.
            Ok(false) | Err(_) => {
                fs::remove_dir_all(server)?;
                return Ok(None);
            }
        }
        if pauses.pause().await.is_break() {
            bail!("the server on port {port} lets nobody in after {ENTRY:?}");
        }
    }
}

/// Starts a server that does not end with this process, in a new folder inside of `home`.
async fn start(programs: &Programs, home: &Path, idle: Duration) -> Result<(PathBuf, u16)> {
    // Deleted when starting fails.
    let folder = tempfile::Builder::new().prefix("server-").tempdir_in(home)?;
    let cluster = Cluster::create(programs, folder.path()).await?;
    // Once the server is up, its being there keeps others from the port.
    let reservation = Port::try_reserve()?;
    let port = reservation.number();
    let mut supervisor = supervise(programs, &cluster, folder.path(), port, idle)?;
    tokio::select! {
        ready = cluster.wait_until_ready(&mut supervisor, port) => ready?,
        // One that starts slowly is not idle.
        () = use_on_and_on(folder.path()) => {}
    }
    fs::write(folder.path().join("port"), port.to_string())?;
    Ok((folder.keep(), port))
}

/// Its own process group keeps the server from what is meant for the test only: nextest ends the
/// group of a test that takes too long, a terminal sends Ctrl-C to the group in front.
fn supervise(programs: &Programs, cluster: &Cluster, folder: &Path, port: u16, idle: Duration) -> Result<Child> {
    let script = folder.join("supervise.sh");
    fs::write(&script, SUPERVISE)?;
    programs.hand_over(&script)?;
    let (out, err) = cluster.log()?;
    programs
        .command("/bin/sh", &std::env::temp_dir())
        .arg(script)
        .arg(folder)
        .arg(idle.as_secs().to_string())
        .args(cluster.server(programs, port, &SETTINGS))
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .context("cannot start the supervisor of the shared server")
}

fn use_once(server: &Path) -> std::io::Result<()> {
    File::create(server.join("in_use")).map(drop)
}

/// Says that the server is in use for as long as this is waited for, which never ends by itself.
async fn use_on_and_on(server: &Path) {
    loop {
        let _ = use_once(server);
        tokio::time::sleep(SIGN_OF_LIFE).await;
    }
}

/// Says that the server is in use until this process ends.
fn keep_in_use(server: PathBuf) {
    std::thread::spawn(move || {
        loop {
            // Without the folder the server is gone, which the test notices by itself.
            let _ = use_once(&server);
            std::thread::sleep(SIGN_OF_LIFE);
        }
    });
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::wait_until;

    #[tokio::test]
    async fn a_server_ends_and_takes_its_files_along_when_nobody_uses_it() {
        let programs = Programs::find().unwrap();
        let home = TempDir::new().unwrap();
        programs.hand_over(home.path()).unwrap();
        let idle = Duration::from_secs(6);
        let (server, port) = start(&programs, home.path(), idle).await.unwrap();
        // Longer than the limit, with signs of life in between.
        for _ in 0..80 {
            use_once(&server).unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(join(&server).await.unwrap(), Some(port));
        wait_until("the server's folder is gone", ENTRY, async || !server.exists()).await;
        assert_eq!(join(&server).await.unwrap(), None);
        TcpStream::connect(("127.0.0.1", port)).await.unwrap_err();
    }
}
