//! AWS Lambda: functions are invoked asynchronously, by events.
//!
//! The one call that is needed is made by hand: a signed POST. The crate of the SDK has 120,000 lines for calls that nothing
//! here makes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use reqwest::{Client, Response, StatusCode, Url, redirect};
use tokio::sync::Mutex;

/// The largest payload of an asynchronous invocation.
pub const PAYLOAD_BYTES: usize = 256 * 1024;

const SERVICE: &str = "lambda";
const CONNECT: Duration = Duration::from_secs(2);
const RESPONSE: Duration = Duration::from_secs(8);
/// Credentials are fetched again so long before they expire, and at least so often.
const CREDENTIALS_MARGIN: Duration = Duration::from_secs(60);
const CREDENTIALS_LONGEST: Duration = Duration::from_secs(300);
/// How much of an error is read.
const ERROR_BYTES: usize = 16 * 1024;

/// Where functions are. Credentials come from the environment, as everywhere with AWS.
#[derive(Debug, Clone, Default)]
pub struct LambdaConfig {
    /// For servers that speak as Lambda does. Without it the one of the region.
    pub endpoint_url: Option<String>,
    /// Without it the one of the environment.
    pub region: Option<String>,
}

/// Why a function was not invoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvokeError {
    /// Too many invocations at once: again later, after this long if Lambda says so.
    #[error("Lambda has no room for another invocation")]
    Throttled { after: Option<Duration> },
    /// Nothing was sent: there is no connection, or there are no credentials.
    #[error("Lambda cannot be reached: {0}")]
    Unreachable(&'static str),
    /// Lambda failed itself, or its answer was lost: it may have taken the invocation.
    #[error("Lambda is unavailable: {0}")]
    Unavailable(String),
    /// Lambda will never accept it.
    #[error("Lambda refused the invocation with {status}: {code}")]
    Refused { status: u16, code: String },
}

/// The address or the region cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LambdaConfigError(String);

/// Invokes functions. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Lambda {
    inner: Arc<Inner>,
}

struct Inner {
    http: Client,
    endpoint: Url,
    region: String,
    provider: Option<SharedCredentialsProvider>,
    /// And until when they are used.
    credentials: Mutex<Option<(Credentials, SystemTime)>>,
}

impl fmt::Debug for Lambda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lambda").field("region", &self.inner.region).finish_non_exhaustive()
    }
}

impl Lambda {
    /// Finds region and credentials as all programs for AWS do. Asks Lambda nothing yet.
    pub async fn new(config: LambdaConfig) -> Result<Self, LambdaConfigError> {
        Self::build(config, None).await
    }

    /// With these credentials instead of those of the environment.
    pub async fn with_credentials(config: LambdaConfig, credentials: Credentials) -> Result<Self, LambdaConfigError> {
        Self::build(config, Some(SharedCredentialsProvider::new(credentials))).await
    }

    async fn build(
        config: LambdaConfig,
        provider: Option<SharedCredentialsProvider>,
    ) -> Result<Self, LambdaConfigError> {
        // A server that only speaks as Lambda does has no regions. It wants the name of one all the same.
        let region = config.region.clone().or_else(|| config.endpoint_url.as_ref().map(|_| "us-east-1".to_owned()));
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        if let Some(provider) = &provider {
            loader = loader.credentials_provider(provider.clone());
        }
        let shared = loader.load().await;
        let Some(region) = shared.region().map(ToString::to_string) else {
            return Err(LambdaConfigError("no region is set, here or in the environment (AWS_REGION)".to_owned()));
        };
        let endpoint = config.endpoint_url.unwrap_or_else(|| endpoint_of(&region));
        let endpoint = Url::parse(&endpoint).ok().filter(|url| url.has_host() && !url.cannot_be_a_base());
        let endpoint =
            endpoint.ok_or_else(|| LambdaConfigError("the endpoint is not an http or https URL".to_owned()))?;
        let http = Client::builder()
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT)
            .timeout(RESPONSE)
            .build()
            .map_err(|_| LambdaConfigError("the HTTP client cannot be created".to_owned()))?;
        let provider = shared.credentials_provider();
        Ok(Self { inner: Arc::new(Inner { http, endpoint, region, provider, credentials: Mutex::default() }) })
    }

    /// Asks Lambda to run a function with this JSON. Returns when Lambda has taken the invocation, not when it has run.
    pub async fn invoke(&self, function: &str, payload: &[u8]) -> Result<(), InvokeError> {
        match self.inner.invoke(function, payload).await {
            // Credentials can end before they said they would.
            Err(InvokeError::Refused { code, .. }) if code.starts_with("ExpiredToken") => {
                *self.inner.credentials.lock().await = None;
                self.inner.invoke(function, payload).await
            }
            done => done,
        }
    }
}

impl Inner {
    async fn invoke(&self, function: &str, payload: &[u8]) -> Result<(), InvokeError> {
        let url = self.url(function)?;
        let headers = [("content-type", "application/json"), ("x-amz-invocation-type", "Event")];
        let mut request = self.http.post(url.clone()).body(payload.to_vec());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        for (name, value) in self.signature(&url, &headers, payload).await? {
            request = request.header(name, value);
        }
        let answer = request.send().await.map_err(|error| not_sent(&error))?;
        judge(answer).await
    }

    fn url(&self, function: &str) -> Result<Url, InvokeError> {
        let mut url = self.endpoint.clone();
        let path = url.path_segments_mut().map(|mut path| {
            path.pop_if_empty().extend(["2015-03-31", "functions", function, "invocations"]);
        });
        path.map_err(|()| InvokeError::Unreachable("the endpoint has no path"))?;
        // A colon may stand in a path as it is, but Lambda's own clients encode those of an ARN.
        let encoded = url.path().replace(':', "%3A");
        url.set_path(&encoded);
        Ok(url)
    }

    /// The headers that sign a request.
    async fn signature(
        &self,
        url: &Url,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<Vec<(String, String)>, InvokeError> {
        let unsigned = || InvokeError::Unreachable("the request cannot be signed");
        let identity = self.credentials().await?.into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(SERVICE)
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .map_err(|_| unsigned())?
            .into();
        let body = SignableBody::Bytes(payload);
        let request = SignableRequest::new("POST", url.as_str(), headers.iter().copied(), body);
        let (instructions, _) = sign(request.map_err(|_| unsigned())?, &params).map_err(|_| unsigned())?.into_parts();
        Ok(instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    async fn credentials(&self) -> Result<Credentials, InvokeError> {
        let mut kept = self.credentials.lock().await;
        let now = SystemTime::now();
        if let Some((credentials, until)) = &*kept
            && *until > now
        {
            return Ok(credentials.clone());
        }
        let provider = self.provider.as_ref().ok_or(InvokeError::Unreachable("there are no credentials"))?;
        let fresh = provider.provide_credentials().await;
        let fresh = fresh.map_err(|_| InvokeError::Unreachable("the credentials cannot be fetched"))?;
        let longest = now + CREDENTIALS_LONGEST;
        let until =
            fresh.expiry().and_then(|at| at.checked_sub(CREDENTIALS_MARGIN)).map_or(longest, |at| at.min(longest));
        *kept = Some((fresh.clone(), until));
        Ok(fresh)
    }
}

fn endpoint_of(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{SERVICE}.{region}.{domain}")
}

/// A request without an answer. Without a connection nothing was sent, also when the connection took too long.
fn not_sent(error: &reqwest::Error) -> InvokeError {
    match error {
        error if error.is_connect() => InvokeError::Unreachable("the connection failed"),
        error if error.is_timeout() => InvokeError::Unavailable("it does not answer in time".to_owned()),
        _ => InvokeError::Unavailable("the request failed".to_owned()),
    }
}

/// What an answer means. Its message is not passed on: it names accounts and roles.
async fn judge(answer: Response) -> Result<(), InvokeError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let named = answer.headers().get("x-amzn-errortype").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let code = match named {
        Some(code) => code,
        None => code_of(answer).await,
    };
    let code: String = code.chars().take_while(char::is_ascii_alphanumeric).take(64).collect();
    let throttles = ["Throttl", "TooManyRequests", "RequestLimitExceeded"].iter().any(|word| code.contains(word));
    if status == StatusCode::TOO_MANY_REQUESTS || throttles {
        return Err(InvokeError::Throttled { after: after.map(Duration::from_secs) });
    }
    if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT {
        return Err(InvokeError::Refused { status: status.as_u16(), code });
    }
    Err(InvokeError::Unavailable(format!("it answered with {} {code}", status.as_u16()).trim_end().to_owned()))
}

/// The code of an error that only its body names.
async fn code_of(mut answer: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > ERROR_BYTES {
            return String::new();
        }
    }
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let named = ["__type", "code", "Code"].iter().find_map(|key| body.get(*key)?.as_str());
    named.map(|code| code.rsplit('#').next().unwrap_or(code).to_owned()).unwrap_or_default()
}
