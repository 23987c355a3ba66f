use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_auth::worker::Scopes;
use tenure_auth::{AuthError, WorkerAuth, WorkerCredential};

/// What callers are verified with. It can be replaced while the listener runs; the next request sees it.
#[derive(Debug)]
pub struct Credentials(RwLock<Arc<WorkerAuth>>);

impl Credentials {
    pub fn new(auth: WorkerAuth) -> Self {
        Self(RwLock::new(Arc::new(auth)))
    }

    pub fn replace(&self, auth: WorkerAuth) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(auth);
    }

    pub(super) fn can_verify(&self) -> bool {
        self.auth().can_verify_rpc()
    }

    /// What a caller may do on this worker. `is_revoked` says which tokens were revoked by other means than the
    /// configuration.
    pub(super) fn authenticate(
        &self,
        worker_id: &str,
        sent: WorkerCredential<'_>,
        is_revoked: &dyn Fn(&str) -> bool,
    ) -> Result<Scopes, AuthError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.auth().authenticate_rpc(worker_id, sent, now.cast_signed(), is_revoked)
    }

    fn auth(&self) -> Arc<WorkerAuth> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
