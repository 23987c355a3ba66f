//! The daemon's API, with this crate's errors.

use std::time::Duration;

use bollard::errors::Error as DaemonError;
use bollard::{API_DEFAULT_VERSION, Docker};

use crate::error::{Error, ErrorKind, Result};

/// Time for one answer of the daemon. Creating a container of a large image can take long.
const PATIENCE_SECONDS: u64 = 110;

/// Connects and settles on a version of the API that both sides know.
pub(super) async fn connect(socket: &str) -> Result<Docker> {
    let docker = if socket.is_empty() {
        Docker::connect_with_unix_defaults()
    } else {
        Docker::connect_with_unix(socket, PATIENCE_SECONDS, API_DEFAULT_VERSION)
    };
    let docker = docker.map_err(|error| failed("connect to the daemon", error))?;
    match tokio::time::timeout(Duration::from_secs(10), docker.negotiate_version()).await {
        Ok(docker) => docker.map_err(|error| failed("ask for the daemon's version", error)),
        Err(_) => Err(Error::unavailable("docker: the daemon did not answer within 10 s")),
    }
}

/// What a failed call means to a caller.
pub(super) fn failed(action: &str, error: DaemonError) -> Error {
    let kind = match status(&error) {
        Some(400) => ErrorKind::Invalid,
        Some(404) => ErrorKind::NotFound,
        Some(_) => ErrorKind::Internal,
        None => ErrorKind::Unavailable,
    };
    let message = match &error {
        DaemonError::DockerResponseServerError { message, .. } => message.chars().take(500).collect(),
        other => other.to_string(),
    };
    Error::new(kind, format!("docker: cannot {action}: {message}")).with_source(error)
}

pub(super) fn status(error: &DaemonError) -> Option<u16> {
    match error {
        DaemonError::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}
