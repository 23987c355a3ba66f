//! Keys that were made over the API: looked up by digest, remembered for a moment.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_auth::{KeyDigest, Role, key_digest};
use tenure_core::{Timestamp, mutant};
use tenure_engine::Engine;
use tenure_engine::store::ApiKey;

use super::Effort;
use crate::access::caller::Caller;
use crate::access::guard::unix_now;
use crate::error::{Fault, Unavailable};

/// A key that was revoked on another replica is refused here after this long at the latest.
const FRESH: Duration = Duration::from_secs(3);
/// With the store away, keys that were good a moment ago still are.
const KEPT_IN_OUTAGE: Duration = Duration::from_secs(60);
const CACHED: usize = 10_000;

#[derive(Debug)]
pub struct ApiKeys {
    engine: Engine,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    keys: HashMap<KeyDigest, (Instant, Option<ApiKey>)>,
    /// How often a key was forgotten. What was read before that is not remembered after it.
    turn: u64,
}

impl ApiKeys {
    pub fn new(engine: Engine) -> Self {
        Self { engine, cache: Mutex::default() }
    }

    /// Whose key this is; `None` for a key that is unknown, revoked or past its time.
    pub async fn caller(&self, sent: &str, effort: Effort) -> Result<Option<Caller>, Fault> {
        let Some(digest) = key_digest(sent) else { return Ok(None) };
        let key = self.find(digest, effort).await?;
        let now = Timestamp::from_millis(unix_now().saturating_mul(1000));
        let revoked = |key: &ApiKey| key.revoked_at.is_some() && !mutant!("revocation-ignored");
        let good = |key: &ApiKey| !revoked(key) && key.expires_at.is_none_or(|until| now < until);
        Ok(key.filter(good).and_then(|key| {
            let role = Role::parse(&key.role)?;
            Some(Caller {
                role,
                tenant: (role != Role::Admin).then(|| key.tenant.as_str().into()),
                owner: key.owner.as_deref().map(Into::into),
                subject: key.owner.as_deref().map(Into::into),
                actor: format!("key:{}", key.key_id).into(),
            })
        }))
    }

    async fn find(&self, digest: KeyDigest, effort: Effort) -> Result<Option<ApiKey>, Fault> {
        let (cached, turn) = self.cached(&digest);
        if let Some((at, key)) = &cached
            && at.elapsed() < FRESH
        {
            return Ok(key.clone());
        }
        // A key that was good is looked up again, however little may be done: it may have been revoked since.
        if effort == Effort::Cheap && !matches!(cached, Some((_, Some(_)))) {
            return Ok(None);
        }
        match self.engine.identity().api_key_by_hash(&digest).await {
            Ok(key) => {
                self.remember(digest, key.clone(), turn);
                Ok(key)
            }
            Err(error) if error.is_transient() => match cached {
                Some((at, key @ Some(_))) if at.elapsed() < KEPT_IN_OUTAGE => Ok(key),
                _ => Err(Unavailable::STORE.into()),
            },
            Err(error) => {
                tracing::error!(error = error.chain(), "cannot look up an API key");
                Err(Fault::Internal)
            }
        }
    }

    fn cached(&self, digest: &KeyDigest) -> (Option<(Instant, Option<ApiKey>)>, u64) {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        (cache.keys.get(digest).cloned(), cache.turn)
    }

    fn remember(&self, digest: KeyDigest, key: Option<ApiKey>, turn: u64) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.turn != turn {
            return;
        }
        if cache.keys.len() >= CACHED {
            cache.keys.retain(|_, (at, key)| key.is_some() && at.elapsed() < KEPT_IN_OUTAGE);
        }
        if cache.keys.len() < CACHED {
            cache.keys.insert(digest, (Instant::now(), key));
        }
    }

    /// After a key was revoked here, which holds at once. Others stay: whoever calls from an address with many failures
    /// is known only from here.
    pub fn forget(&self, key_id: &str) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.keys.retain(|_, (_, key)| key.as_ref().is_none_or(|key| key.key_id != key_id));
        cache.turn += 1;
    }
}
