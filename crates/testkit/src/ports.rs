//! TCP ports that stay free while the server on them is down.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Context, Result};

use crate::scratch;

/// Below the range from which Linux and macOS take ports for `:0` and for outgoing connections:
/// a port from that range can be gone before a server is started on it for the second time.
const RANGE: Range<u16> = 20_000..30_000;

/// A port of 127.0.0.1 that no other test takes while this value lives.
///
/// For servers that are stopped and started again at the same address. A server that is started
/// once should listen on port 0 instead.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked, which keeps test processes from choosing the same port. The system lets go of the
    /// lock when the process ends, however it ends.
    _reservation: File,
}

impl Port {
    /// Finds a port that nobody listens on and nobody has reserved.
    ///
    /// # Panics
    ///
    /// When there is none, or the file for the reservation cannot be made.
    pub fn reserve() -> Self {
        Self::try_reserve().expect("no port for a test")
    }

    pub(crate) fn try_reserve() -> Result<Self> {
        let folder = scratch::folder("ports")?;
        // Starting at a random place keeps tests that run side by side out of each other's way.
        let start = RandomState::new().hash_one(()) as usize % RANGE.len();
        for number in RANGE.cycle().skip(start).take(RANGE.len()) {
            let reservation = File::create(folder.join(number.to_string()))?;
            let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
            if reservation.try_lock().is_ok() && free() {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        None.with_context(|| format!("every port of {RANGE:?} is in use"))
    }

    /// The number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_can_be_bound_and_is_not_given_out_twice() {
        let ports: Vec<_> = (0..50).map(|_| Port::reserve()).collect();
        let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ports.len());
        TcpListener::bind((Ipv4Addr::LOCALHOST, ports[0].number())).unwrap();
    }
}
