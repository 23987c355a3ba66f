//! What one control plane does for all: looking for what has expired, what is due, what can go.
//!
//! A duty is a lease in the store, renewed every second. The store's clock decides who has it. A holder judges by its own
//! clock whether it still has a duty, from when it asked and with a margin, so it stops before another can begin. Should
//! two do the same for a moment, because a process stood still between the look and the work, nothing is lost: they only
//! find rows and send commands, and each command is judged again in the transaction that writes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::LeaseToken;
use tenure_store::{Holder, Notice, Resource, ResourceType, Store, StoreError};
use tokio::sync::Notify;

use crate::background::Pacer;
use crate::engine::Shared;
use crate::random::random_bits;

const TTL: Duration = Duration::from_secs(3);
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// A holder gives up this much before the store would give the duty to another.
const MARGIN: Duration = Duration::from_millis(500);
/// A store that cannot be reached must not hold up the end.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);
/// Control planes that were gone for this long are forgotten.
const PRESENCE_KEPT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Ends what has expired.
    Reaper,
    /// Makes ready what is due.
    Timer,
    Redrive,
    Retention,
    IdentityPrune,
    /// Keep what a transport holds in line with the store.
    RedisWakeUps,
    SqsWakeUps,
    /// Compares sandboxes with their workers, and ends those that are over.
    Sandboxes,
    /// Fires what schedules have due.
    Schedules,
    /// Routes events of datasets, and looks for what was missed.
    Router,
    /// Writes batches of buffered datasets to their tables.
    Sink,
    /// Removes staged outputs that nobody has committed.
    Staging,
}

impl Duty {
    pub const ALL: [Self; 12] = [
        Self::Reaper,
        Self::Timer,
        Self::Redrive,
        Self::Retention,
        Self::IdentityPrune,
        Self::RedisWakeUps,
        Self::SqsWakeUps,
        Self::Sandboxes,
        Self::Schedules,
        Self::Router,
        Self::Sink,
        Self::Staging,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reaper => "reaper",
            Self::Timer => "timer",
            Self::Redrive => "redrive",
            Self::Retention => "retention",
            Self::IdentityPrune => "identity-prune",
            Self::RedisWakeUps => "redis-wake-ups",
            Self::SqsWakeUps => "sqs-wake-ups",
            Self::Sandboxes => "reconciler",
            Self::Schedules => "schedules",
            Self::Router => "router",
            Self::Sink => "sink",
            Self::Staging => "staging",
        }
    }

    fn resource(self) -> Resource {
        Resource::new(ResourceType::System, self.as_str())
    }
}

/// Which duties this control plane has.
#[derive(Debug)]
pub struct Duties {
    holder: Holder,
    /// What this control plane can do.
    able: Vec<Duty>,
    /// The lease by which other control planes know of this one.
    presence: Resource,
    presence_held: Slot,
    slots: [Slot; Duty::ALL.len()],
    others: AtomicUsize,
    /// Somebody came or went: ask now.
    pub look: Notify,
}

#[derive(Debug, Default)]
struct Slot {
    /// Until when the duty is held, by this process's clock.
    held_until: Mutex<Option<Instant>>,
    gained: Notify,
}

impl Duties {
    /// For a control plane that cannot do some of them.
    pub fn without(unable: &[Duty]) -> Self {
        // A name per start: a process that comes back is another one.
        let name: Arc<str> = format!("{:016x}", random_bits() as u64).into();
        let presence = Resource::new(ResourceType::Replica, Arc::clone(&name));
        let holder = Holder { name, token: LeaseToken::from_u128(random_bits()) };
        Self {
            holder,
            able: Duty::ALL.into_iter().filter(|duty| !unable.contains(duty)).collect(),
            presence,
            presence_held: Slot::default(),
            slots: Default::default(),
            others: AtomicUsize::new(0),
            look: Notify::new(),
        }
    }

    /// The name of this control plane among others.
    pub fn name(&self) -> &str {
        &self.holder.name
    }

    /// Whether this control plane has the duty now, by its own clock.
    pub fn is_mine(&self, duty: Duty) -> bool {
        self.slot(duty).get().is_some_and(|until| Instant::now() < until)
    }

    /// Ends when the duty became this control plane's.
    pub async fn gained(&self, duty: Duty) {
        self.slot(duty).gained.notified().await;
    }

    /// How many other control planes share the store, as of the last look.
    pub fn others(&self) -> usize {
        self.others.load(Ordering::Relaxed)
    }

    fn slot(&self, duty: Duty) -> &Slot {
        &self.slots[duty as usize]
    }

    /// Takes what is free, renews what is held, and looks who else is there.
    pub async fn renew(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut resources: Vec<Resource> = self.able.iter().map(|duty| duty.resource()).collect();
        resources.push(self.presence.clone());
        // The lease began no earlier than this.
        let asked_at = Instant::now();
        let answers = store.acquire_leases(&resources, &self.holder, TTL.as_millis() as i64).await?;
        let of = |resource: &Resource| {
            let held = answers.iter().flatten().any(|held| held.resource == *resource);
            held.then(|| asked_at + TTL - MARGIN)
        };
        for duty in Duty::ALL {
            self.slot(duty).set(duty.as_str(), of(&duty.resource()));
        }
        self.presence_held.set("presence", of(&self.presence));
        let replicas = store.leases(ResourceType::Replica).await?;
        let others = replicas.iter().filter(|lease| lease.resource != self.presence);
        self.others.store(others.count(), Ordering::Relaxed);
        Ok(())
    }

    /// Lets others have it all at once.
    async fn release(&self, store: &dyn Store) -> Result<(), StoreError> {
        // What is not held any more need not be released.
        for duty in Duty::ALL {
            if self.slot(duty).take().is_some() {
                let _ = store.release_lease(&duty.resource(), &self.holder).await?;
            }
        }
        if self.presence_held.take().is_some() {
            let _ = store.release_lease(&self.presence, &self.holder).await?;
        }
        Ok(())
    }

    /// Forgets control planes that are gone.
    pub async fn forget_gone(store: &dyn Store) -> Result<usize, StoreError> {
        let before = store.now().await?.plus(-(PRESENCE_KEPT.as_millis() as i64));
        store.prune_replicas(before).await
    }

    fn show(&self) {
        for duty in Duty::ALL {
            let held = if self.is_mine(duty) { 1.0 } else { 0.0 };
            metrics::gauge!("tenure_duty_held", "duty" => duty.as_str()).set(held);
        }
    }
}

impl Slot {
    fn get(&self) -> Option<Instant> {
        *self.held_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Instant> {
        self.held_until.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, duty: &str, new: Option<Instant>) {
        let mut held = self.held_until.lock().unwrap_or_else(PoisonError::into_inner);
        let had = held.is_some_and(|until| Instant::now() < until);
        if new.is_some() && !had {
            tracing::debug!(duty.name = duty, "this control plane now holds the duty");
            self.gained.notify_one();
        }
        *held = new;
    }
}

/// Keeps what this control plane has, takes what becomes free, and gives all back at the end.
pub async fn keep(shared: Arc<Shared>) {
    let (duties, store) = (&shared.duties, &*shared.store);
    duties.show();
    let mut pacer = Pacer::new(&shared);
    loop {
        tokio::select! {
            more = pacer.pause(RENEW_EVERY) => if !more { break },
            () = duties.look.notified() => {}
        }
        if let Err(error) = duties.renew(store).await {
            tracing::warn!(error = error.chain(), "cannot acquire duties");
        }
        duties.show();
    }
    let release = async {
        duties.release(store).await?;
        store.notify(duties.name(), &[Notice::Replicas]).await
    };
    match tokio::time::timeout(RELEASE_WITHIN, release).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = error.chain(), "cannot release duties: they end with their leases"),
        Err(_) => tracing::warn!("cannot release duties: the store does not answer, they end with their leases"),
    }
}
