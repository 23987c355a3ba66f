//! Templates, and how a request, its template and the defaults become a spec. A field that a request names wins over the
//! template, and the template wins over the defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Secret, Spec};
use crate::time::DurationMs;

/// Needed of a worker whose sandboxes may reach some hosts and no others.
pub const EGRESS_ALLOW_LIST: &str = "egress_allow_list";
/// Needed of a worker that begins a sandbox with a snapshot.
pub const SNAPSHOTS: &str = "snapshots";

const MAX_NAME_BYTES: usize = 128;
const MAX_SETUP: usize = 64;
const MAX_HOSTS: usize = 256;
const MAX_POOL: u64 = 1_000;
/// Of a spec and of a template, as JSON.
pub const MAX_SPEC_BYTES: usize = 64 << 10;

/// What a request gets that does not say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    pub ttl_ms: DurationMs,
    pub image: String,
    /// Empty: any.
    pub provider: String,
    pub memory_mb: u64,
    pub vcpus: u32,
    pub disk_mb: u64,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            ttl_ms: 30 * 60_000,
            image: "alpine:latest".to_owned(),
            provider: String::new(),
            memory_mb: 1_024,
            vcpus: 1,
            disk_mb: 1_024,
        }
    }
}

/// What a template says, without its name and version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Template {
    pub image: String,
    pub description: String,
    pub setup: Vec<String>,
    pub allowed_hosts: Vec<String>,
    pub memory_mb: u64,
    pub vcpus: u32,
    pub ttl_ms: DurationMs,
    pub env: BTreeMap<String, String>,
    pub secrets: Vec<Secret>,
    /// How many warm sandboxes are kept.
    pub pool_size: u64,
    /// A preference: a request may name another. Empty: none.
    pub provider: String,
    pub metadata: BTreeMap<String, String>,
}

impl Default for Template {
    fn default() -> Self {
        Self {
            image: String::new(),
            description: String::new(),
            setup: Vec::new(),
            allowed_hosts: Vec::new(),
            memory_mb: 512,
            vcpus: 1,
            ttl_ms: 300_000,
            env: BTreeMap::new(),
            secrets: Vec::new(),
            pool_size: 0,
            provider: String::new(),
            metadata: BTreeMap::new(),
        }
    }
}

/// What a user asks for. `None` and empty are not said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    pub image: Option<String>,
    pub provider: Option<String>,
    pub memory_mb: Option<u64>,
    pub vcpus: Option<u32>,
    pub disk_mb: Option<u64>,
    pub pids_limit: Option<u32>,
    pub ttl_ms: Option<DurationMs>,
    pub template: Option<String>,
    pub snapshot: Option<String>,
    pub env: BTreeMap<String, String>,
    pub allowed_hosts: Vec<String>,
    pub read_only_root: bool,
    pub metadata: BTreeMap<String, String>,
    pub labels: Vec<String>,
}

impl Request {
    /// Whether a warm sandbox of its template is what it asks for: it changes nothing about the runtime.
    pub fn fits_warm(&self) -> bool {
        let Self { ttl_ms: _, template, metadata: _, .. } = self;
        let plain = Self {
            ttl_ms: self.ttl_ms,
            template: template.clone(),
            metadata: self.metadata.clone(),
            ..Self::default()
        };
        *self == plain && template.is_some()
    }
}

/// A field that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    pub field: &'static str,
    pub message: String,
}

fn field(field: &'static str, message: impl Into<String>) -> FieldError {
    FieldError { field, message: message.into() }
}

/// Letters, digits, `-`, `_` and `.`.
pub fn check_name(name: &str) -> Result<(), FieldError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('.') || !name.bytes().all(plain) {
        let message = "must be 1 to 128 letters, digits, '-', '_' and '.', and must not begin with '.'";
        return Err(field("name", message));
    }
    Ok(())
}

impl Template {
    pub fn check(&self) -> Result<(), FieldError> {
        if self.setup.len() > MAX_SETUP {
            return Err(field("setup", format!("at most {MAX_SETUP} commands")));
        }
        if self.ttl_ms <= 0 {
            return Err(field("ttl", "must be greater than 0"));
        }
        if self.pool_size > MAX_POOL {
            return Err(field("pool_size", format!("at most {MAX_POOL}")));
        }
        check_hosts(&self.allowed_hosts)?;
        check_env(&self.env)?;
        self.secrets.iter().try_for_each(check_secret)?;
        check_size(self)
    }
}

/// A spec and how long the sandbox lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub spec: Spec,
    pub ttl_ms: DurationMs,
}

/// What a request comes to. `template` is that which the request names.
pub fn resolve(request: &Request, template: Option<&Template>, defaults: &Defaults) -> Result<Resolved, FieldError> {
    let text = |own: &Option<String>, of_template: Option<&String>, default: &str| {
        let own = own.as_deref().filter(|text| !text.is_empty());
        own.or(of_template.map(String::as_str).filter(|text| !text.is_empty())).unwrap_or(default).to_owned()
    };
    let number = |own: Option<u64>, of_template: Option<u64>, default: u64| {
        own.filter(|own| *own > 0).or(of_template.filter(|own| *own > 0)).unwrap_or(default)
    };
    let vcpus = number(
        request.vcpus.map(u64::from),
        template.map(|template| u64::from(template.vcpus)),
        u64::from(defaults.vcpus),
    );
    let mut env = template.map(|template| template.env.clone()).unwrap_or_default();
    env.extend(request.env.clone());
    let mut metadata = template.map(|template| template.metadata.clone()).unwrap_or_default();
    metadata.extend(request.metadata.clone());
    let allowed_hosts = match (request.allowed_hosts.is_empty(), template) {
        (false, _) => request.allowed_hosts.clone(),
        (true, Some(template)) => template.allowed_hosts.clone(),
        (true, None) => Vec::new(),
    };
    let snapshot = request.snapshot.clone().filter(|snapshot| !snapshot.is_empty());
    let mut requires = Vec::new();
    if !allowed_hosts.is_empty() {
        requires.push(EGRESS_ALLOW_LIST.to_owned());
    }
    if snapshot.is_some() {
        requires.push(SNAPSHOTS.to_owned());
    }
    let spec = Spec {
        provider: text(&request.provider, template.map(|template| &template.provider), &defaults.provider),
        image: text(&request.image, template.map(|template| &template.image), &defaults.image),
        memory_mb: number(request.memory_mb, template.map(|template| template.memory_mb), defaults.memory_mb),
        vcpus: u32::try_from(vcpus).unwrap_or(u32::MAX),
        disk_mb: number(request.disk_mb, None, defaults.disk_mb),
        pids_limit: request.pids_limit.unwrap_or_default(),
        env,
        allowed_hosts,
        read_only_root: request.read_only_root,
        snapshot,
        template: template.and(request.template.clone()),
        setup: template.map(|template| template.setup.clone()).unwrap_or_default(),
        secrets: template.map(|template| template.secrets.clone()).unwrap_or_default(),
        metadata,
        requires,
        labels: request.labels.clone(),
    };
    check_spec(&spec)?;
    let ttl_ms = request.ttl_ms.or(template.map(|template| template.ttl_ms)).unwrap_or(defaults.ttl_ms);
    if ttl_ms <= 0 {
        return Err(field("ttl", "must be greater than 0"));
    }
    Ok(Resolved { spec, ttl_ms })
}

fn check_spec(spec: &Spec) -> Result<(), FieldError> {
    check_hosts(&spec.allowed_hosts)?;
    check_env(&spec.env)?;
    if spec.image.bytes().any(|byte| byte.is_ascii_control()) || spec.image.len() > 512 {
        return Err(field("image", "must be at most 512 bytes without control characters"));
    }
    check_size(spec)
}

fn check_size(value: &impl Serialize) -> Result<(), FieldError> {
    let bytes = serde_json::to_vec(value).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_SPEC_BYTES {
        return Err(field("env", "env, metadata, setup and the rest are larger than 64 KiB together"));
    }
    Ok(())
}

fn check_hosts(hosts: &[String]) -> Result<(), FieldError> {
    if hosts.len() > MAX_HOSTS {
        return Err(field("allowed_hosts", format!("at most {MAX_HOSTS} hosts")));
    }
    if hosts.iter().any(|host| host.is_empty() || host.len() > 255) {
        return Err(field("allowed_hosts", "a host must have 1 to 255 bytes"));
    }
    Ok(())
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), FieldError> {
    let bad = |name: &String, value: &String| !is_variable(name) || value.contains('\0');
    if env.iter().any(|(name, value)| bad(name, value)) {
        return Err(field("env", "a name must not be empty or contain '=' or NUL, and a value must not contain NUL"));
    }
    Ok(())
}

fn check_secret(secret: &Secret) -> Result<(), FieldError> {
    if secret.name.is_empty() {
        return Err(field("secrets", "the name of a secret is empty"));
    }
    if is_file(secret) || is_variable(&secret.inject_at) {
        return Ok(());
    }
    Err(field("secrets", "inject_at must be the name of a variable or an absolute path"))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0', '/'])
}

/// Whether a secret goes to a file; else it is a variable.
pub fn is_file(secret: &Secret) -> bool {
    secret.inject_at.starts_with('/') && !secret.inject_at.contains('\0')
}

/// Whether a runtime must be set up before its sandbox counts as running.
pub fn needs_setup(spec: &Spec) -> bool {
    !spec.setup.is_empty() || spec.secrets.iter().any(is_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn template() -> Template {
        Template {
            image: "python:3".to_owned(),
            setup: vec!["pip install x".to_owned()],
            memory_mb: 256,
            vcpus: 2,
            ttl_ms: 60_000,
            env: pairs(&[("A", "template"), ("B", "template")]),
            secrets: vec![Secret { name: "KEY".to_owned(), inject_at: "API_KEY".to_owned() }],
            provider: "docker".to_owned(),
            metadata: pairs(&[("team", "a")]),
            ..Template::default()
        }
    }

    #[test]
    fn explicit_fields_win_over_the_template_and_it_over_the_defaults() {
        let request = Request {
            image: Some("node:22".to_owned()),
            vcpus: Some(4),
            template: Some("t".to_owned()),
            env: pairs(&[("A", "request")]),
            ..Request::default()
        };
        let resolved = resolve(&request, Some(&template()), &Defaults::default()).unwrap();
        let spec = &resolved.spec;
        assert_eq!((spec.image.as_str(), spec.vcpus, spec.memory_mb), ("node:22", 4, 256));
        assert_eq!((spec.provider.as_str(), spec.disk_mb, resolved.ttl_ms), ("docker", 1_024, 60_000));
        assert_eq!(spec.env, pairs(&[("A", "request"), ("B", "template")]));
        assert_eq!(spec.metadata, pairs(&[("team", "a")]));
        assert_eq!((spec.setup.len(), spec.secrets.len(), spec.template.as_deref()), (1, 1, Some("t")));
    }

    #[test]
    fn without_a_template_the_defaults_fill_in() {
        let resolved = resolve(&Request::default(), None, &Defaults::default()).unwrap();
        let spec = &resolved.spec;
        assert_eq!((spec.image.as_str(), spec.vcpus, spec.memory_mb), ("alpine:latest", 1, 1_024));
        assert_eq!(resolved.ttl_ms, 1_800_000);
        assert!(spec.requires.is_empty() && !needs_setup(spec));
    }

    #[test]
    fn an_unknown_template_is_not_recorded() {
        let request = Request { template: Some("gone".to_owned()), ..Request::default() };
        assert_eq!(resolve(&request, None, &Defaults::default()).unwrap().spec.template, None);
    }

    #[test]
    fn hosts_and_snapshots_need_workers_that_have_them() {
        let request = Request {
            allowed_hosts: vec!["example.com".to_owned()],
            snapshot: Some("snap-1".to_owned()),
            ..Request::default()
        };
        let spec = resolve(&request, None, &Defaults::default()).unwrap().spec;
        assert_eq!(spec.requires, [EGRESS_ALLOW_LIST, SNAPSHOTS]);
    }

    #[test]
    fn a_time_to_live_must_be_positive() {
        for ttl_ms in [0, -1] {
            let request = Request { ttl_ms: Some(ttl_ms), ..Request::default() };
            assert_eq!(resolve(&request, None, &Defaults::default()).unwrap_err().field, "ttl");
        }
    }

    #[test]
    fn a_secret_is_a_variable_or_a_file() {
        let of = |inject_at: &str| Secret { name: "S".to_owned(), inject_at: inject_at.to_owned() };
        let check = |inject_at| Template { secrets: vec![of(inject_at)], ..Template::default() }.check();
        assert!(check("API_KEY").is_ok() && check("/run/key").is_ok());
        assert!(check("").is_err() && check("a/b").is_err() && check("A=B").is_err());
        assert!(is_file(&of("/run/key")) && !is_file(&of("KEY")));
        assert!(needs_setup(&Spec { secrets: vec![of("/run/key")], ..Spec::default() }));
        assert!(!needs_setup(&Spec { secrets: vec![of("KEY")], ..Spec::default() }));
    }

    #[test]
    fn only_a_request_that_changes_nothing_about_the_runtime_fits_a_warm_sandbox() {
        let plain = Request { template: Some("t".to_owned()), ..Request::default() };
        assert!(plain.fits_warm());
        let more = Request { ttl_ms: Some(1), metadata: pairs(&[("a", "b")]), ..plain.clone() };
        assert!(more.fits_warm());
        assert!(!Request { template: None, ..plain.clone() }.fits_warm());
        assert!(!Request { image: Some("x".to_owned()), ..plain.clone() }.fits_warm());
        assert!(!Request { env: pairs(&[("A", "1")]), ..plain.clone() }.fits_warm());
        assert!(!Request { memory_mb: Some(1), ..plain }.fits_warm());
    }

    #[test]
    fn what_is_too_large_to_store_is_refused() {
        let env = pairs(&[("A", &"x".repeat(MAX_SPEC_BYTES))]);
        let request = Request { env: env.clone(), ..Request::default() };
        assert_eq!(resolve(&request, None, &Defaults::default()).unwrap_err().field, "env");
        assert!(Template { env, ..Template::default() }.check().is_err());
    }

    #[test]
    fn names_of_templates_are_plain() {
        for name in ["python", "a.b-c_1"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".a", "a/b", "a b", "ä"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
