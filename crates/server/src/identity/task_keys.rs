//! The keys that sign task tokens: this replica's own, and the public ones of all others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_auth::{CapabilityClaims, TaskClaims, TaskKeys, TaskPublicKey, TokenError, Verified};
use tenure_engine::Engine;
use tenure_engine::store::StoreError;

use crate::access::guard::unix_now;
use crate::live::Live;

/// Unknown keys make a replica look for new ones this often at most. Whoever shows one waits for the next look.
const LOOK_PACE: Duration = Duration::from_millis(200);
/// How often a replica says that its key is in use.
const REGISTER: Duration = Duration::from_secs(600);
/// How often it takes over the keys of others. A key that was taken back is refused everywhere after this.
const TAKE_OVER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct SharedTaskKeys {
    engine: Engine,
    keys: Live<TaskKeys>,
    times: Mutex<Times>,
    looked: tokio::sync::Mutex<Option<Look>>,
}

/// A look for keys that other replicas have registered.
#[derive(Debug, Clone, Copy)]
struct Look {
    began: Instant,
    /// Not known if whoever began it has hung up.
    answered: Option<bool>,
}

/// Why a token is not known to be good.
#[derive(Debug, thiserror::Error)]
pub enum Unverified {
    #[error(transparent)]
    Refused(#[from] TokenError),
    /// Its key is not known here, and the store that may know it does not answer.
    #[error("the store does not answer: the key of the token could not be looked up")]
    KeysUnavailable,
}

#[derive(Debug, Default)]
struct Times {
    registered: Option<Instant>,
    taken_over: Option<Instant>,
}

impl SharedTaskKeys {
    pub fn new(engine: Engine, keys: TaskKeys) -> Self {
        Self { engine, keys: Live::new(keys), times: Mutex::default(), looked: tokio::sync::Mutex::default() }
    }

    /// The keys as they are known now: to issue tokens with.
    pub fn get(&self) -> Arc<TaskKeys> {
        self.keys.get()
    }

    /// Keys that were read anew from their files. Own keys that are gone are taken back everywhere; what other
    /// replicas registered stays known.
    pub async fn replace(&self, keys: TaskKeys) {
        let before = self.keys.get();
        let gone: Vec<&str> = before.own_kids().filter(|kid| keys.own_kids().all(|kept| kept != *kid)).collect();
        for kid in gone {
            if let Err(error) = self.engine.identity().forget_task_key(kid).await {
                tracing::error!(key.id = kid, error = error.chain(), "cannot withdraw a removed task key");
            }
        }
        self.keys.set(keys);
        *self.times() = Times::default();
        self.refresh().await;
    }

    /// Takes a key of any replica back: its tokens are refused here at once, and elsewhere within seconds. A replica
    /// that has the key itself registers it again, until it has another one.
    pub async fn forget(&self, kid: &str) -> Result<bool, StoreError> {
        let known = self.engine.identity().forget_task_key(kid).await?;
        self.take_over().await;
        Ok(known)
    }

    /// Registers this replica's key and takes over those of others, from time to time.
    pub async fn refresh(&self) {
        let due = |at: Option<Instant>, pace| at.is_none_or(|at| at.elapsed() >= pace);
        let (register, take_over) = {
            let times = self.times();
            (due(times.registered, REGISTER), due(times.taken_over, TAKE_OVER))
        };
        if register && self.register().await {
            self.times().registered = Some(Instant::now());
        }
        if take_over && self.take_over().await {
            self.times().taken_over = Some(Instant::now());
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn register(&self) -> bool {
        let own = self.keys.get();
        let registered = self.engine.identity().register_task_key(own.kid(), &own.public_jwk()).await;
        if let Err(error) = &registered {
            tracing::warn!(error = error.chain(), "cannot register the task key for other replicas");
        }
        registered.is_ok()
    }

    async fn take_over(&self) -> bool {
        let shared = self.engine.identity().task_keys();
        match shared.await {
            Ok(peers) => {
                let peers = peers.iter().filter_map(|(kid, jwk)| {
                    let key = TaskPublicKey::from_jwk(jwk);
                    key.inspect_err(|error| tracing::warn!(key.id = kid, %error, "a registered task key is invalid"))
                        .ok()
                });
                self.keys.update(|keys| *keys = keys.with_peers(peers));
                true
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot read the task keys of other replicas");
                false
            }
        }
    }

    /// A task token of the callback contract.
    pub async fn verify_task(&self, token: &str) -> Result<Verified<TaskClaims>, Unverified> {
        self.verify(|keys| keys.verify_task(token, unix_now())).await
    }

    /// A capability token of the dispatch contract.
    pub async fn verify_capability(&self, token: &str) -> Result<Verified<CapabilityClaims>, Unverified> {
        self.verify(|keys| keys.verify_capability(token, unix_now())).await
    }

    /// A key that is not known may have been registered a moment ago: the store is asked before it is refused.
    async fn verify<T>(&self, check: impl Fn(&TaskKeys) -> Result<T, TokenError>) -> Result<T, Unverified> {
        match check(&self.keys.get()) {
            Err(TokenError::UnknownKey { .. }) if self.look().await => Ok(check(&self.keys.get())?),
            Err(TokenError::UnknownKey { .. }) => Err(Unverified::KeysUnavailable),
            judged => Ok(judged?),
        }
    }

    /// Takes over the keys of others by a look that begins after this was called. One look serves all that wait for it.
    /// Gives whether the store answered.
    async fn look(&self) -> bool {
        let asked = Instant::now();
        let mut last = self.looked.lock().await;
        if let Some(look) = *last {
            if let (true, Some(answered)) = (look.began >= asked, look.answered) {
                return answered;
            }
            tokio::time::sleep_until((look.began + LOOK_PACE).into()).await;
        }
        let began = Instant::now();
        *last = Some(Look { began, answered: None });
        let answered = self.take_over().await;
        *last = Some(Look { began, answered: Some(answered) });
        answered
    }
}
