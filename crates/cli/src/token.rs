//! What a server on this machine makes for itself: the worker token, and the key that signs task tokens.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use tenure_auth::{Secret, TaskKeys};

/// Where a server keeps the token it made.
pub fn path_in(data: &Path) -> PathBuf {
    data.join("worker-token")
}

/// Puts another token in the place of the one in the data folder.
pub fn replace(data: &Path, secret: &Secret) -> anyhow::Result<()> {
    let path = path_in(data);
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(data)?;
        writeln!(file, "{}", secret.reveal())?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        Ok(())
    };
    write().with_context(|| format!("the worker token {} could not be replaced", path.display()))
}

/// Makes the data folder, for its owner only, unless it is there.
pub fn make_data_folder(data: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .with_context(|| format!("the data folder {} could not be created", data.display()))?;
    if std::fs::metadata(data).is_ok_and(|found| found.permissions().mode() & 0o004 != 0) {
        tracing::warn!("every user of this machine can list the data folder {0}: run chmod o-rwx {0}", data.display());
    }
    Ok(())
}

/// The token of the data folder; a new one if there is none yet. The flag says that it is new.
pub fn read_or_make(data: &Path) -> anyhow::Result<(Secret, bool)> {
    kept(data, &path_in(data), "worker token", || Ok(Secret::random()))
}

/// The key of the data folder that signs task tokens; a new one if there is none yet.
pub fn task_key(data: &Path) -> anyhow::Result<Secret> {
    let make = || TaskKeys::generate().context("a task key could not be created");
    Ok(kept(data, &data.join("task-key.pem"), "task key", make)?.0)
}

/// A secret in a file of the data folder, made if it is not there.
///
/// The file appears whole or not at all, and only its owner can read it. Of two servers that start together one makes
/// it, and both use it.
fn kept(
    data: &Path,
    path: &Path,
    what: &str,
    make: impl FnOnce() -> anyhow::Result<Secret>,
) -> anyhow::Result<(Secret, bool)> {
    if let Some(secret) = read(path, what)? {
        return Ok((secret, false));
    }
    let secret = make()?;
    let write = || -> io::Result<()> {
        // Temporary files are made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(data)?;
        writeln!(file, "{}", secret.reveal())?;
        file.as_file().sync_all()?;
        file.persist_noclobber(path)?;
        std::fs::File::open(data)?.sync_all()
    };
    match write() {
        Ok(()) => Ok((secret, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let secret = read(path, what)?.with_context(|| format!("{} disappeared", path.display()))?;
            Ok((secret, false))
        }
        Err(error) => Err(error).with_context(|| format!("the {what} {} could not be created", path.display())),
    }
}

fn read(path: &Path, what: &str) -> anyhow::Result<Option<Secret>> {
    match std::fs::read_to_string(path) {
        Ok(text) => match Secret::new(&text) {
            Some(secret) => Ok(Some(secret)),
            None => {
                anyhow::bail!("the {what} {} is empty: remove it, and the next start creates a new one", path.display())
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("the {what} {} could not be read", path.display())),
    }
}

/// Whether others than the owner can read it.
pub fn is_exposed(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_made_once_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a/b");
        make_data_folder(&data).unwrap();
        assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
        let (first, new) = read_or_make(&data).unwrap();
        assert!(new);
        assert_eq!(std::fs::metadata(path_in(&data)).unwrap().permissions().mode() & 0o777, 0o600);
        let (second, new) = read_or_make(&data).unwrap();
        assert!(!new && second.matches(first.reveal()));
        assert!(!is_exposed(&path_in(&data)).unwrap());
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 1);
    }

    #[test]
    fn an_empty_token_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(path_in(folder.path()), "\n").unwrap();
        assert!(read_or_make(folder.path()).unwrap_err().to_string().contains("is empty"));
    }
}
