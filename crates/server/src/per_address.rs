//! How many connections each address has open.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts connections by address. Its memory is bounded by the number of connections.
#[derive(Debug)]
pub struct PerAddress {
    open: Mutex<HashMap<IpAddr, usize>>,
    limit: usize,
}

/// A connection of an address, counted until it is dropped.
#[derive(Debug)]
pub struct Counted {
    of: Arc<PerAddress>,
    address: IpAddr,
}

impl PerAddress {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), limit })
    }

    /// Counts one more, unless the address has its share.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let address = network(address);
        let mut open = self.lock();
        let own = open.entry(address).or_default();
        if *own >= self.limit {
            return None;
        }
        *own += 1;
        Some(Counted { of: Arc::clone(self), address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.of.lock();
        if let Some(own) = open.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Whoever has an IPv6 address has all of its last 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_others_have_theirs() {
        let open = PerAddress::new(2);
        let enter = |address: &str| open.enter(address.parse().unwrap());
        let first = enter("10.0.0.1").unwrap();
        let _second = enter("::ffff:10.0.0.1").unwrap();
        assert!(enter("10.0.0.1").is_none());
        assert!(enter("10.0.0.2").is_some());
        drop(first);
        assert!(enter("10.0.0.1").is_some());
        let _six = [enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap()];
        assert!(enter("2001:db8::ffff:3").is_none(), "the same network");
        assert!(enter("2001:db8:0:1::1").is_some());
        assert_eq!(open.lock().len(), 2, "addresses without connections are forgotten");
    }
}
