//! What the routes of sandboxes may use: memory for whole bodies and answers, and open streams of each tenant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Fault, SandboxFault, SandboxFaultKind, Unavailable};

/// Bodies and answers of up to this size are not counted.
const FREE_BYTES: usize = 256 << 10;
const UNIT_BYTES: usize = 4096;
/// How long a request waits for memory.
const ROOM_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Bounds {
    memory: Arc<Semaphore>,
    units: u32,
    wait: Duration,
    streams: Arc<Streams>,
}

#[derive(Debug)]
struct Streams {
    open: Mutex<HashMap<Arc<str>, usize>>,
    of_tenant: usize,
    in_all: usize,
}

/// Memory, returned when it is dropped.
#[derive(Debug)]
pub struct Room {
    permit: Option<OwnedSemaphorePermit>,
}

/// Memory is taken in steps of this.
const STEP_BYTES: usize = 1 << 20;

/// An open stream, counted until it is dropped.
#[derive(Debug)]
pub struct Place {
    streams: Arc<Streams>,
    tenant: Arc<str>,
}

impl Bounds {
    pub fn new(memory_bytes: usize, streams_of_tenant: usize, streams: usize) -> Self {
        let units = u32::try_from(memory_bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        let streams = Streams { open: Mutex::default(), of_tenant: streams_of_tenant, in_all: streams };
        let memory = Arc::new(Semaphore::new(units as usize));
        Self { memory, units, wait: ROOM_WAIT, streams: Arc::new(streams) }
    }

    /// Waits for memory for a body or an answer.
    pub async fn room(&self, bytes: usize) -> Result<Room, Fault> {
        if bytes <= FREE_BYTES {
            return Ok(Room { permit: None });
        }
        let wanted = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.units);
        let reserving = Arc::clone(&self.memory).acquire_many_owned(wanted);
        match tokio::time::timeout(self.wait, reserving).await {
            Ok(Ok(permit)) => Ok(Room { permit: Some(permit) }),
            _ => Err(Unavailable::Busy { retry_after: Duration::from_secs(5) }.into()),
        }
    }

    /// Waits for more memory, for something that has grown to `bytes`.
    pub async fn enlarge(&self, room: &mut Room, bytes: usize) -> Result<(), Fault> {
        let has = room.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) * UNIT_BYTES;
        if bytes <= FREE_BYTES || bytes <= has {
            return Ok(());
        }
        let more = self.room((bytes - has).max(STEP_BYTES)).await?;
        match (&mut room.permit, more.permit) {
            (Some(own), Some(more)) => own.merge(more),
            (own, more) => *own = more,
        }
        Ok(())
    }

    /// Counts a stream of a tenant.
    pub fn place(&self, tenant: &Arc<str>) -> Result<Place, Fault> {
        let mut open = self.streams.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.entry(Arc::clone(tenant)).or_default();
        if *own >= self.streams.of_tenant {
            let message = format!("this tenant has {own} open streams, the maximum: close some");
            return Err(SandboxFault::with_reason(SandboxFaultKind::Limit, message, "max_streams"));
        }
        if all >= self.streams.in_all {
            if *own == 0 {
                open.remove(tenant);
            }
            return Err(Unavailable::Busy { retry_after: Duration::from_secs(5) }.into());
        }
        *own += 1;
        Ok(Place { streams: Arc::clone(&self.streams), tenant: Arc::clone(tenant) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_only_so_many_streams_and_all_together_too() {
        let bounds = Bounds::new(1 << 20, 2, 3);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let first = bounds.place(&a).unwrap();
        let _second = bounds.place(&a).unwrap();
        assert!(matches!(bounds.place(&a), Err(Fault::Sandbox(fault)) if fault.kind == SandboxFaultKind::Limit));
        let _third = bounds.place(&b).unwrap();
        assert!(matches!(bounds.place(&b), Err(Fault::Unavailable(_))));
        drop(first);
        let _again = bounds.place(&b).unwrap();
        assert!(matches!(bounds.place(&a), Err(Fault::Unavailable(_))));
    }

    #[tokio::test]
    async fn memory_is_waited_for_and_small_bodies_are_free() {
        let bounds = Bounds { wait: Duration::from_millis(10), ..Bounds::new(1 << 20, 1, 1) };
        let all = bounds.room(1 << 20).await.unwrap();
        assert!(bounds.room(FREE_BYTES).await.is_ok());
        assert!(matches!(bounds.room(FREE_BYTES + 1).await, Err(Fault::Unavailable(_))));
        drop(all);
        let mut growing = bounds.room(0).await.unwrap();
        bounds.enlarge(&mut growing, 600 << 10).await.unwrap();
        assert!(bounds.room(600 << 10).await.is_err(), "what has grown is counted");
        drop(growing);
        assert!(bounds.room(usize::MAX).await.is_ok(), "more than everything is everything");
    }
}
