//! A value that can be replaced while others use it.
//!
//! A lock and not the crate `arc-swap`: a reader holds the lock for the time of one reference count, once in a request,
//! and [`Live::update`] runs its change exactly once, which `arc-swap` does not promise.

use std::sync::Arc;

use tokio::sync::watch;

/// Readers take what is there now and keep it as long as they need it.
#[derive(Debug)]
pub struct Live<T>(Arc<watch::Sender<Arc<T>>>);

impl<T> Live<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(value))))
    }

    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.borrow())
    }

    /// For those who act on a change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<T>> {
        self.0.subscribe()
    }

    /// From the next reader on this is the value.
    pub fn set(&self, value: T) {
        self.0.send_replace(Arc::new(value));
    }
}

impl<T: Clone> Live<T> {
    /// Two at a time both count: the second one begins with what the first one left.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        self.0.send_modify(|current| {
            let mut value = T::clone(current);
            change(&mut value);
            *current = Arc::new(value);
        });
    }
}

impl<T> Clone for Live<T> {
    /// Another handle of the same value.
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Default> Default for Live<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_what_it_took_and_the_next_one_sees_the_new_value() {
        let live = Live::new(1);
        let (other, taken) = (live.clone(), live.get());
        other.update(|value| *value += 1);
        assert_eq!((*taken, *live.get()), (1, 2));
    }

    #[test]
    fn no_update_is_lost_beside_another() {
        let live = Live::new(Vec::new());
        std::thread::scope(|scope| {
            for n in 0..8 {
                let live = live.clone();
                scope.spawn(move || (0..200).for_each(|_| live.update(|all| all.push(n))));
            }
        });
        assert_eq!(live.get().len(), 8 * 200);
    }
}
