use serde::Serialize;

use super::{BACKDATED_S, TaskKeys, Verified, check_common, expiry, random_id, verified};
use crate::Secret;
use crate::jwt::{IssueError, TokenError};

/// The longest a task token may live.
pub const TASK_TOKEN_MAX_TTL_S: u32 = 7200;

const AUDIENCE: &str = "tenure.callback";

/// What a task token is for: one attempt of one task.
///
/// Ids are texts here, in any of their spellings. Whoever compares them compares the numbers they stand for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskClaims {
    pub task_id: String,
    pub tenant_id: String,
    pub workspace_id: String,
    pub run_id: String,
    /// From 1.
    pub attempt: u32,
    pub attempt_id: String,
}

#[derive(Serialize)]
struct Wire<'a> {
    #[serde(flatten)]
    claims: &'a TaskClaims,
    iss: &'a str,
    aud: &'a str,
    iat: i64,
    nbf: i64,
    exp: i64,
    jti: String,
}

impl TaskKeys {
    /// A task token that is good from now on. It expires at `now_s + ttl_s`.
    pub fn issue_task(&self, claims: &TaskClaims, now_s: i64, ttl_s: u32) -> Result<Secret, IssueError> {
        let exp = expiry(now_s, ttl_s, TASK_TOKEN_MAX_TTL_S)?;
        let jti = random_id()?;
        let nbf = now_s.saturating_sub(BACKDATED_S);
        self.seal_callback(&Wire { claims, iss: self.issuer(), aud: AUDIENCE, iat: now_s, nbf, exp, jti })
    }

    /// What the token is for, if it is a task token, signed with a known key and good at this time.
    pub fn verify_task(&self, token: &str, now_s: i64) -> Result<Verified<TaskClaims>, TokenError> {
        let claims = self.open_callback(token)?;
        check_common(&claims, self.issuer(), AUDIENCE, now_s)?;
        claims.date("nbf")?;
        let text = |name| claims.text(name).map(ToOwned::to_owned);
        let body = TaskClaims {
            task_id: text("taskId")?,
            tenant_id: text("tenantId")?,
            workspace_id: text("workspaceId")?,
            run_id: text("runId")?,
            attempt: claims.count("attempt")?,
            attempt_id: text("attemptId")?,
        };
        if body.attempt == 0 {
            return Err(TokenError::InvalidClaim("attempt"));
        }
        verified(&claims, Some(claims.text("jti")?), body)
    }
}
