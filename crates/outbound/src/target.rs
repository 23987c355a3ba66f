//! A URL that may be called, as far as can be told without resolving its name.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;

use crate::address::Policy;
use crate::error::Refused;

/// A checked URL. Prints as scheme, host and port only: the rest can be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    url: Url,
}

impl Target {
    pub(crate) fn check(text: &str, policy: &Policy) -> Result<Self, Refused> {
        let url = Url::parse(text).map_err(|_| Refused::NotAUrl)?;
        let host = url.host_str().filter(|host| !host.is_empty());
        match (url.scheme(), host) {
            ("https", Some(_)) => {}
            ("http", Some(_)) if policy.allow_http => {}
            ("http", Some(host)) => {
                return Err(Refused::PlainHttp { host: host.to_owned(), settings: policy.settings });
            }
            ("http" | "https", None) => return Err(Refused::NotAUrl),
            (scheme, _) => return Err(Refused::Scheme { scheme: scheme.to_owned() }),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::UserInfo);
        }
        let target = Self { url };
        if let Some(address) = target.literal() {
            policy.judge(address)?;
        }
        Ok(target)
    }

    /// The address, if the host is one. The URL parser has read all spellings of IPv4: `127.1`, `0x7f.1`, `2130706433`.
    pub(crate) fn literal(&self) -> Option<IpAddr> {
        self.host().trim_start_matches('[').trim_end_matches(']').parse().ok()
    }

    /// The host name, or the address as its usual spelling.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.url.port_or_known_default().unwrap_or(443)
    }

    pub(crate) fn url(&self) -> Url {
        self.url.clone()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.url.scheme(), self.host(), self.port())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Class;

    fn refused(text: &str, policy: &Policy) -> Option<Refused> {
        Target::check(text, policy).err()
    }

    #[test]
    fn odd_spellings_are_judged_as_the_address_that_they_mean() {
        let table = [
            ("127.0.0.1", Class::Loopback),
            ("127.1", Class::Loopback),
            ("127.0.1", Class::Loopback),
            ("0x7f.1", Class::Loopback),
            ("0x7f000001", Class::Loopback),
            ("0X7F.0.0.1", Class::Loopback),
            ("2130706433", Class::Loopback),
            ("0177.0.0.1", Class::Loopback),
            ("017700000001", Class::Loopback),
            ("127.0.0.1.", Class::Loopback),
            ("127%2e0%2e0%2e1", Class::Loopback),
            ("１２７.0.0.1", Class::Loopback),
            ("127。0。0。1", Class::Loopback),
            ("[::1]", Class::Loopback),
            ("[0:0:0:0:0:0:0:1]", Class::Loopback),
            ("[::ffff:127.0.0.1]", Class::Loopback),
            ("[::ffff:7f00:1]", Class::Loopback),
            ("0", Class::Unspecified),
            ("0.0.0.0", Class::Unspecified),
            ("[::]", Class::Unspecified),
            ("169.254.169.254", Class::Metadata),
            ("2852039166", Class::Metadata),
            ("0xa9fea9fe", Class::Metadata),
            ("0251.0376.0251.0376", Class::Metadata),
            ("169.254.43518", Class::Metadata),
            ("[::ffff:169.254.169.254]", Class::Metadata),
            ("[fd00:ec2::254]", Class::Metadata),
            ("100.100.100.200", Class::Metadata),
            ("169.254.1.1", Class::LinkLocal),
            ("[fe80::1]", Class::LinkLocal),
            ("10.1", Class::Private),
            ("192.168.257", Class::Private),
            ("0xac100001", Class::Private),
            ("[2002:a00:1::]", Class::Private),
            ("[64:ff9b::10.0.0.1]", Class::Private),
            ("[fc00::1]", Class::UniqueLocal),
            ("100.64.0.1", Class::SharedNat),
            ("224.0.0.1", Class::Multicast),
            ("255.255.255.255", Class::Broadcast),
            ("4294967295", Class::Broadcast),
        ];
        for (host, expected) in table {
            for url in [format!("https://{host}/x"), format!("https://{host}:8443/x?q"), format!("HTTPS:\\\\{host}\\x")]
            {
                match refused(&url, &Policy::default()) {
                    Some(Refused::Address { class, .. }) => assert_eq!(class, expected, "{url}"),
                    other => panic!("{url}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_plain_https_url_is_refused() {
        let table = [
            ("", Refused::NotAUrl),
            ("worker.example/dispatch", Refused::NotAUrl),
            ("https://", Refused::NotAUrl),
            ("https://1.2.3.4.5/", Refused::NotAUrl),
            ("https://256.0.0.1/", Refused::NotAUrl),
            ("https://[fe80::1%25eth0]/", Refused::NotAUrl),
            ("ftp://worker.example/", Refused::Scheme { scheme: "ftp".into() }),
            ("file:///etc/passwd", Refused::Scheme { scheme: "file".into() }),
            ("gopher://127.0.0.1/", Refused::Scheme { scheme: "gopher".into() }),
            ("unix:/run/x.sock", Refused::Scheme { scheme: "unix".into() }),
            ("http://worker.example/", Refused::PlainHttp { host: "worker.example".into(), settings: "push" }),
            ("https://user@worker.example/", Refused::UserInfo),
            ("https://user:pass@worker.example/", Refused::UserInfo),
            ("https://:pass@worker.example/", Refused::UserInfo),
            ("https://worker.example@127.0.0.1/", Refused::UserInfo),
        ];
        for (url, expected) in table {
            assert_eq!(refused(url, &Policy::default()), Some(expected), "{url}");
        }
    }

    #[test]
    fn good_urls_pass_with_any_port() {
        for url in
            ["https://worker.example/d", "https://worker.example:8443/", "https://1.1.1.1/", "https://[2606:4700::1]/"]
        {
            assert_eq!(refused(url, &Policy::default()), None, "{url}");
        }
        let dev = Policy { allow_http: true, allow_loopback: true, ..Policy::default() };
        for url in ["http://127.0.0.1:7423/", "http://[::1]/", "http://127.1/", "http://worker.example/"] {
            assert_eq!(refused(url, &dev), None, "{url}");
        }
    }

    #[test]
    fn messages_name_the_setting_and_no_secret() {
        let table = [
            ("https://u:hunter2@h/", "header"),
            ("http://h/hunter2?t=hunter2", "push.allow_http"),
            ("https://10.0.0.1/hunter2?t=hunter2", "push.allow_cidrs"),
            ("https://127.0.0.1/hunter2", "dev mode"),
            ("https://169.254.169.254/hunter2", "no setting allows it"),
            ("hunter2", "https://host/path"),
        ];
        for (url, expected) in table {
            let refused = refused(url, &Policy::default()).unwrap();
            let message = refused.to_string();
            assert!(message.contains(expected), "{message}");
            assert!(!format!("{message} {refused:?}").contains("hunter2"), "{message}");
        }
        let target = Target::check("https://h:8443/hunter2?t=hunter2", &Policy::default()).unwrap();
        assert_eq!(format!("{target} {target:?}"), "https://h:8443 Target(https://h:8443)");
    }
}
