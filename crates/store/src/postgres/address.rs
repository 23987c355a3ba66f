//! The address of a Postgres server, and the TLS that it asks for.

use std::error::Error;
use std::path::PathBuf;

use tenure_tls::{Roots, ServerTrust, TlsError, explain, rustls};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Why an address cannot be used. Never quotes it: it may contain a password.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("the address of Postgres cannot be read")]
    Unreadable(#[source] tokio_postgres::Error),
    #[error("{setting} has no effect: {why}")]
    Unused { setting: &'static str, why: &'static str },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The address of a Postgres server, with the TLS that it asks for:
///
/// | `sslmode` | TLS | Verified |
/// |---|---|---|
/// | `disable` | no | |
/// | `prefer`, or not set | if the server offers it | nothing, as in libpq |
/// | `require`, `verify-full` | yes | the CA and the name |
/// | `verify-ca` | yes | the CA |
///
/// `sslrootcert=PATH` names the CAs, in place of the system's. `require` verifies, unlike in libpq: who asks for TLS
/// should not get a connection that anyone can sit in the middle of.
#[derive(Clone)]
pub struct PostgresAddress {
    pub config: Config,
    pub tls: MakeRustlsConnect,
}

impl std::fmt::Debug for PostgresAddress {
    /// Without the address, which can hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresAddress").finish_non_exhaustive()
    }
}

impl PostgresAddress {
    /// Of `postgres://…`. Reads the CA file.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (plain, mode, roots) = take_tls(url)?;
        let mut config: Config = plain.parse().map_err(AddressError::Unreadable)?;
        let trust = trust(&mut config, mode.as_deref(), roots)?;
        Ok(Self { config, tls: MakeRustlsConnect::new(trust.client_config()?) })
    }
}

/// The address without what tokio-postgres does not know, the mode and the CA file.
fn take_tls(url: &str) -> Result<(String, Option<String>, Option<PathBuf>), AddressError> {
    // A password may have a question mark.
    let host = url.find('@').map_or(0, |at| at + 1);
    let Some(question) = url[host..].find('?').map(|at| host + at) else {
        return Ok((url.to_owned(), None, None));
    };
    let (mut mode, mut roots, mut others) = (None, None, Vec::new());
    for parameter in url[question + 1..].split('&') {
        match parameter.split_once('=') {
            Some(("sslmode", value)) => mode = Some(value.to_owned()),
            Some(("sslrootcert", value)) => roots = Some(PathBuf::from(decode(value)?)),
            _ => others.push(parameter),
        }
    }
    let plain =
        if others.is_empty() { url[..question].to_owned() } else { url[..=question].to_owned() + &others.join("&") };
    Ok((plain, mode, roots))
}

fn trust(config: &mut Config, mode: Option<&str>, roots: Option<PathBuf>) -> Result<ServerTrust, AddressError> {
    let verifies = matches!(mode, Some("require" | "verify-ca" | "verify-full"));
    if roots.is_some() && !verifies {
        return Err(AddressError::Unused {
            setting: "sslrootcert",
            why: "nothing is verified; add sslmode=verify-full to the address",
        });
    }
    let roots = Roots::of(roots.as_deref());
    let (ssl_mode, trust) = match mode {
        Some("disable") => (SslMode::Disable, ServerTrust::Nobody),
        Some("prefer") | None => (SslMode::Prefer, ServerTrust::Nobody),
        Some("verify-ca") => (SslMode::Require, ServerTrust::Chain(roots)),
        Some("require" | "verify-full") => (SslMode::Require, ServerTrust::Full(roots)),
        Some(_) => {
            return Err(AddressError::Unused {
                setting: "sslmode",
                why: "its value is unknown; use disable, prefer, require, verify-ca or verify-full",
            });
        }
    };
    config.ssl_mode(ssl_mode);
    Ok(trust)
}

/// `%2F` and its like.
fn decode(text: &str) -> Result<String, AddressError> {
    let broken = || AddressError::Unused { setting: "sslrootcert", why: "its value is not percent-encoded text" };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(broken());
        };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| broken())?);
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

/// Why TLS to Postgres was not set up, if that is what an error is about.
pub fn explain_tls(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && let Some(tls) = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
        {
            return Some(explain(tls));
        }
        if error.to_string() == "server does not support TLS" {
            return Some("the server offers no TLS: turn ssl on there, or use sslmode=disable".to_owned());
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_say_what_is_verified() {
        let file = || Roots::File("/etc/ca.crt".into());
        let table = [
            ("", SslMode::Prefer, ServerTrust::Nobody),
            ("?sslmode=prefer", SslMode::Prefer, ServerTrust::Nobody),
            ("?sslmode=disable", SslMode::Disable, ServerTrust::Nobody),
            ("?sslmode=require", SslMode::Require, ServerTrust::Full(Roots::System)),
            ("?sslmode=verify-full", SslMode::Require, ServerTrust::Full(Roots::System)),
            ("?sslmode=verify-ca", SslMode::Require, ServerTrust::Chain(Roots::System)),
            ("?sslmode=require&sslrootcert=/etc/ca.crt", SslMode::Require, ServerTrust::Full(file())),
            ("?sslrootcert=%2Fetc%2fca.crt&sslmode=verify-ca", SslMode::Require, ServerTrust::Chain(file())),
            (
                "?application_name=x&sslmode=verify-full&connect_timeout=3",
                SslMode::Require,
                ServerTrust::Full(Roots::System),
            ),
        ];
        for (query, ssl_mode, expected) in table {
            let (plain, mode, roots) = take_tls(&format!("postgres://u:p?w@h:1234/d{query}")).unwrap();
            let mut config: Config = plain.parse().unwrap_or_else(|error| panic!("{plain}: {error}"));
            let found = trust(&mut config, mode.as_deref(), roots).unwrap();
            assert_eq!((config.get_ssl_mode(), found), (ssl_mode, expected), "{query}");
            assert_eq!(config.get_dbname(), Some("d"), "{query}");
            assert_eq!(config.get_password(), Some("p?w".as_bytes()), "{query}");
        }
    }

    #[test]
    fn an_address_may_name_several_servers() {
        let url = "postgres://u:p@a:1,b.example:2/d?sslmode=verify-full&target_session_attrs=read-write";
        let (plain, mode, _) = take_tls(url).unwrap();
        let config: Config = plain.parse().unwrap();
        assert_eq!(mode.as_deref(), Some("verify-full"));
        let hosts = ["a", "b.example"].map(|name| tokio_postgres::config::Host::Tcp(name.to_owned()));
        assert_eq!((config.get_hosts(), config.get_ports()), (hosts.as_slice(), [1, 2].as_slice()));
    }

    #[test]
    fn what_would_not_be_verified_or_is_unknown_is_refused_without_the_address() {
        let table = [
            ("?sslrootcert=/etc/ca.crt", "add sslmode=verify-full"),
            ("?sslmode=prefer&sslrootcert=/etc/ca.crt", "add sslmode=verify-full"),
            ("?sslmode=disable&sslrootcert=/etc/ca.crt", "add sslmode=verify-full"),
            ("?sslmode=allow", "use disable, prefer"),
            ("?sslmode=verify-all", "use disable, prefer"),
            ("?sslmode=", "use disable, prefer"),
            ("?sslmode=require&sslrootcert=%2", "percent-encoded"),
            ("?sslmode=require&sslrootcert=/missing/ca.crt", "/missing/ca.crt"),
            ("?nonsense=1", "cannot be read"),
        ];
        for (query, expected) in table {
            let error = PostgresAddress::parse(&format!("postgres://u:hunter2@h/d{query}")).unwrap_err();
            assert!(error.to_string().contains(expected), "{query}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{query}");
        }
    }
}
