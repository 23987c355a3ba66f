//! Removes what is left of versions that nobody goes back to.

use std::collections::HashSet;
use std::sync::Arc;

use tenure_core::dag::JobId;
use tenure_store::dags::{DATA_PAGE, DeploymentWrites};

use super::deploy::document;
use super::{Dags, View};
use crate::error::EngineError;

/// Steps of one look; what is left waits for the next one.
const STEPS: usize = 20;

impl Dags {
    /// Jobs that no version names leave the document when their last task has ended. Their rows and queues, and the data
    /// that only they have written, go once the document does not name them.
    pub(super) async fn clean(&self, org: &Arc<str>, view: &Arc<View>) -> Result<(), EngineError> {
        let unnamed = view.deployment.unnamed_jobs();
        let mut busy: HashSet<JobId> = HashSet::new();
        for page in unnamed.chunks(DATA_PAGE) {
            busy.extend(self.shared().store.busy_jobs(page).await?);
        }
        let gone: Vec<JobId> = unnamed.into_iter().filter(|job| !busy.contains(job)).collect();
        if !gone.is_empty() {
            let mut deployment = view.deployment.clone();
            deployment.remove_jobs(&gone);
            let writes = DeploymentWrites { document: document(&deployment)?, ..DeploymentWrites::default() };
            // Their rows go at the next look: by then no control plane makes tasks for them.
            self.write(org, view.seq, &writes).await?;
            return Ok(());
        }
        let jobs: Vec<JobId> = view.deployment.jobs.keys().copied().collect();
        let versions = view.deployment.generations();
        for _ in 0..STEPS {
            match self.shared().store.retire(org, view.seq, &jobs, &versions).await? {
                Ok(left) if left > 0 => {}
                _ => break,
            }
        }
        Ok(())
    }
}
