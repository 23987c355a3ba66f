//! Who is let in.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tenure_auth::worker::{BootstrapKey, PrivateKey, PublicKey, SigningKey};
use tenure_auth::{Anonymous, Role, Secret, UserAuth, WorkerAuth, WorkerKeys};

use super::error::ConfigError;
use super::keys;
use super::net;
use super::settings::Settings;

/// Before the digest of a bootstrap key.
pub(crate) const DIGEST: &str = "sha256:";

#[derive(Debug, Clone)]
pub struct AuthSettings {
    pub enabled: bool,
    pub api_key: Option<Secret>,
    pub api_key_role: Role,
    pub admin_api_key: Option<Secret>,
    /// Admin endpoints take `api_key` while there is no admin key.
    pub admin_fallback: bool,
    /// 0: for ever.
    pub admin_audit_retention: Duration,
    /// There when OIDC is enabled.
    pub oidc: Option<OidcSettings>,
    pub worker: WorkerSettings,
}

#[derive(Debug, Clone)]
pub struct OidcSettings {
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub jwks_url: Option<String>,
    /// PEM, in place of `jwks_url`.
    pub public_key: Option<String>,
    pub groups_claim: String,
    pub tenant_claim: String,
    /// Of users whose token names none.
    pub default_tenant: Option<String>,
    pub admin_groups: Vec<String>,
    pub operator_groups: Vec<String>,
    pub viewer_groups: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct WorkerSettings {
    pub token: Option<Secret>,
    pub token_previous: Option<Secret>,
    /// By worker id.
    pub tokens: BTreeMap<String, Secret>,
    pub signing_key: Option<Secret>,
    /// Verify only.
    pub signing_keys: Vec<Secret>,
    pub revoked_token_ids: BTreeSet<String>,
    /// Ed25519, PEM.
    pub private_key: Option<Secret>,
    /// Ed25519: base64, base64url or PEM each.
    pub public_keys: Vec<String>,
    /// By worker id: the key, or `sha256:` and its digest in lower-case hexadecimal.
    pub bootstrap_keys: BTreeMap<String, Secret>,
    /// Accept signed tokens without `aud` or `iat`.
    pub legacy: bool,
    pub anonymous: Anonymous,
    /// Only workers can send requests from the networks of `anonymous`.
    pub network_policy: bool,
}

/// The same for what the server takes.
#[derive(Debug, Clone)]
pub struct Auth {
    pub user: UserAuth,
    pub worker: WorkerAuth,
}

impl TryFrom<&AuthSettings> for Auth {
    type Error = ConfigError;

    fn try_from(settings: &AuthSettings) -> Result<Self, ConfigError> {
        let user = UserAuth {
            enabled: settings.enabled,
            api_key: settings.api_key.clone(),
            api_key_role: settings.api_key_role,
            admin_api_key: settings.admin_api_key.clone(),
            admin_fallback: settings.admin_fallback,
        };
        let own = &settings.worker;
        let worker = WorkerAuth {
            shared: own.token.clone(),
            shared_previous: own.token_previous.clone(),
            per_worker: own.tokens.clone().into_iter().collect(),
            anonymous: own.anonymous.clone(),
            keys: own.keys()?,
            revoked: own.revoked_token_ids.iter().cloned().collect(),
            bootstrap: own.bootstrap()?,
        };
        Ok(Self { user, worker })
    }
}

impl WorkerSettings {
    /// What signs and verifies worker tokens.
    fn keys(&self) -> Result<WorkerKeys, ConfigError> {
        let wrong = |key: &str, error: &dyn std::fmt::Display| ConfigError::Rule(format!("{key}: {error}"));
        let signing = |secret: &Secret| SigningKey::new(secret.reveal());
        let private = self.private_key.as_ref().map(|key| PrivateKey::parse(key.reveal())).transpose();
        let public = self.public_keys.iter().map(|key| PublicKey::parse(key)).collect::<Result<_, _>>();
        Ok(WorkerKeys {
            active: self.signing_key.as_ref().and_then(signing),
            rotation: self.signing_keys.iter().filter_map(signing).collect(),
            private: private.map_err(|error| wrong("auth.worker_private_key_file", &error))?,
            public: public.map_err(|error| wrong("auth.worker_public_keys", &error))?,
            legacy: self.legacy,
        })
    }

    fn bootstrap(&self) -> Result<HashMap<String, BootstrapKey>, ConfigError> {
        let parse = |(id, key): (&String, &Secret)| {
            let key = BootstrapKey::parse(key.reveal());
            let key = key.map_err(|error| ConfigError::Rule(format!("auth.worker_bootstrap_keys.{id}: {error}")))?;
            Ok((id.clone(), key))
        };
        self.bootstrap_keys.iter().map(parse).collect()
    }
}

pub(crate) fn auth(settings: &Settings) -> Result<AuthSettings, ConfigError> {
    let mut auth = AuthSettings {
        enabled: settings.flag("auth.enabled")?,
        api_key: settings.secret("auth.api_key")?,
        api_key_role: settings.choice("auth.api_key_role")?.and_then(Role::parse).unwrap_or(Role::Api),
        admin_api_key: settings.secret("auth.admin_api_key")?,
        admin_fallback: settings.flag("auth.admin_fallback_enabled")?,
        admin_audit_retention: settings.duration("auth.admin_audit_retention")?,
        oidc: oidc(settings)?,
        worker: worker(settings)?,
    };
    let has_key = auth.api_key.is_some() || auth.admin_api_key.is_some() || auth.oidc.is_some();
    if !settings.is_set("auth.enabled") {
        let half = idle_oidc(settings);
        if let Some(key) = half.filter(|_| !has_key) {
            // Nobody sets up an identity provider for an API that is open to everyone.
            let problem = "is set, but auth.oidc_enabled is not: set it to true, or to false to leave OIDC off";
            return Err(settings.wrong(key, problem));
        }
        auth.enabled = has_key;
    } else if auth.enabled && !has_key {
        let problem = "is true, but neither auth.api_key nor auth.admin_api_key is set, and OIDC is off: set one of \
                       them, or its _file, or auth.oidc_enabled";
        return Err(settings.wrong("auth.enabled", problem));
    }
    separate(settings, &auth)?;
    Auth::try_from(&auth)?;
    Ok(auth)
}

/// A setting of an identity provider, while nothing says whether it is used.
fn idle_oidc(settings: &Settings) -> Option<&'static str> {
    let keys = ["auth.oidc_issuer", "auth.oidc_jwks_url", "auth.oidc_public_key", "auth.oidc_public_key_file"];
    let idle = !settings.is_set("auth.oidc_enabled");
    keys.into_iter().find(|key| idle && settings.plain(key).is_some())
}

fn oidc(settings: &Settings) -> Result<Option<OidcSettings>, ConfigError> {
    let claim = |key: &str| {
        let empty = || settings.wrong(key, "is empty: name a claim, or remove the key");
        settings.plain(key).ok_or_else(empty)
    };
    let jwks_url = settings.plain("auth.oidc_jwks_url");
    if jwks_url.as_deref().is_some_and(|url| !net::is_url(url)) {
        return Err(settings.wrong("auth.oidc_jwks_url", "must be an address such as https://id.example.com/keys"));
    }
    let key_in_file = settings.content("auth.oidc_public_key_file").map(|key| key.reveal().to_owned());
    let oidc = OidcSettings {
        issuer: settings.plain("auth.oidc_issuer"),
        audience: settings.plain("auth.oidc_audience"),
        jwks_url,
        public_key: settings.plain("auth.oidc_public_key").or(key_in_file),
        groups_claim: claim("auth.oidc_groups_claim")?,
        tenant_claim: claim("auth.oidc_tenant_claim")?,
        default_tenant: settings.plain("auth.oidc_default_tenant"),
        admin_groups: settings.texts("auth.oidc_admin_groups"),
        operator_groups: settings.texts("auth.oidc_operator_groups"),
        viewer_groups: settings.texts("auth.oidc_viewer_groups"),
    };
    Ok(settings.flag("auth.oidc_enabled")?.then_some(oidc))
}

fn worker(settings: &Settings) -> Result<WorkerSettings, ConfigError> {
    let in_file = |key: &str| settings.content(key).map(Secret::reveal).unwrap_or_default();
    let mut public_keys = settings.texts("auth.worker_public_keys");
    public_keys.extend(keys_of(in_file("auth.worker_public_keys_file")));
    let mut revoked_token_ids: BTreeSet<_> = settings.texts("auth.worker_revoked_token_ids").into_iter().collect();
    revoked_token_ids.extend(lines_of(in_file("auth.worker_revoked_token_ids_file")));
    Ok(WorkerSettings {
        token: settings.secret("auth.worker_token")?,
        token_previous: settings.secret("auth.worker_token_previous")?,
        tokens: settings.secret_map("auth.worker_tokens")?,
        signing_key: settings.secret("auth.worker_signing_key")?,
        signing_keys: settings.secret_list("auth.worker_signing_keys")?,
        revoked_token_ids,
        private_key: settings.content("auth.worker_private_key_file").cloned(),
        public_keys,
        bootstrap_keys: bootstrap_keys(settings)?,
        legacy: settings.flag("auth.legacy_worker_tokens")?,
        anonymous: anonymous(settings)?,
        network_policy: settings.flag("auth.accept_network_policy")?,
    })
}

fn anonymous(settings: &Settings) -> Result<Anonymous, ConfigError> {
    let key = "auth.anonymous_workers";
    let wanted = "true, false, or a list of networks such as [10.1.0.0/16]";
    let networks = settings.list_of(key, wanted, net::network)?;
    if let Some(all) = networks.iter().find(|network| network.prefix_len() == 0) {
        return Err(settings.wrong(key, format!("has {all}, which is every address: list the networks of the workers")));
    }
    Ok(match settings.flag_of(key, wanted)? {
        true => Anonymous::Everyone,
        false if networks.is_empty() => Anonymous::Nobody,
        false => Anonymous::From(networks),
    })
}

fn bootstrap_keys(settings: &Settings) -> Result<BTreeMap<String, Secret>, ConfigError> {
    let key = "auth.worker_bootstrap_keys";
    let mut found = settings.secret_map(key)?;
    for (id, secret) in &mut found {
        let Some(digest) = secret.reveal().strip_prefix(DIGEST) else { continue };
        let fits = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digest = fits.then(|| Secret::new(&format!("{DIGEST}{}", digest.to_ascii_lowercase()))).flatten();
        let problem = || format!("has a value for `{id}` that begins with sha256: and lacks the 64 hexadecimal digits");
        *secret = digest.ok_or_else(|| settings.wrong(key, problem()))?;
    }
    Ok(found)
}

/// Lines that say something; `#` begins a comment.
fn lines_of(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(ToOwned::to_owned)
}

/// Public keys: a line each, or from BEGIN to END.
fn keys_of(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut in_pem = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match found.last_mut() {
            Some(pem) if in_pem => {
                pem.push('\n');
                pem.push_str(line);
            }
            _ => found.push(line.to_owned()),
        }
        in_pem = (in_pem || line.starts_with("-----BEGIN")) && !line.starts_with("-----END");
    }
    found
}

/// A worker must not be able to act as a user, so its secrets must differ from user keys.
fn separate(settings: &Settings, auth: &AuthSettings) -> Result<(), ConfigError> {
    let worker = &auth.worker;
    let secret = settings.secret("callback.shared_secret")?;
    let single = [
        ("auth.worker_token", &worker.token),
        ("auth.worker_token_previous", &worker.token_previous),
        ("auth.worker_signing_key", &worker.signing_key),
        ("callback.shared_secret", &secret),
    ];
    let single = single.into_iter().filter_map(|(key, secret)| Some((key, secret.as_ref()?)));
    let others = worker.tokens.values().map(|token| ("auth.worker_tokens", token));
    let others = others.chain(worker.signing_keys.iter().map(|key| ("auth.worker_signing_keys", key)));
    let others = others.chain(worker.bootstrap_keys.values().map(|key| ("auth.worker_bootstrap_keys", key)));
    let held: Vec<_> = single.chain(others).collect();
    let user_keys = [("auth.api_key", &auth.api_key), ("auth.admin_api_key", &auth.admin_api_key)];
    for (user, key) in user_keys.into_iter().filter_map(|(user, key)| Some((user, key.as_ref()?))) {
        let digest = secret_digest(key);
        let same = held.iter().find(|(_, held)| held.matches(key.reveal()) || held.matches(&digest));
        if let Some((worker, _)) = same {
            return Err(ConfigError::Rule(format!(
                "{} equals {}: a worker must not be able to act as a user: give workers their own secret",
                place(settings, worker),
                place(settings, user)
            )));
        }
    }
    Ok(())
}

/// What the configuration has in place of a bootstrap key.
pub fn secret_digest(secret: &Secret) -> String {
    format!("{DIGEST}{}", hex(&Sha256::digest(secret.reveal())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key and where it was set, by itself or through its file.
fn place(settings: &Settings, key: &str) -> String {
    let file = keys::find(key).and_then(keys::file_of).map(|file| file.path);
    let set = std::iter::once(key).chain(file).find_map(|key| Some((key, settings.origin(key)?)));
    set.map_or_else(|| key.to_owned(), |(key, origin)| format!("{key} ({origin})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_keys_stand_in_lines_or_between_begin_and_end() {
        let pem = "-----BEGIN PUBLIC KEY-----\nAAAA\nBBBB\n-----END PUBLIC KEY-----";
        let text = format!("# ours\nkey-1\n\n{pem}\n{pem}\n  key-2  \n");
        assert_eq!(keys_of(&text), ["key-1", pem, pem, "key-2"]);
        assert!(keys_of("").is_empty());
    }

    #[test]
    fn a_list_of_lines_may_have_comments() {
        let lines: Vec<_> = lines_of("# revoked\nid-1\n\n id-2 # stolen\n").collect();
        assert_eq!(lines, ["id-1", "id-2"]);
    }
}
