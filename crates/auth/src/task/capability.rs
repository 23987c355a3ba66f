use serde::{Deserialize, Serialize};

use super::{TaskKeys, Verified, check_common, expiry, random_id, verified};
use crate::Secret;
use crate::jwt::{Claims, IssueError, TokenError};

/// The longest a capability token may live.
pub const CAPABILITY_MAX_TTL_S: u32 = 24 * 60 * 60;

/// Above this the grants leave the token and a `capability_id` stands for them: tokens travel in a header and in an
/// environment variable.
pub const MAX_INLINE_TOKEN_BYTES: usize = 8 * 1024;

const AUDIENCE: &str = "trace.task";

/// What a capability token is for: one attempt of one task, and what its code may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapabilityClaims {
    pub org_id: String,
    pub task_id: String,
    /// From 1.
    pub attempt: u32,
    /// 0 in a token that does not name it. The fence in the store decides.
    pub fence: u64,
    pub access: Access,
}

/// What the code of the task may read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    Inline {
        datasets: Vec<DatasetGrant>,
        s3: S3Grant,
    },
    /// The grants did not fit into the token; they are looked up by this id.
    Stored {
        capability_id: String,
    },
}

/// A dataset that may be read, in one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetGrant {
    pub alias: String,
    pub dataset_uuid: String,
    pub dataset_version: String,
    /// Where the data is. `None` grants nothing: whoever asks for the dataset is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_ref: Option<StorageRef>,
    /// The table of the data store that has the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

/// Where the data of a dataset is. A scheme that is not one of these makes the token invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "scheme", rename_all = "lowercase")]
pub enum StorageRef {
    S3 {
        bucket: String,
        prefix: String,
        #[serde(default = "default_glob")]
        glob: String,
    },
    /// Only where the configuration allows it; that is for the reader to check.
    File {
        prefix: String,
        #[serde(default = "default_glob")]
        glob: String,
    },
}

fn default_glob() -> String {
    "*.parquet".to_owned()
}

/// Prefixes in the object store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Grant {
    pub read_prefixes: Vec<String>,
    pub write_prefixes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_prefix: Option<String>,
}

#[derive(Serialize)]
struct Wire<'a> {
    iss: &'a str,
    aud: &'a str,
    sub: String,
    iat: i64,
    exp: i64,
    jti: String,
    org_id: &'a str,
    task_id: &'a str,
    attempt: u32,
    fence: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    capability_id: Option<&'a str>,
    datasets: &'a [DatasetGrant],
    s3: &'a S3Grant,
}

fn subject(task_id: &str) -> String {
    format!("task:{task_id}")
}

impl TaskKeys {
    /// A capability token. It expires at `now_s + ttl_s`. Grants that do not fit give [`IssueError::TooLarge`]: store
    /// them and issue again with [`Access::Stored`].
    pub fn issue_capability(&self, claims: &CapabilityClaims, now_s: i64, ttl_s: u32) -> Result<Secret, IssueError> {
        let exp = expiry(now_s, ttl_s, CAPABILITY_MAX_TTL_S)?;
        let CapabilityClaims { org_id, task_id, attempt, fence, access } = claims;
        let nothing = S3Grant::default();
        let (capability_id, datasets, s3) = match access {
            Access::Inline { datasets, s3 } => (None, datasets.as_slice(), s3),
            Access::Stored { capability_id } => (Some(capability_id.as_str()), [].as_slice(), &nothing),
        };
        let token = self.seal(&Wire {
            iss: self.issuer(),
            aud: AUDIENCE,
            sub: subject(task_id),
            iat: now_s,
            exp,
            jti: random_id()?,
            org_id,
            task_id,
            attempt: *attempt,
            fence: *fence,
            capability_id,
            datasets,
            s3,
        })?;
        let bytes = token.reveal().len();
        if bytes > MAX_INLINE_TOKEN_BYTES {
            return Err(IssueError::TooLarge { bytes, max: MAX_INLINE_TOKEN_BYTES });
        }
        Ok(token)
    }

    /// What the token is for, if it is a capability token, signed with a known key and good at this time.
    pub fn verify_capability(&self, token: &str, now_s: i64) -> Result<Verified<CapabilityClaims>, TokenError> {
        let claims = self.open(token)?;
        check_common(&claims, self.issuer(), AUDIENCE, now_s)?;
        let task_id = claims.text("task_id")?;
        if claims.text("sub")? != subject(task_id) {
            return Err(TokenError::Subject);
        }
        let body = CapabilityClaims {
            org_id: claims.text("org_id")?.to_owned(),
            task_id: task_id.to_owned(),
            attempt: claims.count("attempt")?,
            fence: claims.get("fence").map(|_| claims.count("fence")).transpose()?.unwrap_or(0),
            access: access_of(&claims)?,
        };
        if body.attempt == 0 {
            return Err(TokenError::InvalidClaim("attempt"));
        }
        let token_id = claims.get("jti").map(|_| claims.text("jti")).transpose()?;
        verified(&claims, token_id, body)
    }
}

/// Grants or their id. A token with both would leave open which of them counts: beside an id the grants are empty.
fn access_of(claims: &Claims) -> Result<Access, TokenError> {
    if claims.get("capability_id").is_none() {
        return Ok(Access::Inline { datasets: claims.typed("datasets")?, s3: claims.typed("s3")? });
    }
    let datasets = claims.get("datasets").map(|_| claims.typed::<Vec<DatasetGrant>>("datasets")).transpose()?;
    let s3 = claims.get("s3").map(|_| claims.typed::<S3Grant>("s3")).transpose()?;
    if datasets.is_some_and(|datasets| !datasets.is_empty()) || s3.is_some_and(|s3| s3 != S3Grant::default()) {
        return Err(TokenError::InvalidClaim("capability_id"));
    }
    Ok(Access::Stored { capability_id: claims.text("capability_id")?.to_owned() })
}
