use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_sandbox::{Egress, Limits, Mount, Provider, Spec, parse_size};

/// The sandbox of an operator's commands.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxSettings {
    pub image: String,
    pub limits: Limits,
    pub egress: Egress,
    /// After that a command and all that it started is killed.
    pub timeout: Option<Duration>,
    /// Folders of this machine that commands see.
    pub mounts: Vec<Mount>,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            image: "host".to_owned(),
            limits: Limits::default(),
            egress: Egress::None,
            timeout: None,
            mounts: Vec::new(),
        }
    }
}

/// What makes sandboxes for tasks, and how many wait for one.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    pub provider: Arc<dyn Provider>,
    /// Sandboxes that are kept ready for each kind that operators ask for; at most this many.
    pub warm: usize,
}

/// A text that does not describe a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SandboxError(String);

impl SandboxSettings {
    /// Applies `key=value` pairs, separated by spaces: `image=etl memory=256m cpus=0.5 pids=64 disk=1g timeout=30s
    /// allow=example.com,*.example.org mount=/srv/data:/data:ro`. What is not named stays as it is.
    pub fn with(mut self, text: &str) -> Result<Self, SandboxError> {
        for pair in text.split_whitespace() {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| SandboxError(format!("`{pair}` is not KEY=VALUE, such as memory=256m")))?;
            let wrong = |expected: &str| SandboxError(format!("{key}={value}: {expected}"));
            match key {
                "image" if !value.is_empty() => value.clone_into(&mut self.image),
                "image" => return Err(wrong("name an image")),
                "memory" => self.limits.memory_bytes = Some(parse_size(value).ok_or_else(|| wrong(SIZE))?),
                "disk" => self.limits.disk_bytes = Some(parse_size(value).ok_or_else(|| wrong(SIZE))?),
                "cpus" => {
                    let cpus = value.parse().ok().filter(|cpus: &f64| cpus.is_finite() && *cpus > 0.0);
                    self.limits.cpus = Some(cpus.ok_or_else(|| wrong("a number above 0, such as 0.5"))?);
                }
                "pids" => {
                    let pids = value.parse().ok().filter(|pids| *pids > 0);
                    self.limits.pids = Some(pids.ok_or_else(|| wrong("a whole number above 0"))?);
                }
                "timeout" => {
                    let timeout = tenure_contract::duration::parse(value).filter(|timeout| !timeout.is_zero());
                    self.timeout = Some(timeout.ok_or_else(|| wrong("write it as 500ms, 30s, 5m or 1h30m"))?);
                }
                "allow" => {
                    let hosts: Vec<_> =
                        value.split(',').filter(|host| !host.is_empty()).map(ToOwned::to_owned).collect();
                    self.egress = if hosts.is_empty() { Egress::None } else { Egress::Allow(hosts) };
                }
                "mount" => {
                    self.mounts.push(mount(value).ok_or_else(|| wrong("write it as /DIR:/PATH or /DIR:/PATH:ro"))?)
                }
                _ => {
                    let known = "image, memory, cpus, pids, disk, timeout, allow, mount";
                    return Err(SandboxError(format!("`{key}` is not a setting of a sandbox: use {known}")));
                }
            }
        }
        Ok(self)
    }

    /// Whether the same sandbox serves both. The timeout is that of a command, not of its sandbox.
    pub(super) fn is_same_kind(&self, other: &Self) -> bool {
        *self == Self { timeout: self.timeout, ..other.clone() }
    }

    pub(super) fn spec(&self, sandbox_id: String) -> Spec {
        Spec {
            limits: self.limits,
            egress: self.egress.clone(),
            mounts: self.mounts.clone(),
            die_with_parent: true,
            metadata: BTreeMap::from([("tenure.use".to_owned(), "task".to_owned())]),
            ..Spec::new(sandbox_id, &*self.image)
        }
    }
}

const SIZE: &str = "write it as 512k, 256m or 1g";

fn mount(text: &str) -> Option<Mount> {
    let (text, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (source, target) = text.split_once(':')?;
    let absolute = source.starts_with('/') && target.starts_with('/');
    absolute.then(|| Mount { source: PathBuf::from(source), target: target.to_owned(), read_only })
}
