//! Capability tokens: what the code of one attempt shows.

use axum::http::HeaderMap;
use tenure_auth::{Access, CAPABILITY_MAX_TTL_S, CapabilityClaims, IssueError, TaskKeys, TokenError, Verified};
use tenure_contract::dispatch::Task;
use tenure_core::TaskId;
use tenure_core::dag::org_id;

use crate::access::guard::{bearer, unix_now};
use crate::access::task_token::TaskToken;
use crate::dispatch::Part;
use crate::dispatch::render::JobTask;
use crate::error::{Credential, Fault, Setting};
use crate::identity::task_keys::{SharedTaskKeys, Unverified};
use crate::state::App;

const HEADER: &str = "x-trace-task-capability";
/// A token outlives its attempt by this, for a late report.
const BEYOND_TIMEOUT_S: u32 = 300;
/// A source that runs for ever gets another token when less is left.
const RENEW_BELOW_S: i64 = 600;

/// A capability token of one attempt.
#[derive(Debug)]
pub struct Capability {
    pub task: TaskId,
    pub verified: Verified<CapabilityClaims>,
}

impl TaskToken for Capability {
    const CREDENTIAL: Credential = Credential::Capability;

    fn sent(headers: &HeaderMap) -> Result<&str, Fault> {
        let own = headers.get(HEADER).map(|value| value.to_str().unwrap_or_default());
        match (own, bearer(headers)) {
            (Some(own), Some(other)) if own != other => Err(Fault::InvalidCredential(Self::CREDENTIAL)),
            (Some(sent), _) | (None, Some(sent)) => Ok(sent),
            (None, None) => Err(Fault::MissingCredential(Self::CREDENTIAL)),
        }
    }

    async fn verify(keys: &SharedTaskKeys, sent: &str) -> Result<Self, Unverified> {
        let verified = keys.verify_capability(sent).await?;
        let task = TaskId::parse(&verified.claims.task_id).map_err(|_| TokenError::InvalidClaim("task_id"))?;
        Ok(Self { task, verified })
    }

    fn task(&self) -> TaskId {
        self.task
    }
}

impl Capability {
    /// Whether its holder, if it runs for ever, needs another one.
    pub fn needs_renewal(&self) -> bool {
        let token = &self.verified;
        let is_longest = token.expires_at_s - token.issued_at_s >= i64::from(CAPABILITY_MAX_TTL_S);
        is_longest && token.expires_at_s - unix_now() < RENEW_BELOW_S
    }
}

/// A token for an attempt of a task. Grants that do not fit are left out: they follow from the task that the token names.
pub fn issue(app: &App, task: &JobTask, wire: &Task) -> Result<String, Fault> {
    issue_with(
        &app.dispatch,
        &app.identity.task_keys().ok_or(Fault::NotConfigured(Setting::TaskKey))?.get(),
        task,
        wire,
    )
}

pub fn issue_with(part: &Part, keys: &TaskKeys, task: &JobTask, wire: &Task) -> Result<String, Fault> {
    let grants = part.grants(task, wire, wire.attempt);
    let claims = |access| CapabilityClaims {
        org_id: org_id(&task.org).to_string(),
        task_id: task.id.to_string(),
        attempt: wire.attempt,
        fence: wire.fence,
        access,
    };
    let ttl = task.timeout_seconds().map_or(CAPABILITY_MAX_TTL_S, |timeout| timeout.saturating_add(BEYOND_TIMEOUT_S));
    let ttl = ttl.min(CAPABILITY_MAX_TTL_S);
    let inline = claims(Access::Inline { datasets: grants.datasets, s3: grants.s3 });
    let issued = match keys.issue_capability(&inline, unix_now(), ttl) {
        Err(IssueError::TooLarge { .. }) => {
            let capability_id = format!("{}:{}", task.id, wire.attempt);
            keys.issue_capability(&claims(Access::Stored { capability_id }), unix_now(), ttl)
        }
        issued => issued,
    };
    let token = issued.map_err(|error| {
        tracing::error!(%error, "cannot issue a capability token");
        Fault::Internal
    })?;
    Ok(token.reveal().to_owned())
}
