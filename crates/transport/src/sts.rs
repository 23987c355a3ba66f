//! AWS Security Token Service: temporary keys that may do less than the role they are of.
//!
//! The crate of the SDK is used, which `aws-config` needs anyway.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_sts::Client;
use aws_sdk_sts::config::timeout::TimeoutConfig;
use aws_sdk_sts::error::{ProvideErrorMetadata, SdkError};

const CONNECT: Duration = Duration::from_secs(2);
const RESPONSE: Duration = Duration::from_secs(10);

/// How long the keys live: AWS allows no less.
pub const LIFETIME_S: i32 = 900;

/// Which role is assumed, and where. Credentials come from the environment, as everywhere with AWS.
#[derive(Debug, Clone, Default)]
pub struct StsConfig {
    pub role_arn: String,
    /// For servers that speak as STS does. Without it the one of the region.
    pub endpoint_url: Option<String>,
    /// Without it the one of the environment.
    pub region: Option<String>,
}

/// Temporary keys.
pub struct SessionKeys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: String,
    pub expires_at: SystemTime,
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKeys").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// Why there are no keys. Messages of AWS are not passed on: they name accounts and roles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StsError {
    /// The policy is longer than AWS accepts, also where it looks shorter.
    #[error("the session policy is too large")]
    PolicyTooLarge,
    #[error("STS refused the request: {0}")]
    Refused(String),
    #[error("STS is unavailable: {0}")]
    Unavailable(&'static str),
}

/// Makes temporary keys. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sts {
    client: Client,
    role_arn: String,
    region: String,
}

impl Sts {
    /// Finds region and credentials as all programs for AWS do. Asks STS nothing yet. `None` without a region.
    pub async fn new(config: StsConfig) -> Option<Self> {
        Self::build(config, None).await
    }

    /// With these credentials instead of those of the environment.
    pub async fn with_credentials(config: StsConfig, credentials: Credentials) -> Option<Self> {
        Self::build(config, Some(SharedCredentialsProvider::new(credentials))).await
    }

    async fn build(config: StsConfig, provider: Option<SharedCredentialsProvider>) -> Option<Self> {
        // A server that only speaks as STS does has no regions. It wants the name of one all the same.
        let region = config.region.clone().or_else(|| config.endpoint_url.as_ref().map(|_| "us-east-1".to_owned()));
        let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT).operation_timeout(RESPONSE).build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).timeout_config(timeouts);
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        if let Some(provider) = provider {
            loader = loader.credentials_provider(provider);
        }
        let shared = loader.load().await;
        let region = shared.region()?.to_string();
        let mut own = aws_sdk_sts::config::Builder::from(&shared);
        if let Some(url) = config.endpoint_url {
            own = own.endpoint_url(url);
        }
        Some(Self { client: Client::from_conf(own.build()), role_arn: config.role_arn, region })
    }

    pub fn region(&self) -> &str {
        &self.region
    }

    /// Keys of the role that may do no more than `policy` says. `session` is what the logs of AWS show.
    pub async fn assume(&self, session: &str, policy: &str) -> Result<SessionKeys, StsError> {
        let answer = self
            .client
            .assume_role()
            .role_arn(&self.role_arn)
            .role_session_name(session)
            .policy(policy)
            .duration_seconds(LIFETIME_S)
            .send()
            .await
            .map_err(|error| judge(&error))?;
        let keys = answer.credentials.ok_or(StsError::Unavailable("the answer has no keys"))?;
        let expires_at = SystemTime::try_from(keys.expiration);
        Ok(SessionKeys {
            access_key_id: keys.access_key_id,
            secret_access_key: keys.secret_access_key,
            session_token: keys.session_token,
            expires_at: expires_at.map_err(|_| StsError::Unavailable("the answer has no valid expiry"))?,
        })
    }
}

fn judge<E: ProvideErrorMetadata>(error: &SdkError<E>) -> StsError {
    match error {
        SdkError::ServiceError(failed) => {
            let status = failed.raw().status().as_u16();
            let code: String = failed.err().code().unwrap_or("unknown").chars().take(64).collect();
            match code.as_str() {
                "PackedPolicyTooLarge" | "PackedPolicyTooLargeException" => StsError::PolicyTooLarge,
                _ if status >= 500 || code.contains("Throttl") => StsError::Unavailable("it failed, or is busy"),
                _ => StsError::Refused(code),
            }
        }
        SdkError::TimeoutError(_) => StsError::Unavailable("it does not answer in time"),
        SdkError::DispatchFailure(_) => StsError::Unavailable("it cannot be reached, or there are no credentials"),
        _ => StsError::Unavailable("the request failed"),
    }
}
