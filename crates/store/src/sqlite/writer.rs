//! The one thread that writes.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{Db, file};
use crate::error::StoreError;
use crate::store::Lane;

/// A disk that was found full this long ago may still be.
const FULL_FOR: Duration = Duration::from_secs(5);

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
    /// When a write last found the disk full.
    full_at: Mutex<Option<Instant>>,
    path: PathBuf,
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
    pub fn start(mut db: Db, path: PathBuf) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { path, ..Shared::default() });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sqlite-writer".into()).spawn(move || {
            while let Some(job) = theirs.next() {
                job(&mut db);
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether a write found the disk full just now.
    pub fn is_full(&self) -> bool {
        let full_at = self.shared.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        full_at.is_some_and(|at| at.elapsed() < FULL_FOR)
    }

    /// Runs `work`. It happens even if the caller stops waiting. A panic inside becomes an error, and its transaction
    /// is rolled back.
    pub async fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce(&mut Db) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let job: Job = Box::new(move |db| {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(db))).unwrap_or_else(|_| {
                Err(StoreError::Failed { operation: "run a batch", source: "the writer panicked".into() })
            });
            if let Err(error) = &outcome {
                db.forget_cache();
                shared.note(error);
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
    /// Remembers what concerns the whole file.
    fn note(&self, error: &StoreError) {
        match error {
            StoreError::DiskFull { .. } => {
                *self.full_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
            StoreError::Failed { source, .. } if source.downcast_ref().is_some_and(file::is_damage) => {
                file::suspect(&self.path);
            }
            _ => {}
        }
    }

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
