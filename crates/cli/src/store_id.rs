//! The Postgres store that a data folder belongs to. A server that is pointed at another database by mistake would find no
//! tasks there, and nobody would notice that work is missing.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tenure_auth::Secret;
use tenure_engine::Engine;
use tenure_engine::store::STORE_ID;

pub fn path_in(data: &Path) -> PathBuf {
    data.join("store-id")
}

/// The store that this data folder was last used with.
pub fn recorded(data: &Path) -> anyhow::Result<Option<String>> {
    let path = path_in(data);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} could not be read", path.display())),
    }
}

/// Compares the identity of the store with the one in the data folder, or records it there. A server without a data folder
/// compares nothing.
pub async fn check(engine: &Engine, data: &Path) -> anyhow::Result<()> {
    let own = engine.identity().shared_secret(STORE_ID, Secret::random().reveal()).await;
    let own = own.context("the identity of the store could not be read")?;
    let path = path_in(data);
    match recorded(data)? {
        Some(recorded) if recorded == own => Ok(()),
        Some(_) => anyhow::bail!(
            "the Postgres database is not the store that {} records. Check the address of the store; if this one is right, remove \
             {0} and start again",
            path.display(),
        ),
        None if data.is_dir() => write(data, &path, &own)
            .with_context(|| format!("the identity of the store could not be recorded in {}", path.display())),
        None => Ok(()),
    }
}

/// In one step: a record that was written half would refuse the store.
fn write(data: &Path, path: &Path, id: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = tempfile::NamedTempFile::new_in(data)?;
    writeln!(file, "{id}")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
