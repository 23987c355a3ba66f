//! Heartbeats: what this worker is and holds, and what the control plane wants of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tenure_contract::worker_plane::{
    Capacity, DRAINING, Heartbeat, HeartbeatAnswer, InventoryItem, LEASE_RENEWAL, OFFLINE, ONLINE, Orphan,
};
use tenure_sandbox::{RuntimeId, RuntimeState};
use tokio_util::sync::CancellationToken;

use super::clock::Moment;
use super::plane::PlaneError;
use super::runtime::{Held, Node};
use super::settings::{backoff, jittered};

/// Clocks that differ by more make leases and tokens look older or newer than they are.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);
/// For the answer to each of the last two heartbeats.
const FAREWELL_WAIT: Duration = Duration::from_secs(5);
/// For a provider's list.
const STATES_WAIT: Duration = Duration::from_secs(5);

type States = HashMap<&'static str, HashMap<RuntimeId, RuntimeState>>;

/// How this worker presents itself.
#[derive(Debug)]
pub struct Face {
    pub hostname: String,
    /// Beside `remote_worker` and `heartbeat`.
    pub capabilities: Vec<String>,
    pub capacity: Capacity,
    /// One start of the worker.
    boot_id: String,
    seq: AtomicU64,
}

impl Face {
    pub fn new(hostname: String, capabilities: Vec<String>, capacity: Capacity) -> Self {
        Self { hostname, capabilities, capacity, boot_id: super::random_hex(), seq: AtomicU64::new(0) }
    }
}

/// Why a heartbeat had no success.
#[derive(Debug, thiserror::Error)]
#[error("the heartbeat failed: {0}")]
pub struct BeatError(#[from] PlaneError);

impl Node {
    /// Keeps a token fresh that is issued for a bootstrap key, for as long as it is polled. Without such a key, or
    /// without a control plane, it only waits.
    pub(super) async fn keep_token(&self) {
        let Some(plane) = &self.plane else { return std::future::pending().await };
        let mut failures = 0;
        loop {
            let error = plane.keep_token().await;
            failures += 1;
            let wait = backoff(self.settings.retry_wait, failures);
            tracing::warn!(wait_seconds = wait.as_secs_f64(), "the bootstrap key was refused, trying again: {error}");
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends heartbeats until `stop`. Failures are retried with growing waits.
    pub async fn beat(self: &Arc<Self>, face: &Face, stop: &CancellationToken) {
        let mut failures = 0;
        loop {
            let beat = tokio::select! {
                beat = self.beat_once(face, None) => beat,
                () = stop.cancelled() => return,
            };
            let asked = match beat {
                Ok(()) => {
                    failures = 0;
                    Duration::ZERO
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!("{error}");
                    error.0.retry_after().unwrap_or_default().min(self.settings.retry_wait.1)
                }
            };
            let wait = match failures {
                0 => jittered(self.settings.heartbeat_interval),
                _ => backoff(self.settings.retry_wait, failures).max(asked),
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.beat_now.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Sends one heartbeat without [`Node::run`].
    pub async fn beat_alone(self: &Arc<Self>, face: &Face) -> Result<(), BeatError> {
        let refused = async {
            match &self.plane {
                Some(plane) => plane.keep_token().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            beat = self.beat_once(face, None) => beat,
            error = refused => Err(PlaneError::Unanswered { reason: error.to_string(), retry_after: None }.into()),
        }
    }

    /// Says how the worker ends. A control plane that does not answer must not hold that up.
    pub(super) async fn say(self: &Arc<Self>, face: &Face, status: &str) {
        match tokio::time::timeout(FAREWELL_WAIT, self.beat_once(face, Some(status))).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(status, "{error}"),
            Err(_) => tracing::warn!(status, "the control plane did not answer a last heartbeat"),
        }
    }

    /// Sends one heartbeat and does what its answer asks for. Without a control plane it does nothing.
    pub async fn beat_once(self: &Arc<Self>, face: &Face, status: Option<&str>) -> Result<(), BeatError> {
        let Some(plane) = &self.plane else { return Ok(()) };
        let status = status.unwrap_or(if self.is_draining() { DRAINING } else { ONLINE });
        let body = self.heartbeat(face, status).await;
        let (answer, date) = plane.heartbeat::<HeartbeatAnswer>(self.worker_id(), &body).await?;
        if let Some(date) = date {
            warn_of_clock(date);
        }
        self.take_answer(answer, status).await;
        Ok(())
    }

    async fn heartbeat(&self, face: &Face, status: &str) -> Heartbeat {
        let mut providers = Vec::new();
        for provider in self.providers.iter() {
            match provider.healthy().await {
                Ok(()) => providers.push(provider.name().to_owned()),
                Err(error) => tracing::warn!(provider.name = provider.name(), "provider is not healthy: {error}"),
            }
        }
        let states = self.states().await;
        let inventory = self.all().into_iter().map(|held| InventoryItem {
            state: state_of(&held, &states).to_owned(),
            sandbox_id: held.sandbox_id,
            runtime_id: held.runtime_id.0,
            provider: held.provider_name,
            generation: held.generation,
        });
        let mut capabilities = vec!["remote_worker".to_owned(), "heartbeat".to_owned()];
        capabilities.extend(face.capabilities.iter().cloned());
        Heartbeat {
            hostname: face.hostname.clone(),
            status: status.to_owned(),
            providers,
            capabilities,
            capacity: face.capacity.clone(),
            boot_id: Some(face.boot_id.clone()),
            seq: Some(face.seq.fetch_add(1, Ordering::Relaxed) + 1),
            inventory: Some(inventory.collect()),
        }
    }

    async fn states(&self) -> States {
        let mut states = States::new();
        for provider in self.providers.iter() {
            if let Ok(Ok(runtimes)) = tokio::time::timeout(STATES_WAIT, provider.list()).await {
                let known = runtimes.into_iter().map(|runtime| (runtime.id, runtime.state));
                states.insert(provider.name(), known.collect());
            }
        }
        states
    }

    async fn take_answer(self: &Arc<Self>, answer: HeartbeatAnswer, sent: &str) {
        let lease_renewal = answer.features.iter().any(|feature| feature == LEASE_RENEWAL);
        if lease_renewal != self.holdings.lease_renewal() {
            self.start_or_end_renewals(lease_renewal).await;
        }
        self.revoke(answer.revoked_token_ids);
        match answer.desired_status.as_deref() {
            // Who stops does not come back.
            _ if sent == OFFLINE => {}
            Some(status) if status.eq_ignore_ascii_case(DRAINING) => self.drain(),
            Some(status) if status.eq_ignore_ascii_case(ONLINE) => self.undrain(),
            _ => {}
        }
        for orphan in answer.orphans {
            if let Some(sandbox_id) = self.orphaned(&orphan) {
                tracing::warn!(
                    sandbox.id = sandbox_id,
                    runtime.id = orphan.runtime_id,
                    "the control plane does not know this sandbox"
                );
                self.give_up(&sandbox_id, "it is an orphan").await;
            }
        }
    }

    /// Only what is held now under that name: a runtime that came later is not meant.
    fn orphaned(&self, orphan: &Orphan) -> Option<String> {
        let held = self.all().into_iter().find(|held| held.runtime_id.0 == orphan.runtime_id)?;
        (orphan.sandbox_id.is_empty() || orphan.sandbox_id == held.sandbox_id).then_some(held.sandbox_id)
    }

    async fn start_or_end_renewals(&self, lease_renewal: bool) {
        if lease_renewal {
            tracing::info!(lease.renewal = true, "the control plane renews the leases of sandboxes");
        } else {
            tracing::info!(lease.renewal = false, "the control plane does not renew the leases of sandboxes");
        }
        let present = self.holdings.present();
        if lease_renewal {
            // Nobody renewed or extended them here so far, so that what looks past its time need not be: each gets the
            // time for a renewal, which says until when it lives.
            let until = Moment::now().after(self.settings.lease_ttl);
            for (sandbox_id, _) in &present {
                self.holdings.update(sandbox_id, |entry| {
                    entry.held_until = entry.held_until.max(until);
                    entry.expires = entry.expires.map(|expires| expires.max(until));
                    entry.renew_at = Moment::now();
                });
            }
        }
        self.holdings.set_lease_renewal(lease_renewal);
        for (sandbox_id, _) in present {
            self.hand_over_deadlines(&sandbox_id).await;
            if !lease_renewal && let Err(error) = self.thaw_locked(&sandbox_id).await {
                tracing::warn!(sandbox.id = sandbox_id, "sandbox could not be thawed: {error}");
            }
        }
        self.changed.notify_waiters();
    }
}

/// As a control plane calls it. A provider that does not answer leaves it open.
fn state_of(held: &Held, states: &States) -> &'static str {
    let state = states.get(held.provider.name()).map(|known| known.get(&held.runtime_id));
    match state {
        _ if held.frozen => "unhealthy",
        Some(Some(RuntimeState::Running)) => "running",
        Some(Some(RuntimeState::Stopped) | None) => "error",
        Some(Some(RuntimeState::Frozen)) | None => "unhealthy",
    }
}

fn warn_of_clock(date: Timestamp) {
    let difference = Timestamp::now().duration_since(date).unsigned_abs();
    // The date has whole seconds.
    if difference > MAX_CLOCK_DIFFERENCE + Duration::from_secs(1) {
        tracing::warn!(
            difference_seconds = difference.as_secs(),
            "the clocks of this worker and of the control plane differ: synchronize them"
        );
    }
}
