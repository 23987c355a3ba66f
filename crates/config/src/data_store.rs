//! Where rows of buffered datasets are kept.

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::settings::Settings;
use super::store_url::StoreUrl;

const URL: &str = "dispatch.data_store.url";
const READ_URL: &str = "dispatch.data_store.read_url";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataPlace {
    /// A file of SQLite.
    File(PathBuf),
    Postgres(StoreUrl),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataStoreSettings {
    pub place: DataPlace,
    /// The address of a role that can only read.
    pub read_url: Option<StoreUrl>,
}

/// With a store on Postgres the same server has the rows, unless another one is named: several control planes cannot share
/// a file.
pub(crate) fn data_store(settings: &Settings, data: &Path, store: &StoreUrl) -> Result<DataStoreSettings, ConfigError> {
    let postgres = |key: &str| match settings.plain(key) {
        None => Ok(None),
        Some(text) => match StoreUrl::parse(&text).ok().filter(StoreUrl::is_postgres) {
            Some(url) => Ok(Some(url)),
            // Not quoted: it may hold a password.
            None => Err(settings.wrong(key, "must start with postgres://")),
        },
    };
    let read_url = postgres(READ_URL)?;
    let place = match postgres(URL)? {
        Some(url) => DataPlace::Postgres(url),
        None if store.is_postgres() => DataPlace::Postgres(store.clone()),
        None => DataPlace::File(data.join("data.db")),
    };
    if read_url.is_some() && matches!(place, DataPlace::File(_)) {
        return Err(
            settings.wrong(READ_URL, "is set, but the data store is not a Postgres: set dispatch.data_store.url")
        );
    }
    Ok(DataStoreSettings { place, read_url })
}
