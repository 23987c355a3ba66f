//! What can go wrong with a request, by cause. Which status, word and body answer it is for each contract to say:
//! see `contracts/*/errors.rs`.

use std::time::Duration;

use tenure_auth::worker::Scope;
use tenure_auth::{AuthError, Role, UserScope};
use tenure_core::TaskId;
use tenure_core::command::Rejection;
use tenure_core::limits;
use tenure_engine::EngineError;

use crate::dispatch::DispatchFault;

/// How much of a text an error returns to the sender.
const QUOTE_BYTES: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    Request(BadRequest),
    NotFound(Thing),
    /// No queue that the caller can see has this name; a near one may be meant.
    QueueNotFound {
        near: Option<String>,
    },
    /// The same of a schedule.
    ScheduleNotFound {
        near: Option<String>,
    },
    RedriveNotFound,
    /// The idempotency key belongs to a redrive with another filter.
    RedriveConflict {
        redrive_id: String,
    },
    /// [`Rejection::IdempotencyConflict`] of a task that was submitted alone.
    KeyTaken {
        existing: Option<TaskId>,
    },
    /// The tenant has a schedule of this name.
    ScheduleExists,
    MethodNotAllowed,
    /// The request has no credential of the kind that its route needs.
    MissingCredential(Credential),
    InvalidCredential(Credential),
    /// The caller is known and may not do this.
    Forbidden(Forbidden),
    /// The rules of tasks and runs refuse it.
    Refused(Rejection),
    /// There is no room or no store for it now.
    Unavailable(Unavailable),
    /// This server lacks a setting that the request needs.
    NotConfigured(Setting),
    /// The rules of sandboxes refuse it, or the worker of the sandbox does.
    Sandbox(Box<SandboxFault>),
    /// The rules of DAGs and of the dispatch contract refuse it.
    Dispatch(Box<DispatchFault>),
    Internal,
}

/// Why there is no answer about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFault {
    pub kind: SandboxFaultKind,
    pub message: String,
    /// A word for programs.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxFaultKind {
    NotFound,
    Invalid,
    Denied,
    Conflict,
    /// The command took longer than it may.
    Timeout,
    /// A limit of the caller, or of all sandboxes.
    Limit,
    TooLarge,
    Unavailable,
    /// Nothing answers at the port of the sandbox.
    NoAnswer,
    /// This server does not have it.
    Unsupported,
    /// A range that the file does not have.
    Range,
    Internal,
}

impl SandboxFault {
    pub fn fault(kind: SandboxFaultKind, message: impl Into<String>) -> Fault {
        Fault::Sandbox(Box::new(Self { kind, message: cut(message.into()), reason: None }))
    }

    pub fn with_reason(kind: SandboxFaultKind, message: impl Into<String>, reason: impl Into<String>) -> Fault {
        Fault::Sandbox(Box::new(Self { kind, message: cut(message.into()), reason: Some(reason.into()) }))
    }
}

/// A message may quote what a worker or a caller sent.
pub(crate) fn cut(message: String) -> String {
    if message.len() > QUOTE_BYTES { format!("{}…", limits::cut(&message, QUOTE_BYTES)) } else { message }
}

/// The request itself is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("{message}")]
    Malformed { message: String },
    #[error("send the body as Content-Type: application/json")]
    UnsupportedMediaType,
    #[error("the body may have at most {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("the body did not arrive in time")]
    BodyTimeout,
    #[error("{field} may have at most {} bytes", limits::PAYLOAD_BYTES)]
    PayloadTooLarge { field: String },
    /// A value of the body that is not allowed.
    #[error("{message}")]
    Invalid { field: String, message: String },
    /// A field, or a parameter of a query, that does not exist.
    #[error("{message}")]
    UnknownField { field: String, message: String },
    /// A value that is wrong as such, as a size with an unknown unit is.
    #[error("{message}")]
    BadArgument { field: String, message: String },
    /// [`Rejection::TokenTtl`] of a task that was submitted alone.
    #[error("{}", token_ttl_message(*needed_ms, *allowed_ms))]
    TokenTtl { needed_ms: i64, allowed_ms: i64 },
    /// [`Rejection::Runtime`] of a task that was submitted alone.
    #[error("{}", runtime_message(*wants_sandbox))]
    Runtime { wants_sandbox: bool },
}

/// What a path or a request can name in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Thing {
    #[error("no such path: see /api/v1/openapi.json")]
    Path,
    #[error("no such API key")]
    ApiKey,
    #[error("no such tenant")]
    Tenant,
    #[error("no such task key")]
    TaskKey,
}

/// What a caller shows to be recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    WorkerToken,
    BootstrapKey,
    TaskToken,
    /// A capability token.
    Capability,
    ApiKey,
    /// A token of the identity provider.
    Bearer,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    #[error("worker_id differs from the worker of the credential")]
    WorkerMismatch,
    #[error("the worker token lacks the scope {}", scope.as_str())]
    WorkerScope { scope: Scope },
    #[error("the role {} does not have the required scope {}", role.as_str(), scope.as_str())]
    UserScope { role: Role, scope: UserScope },
    #[error("a key with the role {} cannot create a key with a higher role", role.as_str())]
    HigherRole { role: Role },
    #[error("none of the groups in the token has a role")]
    NoRole,
    #[error("the token names no tenant: see auth.oidc_tenant_claim and auth.oidc_default_tenant")]
    NoTenant,
    #[error("this API key belongs to another tenant")]
    Tenant,
    #[error("this API key belongs to another owner")]
    Owner,
    #[error("pages of this origin may not call: see server.cors_allowed_origins")]
    Origin,
    #[error(
        "a server without keys answers to loopback names only: use localhost, or list the name in server.allowed_hosts"
    )]
    Host,
    #[error("a server without keys takes no change that a web page could send: send Content-Type: application/json")]
    SimpleRequest,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("more than {limit} requests per minute: try again later")]
    RateLimited { limit: u32, retry_after: Duration },
    #[error("too many failed authentications from this address: try again later")]
    TooManyFailures { retry_after: Duration },
    #[error("{message} ({limit}): try again later")]
    TenantLimit { limit: &'static str, message: String, retry_after: Duration },
    #[error("the organisation has too many batches waiting to be written: try again later")]
    Backlog { retry_after: Duration },
    #[error("too many requests are waiting: try again later")]
    Busy { retry_after: Duration },
    #[error("the store is unavailable: try again later")]
    Store { retry_after: Duration },
    #[error("the store is unavailable: disk full; try again later")]
    DiskFull { retry_after: Duration },
    #[error("the keys of the identity provider cannot be fetched: try again later")]
    IdentityProvider,
    #[error("the control plane is shutting down: try again")]
    ShuttingDown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Setting {
    #[error("no worker credential is configured: set auth.worker_token")]
    WorkerToken,
    #[error("no bootstrap keys are configured: set auth.worker_bootstrap_keys")]
    BootstrapKeys,
    #[error("no signing key is configured: set auth.worker_private_key_file or auth.worker_signing_key_file")]
    SigningKey,
    #[error("this server has no key for capability tokens: set dispatch.capability.key_file")]
    TaskKey,
}

impl Unavailable {
    pub const STORE: Self = Self::Store { retry_after: Duration::from_secs(1) };
}

impl Fault {
    pub fn invalid(field: impl Into<String>, message: &str) -> Self {
        BadRequest::Invalid { field: field.into(), message: message.to_owned() }.into()
    }

    pub fn bad(field: impl Into<String>, message: &str) -> Self {
        BadRequest::BadArgument { field: field.into(), message: message.to_owned() }.into()
    }

    pub fn malformed(message: impl Into<String>) -> Self {
        BadRequest::Malformed { message: message.into() }.into()
    }

    pub fn of_worker(error: AuthError) -> Self {
        match error {
            AuthError::Missing => Self::MissingCredential(Credential::WorkerToken),
            AuthError::Invalid => Self::InvalidCredential(Credential::WorkerToken),
            AuthError::NotConfigured => Self::NotConfigured(Setting::WorkerToken),
        }
    }

    /// The same of a submission that has one task and no list of them.
    pub fn of_one(self) -> Self {
        match self {
            Self::Refused(Rejection::TokenTtl { needed_ms, allowed_ms, .. }) => {
                BadRequest::TokenTtl { needed_ms, allowed_ms }.into()
            }
            Self::Refused(Rejection::Runtime { wants_sandbox, .. }) => BadRequest::Runtime { wants_sandbox }.into(),
            Self::Refused(Rejection::IdempotencyConflict { existing, .. }) => Self::KeyTaken { existing },
            other => other,
        }
    }

    /// Whether nobody could be recognised.
    pub fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::MissingCredential(_) | Self::InvalidCredential(_))
    }

    /// The field at fault.
    pub fn field(&self) -> Option<String> {
        match self {
            Self::Request(
                BadRequest::Invalid { field, .. }
                | BadRequest::UnknownField { field, .. }
                | BadRequest::BadArgument { field, .. }
                | BadRequest::PayloadTooLarge { field },
            ) => Some(field.clone()),
            Self::Request(BadRequest::TokenTtl { .. }) => Some("token_ttl_seconds".to_owned()),
            Self::Request(BadRequest::Runtime { .. }) => Some("runtime".to_owned()),
            Self::Refused(Rejection::Runtime { index, .. }) => Some(format!("tasks[{index}].runtime")),
            Self::Refused(Rejection::TokenTtl { index, .. }) => Some(format!("tasks[{index}].token_ttl_seconds")),
            _ => None,
        }
    }

    /// When the same request may succeed, where waiting can help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable(
                Unavailable::RateLimited { retry_after, .. }
                | Unavailable::TooManyFailures { retry_after }
                | Unavailable::TenantLimit { retry_after, .. }
                | Unavailable::Backlog { retry_after }
                | Unavailable::Busy { retry_after }
                | Unavailable::Store { retry_after }
                | Unavailable::DiskFull { retry_after },
            ) => Some(*retry_after),
            Self::Dispatch(fault) => fault.retry_after(),
            Self::Unavailable(Unavailable::IdentityProvider) => Some(Duration::from_secs(5)),
            Self::Unavailable(Unavailable::ShuttingDown) | Self::Internal => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// What an idempotency key belongs to. The task of another owner is not named.
pub fn key_owner(existing: Option<TaskId>) -> String {
    match existing {
        None => "belongs to a task of another owner: use another key".to_owned(),
        Some(existing) => format!("belongs to task {existing}, which has different content"),
    }
}

pub fn runtime_message(wants_sandbox: bool) -> &'static str {
    if wants_sandbox {
        "the task asks for a sandbox and its queue does not run sandboxes: use a queue whose push.url is sandbox:"
    } else {
        "the queue runs its tasks in sandboxes: the task needs runtime.sandbox with a command"
    }
}

pub fn token_ttl_message(needed_ms: i64, allowed_ms: i64) -> String {
    format!(
        "the task tokens must be valid for {} s (time-out, dispatch and cancel grace), the maximum is {} s",
        needed_ms.div_euclid(1000) + i64::from(needed_ms % 1000 > 0),
        allowed_ms / 1000
    )
}

impl BadRequest {
    /// Messages and paths of fields quote what was sent, which can be megabytes long.
    fn shortened(mut self) -> Self {
        let texts = match &mut self {
            Self::Malformed { message } => [Some(message), None],
            Self::PayloadTooLarge { field } => [Some(field), None],
            Self::Invalid { field, message }
            | Self::UnknownField { field, message }
            | Self::BadArgument { field, message } => [Some(field), Some(message)],
            Self::UnsupportedMediaType
            | Self::BodyTooLarge { .. }
            | Self::BodyTimeout
            | Self::TokenTtl { .. }
            | Self::Runtime { .. } => [None, None],
        };
        for text in texts.into_iter().flatten().filter(|text| text.len() > QUOTE_BYTES) {
            *text = format!("{}…", limits::cut(text, QUOTE_BYTES));
        }
        self
    }
}

impl From<BadRequest> for Fault {
    fn from(wrong: BadRequest) -> Self {
        Self::Request(wrong.shortened())
    }
}

impl From<Forbidden> for Fault {
    fn from(forbidden: Forbidden) -> Self {
        Self::Forbidden(forbidden)
    }
}

impl From<Unavailable> for Fault {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

impl From<Rejection> for Fault {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Busy { retry_after } => Unavailable::Busy { retry_after }.into(),
            EngineError::Unavailable { retry_after } => Unavailable::Store { retry_after }.into(),
            EngineError::DiskFull { retry_after } => Unavailable::DiskFull { retry_after }.into(),
            EngineError::Closed => Unavailable::ShuttingDown.into(),
            EngineError::Internal => Self::Internal,
        }
    }
}
