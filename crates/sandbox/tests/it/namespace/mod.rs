//! The provider `namespace` on this machine.

mod isolation;
mod lifecycle;
mod limits;
mod network;
mod rootless;
mod snapshot;
mod survival;

use std::path::Path;

use tenure_sandbox::{AgentProgram, NamespaceProvider, NamespaceSettings, Provider, Runtime, Spec};

/// A provider with its own data directory.
pub struct Machine {
    pub provider: NamespaceProvider,
    pub dir: tempfile::TempDir,
}

impl Machine {
    /// None if this machine cannot run sandboxes; then the test is reported as skipped.
    pub fn new(test: &str) -> Option<Self> {
        Self::with(test, |_| {})
    }

    /// As `new`, with other settings.
    pub fn with(test: &str, change: impl FnOnce(&mut NamespaceSettings)) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let mut settings = settings(dir.path());
        change(&mut settings);
        match NamespaceProvider::new(settings) {
            Ok(provider) => Some(Self { provider, dir }),
            Err(error) => {
                tenure_testkit::skip(test, &error.to_string());
                None
            }
        }
    }

    /// As `new`, on a machine that enforces limits by groups.
    pub fn with_groups(test: &str) -> Option<Self> {
        let machine = Self::new(test)?;
        let capabilities = machine.provider.capabilities();
        if capabilities.memory.enforcement != tenure_sandbox::Enforcement::Enforced {
            tenure_testkit::skip(test, &capabilities.memory.reason);
            return None;
        }
        Some(machine)
    }

    /// Ends the provider, so that another one can use its directory.
    pub fn data_only(self) -> tempfile::TempDir {
        let mut this = self;
        // The directory that is left in its place is removed at once.
        std::mem::replace(&mut this.dir, tempfile::tempdir().expect("a directory"))
    }

    pub async fn spawn(&self) -> Runtime {
        self.spawn_with(|_| {}).await
    }

    pub async fn spawn_with(&self, change: impl FnOnce(&mut Spec)) -> Runtime {
        let mut spec = Spec::new("sb-test", "host");
        change(&mut spec);
        self.provider.spawn(spec).await.expect("a sandbox")
    }
}

/// A test that fails leaves no sandbox behind.
impl Drop for Machine {
    fn drop(&mut self) {
        let provider = &self.provider;
        let clean = || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                for sandbox in provider.list().await.expect("a list") {
                    let _ = provider.destroy(&sandbox.id).await;
                }
            });
        };
        // On a thread of its own, because this one may be in the runtime of the test.
        std::thread::scope(|scope| scope.spawn(clean).join()).expect("cleaned");
    }
}

pub fn settings(dir: &Path) -> NamespaceSettings {
    let program = AgentProgram { path: env!("CARGO_BIN_EXE_tenure-sandbox-agent").into() };
    NamespaceSettings::new(dir, program).expect("settings")
}
