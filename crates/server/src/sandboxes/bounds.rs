//! What the routes of sandboxes may use: open streams of each tenant, and memory for whole bodies and answers
//! ([`memory`](crate::memory)).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Fault, SandboxFault, SandboxFaultKind, Unavailable};
use crate::memory::{Memory, Room};

#[derive(Debug)]
pub struct Bounds {
    memory: Arc<Memory>,
    streams: Arc<Streams>,
}

#[derive(Debug)]
struct Streams {
    open: Mutex<HashMap<Arc<str>, usize>>,
    of_tenant: usize,
    in_all: usize,
}

/// An open stream, counted until it is dropped.
#[derive(Debug)]
pub struct Place {
    streams: Arc<Streams>,
    tenant: Arc<str>,
}

impl Bounds {
    pub fn new(memory_bytes: usize, streams_of_tenant: usize, streams: usize) -> Self {
        let streams = Streams { open: Mutex::default(), of_tenant: streams_of_tenant, in_all: streams };
        Self { memory: Memory::new(memory_bytes), streams: Arc::new(streams) }
    }

    /// Room for a body or an answer of a tenant. It is empty at first.
    pub fn room(&self, tenant: &Arc<str>) -> Room {
        Memory::room(&self.memory, tenant)
    }

    pub fn memory_in_use(&self) -> usize {
        self.memory.in_use()
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
}
