//! Logs go to stderr; stdout belongs to scripts.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::exit::Stop;
use tenure_config::{LogFormat, Logging};

/// The variables that replace `logging.level`, the first that is set.
const FILTERS: [&str; 2] = ["TENURE_LOG", "RUST_LOG"];

/// Logs the parameters of every statement: payloads, results, lease tokens. Nobody gets to see those.
const SECRETIVE: &str = "tokio_postgres::query=off";

type Reload = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;
static RELOAD: OnceLock<Reload> = OnceLock::new();

/// Starts to log. Call once.
pub fn start(logging: Logging) -> anyhow::Result<()> {
    let terminal = stderr().is_terminal();
    let format = logging.format.unwrap_or(if terminal { LogFormat::Pretty } else { LogFormat::Json });
    let subscriber = tracing_subscriber::fmt().with_writer(stderr).with_env_filter(filter(logging.level)?);
    let started = match format {
        LogFormat::Json => {
            let subscriber = subscriber.json().flatten_event(true).with_filter_reloading();
            let handle = subscriber.reload_handle();
            let _ = RELOAD.set(Box::new(move |filter| handle.reload(filter).is_ok()));
            subscriber.try_init()
        }
        LogFormat::Pretty => {
            let subscriber = subscriber.with_ansi(terminal && console::colors_enabled_stderr()).with_filter_reloading();
            let handle = subscriber.reload_handle();
            let _ = RELOAD.set(Box::new(move |filter| handle.reload(filter).is_ok()));
            subscriber.try_init()
        }
    };
    started.map_err(|error| anyhow::anyhow!(error)).context("logging could not be started")
}

/// Changes the level, unless a variable replaces it.
pub fn set_level(level: &str) {
    let is_set = match (RELOAD.get(), filter(level)) {
        (Some(reload), Ok(filter)) => reload(filter),
        _ => false,
    };
    if !is_set {
        tracing::warn!("the log level could not be changed");
    }
}

fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let set = FILTERS.iter().find_map(|name| Some((name, std::env::var(name).ok().filter(|text| !text.is_empty())?)));
    let filter = match set {
        None => EnvFilter::new(level),
        Some((name, text)) => EnvFilter::try_new(&text).map_err(|error| {
            Stop::usage(format!("{name} cannot be read: {error}")).hint("for example info,tenure=debug")
        })?,
    };
    Ok(filter.add_directive(SECRETIVE.parse()?))
}
