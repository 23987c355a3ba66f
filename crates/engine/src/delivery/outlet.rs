//! The queues whose tasks are delivered, as they are now.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::queue::{Queue, QueueId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::circuit::Name;

/// A queue whose tasks are delivered.
#[derive(Debug)]
pub struct Outlet {
    queue: watch::Sender<Arc<Queue>>,
    /// The queue is no longer one whose tasks are delivered.
    pub gone: CancellationToken,
}

impl Outlet {
    pub fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue.borrow())
    }

    /// Tells of every change that matters to deliveries.
    pub fn changes(&self) -> watch::Receiver<Arc<Queue>> {
        self.queue.subscribe()
    }

    fn update(&self, queue: Queue) {
        self.queue.send_if_modified(|known| {
            // Its bucket changes with every grant, which concerns nobody here.
            let changed = known.settings.push != queue.settings.push || known.paused != queue.paused;
            *known = Arc::new(queue);
            changed
        });
    }
}

#[derive(Debug, Default)]
pub struct Outlets(Mutex<HashMap<QueueId, Arc<Outlet>>>);

impl Outlets {
    pub fn get(&self, queue: QueueId) -> Option<Arc<Outlet>> {
        self.lock().get(&queue).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Outlet>> {
        self.lock().values().cloned().collect()
    }

    /// The circuits of all targets.
    pub fn circuits(&self) -> HashSet<Name> {
        let queues = self.all().into_iter().map(|outlet| outlet.queue());
        queues.filter_map(|queue| Some(Name::of(&queue.name, queue.settings.push.as_deref()?))).collect()
    }

    /// These are the queues now. Returns the outlets that are new.
    pub fn follow(&self, queues: Vec<Queue>, stop: &CancellationToken) -> Vec<Arc<Outlet>> {
        let ids: HashSet<QueueId> = queues.iter().map(|queue| queue.id).collect();
        let mut outlets = self.lock();
        outlets.retain(|id, outlet| {
            let stays = ids.contains(id);
            if !stays {
                outlet.gone.cancel();
            }
            stays
        });
        let mut new = Vec::new();
        for queue in queues {
            if let Some(outlet) = outlets.get(&queue.id) {
                outlet.update(queue);
                continue;
            }
            let id = queue.id;
            let outlet = Arc::new(Outlet { queue: watch::Sender::new(Arc::new(queue)), gone: stop.child_token() });
            outlets.insert(id, Arc::clone(&outlet));
            new.push(outlet);
        }
        new
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueId, Arc<Outlet>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
