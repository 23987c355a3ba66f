//! Who is calling, where that takes more than the configuration: keys in the store, tokens of an identity provider,
//! revocations and task keys that replicas share.

pub mod api_keys;
pub mod oidc;
pub mod proven;
pub mod revocations;
pub mod task_keys;

use std::collections::HashSet;
use std::sync::Arc;

use axum::http::HeaderMap;
use tenure_auth::{ConfiguredKey, DEFAULT_TENANT};
use tenure_engine::Engine;
use tenure_outbound::Outbound;

use crate::access::Access;
use crate::access::caller::Caller;
use crate::access::guard::{bearer, unix_now};
use crate::error::{Credential, Fault};
use api_keys::ApiKeys;
use oidc::Provider;
use proven::Proven;
use revocations::Revocations;
use task_keys::SharedTaskKeys;

/// How much may be done to find out who is calling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    /// Nothing that asks the store or checks a signature: too many failures came from there.
    Cheap,
}

#[derive(Debug)]
pub struct Identity {
    api_keys: ApiKeys,
    provider: Provider,
    revocations: Revocations,
    task_keys: Option<Arc<SharedTaskKeys>>,
    /// Workers that have shown credentials of their own.
    pub proven: Proven,
}

impl Identity {
    pub fn new(engine: &Engine, outbound: Option<Outbound>, task_keys: Option<Arc<SharedTaskKeys>>) -> Self {
        Self {
            api_keys: ApiKeys::new(engine.clone()),
            provider: Provider::new(outbound),
            revocations: Revocations::new(engine.clone()),
            task_keys,
            proven: Proven::new(engine.clone()),
        }
    }

    /// Reads what other replicas wrote, for as long as the server runs.
    pub fn keep_fresh(
        self: &Arc<Self>,
        tasks: &tokio_util::task::TaskTracker,
        stop: tokio_util::sync::CancellationToken,
    ) {
        let this = Arc::clone(self);
        tasks.spawn(async move {
            let work = async {
                loop {
                    // Nobody is let in before revocations were read. Workers with credentials of their own are known by then.
                    this.proven.exchange().await;
                    this.revocations.refresh().await;
                    if let Some(keys) = &this.task_keys {
                        keys.refresh().await;
                    }
                    tokio::time::sleep(revocations::PACE).await;
                }
            };
            stop.run_until_cancelled(work).await;
        });
    }

    /// Ids of worker tokens that were revoked over the API; `None` until they were read.
    pub fn revoked(&self) -> Option<Arc<HashSet<String>>> {
        self.revocations.get()
    }

    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    pub fn api_keys(&self) -> &ApiKeys {
        &self.api_keys
    }

    /// `None` on a server that was given none.
    pub fn task_keys(&self) -> Option<&SharedTaskKeys> {
        self.task_keys.as_deref()
    }

    /// The public keys of task tokens, as a key set.
    pub fn jwks(&self) -> String {
        self.task_keys.as_ref().map_or_else(|| r#"{"keys":[]}"#.to_owned(), |keys| keys.get().jwks())
    }

    /// `X-Admin-API-Key`, then `X-API-Key`, then a bearer token of the identity provider: the first valid one counts.
    /// Either header may carry either key. Worker and task tokens are never looked at here.
    pub async fn user(&self, access: &Access, headers: &HeaderMap, effort: Effort) -> Result<Caller, Fault> {
        if !access.users.enabled {
            return Ok(Caller::anybody());
        }
        let mut refused = None;
        for name in ["x-admin-api-key", "x-api-key"] {
            let sent = headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
            let Some(sent) = sent.filter(|sent| !sent.is_empty()) else { continue };
            match self.by_key(access, sent, effort).await {
                Ok(caller) => return Ok(caller),
                Err(fault) => refused = refused.or(Some(fault)),
            }
        }
        let bearer = bearer(headers).filter(|token| !token.is_empty());
        match (bearer, &access.oidc) {
            (Some(token), Some(oidc)) => match self.provider.user(oidc, token, unix_now(), effort).await {
                Err(fault) if fault.is_unauthenticated() => Err(refused.unwrap_or(fault)),
                judged => judged,
            },
            _ => Err(refused.unwrap_or(Fault::MissingCredential(Credential::ApiKey))),
        }
    }

    async fn by_key(&self, access: &Access, sent: &str, effort: Effort) -> Result<Caller, Fault> {
        if let Some((key, role)) = access.users.configured(sent) {
            // An admin chooses its tenant; the API key has one.
            let tenant = (role != tenure_auth::Role::Admin).then(|| DEFAULT_TENANT.into());
            let actor = match key {
                ConfiguredKey::Api => "auth.api_key",
                ConfiguredKey::Admin => "auth.admin_api_key",
            };
            return Ok(Caller { role, tenant, owner: None, subject: None, actor: actor.into() });
        }
        self.api_keys.caller(sent, effort).await?.ok_or(Fault::InvalidCredential(Credential::ApiKey))
    }
}
