//! What a store keeps about callers: their keys, what was revoked, what they did, and the limits of their tenants.

use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::TaskId;
use tenure_core::tenant::TenantUsage;
use tenure_core::time::{DurationMs, Timestamp};

use crate::error::StoreError;
use crate::model::Page;

/// How many workers with credentials of their own are remembered.
pub const PROVEN_WORKERS_MAX: usize = 50_000;

/// How long the public half of a task key is offered after the control plane that has the other half was last seen. No
/// token lives as long.
pub const TASK_KEY_KEPT: Duration = Duration::from_secs(48 * 3_600);

/// An API key that is about to be stored. The key itself is never: only its hash.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    pub key_id: String,
    pub hash: [u8; 32],
    pub name: String,
    pub role: String,
    pub tenant: String,
    pub owner: Option<String>,
    pub created_by: String,
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub key_id: String,
    pub name: String,
    pub role: String,
    pub tenant: String,
    /// The key reaches what this owner submitted, and no more.
    pub owner: Option<String>,
    pub created_at: Timestamp,
    pub created_by: String,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

/// A request to an admin endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAudit {
    pub actor: String,
    pub method: String,
    pub path: String,
    pub status: u16,
    pub duration_ms: DurationMs,
    pub request_id: String,
    pub remote_addr: String,
    pub user_agent: Option<String>,
    pub tenant: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAuditRow {
    pub id: i64,
    pub at: Timestamp,
    pub entry: AdminAudit,
}

/// Joined by AND.
#[derive(Debug, Clone, Default)]
pub struct AdminAuditFilter {
    pub actor: Option<String>,
    pub method: Option<String>,
    pub status: Option<u16>,
    /// How the path begins.
    pub path: Option<String>,
    pub tenant: Option<String>,
    /// Newest first; only rows older than this one.
    pub before: Option<i64>,
    pub limit: usize,
}

/// Something that was done to a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationAudit {
    pub actor: String,
    pub action: String,
    /// The sandbox that it was about.
    pub sandbox: Option<String>,
    /// What it was done to; of a sandbox, the part of it.
    pub resource: String,
    pub status: String,
    pub detail: Option<String>,
    pub tenant: Option<String>,
    /// `None` for what happened without a request.
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationAuditRow {
    pub id: i64,
    pub at: Timestamp,
    /// That of the sandbox, if the store knew it when the row was written.
    pub provider: Option<String>,
    pub entry: OperationAudit,
}

/// Joined by AND.
#[derive(Debug, Clone, Default)]
pub struct OperationAuditFilter {
    pub action: Option<String>,
    pub actor: Option<String>,
    pub tenant: Option<String>,
    /// Newest first; only rows older than this one.
    pub before: Option<i64>,
    pub limit: usize,
}

/// Who has asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asker {
    /// A user: the key or the subject.
    User(String),
    /// The attempt of a task.
    Task(String, u32),
}

/// A query that was answered. Its text is not kept, only a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryAudit {
    pub query_id: String,
    pub org: String,
    pub asker: Asker,
    /// The ids of the datasets that it read.
    pub datasets: Vec<String>,
    /// The names of the columns of its result.
    pub columns: Vec<String>,
    pub row_count: u64,
    pub sql_hash: String,
    /// The file of a result that was exported.
    pub export: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryAuditRow {
    pub at: Timestamp,
    pub entry: QueryAudit,
}

/// Temporary keys that were made for the code of an attempt. Never their secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialGrant {
    pub org: String,
    pub task: TaskId,
    pub attempt: u32,
    /// Who made the keys: `embedded` or `sts`.
    pub backend: String,
    pub access_key_id: String,
    pub purpose: String,
    /// The prefixes that the keys may use, as JSON.
    pub scope: String,
    pub expires_at: Timestamp,
    pub request_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialGrantRow {
    pub id: i64,
    pub at: Timestamp,
    pub grant: CredentialGrant,
}

/// Audit rows from before go; `None` keeps all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCut {
    pub admin_before: Option<Timestamp>,
    pub operations_before: Option<Timestamp>,
}

/// How many tenants can have a record, and how many members a tenant.
pub const TENANTS_MAX: usize = 10_000;
pub const MEMBERS_MAX: usize = 10_000;

/// What is said about a tenant. A tenant can be used without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRecord {
    pub id: String,
    pub name: String,
    pub owner: Option<String>,
    /// JSON that the store does not look into.
    pub settings: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRow {
    pub record: TenantRecord,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A user that is listed as a member of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRow {
    pub user_id: String,
    pub role: String,
    pub created_at: Timestamp,
}

/// What a store keeps about callers. Every method either happens whole or not at all, and rows carry the store's time.
#[async_trait]
pub trait IdentityStore: Send + Sync {
    /// Stores a key. The same key stored again, because the first answer was lost, is the key that stands there. An id
    /// or a hash that belongs to another key is an error.
    async fn create_api_key(&self, key: &NewApiKey) -> Result<ApiKey, StoreError>;

    /// Keys behind `after`, by their ids; of one tenant, or of all.
    async fn api_keys(
        &self,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<ApiKey>, StoreError>;

    /// The key of this id; of one tenant, or of any.
    async fn api_key(&self, key_id: &str, tenant: Option<&str>) -> Result<Option<ApiKey>, StoreError>;

    /// The key with this hash. Those that are revoked or have expired come back too: the caller judges.
    async fn api_key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<ApiKey>, StoreError>;

    /// Revokes a key for good. A key that is revoked keeps the time at which it was first. `None` if there is none, or
    /// none of this tenant.
    async fn revoke_api_key(&self, key_id: &str, tenant: Option<&str>) -> Result<Option<ApiKey>, StoreError>;

    /// Refuses a worker token until it would have expired by itself. Revoked again, the later end counts.
    async fn revoke_worker_token(&self, token_id: &str, until: Timestamp, by: &str) -> Result<(), StoreError>;

    /// Ids of worker tokens to be refused now.
    async fn revoked_worker_tokens(&self) -> Result<Vec<String>, StoreError>;

    /// Writes down workers that have shown credentials of their own. Again, the later end counts.
    async fn prove_workers(&self, workers: &[String], until: Timestamp) -> Result<(), StoreError>;

    /// Workers that count as proven for longer than `after`, the longest first, and how long. At most
    /// [`PROVEN_WORKERS_MAX`].
    async fn proven_workers(&self, after: Timestamp) -> Result<Vec<(String, Timestamp)>, StoreError>;

    /// The secret of this name that all control planes share: the one that is there, else `candidate` from now on.
    async fn shared_secret(&self, name: &str, candidate: &str) -> Result<String, StoreError>;

    /// Offers the public half of a task key to all control planes, or says that its owner is still there. What was
    /// offered under a `kid` first stays: nobody can put another key in its place.
    async fn register_task_key(&self, kid: &str, jwk: &str) -> Result<(), StoreError>;

    /// Takes a task key back: nobody is offered it any more. `false` if there was none.
    async fn forget_task_key(&self, kid: &str) -> Result<bool, StoreError>;

    /// `kid` and `jwk` of the task keys whose owners were seen within [`TASK_KEY_KEPT`].
    async fn task_keys(&self) -> Result<Vec<(String, String)>, StoreError>;

    /// Records requests of admins, in order. A crash after it leaves rows that nobody was told of; sending them again
    /// records them twice.
    async fn audit_admin(&self, entries: &[AdminAudit]) -> Result<(), StoreError>;
    async fn admin_audit(&self, filter: &AdminAuditFilter) -> Result<Page<AdminAuditRow>, StoreError>;

    /// Records operations, as [`Self::audit_admin`] does requests.
    async fn audit_operations(&self, entries: &[OperationAudit]) -> Result<(), StoreError>;
    async fn operation_audit(&self, filter: &OperationAuditFilter) -> Result<Page<OperationAuditRow>, StoreError>;

    /// Records a query before it is answered. A crash after it leaves the row of a query whose answer was lost.
    async fn audit_query(&self, entry: &QueryAudit) -> Result<(), StoreError>;

    /// The record of a query.
    async fn query_audit(&self, query_id: &str) -> Result<Option<QueryAuditRow>, StoreError>;
    /// Records temporary keys before anybody gets them. A crash after it leaves a row of keys that nobody has.
    async fn audit_credentials(&self, grant: &CredentialGrant) -> Result<(), StoreError>;

    /// The keys that were made for a task, newest first.
    async fn credential_grants(&self, task: TaskId, limit: usize) -> Result<Vec<CredentialGrantRow>, StoreError>;

    /// Removes what nobody needs any more: audit rows older than the cut, revocations of tokens that have
    /// expired, task keys whose owners are gone. At most `limit` of each; gives how many in all, so that fewer than
    /// `limit` means that nothing is left.
    async fn prune_identity(&self, audit: AuditCut, limit: usize) -> Result<usize, StoreError>;

    /// Sets the limits of a tenant, or removes them. The store does not look into the text.
    async fn set_tenant_limits(&self, tenant: &str, limits: Option<&str>) -> Result<(), StoreError>;

    /// Every tenant that has limits, by name.
    async fn tenant_limits(&self) -> Result<Vec<(String, String)>, StoreError>;

    /// Stores a record of a tenant that has none. `false` if it has one, or if there are [`TENANTS_MAX`].
    async fn create_tenant(&self, record: &TenantRecord) -> Result<bool, StoreError>;

    /// Replaces the record of a tenant, or stores its first one. `false` if there are [`TENANTS_MAX`] others.
    async fn put_tenant(&self, record: &TenantRecord) -> Result<bool, StoreError>;

    async fn tenant(&self, id: &str) -> Result<Option<TenantRow>, StoreError>;

    /// Every record, by id.
    async fn tenants(&self) -> Result<Vec<TenantRow>, StoreError>;

    /// Removes the record of a tenant and its members. `false` if there was no record.
    async fn delete_tenant(&self, id: &str) -> Result<bool, StoreError>;

    /// Lists a user as a member, or gives a member another role. `None` if there are [`MEMBERS_MAX`] others.
    async fn put_member(&self, tenant: &str, user_id: &str, role: &str) -> Result<Option<MemberRow>, StoreError>;

    /// The members of a tenant, by user.
    async fn members(&self, tenant: &str) -> Result<Vec<MemberRow>, StoreError>;

    /// `false` if the user was no member.
    async fn delete_member(&self, tenant: &str, user_id: &str) -> Result<bool, StoreError>;

    /// Counts the tasks of a tenant that have not ended. It reads all that waits: ask rarely.
    async fn tenant_usage(&self, tenant: &str) -> Result<TenantUsage, StoreError>;
}

/// What was asked for is one more than `limit`: the one too many says that there is a next page.
pub(crate) fn page<T>(mut items: Vec<T>, limit: usize, place: impl Fn(&T) -> String) -> Page<T> {
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(place);
    Page { items, next }
}

/// Postgres has no NUL in a text. One bad entry must not cost the others of its batch their place in the audit.
/// `actor`, `task` and `attempt` of a row.
pub(crate) fn asker_columns(asker: &Asker) -> (Option<String>, Option<String>, Option<i32>) {
    match asker {
        Asker::User(actor) => (Some(actor.clone()), None, None),
        Asker::Task(task, attempt) => (None, Some(task.clone()), Some(i32::try_from(*attempt).unwrap_or(i32::MAX))),
    }
}

pub(crate) fn asker_of(actor: Option<String>, task: Option<String>, attempt: Option<i32>) -> Asker {
    match (actor, task) {
        (None, Some(task)) => Asker::Task(task, attempt.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)),
        (actor, _) => Asker::User(actor.unwrap_or_default()),
    }
}

pub(crate) fn names_json(names: &[String]) -> String {
    // Texts can always be written.
    serde_json::to_string(names).unwrap_or_default()
}

pub(crate) fn names_of(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_default()
}

pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

pub(crate) fn without_nul_if(text: Option<&String>) -> Option<Cow<'_, str>> {
    text.map(|text| without_nul(text))
}

/// A task key that was seen before this is not offered any more.
pub(crate) fn task_keys_since(now: Timestamp) -> Timestamp {
    now.plus(-i64::try_from(TASK_KEY_KEPT.as_millis()).unwrap_or(i64::MAX))
}

/// The id or the hash of a new key belongs to another one.
pub(crate) fn key_is_taken() -> StoreError {
    StoreError::Failed { operation: "create an API key", source: "its id or its hash is that of another key".into() }
}
