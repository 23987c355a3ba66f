//! Which provider a command uses, and where it keeps its things.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tenure_config::{Config, Flags, NamespaceSettings as Configured};
use tenure_sandbox::{
    AgentProgram, Error, Limits, NamespaceProvider, NamespaceSettings, ProcessProvider, ProcessSettings, Provider,
};

#[cfg(feature = "docker")]
use tenure_sandbox::DockerProvider;

#[cfg(feature = "docker")]
use super::docker;
use super::private::Private;

#[derive(Debug, clap::Args)]
pub struct Place {
    /// Folder with images [default: ~/.tenure]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Configuration file, for `providers` [env: TENURE_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Place {
    pub fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(Flags { config: self.config.clone(), data: self.data.clone(), ..Flags::default() })?)
    }
}

/// Who asks for sandboxes. A person on this machine names the hosts that a sandbox may reach; what a control plane may
/// ask for is a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    ThisMachine,
    ControlPlane,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Namespaces, control groups and system call filters of Linux
    #[default]
    Namespace,
    /// No isolation at all: for development
    #[value(alias = "mock")]
    Process,
    /// Containers of a Docker-compatible daemon
    #[cfg(feature = "docker")]
    Docker,
}

impl Name {
    pub const ALL: &'static [Self] = &[
        Self::Namespace,
        Self::Process,
        #[cfg(feature = "docker")]
        Self::Docker,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Process => "process",
            #[cfg(feature = "docker")]
            Self::Docker => "docker",
        }
    }

    /// As the configuration names it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let name = Self::ALL.iter().copied().find(|name| name.text() == text);
        name.with_context(|| format!("this build does not have the provider {text}: build it with --features {text}"))
    }

    /// A provider for this process alone: what it made is removed with it.
    pub async fn open(self, config: &Config) -> anyhow::Result<Private> {
        Private::open(self, config).await
    }

    /// A provider with its state in `folder`.
    pub async fn open_in(self, folder: &Path, config: &Config, callers: Callers) -> anyhow::Result<Arc<dyn Provider>> {
        let folder = folder.to_owned();
        #[cfg(feature = "docker")]
        if self == Self::Docker {
            let opened = DockerProvider::open(docker::settings(folder, config)?).await;
            return Ok(Arc::new(opened.context("the provider docker cannot work here")?));
        }
        let (data, namespace) = (config.data.clone(), config.providers.namespace.clone());
        let open = move || -> tenure_sandbox::Result<Arc<dyn Provider>> {
            Ok(match self {
                Self::Namespace => Arc::new(NamespaceProvider::new(settings(folder, &data, &namespace, callers)?)?),
                Self::Process => Arc::new(ProcessProvider::open(ProcessSettings {
                    data_dir: folder,
                    max_sandboxes: None,
                    ignore_limits: false,
                })?),
                #[cfg(feature = "docker")]
                Self::Docker => return Err(Error::internal("the provider docker is opened without blocking")),
            })
        };
        let opened = tokio::task::spawn_blocking(open).await?;
        opened.with_context(|| format!("the provider {} cannot work here", self.text()))
    }
}

fn settings(
    folder: PathBuf,
    data: &Path,
    configured: &Configured,
    callers: Callers,
) -> tenure_sandbox::Result<NamespaceSettings> {
    let program = AgentProgram::this()
        .map_err(|error| Error::unavailable("this program does not know its own path").with_source(error))?;
    let mut settings = NamespaceSettings::new(data, program)?;
    settings.state_dir = folder;
    settings.image_aliases.clone_from(&configured.image_aliases);
    settings.allow_lists = callers == Callers::ThisMachine || configured.egress_allow_list;
    settings.seccomp = configured.seccomp;
    // 0 is without limit.
    let given = |number: u64| Some(number).filter(|number| *number > 0);
    settings.default_limits.pids = given(configured.pids_limit).and_then(|pids| u32::try_from(pids).ok());
    settings.default_limits.disk_bytes = given(configured.disk_mb << 20).or(settings.default_limits.disk_bytes);
    settings.max_limits = Limits {
        memory_bytes: given(configured.max_memory_mb << 20),
        cpus: given(configured.max_vcpus).map(|cpus| cpus as f64),
        ..Limits::default()
    };
    Ok(settings)
}

#[derive(Debug, clap::Args)]
pub struct Chosen {
    /// What makes the sandbox; `tenure sandbox check` compares them
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub provider: Name,
}
