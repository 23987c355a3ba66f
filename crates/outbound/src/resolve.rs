//! Names to addresses, each checked before it can be connected to.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::address::Policy;
use crate::error::{OutboundError, Refused};

/// Looks names up. Tests have one of their own.
pub trait Resolver: Send + Sync + 'static {
    fn lookup(&self, host: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
}

/// What the operating system says.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn lookup(&self, host: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Stands between the HTTP client and the resolver. The client connects to the very addresses that are judged here.
#[derive(Clone)]
pub(crate) struct Guard {
    pub policy: Arc<Policy>,
    pub resolver: Arc<dyn Resolver>,
}

impl Guard {
    /// The addresses of a name. One bad address spoils it: which of them is connected to is a matter of chance.
    pub(crate) async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, OutboundError> {
        let unresolved = |source| OutboundError::Unresolved { host: host.to_owned(), source };
        let found = self.resolver.lookup(host).await.map_err(|error| unresolved(Some(error)))?;
        if found.is_empty() {
            return Err(unresolved(None));
        }
        for address in &found {
            self.policy.judge(*address).map_err(|refused: Refused| refused.of_host(host))?;
        }
        Ok(found)
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found = guard.addresses(name.as_str()).await?;
            // Port 0 means the port of the URL.
            let addresses: Addrs = Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
