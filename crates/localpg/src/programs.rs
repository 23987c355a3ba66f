//! Where Postgres is installed, and the user it may run as.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nix::unistd::{User, geteuid};

/// Where Debian and its relatives put each major version, without a link in PATH.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Postgres's programs, ready to be run.
#[derive(Debug)]
pub struct Programs {
    folder: PathBuf,
    /// Set when this process is root, as which Postgres refuses to run.
    user: Option<User>,
}

impl Programs {
    /// Looks in PATH first, so that a developer can choose, and then for the newest version.
    pub fn find() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folder = std::env::split_paths(&path)
            .filter_map(|folder| installation(&folder))
            .next()
            .or_else(newest)
            .with_context(|| format!("Postgres is not installed: no initdb and postgres in PATH or {VERSIONS}"))?;
        let user = if geteuid().is_root() { Some(unprivileged()?) } else { None };
        Ok(Self { folder, user })
    }

    /// The path of one of Postgres's own programs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A command that runs in `folder`, as the user that Postgres may run as.
    pub fn command(&self, program: impl AsRef<Path>, folder: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(folder).env("LC_ALL", "C").stdin(Stdio::null());
        if let Some(user) = &self.user {
            // Also lets go of root's other groups.
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }

    /// Hands a file or folder to the user that Postgres may run as.
    pub fn hand_over(&self, path: &Path) -> io::Result<()> {
        match &self.user {
            Some(user) => chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())),
            None => Ok(()),
        }
    }
}

/// The folder itself if both programs are in it. A link is followed first: Postgres finds its other
/// files from where it really is.
fn installation(folder: &Path) -> Option<PathBuf> {
    let postgres = fs::canonicalize(folder.join("postgres")).ok()?;
    let folder = postgres.parent()?;
    (postgres.is_file() && folder.join("initdb").is_file()).then(|| folder.to_owned())
}

fn newest() -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    fs::read_dir(VERSIONS)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((version(&path)?, installation(&path.join("bin"))?)))
        .max()
        .map(|(_, folder)| folder)
}

fn unprivileged() -> Result<User> {
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(user);
        }
    }
    None.context("Postgres does not run as root, and there is no user postgres or nobody")
}
