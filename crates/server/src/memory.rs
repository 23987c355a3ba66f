//! Memory for bodies and answers that are whole in memory, shared by tenants.
//!
//! There is one for all routes ([`room`]), and one more for the routes of sandboxes, whose files are larger.
//!
//! A tenant may take more as long as it then holds no more than is left free. So one tenant has half at most, two have a
//! third each, and one that holds nothing finds room whatever a few others do. Whoever finds none stands in a line for a
//! while; memory that is given back goes to the first in line whose share allows it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Fault, Unavailable};

/// How long a request waits for memory.
const WAIT: Duration = Duration::from_secs(10);
/// Requests of one tenant that wait at a time. More are refused at once.
const WAITING_OF_TENANT: usize = 256;
/// What is small is counted in these steps, what is large in larger ones, so that growing needs few of them.
const SMALL_STEP_BYTES: usize = 16 << 10;
const STEP_BYTES: usize = 1 << 20;
/// From here on something is large.
const LARGE_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub struct Memory {
    shares: Mutex<Shares>,
    total: usize,
    wait: Duration,
}

#[derive(Debug)]
struct Shares {
    free: usize,
    held: HashMap<Arc<str>, usize>,
    line: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    tenant: Arc<str>,
    bytes: usize,
    handed: oneshot::Sender<Taken>,
}

/// Memory of a tenant, given back when it is dropped.
#[derive(Debug)]
struct Taken {
    memory: Arc<Memory>,
    tenant: Arc<str>,
    bytes: usize,
}

/// Memory for one body or answer as it grows, given back when it is dropped.
#[derive(Debug)]
pub struct Room(Taken);

/// Whose memory a request uses.
#[derive(Debug, Clone)]
pub struct Share {
    pub memory: Arc<Memory>,
    pub name: Arc<str>,
}

tokio::task_local! {
    static SHARE: Share;
}

impl Share {
    /// Does work that takes its rooms from this share. Handlers are not handed the share: none can forget to use it.
    pub async fn serve<F: Future>(self, work: F) -> F::Output {
        SHARE.scope(self, work).await
    }
}

/// Room for a body or an answer of the request that is served. It is empty at first. Outside of a request nothing is counted.
pub fn room() -> Room {
    let of = |share: &Share| Memory::room(&share.memory, &share.name);
    SHARE.try_with(of).unwrap_or_else(|_| Memory::room(&Memory::new(usize::MAX >> 1), &"".into()))
}

impl Memory {
    pub fn new(bytes: usize) -> Arc<Self> {
        Self::with_wait(bytes, WAIT)
    }

    fn with_wait(bytes: usize, wait: Duration) -> Arc<Self> {
        let shares = Shares { free: bytes, held: HashMap::new(), line: VecDeque::new() };
        Arc::new(Self { shares: Mutex::new(shares), total: bytes, wait })
    }

    pub fn room(memory: &Arc<Self>, tenant: &Arc<str>) -> Room {
        Room(Taken { memory: Arc::clone(memory), tenant: Arc::clone(tenant), bytes: 0 })
    }

    /// Room for so many bytes, if there is some at once.
    pub fn taken(memory: &Arc<Self>, tenant: &str, bytes: usize) -> Option<Room> {
        let mut room = Self::room(memory, &tenant.into());
        room.enlarge_now(bytes).ok().map(|()| room)
    }

    pub fn in_use(&self) -> usize {
        self.total - self.lock().free
    }

    async fn take(self: &Arc<Self>, tenant: &Arc<str>, bytes: usize) -> Result<Taken, Fault> {
        let waiting = {
            let mut shares = self.lock();
            if shares.allows(tenant, bytes, self.total) {
                return Ok(self.hand_out(&mut shares, tenant, bytes));
            }
            shares.line.retain(|waiting| !waiting.handed.is_closed());
            if shares.line.iter().filter(|waiting| waiting.tenant == *tenant).count() >= WAITING_OF_TENANT {
                return Err(busy());
            }
            let (handed, waiting) = oneshot::channel();
            shares.line.push_back(Waiting { tenant: Arc::clone(tenant), bytes, handed });
            waiting
        };
        match tokio::time::timeout(self.wait, waiting).await {
            Ok(Ok(taken)) => Ok(taken),
            _ => Err(busy()),
        }
    }

    fn hand_out(self: &Arc<Self>, shares: &mut Shares, tenant: &Arc<str>, bytes: usize) -> Taken {
        shares.free -= bytes;
        *shares.held.entry(Arc::clone(tenant)).or_default() += bytes;
        Taken { memory: Arc::clone(self), tenant: Arc::clone(tenant), bytes }
    }

    fn give_back(self: &Arc<Self>, tenant: &Arc<str>, bytes: usize) {
        let mut shares = self.lock();
        shares.free += bytes;
        if let Some(held) = shares.held.get_mut(tenant) {
            *held -= bytes;
            if *held == 0 {
                shares.held.remove(tenant);
            }
        }
        let mut unclaimed = Vec::new();
        let mut index = 0;
        while let Some(waiting) = shares.line.get(index) {
            if !shares.allows(&waiting.tenant, waiting.bytes, self.total) {
                index += 1;
            } else if let Some(Waiting { tenant, bytes, handed }) = shares.line.remove(index) {
                let taken = self.hand_out(&mut shares, &tenant, bytes);
                unclaimed.extend(handed.send(taken).err());
            }
        }
        // What was for somebody who is gone comes back here when it is dropped, which needs the lock.
        drop(shares);
        drop(unclaimed);
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shares {
    /// Whether the tenant would hold no more than is left free. What is larger than a share has its turn when nobody else
    /// holds anything.
    fn allows(&self, tenant: &Arc<str>, bytes: usize, total: usize) -> bool {
        let held = self.held.get(tenant).copied().unwrap_or_default();
        let others_hold = self.free + held < total;
        let left = self.free.checked_sub(bytes);
        left.is_some_and(|left| held + bytes <= left || (held == 0 && !others_hold))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let memory = Arc::clone(&self.memory);
            memory.give_back(&self.tenant, self.bytes);
        }
    }
}

impl Room {
    /// Waits for more memory, for something that has grown to `bytes`.
    pub async fn enlarge(&mut self, bytes: usize) -> Result<(), Fault> {
        let own = &mut self.0;
        let needed = rounded(bytes).min(own.memory.total);
        if needed <= own.bytes {
            return Ok(());
        }
        let mut more = own.memory.take(&own.tenant, needed - own.bytes).await?;
        own.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// The same without waiting, for something that is in memory already.
    pub fn enlarge_now(&mut self, bytes: usize) -> Result<(), Fault> {
        let own = &mut self.0;
        let needed = rounded(bytes).min(own.memory.total);
        if needed <= own.bytes {
            return Ok(());
        }
        let (memory, more) = (Arc::clone(&own.memory), needed - own.bytes);
        let mut shares = memory.lock();
        if !shares.allows(&own.tenant, more, memory.total) {
            return Err(busy());
        }
        own.bytes += std::mem::take(&mut memory.hand_out(&mut shares, &own.tenant, more).bytes);
        Ok(())
    }

    /// Gives back what something does not need that came out as `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let own = &mut self.0;
        let spare = own.bytes.saturating_sub(rounded(bytes));
        if spare > 0 {
            own.bytes -= spare;
            let memory = Arc::clone(&own.memory);
            memory.give_back(&own.tenant, spare);
        }
    }
}

fn rounded(bytes: usize) -> usize {
    let step = if bytes < LARGE_BYTES { SMALL_STEP_BYTES } else { STEP_BYTES };
    bytes.checked_next_multiple_of(step).unwrap_or(usize::MAX)
}

fn busy() -> Fault {
    Unavailable::Busy { retry_after: Duration::from_secs(5) }.into()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: usize = 1 << 20;

    fn memory(mib: usize) -> Arc<Memory> {
        Memory::with_wait(mib * MIB, Duration::from_secs(600))
    }

    fn tenant(n: usize) -> Arc<str> {
        format!("tenant-{n}").into()
    }

    /// Takes what it gets at once.
    fn at_once(memory: &Arc<Memory>, tenant: &Arc<str>, bytes: usize) -> Option<Room> {
        let mut room = Memory::room(memory, tenant);
        room.enlarge(bytes).now_or_never()?.ok()?;
        Some(room)
    }

    /// Everything that a tenant gets, in pieces.
    fn fill(memory: &Arc<Memory>, tenant: &Arc<str>) -> Vec<Room> {
        std::iter::from_fn(|| at_once(memory, tenant, MIB)).collect()
    }

    #[tokio::test]
    async fn a_tenant_gets_half_at_most_and_leaves_room_for_others() {
        let memory = memory(512);
        let mut taken: Vec<Vec<Room>> = Vec::new();
        for (n, expected) in [256, 128, 64, 32].into_iter().enumerate() {
            let rooms = fill(&memory, &tenant(n));
            assert_eq!(rooms.len(), expected, "tenant {n}");
            taken.push(rooms);
        }
        assert!(at_once(&memory, &tenant(0), 1).is_none(), "its share is full, for small things too");
        assert!(at_once(&memory, &tenant(9), 10 * MIB).is_some(), "another is served at once");
        drop(taken);
        assert_eq!(memory.lock().free, 512 * MIB);
        assert!(memory.lock().held.is_empty());
    }

    #[tokio::test]
    async fn small_things_are_counted() {
        let memory = memory(1);
        let rooms: Vec<Room> = std::iter::from_fn(|| at_once(&memory, &tenant(0), 100)).collect();
        assert_eq!(rooms.len(), MIB / 2 / SMALL_STEP_BYTES);
    }

    #[tokio::test]
    async fn what_grows_is_counted_once_and_in_steps() {
        let memory = memory(16);
        let mut room = at_once(&memory, &tenant(0), 1).unwrap();
        for bytes in [1, 16 << 10, 20 << 10, 300 << 10, MIB, 2 * MIB] {
            room.enlarge(bytes).now_or_never().unwrap().unwrap();
            assert_eq!(memory.lock().free, 16 * MIB - rounded(bytes), "{bytes}");
        }
        room.enlarge(10).now_or_never().unwrap().unwrap();
        assert_eq!(memory.lock().free, 14 * MIB, "nothing is given back early");
    }

    #[tokio::test]
    async fn what_came_out_smaller_gives_back_the_rest() {
        let memory = memory(16);
        let mut room = at_once(&memory, &tenant(0), 4 * MIB).unwrap();
        room.shrink(MIB / 2);
        assert_eq!(memory.lock().free, 15 * MIB);
        room.shrink(2 * MIB);
        assert_eq!(memory.lock().free, 15 * MIB, "it never grows this way");
        room.enlarge_now(8 * MIB).unwrap();
        assert_eq!(memory.lock().free, 8 * MIB);
        assert!(room.enlarge_now(9 * MIB).is_err(), "no more than half");
        drop(room);
        assert_eq!(memory.lock().free, 16 * MIB);
    }

    #[tokio::test]
    async fn more_than_a_share_has_its_turn_when_nobody_else_holds_anything() {
        let memory = memory(4);
        let small = at_once(&memory, &tenant(1), 1).unwrap();
        assert!(at_once(&memory, &tenant(0), 3 * MIB).is_none());
        drop(small);
        assert!(at_once(&memory, &tenant(0), usize::MAX).is_some(), "more than everything is everything");
    }

    #[tokio::test]
    async fn memory_that_is_given_back_goes_to_the_first_whose_share_allows_it() {
        let memory = memory(4);
        let (a, b) = (tenant(0), tenant(1));
        let mut of_a = fill(&memory, &a);
        let mut of_b = fill(&memory, &b);
        assert_eq!((of_a.len(), of_b.len()), (2, 1));
        let (mut more_a, mut more_b) = (Memory::room(&memory, &a), Memory::room(&memory, &b));
        let mut waiting_a = Box::pin(more_a.enlarge(MIB));
        let mut waiting_b = Box::pin(more_b.enlarge(MIB));
        assert!((&mut waiting_a).now_or_never().is_none() && (&mut waiting_b).now_or_never().is_none());
        of_a.pop();
        assert!((&mut waiting_a).now_or_never().is_none() && (&mut waiting_b).now_or_never().is_none());
        of_b.pop();
        assert!(waiting_a.now_or_never().is_some_and(|taken| taken.is_ok()), "the first in line");
        assert!((&mut waiting_b).now_or_never().is_some_and(|taken| taken.is_ok()), "b holds nothing else");
    }

    #[tokio::test]
    async fn somebody_who_stops_waiting_loses_no_memory() {
        let memory = memory(2);
        let held = fill(&memory, &tenant(0));
        let mut room = Memory::room(&memory, &tenant(0));
        let mut waiting = Box::pin(room.enlarge(MIB));
        assert!((&mut waiting).now_or_never().is_none());
        drop(held);
        // It was handed memory and never looked.
        drop(waiting);
        assert_eq!(memory.lock().free, 2 * MIB);
    }

    #[tokio::test]
    async fn whoever_waits_too_long_or_behind_too_many_is_told_to_come_back() {
        let memory = Memory::with_wait(2 * MIB, Duration::from_millis(10));
        let (a, b) = (tenant(0), tenant(1));
        let held = fill(&memory, &a);
        let mut rooms: Vec<Room> = (0..WAITING_OF_TENANT).map(|_| Memory::room(&memory, &a)).collect();
        let mut waiting: Vec<_> = rooms.iter_mut().map(|room| Box::pin(room.enlarge(MIB))).collect();
        assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        let refused = Memory::room(&memory, &a).enlarge(MIB).now_or_never();
        assert!(matches!(refused, Some(Err(Fault::Unavailable(_)))), "the line of this tenant is full");
        assert!(at_once(&memory, &b, 100).is_some(), "others have their own share");
        for waiting in waiting {
            assert!(matches!(waiting.await, Err(Fault::Unavailable(_))));
        }
        drop(held);
        assert_eq!(memory.lock().free, 2 * MIB);
    }
}
