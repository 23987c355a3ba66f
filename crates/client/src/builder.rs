use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::client::{Client, Inner};
use crate::error::ClientError;
use crate::http::{self, Roots};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const RETRIES_DEFAULT: u32 = 4;

/// Settings of a [`Client`].
#[derive(Clone)]
pub struct ClientBuilder {
    server: String,
    api_key: Option<String>,
    bearer: Option<String>,
    user_id: Option<String>,
    tenant: Option<String>,
    roots: Roots,
    timeout: Duration,
    retries: u32,
}

impl ClientBuilder {
    pub(crate) fn new(server: String) -> Self {
        Self {
            server,
            api_key: None,
            bearer: None,
            user_id: None,
            tenant: None,
            roots: Roots::System,
            timeout: TIMEOUT_DEFAULT,
            retries: RETRIES_DEFAULT,
        }
    }

    /// Sent as `X-API-Key`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// A token of an identity provider, sent as `Authorization: Bearer`. An API key takes precedence.
    #[must_use]
    pub fn bearer(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(token.into());
        self
    }

    /// Sent as `X-User-ID`: what is seen and made is that of this owner only.
    #[must_use]
    pub fn user_id(mut self, owner: impl Into<String>) -> Self {
        self.user_id = Some(owner.into());
        self
    }

    /// Sent as `X-Tenant-ID`: the tenant that is meant. Only admins have a choice.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Certificates in PEM. Only servers whose certificate they sign are trusted, and no longer those that the system
    /// trusts.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Roots::Pem(pem.into());
        self
    }

    /// [`root_certificate`](Self::root_certificate) from a file, which [`build`](Self::build) reads.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots = Roots::File(path.into());
        self
    }

    /// Bounds one request, default 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often a call is repeated at most, default 4.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    pub fn build(self) -> Result<Client, ClientError> {
        let server = http::parse_server(&self.server).map_err(ClientError::Setup)?;
        let headers = self.headers()?;
        let roots = self.roots.load().map_err(ClientError::Setup)?;
        let http = http::new_client(roots).map_err(ClientError::Setup)?;
        let inner = Inner { http, server, headers, timeout: self.timeout, retries: self.retries };
        Ok(Client { inner: Arc::new(inner) })
    }

    fn headers(&self) -> Result<HeaderMap, ClientError> {
        let bearer = self.bearer.as_deref().map(|token| format!("Bearer {}", token.trim()));
        let given = [
            (HeaderName::from_static("x-api-key"), "API key", self.api_key.as_deref(), true),
            (AUTHORIZATION, "bearer token", bearer.as_deref(), true),
            (HeaderName::from_static("x-user-id"), "user id", self.user_id.as_deref(), false),
            (HeaderName::from_static("x-tenant-id"), "tenant", self.tenant.as_deref(), false),
        ];
        let mut headers = HeaderMap::new();
        for (name, what, text, secret) in given {
            let Some(text) = text else { continue };
            let mut value = HeaderValue::from_str(text.trim())
                .map_err(|_| ClientError::Setup(format!("the {what} has characters that a header cannot carry")))?;
            value.set_sensitive(secret);
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

impl fmt::Debug for ClientBuilder {
    /// Without key and token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("server", &self.server).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_calls_is_in_the_headers_and_secrets_do_not_print() {
        let builder =
            ClientBuilder::new("http://h".into()).api_key(" k3y\n").bearer("t0ken").user_id("ann").tenant("acme");
        let headers = builder.headers().unwrap();
        let texts =
            ["x-api-key", "authorization", "x-user-id", "x-tenant-id"].map(|name| headers[name].to_str().unwrap());
        assert_eq!(texts, ["k3y", "Bearer t0ken", "ann", "acme"]);
        let printed = format!("{builder:?} {headers:?}");
        assert!(!printed.contains("k3y") && !printed.contains("t0ken"), "{printed}");
    }

    #[test]
    fn what_no_header_can_carry_is_refused_without_being_shown() {
        let error = ClientBuilder::new("http://h".into()).api_key("hunter\n2").build().unwrap_err().to_string();
        assert!(error.contains("API key") && !error.contains("hunter"), "{error}");
    }

    #[test]
    fn certificates_that_are_none_are_refused() {
        for pem in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let built = ClientBuilder::new("https://h".into()).root_certificate(pem).build();
            assert!(matches!(built, Err(ClientError::Setup(_))), "{pem}");
        }
        let error = ClientBuilder::new("https://h".into()).ca_file("/does/not/exist").build().unwrap_err();
        assert!(error.to_string().contains("/does/not/exist"), "{error}");
    }
}
