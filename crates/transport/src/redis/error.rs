//! What errors of Redis mean. Texts of the server and of the system are not passed on where they could name an address
//! or a user.

use std::io;

use redis::{ErrorKind, RedisError};

use super::SERVICE;
use crate::{Refused, TransportError};

pub(super) fn unreachable(reason: impl Into<String>) -> TransportError {
    TransportError::Unreachable { service: SERVICE, reason: reason.into() }
}

pub(super) fn refused(reason: impl Into<String>) -> TransportError {
    TransportError::Refused { service: SERVICE, reason: reason.into() }
}

/// What an answer means for the whole call.
pub(super) fn of(error: &RedisError) -> TransportError {
    match error.kind() {
        ErrorKind::Io if error.is_timeout() => unreachable("it does not answer in time"),
        ErrorKind::Io => unreachable("the connection was lost"),
        ErrorKind::AuthenticationFailed => refused("it does not accept the user or the password"),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => unreachable("unexpected response"),
        ErrorKind::InvalidClientConfig => refused("the configuration does not fit it"),
        _ => of_code(error.code()),
    }
}

fn of_code(code: Option<&str>) -> TransportError {
    let passing = match code {
        Some("LOADING") => "it is loading its data",
        Some("READONLY") => "it is a replica and takes no writes",
        Some("OOM") => "its memory is full",
        Some("MISCONF") => "it cannot save and takes no writes",
        Some("NOREPLICAS") => "it has too few replicas and takes no writes",
        Some("BUSY") => "it is busy with a script",
        Some("MASTERDOWN") => "it has lost its master",
        Some("TRYAGAIN") => "it is moving data, and asks to try again",
        Some("CLUSTERDOWN") => "its cluster is down",
        Some("UNBLOCKED") => "it ended the wait",
        Some("NOAUTH") => return refused("it wants a password"),
        Some("WRONGPASS") => return refused("it does not accept the user or the password"),
        Some("NOPERM") => return refused("its user may not do this"),
        Some("WRONGTYPE") => return refused("the key of the queue is not a stream"),
        Some("MOVED" | "ASK" | "CROSSSLOT") => return refused("it is a cluster, which is not supported"),
        Some(code) => return refused(format!("it answered with {code}")),
        None => return refused("it answered with an error"),
    };
    unreachable(passing)
}

/// What an answer to one of many commands means: the one command was refused, or else the error is of all.
pub(super) fn of_one(error: &RedisError) -> Result<Refused, TransportError> {
    match (error.code(), of(error)) {
        (Some("NOAUTH" | "WRONGPASS" | "MOVED" | "ASK"), error) | (_, error @ TransportError::Unreachable { .. }) => {
            Err(error)
        }
        (_, TransportError::Refused { reason, .. }) => Ok(Refused::ForItself(format!("Redis refused: {reason}"))),
    }
}

/// Why there is no connection.
pub(super) fn of_connect(error: &io::Error) -> TransportError {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => unreachable("nothing listens there"),
        ErrorKind::TimedOut => unreachable("it does not answer in time"),
        ErrorKind::NotFound => unreachable("the socket does not exist"),
        ErrorKind::PermissionDenied => refused("this user may not open the socket"),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => unreachable("no route to its address"),
        _ => unreachable("the connection failed"),
    }
}
