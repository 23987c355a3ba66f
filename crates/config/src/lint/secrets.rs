use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use tenure_auth::Secret;
use tenure_core::dag::definition::is_secret_name;

use super::{Report, weakness};
use crate::config::Config;

/// Secrets by name, in the configuration itself or in files.
pub(super) fn check(
    config: &Config,
    report: &mut Report,
    key: &'static str,
    file_key: &'static str,
    secrets: &BTreeMap<String, Secret>,
) {
    let weak: Vec<_> = secrets.iter().filter_map(|(name, secret)| Some((name, weakness(secret)?))).collect();
    for (name, why) in &weak {
        report.risk(key, format!("the secret `{name}` {why}"), "create one with `openssl rand -hex 32`");
    }
    if weak.is_empty() {
        report.pass(key, format!("{} secret(s)", secrets.len()));
    }
    let files = config.settings.path_map(file_key).unwrap_or_default();
    let readable = |path: &std::path::PathBuf| {
        std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
    };
    if config.settings.is_set(key) {
        let fix = format!("move the secrets to files, and name the files in {file_key}");
        report.warn(file_key, format!("{key} is stored in the configuration itself"), &fix);
    } else if let Some((name, path)) = files.iter().find(|(_, path)| readable(path)) {
        let message = format!("every user of the machine can read the file of `{name}`");
        report.warn(file_key, message, &format!("chmod o-r {}", path.display()));
    } else {
        report.pass(file_key, format!("no secret of {key} is stored in the configuration itself"));
    }
}

/// Secrets that webhook sources name.
pub(super) fn of_webhooks(config: &Config, report: &mut Report) {
    let (key, secrets) = ("dispatch.secrets", &config.dispatch_secrets);
    let unusable = secrets.keys().filter(|name| !is_secret_name(name.rsplit('/').next().unwrap_or_default()));
    for name in unusable {
        let fix = "use a letter, then letters, digits, _ and -";
        report.warn(key, format!("no webhook source can name the secret `{name}`, so nothing uses it"), fix);
    }
    check(config, report, key, "dispatch.secret_files", secrets);
}
