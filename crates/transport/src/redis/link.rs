//! Where Redis is, and how a connection to it is made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{error, tls};
use crate::TransportError;

/// How long it may take until Redis has let this client in.
const CONNECT: Duration = Duration::from_secs(2);

/// The address of a Redis, and who this client is to it. Has a password inside and is never printed.
pub(super) struct Link {
    address: Address,
    login: RedisConnectionInfo,
}

enum Address {
    Tcp { host: String, port: u16, tls: Option<TlsConnector> },
    Unix(PathBuf),
}

/// A connection, and whether it has ended.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    ended: Arc<AtomicBool>,
}

impl Connection {
    pub(super) fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// Whether both are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ended, &other.ended)
    }
}

/// Marks the end when it is dropped, also with the runtime that drives the connection.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Link {
    pub(super) fn parse(url: &str, ca_file: Option<&Path>) -> Result<Self, TransportError> {
        let bad = || {
            error::refused("the URL is none of redis://[user:password@]host[:port][/db], rediss://… and unix:///path")
        };
        if url.contains('#') {
            return Err(error::refused("the URL has a part after #, which means nothing here"));
        }
        let secure = url.starts_with("rediss://");
        // The address alone is wanted from it: the TLS is of our own.
        let plain = if secure { url.replacen("rediss://", "redis://", 1) } else { url.to_owned() };
        if !["redis://", "unix://"].iter().any(|scheme| plain.starts_with(scheme)) {
            return Err(bad());
        }
        let info = plain.into_connection_info().map_err(|_| bad())?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let tls = secure.then(|| tls::connector(ca_file)).transpose()?;
                Address::Tcp { host: host.clone(), port: *port, tls }
            }
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(bad()),
        };
        if !secure && ca_file.is_some() {
            return Err(error::refused("a CA file is set, and the URL is not rediss://"));
        }
        // Answers are read as the second version of the protocol has them, whatever the URL asks for.
        let login = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP2);
        Ok(Self { address, login })
    }

    pub(super) async fn connect(&self) -> Result<Connection, TransportError> {
        let late = || error::unreachable("it does not answer in time");
        timeout(CONNECT, self.connect_at_leisure()).await.map_err(|_| late())?
    }

    async fn connect_at_leisure(&self) -> Result<Connection, TransportError> {
        match &self.address {
            Address::Tcp { host, port, tls } => {
                let addresses = tokio::net::lookup_host((host.as_str(), *port)).await;
                let addresses = addresses.map_err(|_| error::unreachable("its host name cannot be resolved"))?;
                let addresses: Vec<_> = addresses.collect();
                let stream = TcpStream::connect(&*addresses).await.map_err(|error| error::of_connect(&error))?;
                stream.set_nodelay(true).map_err(|error| error::of_connect(&error))?;
                match tls {
                    Some(tls) => self.log_in(tls::connect(tls, host, stream).await?).await,
                    None => self.log_in(stream).await,
                }
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| error::of_connect(&error))?;
                self.log_in(stream).await
            }
        }
    }

    async fn log_in(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Connection, TransportError> {
        // Each call has a time limit of its own.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let (commands, driver) = MultiplexedConnection::new_with_config(&self.login, stream, config)
            .await
            .map_err(|error| error::of(&error))?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = End(Arc::clone(&ended));
        tokio::spawn(async move {
            let _end = end;
            driver.await;
        });
        Ok(Connection { commands, ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_judged_at_once_and_never_quoted() {
        for good in ["redis://h", "redis://:p@h:1/2", "redis://u:p@[::1]:6380", "unix:///run/redis.sock"] {
            assert!(Link::parse(good, None).is_ok(), "{good}");
        }
        for bad in [
            "",
            "h:6379",
            "http://u:hunter2@h",
            "redis://:hunter2@h/x",
            "redis://:hunter2@h:99999",
            "rediss://:hunter2@h#insecure",
        ] {
            let error = Link::parse(bad, None).map(drop).unwrap_err();
            assert!(matches!(error, TransportError::Refused { .. }), "{bad}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{bad}");
        }
        assert!(Link::parse("redis://h", Some(Path::new("/ca.pem"))).is_err());
    }
}
