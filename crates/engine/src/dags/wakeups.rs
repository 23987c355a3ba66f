//! Wake-ups for workers that ask for them.
//!
//! They are hints, taken from the ready tasks of all jobs of a wake-up queue: nothing is reserved and nothing has to be
//! acknowledged. A hint is remembered for a moment, so that workers that ask at the same time are told of different tasks.
//! Only this process remembers it; another control plane may give the same hint.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::TaskId;
use tenure_core::queue::job_wakes;
use tenure_store::{FirstReady, JobQueues};

use super::Dags;
use crate::error::EngineError;

/// The most that one request gets, and the longest that it waits.
pub const WAKEUPS_MAX: usize = 10;
pub const WAKEUPS_WAIT: Duration = Duration::from_secs(20);

/// Requests that may wait at once.
const POLLERS: usize = 2_000;
/// For how long nobody else is told of the same task.
const ALONE: Duration = Duration::from_secs(1);
/// For how long others are told of other tasks if there are any.
const REMEMBERED_FOR: Duration = Duration::from_secs(5);
/// Hints that are remembered.
const REMEMBERED: usize = 20_000;
/// Tasks that are looked at beyond those that are wanted, because others may have been told of the first.
const BEYOND: usize = 500;

/// Hints that were given, and who waits for some.
#[derive(Debug, Default)]
pub(super) struct Hints {
    given: Mutex<HashMap<TaskId, Instant>>,
    polling: AtomicUsize,
    /// Which job is first, in turns.
    turn: AtomicUsize,
}

/// A place among those who wait.
struct Place<'a>(&'a Hints);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let waiting = self.0.polling.fetch_sub(1, Ordering::Relaxed) - 1;
        metrics::gauge!("tenure_job_wakeup_polls").set(waiting as f64);
    }
}

impl Hints {
    fn enter(&self) -> Option<Place<'_>> {
        let before = self.polling.fetch_add(1, Ordering::Relaxed);
        let place = Place(self);
        metrics::gauge!("tenure_job_wakeup_polls").set((before + 1) as f64);
        (before < POLLERS).then_some(place)
    }

    /// How many tasks are to be looked at so that some are among them that nobody was told of.
    fn beyond(&self) -> usize {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).len().min(BEYOND)
    }

    /// Picks up to `max` tasks, and remembers them: those that nobody was told of lately, or else those that others were
    /// told of before `ALONE`. If there are only others, returns when the first of them can be picked.
    fn pick(&self, ready: &[TaskId], max: usize, now: Instant) -> Result<Vec<TaskId>, Option<Instant>> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|_, at| now.saturating_duration_since(*at) < REMEMBERED_FOR);
        let mut picked: Vec<TaskId> =
            ready.iter().copied().filter(|task| !given.contains_key(task)).take(max).collect();
        if picked.is_empty() {
            let mut known: Vec<(Instant, TaskId)> = ready.iter().map(|task| (given[task], *task)).collect();
            known.sort_unstable_by_key(|(at, _)| *at);
            let free = known.iter().filter(|(at, _)| now.saturating_duration_since(*at) >= ALONE);
            picked.extend(free.map(|(_, task)| *task).take(max));
            if picked.is_empty() {
                return Err(known.first().map(|(at, _)| *at + ALONE));
            }
        }
        for task in &picked {
            if given.len() < REMEMBERED || given.contains_key(task) {
                given.insert(*task, now);
            }
        }
        Ok(picked)
    }
}

impl Dags {
    /// Tasks of a wake-up queue (`worker`, `sandbox`, `worker.{pool}`) that can be claimed now: at least one, or none after
    /// the wait.
    pub async fn wakeups(&self, queue: &str, max: usize, wait: Duration) -> Result<Vec<TaskId>, EngineError> {
        let (max, until) = (max.clamp(1, WAKEUPS_MAX), Instant::now() + wait.min(WAKEUPS_WAIT));
        let _place = self.inner.hints.enter().ok_or_else(EngineError::busy)?;
        let (shared, name) = (self.shared(), job_wakes(queue));
        let names = [Arc::clone(&name)];
        shared.saw(&names);
        let waiter = shared.waiters.register(&names);
        loop {
            waiter.about_to_ask();
            let beyond = self.inner.hints.beyond();
            let ready = self.claimable(queue, max + beyond).await?;
            let again = match self.inner.hints.pick(&ready, max, Instant::now()) {
                Ok(picked) => return Ok(given(picked)),
                // Others were told of all these meanwhile, and there may be more.
                Err(Some(_)) if ready.len() >= max + beyond && self.inner.hints.beyond() > beyond => continue,
                // There is no time to wait for others to make up their minds.
                Err(Some(at)) if at >= until => return Ok(given(ready.into_iter().take(max).collect())),
                Err(at) => at.unwrap_or(until),
            };
            // A slot that is freed concerns it too.
            shared.waiters.was_full(&names);
            tokio::select! {
                () = waiter.woken() => {}
                () = tokio::time::sleep_until(again.into()) => {}
                () = shared.stopping.cancelled() => return Ok(Vec::new()),
            }
            if Instant::now() >= until {
                return Ok(Vec::new());
            }
        }
    }

    /// Tasks that can be claimed, in the order of grants within each job. With more jobs than needed, another one is first
    /// each time.
    async fn claimable(&self, wake: &str, wanted: usize) -> Result<Vec<TaskId>, EngineError> {
        let store = &self.shared().store;
        let JobQueues { mut queues, now } = store.job_queues(Some(wake)).await?;
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let turn = self.inner.hints.turn.fetch_add(1, Ordering::Relaxed) % queues.len();
        queues.rotate_left(turn);
        let (mut ready, mut asked): (Vec<TaskId>, Vec<FirstReady>) = (Vec::new(), Vec::new());
        let mut expected = 0;
        for (place, queue) in queues.iter().enumerate() {
            let first = queue.first(now, wanted);
            if first.limit > 0 {
                expected += first.limit.min(usize::try_from(queue.ready).unwrap_or(usize::MAX));
                asked.push(first);
            }
            if !asked.is_empty() && (expected >= wanted || place + 1 == queues.len()) {
                ready.extend(store.first_ready(&asked).await?.into_iter().map(|found| found.task));
                asked.clear();
                expected = ready.len();
            }
            if ready.len() >= wanted {
                break;
            }
        }
        Ok(ready)
    }
}

fn given(tasks: Vec<TaskId>) -> Vec<TaskId> {
    metrics::counter!("tenure_job_wakeups_given_total").increment(tasks.len() as u64);
    tasks
}

#[cfg(test)]
mod tests {
    use tenure_core::Seq;

    use super::*;

    fn tasks(range: std::ops::Range<i64>) -> Vec<TaskId> {
        range.map(|n| TaskId::new(0, 0, Seq(n + 1))).collect()
    }

    #[test]
    fn those_who_ask_at_once_are_told_of_different_tasks() {
        let (hints, now) = (Hints::default(), Instant::now());
        let ready = tasks(0..5);
        assert_eq!(hints.pick(&ready, 3, now).unwrap(), tasks(0..3));
        assert_eq!(hints.pick(&ready, 3, now).unwrap(), tasks(3..5));
        assert_eq!(hints.pick(&ready, 3, now), Err(Some(now + ALONE)), "others are told of all");
        assert_eq!(hints.pick(&[], 3, now), Err(None), "there is nothing");
        let later = now + ALONE;
        assert_eq!(hints.pick(&ready, 3, later).unwrap(), tasks(0..3), "they may have been lost");
        assert_eq!(hints.pick(&tasks(0..6), 3, later).unwrap(), tasks(5..6), "a new one comes first");
        assert_eq!(hints.pick(&ready, 9, now + 2 * REMEMBERED_FOR).unwrap(), ready, "all is forgotten");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (hints, now) = (Hints::default(), Instant::now());
        let ready = tasks(0..REMEMBERED as i64 + 7);
        assert_eq!(hints.pick(&ready, usize::MAX, now).unwrap().len(), ready.len());
        assert_eq!(hints.given.lock().unwrap().len(), REMEMBERED);
    }

    #[test]
    fn only_so_many_wait_at_once() {
        let hints = Hints::default();
        let mut places: Vec<_> = (0..POLLERS).map(|_| hints.enter().unwrap()).collect();
        assert!(hints.enter().is_none());
        places.pop();
        assert!(hints.enter().is_some(), "whoever leaves makes room");
    }
}
