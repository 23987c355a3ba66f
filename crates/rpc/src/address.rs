//! Where a worker listens, from its `rpc_url`.

use std::net::IpAddr;

use hyper::Uri;
use hyper::header::HeaderValue;

use crate::Error;

/// A checked `rpc_url`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    /// What precedes `/rpc`; empty as a rule, and never ends in a slash.
    prefix: String,
    /// The header `Host`.
    pub authority: HeaderValue,
}

impl Address {
    pub(crate) fn parse(rpc_url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::unsent(format!("the worker's rpc_url {why}"));
        let uri: Uri = rpc_url.trim().parse().map_err(|_| wrong("is not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("must not contain credentials"));
        }
        if uri.query().is_some() {
            return Err(wrong("must not have a query"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("names no host"));
        }
        // A port that does not parse must not become the default one.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") if tls => Some(443),
            Some("") => Some(80),
            Some(rest) => rest.strip_prefix(':').and_then(|port| port.parse().ok()).filter(|port| *port > 0),
            None => None,
        };
        let port = port.ok_or_else(|| wrong("has a port that is not a number from 1 to 65535"))?;
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("is not a URL"))?;
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { tls, host: host.to_owned(), port, prefix, authority: header })
    }

    /// A path of the worker's listener, with its query.
    pub(crate) fn path(&self, path: &str) -> Result<Uri, Error> {
        format!("{}{path}", self.prefix).parse().map_err(|_| Error::invalid("the path cannot be sent to a worker"))
    }

    /// Whether nobody but this machine can be at the other end.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// A value as a part of a query or a path.
pub(crate) fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_decides_about_tls_and_the_port() {
        for (url, tls, host, port, path) in [
            ("http://worker-a.internal:7430", false, "worker-a.internal", 7430, "/rpc"),
            ("https://worker-a.internal/", true, "worker-a.internal", 443, "/rpc"),
            (" http://10.0.0.7 ", false, "10.0.0.7", 80, "/rpc"),
            ("https://[::1]:7430/base/", true, "::1", 7430, "/base/rpc"),
        ] {
            let address = Address::parse(url).expect(url);
            assert_eq!((address.tls, address.host.as_str(), address.port), (tls, host, port), "{url}");
            assert_eq!(address.path("/rpc").expect(url).to_string(), path);
        }
        assert_eq!(Address::parse("https://[::1]:7430").expect("IPv6").authority, "[::1]:7430");
    }

    #[test]
    fn what_is_not_a_plain_http_url_is_refused() {
        for url in [
            "",
            "worker-a:7430",
            "/rpc",
            "ftp://worker-a",
            "http://",
            "http://user:secret@worker-a",
            "http://worker-a?x=1",
            "http://worker-a:0",
            "http://worker-a:99999",
            "http://worker-a:",
        ] {
            let error = Address::parse(url).expect_err(url);
            assert!(!error.may_have_run() && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn values_in_a_query_are_encoded() {
        assert_eq!(encode("/a b&c=ä/../%.txt"), "%2Fa%20b%26c%3D%C3%A4%2F..%2F%25.txt");
    }
}
