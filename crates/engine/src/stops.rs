//! Tells those who work on a task at once that it is to stop.
//!
//! A hint: the answer to the next heartbeat is what counts. So nothing here is durable, and what is missed costs time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::TaskId;
use tenure_core::batch::Stop;
use tokio::sync::Notify;

/// How long a stop is remembered for those who begin to watch a moment later.
const REMEMBERED: Duration = Duration::from_secs(5);
const REMEMBERED_STOPS: usize = 4_096;
/// Watchers at a time. Those who come later get no hints.
const WATCHERS: usize = 50_000;

/// Whose stops are watched.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Watched {
    Task(TaskId),
    /// All that this worker holds.
    Worker(Arc<str>),
}

impl Watched {
    fn is_about(&self, stop: &Stop) -> bool {
        match self {
            Self::Task(task) => stop.task == *task,
            Self::Worker(worker) => stop.worker.as_ref() == Some(worker),
        }
    }
}

#[derive(Debug, Default)]
pub struct Stops(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    recent: VecDeque<(u64, Instant, Stop)>,
    last: u64,
    watchers: HashMap<Watched, Vec<Arc<Notify>>>,
    count: usize,
}

impl Inner {
    fn since(&self, watched: &Watched, after: u64) -> Vec<TaskId> {
        let newer = self.recent.iter().rev().take_while(|(number, ..)| *number > after);
        newer.filter(|(_, _, stop)| watched.is_about(stop)).map(|(_, _, stop)| stop.task).collect()
    }

    /// The last stop before those that are still remembered.
    fn forgotten(&self, now: Instant) -> u64 {
        let old = self.recent.iter().rev().find(|(_, at, _)| now.duration_since(*at) >= REMEMBERED);
        old.map_or(0, |(number, ..)| *number)
    }
}

impl Stops {
    pub fn tell(&self, stops: &[Stop]) {
        if stops.is_empty() {
            return;
        }
        let mut inner = self.lock();
        let now = Instant::now();
        for stop in stops {
            inner.last += 1;
            let number = inner.last;
            inner.recent.push_back((number, now, stop.clone()));
            let mut keys = vec![Watched::Task(stop.task)];
            keys.extend(stop.worker.clone().map(Watched::Worker));
            for key in keys {
                inner.watchers.get(&key).into_iter().flatten().for_each(|watcher| watcher.notify_one());
            }
        }
        while inner.recent.len() > REMEMBERED_STOPS {
            inner.recent.pop_front();
        }
    }

    /// Waits for a stop after the one with the number `after`, or else after what is remembered. Gives the tasks, none if
    /// `wait` ended first, and the number to go on from.
    pub async fn watch(&self, watched: &Watched, after: Option<u64>, wait: Duration) -> (Vec<TaskId>, u64) {
        let watcher = Arc::new(Notify::new());
        let after = {
            let mut inner = self.lock();
            let after = after.unwrap_or_else(|| inner.forgotten(Instant::now()));
            let stopped = inner.since(watched, after);
            if !stopped.is_empty() {
                return (stopped, inner.last);
            }
            if inner.count < WATCHERS {
                inner.count += 1;
                inner.watchers.entry(watched.clone()).or_default().push(Arc::clone(&watcher));
            }
            after
        };
        let _leaving = Leaving { stops: self, watched, watcher: &watcher };
        let _ = tokio::time::timeout(wait, watcher.notified()).await;
        let inner = self.lock();
        (inner.since(watched, after), inner.last)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing is kept of a watcher that has gone.
struct Leaving<'a> {
    stops: &'a Stops,
    watched: &'a Watched,
    watcher: &'a Arc<Notify>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut inner = self.stops.lock();
        let Some(watchers) = inner.watchers.get_mut(self.watched) else { return };
        let before = watchers.len();
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, self.watcher));
        let gone = before - watchers.len();
        if watchers.is_empty() {
            inner.watchers.remove(self.watched);
        }
        inner.count -= gone;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn stop(task: u128, worker: &str) -> Stop {
        Stop { task: TaskId::from_u128(task), worker: Some(worker.into()) }
    }

    #[tokio::test]
    async fn who_watches_is_told_once_and_nobody_else_is() {
        let stops = Stops::default();
        let (task, worker) = (Watched::Task(TaskId::from_u128(2)), Watched::Worker("w-1".into()));
        let told = async {
            tokio::task::yield_now().await;
            stops.tell(&[stop(2, "w-1"), stop(9, "w-2")]);
        };
        let (of_task, (of_worker, last), ()) =
            tokio::join!(stops.watch(&task, None, LONG), stops.watch(&worker, Some(0), LONG), told);
        assert_eq!((of_task.0, of_worker), (vec![TaskId::from_u128(2)], vec![TaskId::from_u128(2)]));
        assert_eq!(stops.watch(&worker, Some(last), Duration::ZERO).await.0, []);
        assert_eq!(stops.watch(&Watched::Worker("w-3".into()), None, Duration::ZERO).await.0, []);
        let inner = stops.lock();
        assert!(inner.watchers.is_empty() && inner.count == 0, "nothing is kept of those who left");
    }

    #[tokio::test]
    async fn who_begins_to_watch_a_moment_later_is_told_at_once() {
        let stops = Stops::default();
        stops.tell(&[stop(1, "w-1")]);
        assert_eq!(stops.watch(&Watched::Worker("w-1".into()), None, LONG).await.0, [TaskId::from_u128(1)]);
    }

    #[tokio::test]
    async fn no_more_is_remembered_than_there_is_room_for() {
        let stops = Stops::default();
        (0..10_000).for_each(|n| stops.tell(&[stop(n, "w-1")]));
        assert_eq!(stops.lock().recent.len(), REMEMBERED_STOPS);
    }
}
