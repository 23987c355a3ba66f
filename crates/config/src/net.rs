//! Addresses, networks and origins, as far as a configuration names them.

use std::net::IpAddr;

use ipnet::IpNet;

/// `10.0.0.0/8`, or a single address.
pub(crate) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Whether only this machine can reach what listens there.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Whether an address means all addresses of the machine, such as `0.0.0.0`.
pub(crate) fn is_unspecified(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_unspecified())
}

/// Whether a host is an address, not a name.
pub(crate) fn is_address(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

/// The host of `host:port`, without brackets.
pub(crate) fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// An origin as browsers send it: `*`, or scheme and host, and a port if it is not the usual one.
pub(crate) fn is_origin(text: &str) -> bool {
    text == "*" || web(text).is_some_and(is_authority)
}

/// An `http` or `https` address without a name or a password in it.
pub(crate) fn is_url(text: &str) -> bool {
    let Some(rest) = web(text) else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    is_authority(authority) && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn web(text: &str) -> Option<&str> {
    text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))
}

/// `host` or `host:port`, with brackets around an IPv6 address.
pub(crate) fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if host.parse::<std::net::Ipv6Addr>().is_ok() => ("v6", port),
            _ => return false,
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let port_fits = match port.strip_prefix(':') {
        Some(port) => port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    !host.is_empty() && host.chars().all(is_name) && port_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_a_scheme_and_a_host_and_nothing_else() {
        for text in ["*", "https://a.example", "http://localhost:3000", "https://[::1]:8443", "http://10.0.0.1"] {
            assert!(is_origin(text), "{text}");
        }
        for text in [
            "",
            "a.example",
            "ftp://a.example",
            "https://",
            "https://a.example/",
            "https://a.example/x",
            "https://a.example?x",
            "https://a.example#x",
            "https://u:p@a.example",
            "https://a example",
            "https://*.example",
            "https://a:b",
            "https://a:70000",
            "https://[::1",
            "https://[x]",
            "null",
        ] {
            assert!(!is_origin(text), "{text}");
        }
    }

    #[test]
    fn addresses_carry_no_credentials() {
        assert!(is_url("https://id.example/keys?x=1") && is_url("http://localhost:7423"));
        for text in ["id.example", "https://", "https://u:p@id.example/", "https://id.example/a b", "file:///x"] {
            assert!(!is_url(text), "{text}");
        }
    }

    #[test]
    fn networks_and_loopback_are_told_apart() {
        assert_eq!(network("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(network("fd00::1").unwrap().to_string(), "fd00::1/128");
        assert!(network("10.0.0.0/33").is_none() && network("proxy").is_none());
        for host in ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "::ffff:127.0.0.1", "localhost", "LOCALHOST"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
