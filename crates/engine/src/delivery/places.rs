//! How many deliveries are under way, how much memory they hold, and how queues share both.
//!
//! A queue may go on taking as long as it holds less than is free. So one queue gets half at most, two get a third each,
//! and a queue that holds nothing finds a place as long as there are more places than queues whose targets hang. Whoever
//! finds none stands in a line; a place that is given back goes to the first in line whose share allows it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::limits;
use tenure_core::queue::QueueId;
use tokio::sync::oneshot;

/// Deliveries of one queue at a time, however many places are free.
const QUEUE_PLACES_MAX: usize = 128;
/// How much memory the tasks under way may hold.
const TOTAL_BYTES: usize = 256 << 20;
/// What a place counts for until its task is known.
const UNKNOWN_BYTES: usize = limits::PAYLOAD_BYTES + limits::CHECKPOINT_BYTES + ENVELOPE_BYTES;
/// The parts of an envelope beside payload and checkpoint.
const ENVELOPE_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub struct Places(Mutex<Shares>);

#[derive(Debug)]
struct Shares {
    free: Share,
    held: HashMap<QueueId, Share>,
    line: VecDeque<(QueueId, oneshot::Sender<Place>)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Share {
    places: usize,
    bytes: usize,
}

/// The right to have one delivery under way, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    queue: QueueId,
    bytes: usize,
}

impl Places {
    pub fn new(places: usize) -> Arc<Self> {
        let free = Share { places, bytes: TOTAL_BYTES };
        Arc::new(Self(Mutex::new(Shares { free, held: HashMap::new(), line: VecDeque::new() })))
    }

    /// How many places the queue could take now.
    pub fn room(&self, queue: QueueId) -> usize {
        self.lock().room(queue)
    }

    pub fn try_take(self: &Arc<Self>, queue: QueueId) -> Option<Place> {
        let mut shares = self.lock();
        (shares.room(queue) > 0).then(|| self.hand_out(&mut shares, queue))
    }

    /// Takes up to `most` places. Waits only while there is none.
    pub async fn take(self: &Arc<Self>, queue: QueueId, most: usize) -> Vec<Place> {
        let handed = {
            let mut shares = self.lock();
            let room = shares.room(queue).min(most);
            if room > 0 {
                return (0..room).map(|_| self.hand_out(&mut shares, queue)).collect();
            }
            let (sender, handed) = oneshot::channel();
            shares.line.retain(|(_, waiting)| !waiting.is_closed());
            shares.line.push_back((queue, sender));
            handed
        };
        let first = handed.await.ok();
        let more = (1..most).map_while(|_| self.try_take(queue));
        first.into_iter().chain(more).collect()
    }

    fn hand_out(self: &Arc<Self>, shares: &mut Shares, queue: QueueId) -> Place {
        shares.occupy(queue, 1, UNKNOWN_BYTES);
        metrics::gauge!("tenure_pushes_in_flight").increment(1.0);
        Place { places: Arc::clone(self), queue, bytes: UNKNOWN_BYTES }
    }

    /// Gives back what a place held, and hands places to those in line.
    fn give_back(self: &Arc<Self>, queue: QueueId, places: usize, bytes: usize) {
        let mut shares = self.lock();
        shares.vacate(queue, places, bytes);
        let mut unclaimed = Vec::new();
        let mut index = 0;
        while shares.free.places > 0
            && let Some((queue, _)) = shares.line.get(index)
        {
            if shares.room(*queue) == 0 {
                index += 1;
            } else if let Some((queue, waiting)) = shares.line.remove(index) {
                let place = self.hand_out(&mut shares, queue);
                unclaimed.extend(waiting.send(place).err());
            }
        }
        // Those whose waiter is gone come back here when they are dropped, which needs the lock.
        drop(shares);
        drop(unclaimed);
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shares {
    /// How many places the queue can take one after the other, each time holding less than is free.
    fn room(&self, queue: QueueId) -> usize {
        let held = self.held.get(&queue).copied().unwrap_or_default();
        let by_places = self.free.places.saturating_sub(held.places).div_ceil(2);
        let by_bytes = self.free.bytes.saturating_sub(held.bytes).div_ceil(2 * UNKNOWN_BYTES);
        by_places.min(by_bytes).min(self.free.bytes / UNKNOWN_BYTES).min(QUEUE_PLACES_MAX.saturating_sub(held.places))
    }

    fn occupy(&mut self, queue: QueueId, places: usize, bytes: usize) {
        let held = self.held.entry(queue).or_default();
        held.places += places;
        held.bytes += bytes;
        self.free.places = self.free.places.saturating_sub(places);
        self.free.bytes = self.free.bytes.saturating_sub(bytes);
    }

    fn vacate(&mut self, queue: QueueId, places: usize, bytes: usize) {
        if let Some(held) = self.held.get_mut(&queue) {
            held.places -= places;
            held.bytes -= bytes;
            if held.places == 0 {
                self.held.remove(&queue);
            }
        }
        self.free.places += places;
        self.free.bytes += bytes;
    }
}

impl Place {
    /// The task is known: this is what it holds besides its envelope's other parts. A task counts for no more than a
    /// place does before its task is known.
    pub fn weigh(&mut self, bytes: usize) {
        let bytes = (bytes + ENVELOPE_BYTES).min(self.bytes);
        let less = self.bytes - bytes;
        self.bytes = bytes;
        self.places.give_back(self.queue, 0, less);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!("tenure_pushes_in_flight").decrement(1.0);
        self.places.give_back(self.queue, 1, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const A: QueueId = QueueId(1);
    const B: QueueId = QueueId(2);
    const C: QueueId = QueueId(3);

    /// Takes what it gets at once. The tasks are small.
    fn take(places: &Arc<Places>, queue: QueueId, most: usize) -> Vec<Place> {
        let mut taken = places.take(queue, most).now_or_never().unwrap_or_default();
        taken.iter_mut().for_each(|place| place.weigh(10));
        taken
    }

    fn free(places: &Places) -> (usize, usize) {
        let free = places.lock().free;
        (free.places, free.bytes)
    }

    #[tokio::test]
    async fn each_queue_stops_when_it_holds_what_is_free() {
        let places = Places::new(90);
        let one = take(&places, A, 99);
        assert_eq!((one.len(), places.room(A)), (45, 0));
        let two = take(&places, B, 99);
        assert_eq!((two.len(), places.room(B)), (23, 0));
        assert!(take(&places, C, 99).len() >= 11, "a third queue finds places");
        drop((one, two));
    }

    #[tokio::test]
    async fn the_total_is_never_exceeded_and_the_last_place_is_handed_out() {
        let places = Places::new(3);
        let mut taken = Vec::new();
        for queue in 1..=9 {
            taken.extend(take(&places, QueueId(queue), 99));
        }
        assert_eq!((taken.len(), free(&places).0), (3, 0));
        drop(taken);
        assert_eq!(free(&places), (3, TOTAL_BYTES));
        assert!(places.lock().held.is_empty());
    }

    #[tokio::test]
    async fn a_queue_has_a_maximum_of_its_own() {
        let places = Places::new(10_000);
        let mut taken = Vec::new();
        for _ in 0..9 {
            taken.extend(take(&places, A, 64));
        }
        assert_eq!(taken.len(), QUEUE_PLACES_MAX);
    }

    #[tokio::test]
    async fn a_place_goes_to_the_first_in_line_whose_share_allows_it() {
        let places = Places::new(2);
        let (hog, other) = (take(&places, A, 9), take(&places, B, 9));
        assert_eq!((hog.len(), other.len()), (1, 1));
        let mut again = Box::pin(places.take(A, 9));
        let mut third = Box::pin(places.take(C, 9));
        assert!((&mut again).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(other);
        assert!((&mut again).now_or_never().is_none(), "it holds as much as was free");
        let third = third.now_or_never().unwrap();
        assert_eq!(third.len(), 1);
        drop(hog);
        assert_eq!(again.now_or_never().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_waiter_that_is_gone_loses_no_place() {
        let places = Places::new(1);
        let held = take(&places, A, 1);
        let mut gone = Box::pin(places.take(B, 1));
        assert!((&mut gone).now_or_never().is_none());
        let mut waiting = Box::pin(places.take(C, 1));
        assert!((&mut waiting).now_or_never().is_none());
        drop(gone);
        drop(held);
        assert_eq!(waiting.now_or_never().unwrap().len(), 1);
        let held = take(&places, A, 1);
        let mut handed = Box::pin(places.take(B, 1));
        assert!((&mut handed).now_or_never().is_none());
        drop(held);
        // It was handed a place and never looked.
        drop(handed);
        assert_eq!(free(&places), (1, TOTAL_BYTES));
    }

    #[tokio::test]
    async fn large_tasks_are_bounded_by_memory_and_leave_room_for_others() {
        let places = Places::new(10_000);
        let large = |queue| {
            let mut taken = Vec::new();
            while let Some(mut place) = places.try_take(queue) {
                place.weigh(limits::PAYLOAD_BYTES);
                taken.push(place);
            }
            taken
        };
        let mut taken: Vec<Place> = (1..=3).flat_map(|queue| large(QueueId(queue))).collect();
        let held: usize = taken.iter().map(|place| place.bytes).sum();
        assert_eq!(free(&places).1 + held, TOTAL_BYTES);
        assert!(places.room(QueueId(4)) > 0, "{held}");
        for queue in 4..500 {
            taken.extend(large(QueueId(queue)));
        }
        let held: usize = taken.iter().map(|place| place.bytes).sum();
        assert!(held <= TOTAL_BYTES && taken.len() < 300, "{held}");
    }
}
