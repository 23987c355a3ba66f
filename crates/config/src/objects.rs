//! Where outputs of tasks lie.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_core::objects::{Prefix, WriteTemplate};

use super::error::ConfigError;
use super::net;
use super::settings::Settings;
use super::transport::{is_region, within};

const URL: &str = "dispatch.object_store.url";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectPlace {
    Folder(PathBuf),
    /// A bucket, or a prefix in one.
    S3(Prefix),
}

#[derive(Debug, Clone)]
pub struct ObjectStoreSettings {
    pub place: ObjectPlace,
    pub endpoint_url: Option<String>,
    /// Absent: as the environment of AWS tools says.
    pub region: Option<String>,
    pub path_style: bool,
    /// Locations may begin with `file:`. Never with S3.
    pub allow_file: bool,
    pub write_prefixes: Vec<WriteTemplate>,
    /// How long outputs that nobody has committed are kept.
    pub staging_retention: Duration,
}

pub(crate) fn object_store(settings: &Settings, data: &Path) -> Result<ObjectStoreSettings, ConfigError> {
    let place = place(settings, data)?;
    let is_s3 = matches!(place, ObjectPlace::S3(_));
    let region = settings.plain("dispatch.object_store.region");
    if let Some(region) = region.as_deref().filter(|region| !is_region(region)) {
        return Err(settings.unfit("dispatch.object_store.region", "a region such as eu-central-1", region));
    }
    let endpoint_url = settings.plain("dispatch.object_store.endpoint_url");
    if endpoint_url.as_deref().is_some_and(|url| !net::is_url(url)) {
        // Not quoted: what is wrong may hold a password.
        let problem = "must be an address such as https://s3.eu-central-1.amazonaws.com, without a password";
        return Err(settings.wrong("dispatch.object_store.endpoint_url", problem));
    }
    for key in ["dispatch.object_store.endpoint_url", "dispatch.object_store.region"] {
        if !is_s3 && settings.plain(key).is_some() {
            return Err(
                settings.wrong(key, "is set, but dispatch.object_store.url is not an address that begins with s3://")
            );
        }
    }
    let allow_file = settings.flag("dispatch.object_store.allow_file")? && !is_s3;
    let retention = Duration::from_secs(3_600)..=Duration::from_secs(365 * 24 * 3_600);
    Ok(ObjectStoreSettings {
        place,
        endpoint_url,
        region,
        path_style: settings.flag("dispatch.object_store.path_style")?,
        allow_file,
        write_prefixes: write_prefixes(settings, allow_file)?,
        staging_retention: within(settings, "dispatch.staging_retention", "a duration from 1h to 365d", &retention)?,
    })
}

fn place(settings: &Settings, data: &Path) -> Result<ObjectPlace, ConfigError> {
    let Some(url) = settings.plain(URL) else { return Ok(ObjectPlace::Folder(data.join("objects"))) };
    if let Some(path) = url.strip_prefix("file://") {
        let path = Path::new(path);
        let plain = path.is_absolute() && path.components().all(|part| part.as_os_str() != "..");
        return match plain {
            true => Ok(ObjectPlace::Folder(path.into())),
            false => Err(settings.wrong(URL, "must have an absolute path behind file://, such as file:///srv/tenure")),
        };
    }
    let root = Prefix::parse_root(&url, false);
    root.map(ObjectPlace::S3).map_err(|error| {
        settings.wrong(URL, format!("must be s3://bucket/, s3://bucket/prefix/ or file:///path: {error}"))
    })
}

fn write_prefixes(settings: &Settings, allow_file: bool) -> Result<Vec<WriteTemplate>, ConfigError> {
    let key = "dispatch.write_prefixes";
    let read = |text: &String| {
        WriteTemplate::parse(text, allow_file)
            .map_err(|error| settings.wrong(key, format!("contains an invalid prefix: {error}")))
    };
    settings.texts(key).iter().map(read).collect()
}
