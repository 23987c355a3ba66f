use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is in the public internet. All others lead to this machine, its network or its provider's metadata
/// service, and a name that resolves to them is refused.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b)))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, .., y, z] = address.segments();
    let embedded = |high: u16, low: u16| {
        let [w, x] = high.to_be_bytes();
        let [y, z] = low.to_be_bytes();
        is_public_v4(Ipv4Addr::new(w, x, y, z))
    };
    if let Some(v4) = address.to_ipv4_mapped() {
        return is_public_v4(v4);
    }
    match (a, b) {
        // NAT64 and 6to4 carry an address of version 4.
        (0x64, 0xff9b) => address.segments()[2..6] == [0; 4] && embedded(y, z),
        (0x2002, _) => embedded(b, address.segments()[2]),
        // Teredo, benchmarks and documentation.
        (0x2001, 0..0x200 | 0xdb8) => false,
        // The rest of global unicast.
        _ => (0x2000..0x4000).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_and_its_network_are_not_public() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.0.192",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001::1",
            "::7f00:1",
            "fec0::1",
        ] {
            assert!(!is_public(text.parse().expect("an address")), "{text}");
        }
        for text in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"] {
            assert!(is_public(text.parse().expect("an address")), "{text}");
        }
    }
}
