//! What a worker does by itself: it renews leases, freezes what has none, and destroys what is past its time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::clock::Moment;
use super::error::NodeError;
use super::holdings::{Entry, Stage};
use super::lease::LeaseRefusal;
use super::runtime::Node;
use super::settings::{backoff, jittered};

/// Renewals, freezes and destroys at a time.
const MAX_AT_A_TIME: usize = 32;
/// How often everything is looked at, if nothing is due sooner.
const LOOK: Duration = Duration::from_secs(1);
/// How often old fences are looked for.
const FORGET: Duration = Duration::from_secs(600);

/// What has to be done about a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Freeze,
    Destroy(&'static str),
}

impl Node {
    /// Defends leases and times to live until `stop`. What has begun is finished.
    pub async fn defend(self: &Arc<Self>, stop: &CancellationToken) {
        // Apart, so that renewals that wait for an answer hold up no freeze.
        let (mut renewals, mut acts) = (JoinSet::new(), JoinSet::new());
        let mut forgotten = Moment::now();
        loop {
            let changed = self.changed.notified();
            let mut next = Moment::now().after(LOOK);
            for (sandbox_id, entry) in self.holdings.present() {
                next = next.min(self.next_look(&entry));
                if self.is_renewal_due(&entry) && renewals.len() < MAX_AT_A_TIME {
                    self.holdings.update(&sandbox_id, |entry| entry.renewing = true);
                    let (node, sandbox_id) = (Arc::clone(self), sandbox_id.clone());
                    renewals.spawn(async move {
                        node.keep_lease(&sandbox_id).await;
                        node.holdings.update(&sandbox_id, |entry| entry.renewing = false);
                    });
                }
                if let Some(act) = self.due(&entry)
                    && acts.len() < MAX_AT_A_TIME
                {
                    self.holdings.update(&sandbox_id, |entry| entry.acting = true);
                    let node = Arc::clone(self);
                    acts.spawn(async move {
                        match act {
                            Act::Freeze => node.freeze(&sandbox_id).await,
                            Act::Destroy(reason) => node.give_up(&sandbox_id, reason).await,
                        }
                        node.holdings.update(&sandbox_id, |entry| entry.acting = false);
                    });
                }
            }
            if forgotten.after(FORGET).has_passed() {
                self.holdings.forget_old();
                forgotten = Moment::now();
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = changed => {}
                Some(_) = renewals.join_next() => {}
                Some(_) = acts.join_next() => {}
                () = tokio::time::sleep(next.left().max(Duration::from_millis(5))) => {}
            }
        }
        while renewals.join_next().await.is_some() || acts.join_next().await.is_some() {}
    }

    fn is_renewal_due(&self, entry: &Entry) -> bool {
        self.plane.is_some()
            && self.holdings.lease_renewal()
            && !entry.renewing
            && entry.doomed.is_none()
            && entry.renew_at.has_passed()
    }

    fn due(&self, entry: &Entry) -> Option<Act> {
        if entry.acting || !matches!(entry.stage, Stage::Held { .. }) {
            return None;
        }
        if let Some(reason) = entry.doomed {
            return entry.retry_at.has_passed().then_some(Act::Destroy(reason));
        }
        // A control plane that renews nothing would lose every sandbox.
        if !self.holdings.lease_renewal() {
            return None;
        }
        if self.destroyed_at(entry).has_passed() {
            let is_expired = entry.expires.is_some_and(|expires| expires.after(self.settings.ttl_grace).has_passed());
            return Some(Act::Destroy(if is_expired { "its time to live ended" } else { "its lease lapsed" }));
        }
        (!entry.frozen && entry.held_until.has_passed()).then_some(Act::Freeze)
    }

    fn next_look(&self, entry: &Entry) -> Moment {
        let moments = [entry.renew_at, entry.held_until, self.destroyed_at(entry), entry.retry_at];
        let ahead = moments.into_iter().filter(|moment| !moment.has_passed());
        ahead.min().unwrap_or_else(|| Moment::now().after(LOOK))
    }

    async fn keep_lease(&self, sandbox_id: &str) {
        let Some(plane) = &self.plane else { return };
        let settings = &self.settings;
        let (error, asked) = match plane.renew(self.worker_id(), sandbox_id, settings.lease_ttl).await {
            Ok(renewed) => {
                let held_until = renewed.held_until;
                match self.apply(renewed).await {
                    Ok(()) => {
                        count("renewed");
                        let next = Moment::now().after(jittered(self.renew_after(held_until)));
                        self.holdings.update(sandbox_id, |entry| (entry.renew_at, entry.failures) = (next, 0));
                        return;
                    }
                    Err(error) => (error, None),
                }
            }
            Err(error) => {
                if let Some(LeaseRefusal::Stale(message)) = error.lease_refusal() {
                    count("lease_stale");
                    tracing::warn!(sandbox.id = sandbox_id, reason = message, "the lease went to another holder");
                    return self.give_up(sandbox_id, "its lease was superseded").await;
                }
                let asked = error.retry_after();
                (NodeError::from(error), asked)
            }
        };
        count("failed");
        tracing::warn!(sandbox.id = sandbox_id, "the lease was not renewed: {error}");
        let asked = asked.unwrap_or_default().min(settings.retry_wait.1);
        self.holdings.update(sandbox_id, |entry| {
            entry.failures = entry.failures.saturating_add(1);
            entry.renew_at = Moment::now().after(backoff(settings.retry_wait, entry.failures).max(asked));
        });
    }

    /// A control plane may grant less than it was asked for: a third of that, so that two renewals may fail.
    fn renew_after(&self, held_until: Moment) -> Duration {
        let settings = &self.settings;
        (held_until.left() / 3).max(settings.retry_wait.0).min(settings.renewal_interval)
    }

    async fn freeze(&self, sandbox_id: &str) {
        let lock = self.lock_of(sandbox_id);
        let _guard = lock.lock().await;
        let Some(entry) = self.holdings.entry(sandbox_id) else { return };
        let Stage::Held { order, runtime_id, .. } = &entry.stage else { return };
        // A renewal may have been faster.
        if entry.frozen || !entry.held_until.has_passed() {
            return;
        }
        // Calls are refused from now on, whether or not the provider can stop what runs.
        self.holdings.update(sandbox_id, |entry| entry.frozen = true);
        tracing::warn!(sandbox.id = sandbox_id, runtime.id = %runtime_id, "the lease lapsed, sandbox frozen");
        if let Ok(provider) = self.providers.get(&order.provider)
            && provider.capabilities().freeze
            && let Err(error) = provider.freeze(runtime_id).await
        {
            tracing::error!(sandbox.id = sandbox_id, runtime.id = %runtime_id, "sandbox could not be frozen: {error}");
        }
    }

    /// Destroys a sandbox that this worker must not keep. If that fails, it is tried again.
    pub(super) async fn give_up(&self, sandbox_id: &str, reason: &'static str) {
        self.holdings.update(sandbox_id, |entry| entry.doomed = Some(reason));
        match self.remove(sandbox_id, "", reason).await {
            Ok(()) => {}
            Err(error) if error.is_absent() => drop(self.holdings.gone(sandbox_id).await),
            Err(error) => {
                tracing::error!(
                    sandbox.id = sandbox_id,
                    reason,
                    "sandbox could not be destroyed, trying again: {error}"
                );
                let wait = self.settings.retry_wait;
                self.holdings.update(sandbox_id, |entry| {
                    entry.failures = entry.failures.saturating_add(1);
                    entry.retry_at = Moment::now().after(backoff(wait, entry.failures));
                });
            }
        }
    }
}

fn count(result: &'static str) {
    metrics::counter!("tenure_lease_renewals_total", "result" => result).increment(1);
}
