//! Waiting for a server by asking again and again.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The pauses between two questions: short at first, for what is nearly there, then longer, to
/// leave the processor to whatever is waited for.
#[derive(Debug)]
pub struct Pauses {
    end: Instant,
    next: Duration,
}

impl Pauses {
    /// Pauses for at most this long in all.
    pub fn until(deadline: Duration) -> Self {
        Self { end: Instant::now() + deadline, next: FIRST_PAUSE }
    }

    /// Pauses, unless the deadline has passed.
    pub async fn pause(&mut self) -> ControlFlow<()> {
        let Some(pause) = self.next() else {
            return ControlFlow::Break(());
        };
        tokio::time::sleep(pause).await;
        ControlFlow::Continue(())
    }

    /// [`pause`](Self::pause) for code that runs outside of an async runtime.
    pub fn pause_blocking(&mut self) -> ControlFlow<()> {
        let Some(pause) = self.next() else {
            return ControlFlow::Break(());
        };
        std::thread::sleep(pause);
        ControlFlow::Continue(())
    }

    fn next(&mut self) -> Option<Duration> {
        let left = self.end.checked_duration_since(Instant::now())?;
        let pause = self.next;
        self.next = (pause * 3 / 2).min(LONGEST_PAUSE);
        Some(pause.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut pauses = Pauses::until(Duration::from_secs(60));
        let pauses: Vec<_> = (0..20).filter_map(|_| pauses.next()).collect();
        assert_eq!(pauses.first(), Some(&FIRST_PAUSE));
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
        assert!(pauses.is_sorted());
    }
}
