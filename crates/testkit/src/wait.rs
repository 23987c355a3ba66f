//! Waiting for a condition by asking again and again.
//!
//! A fixed sleep is either too short on a busy machine or wastes time on an idle one. Asking until
//! the answer is yes is right on both, and the deadline only decides how long a failure takes.

use std::panic::Location;
use std::time::Duration;

use tenure_localpg::Pauses;

/// What a question asked by [`wait_until`] may answer: `bool`, or `Option` to hand out a value.
pub trait Condition {
    /// What the wait hands out once the condition holds.
    type Value;

    /// The value when the condition holds, `None` to ask again.
    fn held(self) -> Option<Self::Value>;
}

impl Condition for bool {
    type Value = ();

    fn held(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn held(self) -> Option<T> {
        self
    }
}

/// Asks `question` until it holds and returns its value.
///
/// The deadline is real time, so a test that pauses tokio's clock does not fail at once.
///
/// # Panics
///
/// When it does not hold within `deadline`; the message says `what` was waited for, and where.
#[track_caller]
pub fn wait_until<R: Condition>(
    what: &str,
    deadline: Duration,
    mut question: impl AsyncFnMut() -> R,
) -> impl Future<Output = R::Value> {
    // An async fn would report a line of this file.
    let caller = Location::caller();
    async move {
        let mut pauses = Pauses::until(deadline);
        loop {
            if let Some(value) = question().await.held() {
                return value;
            }
            if pauses.pause().await.is_break() {
                give_up(what, deadline, caller);
            }
        }
    }
}

/// [`wait_until`] for code that runs outside of an async runtime.
///
/// # Panics
///
/// When it does not hold within `deadline`; the message says `what` was waited for, and where.
#[track_caller]
pub fn wait_until_blocking<R: Condition>(what: &str, deadline: Duration, mut question: impl FnMut() -> R) -> R::Value {
    let mut pauses = Pauses::until(deadline);
    loop {
        if let Some(value) = question().held() {
            return value;
        }
        if pauses.pause_blocking().is_break() {
            give_up(what, deadline, Location::caller());
        }
    }
}

fn give_up(what: &str, deadline: Duration, caller: &Location<'_>) -> ! {
    panic!("did not happen within {deadline:?}: {what} (waited for at {caller})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_value_as_soon_as_there_is_one() {
        let mut asked = 0;
        let value = wait_until("the third answer", Duration::from_secs(10), async || {
            asked += 1;
            (asked == 3).then_some("third")
        })
        .await;
        assert_eq!((value, asked), ("third", 3));
    }

    #[tokio::test]
    #[should_panic(expected = "did not happen within 30ms: the impossible")]
    async fn panics_after_the_deadline() {
        wait_until("the impossible", Duration::from_millis(30), async || false).await;
    }

    #[test]
    fn blocking_returns_the_value_as_soon_as_there_is_one() {
        let mut asked = 0;
        wait_until_blocking("the third answer", Duration::from_secs(10), || {
            asked += 1;
            asked == 3
        });
        assert_eq!(asked, 3);
    }

    #[test]
    #[should_panic(expected = "wait.rs")]
    fn blocking_panics_with_the_place_that_waited() {
        wait_until_blocking("the impossible", Duration::from_millis(30), || None::<()>);
    }
}
