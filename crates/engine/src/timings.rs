//! How long tasks of each queue wait and run, and how attempts end, for the metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, Histogram};
use tenure_core::attempt::AttemptState;
use tenure_core::batch::Timing;

/// Queues that have figures of their own. Those of others are counted together.
const QUEUES: usize = 500;
const OTHERS: &str = "(others)";
/// The recorder may be installed after the first figures.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Timings(Mutex<HashMap<Arc<str>, Figures>>);

#[derive(Debug)]
struct Figures {
    wait: Histogram,
    run: Histogram,
    ends: [Counter; 3],
    looked_up_at: Instant,
}

impl Figures {
    fn of(queue: &str) -> Self {
        let label = || queue.to_owned();
        let end = |outcome: &'static str| metrics::counter!("tenure_attempts_total", "queue" => label(), "outcome" => outcome);
        Self {
            wait: metrics::histogram!("tenure_task_wait_seconds", "queue" => label()),
            run: metrics::histogram!("tenure_attempt_seconds", "queue" => label()),
            ends: [end("succeeded"), end("failed"), end("canceled")],
            looked_up_at: Instant::now(),
        }
    }

    fn record(&self, timing: Timing) {
        match timing {
            Timing::Granted { waited_ms } => self.wait.record(seconds(waited_ms)),
            Timing::Ended { ran_ms, state } => {
                self.run.record(seconds(ran_ms));
                let end = match state {
                    AttemptState::Succeeded => 0,
                    AttemptState::Failed => 1,
                    AttemptState::Canceled => 2,
                };
                self.ends[end].increment(1);
            }
        }
    }
}

impl Timings {
    pub fn record(&self, timings: &[(Arc<str>, Timing)]) {
        if timings.is_empty() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (queue, timing) in timings {
            let figures_are_shared = !known.contains_key(queue) && known.len() >= QUEUES;
            let name: Arc<str> = if figures_are_shared { OTHERS.into() } else { Arc::clone(queue) };
            let figures = known.entry(name).or_insert_with_key(|name| Figures::of(name));
            if figures.looked_up_at.elapsed() >= LOOK_UP_AGAIN {
                *figures = Figures::of(if figures_are_shared { OTHERS } else { queue });
            }
            figures.record(*timing);
        }
    }
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_queues_with_figures_of_their_own_is_bounded() {
        let timings = Timings::default();
        for n in 0..QUEUES + 9 {
            timings.record(&[(format!("q{n}").into(), Timing::Granted { waited_ms: 1 })]);
        }
        let known = timings.0.lock().unwrap();
        assert_eq!(known.len(), QUEUES + 1);
        assert!(known.contains_key(OTHERS) && known.contains_key("q7") && !known.contains_key(&*format!("q{QUEUES}")));
    }
}
