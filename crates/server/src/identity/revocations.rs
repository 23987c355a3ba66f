//! Worker tokens that were revoked over the API, on any replica.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Timestamp;
use tenure_engine::Engine;
use tenure_engine::store::StoreError;
use tokio::sync::Mutex;

use crate::access::guard::unix_now;
use crate::live::Live;

/// How often a replica looks for what others revoked.
pub const PACE: Duration = Duration::from_secs(2);
/// No token lives longer than 15 minutes; the rest is for clocks that differ.
const KEPT_SECONDS: i64 = 20 * 60;

#[derive(Debug)]
pub struct Revocations {
    engine: Engine,
    /// `None` until the store was read.
    ids: Live<Option<Arc<HashSet<String>>>>,
    /// Held while the store is asked, so that an answer from before a revocation does not undo it.
    asking: Mutex<()>,
}

impl Revocations {
    pub fn new(engine: Engine) -> Self {
        Self { engine, ids: Live::default(), asking: Mutex::default() }
    }

    /// `None` until the store was read for the first time: then nobody can say which tokens are revoked.
    pub fn get(&self) -> Option<Arc<HashSet<String>>> {
        Option::clone(&self.ids.get())
    }

    /// Holds here at once, and elsewhere within [`PACE`].
    pub async fn add(&self, token_id: &str, by: &str) -> Result<(), StoreError> {
        let _asking = self.asking.lock().await;
        let until = Timestamp::from_millis((unix_now() + KEPT_SECONDS).saturating_mul(1000));
        self.engine.identity().revoke_worker_token(token_id, until, by).await?;
        // What was never read stays unknown: the row is there for the first look.
        if let Some(ids) = self.get() {
            let ids = ids.iter().cloned().chain([token_id.to_owned()]).collect();
            self.ids.set(Some(Arc::new(ids)));
        }
        Ok(())
    }

    /// Takes over what the store has. If it cannot be asked, what is known holds on.
    pub async fn refresh(&self) {
        let _asking = self.asking.lock().await;
        match self.engine.identity().revoked_worker_tokens().await {
            Ok(ids) => {
                let ids: HashSet<String> = ids.into_iter().collect();
                if self.get().is_none_or(|known| *known != ids) {
                    self.ids.set(Some(Arc::new(ids)));
                }
            }
            Err(error) => tracing::debug!(error = error.chain(), "cannot read revocations"),
        }
    }
}
