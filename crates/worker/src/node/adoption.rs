//! What a former process of this worker left behind.

use std::sync::Arc;

use tenure_sandbox::{Provider, Runtime, RuntimeState};

use super::error::NodeError;
use super::holdings::{Entry, Stage};
use super::runtime::Node;

/// What became of the sandboxes of the former process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adoption {
    /// Held as before.
    pub adopted: usize,
    /// Of an intent whose spawn had not been answered.
    pub completed: usize,
    /// Nobody asked for it, or it had been destroyed.
    pub destroyed: usize,
    /// Was held, and is not there any more.
    pub lost: usize,
}

impl Node {
    /// Takes over what the providers still have, and destroys what nobody asked for. To be called once, before any call
    /// is served.
    pub async fn adopt(&self) -> Result<Adoption, NodeError> {
        let mut adoption = Adoption::default();
        let mut found = Vec::new();
        for provider in self.providers.iter() {
            for runtime in provider.adopt().await? {
                self.settle(provider, &runtime, &mut adoption).await?;
                found.push(runtime.id);
            }
        }
        for (sandbox_id, entry) in self.holdings.present() {
            let is_loaded = |name: &str| self.providers.get(name).is_ok();
            match &entry.stage {
                Stage::Held { order, runtime_id, .. } if is_loaded(&order.provider) && !found.contains(runtime_id) => {
                    tracing::warn!(sandbox.id = sandbox_id, runtime.id = %runtime_id, "sandbox ended while its worker was away");
                    self.holdings.gone(&sandbox_id).await?;
                    adoption.lost += 1;
                }
                Stage::Held { order, .. } if !is_loaded(&order.provider) => {
                    tracing::warn!(
                        sandbox.id = sandbox_id,
                        provider.name = order.provider,
                        "sandbox of a provider that is not enabled"
                    );
                }
                // The spawn left nothing.
                Stage::Intended { .. } => self.holdings.fail(&sandbox_id),
                _ => {}
            }
        }
        for (sandbox_id, _) in self.holdings.present() {
            self.hand_over_deadlines(&sandbox_id).await;
        }
        Ok(adoption)
    }

    async fn settle(
        &self,
        provider: &Arc<dyn Provider>,
        runtime: &Runtime,
        adoption: &mut Adoption,
    ) -> Result<(), NodeError> {
        let entry = self.holdings.entry(&runtime.sandbox_id).unwrap_or_default();
        match self.claim(provider, runtime, &entry) {
            Claim::Held => adoption.adopted += 1,
            Claim::Intended => {
                self.holdings.hold(&runtime.sandbox_id, runtime);
                adoption.completed += 1;
            }
            Claim::Nobody => {
                tracing::warn!(sandbox.id = runtime.sandbox_id, runtime.id = %runtime.id, "destroying an unknown sandbox");
                provider.destroy(&runtime.id).await?;
                adoption.destroyed += 1;
                return Ok(());
            }
        }
        // It stands still since its own supervisor saw the lease end.
        if runtime.state == RuntimeState::Frozen {
            self.holdings.update(&runtime.sandbox_id, |entry| entry.frozen = true);
        }
        Ok(())
    }

    fn claim(&self, provider: &Arc<dyn Provider>, runtime: &Runtime, entry: &Entry) -> Claim {
        let is_its = |name: &str| self.providers.get(name).is_ok_and(|its| its.name() == provider.name());
        match &entry.stage {
            Stage::Held { order, runtime_id, .. } if *runtime_id == runtime.id && is_its(&order.provider) => {
                Claim::Held
            }
            // A stopped one would be of no use to whoever asked.
            Stage::Intended { order } if is_its(&order.provider) && runtime.state != RuntimeState::Stopped => {
                Claim::Intended
            }
            _ => Claim::Nobody,
        }
    }
}

enum Claim {
    Held,
    Intended,
    Nobody,
}
