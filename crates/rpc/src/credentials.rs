//! Which credential a worker is shown.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::header::HeaderValue;
use tenure_auth::WorkerAuth;
use tenure_auth::worker::{Audience, MintRequest};

use crate::{Capabilities, Error};

/// A minted token is replaced this long before it expires: it must outlast the way to the worker.
const RENEWED_S: i64 = 60;

/// A kind of credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The worker's entry in `auth.worker_tokens`.
    Own,
    /// `auth.worker_token`.
    Shared,
    /// The shared token before its last change.
    SharedPrevious,
    /// A minted `tenure-worker-v1` token.
    Ed25519,
    /// A minted `stacyvm-worker-v1` token.
    Hmac,
}

/// The credentials for a worker, the preferred one first. With a signing key and no shared token a minted one comes
/// first. A worker with a token of its own is never shown the shared one: it would not accept it, and need not know it.
pub(crate) fn kinds(auth: &WorkerAuth, worker_id: &str, capabilities: Capabilities) -> Vec<Kind> {
    let own = auth.per_worker.contains_key(worker_id);
    let mut fixed = Vec::new();
    if own {
        fixed.push(Kind::Own);
    } else {
        fixed.extend(auth.shared.is_some().then_some(Kind::Shared));
        fixed.extend(auth.shared_previous.is_some().then_some(Kind::SharedPrevious));
    }
    let mut minted = Vec::new();
    let ed25519 = auth.keys.private.is_some() && capabilities.has("token_ed25519");
    minted.extend(ed25519.then_some(Kind::Ed25519));
    minted.extend(auth.keys.active.is_some().then_some(Kind::Hmac));
    match auth.shared {
        None => [minted, fixed].concat(),
        Some(_) => [fixed, minted].concat(),
    }
}

/// What is known about the credentials for one worker.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Of the configuration that the rest is about.
    generation: u64,
    /// The kind that the worker accepted last.
    accepted: Option<Kind>,
    ed25519: Option<Token>,
    hmac: Option<Token>,
}

#[derive(Debug)]
struct Token {
    value: HeaderValue,
    expires_at: i64,
}

impl Memory {
    /// Forgets what a former configuration led to.
    pub(crate) fn enter(&mut self, generation: u64) {
        if self.generation != generation {
            *self = Self { generation, ..Self::default() };
        }
    }

    /// Puts the kind that the worker accepted last first.
    pub(crate) fn order(&self, mut kinds: Vec<Kind>) -> Vec<Kind> {
        if let Some(index) = kinds.iter().position(|kind| Some(*kind) == self.accepted) {
            kinds[..=index].rotate_right(1);
        }
        kinds
    }

    pub(crate) fn accepted(&self) -> Option<Kind> {
        self.accepted
    }

    pub(crate) fn accept(&mut self, generation: u64, kind: Kind) {
        if self.generation == generation {
            self.accepted = Some(kind);
        }
    }

    /// A refused token may have been revoked: the next one is minted.
    pub(crate) fn refuse(&mut self, generation: u64, kind: Kind) {
        if self.generation != generation {
            return;
        }
        if self.accepted == Some(kind) {
            self.accepted = None;
        }
        match kind {
            Kind::Ed25519 => self.ed25519 = None,
            Kind::Hmac => self.hmac = None,
            Kind::Own | Kind::Shared | Kind::SharedPrevious => {}
        }
    }

    /// The credential itself. Minted tokens are kept until shortly before they expire.
    pub(crate) fn token(&mut self, auth: &WorkerAuth, worker_id: &str, kind: Kind) -> Result<HeaderValue, Error> {
        let fixed = match kind {
            Kind::Own => auth.per_worker.get(worker_id),
            Kind::Shared => auth.shared.as_ref(),
            Kind::SharedPrevious => auth.shared_previous.as_ref(),
            Kind::Ed25519 => return minted(&mut self.ed25519, auth, worker_id, true),
            Kind::Hmac => return minted(&mut self.hmac, auth, worker_id, false),
        };
        header(fixed.map(tenure_auth::Secret::reveal).unwrap_or_default())
    }
}

fn minted(kept: &mut Option<Token>, auth: &WorkerAuth, worker_id: &str, ed25519: bool) -> Result<HeaderValue, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed();
    // A clock that was set back must not keep a token for ever.
    if let Some(token) = kept
        && (now + RENEWED_S..=now + 2 * MintRequest::new(worker_id, Audience::Rpc, 0).ttl.as_secs().cast_signed())
            .contains(&token.expires_at)
    {
        return Ok(token.value.clone());
    }
    let wanted = MintRequest { ed25519, ..MintRequest::new(worker_id, Audience::Rpc, now) };
    let new = auth.keys.mint(&wanted).map_err(|error| Error::Unauthorized { message: error.to_string() })?;
    let value = header(new.token.reveal())?;
    *kept = Some(Token { value: value.clone(), expires_at: new.expires_at });
    Ok(value)
}

fn header(token: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(token)
        .map_err(|_| Error::Unauthorized { message: "the token has characters that no header can carry".to_owned() })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use tenure_auth::Secret;
    use tenure_auth::worker::{PrivateKey, SigningKey, WorkerKeys};

    use super::*;

    fn auth(own: bool, shared: bool, hmac: bool, private: bool) -> WorkerAuth {
        let secret = |text| Secret::new(text).expect("a secret");
        WorkerAuth {
            shared: shared.then(|| secret("shared")),
            per_worker: own.then(|| ("w".to_owned(), secret("own"))).into_iter().collect(),
            keys: WorkerKeys {
                active: hmac.then(|| SigningKey::new("key").expect("a key")),
                private: private.then(PrivateKey::random),
                ..WorkerKeys::default()
            },
            ..WorkerAuth::default()
        }
    }

    #[test]
    fn credentials_are_shown_in_the_order_of_the_contract() {
        use Kind::{Ed25519, Hmac, Own, Shared};
        let (plain, new) = (Capabilities::default(), Capabilities::of(["token_ed25519"]));
        let table: [(WorkerAuth, Capabilities, &[Kind]); 10] = [
            (auth(false, false, false, false), new, &[]),
            (auth(false, true, false, false), new, &[Shared]),
            (auth(true, true, false, false), new, &[Own]),
            (auth(true, false, true, false), new, &[Hmac, Own]),
            (auth(true, true, true, false), new, &[Own, Hmac]),
            (auth(false, true, true, true), new, &[Shared, Ed25519, Hmac]),
            (auth(false, false, true, true), new, &[Ed25519, Hmac]),
            (auth(false, false, true, true), plain, &[Hmac]),
            (auth(false, false, false, true), plain, &[]),
            (auth(true, false, false, true), plain, &[Own]),
        ];
        for (auth, capabilities, expected) in table {
            assert_eq!(kinds(&auth, "w", capabilities), expected, "{auth:?}");
        }
    }

    #[test]
    fn the_accepted_kind_comes_first_until_it_is_refused() {
        use Kind::{Ed25519, Hmac, Own};
        let mut memory = Memory::default();
        memory.enter(1);
        memory.accept(1, Own);
        assert_eq!(memory.order(vec![Ed25519, Hmac, Own]), [Own, Ed25519, Hmac]);
        memory.accept(0, Hmac);
        assert_eq!(memory.order(vec![Ed25519, Hmac]), [Ed25519, Hmac], "of another configuration");
        memory.refuse(1, Own);
        assert_eq!(memory.order(vec![Ed25519, Hmac, Own]), [Ed25519, Hmac, Own]);
        memory.accept(1, Own);
        memory.enter(2);
        assert_eq!(memory.accepted(), None);
    }

    #[test]
    fn a_minted_token_is_kept_until_it_is_refused_or_about_to_expire() {
        let auth = auth(false, false, true, false);
        let mut memory = Memory::default();
        let first = memory.token(&auth, "w", Kind::Hmac).expect("a token");
        assert_eq!(memory.token(&auth, "w", Kind::Hmac).expect("a token"), first);
        assert!(!format!("{first:?}").contains("stacyvm"), "{first:?}");
        memory.hmac.as_mut().expect("kept").expires_at -= 300 - RENEWED_S + 1;
        let second = memory.token(&auth, "w", Kind::Hmac).expect("a token");
        assert_ne!(second, first);
        memory.refuse(0, Kind::Hmac);
        assert_ne!(memory.token(&auth, "w", Kind::Hmac).expect("a token"), second);
        memory.hmac.as_mut().expect("kept").expires_at += 100_000;
        let third = memory.token(&auth, "w", Kind::Hmac).expect("a token");
        assert_eq!(memory.token(&auth, "w", Kind::Hmac).expect("a token"), third, "the clock was set back");
    }
}
