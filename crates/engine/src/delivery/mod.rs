//! Tasks that are delivered to a target instead of being claimed by a worker.
//!
//! The grant and the intent to deliver are one row, committed before anything is sent. So a crash never loses a delivery:
//! another control plane, or this one after its restart, finds the row when its time has come and repeats it. Every
//! delivery of one attempt has the same ids, by which targets recognise a repeat.
//!
//! How a task travels is up to a [`Courier`]. When to grant, how much may be under way, when to repeat and when to leave
//! a target alone is decided here, and is the same for all of them.

mod circuit;
mod courier;
mod granting;
mod handover;
mod outlet;
mod places;
mod repeat;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::queue::{Push, Queue, QueueId, QueueSettings};
use tokio::sync::Notify;

use crate::engine::Engine;
use circuit::{Circuits, Name, Probe};
use granting::Granting;
use handover::Trip;
use outlet::Outlets;
use places::{Place, Places};
use tenure_core::command::claim::Grant;

pub use courier::{Courier, Handover, Health, Outcome, Parcel};

/// How often queues are looked for, and how soon a delivery that is not possible now is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most grants of one claim, and the most repeats of one queue in one look.
const BATCH_TASKS: usize = 64;

/// The deliveries of an engine. Cloning makes another handle to the same ones.
#[derive(Debug, Clone)]
pub struct Deliveries(Arc<Depot>);

/// What all deliveries share.
#[derive(Debug)]
struct Depot {
    engine: Engine,
    couriers: Vec<Arc<dyn Courier>>,
    circuits: Arc<Circuits>,
    places: Arc<Places>,
    outlets: Outlets,
    /// A delivery is due again, or a target may be probed with one.
    again: Notify,
}

/// A target to which nothing new is granted, because it does not answer.
#[derive(Debug, Clone)]
pub struct TargetDown {
    pub push: Arc<Push>,
    pub since: Duration,
}

impl Engine {
    /// Delivers the tasks of every queue that one of the couriers serves, until the engine stops.
    pub fn deliver(&self, couriers: Vec<Arc<dyn Courier>>) -> Deliveries {
        let depot = Arc::new(Depot {
            engine: self.clone(),
            couriers,
            circuits: Arc::default(),
            places: Places::new(self.shared.config.max_deliveries_in_flight),
            outlets: Outlets::default(),
            again: Notify::new(),
        });
        self.deliveries.spawn(Arc::clone(&depot).follow_queues());
        self.deliveries.spawn(Arc::clone(&depot).repeat());
        Deliveries(depot)
    }
}

impl Deliveries {
    /// Whether the target of this queue is left alone.
    pub fn target_down(&self, queue: QueueId) -> Option<TargetDown> {
        let queue = self.0.outlets.get(queue)?.queue();
        let push = queue.settings.push.clone()?;
        let since = self.0.circuits.open_for(&Name::of(&queue.name, &push), Instant::now())?;
        Some(TargetDown { push, since })
    }
}

impl Depot {
    /// Queues appear, change and vanish, here and at other control planes.
    async fn follow_queues(self: Arc<Self>) {
        let shared = &self.engine.shared;
        loop {
            match shared.store.push_queues().await {
                Ok(queues) => self.follow(queues),
                Err(error) => tracing::warn!(error = error.chain(), "cannot look for push queues"),
            }
            tokio::select! {
                () = shared.stopping.cancelled() => return,
                () = shared.queues_set.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    fn follow(self: &Arc<Self>, mut queues: Vec<Queue>) {
        queues.retain(|queue| self.courier_for(&queue.settings).is_some());
        for outlet in self.outlets.follow(queues, &self.engine.shared.stopping) {
            self.engine.deliveries.spawn(Granting::new(Arc::clone(self), outlet).run());
        }
        let names = self.outlets.circuits();
        self.circuits.keep(|known| names.contains(known));
    }

    fn courier_for(&self, settings: &QueueSettings) -> Option<&Arc<dyn Courier>> {
        self.couriers.iter().find(|courier| courier.serves(settings))
    }

    /// The courier for a queue and the name of its circuit, or why nothing can be delivered from it now.
    fn route(&self, queue: &Queue) -> Result<(&Arc<dyn Courier>, Name), String> {
        let push = queue.settings.push.as_ref().ok_or("the queue has no push block")?;
        let courier = self.courier_for(&queue.settings).ok_or("no courier serves the queue")?;
        courier.check(push)?;
        Ok((courier, Name::of(&queue.name, push)))
    }

    /// Sends a granted task on its way.
    fn send(self: &Arc<Self>, queue: Arc<Queue>, grant: Grant, place: Place, probe: Option<Probe>) {
        let depot = Arc::clone(self);
        self.engine.deliveries.spawn(Trip { depot, queue, place, probe }.run(grant));
    }
}
