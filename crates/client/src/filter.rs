//! What the lists can be narrowed to. An absent field does not narrow.

use reqwest::Url;
use tenure_contract::words::TaskState;

/// Filter of [`Client::list`](crate::Client::list).
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    pub queue: Option<String>,
    pub state: Option<TaskState>,
    pub operator: Option<String>,
    pub tenant: Option<String>,
    pub workspace: Option<String>,
    /// `name:value`.
    pub tag: Option<String>,
    /// The first digits of an id, at least 4.
    pub id_prefix: Option<String>,
    /// Id of the run that the tasks belong to.
    pub run: Option<String>,
    pub idempotency_key: Option<String>,
    /// Worker of the newest attempt.
    pub worker: Option<String>,
    /// Error code of tasks that failed.
    pub error_code: Option<String>,
    /// Credential that the tasks were submitted with, such as `key:<id>`.
    pub submitted_by: Option<String>,
    /// Created at or after, RFC 3339.
    pub created_after: Option<String>,
    /// Created before, RFC 3339.
    pub created_before: Option<String>,
    /// Default 100, up to 1000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl TaskFilter {
    pub(crate) fn write(&self, url: &mut Url) {
        let (state, limit) = (text(&self.state), text(&self.limit));
        write(
            url,
            &[
                ("queue", &self.queue),
                ("state", &state),
                ("operator", &self.operator),
                ("tenant", &self.tenant),
                ("workspace", &self.workspace),
                ("tag", &self.tag),
                ("id_prefix", &self.id_prefix),
                ("run", &self.run),
                ("idempotency_key", &self.idempotency_key),
                ("worker", &self.worker),
                ("error_code", &self.error_code),
                ("submitted_by", &self.submitted_by),
                ("created_after", &self.created_after),
                ("created_before", &self.created_before),
                ("limit", &limit),
                ("cursor", &self.cursor),
            ],
        );
    }
}

/// Filter of [`Client::dead_letters`](crate::Client::dead_letters).
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    pub queue: Option<String>,
    pub operator: Option<String>,
    /// `max_attempts`, `non_retryable` or `deadline_exceeded`.
    pub reason: Option<String>,
    pub tenant: Option<String>,
    /// Default 100, up to 1000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl DeadLetterFilter {
    pub(crate) fn write(&self, url: &mut Url) {
        let limit = self.limit.map(|limit| limit.to_string());
        write(
            url,
            &[
                ("queue", &self.queue),
                ("operator", &self.operator),
                ("reason", &self.reason),
                ("tenant", &self.tenant),
                ("limit", &limit),
                ("cursor", &self.cursor),
            ],
        );
    }
}

/// Filter of [`Client::admin_audit`](crate::Client::admin_audit).
#[derive(Debug, Clone, Default)]
pub struct AdminAuditFilter {
    pub actor: Option<String>,
    /// Such as `DELETE`.
    pub method: Option<String>,
    pub status: Option<u16>,
    /// What the path begins with.
    pub path: Option<String>,
    /// Default 100, up to 500.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl AdminAuditFilter {
    pub(crate) fn write(&self, url: &mut Url) {
        write(
            url,
            &[
                ("actor", &self.actor),
                ("method", &self.method),
                ("status", &self.status.map(|status| status.to_string())),
                ("path", &self.path),
                ("limit", &self.limit.map(|limit| limit.to_string())),
                ("cursor", &self.cursor),
            ],
        );
    }
}

/// Filter of [`Client::operation_audit`](crate::Client::operation_audit).
#[derive(Debug, Clone, Default)]
pub struct OperationAuditFilter {
    pub action: Option<String>,
    pub actor: Option<String>,
    /// Default 100, up to 500.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl OperationAuditFilter {
    pub(crate) fn write(&self, url: &mut Url) {
        let limit = self.limit.map(|limit| limit.to_string());
        write(url, &[("action", &self.action), ("actor", &self.actor), ("limit", &limit), ("cursor", &self.cursor)]);
    }
}

/// Filter of [`Client::outbox`](crate::Client::outbox).
#[derive(Debug, Clone, Default)]
pub struct OutboxFilter {
    /// `waiting`, `published` or `failed`.
    pub state: Option<String>,
    pub queue: Option<String>,
    /// Default 100, up to 1000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl OutboxFilter {
    pub(crate) fn write(&self, url: &mut Url) {
        let limit = self.limit.map(|limit| limit.to_string());
        write(url, &[("state", &self.state), ("queue", &self.queue), ("limit", &limit), ("cursor", &self.cursor)]);
    }
}

pub(crate) fn text<T: ToString>(value: &Option<T>) -> Option<String> {
    value.as_ref().map(ToString::to_string)
}

pub(crate) fn write(url: &mut Url, fields: &[(&str, &Option<String>)]) {
    let set = fields.iter().filter_map(|(name, value)| value.as_ref().map(|value| (name, value)));
    for (name, value) in set {
        url.query_pairs_mut().append_pair(name, value);
    }
}

/// Which lines of a task's log.
#[derive(Debug, Clone, Default)]
pub struct TaskLogFilter {
    /// Of this attempt only.
    pub attempt: Option<u32>,
    /// `follow_cursor` of the answer before.
    pub cursor: Option<String>,
    /// Wait for lines after `cursor`, unless the task has ended.
    pub follow: bool,
}
