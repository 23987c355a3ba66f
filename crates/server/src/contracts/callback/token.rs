use tenure_auth::{TaskClaims, TokenError, Verified};
use tenure_core::command::callback::Proof;
use tenure_core::{AttemptId, TaskId};

use crate::access::task_token::TaskToken;
use crate::error::Credential;
use crate::identity::task_keys::{SharedTaskKeys, Unverified};

/// A task token: the callbacks of one attempt.
#[derive(Debug)]
pub struct CallbackToken {
    pub task: TaskId,
    pub proof: Proof,
    pub verified: Verified<TaskClaims>,
}

impl TaskToken for CallbackToken {
    const CREDENTIAL: Credential = Credential::TaskToken;

    async fn verify(keys: &SharedTaskKeys, sent: &str) -> Result<Self, Unverified> {
        let verified = keys.verify_task(sent).await?;
        let claims = &verified.claims;
        let task = TaskId::parse(&claims.task_id).map_err(|_| TokenError::InvalidClaim("taskId"))?;
        let attempt_id = AttemptId::parse(&claims.attempt_id).map_err(|_| TokenError::InvalidClaim("attemptId"))?;
        Ok(Self { task, proof: Proof { attempt: claims.attempt, attempt_id }, verified })
    }

    fn task(&self) -> TaskId {
        self.task
    }
}
