//! Why a request was not made, or got no answer.

use std::net::IpAddr;

use crate::address::Class;

/// What was refused, and which setting would allow it. Holds a host or an address, never the rest of a URL: paths and
/// queries of webhooks are often secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("this is not a URL: use https://host/path")]
    NotAUrl,
    #[error("the scheme '{scheme}' is refused: use https")]
    Scheme { scheme: String },
    #[error("http is refused for {host}: use https, or set {settings}.allow_http")]
    PlainHttp { host: String, settings: &'static str },
    #[error("a URL with a user name or password is refused: send credentials in a header")]
    UserInfo,
    #[error("{address} is refused: it is {}{}", class.name(), hint(*class, settings))]
    Address { address: IpAddr, class: Class, settings: &'static str },
    #[error("{host} is refused, since it resolves to {address}: it is {}{}", class.name(), hint(*class, settings))]
    Resolved { host: String, address: IpAddr, class: Class, settings: &'static str },
}

fn hint(class: Class, settings: &str) -> String {
    match class {
        Class::Private | Class::UniqueLocal | Class::SharedNat => {
            format!("; to allow it, list its range in {settings}.allow_cidrs")
        }
        Class::Loopback => "; it is allowed in dev mode only (a loopback listener with auth.enabled: false)".to_owned(),
        _ => ", and no setting allows it".to_owned(),
    }
}

impl Refused {
    /// Of a name: says which, for the address alone helps nobody.
    pub(crate) fn of_host(self, host: &str) -> Self {
        match self {
            Self::Address { address, class, settings } => {
                Self::Resolved { host: host.to_owned(), address, class, settings }
            }
            other => other,
        }
    }
}

/// A request that got no answer.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// Trying again does not help.
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("{host} has no address")]
    Unresolved {
        host: String,
        #[source]
        source: Option<std::io::Error>,
    },
    #[error("{host} did not answer in time")]
    Timeout { host: String },
    #[error("cannot connect to {host}")]
    Connect {
        host: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the request to {host} failed")]
    Failed {
        host: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the HTTP client cannot be set up: check its certificates")]
    Setup(#[source] Box<dyn std::error::Error + Send + Sync>),
}
