use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::ConfigError;
use super::settings::Settings;

/// Where sandboxes come from.
#[derive(Debug, Clone)]
pub struct ProviderSettings {
    /// `namespace`, `docker` or `process`.
    pub default: String,
    pub namespace: NamespaceSettings,
    pub process: ProcessSettings,
    pub docker: DockerSettings,
}

#[derive(Debug, Clone)]
pub struct NamespaceSettings {
    pub enabled: bool,
    /// Absent: in the worker's data folder.
    pub data_dir: Option<PathBuf>,
    pub image_aliases: BTreeMap<String, String>,
    pub pids_limit: u64,
    pub max_memory_mb: u64,
    pub max_vcpus: u64,
    pub disk_mb: u64,
    /// Whether a sandbox may name hosts that it can reach.
    pub egress_allow_list: bool,
    pub seccomp: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct ProcessSettings {
    pub enabled: bool,
}

#[derive(Debug, Clone)]
pub struct DockerSettings {
    pub enabled: bool,
    pub socket: Option<String>,
    pub runtime: String,
    pub default_image: String,
    pub network_mode: String,
    pub seccomp_profile: String,
    pub read_only_rootfs: bool,
    pub memory_bytes: u64,
    pub cpus: f64,
    pub max_memory_mb: u64,
    pub max_vcpus: u64,
    pub pids_limit: u64,
    pub user: Option<String>,
    pub dropped_caps: Vec<String>,
    pub added_caps: Vec<String>,
    pub tmpfs: BTreeMap<String, String>,
}

pub(crate) fn providers(settings: &Settings) -> Result<ProviderSettings, ConfigError> {
    let default = match settings.plain("providers.default").as_deref() {
        Some("mock") => "process".to_owned(),
        Some(name) => name.to_owned(),
        None => String::new(),
    };
    let process = ProcessSettings { enabled: settings.flag("providers.process.enabled")? };
    Ok(ProviderSettings { default, namespace: namespace(settings)?, process, docker: docker(settings)? })
}

fn namespace(settings: &Settings) -> Result<NamespaceSettings, ConfigError> {
    let mut image_aliases = texts_of(settings, "providers.namespace.image_aliases");
    if settings.get("providers.namespace.image_aliases").is_none() {
        image_aliases.insert("alpine:latest".to_owned(), "host".to_owned());
    }
    Ok(NamespaceSettings {
        enabled: settings.flag("providers.namespace.enabled")?,
        data_dir: settings.folder("providers.namespace.data_dir"),
        image_aliases,
        pids_limit: settings.integer("providers.namespace.pids_limit")?,
        max_memory_mb: settings.integer("providers.namespace.max_memory_mb")?,
        max_vcpus: settings.integer("providers.namespace.max_vcpus")?,
        disk_mb: settings.integer("providers.namespace.disk_mb")?,
        egress_allow_list: settings.choice("providers.namespace.egress")? == Some("allow_list"),
        seccomp: settings.choice("providers.namespace.seccomp")? != Some("off"),
    })
}

fn docker(settings: &Settings) -> Result<DockerSettings, ConfigError> {
    let text = |key: &str| settings.plain(key).unwrap_or_default();
    let cpus = text("providers.docker.cpus");
    let cpus = cpus
        .parse()
        .ok()
        .filter(|cpus: &f64| cpus.is_finite() && *cpus >= 0.0)
        .ok_or_else(|| settings.unfit("providers.docker.cpus", "a number of processors such as 1 or 0.5", &cpus))?;
    let mut dropped_caps = settings.texts("providers.docker.dropped_caps");
    if settings.get("providers.docker.dropped_caps").is_none() {
        dropped_caps.push("ALL".to_owned());
    }
    Ok(DockerSettings {
        enabled: settings.flag("providers.docker.enabled")?,
        socket: settings.plain("providers.docker.socket"),
        runtime: text("providers.docker.runtime"),
        default_image: text("providers.docker.default_image"),
        network_mode: text("providers.docker.network_mode"),
        seccomp_profile: text("providers.docker.seccomp_profile"),
        read_only_rootfs: settings.flag("providers.docker.read_only_rootfs")?,
        memory_bytes: memory(settings)?,
        cpus,
        max_memory_mb: settings.integer("providers.docker.max_memory_mb")?,
        max_vcpus: settings.integer("providers.docker.max_vcpus")?,
        pids_limit: settings.integer("providers.docker.pids_limit")?,
        user: settings.plain("providers.docker.user"),
        dropped_caps,
        added_caps: settings.texts("providers.docker.added_caps"),
        tmpfs: texts_of(settings, "providers.docker.tmpfs"),
    })
}

/// Docker's own way of writing it, `512m`, is accepted too.
fn memory(settings: &Settings) -> Result<u64, ConfigError> {
    let key = "providers.docker.memory";
    let text = settings.plain(key).unwrap_or_default();
    let lower = text.to_ascii_lowercase();
    let units = [("k", 10), ("m", 20), ("g", 30)];
    let short = units.iter().find_map(|(unit, shift)| {
        lower.strip_suffix(unit).and_then(|number| number.parse::<u64>().ok()?.checked_mul(1 << shift))
    });
    short.map_or_else(|| settings.size(key), Ok)
}

fn texts_of(settings: &Settings, key: &str) -> BTreeMap<String, String> {
    settings.map(key).map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}
