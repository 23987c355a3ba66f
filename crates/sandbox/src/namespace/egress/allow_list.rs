use std::net::{IpAddr, SocketAddr};

use super::addresses::is_public;
use crate::error::{Error, Result};

/// The most entries of a list, and the longest entry.
const MAX_ENTRIES: usize = 1000;
const MAX_ENTRY_BYTES: usize = 260;

/// The hosts that a sandbox can reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllowList(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    host: Host,
    /// None means every port.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Name(String),
    /// The names below this one: `.example.com`.
    Below(String),
    Address(IpAddr),
}

impl AllowList {
    pub fn parse(entries: &[String]) -> Result<Self> {
        if entries.len() > MAX_ENTRIES {
            return Err(Error::invalid(format!("the list of allowed hosts has more than {MAX_ENTRIES} entries")));
        }
        entries.iter().map(|entry| Entry::parse(entry)).collect::<Result<_>>().map(Self)
    }

    /// The addresses of a host that is on the list. A name is resolved here, and only to public addresses; an address
    /// that is not public must be on the list itself.
    pub async fn resolve(&self, host: &str, port: u16) -> std::result::Result<Vec<SocketAddr>, String> {
        let refused = || format!("{host}:{port} is not on the sandbox's list of allowed hosts");
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            return if self.has_address(address, port) {
                Ok(vec![SocketAddr::new(address, port)])
            } else {
                Err(refused())
            };
        }
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        if !self.0.iter().any(|entry| entry.matches_name(&name, port)) {
            return Err(refused());
        }
        let found =
            tokio::net::lookup_host((name.as_str(), port)).await.map_err(|_| format!("{host} cannot be resolved"))?;
        let addresses: Vec<SocketAddr> =
            found.filter(|address| is_public(address.ip()) || self.has_address(address.ip(), port)).take(8).collect();
        if addresses.is_empty() {
            return Err(format!("{host} resolves to no public address: list the address itself to allow it"));
        }
        Ok(addresses)
    }

    fn has_address(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|entry| {
            entry.port.is_none_or(|allowed| allowed == port)
                && matches!(&entry.host, Host::Address(allowed) if allowed.to_canonical() == address)
        })
    }
}

impl Entry {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "allowed host {text:?}: {why}; write example.com, *.example.com or an address, with an optional :port"
            ))
        };
        if text.len() > MAX_ENTRY_BYTES {
            return Err(wrong("it is too long"));
        }
        if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Self { host: Host::Address(address), port: None });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { host: Host::Address(address.ip()), port: Some(address.port()) });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().map_err(|_| wrong("the port is not a number"))?)),
            None => (text, None),
        };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let (name, below) = match host.strip_prefix("*.") {
            Some(rest) => (rest, true),
            None => (host.as_str(), false),
        };
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        if !name.split('.').all(label) {
            return Err(wrong("it is not the name of a host"));
        }
        // A name of digits would be taken for an address by a resolver.
        if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(wrong("it is neither a name nor a whole address"));
        }
        let host = if below { Host::Below(format!(".{name}")) } else { Host::Name(name.to_owned()) };
        Ok(Self { host, port })
    }

    fn matches_name(&self, name: &str, port: u16) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
            && match &self.host {
                Host::Name(allowed) => allowed == name,
                Host::Below(suffix) => name.ends_with(suffix) && name.len() > suffix.len(),
                Host::Address(_) => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> AllowList {
        AllowList::parse(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).expect("a list")
    }

    fn has_name(list: &AllowList, name: &str, port: u16) -> bool {
        list.0.iter().any(|entry| entry.matches_name(name, port))
    }

    #[test]
    fn names_wildcards_and_ports_are_told_apart() {
        let list = list(&["Example.com", "*.wild.org:443"]);
        assert!(has_name(&list, "example.com", 22));
        assert!(!has_name(&list, "www.example.com", 80));
        assert!(!has_name(&list, "notexample.com", 80));
        assert!(has_name(&list, "a.b.wild.org", 443));
        assert!(!has_name(&list, "a.wild.org", 80));
        assert!(!has_name(&list, "wild.org", 443));
    }

    #[test]
    fn entries_that_are_no_hosts_are_refused() {
        for entry in
            ["", "*", "*.", "a b", "http://example.com", "example.com:", "example.com:99999", "127.1", "2130706433"]
        {
            assert!(AllowList::parse(&[entry.to_owned()]).is_err(), "{entry:?}");
        }
    }

    #[tokio::test]
    async fn a_name_never_leads_to_a_private_address_and_a_listed_address_does() {
        let by_name = list(&["localhost"]);
        assert!(by_name.resolve("localhost", 80).await.is_err());
        assert!(by_name.resolve("127.0.0.1", 80).await.is_err());
        assert!(by_name.resolve("[::1]", 80).await.is_err());
        let by_address = list(&["127.0.0.1:80"]);
        assert_eq!(by_address.resolve("127.0.0.1", 80).await, Ok(vec!["127.0.0.1:80".parse().expect("an address")]));
        assert!(by_address.resolve("127.0.0.1", 81).await.is_err());
        assert!(by_address.resolve("[::ffff:127.0.0.1]", 80).await.is_ok(), "the same address in other words");
    }
}
