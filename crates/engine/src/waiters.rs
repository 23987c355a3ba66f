//! Claims that wait for work.
//!
//! A waiter registers before it asks the store. So whatever becomes ready is either seen by the question or wakes the
//! waiter: nothing falls in between.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Waiters(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    by_queue: HashMap<Arc<str>, VecDeque<Arc<Bell>>>,
    /// Queues that had tasks and no free slot when somebody asked.
    full: HashSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Bell {
    rung: AtomicBool,
    /// Its waiter has asked and sleeps.
    asleep: AtomicBool,
    ring: Notify,
}

/// A place in the lines of some queues. Leaving hands an unused wake-up to the next.
#[derive(Debug)]
pub struct Waiter {
    lines: Arc<Mutex<Lines>>,
    queues: Vec<Arc<str>>,
    bell: Arc<Bell>,
}

impl Waiters {
    pub fn register(&self, queues: &[Arc<str>]) -> Waiter {
        let bell = Arc::new(Bell::default());
        let mut lines = self.lock();
        for queue in queues {
            lines.by_queue.entry(Arc::clone(queue)).or_default().push_back(Arc::clone(&bell));
        }
        Waiter { lines: Arc::clone(&self.0), queues: queues.to_vec(), bell }
    }

    /// Wakes as many as there is work for. Gives how many.
    pub fn wake(&self, queue: &str, tasks: usize) -> usize {
        self.lock().wake(queue, tasks)
    }

    /// Wakes everybody, because what held the queue back may be gone.
    pub fn wake_all(&self, queue: &str) {
        self.lock().wake(queue, usize::MAX);
    }

    /// An attempt ended: if somebody was turned away for want of a slot, there is one now.
    pub fn freed(&self, queue: &str) {
        let mut lines = self.lock();
        if lines.full.contains(queue) {
            lines.wake(queue, 1);
        }
    }

    pub fn was_full(&self, queues: &[Arc<str>]) {
        if !queues.is_empty() {
            self.lock().full.extend(queues.iter().cloned());
        }
    }

    /// Queues for which somebody waits.
    pub fn queues(&self) -> Vec<Arc<str>> {
        self.lock().by_queue.keys().cloned().collect()
    }

    /// How many have asked, got nothing, and sleep.
    pub fn asleep(&self) -> usize {
        let lines = self.lock();
        let asleep = lines.by_queue.values().flatten().filter(|bell| bell.asleep.load(Ordering::SeqCst));
        asleep.map(Arc::as_ptr).collect::<HashSet<_>>().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn wake(&mut self, queue: &str, tasks: usize) -> usize {
        let Some(line) = self.by_queue.get(queue) else { return 0 };
        let idle = line.iter().filter(|bell| !bell.rung.swap(true, Ordering::SeqCst));
        idle.take(tasks).map(|bell| bell.ring.notify_one()).count()
    }
}

impl Waiter {
    /// Waits for a wake-up. One that came since the last call counts.
    pub async fn woken(&self) {
        self.bell.asleep.store(true, Ordering::SeqCst);
        self.bell.ring.notified().await;
    }

    /// About to ask the store: a wake-up from here on is a new one.
    pub fn about_to_ask(&self) {
        self.bell.asleep.store(false, Ordering::SeqCst);
        self.bell.rung.store(false, Ordering::SeqCst);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in &self.queues {
            if let Some(line) = lines.by_queue.get_mut(queue) {
                line.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
                if line.is_empty() {
                    lines.by_queue.remove(queue);
                    lines.full.remove(queue);
                }
            }
        }
        if self.bell.rung.load(Ordering::SeqCst) {
            for queue in &self.queues {
                lines.wake(queue, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn is_rung(waiter: &Waiter) -> bool {
        waiter.bell.rung.load(Ordering::SeqCst)
    }

    #[test]
    fn as_many_are_woken_as_there_is_work_for() {
        let waiters = Waiters::default();
        let line: Vec<_> = (0..3).map(|_| waiters.register(&names(&["a"]))).collect();
        waiters.wake("a", 2);
        assert_eq!(line.iter().map(is_rung).collect::<Vec<_>>(), [true, true, false]);
        waiters.wake("a", 1);
        assert!(is_rung(&line[2]));
        waiters.wake("b", 1);
    }

    #[tokio::test]
    async fn a_wake_up_between_registration_and_wait_is_not_lost() {
        let waiters = Waiters::default();
        let waiter = waiters.register(&names(&["a", "b"]));
        waiter.about_to_ask();
        waiters.wake("b", 1);
        waiter.woken().await;
    }

    #[test]
    fn whoever_leaves_hands_the_wake_up_on() {
        let waiters = Waiters::default();
        let first = waiters.register(&names(&["a"]));
        let second = waiters.register(&names(&["a"]));
        waiters.wake("a", 1);
        drop(first);
        assert!(is_rung(&second));
        drop(second);
        assert!(waiters.queues().is_empty());
    }

    #[test]
    fn a_freed_slot_wakes_only_where_somebody_was_turned_away() {
        let waiters = Waiters::default();
        let waiter = waiters.register(&names(&["a"]));
        waiters.freed("a");
        assert!(!is_rung(&waiter));
        waiters.was_full(&names(&["a"]));
        waiters.freed("a");
        assert!(is_rung(&waiter));
    }
}
