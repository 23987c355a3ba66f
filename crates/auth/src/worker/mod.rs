//! Workers: static tokens, signed tokens, and which of them counts.

mod bootstrap;
mod key;
mod mint;
mod scope;
mod signed;
#[cfg(test)]
mod tables;
mod verify;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{AuthError, Secret};

pub use bootstrap::{BootstrapKey, KeyHash};
pub use key::{KeyError, PrivateKey, PublicKey, SigningKey};
pub use mint::{MintError, MintRequest, Minted, TTL_DEFAULT};
pub use scope::{Audience, Scope, Scopes};
pub use signed::{ClaimSet, Format, TOKEN_BYTES_MAX};
pub use verify::{Claims, LIFETIME_S_MAX, Refusal, WorkerKeys};

/// What a worker sent to say who it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerCredential<'a> {
    /// `X-Worker-ID`.
    pub id: Option<&'a str>,
    /// `X-Worker-Token`, or the bearer token.
    pub token: Option<&'a str>,
    /// `X-Trace-Worker-Token`: good for the shared token only.
    pub shared_token: Option<&'a str>,
    /// Where the request comes from, if that says something about the sender.
    pub from: Option<IpAddr>,
}

impl<'a> WorkerCredential<'a> {
    fn named(&self) -> Option<&'a str> {
        self.id.map(str::trim).filter(|id| !id.is_empty())
    }
}

/// A worker that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// The id that the credential or the header names. Without one, the id in the body is taken as given.
    pub id: Option<String>,
    /// What it may do. Only a signed token can grant less than everything.
    pub scopes: Scopes,
    /// Let in by the shared token, or without any.
    shared: bool,
}

impl Worker {
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(scope)
    }

    /// The id, if a credential of its own proves it.
    pub fn proven(&self) -> Option<&str> {
        self.id.as_deref().filter(|_| !self.shared)
    }

    fn by_shared(id: Option<&str>) -> Self {
        Self { id: id.map(ToOwned::to_owned), scopes: Scopes::all(), shared: true }
    }

    fn by_own(id: &str, scopes: Scopes) -> Self {
        Self { id: Some(id.to_owned()), scopes, shared: false }
    }
}

/// Who is a worker without a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Anonymous {
    #[default]
    Nobody,
    /// Any caller from these networks.
    From(Vec<IpNet>),
    /// Only for a loopback listener.
    Everyone,
}

impl Anonymous {
    fn includes(&self, from: Option<IpAddr>) -> bool {
        match self {
            Self::Nobody => false,
            Self::From(networks) => {
                let from = from.map(|from| from.to_canonical());
                from.is_some_and(|from| networks.iter().any(|network| network.contains(&from)))
            }
            Self::Everyone => true,
        }
    }
}

/// Which workers are let in.
#[derive(Debug, Clone, Default)]
pub struct WorkerAuth {
    /// `auth.worker_token`.
    pub shared: Option<Secret>,
    /// The shared token before the last change. Workers that have not seen the new one yet go on with it.
    pub shared_previous: Option<Secret>,
    /// `auth.worker_tokens`: an entry here is the only static token of that worker.
    pub per_worker: HashMap<String, Secret>,
    /// `auth.anonymous_workers`.
    pub anonymous: Anonymous,
    /// Keys of signed tokens.
    pub keys: WorkerKeys,
    /// `auth.worker_revoked_token_ids`.
    pub revoked: HashSet<String>,
    /// `auth.worker_bootstrap_keys`, by worker.
    pub bootstrap: HashMap<String, BootstrapKey>,
}

impl WorkerAuth {
    /// Whether anybody could be let in. A bootstrap key lets nobody in.
    pub fn is_configured(&self) -> bool {
        self.anonymous != Anonymous::Nobody
            || self.shared.is_some()
            || self.shared_previous.is_some()
            || !self.per_worker.is_empty()
            || self.keys.can_verify()
    }

    /// Lets a worker in on the routes of the control plane, or not. `now` is in unix seconds; `revoked_elsewhere` says
    /// whether a token id was revoked by other means than the configuration.
    pub fn authenticate(
        &self,
        sent: WorkerCredential<'_>,
        now: i64,
        revoked_elsewhere: &dyn Fn(&str) -> bool,
    ) -> Result<Worker, AuthError> {
        if !self.is_configured() {
            return Err(AuthError::NotConfigured);
        }
        let id = sent.named();
        match (sent.token, sent.shared_token) {
            // An id that has a token of its own needs that token.
            (None, None) if self.anonymous.includes(sent.from) && id.is_none_or(|id| !self.has_own(id)) => {
                Ok(Worker::by_shared(id))
            }
            (None, None) => Err(AuthError::Missing),
            // Two tokens that disagree leave open who is meant.
            (Some(token), Some(shared)) if shared != token => Err(AuthError::Invalid),
            (Some(token), _) if Format::of(token).is_some() => {
                self.by_signed_token(id, token, now, revoked_elsewhere).map_err(|_| AuthError::Invalid)
            }
            (Some(token), _) => self.by_static_token(id, token),
            (None, Some(token)) => self.by_shared_token(id, token),
        }
    }

    /// Whether any caller of a worker's RPC could be let in.
    pub fn can_verify_rpc(&self) -> bool {
        self.shared.is_some() || self.shared_previous.is_some() || !self.per_worker.is_empty() || self.keys.can_verify()
    }

    /// Lets a control plane in on the RPC of `worker_id`, or not, and returns what it may do. Tokens are those of this
    /// worker: its own static one, or signed ones that name it and RPC.
    pub fn authenticate_rpc(
        &self,
        worker_id: &str,
        sent: WorkerCredential<'_>,
        now: i64,
        revoked_elsewhere: &dyn Fn(&str) -> bool,
    ) -> Result<Scopes, AuthError> {
        if !self.can_verify_rpc() {
            return Err(AuthError::NotConfigured);
        }
        let token = sent.token.ok_or(AuthError::Missing)?;
        if sent.named() != Some(worker_id) {
            return Err(AuthError::Invalid);
        }
        if Format::of(token).is_some() {
            let revoked = |token_id: &str| self.revoked.contains(token_id) || revoked_elsewhere(token_id);
            let claims = self.keys.verify(token, now, Some(Audience::Rpc), Some(worker_id), &revoked);
            return claims.map(|claims| claims.scopes).map_err(|_| AuthError::Invalid);
        }
        self.by_static_token(Some(worker_id), token).map(|worker| worker.scopes)
    }

    /// Why a signed token that was sent is refused, for the log. The answer to the worker does not say.
    pub fn refusal(
        &self,
        sent: WorkerCredential<'_>,
        now: i64,
        revoked_elsewhere: &dyn Fn(&str) -> bool,
    ) -> Option<Refusal> {
        let token = sent.token.filter(|token| Format::of(token).is_some())?;
        self.by_signed_token(sent.named(), token, now, revoked_elsewhere).err()
    }

    /// Without a header the token names its worker: it is signed.
    fn by_signed_token(
        &self,
        id: Option<&str>,
        token: &str,
        now: i64,
        revoked_elsewhere: &dyn Fn(&str) -> bool,
    ) -> Result<Worker, Refusal> {
        let revoked = |token_id: &str| self.revoked.contains(token_id) || revoked_elsewhere(token_id);
        let claims = self.keys.verify(token, now, Some(Audience::ControlPlane), id, &revoked)?;
        Ok(Worker::by_own(&claims.worker_id, claims.scopes))
    }

    fn by_static_token(&self, id: Option<&str>, token: &str) -> Result<Worker, AuthError> {
        if let Some(id) = id {
            return match self.per_worker.get(id) {
                Some(own) if own.matches(token) => Ok(Worker::by_own(id, Scopes::all())),
                Some(_) => Err(AuthError::Invalid),
                None => self.by_shared_token(Some(id), token),
            };
        }
        // Without a header the token names its worker. All are compared, so that time does not tell which.
        let mut named = None;
        for (id, own) in &self.per_worker {
            if own.matches(token) {
                named = Some(id);
            }
        }
        match named {
            Some(id) => Ok(Worker::by_own(id, Scopes::all())),
            None => self.by_shared_token(None, token),
        }
    }

    fn by_shared_token(&self, id: Option<&str>, token: &str) -> Result<Worker, AuthError> {
        // Both are compared, so that time does not tell which one is meant.
        let is = |own: &Option<Secret>| own.as_ref().is_some_and(|own| own.matches(token));
        let matches = is(&self.shared) | is(&self.shared_previous);
        let signed = Format::of(token).is_some();
        if !matches || signed || id.is_some_and(|id| self.has_own(id)) {
            return Err(AuthError::Invalid);
        }
        Ok(Worker::by_shared(id))
    }

    /// Whether this worker has a credential of its own in the configuration: a token, or a key to ask for one.
    pub fn has_own(&self, id: &str) -> bool {
        self.per_worker.contains_key(id) || self.bootstrap.contains_key(id)
    }

    /// Whether this worker may speak as `body_id`. An id that has a credential of its own needs that one.
    pub fn speaks_as(&self, worker: &Worker, body_id: &str) -> Result<bool, AuthError> {
        if worker.shared && self.has_own(body_id) {
            return Err(AuthError::Invalid);
        }
        Ok(worker.id.as_deref().is_none_or(|id| id == body_id))
    }

    /// Whether the bootstrap key that was sent is the one of this worker. It is good for asking for a token, and that
    /// must be one for [`BOOTSTRAP_SCOPES`] and the control plane only.
    pub fn authenticate_bootstrap(&self, worker_id: &str, sent: Option<&str>) -> Result<(), AuthError> {
        if self.bootstrap.is_empty() {
            return Err(AuthError::NotConfigured);
        }
        let sent = sent.ok_or(AuthError::Missing)?;
        match self.bootstrap.get(worker_id) {
            Some(key) if key.matches(sent) => Ok(()),
            Some(_) | None => Err(AuthError::Invalid),
        }
    }
}

/// What a token that was asked for with a bootstrap key grants.
pub const BOOTSTRAP_SCOPES: [Scope; 2] = [Scope::Heartbeat, Scope::Lease];

#[cfg(test)]
mod tests {
    use super::*;

    fn auth() -> WorkerAuth {
        WorkerAuth {
            shared: Secret::new("shared"),
            per_worker: HashMap::from([("w-1".to_owned(), Secret::new("own").unwrap())]),
            ..WorkerAuth::default()
        }
    }

    fn let_in(auth: &WorkerAuth, sent: WorkerCredential<'_>) -> Result<Worker, AuthError> {
        auth.authenticate(sent, 0, &|_| false)
    }

    fn sent<'a>(id: Option<&'a str>, token: Option<&'a str>) -> WorkerCredential<'a> {
        WorkerCredential { id, token, ..WorkerCredential::default() }
    }

    #[test]
    fn each_row_of_the_table() {
        let auth = auth();
        for (id, token, expected) in [
            (Some("w-1"), Some("own"), Ok(Some("w-1"))),
            (Some("w-1"), Some("shared"), Err(AuthError::Invalid)),
            (Some("w-2"), Some("shared"), Ok(Some("w-2"))),
            (Some("w-2"), Some("own"), Err(AuthError::Invalid)),
            (None, Some("own"), Ok(Some("w-1"))),
            (None, Some("shared"), Ok(None)),
            (None, Some("wrong"), Err(AuthError::Invalid)),
            (Some("w-2"), None, Err(AuthError::Missing)),
            (None, None, Err(AuthError::Missing)),
        ] {
            let found = let_in(&auth, sent(id, token)).map(|worker| worker.id);
            assert_eq!(found, expected.map(|id| id.map(ToOwned::to_owned)), "{id:?} {token:?}");
        }
    }

    #[test]
    fn the_header_of_the_dispatch_contract_takes_the_shared_token_only() {
        let auth = auth();
        let by = |token| let_in(&auth, WorkerCredential { shared_token: Some(token), ..Default::default() });
        assert!(by("shared").is_ok());
        assert_eq!(by("own"), Err(AuthError::Invalid));
        let mapped = WorkerCredential { id: Some("w-1"), shared_token: Some("shared"), ..Default::default() };
        assert_eq!(let_in(&auth, mapped), Err(AuthError::Invalid), "an id with an entry needs its own token");
        let both = WorkerCredential { token: Some("shared"), shared_token: Some("other"), ..Default::default() };
        assert_eq!(let_in(&auth, both), Err(AuthError::Invalid));
    }

    #[test]
    fn a_body_cannot_borrow_the_name_of_a_worker_with_its_own_token() {
        let auth = auth();
        let anybody = let_in(&auth, sent(None, Some("shared"))).unwrap();
        assert_eq!(auth.speaks_as(&anybody, "w-2"), Ok(true));
        assert_eq!(auth.speaks_as(&anybody, "w-1"), Err(AuthError::Invalid));
        let w1 = let_in(&auth, sent(None, Some("own"))).unwrap();
        assert_eq!(auth.speaks_as(&w1, "w-1"), Ok(true));
        assert_eq!(auth.speaks_as(&w1, "w-2"), Ok(false));
    }

    #[test]
    fn without_any_credential_nobody_is_let_in() {
        let none = WorkerAuth::default();
        assert_eq!(let_in(&none, sent(None, Some(""))), Err(AuthError::NotConfigured));
        let anonymous = WorkerAuth { anonymous: Anonymous::Everyone, ..auth() };
        assert!(let_in(&anonymous, sent(None, None)).is_ok());
        assert!(let_in(&anonymous, sent(Some("w-2"), None)).is_ok());
        assert_eq!(let_in(&anonymous, sent(None, Some("x"))), Err(AuthError::Invalid));
        assert_eq!(let_in(&anonymous, sent(Some("w-1"), None)), Err(AuthError::Missing), "it has a token of its own");
    }

    #[test]
    fn networks_let_in_those_who_call_from_there() {
        let networks = ["10.1.0.0/16", "fd00::/8", "192.0.2.7/32"].map(|text| text.parse().unwrap());
        let auth = WorkerAuth { anonymous: Anonymous::From(networks.to_vec()), ..auth() };
        let from = |address: Option<&str>, id, token| {
            let from = address.map(|text| text.parse().unwrap());
            let_in(&auth, WorkerCredential { from, ..sent(id, token) }).map(|worker| worker.id)
        };
        for inside in ["10.1.0.1", "10.1.255.255", "::ffff:10.1.2.3", "fd00::1", "192.0.2.7"] {
            assert_eq!(from(Some(inside), Some("w-2"), None), Ok(Some("w-2".to_owned())), "{inside}");
            assert_eq!(from(Some(inside), None, None), Ok(None), "{inside}");
            assert_eq!(from(Some(inside), None, Some("wrong")), Err(AuthError::Invalid), "a token that is sent counts");
            assert_eq!(from(Some(inside), Some("w-1"), None), Err(AuthError::Missing), "it has a token of its own");
        }
        for outside in [None, Some("10.2.0.1"), Some("127.0.0.1"), Some("192.0.2.8"), Some("fe80::1"), Some("::")] {
            assert_eq!(from(outside, None, None), Err(AuthError::Missing), "{outside:?}");
            assert_eq!(from(outside, None, Some("shared")), Ok(None), "{outside:?}");
        }
        let only = WorkerAuth { shared: None, per_worker: HashMap::new(), ..auth.clone() };
        assert_eq!(let_in(&only, sent(None, None)), Err(AuthError::Missing));
    }

    #[test]
    fn the_previous_shared_token_is_as_good_as_the_current_one() {
        let auth = WorkerAuth { shared_previous: Secret::new("before"), ..auth() };
        for token in ["shared", "before"] {
            assert!(let_in(&auth, sent(Some("w-2"), Some(token))).is_ok(), "{token}");
            assert!(let_in(&auth, WorkerCredential { shared_token: Some(token), ..Default::default() }).is_ok());
            assert_eq!(let_in(&auth, sent(Some("w-1"), Some(token))), Err(AuthError::Invalid), "{token}");
            let anybody = let_in(&auth, sent(None, Some(token))).unwrap();
            assert_eq!(auth.speaks_as(&anybody, "w-1"), Err(AuthError::Invalid), "{token}");
        }
        let only_previous = WorkerAuth { shared_previous: Secret::new("before"), ..WorkerAuth::default() };
        assert!(let_in(&only_previous, sent(None, Some("before"))).is_ok());
    }

    #[test]
    fn static_tokens_grant_every_scope() {
        let auth = auth();
        for worker in ["own", "shared"].map(|token| let_in(&auth, sent(None, Some(token))).unwrap()) {
            assert!(Scope::ALL.into_iter().all(|scope| worker.may(scope)));
        }
    }

    #[test]
    fn the_rpc_of_a_worker_takes_its_own_tokens_only() {
        let rpc = |auth: &WorkerAuth, worker: &str, id, token| {
            auth.authenticate_rpc(worker, sent(id, token), 0, &|_| false).map(|scopes| scopes == Scopes::all())
        };
        let auth = auth();
        for (worker, id, token, expected) in [
            ("w-1", Some("w-1"), Some("own"), Ok(true)),
            ("w-2", Some("w-2"), Some("shared"), Ok(true)),
            ("w-1", Some("w-1"), Some("shared"), Err(AuthError::Invalid)),
            ("w-2", Some("w-2"), Some("own"), Err(AuthError::Invalid)),
            ("w-2", Some("w-1"), Some("own"), Err(AuthError::Invalid)),
            ("w-2", None, Some("shared"), Err(AuthError::Invalid)),
            ("w-2", Some("w-2"), None, Err(AuthError::Missing)),
        ] {
            assert_eq!(rpc(&auth, worker, id, token), expected, "{worker} {id:?} {token:?}");
        }
        let anonymous = WorkerAuth { anonymous: Anonymous::Everyone, ..WorkerAuth::default() };
        assert_eq!(rpc(&anonymous, "w-1", Some("w-1"), Some("x")), Err(AuthError::NotConfigured));
    }

    #[test]
    fn a_bootstrap_key_serves_its_own_worker_and_lets_nobody_in() {
        let key = |text| BootstrapKey::parse(text).unwrap();
        let hash = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let bootstrap = HashMap::from([("w-1".to_owned(), key("first")), ("w-2".to_owned(), key(hash))]);
        let auth = WorkerAuth { bootstrap, ..WorkerAuth::default() };
        for (id, sent, expected) in [
            ("w-1", Some("first"), Ok(())),
            ("w-2", Some("abc"), Ok(())),
            ("w-1", Some("abc"), Err(AuthError::Invalid)),
            ("w-2", Some("first"), Err(AuthError::Invalid)),
            ("w-2", Some(hash), Err(AuthError::Invalid)),
            ("w-3", Some("first"), Err(AuthError::Invalid)),
            ("w-1", Some(""), Err(AuthError::Invalid)),
            ("w-1", None, Err(AuthError::Missing)),
        ] {
            assert_eq!(auth.authenticate_bootstrap(id, sent), expected, "{id} {sent:?}");
        }
        assert_eq!(let_in(&auth, sent(Some("w-1"), Some("first"))), Err(AuthError::NotConfigured));
        let auth = WorkerAuth { shared: Secret::new("shared"), ..auth };
        assert_eq!(let_in(&auth, sent(Some("w-1"), Some("first"))), Err(AuthError::Invalid));
        let none = WorkerAuth::default();
        assert_eq!(none.authenticate_bootstrap("w-1", Some("first")), Err(AuthError::NotConfigured));
    }
}
