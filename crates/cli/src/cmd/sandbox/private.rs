//! A provider whose sandboxes end with this process, however it ends.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tenure_config::Config;
use tenure_sandbox::Provider;

use super::providers::{Callers, Name, Place};
use crate::exit::Exit;

/// How long what is left of a killed process may resist.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// A provider with a state folder of its own.
///
/// The folder has what is known about the sandboxes. A second process waits beside this one: whatever ends this one,
/// also SIGKILL, closes the pipe between them, and the second then removes what is left.
#[derive(Debug)]
pub struct Private {
    // Dropped in this order: a provider that is dropped leaves its state in order.
    provider: Arc<dyn Provider>,
    _folder: Folder,
    _sweeper: ChildStdin,
}

/// Removed when dropped. What cannot be removed is left to the sweeper.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Private {
    pub async fn open(name: Name, config: &Config) -> anyhow::Result<Self> {
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("tenure-sandbox-").permissions(private).tempdir();
        let folder = Folder(folder.context("cannot create a folder for the state of sandboxes")?.keep());
        let sweeper = sweeper(name, &folder.0)?;
        let provider = name.open_in(&folder.0, config, Callers::ThisMachine).await?;
        Ok(Self { provider, _folder: folder, _sweeper: sweeper })
    }

    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }
}

fn sweeper(name: Name, folder: &Path) -> anyhow::Result<ChildStdin> {
    let program = std::env::current_exe().context("this program does not know its own path")?;
    let mut command = Command::new(program);
    command.args(["sandbox", "sweep", "--provider", name.text()]).arg(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own: a Ctrl-C at the terminal is not for it.
    let mut child = command.process_group(0).spawn().context("the process that removes sandboxes was not started")?;
    let input = child.stdin.take().context("the process that removes sandboxes has no input")?;
    // It ends soon after the input is closed; somebody has to ask for its exit status.
    std::thread::Builder::new().name("tenure-sweeper".to_owned()).spawn(move || child.wait())?;
    Ok(input)
}

#[derive(Debug, clap::Args)]
pub struct SweepArgs {
    #[command(flatten)]
    place: Place,
    #[arg(long, value_enum)]
    provider: Name,
    folder: PathBuf,
}

/// Waits for the end of standard input, then removes the sandboxes of a folder and the folder.
pub async fn sweep(args: SweepArgs) -> anyhow::Result<Exit> {
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    let config = args.place.load()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match remove(args.provider, &args.folder, &config).await {
            Ok(()) => return Ok(Exit::Ok),
            // The processes that are dying may still hold the folder.
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn remove(name: Name, folder: &Path, config: &Config) -> anyhow::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let provider = name.open_in(folder, config, Callers::ThisMachine).await?;
    provider.adopt().await?;
    for runtime in provider.list().await? {
        provider.destroy(&runtime.id).await?;
    }
    drop(provider);
    Ok(fs::remove_dir_all(folder)?)
}
