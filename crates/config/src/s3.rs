//! Temporary keys for the object store: the S3 endpoint over a local folder, and STS.

use super::error::ConfigError;
use super::net;
use super::objects::{ObjectPlace, ObjectStoreSettings};
use super::settings::Settings;
use super::transport::is_region;
use super::worker;

const LISTEN: &str = "dispatch.s3.listen";
const ENDPOINT: &str = "dispatch.s3.endpoint_url";
const ROLE: &str = "dispatch.sts.role_arn";
const STS_REGION: &str = "dispatch.sts.region";
const STS_ENDPOINT: &str = "dispatch.sts.endpoint_url";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialSettings {
    /// A listener of its own for the S3 endpoint.
    pub s3_listen: Option<String>,
    /// The address of the S3 endpoint that tasks are told.
    pub s3_endpoint_url: Option<String>,
    /// There when AWS makes the keys.
    pub sts: Option<StsSettings>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StsSettings {
    pub role_arn: String,
    /// Absent: as the environment of AWS tools says.
    pub region: Option<String>,
    pub endpoint_url: Option<String>,
}

pub(crate) fn credentials(
    settings: &Settings,
    objects: &ObjectStoreSettings,
) -> Result<CredentialSettings, ConfigError> {
    let is_s3 = matches!(objects.place, ObjectPlace::S3(_));
    for key in [LISTEN, ENDPOINT] {
        if is_s3 && settings.plain(key).is_some() {
            let problem = "is set, but dispatch.object_store.url is S3: the endpoint is for a local folder";
            return Err(settings.wrong(key, problem));
        }
    }
    for key in [ROLE, STS_REGION, STS_ENDPOINT] {
        if !is_s3 && settings.plain(key).is_some() {
            let problem = "is set, but dispatch.object_store.url is not an address that begins with s3://";
            return Err(settings.wrong(key, problem));
        }
    }
    for key in [ENDPOINT, STS_ENDPOINT] {
        if settings.plain(key).is_some_and(|url| !net::is_url(&url)) {
            // Not quoted: what is wrong may hold a password.
            return Err(settings.wrong(key, "must be an address such as https://tenure.example, without a password"));
        }
    }
    Ok(CredentialSettings {
        s3_listen: worker::host_and_port(settings, LISTEN, "127.0.0.1:7425")?,
        s3_endpoint_url: settings.plain(ENDPOINT).map(|url| url.trim_end_matches('/').to_owned()),
        sts: sts(settings, objects)?,
    })
}

fn sts(settings: &Settings, objects: &ObjectStoreSettings) -> Result<Option<StsSettings>, ConfigError> {
    let region = settings.plain(STS_REGION);
    if let Some(region) = region.as_deref().filter(|region| !is_region(region)) {
        return Err(settings.unfit(STS_REGION, "a region such as eu-central-1", region));
    }
    let endpoint_url = settings.plain(STS_ENDPOINT);
    let Some(role_arn) = settings.plain(ROLE) else {
        let lonely = [(STS_REGION, region.is_some()), (STS_ENDPOINT, endpoint_url.is_some())];
        return match lonely.iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err(settings.wrong(key, format!("is set without {ROLE}: set that as well"))),
            None => Ok(None),
        };
    };
    let is_role = role_arn.starts_with("arn:") && role_arn.contains(":iam::") && role_arn.contains(":role/");
    if !is_role || role_arn.len() > 2_048 || role_arn.contains(char::is_whitespace) {
        let wanted = "the ARN of a role such as arn:aws:iam::123456789012:role/tenure-tasks";
        return Err(settings.unfit(ROLE, wanted, &role_arn));
    }
    Ok(Some(StsSettings { role_arn, region: region.or_else(|| objects.region.clone()), endpoint_url }))
}
