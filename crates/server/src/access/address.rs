//! Where a request comes from.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;
use ipnet::IpNet;

/// The other end of the connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// The caller's address. `X-Forwarded-For` is believed as far as trusted proxies wrote it: from the right, the first
/// address that is not one of theirs.
pub fn caller(peer: SocketAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address| is_within(address, trusted);
    let mut address = peer.ip().to_canonical();
    let forwarded = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    let forwarded: Vec<&str> = forwarded.flat_map(|value| value.split(',')).map(str::trim).collect();
    for hop in forwarded.into_iter().rev() {
        if !is_trusted(address) {
            break;
        }
        match hop.parse::<IpAddr>() {
            Ok(hop) => address = hop.to_canonical(),
            Err(_) => break,
        }
    }
    address
}

pub fn is_within(address: IpAddr, networks: &[IpNet]) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_trusted_proxies_wrote_is_believed() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
        for (peer, forwarded, expected) in [
            ("203.0.113.5:1", "1.2.3.4", "203.0.113.5"),
            ("10.0.0.1:1", "1.2.3.4", "1.2.3.4"),
            ("10.0.0.1:1", "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4"),
            ("10.0.0.1:1", "rubbish", "10.0.0.1"),
            ("10.0.0.1:1", "1.2.3.4, rubbish", "10.0.0.1"),
            ("[::ffff:10.0.0.1]:1", "1.2.3.4", "1.2.3.4"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            let found = caller(peer.parse().unwrap(), &headers, &trusted);
            assert_eq!(found, expected.parse::<IpAddr>().unwrap(), "{peer} {forwarded}");
        }
    }
}
