//! The one thread that writes.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::Db;
use crate::error::StoreError;
use crate::store::Lane;

type Job = Box<dyn FnOnce(&mut Db) + Send>;

#[derive(Default)]
struct Jobs {
    heartbeat: VecDeque<Job>,
    work: VecDeque<Job>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

/// Runs jobs one at a time on a thread of its own; heartbeats go before everything else that waits.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    pub fn start(mut db: Db) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sqlite-writer".into()).spawn(move || {
            while let Some(job) = theirs.next() {
                job(&mut db);
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Runs `work`. It happens even if the caller stops waiting. A panic inside becomes an error, and its transaction
    /// is rolled back.
    pub async fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce(&mut Db) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |db| {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(db))).unwrap_or_else(|_| {
                Err(StoreError::Failed { operation: "run a batch", source: "the writer panicked".into() })
            });
            if outcome.is_err() {
                db.forget_cache();
            }
            // Whoever asked may have gone; the work is done all the same.
            let _ = sender.send(outcome);
        });
        self.shared.push(lane, job);
        let closed = || StoreError::Unavailable { operation: "write", source: "the store is closed".into() };
        receiver.await.map_err(|_| closed())?
    }
}

impl Shared {
    fn push(&self, lane: Lane, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.closed {
            return;
        }
        match lane {
            Lane::Heartbeat => jobs.heartbeat.push_back(job),
            Lane::Work => jobs.work.push_back(job),
        }
        self.arrived.notify_one();
    }

    /// The next job; `None` once the writer is closed and nothing is left.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = jobs.heartbeat.pop_front() {
                return Some(job);
            }
            if let Some(job) = jobs.work.pop_front() {
                return Some(job);
            }
            if jobs.closed {
                return None;
            }
            jobs = self.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Writer {
    /// What was accepted is finished before the file is closed.
    fn drop(&mut self) {
        self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.arrived.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
