//! API keys that `tenure login` keeps, by server.
//!
//! A key is stored under the address of its server and read for that address only, so that it is sent to nobody else.
//! Only its owner may read the file. A file that others can read is rejected, because its contents are no longer secret.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::exit::Stop;
use crate::token;

const FILE: &str = "credentials.json";

/// The data folder: `TENURE_DATA`, else `~/.tenure`.
pub fn user_folder() -> Option<PathBuf> {
    let data = std::env::var_os("TENURE_DATA").filter(|data| !data.is_empty()).map(PathBuf::from);
    data.or_else(|| std::env::home_dir().map(|home| home.join(".tenure")))
}

pub struct Credentials {
    path: PathBuf,
}

/// What is in the file. It does not print.
#[derive(Default, Serialize, Deserialize)]
struct Stored {
    servers: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    api_key: String,
}

impl Credentials {
    /// Those in the folder of the user.
    pub fn of_user() -> Option<Self> {
        user_folder().map(|data| Self::in_folder(&data))
    }

    fn in_folder(data: &Path) -> Self {
        Self { path: data.join(FILE) }
    }

    /// The key that is stored for a server.
    pub fn key_of(&self, server: &str) -> anyhow::Result<Option<String>> {
        let mut stored = self.read()?;
        Ok(name_of(server).and_then(|name| stored.servers.remove(&name)).map(|entry| entry.api_key))
    }

    pub fn store(&self, server: &str, key: &str) -> anyhow::Result<()> {
        let name = name_of(server).with_context(|| format!("`{server}` is not a server address"))?;
        self.change(|stored| {
            stored.servers.insert(name, Entry { api_key: key.to_owned() });
            true
        })?;
        Ok(())
    }

    /// Whether there was a key.
    pub fn forget(&self, server: &str) -> anyhow::Result<bool> {
        if !self.path.exists() {
            return Ok(false);
        }
        let name = name_of(server).unwrap_or_default();
        self.change(|stored| stored.servers.remove(&name).is_some())
    }

    /// Reads, changes, and writes what was changed. The file appears whole or not at all, and of two that change it at
    /// a time the second sees what the first one wrote.
    fn change(&self, change: impl FnOnce(&mut Stored) -> bool) -> anyhow::Result<bool> {
        let folder = self.path.parent().context("the credentials have no folder")?;
        token::make_data_folder(folder)?;
        let lock = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
        let _lock = lock.with_context(|| format!("{} could not be locked", folder.display()))?;
        let mut stored = self.read()?;
        if !change(&mut stored) {
            return Ok(false);
        }
        let text = serde_json::to_string_pretty(&stored)?;
        let write = || -> io::Result<()> {
            // Temporary files are made with mode 0600.
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            writeln!(file, "{text}")?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            File::open(folder)?.sync_all()
        };
        write().with_context(|| format!("{} could not be written", self.path.display()))?;
        Ok(true)
    }

    fn read(&self) -> anyhow::Result<Stored> {
        let path = self.path.display();
        let unreadable = |error: io::Error| Stop::usage(format!("the stored keys in {path} cannot be read: {error}"));
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stored::default()),
            opened => opened.map_err(unreadable)?,
        };
        if file.metadata().map_err(unreadable)?.permissions().mode() & 0o077 != 0 {
            return Err(Stop::usage(format!("other users can read the stored keys in {path}"))
                .hint(format!("chmod 600 {path}; consider creating new keys"))
                .into());
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(unreadable)?;
        // What serde says may quote the file.
        serde_json::from_str(&text).map_err(|error| {
            let message = format!("{path} is damaged in line {}, column {}", error.line(), error.column());
            Stop::usage(message).hint("remove it and log in again").into()
        })
    }
}

/// One name for all ways to write the address of a server.
fn name_of(server: &str) -> Option<String> {
    let mut url = Url::parse(server.trim()).ok().filter(Url::has_host)?;
    url.set_query(None);
    url.set_fragment(None);
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    Some(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_key_is_kept_for_its_server_only() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::in_folder(&folder.path().join("data"));
        assert_eq!(credentials.key_of("http://a:1").unwrap(), None);
        assert!(!credentials.forget("http://a:1").unwrap());
        credentials.store("http://a:1", "one").unwrap();
        credentials.store("https://b", "two").unwrap();
        for (server, key) in [
            ("http://a:1", Some("one")),
            ("http://A:1/", Some("one")),
            ("https://b:443/", Some("two")),
            ("http://b", None),
            ("https://a:1", None),
            ("http://a:1/base", None),
            ("http://a:2", None),
            ("http://a:1@evil", None),
            ("nonsense", None),
        ] {
            assert_eq!(credentials.key_of(server).unwrap().as_deref(), key, "{server}");
        }
        assert!(credentials.forget("http://a:1/").unwrap());
        assert_eq!(credentials.key_of("http://a:1").unwrap(), None);
        assert_eq!(credentials.key_of("https://b").unwrap().as_deref(), Some("two"));
        assert_eq!((mode(&credentials.path), mode(&folder.path().join("data"))), (0o600, 0o700));
        assert_eq!(std::fs::read_dir(folder.path().join("data")).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::in_folder(folder.path());
        credentials.store("http://a:1", "hunter2").unwrap();
        for exposed in [0o640, 0o604, 0o622, 0o644] {
            std::fs::set_permissions(&credentials.path, std::fs::Permissions::from_mode(exposed)).unwrap();
            for refused in [credentials.key_of("http://a:1").map(drop), credentials.store("http://b", "other")] {
                let error = format!("{:?}", refused.unwrap_err());
                assert!(error.contains("other users can read") && !error.contains("hunter2"), "{error}");
            }
        }
    }

    #[test]
    fn a_damaged_file_is_refused_without_being_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::in_folder(folder.path());
        credentials.store("http://a:1", "x").unwrap();
        std::fs::write(&credentials.path, r#"{"servers": {"http://a:1": "hunter2"}}"#).unwrap();
        let error = format!("{:?}", credentials.key_of("http://a:1").unwrap_err());
        assert!(error.contains("line 1") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn keys_that_are_stored_at_a_time_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let credentials = Credentials::in_folder(folder.path());
                scope.spawn(move || credentials.store(&format!("http://h:{}", 100 + number), "k").unwrap());
            }
        });
        let credentials = Credentials::in_folder(folder.path());
        assert!((0..8).all(|n| credentials.key_of(&format!("http://h:{}", 100 + n)).unwrap().is_some()));
    }
}
