//! Which addresses may be called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::error::Refused;

/// What one kind of request may reach.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Plain `http` as well as `https`.
    pub allow_http: bool,
    /// This machine. For dev mode only.
    pub allow_loopback: bool,
    /// Private, unique-local and carrier-grade NAT addresses in these ranges. Ranges of other kinds have no effect.
    pub allow_cidrs: Vec<IpNet>,
    /// Where these settings stand, for error messages: `push` makes it `push.allow_cidrs`.
    pub settings: &'static str,
}

impl Default for Policy {
    /// The strictest: public addresses over https.
    fn default() -> Self {
        Self { allow_http: false, allow_loopback: false, allow_cidrs: Vec::new(), settings: "push" }
    }
}

impl Policy {
    /// Whether an address may be connected to.
    pub fn judge(&self, address: IpAddr) -> Result<(), Refused> {
        let meant = unwrap(address);
        let class = class(meant);
        let allowed = match class {
            Class::Public => true,
            Class::Loopback => self.allow_loopback,
            Class::Private | Class::UniqueLocal | Class::SharedNat => {
                self.allow_cidrs.iter().any(|range| range.contains(&meant))
            }
            _ => false,
        };
        if allowed { Ok(()) } else { Err(Refused::Address { address, class, settings: self.settings }) }
    }
}

/// What an address is for, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Public,
    Loopback,
    Private,
    UniqueLocal,
    /// Carrier-grade NAT.
    SharedNat,
    LinkLocal,
    /// Where clouds hand out credentials.
    Metadata,
    Multicast,
    Broadcast,
    Unspecified,
    Documentation,
    Benchmark,
    Reserved,
}

impl Class {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Public => "a public address",
            Self::Loopback => "this machine itself",
            Self::Private => "a private address",
            Self::UniqueLocal => "a unique-local address",
            Self::SharedNat => "a carrier-grade NAT address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a metadata service",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::Unspecified => "an unspecified address",
            Self::Documentation => "an address for documentation",
            Self::Benchmark => "an address for benchmarks",
            Self::Reserved => "a reserved address",
        }
    }
}

/// The class of the address that is meant: one of IPv4 that is written as IPv6 is judged as what it is.
pub fn class(address: IpAddr) -> Class {
    match unwrap(address) {
        IpAddr::V4(address) => class_v4(address),
        IpAddr::V6(address) => class_v6(address),
    }
}

/// The IPv4 address inside of an IPv6 one: mapped, compatible, 6to4, NAT64, ISATAP.
fn unwrap(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let s = v6.segments();
    let inside = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => inside(high, low),
        [0, 0, 0, 0, 0xffff, 0, high, low] => inside(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inside(high, low),
        [0x2002, high, low, ..] => inside(high, low),
        [first, _, _, _, 0 | 0x200, 0x5efe, high, low] if first & 0xe000 == 0x2000 => inside(high, low),
        _ => address,
    }
}

fn class_v4(address: Ipv4Addr) -> Class {
    match address.octets() {
        // Alibaba's and Azure's stand in ranges that may be allowed.
        [169, 254, 169, 254] | [169, 254, 170, 2 | 23] | [100, 100, 100, 200] | [168, 63, 129, 16] => Class::Metadata,
        [0, ..] => Class::Unspecified,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Class::Private,
        [100, 64..=127, ..] => Class::SharedNat,
        [127, ..] => Class::Loopback,
        [169, 254, ..] => Class::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Class::Documentation,
        [198, 18 | 19, ..] => Class::Benchmark,
        [192, 0, 0, _] | [192, 88, 99, _] => Class::Reserved,
        [224..=239, ..] => Class::Multicast,
        [255, 255, 255, 255] => Class::Broadcast,
        [240..=255, ..] => Class::Reserved,
        _ => Class::Public,
    }
}

fn class_v6(address: Ipv6Addr) -> Class {
    match address.segments() {
        // Amazon's and Google's.
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => Class::Metadata,
        [0, 0, 0, 0, 0, 0, 0, 0] => Class::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Class::Loopback,
        [0xff00..=0xffff, ..] => Class::Multicast,
        [0xfe80..=0xfebf, ..] => Class::LinkLocal,
        [0xfc00..=0xfdff, ..] => Class::UniqueLocal,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Class::Documentation,
        [0x2001, 2, 0, ..] => Class::Benchmark,
        // Protocol assignments, Teredo among them, which has an IPv4 address inside.
        [0x2001, 0..=0x1ff, ..] => Class::Reserved,
        [0x2000..=0x3fff, ..] => Class::Public,
        _ => Class::Reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[(Class, &[&str])] = &[
        (
            Class::Public,
            &[
                "1.1.1.1",
                "93.184.216.34",
                "100.63.255.255",
                "100.128.0.0",
                "172.15.0.1",
                "172.32.0.1",
                "192.0.1.1",
                "198.17.255.255",
                "198.20.0.0",
                "169.253.0.1",
                "11.0.0.1",
                "223.255.255.255",
                "2606:4700::1111",
                "2a00:1450::1",
                "2001:200::1",
                "::ffff:1.1.1.1",
                "64:ff9b::1.1.1.1",
                "2002:0101:0101::1",
            ],
        ),
        (
            Class::Loopback,
            &[
                "127.0.0.1",
                "127.255.255.255",
                "127.0.0.2",
                "::1",
                "::ffff:127.0.0.1",
                "::127.0.0.1",
                "64:ff9b::7f00:1",
                "2002:7f00:1::",
                "::ffff:0:127.0.0.1",
                "2001:470::5efe:7f00:1",
                "2001:470::200:5efe:7f00:1",
            ],
        ),
        (
            Class::Private,
            &[
                "10.0.0.1",
                "10.255.255.255",
                "172.16.0.1",
                "172.31.255.255",
                "192.168.1.1",
                "::ffff:10.0.0.1",
                "::ffff:c0a8:101",
                "2002:0a00:0001::1",
                "64:ff9b::10.0.0.1",
                "::10.0.0.1",
            ],
        ),
        (Class::UniqueLocal, &["fc00::1", "fd12:3456::1", "fdff:ffff::", "fd00:ec2::253"]),
        (Class::SharedNat, &["100.64.0.1", "100.127.255.255", "::ffff:100.64.0.1"]),
        (Class::LinkLocal, &["169.254.0.1", "169.254.255.255", "fe80::1", "febf::1", "::ffff:169.254.1.1"]),
        (
            Class::Metadata,
            &[
                "169.254.169.254",
                "169.254.170.2",
                "fd00:ec2::254",
                "fd20:ce::254",
                "100.100.100.200",
                "168.63.129.16",
                "::ffff:169.254.169.254",
                "::ffff:a9fe:a9fe",
                "64:ff9b::a9fe:a9fe",
                "2002:a9fe:a9fe::",
                "::ffff:100.100.100.200",
                "::169.254.169.254",
            ],
        ),
        (Class::Multicast, &["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1", "::ffff:224.0.0.1"]),
        (Class::Broadcast, &["255.255.255.255", "::ffff:255.255.255.255"]),
        (Class::Unspecified, &["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"]),
        (
            Class::Documentation,
            &["192.0.2.1", "198.51.100.1", "203.0.113.255", "2001:db8::1", "3fff::1", "3fff:fff::1"],
        ),
        (Class::Benchmark, &["198.18.0.1", "198.19.255.255", "2001:2::1"]),
        (
            Class::Reserved,
            &[
                "192.0.0.1",
                "192.0.0.192",
                "192.88.99.1",
                "240.0.0.1",
                "255.255.255.254",
                "2001::1",
                "2001:10::1",
                "64:ff9b:1::1",
                "100::1",
                "fec0::1",
                "4000::1",
                "5f00::1",
            ],
        ),
    ];

    fn cases() -> impl Iterator<Item = (Class, IpAddr)> {
        TABLE.iter().flat_map(|(class, texts)| texts.iter().map(|text| (*class, text.parse().unwrap())))
    }

    #[test]
    fn every_address_has_the_class_of_what_it_means() {
        for (expected, address) in cases() {
            assert_eq!(class(address), expected, "{address}");
        }
    }

    #[test]
    fn only_public_addresses_are_allowed_by_default() {
        for (class, address) in cases() {
            assert_eq!(Policy::default().judge(address).is_ok(), class == Class::Public, "{address}");
        }
    }

    #[test]
    fn dev_mode_adds_this_machine_and_nothing_else() {
        let policy = Policy { allow_http: true, allow_loopback: true, ..Policy::default() };
        for (class, address) in cases() {
            let expected = matches!(class, Class::Public | Class::Loopback);
            assert_eq!(policy.judge(address).is_ok(), expected, "{address}");
        }
    }

    #[test]
    fn ranges_add_private_addresses_and_nothing_else() {
        let everything = ["0.0.0.0/0", "::/0"].map(|range| range.parse().unwrap());
        let policy = Policy { allow_cidrs: everything.into(), ..Policy::default() };
        for (class, address) in cases() {
            let expected = matches!(class, Class::Public | Class::Private | Class::UniqueLocal | Class::SharedNat);
            assert_eq!(policy.judge(address).is_ok(), expected, "{address}");
        }
    }

    #[test]
    fn a_range_allows_what_is_in_it_in_every_spelling() {
        let ranges = ["10.1.0.0/16", "fd12::/16"].map(|range| range.parse().unwrap());
        let policy = Policy { allow_cidrs: ranges.into(), ..Policy::default() };
        for (address, expected) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.1", false),
            ("192.168.0.1", false),
            ("fd12::1", true),
            ("fd13::1", false),
        ] {
            assert_eq!(policy.judge(address.parse().unwrap()).is_ok(), expected, "{address}");
        }
    }
}
