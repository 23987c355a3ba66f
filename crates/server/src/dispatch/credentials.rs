//! Who makes temporary keys for the object store.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tenure_auth::{Access, S3Grant};
use tenure_contract::dispatch::{CredentialsAnswer, WantedPrefixes};
use tenure_core::Timestamp;
use tenure_core::objects::{POLICY_CHARS, Prefix, Scope};
use tenure_engine::transport::sts::{Sts, StsError};
use tenure_objects::Objects;
use tenure_s3::{Holder, KeyError, Keys};

use super::DispatchFault;
use crate::error::Fault;

/// Makes keys, and says where they are used.
#[derive(Debug, Clone)]
pub struct CredentialBroker {
    pub backend: CredentialBackend,
    /// Where the object store is. `None`: where clients look for the region.
    pub endpoint_url: Option<String>,
    /// The endpoint is where the request for keys came to, by this scheme. The address above is for requests that do not
    /// say.
    pub at_host: Option<&'static str>,
    pub region: String,
    /// The bucket of outputs.
    pub bucket: String,
}

#[derive(Debug, Clone)]
pub enum CredentialBackend {
    /// The endpoint of this server, over a local folder.
    Embedded(Arc<Keys>),
    /// AWS, or a server that speaks as it does.
    Sts(Sts),
}

impl CredentialBackend {
    /// As the audit has it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Sts(_) => "sts",
        }
    }
}

/// Keys, and when they end.
#[derive(Debug)]
pub struct Made {
    pub answer: CredentialsAnswer,
    pub expires_at: Timestamp,
}

impl CredentialBroker {
    /// Makes keys for a scope. They never outlive the token by their own; AWS gives them 15 minutes.
    pub async fn make(&self, holder: Holder, scope: &Scope, now_s: i64, token_ends_s: i64) -> Result<Made, Fault> {
        let too_large = || {
            let message = "the scope does not fit into a session policy: ask for fewer or shorter prefixes in `want`";
            DispatchFault::fault("scope_too_large", message)
        };
        let (access_key_id, secret_access_key, session_token, ends_s) = match &self.backend {
            CredentialBackend::Embedded(keys) => {
                let issued = keys.issue(holder, scope, now_s, token_ends_s).map_err(|error| match error {
                    KeyError::TooLarge => too_large(),
                    KeyError::Failed => Fault::Internal,
                })?;
                (issued.access_key_id, issued.secret_access_key, issued.session_token, issued.expires_at_s)
            }
            CredentialBackend::Sts(sts) => {
                let policy = scope.policy(partition(sts.region()));
                if policy.chars().count() > POLICY_CHARS {
                    return Err(too_large());
                }
                let session = format!("tenure-{}-{}", holder.task, holder.attempt);
                let keys = sts.assume(&session, &policy).await.map_err(|error| match error {
                    StsError::PolicyTooLarge => too_large(),
                    error => {
                        tracing::error!(%error, task.id = holder.task, "no keys for a task");
                        DispatchFault::fault("object_store_unavailable", "there are no keys at the moment: try again")
                    }
                })?;
                let ends = keys.expires_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                let ends_s = i64::try_from(ends).unwrap_or(i64::MAX);
                (keys.access_key_id, keys.secret_access_key, keys.session_token, ends_s)
            }
        };
        let expires_at = Timestamp::from_millis(ends_s.saturating_mul(1_000));
        let answer = CredentialsAnswer {
            access_key_id,
            secret_access_key,
            session_token,
            expires_at: expires_at.to_string(),
            endpoint_url: self.endpoint_url.clone(),
            region: self.region.clone(),
        };
        Ok(Made { answer, expires_at })
    }
}

impl CredentialBroker {
    /// Where the client of a request to this host finds the object store.
    pub fn endpoint_for(&self, host: Option<&str>) -> Option<String> {
        let is_plain = |host: &&str| {
            let part =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']' | b'_');
            !host.is_empty() && host.len() <= 255 && host.bytes().all(part)
        };
        let by_host = self.at_host.zip(host.filter(is_plain)).map(|(scheme, host)| format!("{scheme}://{host}"));
        by_host.or_else(|| self.endpoint_url.clone())
    }
}

/// The second part of the ARNs of a region.
fn partition(region: &str) -> &'static str {
    match region {
        region if region.starts_with("cn-") => "aws-cn",
        region if region.starts_with("us-gov-") => "aws-us-gov",
        _ => "aws",
    }
}

/// All that a token grants, by the names of buckets. Files that are in no bucket cannot be had by keys.
pub fn granted(grant: &S3Grant, objects: &Objects) -> Scope {
    let prefixes = |texts: &mut dyn Iterator<Item = &String>| {
        let parsed = texts.filter_map(|text| Prefix::parse(text, true).ok());
        distinct(parsed.filter_map(|prefix| objects.in_bucket(&prefix)))
    };
    Scope {
        read: prefixes(&mut grant.read_prefixes.iter()),
        write: prefixes(&mut grant.write_prefixes.iter()),
        scratch: prefixes(&mut grant.scratch_prefix.iter()),
    }
}

/// The grants that a token holds itself.
pub fn held(access: &Access) -> Option<&S3Grant> {
    match access {
        Access::Inline { s3, .. } => Some(s3),
        Access::Stored { .. } => None,
    }
}

/// What is asked for: the wanted prefixes, or all. Nothing is left out silently.
pub fn narrowed(granted: Scope, want: Option<&WantedPrefixes>) -> Result<Scope, Fault> {
    let Some(want) = want else {
        if granted.is_empty() {
            let message = "the task has no prefixes in the object store";
            return Err(DispatchFault::fault("prefix_not_granted", message));
        }
        return Ok(granted);
    };
    let read = |name: &str, texts: &Option<Vec<String>>| -> Result<Vec<Prefix>, Fault> {
        let parse = |(at, text): (usize, &String)| {
            Prefix::parse(text, false)
                .map_err(|error| DispatchFault::fault("invalid_prefix", format!("want.{name}[{at}]: {error}")))
        };
        let prefixes = texts.iter().flatten().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(distinct(prefixes.into_iter()))
    };
    let wanted = Scope {
        read: read("read", &want.read)?,
        write: read("write", &want.write)?,
        scratch: read("scratch", &want.scratch)?,
    };
    if wanted.is_empty() {
        let message = "want names no prefix: leave it out to get keys for all that the token has";
        return Err(DispatchFault::fault("invalid_prefix", message));
    }
    if let Some(prefix) = granted.missing(&wanted) {
        let message = format!("{prefix} is not granted to the task for this use");
        return Err(DispatchFault::fault("prefix_not_granted", message));
    }
    Ok(wanted)
}

fn distinct(prefixes: impl Iterator<Item = Prefix>) -> Vec<Prefix> {
    let mut distinct = Vec::new();
    for prefix in prefixes {
        if !distinct.contains(&prefix) {
            distinct.push(prefix);
        }
    }
    distinct
}
