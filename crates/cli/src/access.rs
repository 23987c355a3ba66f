//! What the configuration means for the server: who is let in, certificates, keys.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tenure_auth::{Secret, StaticKey, TaskKeys, TaskPublicKey};
use tenure_config::{Config, ConfigError, RateKey};
use tenure_contract::admin::TenantLimits;
use tenure_outbound::{ClientCert, Outbound, Policy, Trust};
use tenure_server::{Access, KeyBy, KeySource, OidcAccess, PushTargets, RateLimit};
use tenure_tls::LiveServer;

use crate::token;

/// Who is let in. What is made here can be set while the server runs.
pub fn access(config: &Config) -> Result<Access, ConfigError> {
    let auth = config.auth()?;
    let limit = &config.rate_limit;
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let unless_zero = |limit: u64| (limit > 0).then_some(limit);
    Ok(Access {
        workers: auth.worker,
        users: auth.user,
        oidc: oidc(config)?,
        rate_limit: limit.enabled.then(|| RateLimit {
            requests_per_minute: count(limit.requests_per_minute),
            burst: count(limit.burst),
            key_by: match limit.key_by {
                RateKey::Owner => KeyBy::Owner,
                RateKey::ApiKey => KeyBy::ApiKey,
                RateKey::Ip => KeyBy::Ip,
            },
            bucket_ttl: limit.bucket_ttl,
            cleanup_interval: limit.cleanup_interval,
        }),
        failed_auth_per_minute: count(limit.failed_auth_per_minute),
        cors_allowed_origins: config.server.cors_allowed_origins.clone(),
        allowed_hosts: config.server.allowed_hosts.clone(),
        trusted_proxies: config.server.trusted_proxies.clone(),
        tenant_limits: TenantLimits {
            max_ready: unless_zero(config.tenants.max_ready),
            max_running: unless_zero(config.tenants.max_running),
            submits_per_second: unless_zero(config.tenants.submits_per_second).map(|rate| rate as f64),
            max_payload_bytes: unless_zero(config.tenants.max_payload_bytes),
        },
    })
}

fn oidc(config: &Config) -> Result<Option<OidcAccess>, ConfigError> {
    let Some(oidc) = &config.auth.oidc else { return Ok(None) };
    let missing = |key: &str| ConfigError::Rule(format!("auth.oidc_enabled is true, but {key} is not set"));
    let keys = match (&oidc.public_key, &oidc.jwks_url) {
        (Some(pem), _) => {
            let key = StaticKey::from_pem(pem);
            KeySource::Static(key.map_err(|error| ConfigError::Rule(format!("auth.oidc_public_key: {error}")))?)
        }
        (None, Some(url)) => KeySource::Url(url.clone()),
        (None, None) => return Err(missing("auth.oidc_jwks_url")),
    };
    Ok(Some(OidcAccess {
        issuer: oidc.issuer.clone().ok_or_else(|| missing("auth.oidc_issuer"))?,
        audience: oidc.audience.clone(),
        groups_claim: oidc.groups_claim.clone(),
        tenant_claim: oidc.tenant_claim.clone(),
        default_tenant: oidc.default_tenant.clone(),
        admin_groups: oidc.admin_groups.clone(),
        operator_groups: oidc.operator_groups.clone(),
        viewer_groups: oidc.viewer_groups.clone(),
        keys,
    }))
}

/// The certificate of the listener, checked.
pub fn tls(config: &Config) -> anyhow::Result<Option<Arc<LiveServer>>> {
    let Some(tls) = config.server.tls.clone() else { return Ok(None) };
    Ok(Some(Arc::new(tls.load().map_err(|error| ConfigError::Rule(format!("server.tls: {error}")))?)))
}

/// Checks the block that worker RPC takes its certificates from.
pub fn check_rpc_tls(config: &Config) -> Result<(), ConfigError> {
    config.worker.rpc_tls.check(false).map_err(|error| ConfigError::Rule(format!("worker.rpc_tls: {error}")))
}

/// The client for addresses that others chose. Only a server that nobody else can reach may call its own machine.
pub fn outbound_policy(config: &Config, dev_mode: bool) -> Policy {
    Policy {
        allow_http: config.outbound.allow_http || dev_mode,
        allow_loopback: dev_mode,
        allow_cidrs: config.outbound.allow_cidrs.clone(),
        settings: "outbound",
    }
}

pub fn outbound(config: &Config, dev_mode: bool) -> anyhow::Result<Outbound> {
    Outbound::new(outbound_policy(config, dev_mode), &Trust::System)
        .context("the client for outbound calls could not be created")
}

/// What tasks are pushed with. `own_url` is where the server listens: in dev mode workers on this machine find it there.
pub fn push_targets(config: &Config, dev_mode: bool, own_url: Option<&str>) -> anyhow::Result<PushTargets> {
    let push = &config.push;
    let policy = Policy {
        allow_http: push.allow_http || dev_mode,
        allow_loopback: dev_mode,
        allow_cidrs: push.allow_cidrs.clone(),
        settings: "push",
    };
    let client = Outbound::new(policy, &Trust::System).context("the client for pushes could not be created")?;
    let read = |path: &Path, setting: &str, name: &str| {
        std::fs::read(path).map_err(|error| {
            let problem = format!("{setting} names {} for `{name}`, which cannot be read: {error}", path.display());
            ConfigError::Rule(problem)
        })
    };
    let mut mtls = BTreeMap::new();
    for (name, files) in &push.mtls {
        let cert = match &files.own {
            None => None,
            Some((chain, key)) => Some(ClientCert {
                chain: read(chain, "push.mtls.cert_files", name)?,
                key: read(key, "push.mtls.key_files", name)?,
            }),
        };
        let trust = match &files.ca {
            None => Trust::System,
            Some(path) => Trust::Only(read(path, "push.mtls.ca_files", name)?),
        };
        let made = client.with_tls(&trust, cert.as_ref());
        let made = made.map_err(|error| ConfigError::Rule(format!("push.mtls, `{name}`: {error}")))?;
        mtls.insert(name.clone(), made);
    }
    let base_url = push.callback_base_url.clone().or_else(|| own_url.filter(|_| dev_mode).map(ToOwned::to_owned));
    Ok(PushTargets { base_url, secrets: push.secrets.clone(), client, mtls })
}

/// The keys of task tokens: from the files that the configuration names, or from the data folder, made at the first
/// start.
pub fn task_keys(config: &Config) -> anyhow::Result<TaskKeys> {
    let tokens = &config.tokens;
    let current = match &tokens.key_file {
        Some(path) => read_key(path, "dispatch.capability.key_file")?,
        None => {
            token::make_data_folder(&config.data)?;
            token::task_key(&config.data)?
        }
    };
    let wrong = |key: &str, error: &dyn std::fmt::Display| ConfigError::Rule(format!("{key}: {error}"));
    let keys =
        TaskKeys::new(&tokens.issuer, &current).map_err(|error| wrong("dispatch.capability.key_file", &error))?;
    let listed = [
        ("dispatch.capability.previous_key_files", &tokens.previous_key_files),
        ("dispatch.capability.verify_key_files", &tokens.verify_key_files),
    ];
    let listed = listed.into_iter().flat_map(|(setting, paths)| paths.iter().map(move |path| (setting, path)));
    let previous = listed.map(|(setting, path)| {
        let pem = read_key(path, setting)?;
        TaskPublicKey::from_pem(&pem).map_err(|error| wrong(setting, &format!("{}: {error}", path.display())).into())
    });
    let keys = keys.with_previous(previous.collect::<anyhow::Result<Vec<_>>>()?);
    match &tokens.callback_secret {
        None => Ok(keys),
        Some(secret) => {
            keys.with_callback_secret(secret).map_err(|error| wrong("callback.shared_secret", &error).into())
        }
    }
}

fn read_key(path: &Path, setting: &str) -> anyhow::Result<Secret> {
    let wrong = |problem: String| ConfigError::Rule(format!("{setting} names {}, which {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    Ok(Secret::new(&text).ok_or_else(|| wrong("is empty".to_owned()))?)
}
