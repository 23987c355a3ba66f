use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::settings::Settings;
use super::store_url::StoreUrl;

/// The store.
#[derive(Debug, Clone)]
pub struct Database {
    pub driver: Driver,
    /// Roots for the certificate of the Postgres.
    pub ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    Sqlite,
    Postgres,
}

pub(crate) fn database(settings: &Settings, data: &Path) -> Result<(Database, StoreUrl), ConfigError> {
    let ca_file = settings.path("database.tls.ca_file")?;
    let dsn = settings.plain("database.dsn");
    if settings.choice("database.driver")? == Some("postgres") {
        let missing = || settings.wrong("database.driver", "is postgres, but database.dsn is not set: set it");
        let url = StoreUrl::parse(&dsn.ok_or_else(missing)?).ok().filter(StoreUrl::is_postgres);
        let url = url.ok_or_else(|| settings.wrong("database.dsn", "must start with postgres://"))?;
        return Ok((Database { driver: Driver::Postgres, ca_file }, url));
    }
    if dsn.is_some() {
        return Err(settings.wrong("database.dsn", "is set, but database.driver is sqlite: set it to postgres"));
    }
    let path = settings.plain("database.path");
    let path = path.ok_or_else(|| settings.wrong("database.path", "is empty: name a file"))?;
    Ok((Database { driver: Driver::Sqlite, ca_file }, StoreUrl::sqlite(&data.join(path))))
}
