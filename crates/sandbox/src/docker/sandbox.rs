use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bollard::Docker;
use bollard::query_parameters::{InspectContainerOptionsBuilder, StatsOptionsBuilder};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};

use super::daemon::failed;
use super::pulls::DaemonImage;
use crate::agent::Client;
use crate::error::{Error, Result};
use crate::execution::Execution;
use crate::provider::{Runtime, RuntimeId, RuntimeState, Stats};
use crate::spec::{Command, Spec, WORKSPACE};

/// The largest record. Daemons accept more.
const MAX_RECORD_BYTES: usize = 256 * 1024;

/// What is kept of a sandbox, in a label of its container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    image: String,
    image_id: String,
    /// Of every command.
    env: BTreeMap<String, String>,
    metadata: BTreeMap<String, String>,
    created_ms: u64,
}

impl Record {
    pub(super) fn new(spec: &Spec, image: &DaemonImage) -> Self {
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME".to_owned(), WORKSPACE.to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ]);
        env.extend(image.env.iter().cloned());
        env.extend(spec.env.clone());
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            image: spec.image.clone(),
            image_id: image.id.clone(),
            env,
            metadata: spec.metadata.clone(),
            created_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn to_label(&self) -> Result<String> {
        let label = serde_json::to_string(self).map_err(|error| Error::internal("no label").with_source(error))?;
        if label.len() > MAX_RECORD_BYTES {
            return Err(Error::invalid("the variables and the metadata of the sandbox are larger than 256 KiB"));
        }
        Ok(label)
    }

    pub(super) fn from_label(label: &str) -> Result<Self> {
        serde_json::from_str(label).map_err(|error| Error::internal("its label cannot be read").with_source(error))
    }
}

/// A container that this process holds.
#[derive(Debug)]
pub(super) struct Sandbox {
    id: RuntimeId,
    sandbox_id: String,
    record: Record,
    pub(super) client: Client,
    /// The agent ends with this connection.
    _parent: Option<OwnedFd>,
    /// When the CPU time was read last, and what it was.
    cpu: Mutex<(Instant, u64)>,
    /// Whether it is destroyed; locked while it is being destroyed.
    pub(super) destroying: tokio::sync::Mutex<bool>,
}

impl Sandbox {
    pub(super) fn new(
        id: RuntimeId,
        sandbox_id: String,
        record: Record,
        socket: &Path,
        parent: Option<OwnedFd>,
    ) -> Result<Self> {
        let client = Client::new(socket)?;
        let (cpu, destroying) = (Mutex::new((Instant::now(), 0)), tokio::sync::Mutex::new(false));
        Ok(Self { id, sandbox_id, record, client, _parent: parent, cpu, destroying })
    }

    pub(super) fn runtime(&self, state: RuntimeState) -> Runtime {
        Runtime {
            id: self.id.clone(),
            sandbox_id: self.sandbox_id.clone(),
            image: self.record.image.clone(),
            image_resolved: self.record.image_id.clone(),
            state,
            created: SystemTime::UNIX_EPOCH + Duration::from_millis(self.record.created_ms.min(1 << 46)),
            metadata: self.record.metadata.clone(),
        }
    }

    pub(super) async fn state(&self) -> RuntimeState {
        match self.client.ping().await {
            Ok(false) => RuntimeState::Running,
            Ok(true) => RuntimeState::Frozen,
            Err(_) => RuntimeState::Stopped,
        }
    }

    pub(super) async fn exec(&self, command: &Command) -> Result<Execution> {
        let mut env = self.record.env.clone();
        if command.bare_env {
            env.retain(|name, _| name == "PATH");
        }
        env.extend(command.env.clone());
        self.client.exec(command, env).await
    }

    pub(super) async fn stats(&self, docker: &Docker) -> Result<Stats> {
        let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let stats = std::pin::pin!(docker.stats(&self.id.0, Some(options))).try_next().await;
        let stats = stats.map_err(|error| failed("read the statistics of a container", error))?;
        let stats = stats.ok_or_else(|| Error::unavailable("docker: the daemon sent no statistics"))?;
        let options = InspectContainerOptionsBuilder::default().size(true).build();
        let container = docker.inspect_container(&self.id.0, Some(options)).await;
        let container = container.map_err(|error| failed("read the size of a container", error))?;

        let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage).unwrap_or(0);
        let (now, mut last) = (Instant::now(), self.cpu.lock().unwrap_or_else(PoisonError::into_inner));
        let elapsed = now.duration_since(last.0).as_nanos().max(1) as f64;
        let cpu_percent = cpu.saturating_sub(last.1) as f64 / elapsed * 100.0;
        *last = (now, cpu);
        drop(last);
        let memory = stats.memory_stats.unwrap_or_default();
        Ok(Stats {
            cpu_percent,
            memory_bytes: memory.usage.unwrap_or(0),
            memory_limit_bytes: memory.limit.unwrap_or(0),
            pids: stats.pids_stats.and_then(|pids| pids.current).unwrap_or(0),
            disk_bytes: container.size_rw.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
        })
    }
}
