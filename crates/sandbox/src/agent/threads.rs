//! Threads that serve connections. One that has finished waits for a while for another connection: a new thread costs more
//! than most requests.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Enough for every call, also without optimisation. Only what is used takes memory.
const STACK_BYTES: usize = 512 << 10;
/// Threads that wait. A command is often followed by another one while its own thread cleans up.
const MAX_WAITING: usize = 2;
/// How long they wait. Until then they take memory.
const WAIT: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct Threads {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Each for one of the threads that wait.
    jobs: VecDeque<Job>,
    waiting: usize,
}

impl Threads {
    /// Runs a job on a thread that waits, or on a new one.
    pub(super) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.state();
        if state.jobs.len() < state.waiting {
            state.jobs.push_back(Box::new(job));
            drop(state);
            self.arrived.notify_one();
            return Ok(());
        }
        drop(state);
        let threads = Arc::clone(self);
        spawn("call", move || {
            job();
            while let Some(job) = threads.next() {
                job();
            }
        })
    }

    /// The next job for a thread that has finished one; none if there are enough threads, or nothing to do for a while.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        if state.waiting == MAX_WAITING {
            return None;
        }
        state.waiting += 1;
        let waited = self.arrived.wait_timeout_while(state, WAIT, |state| state.jobs.is_empty());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.waiting -= 1;
        state.jobs.pop_front()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use super::*;

    fn run(threads: &Arc<Threads>, jobs: usize) -> Vec<ThreadId> {
        let (sender, ran) = mpsc::channel();
        let together = Arc::new(std::sync::Barrier::new(jobs));
        for _ in 0..jobs {
            let (sender, together) = (sender.clone(), Arc::clone(&together));
            let job = move || {
                together.wait();
                sender.send(std::thread::current().id()).unwrap();
            };
            threads.run(job).unwrap();
        }
        drop(sender);
        ran.iter().collect()
    }

    fn wait_for(threads: &Threads, waiting: usize) {
        while threads.state().waiting != waiting {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_serves_one_connection_after_the_other() {
        let threads = Arc::new(Threads::default());
        let first = run(&threads, 1);
        for _ in 0..3 {
            wait_for(&threads, 1);
            assert_eq!(run(&threads, 1), first);
        }
    }

    #[test]
    fn jobs_run_side_by_side_and_few_threads_stay() {
        let threads = Arc::new(Threads::default());
        // None of them ends before all have begun.
        for _ in 0..3 {
            assert_eq!(run(&threads, 8).len(), 8);
            wait_for(&threads, MAX_WAITING);
        }
    }
}
