//! Which operators of a worker run in sandboxes, and in which.

use std::sync::Arc;

use tenure_config::Config;
use tenure_worker::{Operators, SandboxSettings, Sandboxes};

use crate::cmd::sandbox::{Name, Private};
use crate::exit::Stop;

const IMAGE: &str = "worker.sandbox.image";
const LIMITS: &str = "worker.sandbox.limits";
const OPERATORS: &str = "worker.sandbox.operators";

/// A flag takes precedence over the configuration, and the settings of an operator over those of all.
///
/// `bundles`: limits are of use also if no operator runs in a sandbox.
pub fn apply(
    operators: &mut Operators,
    image: Option<String>,
    limits: Option<&str>,
    bundles: bool,
    config: &Config,
) -> anyhow::Result<()> {
    let every = image.is_some() || config.worker.sandbox.image.is_some();
    let common = common(image, limits, config)?;
    let mut listed = false;
    for (name, text) in config.sandboxed_operators() {
        listed = true;
        let own = common.clone().with(text);
        let own = own.map_err(|error| config.wrong_sandbox(OPERATORS, format!("{name}: {error}")))?;
        operators.sandbox(name, own).map_err(|error| config.wrong_sandbox(OPERATORS, error.to_string()))?;
    }
    if every {
        operators.sandbox_all(&common);
    } else if limits.is_some() && !listed && !bundles {
        return Err(Stop::usage("--sandbox-limits needs a sandbox")
            .hint(format!("use --sandbox, or set {IMAGE}"))
            .into());
    }
    Ok(())
}

/// The image and the limits of sandboxes, unless something else is said of one.
pub fn common(image: Option<String>, limits: Option<&str>, config: &Config) -> anyhow::Result<SandboxSettings> {
    let settings = &config.worker.sandbox;
    let mut common = SandboxSettings::default();
    if let Some(image) = image.or_else(|| settings.image.clone()) {
        common.image = image;
    }
    Ok(match limits {
        Some(limits) => common.with(limits).map_err(|error| Stop::usage(format!("--sandbox-limits: {error}")))?,
        None => common.with(&settings.limits).map_err(|error| config.wrong_sandbox(LIMITS, error.to_string()))?,
    })
}

/// The answer has to be kept for as long as the sandboxes are used.
pub async fn open(config: &Config) -> anyhow::Result<(Sandboxes, Private)> {
    let settings = &config.worker.sandbox;
    let private = Name::parse(settings.provider)?.open(config).await?;
    Ok((Sandboxes { provider: Arc::clone(private.provider()), warm: settings.warm }, private))
}
