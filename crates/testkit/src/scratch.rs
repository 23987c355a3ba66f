//! One folder below the system's temp folder for what test processes of one user share.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

/// Makes (or finds) the folder `name` inside this user's scratch folder.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    let user = geteuid().as_raw();
    let top = std::env::temp_dir().join(format!("tenure-testkit-{user}"));
    make(&top)?;
    // The temp folder is open to all, and the name can be guessed: a folder that someone else laid
    // there must not be trusted with lock files or with what to connect to.
    let owner = fs::symlink_metadata(&top)?.uid();
    ensure!(owner == user, "{} belongs to user {owner}", top.display());
    let top = fs::canonicalize(top)?;
    let folder = top.join(name);
    make(&folder)?;
    Ok(folder)
}

fn make(folder: &Path) -> Result<()> {
    match fs::create_dir(folder) {
        // Whatever the umask is: Postgres may run as another user and has to pass through.
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot make {}", folder.display()));
        }
    }
    Ok(())
}
