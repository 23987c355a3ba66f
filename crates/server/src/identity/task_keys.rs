//! The keys that sign task tokens: this replica's own, and the public ones of all others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_auth::{CapabilityClaims, TaskClaims, TaskKeys, TaskPublicKey, TokenError, Verified};
use tenure_engine::Engine;

use crate::access::guard::unix_now;
use crate::live::Live;

/// An unknown key makes a replica look for new ones this often at most.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How often a replica says that its key is in use, and takes over the keys of others.
const REGISTER: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub struct SharedTaskKeys {
    engine: Engine,
    keys: Live<TaskKeys>,
    times: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    registered: Option<Instant>,
    looked: Option<Instant>,
}

impl SharedTaskKeys {
    pub fn new(engine: Engine, keys: TaskKeys) -> Self {
        Self { engine, keys: Live::new(keys), times: Mutex::default() }
    }

    /// The keys as they are known now: to issue tokens with.
    pub fn get(&self) -> Arc<TaskKeys> {
        self.keys.get()
    }

    /// Keys that were read anew from their files. What other replicas registered stays known.
    pub async fn replace(&self, keys: TaskKeys) {
        self.keys.set(keys);
        self.times.lock().unwrap_or_else(PoisonError::into_inner).registered = None;
        self.refresh().await;
    }

    /// Registers this replica's key and takes over those of others, from time to time.
    pub async fn refresh(&self) {
        let due = |times: &Times| times.registered.is_none_or(|at| at.elapsed() >= REGISTER);
        if due(&self.times.lock().unwrap_or_else(PoisonError::into_inner)) && self.share().await {
            self.times.lock().unwrap_or_else(PoisonError::into_inner).registered = Some(Instant::now());
        }
    }

    async fn share(&self) -> bool {
        let own = self.keys.get();
        let shared = async {
            let store = self.engine.store();
            store.register_task_key(own.kid(), &own.public_jwk()).await?;
            store.task_keys().await
        };
        match shared.await {
            Ok(peers) => {
                let peers = peers.iter().filter_map(|(kid, jwk)| {
                    let key = TaskPublicKey::from_jwk(jwk);
                    key.inspect_err(|error| tracing::warn!(kid, %error, "a registered task key is of no use")).ok()
                });
                self.keys.update(|keys| *keys = keys.with_peers(peers));
                true
            }
            Err(error) => {
                tracing::warn!("task keys could not be shared with other replicas: {}", error.chain());
                false
            }
        }
    }

    /// A task token of the callback contract.
    pub async fn verify_task(&self, token: &str) -> Result<Verified<TaskClaims>, TokenError> {
        self.verify(|keys| keys.verify_task(token, unix_now())).await
    }

    /// A capability token of the dispatch contract.
    pub async fn verify_capability(&self, token: &str) -> Result<Verified<CapabilityClaims>, TokenError> {
        self.verify(|keys| keys.verify_capability(token, unix_now())).await
    }

    /// A key that is not known may have been registered a moment ago: one look, not more often than [`LOOK_AGAIN`].
    async fn verify<T>(&self, check: impl Fn(&TaskKeys) -> Result<T, TokenError>) -> Result<T, TokenError> {
        let judged = check(&self.keys.get());
        if !matches!(judged, Err(TokenError::UnknownKey { .. })) || !self.may_look() {
            return judged;
        }
        self.share().await;
        check(&self.keys.get())
    }

    fn may_look(&self) -> bool {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let may = times.looked.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if may {
            times.looked = Some(Instant::now());
        }
        may
    }
}
