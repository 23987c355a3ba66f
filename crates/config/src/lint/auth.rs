use ipnet::IpNet;
use tenure_auth::{Anonymous, Secret};

use super::{Level, Report, SECRET_BYTES, weakness};
use crate::auth::{AuthSettings, DIGEST, OidcSettings, WorkerSettings};
use crate::config::Config;

const NEW_SECRET: &str = "create one with `openssl rand -hex 32` in a file, and name the file in the _file key";

/// What is looked at only with OIDC.
const UNUSED: [&str; 5] =
    ["auth.oidc_issuer", "auth.oidc_jwks_url", "auth.oidc_public_key_file", "auth.oidc_audience", "auth.oidc_groups"];

pub(super) fn check(config: &Config, report: &mut Report) {
    enabled(config, report);
    users(&config.auth, report);
    workers(config, report);
    oidc(config, report);
}

fn enabled(config: &Config, report: &mut Report) {
    let check = "auth.enabled";
    if config.auth.enabled {
        report.pass(check, "users need a key");
    } else if config.has_idle_keys() {
        let fix = "remove auth.enabled: false, or the keys";
        report.add(Level::Fail, check, "is false although keys are set: nobody needs them".to_owned(), fix);
    } else {
        report.risk(check, "everyone who reaches the API is an admin", "set auth.enabled: true and keys");
    }
}

fn users(auth: &AuthSettings, report: &mut Report) {
    user_key(report, "auth.api_key", auth.api_key.as_ref());
    user_key(report, "auth.admin_api_key", auth.admin_api_key.as_ref());
    match (&auth.api_key, &auth.admin_api_key) {
        (Some(user), Some(admin)) if user.matches(admin.reveal()) => {
            let fix = "create another with `openssl rand -hex 32`, for auth.admin_api_key or auth.api_key";
            report.risk("auth.key_separation", "users and admins have the same key", fix);
        }
        _ => report.pass("auth.key_separation", "users and admins have different keys"),
    }
    if auth.admin_fallback {
        let fix = "set auth.admin_api_key, and auth.admin_fallback_enabled: false";
        report.risk(
            "auth.admin_fallback_enabled",
            "the user key is accepted on admin endpoints unless an admin key is set",
            fix,
        );
    } else {
        report.pass("auth.admin_fallback_enabled", "admin endpoints need the admin key");
    }
    if auth.admin_audit_retention.is_zero() {
        let fix = "set a limit, such as auth.admin_audit_retention: 2160h";
        report.risk("auth.admin_audit_retention", "the audit log of admin requests grows forever", fix);
    } else {
        report.pass("auth.admin_audit_retention", "the audit log of admin requests has a limit");
    }
}

fn user_key(report: &mut Report, key: &'static str, secret: Option<&Secret>) {
    match secret.map(weakness) {
        None => report.risk(key, "is not set", NEW_SECRET),
        Some(Some(weakness)) => report.risk(key, weakness, NEW_SECRET),
        Some(None) => report.pass(key, "is set"),
    }
}

fn workers(config: &Config, report: &mut Report) {
    let worker = &config.auth.worker;
    signing_key(worker, report);
    if worker.legacy {
        let fix = "renew the tokens of older issuers, then set auth.legacy_worker_tokens: false";
        report.risk("auth.legacy_worker_tokens", "tokens without audience or time of issue are accepted", fix);
    } else {
        report.pass("auth.legacy_worker_tokens", "signed tokens need every claim");
    }
    let plain = || worker.bootstrap_keys.values().map(Secret::reveal).filter(|key| !key.starts_with(DIGEST));
    if plain().any(|key| key.len() < SECRET_BYTES) {
        report.risk("auth.worker_bootstrap_keys", "a key has less than 32 bytes", NEW_SECRET);
    } else {
        report.pass("auth.worker_bootstrap_keys", "no key is too short");
    }

    inline(config, report, "auth.worker_signing_key", "auth.worker_signing_key_file");
    inline(config, report, "auth.worker_token", "auth.worker_token_file");
    rotation(worker, report);
    let signed = worker.signing_key.is_some() || worker.private_key.is_some();
    let verified = signed || !worker.signing_keys.is_empty() || !worker.public_keys.is_empty();
    if !worker.revoked_token_ids.is_empty() && !verified {
        let fix = "set auth.worker_signing_key_file, or remove the ids";
        report.warn("auth.worker_revoked_token_ids", "ids are revoked, but no signing key is set", fix);
    } else {
        report.pass("auth.worker_revoked_token_ids", format!("{} revoked", worker.revoked_token_ids.len()));
    }
    if worker.token.is_some() && signed {
        let message = "shared worker token still configured with signed worker tokens";
        report.warn("auth.worker_token", message, "remove auth.worker_token once all workers use signed tokens");
    } else {
        report.pass("auth.worker_token", "no shared token together with signed ones");
    }
    static_tokens(worker, signed, verified, report);
    if plain().next().is_some() {
        let fix = "set sha256: and the digest: printf %s KEY | sha256sum";
        report.warn("auth.worker_bootstrap_keys", "a key is stored in the configuration itself", fix);
    } else {
        report.pass("auth.worker_bootstrap_keys", "only digests of keys are stored");
    }
    anonymous(config, report);
}

fn anonymous(config: &Config, report: &mut Report) {
    let check = "auth.anonymous_workers";
    let worker = &config.auth.worker;
    let Anonymous::From(networks) = &worker.anonymous else {
        return match worker.anonymous {
            Anonymous::Everyone => report.risk(check, "workers need no token", "remove auth.anonymous_workers"),
            _ => report.pass(check, "workers need a token"),
        };
    };
    let proxies = &config.server.trusted_proxies;
    let overlaps = |network: &IpNet| proxies.iter().any(|proxy| proxy.contains(network) || network.contains(proxy));
    if !worker.network_policy {
        let fix = "let a network policy keep everybody but workers out of these networks, and set \
                   auth.accept_network_policy: true; or remove auth.anonymous_workers";
        report.risk(check, "anyone who can send requests from the listed networks can act as a worker", fix);
    } else if let Some(network) = networks.iter().find(|network| overlaps(network)) {
        let message = format!("{network} overlaps server.trusted_proxies, and proxies are not accepted as workers");
        report.warn(check, message, "list networks without proxies");
    } else {
        report.pass(check, format!("workers in {} network(s) need no token", networks.len()));
    }
}

fn signing_key(worker: &WorkerSettings, report: &mut Report) {
    let key = "auth.worker_signing_key";
    match worker.signing_key.as_ref().map(weakness) {
        Some(Some(weakness)) => report.risk(key, weakness, NEW_SECRET),
        Some(None) => report.pass(key, "is set"),
        None if !worker.signing_keys.is_empty() => {
            let fix = "set auth.worker_signing_key_file, or remove auth.worker_signing_keys";
            report.risk(key, "there are rotation keys but no active key", fix);
        }
        None => report.pass(key, "is not set"),
    }
}

/// A secret is better kept in a file than in the configuration or in the environment.
pub(super) fn inline(config: &Config, report: &mut Report, key: &str, file_key: &'static str) {
    if let Ok(Some(path)) = config.settings.path(file_key) {
        report.pass(file_key, format!("{key} comes from {}", path.display()));
    } else if config.settings.is_set(key) {
        report.warn(
            file_key,
            format!("{key} is stored in the configuration itself"),
            "move it to a file and name the file here",
        );
    } else {
        report.pass(file_key, format!("{key} is not set"));
    }
}

fn rotation(worker: &WorkerSettings, report: &mut Report) {
    let key = "auth.worker_signing_keys";
    let keys = &worker.signing_keys;
    let repeats_active =
        worker.signing_key.as_ref().is_some_and(|active| keys.iter().any(|key| key.matches(active.reveal())));
    let twice =
        keys.iter().enumerate().any(|(i, key)| keys.iter().skip(i + 1).any(|other| key.matches(other.reveal())));
    if repeats_active {
        let fix = "remove it there: the active key also verifies";
        report.warn(key, "rotation keys include the active worker signing key", fix);
    }
    if twice {
        report.warn(key, "rotation keys include duplicates", "keep each key once");
    }
    if !repeats_active && !twice {
        report.pass(key, format!("{} rotation key(s)", keys.len()));
    }
}

fn static_tokens(worker: &WorkerSettings, signed: bool, verified: bool, report: &mut Report) {
    let key = "auth.worker_tokens";
    let fix = "give each worker a signed token: set auth.worker_signing_key_file or auth.worker_private_key_file";
    if !worker.tokens.is_empty() && signed {
        report.warn(
            key,
            "static worker tokens are configured together with a signing key",
            "remove them once signed tokens are used",
        );
    } else if worker.tokens.is_empty() && worker.token.is_some() && !verified {
        report.warn(key, "workers have only a shared token", fix);
    } else if worker.tokens.is_empty() && worker.token.is_none() && worker.bootstrap_keys.is_empty() && !verified {
        report.warn(key, "there is no worker credential", fix);
    } else {
        report.pass(key, format!("{} static token(s)", worker.tokens.len()));
    }
}

fn oidc(config: &Config, report: &mut Report) {
    let Some(oidc) = &config.auth.oidc else {
        report.pass("auth.oidc_enabled", "disabled");
        UNUSED.into_iter().for_each(|check| report.pass(check, "is not used: OIDC is disabled"));
        return;
    };
    report.pass("auth.oidc_enabled", "enabled");
    match &oidc.issuer {
        Some(_) => report.pass("auth.oidc_issuer", "is set"),
        None => report.risk("auth.oidc_issuer", "is not set", "set it to the `iss` of the identity provider"),
    }
    keys_of_issuer(oidc, report);
    inline(config, report, "auth.oidc_public_key", "auth.oidc_public_key_file");
    match &oidc.audience {
        Some(_) => report.pass("auth.oidc_audience", "is set"),
        None => report.warn("auth.oidc_audience", "tokens for any audience are accepted", "set auth.oidc_audience"),
    }
    if oidc.admin_groups.is_empty() && oidc.operator_groups.is_empty() && oidc.viewer_groups.is_empty() {
        let fix = "set auth.oidc_admin_groups, auth.oidc_operator_groups or auth.oidc_viewer_groups";
        report.warn("auth.oidc_groups", "no group has a role, so no user has access", fix);
    } else {
        report.pass("auth.oidc_groups", "groups have roles");
    }
}

fn keys_of_issuer(oidc: &OidcSettings, report: &mut Report) {
    let key = "auth.oidc_jwks_url";
    match (&oidc.jwks_url, &oidc.public_key) {
        (Some(_), _) => report.pass(key, "is set"),
        (None, Some(_)) => report.pass(key, "a public key is used instead"),
        (None, None) => report.risk(key, "is not set", "set it, or auth.oidc_public_key_file"),
    }
}
