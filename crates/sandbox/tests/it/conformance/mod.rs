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
    /// How another process would open the same provider after this one ended.
    reopen: fn(PathBuf, Option<usize>) -> Result<Arc<dyn Provider>>,
    folder: TempDir,
}

impl Bench {
    fn new(
        reopen: fn(PathBuf, Option<usize>) -> Result<Arc<dyn Provider>>,
        max_sandboxes: Option<usize>,
    ) -> Result<Self> {
        let folder = TempDir::new().expect("a folder");
        let provider = reopen(folder.path().join("data"), max_sandboxes)?;
        Ok(Self { provider: Some(provider), reopen, folder })
    }

    fn provider(&self) -> &dyn Provider {
        self.provider.as_deref().expect("a provider")
    }

    async fn spawn(&self) -> RuntimeId {
        self.spawn_as("sb-test").await.id
    }

    async fn spawn_as(&self, sandbox_id: &str) -> Runtime {
        self.provider().spawn(Spec::new(sandbox_id, "host")).await.expect("a sandbox")
    }

    fn set_maximum(&mut self, max_sandboxes: usize) {
        self.provider = None;
        let data = self.folder.path().join("data");
        self.provider = Some((self.reopen)(data, Some(max_sandboxes)).expect("a provider"));
    }

    /// Leaves nothing on this machine.
    async fn close(&self) {
        for runtime in self.provider().list().await.expect("a list") {
            self.provider().destroy(&runtime.id).await.expect("a destruction");
        }
    }

    /// Forgets the provider, as a process that was killed does, and opens it again.
    fn restart(&mut self) {
        let data = self.folder.path().join("data");
        // The folder stays locked until the former provider is gone.
        self.provider = None;
        self.provider = Some((self.reopen)(data, None).expect("the provider again"));
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

macro_rules! cases_of {
    ($provider:ident: $($case:ident),*) => {
        mod $provider {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let name = concat!(module_path!(), "::", stringify!($case));
                    match crate::conformance::Bench::new(crate::conformance::$provider, None) {
                        Ok(mut bench) => {
                            super::$case(&mut bench).await;
                            bench.close().await;
                        }
                        Err(error) => crate::kit::skip(name, &error.to_string()),
                    }
                }
            )*
        }
    };
}

pub(crate) use {cases, cases_of};
