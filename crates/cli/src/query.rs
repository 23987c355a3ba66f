//! Who runs the queries of this server.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tenure_config::{Config, QuerySettings};
use tenure_server::{NO_QUERY_PROCESS, QueryConfig, QueryEndpoint, QueryPlace, QueryProcess};

const PROGRAM: &str = "tenure-query";

pub fn config(config: &Config) -> anyhow::Result<QueryConfig> {
    let settings = &config.query;
    Ok(QueryConfig {
        place: place(config, settings)?,
        per_minute: settings.per_minute,
        memory_bytes: u64::from(settings.memory_mib) << 20,
        user_timeout: settings.user_timeout,
        task_timeout: settings.task_timeout,
    })
}

fn place(config: &Config, settings: &QuerySettings) -> anyhow::Result<QueryPlace> {
    if !settings.endpoints.is_empty() {
        let read =
            |text: &String| text.parse::<QueryEndpoint>().map_err(|problem| anyhow::anyhow!("`{text}` {problem}"));
        let endpoints = settings.endpoints.iter().map(read).collect::<Result<_, _>>().context("query.endpoint")?;
        return Ok(QueryPlace::Fleet(endpoints, settings.token.clone()));
    }
    if !settings.enabled {
        return Ok(QueryPlace::Nowhere("this server runs no queries: query.enabled is false".to_owned()));
    }
    let binary = match &settings.binary {
        Some(binary) => Some(std::path::absolute(binary).context("query.binary")?),
        None => find(),
    };
    let Some(binary) = binary else {
        tracing::info!("no {PROGRAM} beside this program or in PATH: queries are not answered");
        return Ok(QueryPlace::Nowhere(NO_QUERY_PROCESS.to_owned()));
    };
    Ok(QueryPlace::Own(QueryProcess {
        binary,
        folder: config.data.clone(),
        at_once: settings.at_once,
        waiting: settings.waiting,
        memory_mib: settings.memory_mib,
        timeout: settings.user_timeout.max(settings.task_timeout),
    }))
}

/// Beside this program, or in `PATH`.
fn find() -> Option<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(PROGRAM));
    own.into_iter().chain(others).find(|place| is_program(place))
}

fn is_program(place: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    place.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
