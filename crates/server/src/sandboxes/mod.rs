//! The part of the server that sandboxes need: the manager, calls to workers, limits, and how ports are reached.

pub mod audit;
pub mod bounds;
pub mod calls;
pub mod machine;
pub mod watch;
pub mod workers;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tenure_contract::duration;
use tenure_core::time::DurationMs;
use tenure_engine::Engine;
use tenure_engine::sandboxes::{SandboxSettings, Sandboxes};
use tenure_rpc::Client;

use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::limits;
use crate::live::Live;
use bounds::Bounds;

/// How a server offers sandboxes.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Calls workers. Its credentials can be replaced while the server runs.
    pub rpc: Client,
    /// What is set later holds from the next request on.
    pub offer: Live<SandboxOffer>,
    /// `worker.local`: without a healthy provider the server is not ready.
    pub is_local: bool,
    /// Streams of one tenant at a time.
    pub streams_of_tenant: usize,
    /// For bodies and answers that are whole in memory, all together.
    pub memory_bytes: usize,
}

/// How sandboxes are managed and shown.
#[derive(Debug, Clone, Default)]
pub struct SandboxOffer {
    pub settings: SandboxSettings,
    pub preview: Preview,
    /// The audit keeps a digest of commands in place of the commands.
    pub hashed_commands: bool,
    /// Whether metrics have their former names too.
    pub legacy_metrics: bool,
}

impl SandboxConfig {
    pub fn new(rpc: Client) -> Self {
        Self {
            rpc,
            offer: Live::default(),
            is_local: false,
            streams_of_tenant: limits::SANDBOX_STREAMS_OF_TENANT,
            memory_bytes: limits::SANDBOX_MEMORY_BYTES,
        }
    }
}

/// How ports of sandboxes are reached.
#[derive(Debug, Clone)]
pub struct Preview {
    /// In lower case, perhaps with a port.
    pub domain: String,
    pub ports: Vec<RangeInclusive<u16>>,
    /// Whether names of ports are open to everybody who knows them.
    pub is_open: bool,
}

impl Default for Preview {
    fn default() -> Self {
        Self { domain: "localhost".to_owned(), ports: vec![1024..=u16::MAX], is_open: false }
    }
}

impl Preview {
    pub fn allows(&self, port: u16) -> bool {
        self.ports.iter().any(|range| range.contains(&port))
    }
}

/// What handlers of sandboxes have.
#[derive(Debug)]
pub struct Part {
    pub manager: Sandboxes,
    pub rpc: Client,
    pub bounds: Bounds,
    pub is_local: bool,
    offer: Live<SandboxOffer>,
}

impl Part {
    pub fn start(engine: &Engine, config: &SandboxConfig) -> Self {
        let mut offered = config.offer.subscribe();
        let settings = offered.borrow_and_update().settings.clone();
        let manager = engine.sandboxes(settings, workers::shared(config.rpc.clone()));
        let (follower, stopping) = (manager.clone(), engine.clone());
        tokio::spawn(async move {
            let follow = async {
                while offered.changed().await.is_ok() {
                    let settings = offered.borrow_and_update().settings.clone();
                    follower.replace_settings(settings);
                }
            };
            tokio::select! {
                () = follow => {}
                () = stopping.stopped() => {}
            }
        });
        let bounds = Bounds::new(config.memory_bytes, config.streams_of_tenant, limits::SANDBOX_STREAMS);
        Self { manager, rpc: config.rpc.clone(), bounds, is_local: config.is_local, offer: config.offer.clone() }
    }

    /// How sandboxes are managed and shown at the moment.
    pub fn offer(&self) -> Arc<SandboxOffer> {
        self.offer.get()
    }

    /// What the audit keeps of a command.
    pub fn audited(&self, command: &str, args: &[String]) -> String {
        let whole = args.iter().fold(command.to_owned(), |whole, arg| format!("{whole} {arg}"));
        if self.offer().hashed_commands { format!("sha256:{}", hex(&sha256(whole.as_bytes()))) } else { whole }
    }

    /// The domain below which ports of a sandbox are: that of its worker, or of this server.
    pub async fn preview_domain(&self, worker: Option<&str>) -> String {
        let Some(worker) = worker else { return self.offer().preview.domain.clone() };
        let own = self.manager.sandbox_worker(worker).await.ok().and_then(|worker| worker.capacity.preview_domain);
        own.unwrap_or_else(|| self.offer().preview.domain.clone())
    }

    /// The same for many sandboxes.
    pub async fn preview_domains(&self) -> Domains {
        let workers = self.manager.sandbox_workers().await.unwrap_or_default();
        let own = workers.into_iter().filter_map(|worker| Some((worker.id, worker.capacity.preview_domain?)));
        Domains { own: own.collect(), other: self.offer().preview.domain.clone() }
    }
}

/// Domains of workers.
#[derive(Debug)]
pub struct Domains {
    own: HashMap<Arc<str>, String>,
    other: String,
}

impl Domains {
    pub fn of(&self, worker: Option<&str>) -> String {
        worker.and_then(|worker| self.own.get(worker)).unwrap_or(&self.other).clone()
    }
}

/// `sb-` and eight lower-case hexadecimal digits.
pub fn is_sandbox_id(text: &str) -> bool {
    is_id(text, "sb-")
}

pub fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|digits| {
        digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

/// A duration of a request.
pub fn duration_ms(text: &str, field: &str) -> Result<DurationMs, Fault> {
    let parsed = duration::parse(text).and_then(|duration| i64::try_from(duration.as_millis()).ok());
    parsed.ok_or_else(|| {
        SandboxFault::fault(SandboxFaultKind::Invalid, format!("{field} must be a duration such as 30m"))
    })
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_durations_and_ports_are_checked() {
        assert!(is_sandbox_id("sb-0a1b2c3d"));
        for text in
            ["", "sb-", "sb-0a1b2c3", "sb-0a1b2c3de", "sb-0A1B2C3D", "sb-0a1b2c3g", "snap-0a1b2c3d", "sb-0a1b/../"]
        {
            assert!(!is_sandbox_id(text), "{text}");
        }
        assert!(is_id("snap-00000000", "snap-"));
        assert_eq!(duration_ms("1h30m", "ttl").ok(), Some(5_400_000));
        assert!(
            duration_ms("soon", "ttl").is_err()
                && duration_ms("", "ttl").is_err()
                && duration_ms("-1s", "ttl").is_err()
        );
        let preview = Preview { ports: vec![80..=80, 8000..=8001], ..Preview::default() };
        let open: Vec<u16> = (1..=u16::MAX).filter(|port| preview.allows(*port)).collect();
        assert_eq!(open, [80, 8000, 8001]);
    }
}
