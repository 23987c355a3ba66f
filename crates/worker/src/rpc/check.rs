//! The checks before a call, in the order of the contract. The first failure answers.
//!
//! | # | Condition | Here |
//! |--:|---|---|
//! | 1 | verb is not POST | the router |
//! | 2 | other worker in the header; token missing, bad, revoked, of another audience | [`Rpc::caller`] |
//! | 3 | body too large, or not a JSON object | [`body::read`](super::body::read), [`envelope`] |
//! | 4 | `worker_id` is another worker | [`Rpc::addressed`] |
//! | 5 | blank id; unknown method | [`Rpc::named`] |
//! | 6 | a heartbeat | [`direction`] |
//! | 7 | the token lacks the method's scope | [`scope`] |
//! | 8 | parameters | [`Call::read`] |
//! | 9 | id already used | [`Replay::claim`](super::replay::Replay::claim) |
//! | 10 | spawn while draining | [`Rpc::accepting`] |
//! | 11, 12 | lease of another holder or resource, superseded; expired; frozen runtime | [`Rpc::fence`] |
//! | 13, 14 | no providers; unknown provider | [`Rpc::provided`] |
//!
//! From 15 on, the call itself fails.

use axum::http::{HeaderMap, StatusCode};
use serde_json::value::RawValue;
use tenure_auth::worker::{Scope, Scopes};
use tenure_contract::worker_rpc::{LeaseRule, Method, Request};

use super::call::{Call, MAX_ID_BYTES};
use super::refusal::Refusal;
use super::replay::BodyHash;
use super::request::credential;
use super::state::Rpc;
use crate::node::{NodeError, Target};

impl Rpc {
    /// Check 2: who is calling, and what they may do. Nothing of the body is read before it.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Scopes, Refusal> {
        let is_revoked = |token_id: &str| self.node.is_revoked(token_id);
        self.credentials.authenticate(self.worker_id(), credential(headers), &is_revoked).map_err(|error| {
            let message = format!("the caller is not authenticated: {error}");
            Refusal::api(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
        })
    }

    /// Checks 4 to 8, on an envelope.
    pub(super) fn call(
        &self,
        request: Request<&RawValue>,
        scopes: Scopes,
        body_bytes: usize,
        hash: BodyHash,
    ) -> Result<Call, Refusal> {
        self.addressed(&request)?;
        let method = self.named(&request)?;
        direction(method)?;
        scope(scopes, method.scope())?;
        Call::read(request, method, body_bytes, hash, &self.settings)
    }

    /// Check 4. A blank id is left to check 5.
    fn addressed(&self, request: &Request<&RawValue>) -> Result<(), Refusal> {
        let worker_id = request.worker_id.trim();
        if worker_id.is_empty() || worker_id == self.worker_id() {
            return Ok(());
        }
        Err(Refusal::api(StatusCode::FORBIDDEN, "UNAUTHORIZED", "the request is for another worker"))
    }

    /// Check 5.
    fn named(&self, request: &Request<&RawValue>) -> Result<Method, Refusal> {
        let problem = match (request.id.trim(), request.worker_id.trim()) {
            ("", _) => Some("id is blank".to_owned()),
            (_, "") => Some("worker_id is blank".to_owned()),
            (id, _) if id.len() > MAX_ID_BYTES => Some(format!("id is longer than {MAX_ID_BYTES} bytes")),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Refusal::invalid(format!("invalid worker message: {problem}")));
        }
        let name = request.method.trim();
        Method::parse(name).ok_or_else(|| {
            let shown: String = name.chars().take(64).collect();
            Refusal::invalid(format!("unknown worker method: {shown:?}"))
        })
    }

    /// Checks 10 to 14: what the state of the worker permits now.
    pub(super) async fn permit(&self, call: &Call) -> Result<(), Refusal> {
        self.accepting(call)?;
        self.fence(call).await?;
        self.provided(call)
    }

    /// Check 10.
    fn accepting(&self, call: &Call) -> Result<(), Refusal> {
        if call.method == Method::Spawn && self.node.is_draining() {
            return Err(NodeError::Draining.into());
        }
        Ok(())
    }

    /// Checks 11 and 12.
    async fn fence(&self, call: &Call) -> Result<(), Refusal> {
        if let Some(lease) = &call.lease {
            let by_runtime = || self.node.holdings().sandbox_of(&call.target.runtime_id);
            let resource = match call.target.sandbox_id.as_str() {
                // A runtime that is not known has no resource; check 15 says so.
                "" => by_runtime().unwrap_or_else(|| lease.resource_id.clone()),
                sandbox_id => sandbox_id.to_owned(),
            };
            self.node.holdings().check_lease(lease, &resource)?;
        }
        if call.method.lease() == LeaseRule::Optional {
            self.thawed(&call.target).await?;
        }
        Ok(())
    }

    /// The second part of check 12: commands and file calls on a runtime whose lease lapsed. One that does not exist is
    /// left to check 15.
    pub(super) async fn thawed(&self, target: &Target) -> Result<(), Refusal> {
        let target = Target { provider: String::new(), ..target.clone() };
        match self.node.find(&target).await {
            Ok(held) => Ok(held.check_not_frozen()?),
            Err(_) => Ok(()),
        }
    }

    /// Checks 13 and 14.
    fn provided(&self, call: &Call) -> Result<(), Refusal> {
        match call.method {
            Method::RenewLease | Method::Shutdown | Method::Undrain => Ok(()),
            Method::Spawn => Ok(self.node.providers().get(&call.target.provider).map(drop)?),
            // Without a name it is the provider that has the runtime.
            _ if self.node.providers().is_empty() => Err(NodeError::NoProviders.into()),
            _ if call.target.provider.is_empty() => Ok(()),
            _ => Ok(self.node.providers().get(&call.target.provider).map(drop)?),
        }
    }
}

/// The second part of check 3.
pub(super) fn envelope(body: &[u8]) -> Result<Request<&RawValue>, Refusal> {
    // serde would also take the fields one after the other in a list, without their names.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refusal::bad_request("the body is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::bad_request(format!("the body is not a request: {error}")))
}

/// Check 6.
fn direction(method: Method) -> Result<(), Refusal> {
    if method != Method::Heartbeat {
        return Ok(());
    }
    let message = "worker.heartbeat is sent by workers to the control plane, not to a worker";
    Err(Refusal::invalid(message).with_status(StatusCode::NOT_IMPLEMENTED))
}

/// Check 7, also for the routes beside `/rpc`.
pub(super) fn scope(scopes: Scopes, needed: &str) -> Result<(), Refusal> {
    if Scope::parse(needed).is_some_and(|scope| scopes.contains(scope)) {
        return Ok(());
    }
    Err(Refusal::api(StatusCode::FORBIDDEN, "FORBIDDEN", format!("the token lacks the scope {needed}")))
}
