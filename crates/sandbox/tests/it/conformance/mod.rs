//! One suite, run by every provider.

mod commands;
mod files;
mod lifecycle;
mod limits;
mod processes;
mod streams;

use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use tenure_sandbox::{NamespaceProvider, ProcessProvider, ProcessSettings, Provider, Result, Runtime, RuntimeId, Spec};

/// A provider for one test, with a folder of its own.
pub struct Bench {
    provider: Option<Arc<dyn Provider>>,
    kind: Kind,
    folder: TempDir,
}

/// How a provider is opened, also by another process after this one ended.
pub enum Kind {
    Local(fn(PathBuf, Option<usize>) -> Result<Arc<dyn Provider>>),
    #[cfg(feature = "docker")]
    Docker(Arc<crate::docker::daemon::Daemon>),
}

impl Kind {
    async fn open(&self, data: PathBuf, max_sandboxes: Option<usize>) -> Result<Arc<dyn Provider>> {
        match self {
            Self::Local(open) => open(data, max_sandboxes),
            #[cfg(feature = "docker")]
            Self::Docker(daemon) => {
                let mut settings = crate::docker::settings(daemon, &data);
                settings.max_sandboxes = max_sandboxes.unwrap_or(100);
                Ok(Arc::new(tenure_sandbox::DockerProvider::open(settings).await?))
            }
        }
    }

    fn image(&self) -> &'static str {
        match self {
            Self::Local(_) => "host",
            #[cfg(feature = "docker")]
            Self::Docker(_) => crate::docker::daemon::IMAGE,
        }
    }
}

impl Bench {
    async fn new(kind: Kind) -> Result<Self> {
        let folder = TempDir::new().expect("a folder");
        let provider = kind.open(folder.path().join("data"), None).await?;
        Ok(Self { provider: Some(provider), kind, folder })
    }

    fn spec(&self, sandbox_id: &str) -> Spec {
        Spec::new(sandbox_id, self.kind.image())
    }

    fn provider(&self) -> &dyn Provider {
        self.provider.as_deref().expect("a provider")
    }

    async fn spawn(&self) -> RuntimeId {
        self.spawn_as("sb-test").await.id
    }

    async fn spawn_as(&self, sandbox_id: &str) -> Runtime {
        self.provider().spawn(self.spec(sandbox_id)).await.expect("a sandbox")
    }

    async fn set_maximum(&mut self, max_sandboxes: usize) {
        self.open(Some(max_sandboxes)).await;
    }

    /// Forgets the provider, as a process that was killed does, and opens it again.
    async fn restart(&mut self) {
        self.open(None).await;
    }

    async fn open(&mut self, max_sandboxes: Option<usize>) {
        // The folder stays locked until the former provider is gone.
        self.provider = None;
        let opened = self.kind.open(self.folder.path().join("data"), max_sandboxes).await;
        self.provider = Some(opened.expect("the provider again"));
    }

    /// Leaves nothing on this machine.
    async fn close(&self) {
        for runtime in self.provider().list().await.expect("a list") {
            self.provider().destroy(&runtime.id).await.expect("a destruction");
        }
    }
}

pub fn process(data: PathBuf, max_sandboxes: Option<usize>) -> Result<Arc<dyn Provider>> {
    let settings = ProcessSettings { data_dir: data, max_sandboxes, ignore_limits: false };
    Ok(Arc::new(ProcessProvider::open(settings)?))
}

pub fn namespace(data: PathBuf, max_sandboxes: Option<usize>) -> Result<Arc<dyn Provider>> {
    std::fs::create_dir_all(&data).expect("a folder");
    let mut settings = crate::namespace::settings(&data);
    settings.max_sandboxes = max_sandboxes.unwrap_or(100);
    Ok(Arc::new(NamespaceProvider::new(settings)?))
}

/// Makes a test of each case for each provider. Where a provider cannot work the test is reported as skipped.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        crate::conformance::cases_of!(process: $($case),*);
        crate::conformance::cases_of!(namespace: $($case),*);
    };
}

/// Runs all cases of a file with the provider `docker`, in one test: its daemon takes seconds to start.
macro_rules! cases_of_docker {
    ($($case:ident),* $(,)?) => {
        #[cfg(feature = "docker")]
        mod docker {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn every_case() {
                use crate::conformance::{Bench, Kind};
                let daemon = match crate::docker::daemon::Daemon::start() {
                    Ok(daemon) => std::sync::Arc::new(daemon),
                    Err(reason) => return tenure_testkit::skip(concat!(module_path!(), "::every_case"), &reason),
                };
                $(
                    let mut bench = Bench::new(Kind::Docker(std::sync::Arc::clone(&daemon))).await.expect("a provider");
                    super::$case(&mut bench).await;
                    bench.close().await;
                )*
            }
        }
    };
}

macro_rules! cases_of {
    ($provider:ident: $($case:ident),*) => {
        mod $provider {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    use crate::conformance::{Bench, Kind};
                    let name = concat!(module_path!(), "::", stringify!($case));
                    match Bench::new(Kind::Local(crate::conformance::$provider)).await {
                        Ok(mut bench) => {
                            super::$case(&mut bench).await;
                            bench.close().await;
                        }
                        Err(error) => tenure_testkit::skip(name, &error.to_string()),
                    }
                }
            )*
        }
    };
}

pub(crate) use {cases, cases_of, cases_of_docker};
