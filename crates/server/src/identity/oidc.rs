//! Users of an identity provider.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::Method;
use tenure_auth::{JwkSet, OIDC_MAX_LEEWAY_S, OidcKeys, OidcUser, OidcVerifier, Role, StaticKey, TokenError};
use tenure_outbound::{Outbound, Request};
use tokio::sync::Mutex;

use super::Effort;
use crate::access::caller::Caller;
use crate::error::{Credential, Fault, Forbidden, Unavailable};
use crate::live::Live;
use crate::validate;

/// Keys are fetched anew after this long.
const KEPT: Duration = Duration::from_secs(600);
/// A token of an unknown key makes the server look for new keys this often at most.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// A provider that could not be asked is asked again after this long.
const RETRY: Duration = Duration::from_secs(1);
const FETCH: Duration = Duration::from_secs(5);
const JWKS_BYTES: usize = 256 * 1024;

/// Which tokens are accepted, and where their keys come from.
#[derive(Debug, Clone)]
pub struct OidcAccess {
    pub issuer: String,
    pub audience: Option<String>,
    pub groups_claim: String,
    pub tenant_claim: String,
    /// Of users whose token names none; without it they are refused.
    pub default_tenant: Option<String>,
    pub admin_groups: Vec<String>,
    pub operator_groups: Vec<String>,
    pub viewer_groups: Vec<String>,
    pub keys: KeySource,
}

#[derive(Debug, Clone)]
pub enum KeySource {
    /// The key that the configuration has.
    Static(StaticKey),
    /// Where the provider publishes its keys.
    Url(String),
}

impl OidcAccess {
    fn verifier(&self, keys: OidcKeys) -> OidcVerifier {
        OidcVerifier {
            issuer: self.issuer.clone(),
            audience: self.audience.clone(),
            groups_claim: self.groups_claim.clone(),
            tenant_claim: self.tenant_claim.clone(),
            admin_groups: self.admin_groups.clone(),
            operator_groups: self.operator_groups.clone(),
            viewer_groups: self.viewer_groups.clone(),
            keys,
            leeway_s: OIDC_MAX_LEEWAY_S,
        }
    }
}

/// Fetches and keeps the provider's keys.
#[derive(Debug)]
pub struct Provider {
    outbound: Option<Outbound>,
    keys: Live<Option<Fetched>>,
    /// One fetch at a time.
    fetching: Mutex<Last>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Last {
    /// When the last fetch ended.
    fetch: Option<Instant>,
    /// When keys were last looked for because of an unknown one.
    look: Option<Instant>,
}

/// Why keys are fetched.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// There are none, or none that are fresh.
    Old,
    /// A token names a key that is not among them.
    UnknownKey,
}

#[derive(Debug, Clone)]
struct Fetched {
    url: String,
    at: Instant,
    keys: Arc<JwkSet>,
}

impl Provider {
    pub fn new(outbound: Option<Outbound>) -> Self {
        Self { outbound, keys: Live::default(), fetching: Mutex::default() }
    }

    pub async fn user(&self, oidc: &OidcAccess, token: &str, now: i64, effort: Effort) -> Result<Caller, Fault> {
        if effort == Effort::Cheap {
            return Err(Fault::InvalidCredential(Credential::Bearer));
        }
        let user = self.verify(oidc, token, now).await?;
        let role = user.role.ok_or(Fault::Forbidden(Forbidden::NoRole))?;
        let tenant = match user.tenant.as_deref().or(oidc.default_tenant.as_deref()) {
            Some(tenant) => {
                Some(validate::scope(tenant, "tenant").map_err(|_| Fault::InvalidCredential(Credential::Bearer))?)
            }
            None if role == Role::Admin => None,
            None => return Err(Forbidden::NoTenant.into()),
        };
        Ok(Caller {
            role,
            tenant: tenant.filter(|_| role != Role::Admin),
            owner: None,
            subject: Some(user.subject.as_str().into()),
            actor: format!("oidc:{}", user.subject).into(),
        })
    }

    async fn verify(&self, oidc: &OidcAccess, token: &str, now: i64) -> Result<OidcUser, Fault> {
        let url = match &oidc.keys {
            KeySource::Static(key) => {
                let verifier = oidc.verifier(OidcKeys::Static(key.clone()));
                return verifier.verify(token, now).map_err(|error| refused(&error));
            }
            KeySource::Url(url) => url,
        };
        let known = self.keys.get();
        let known = (*known).as_ref().filter(|known| known.url == *url);
        let fresh = known.filter(|known| known.at.elapsed() < KEPT);
        let keys = match fresh {
            Some(known) => Some(Arc::clone(&known.keys)),
            None => self.fetch(url, Why::Old).await.or_else(|| known.map(|known| Arc::clone(&known.keys))),
        };
        let Some(keys) = keys else { return Err(Unavailable::IdentityProvider.into()) };
        let verify = |keys: &JwkSet| oidc.verifier(OidcKeys::Set(keys.clone())).verify(token, now);
        match verify(&keys) {
            Err(TokenError::UnknownKey { .. }) => {}
            judged => return judged.map_err(|error| refused(&error)),
        }
        let keys = self.fetch(url, Why::UnknownKey).await.ok_or(Fault::InvalidCredential(Credential::Bearer))?;
        verify(&keys).map_err(|error| refused(&error))
    }

    /// Fetches the keys, unless that was done a moment ago.
    async fn fetch(&self, url: &str, why: Why) -> Option<Arc<JwkSet>> {
        let asked = Instant::now();
        let mut last = self.fetching.lock().await;
        // Somebody may have done it while this one waited, with or without luck.
        if last.fetch.is_some_and(|at| at >= asked) {
            return (*self.keys.get()).as_ref().filter(|known| known.url == url).map(|known| Arc::clone(&known.keys));
        }
        let recently = |at: Option<Instant>, pause| at.is_some_and(|at| at.elapsed() < pause);
        match why {
            Why::Old if recently(last.fetch, RETRY) => return None,
            Why::UnknownKey if recently(last.look, LOOK_AGAIN) => return None,
            Why::Old => {}
            Why::UnknownKey => last.look = Some(asked),
        }
        let fetched = self.fetch_now(url).await;
        last.fetch = Some(Instant::now());
        match fetched {
            Ok(keys) => {
                let keys = Arc::new(keys);
                self.keys.set(Some(Fetched { url: url.to_owned(), at: Instant::now(), keys: Arc::clone(&keys) }));
                Some(keys)
            }
            Err(why) => {
                metrics::counter!("tenure_oidc_fetch_failures_total").increment(1);
                tracing::warn!(error = why, "cannot fetch the keys of the identity provider");
                None
            }
        }
    }

    async fn fetch_now(&self, url: &str) -> Result<JwkSet, String> {
        let outbound = self.outbound.as_ref().ok_or("outbound calls are disabled")?;
        let request = Request { answer_bytes: JWKS_BYTES, ..Request::new(Method::GET, url, FETCH) };
        let answer = outbound.request(request).await.map_err(|error| error.to_string())?;
        if !answer.status.is_success() || answer.truncated {
            return Err(format!("it answered {}, {} bytes", answer.status, answer.body.len()));
        }
        JwkSet::parse(&String::from_utf8_lossy(&answer.body)).map_err(|error| error.to_string())
    }
}

fn refused(error: &TokenError) -> Fault {
    tracing::debug!(reason = %error, "bearer token refused");
    Fault::InvalidCredential(Credential::Bearer)
}
