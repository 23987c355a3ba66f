//! Which of several servers to talk to.
//!
//! An address may name several hosts: a primary and its standbys. The driver tries them in order, but waits for one that
//! took the connection and says nothing for as long as it is let. So each host is tried by itself, and has its time.

use std::time::Duration;

use deadpool_postgres::Connect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};

/// How long one host may take, from the name to the first answer.
const HOST_WITHIN: Duration = Duration::from_secs(3);

/// Tries the hosts of an address one after the other.
pub struct EachHost<T>(T);

impl<T> EachHost<T> {
    pub fn new(tls: T) -> Self {
        Self(tls)
    }
}

impl<T> Connect for EachHost<T>
where
    T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static,
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as tokio_postgres::tls::TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        async move {
            let (client, connection) = connect(&config, &self.0).await?;
            let driver = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection to Postgres ended");
                }
            });
            Ok((client, driver))
        }
        .boxed()
    }
}

/// Connects to the first host that answers in time and takes writes.
pub async fn connect<T>(config: &Config, tls: &T) -> Result<(Client, Connection<Socket, T::Stream>), Error>
where
    T: MakeTlsConnect<Socket> + Clone,
{
    let mut last = None;
    for host in one_by_one(config) {
        match tokio::time::timeout(HOST_WITHIN, host.connect(tls.clone())).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(last.unwrap_or_else(Error::__private_api_timeout)),
        }
    }
    match last {
        Some(error) => Err(error),
        // No host at all: the driver says so.
        None => config.connect(tls.clone()).await,
    }
}

/// The same address, with one host each.
fn one_by_one(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    (0..count)
        .map(|index| {
            let mut one = without_hosts(config);
            match hosts.get(index) {
                Some(Host::Tcp(name)) => one.host(name),
                #[cfg(unix)]
                Some(Host::Unix(path)) => one.host_path(path),
                None => &mut one,
            };
            if let Some(address) = addresses.get(index) {
                one.hostaddr(*address);
            }
            if let Some(port) = ports.get(index).or(ports.first()) {
                one.port(*port);
            }
            one
        })
        .collect()
}

fn without_hosts(config: &Config) -> Config {
    let mut one = Config::new();
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(name) = config.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(name) = config.get_application_name() {
        one.application_name(name);
    }
    if let Some(time) = config.get_connect_timeout() {
        one.connect_timeout(*time);
    }
    if let Some(time) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*time);
    }
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts())
        // A server that only reads is of no use, whatever the address says.
        .target_session_attrs(TargetSessionAttrs::ReadWrite);
    if let Some(time) = config.get_keepalives_interval() {
        one.keepalives_interval(time);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_several_hosts_is_several_addresses() {
        let config: Config = "postgres://u:p@a:1,b:2,%2Frun%2Fpg:3/d?application_name=x".parse().unwrap();
        let each = one_by_one(&config);
        let hosts: Vec<_> = each.iter().map(|one| (one.get_hosts().to_vec(), one.get_ports().to_vec())).collect();
        assert_eq!(
            hosts,
            [
                (vec![Host::Tcp("a".into())], vec![1]),
                (vec![Host::Tcp("b".into())], vec![2]),
                (vec![Host::Unix("/run/pg".into())], vec![3]),
            ]
        );
        for one in each {
            assert_eq!((one.get_user(), one.get_password()), (Some("u"), Some(b"p".as_slice())));
            assert_eq!((one.get_dbname(), one.get_application_name()), (Some("d"), Some("x")));
            assert_eq!(one.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        }
    }

    #[test]
    fn one_port_is_that_of_all_hosts() {
        let config: Config = "postgres://a,b/d".parse().unwrap();
        assert_eq!(one_by_one(&config).len(), 2);
        let config: Config = "host=a,b port=7 hostaddr=10.0.0.1,10.0.0.2".parse().unwrap();
        let ports: Vec<_> = one_by_one(&config).iter().map(|one| one.get_ports().to_vec()).collect();
        assert_eq!(ports, [[7], [7]]);
        assert_eq!(one_by_one(&config)[1].get_hostaddrs(), ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    }
}
