//! Everything that can go wrong with a request, and how each contract says it. Status codes are known only here.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tenure_auth::worker::Scope;
use tenure_auth::{AuthError, Role, UserScope};
use tenure_contract::callback::CallbackError;
use tenure_contract::error::{ErrorClass, UserError, WorkerError};
use tenure_contract::pull::ItemAnswer;
use tenure_core::command::callback::{Refusal, Refused};
use tenure_core::command::{Conflict, ConflictKind, Rejection};
use tenure_core::limits;
use tenure_engine::EngineError;

use crate::api::words;
use crate::render;
use crate::request::RequestId;

/// What is wrong, apart from how it is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    Malformed {
        message: String,
    },
    UnsupportedMediaType,
    BodyTooLarge {
        limit: usize,
    },
    BodyTimeout,
    Invalid {
        field: String,
        message: String,
    },
    /// A field, or a parameter of a query, that does not exist.
    UnknownField {
        field: String,
        message: String,
    },
    PayloadTooLarge {
        field: String,
    },
    InvalidTaskToken,
    MissingWorkerToken,
    InvalidWorkerToken,
    WorkerAuthNotConfigured,
    WorkerMismatch,
    MissingApiKey,
    InvalidApiKey,
    InvalidBearer,
    NoRole,
    ProviderUnavailable,
    MissingBootstrapKey,
    InvalidBootstrapKey,
    BootstrapNotConfigured,
    NoSigningKey,
    Forbidden {
        role: Role,
        scope: UserScope,
    },
    RoleForbidden {
        role: Role,
    },
    WorkerScope {
        scope: Scope,
    },
    TenantForbidden,
    OwnerForbidden,
    BadArgument {
        field: String,
        message: String,
    },
    /// [`Rejection::TokenTtl`] of a task that was submitted alone.
    TokenTtl {
        needed_ms: i64,
        allowed_ms: i64,
    },
    RateLimited {
        limit: u32,
        retry_after: Duration,
    },
    TooManyFailures {
        retry_after: Duration,
    },
    TenantLimit {
        limit: &'static str,
        message: String,
        retry_after: Duration,
    },
    Refused(Rejection),
    NotFound {
        what: &'static str,
    },
    MethodNotAllowed,
    Busy {
        retry_after: Duration,
    },
    StoreUnavailable {
        retry_after: Duration,
    },
    ShuttingDown,
    Internal,
}

impl Fault {
    pub fn invalid(field: impl Into<String>, message: &str) -> Self {
        Self::Invalid { field: field.into(), message: message.to_owned() }
    }

    pub fn of_worker(error: AuthError) -> Self {
        match error {
            AuthError::Missing => Self::MissingWorkerToken,
            AuthError::Invalid => Self::InvalidWorkerToken,
            AuthError::NotConfigured => Self::WorkerAuthNotConfigured,
        }
    }

    /// A request fault that is 400 where others are 422.
    pub fn bad(field: impl Into<String>, message: &str) -> Self {
        Self::BadArgument { field: field.into(), message: message.to_owned() }
    }

    /// The same of a submission that has one task and no list of them.
    pub fn of_one(self) -> Self {
        match self {
            Self::Refused(Rejection::TokenTtl { needed_ms, allowed_ms, .. }) => {
                Self::TokenTtl { needed_ms, allowed_ms }
            }
            other => other,
        }
    }

    /// The stable word, where it does not matter whether it is a task or a job that was not found.
    pub fn word(&self) -> &'static str {
        self.code("not_found")
    }

    /// Whether nobody could be recognised.
    pub fn is_unauthorized(&self) -> bool {
        self.status() == StatusCode::UNAUTHORIZED
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Malformed { .. } | Self::BadArgument { .. } => StatusCode::BAD_REQUEST,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTooLarge { .. } | Self::PayloadTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Invalid { .. } | Self::UnknownField { .. } | Self::TokenTtl { .. } => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Self::MissingWorkerToken
            | Self::InvalidWorkerToken
            | Self::MissingApiKey
            | Self::InvalidApiKey
            | Self::InvalidBearer
            | Self::MissingBootstrapKey
            | Self::InvalidBootstrapKey => StatusCode::UNAUTHORIZED,
            Self::WorkerMismatch
            | Self::WorkerScope { .. }
            | Self::Forbidden { .. }
            | Self::RoleForbidden { .. }
            | Self::NoRole
            | Self::TenantForbidden
            | Self::OwnerForbidden => StatusCode::FORBIDDEN,
            Self::RateLimited { .. } | Self::TooManyFailures { .. } | Self::TenantLimit { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Refused(Rejection::QueueShared) => StatusCode::FORBIDDEN,
            Self::Refused(Rejection::TokenTtl { .. }) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Refused(Rejection::Callback(refusal)) => match refusal.why {
                Refused::InvalidToken => StatusCode::UNAUTHORIZED,
                Refused::Expired => StatusCode::GONE,
                _ => StatusCode::CONFLICT,
            },
            Self::InvalidTaskToken => StatusCode::UNAUTHORIZED,
            Self::NotFound { .. }
            | Self::Refused(Rejection::NotFound | Rejection::RunNotFound | Rejection::QueueNotFound) => {
                StatusCode::NOT_FOUND
            }
            Self::Refused(_) => StatusCode::CONFLICT,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::WorkerAuthNotConfigured
            | Self::BootstrapNotConfigured
            | Self::NoSigningKey
            | Self::ProviderUnavailable
            | Self::Busy { .. }
            | Self::StoreUnavailable { .. }
            | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The stable word. Each has a page in `docs/errors/`.
    fn code(&self, not_found: &'static str) -> &'static str {
        match self {
            Self::Malformed { .. } => "malformed_request",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::BodyTooLarge { .. } | Self::PayloadTooLarge { .. } => "payload_too_large",
            Self::BodyTimeout => "request_timeout",
            Self::Invalid { .. } | Self::BadArgument { .. } => "invalid_argument",
            Self::UnknownField { .. } => "unknown_field",
            Self::TokenTtl { .. } => "token_ttl_too_short",
            Self::InvalidTaskToken => "invalid_token",
            Self::MissingWorkerToken => "missing_worker_token",
            Self::InvalidWorkerToken => "invalid_worker_token",
            Self::WorkerAuthNotConfigured => "worker_auth_not_configured",
            Self::WorkerMismatch => "worker_mismatch",
            Self::MissingApiKey => "missing_api_key",
            Self::InvalidApiKey => "invalid_api_key",
            Self::InvalidBearer => "invalid_bearer_token",
            Self::NoRole => "no_role",
            Self::ProviderUnavailable => "identity_provider_unavailable",
            Self::MissingBootstrapKey => "missing_bootstrap_key",
            Self::InvalidBootstrapKey => "invalid_bootstrap_key",
            Self::BootstrapNotConfigured => "worker_auth_not_configured",
            Self::NoSigningKey => "signing_key_not_configured",
            Self::Forbidden { .. } | Self::RoleForbidden { .. } | Self::WorkerScope { .. } => "forbidden",
            Self::TenantForbidden => "tenant_forbidden",
            Self::OwnerForbidden => "owner_forbidden",
            Self::RateLimited { .. } | Self::TooManyFailures { .. } => "rate_limited",
            Self::TenantLimit { .. } => "tenant_limit",
            Self::NotFound { what } => what,
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Busy { .. } => "overloaded",
            Self::StoreUnavailable { .. } => "store_unavailable",
            Self::ShuttingDown => "shutting_down",
            Self::Internal => "internal",
            Self::Refused(rejection) => match rejection {
                Rejection::NotFound => not_found,
                Rejection::Conflict(conflict) => match conflict.kind {
                    ConflictKind::StaleAttempt => "stale_attempt",
                    ConflictKind::StaleLease => "stale_lease",
                    ConflictKind::LeaseExpired => "lease_expired",
                    ConflictKind::AttemptClosed => "attempt_closed",
                    ConflictKind::ConflictingCompletion => "conflicting_completion",
                },
                Rejection::IdempotencyConflict { .. } => "idempotency_conflict",
                Rejection::AlreadyTerminal { .. } => "task_already_terminal",
                Rejection::NotRetryable { .. } => "task_not_retryable",
                Rejection::RunNotFound => "run_not_found",
                Rejection::RunKeyConflict { .. } => "run_key_conflict",
                Rejection::RunAlreadyTerminal { .. } => "run_already_terminal",
                Rejection::RunNotRerunnable { .. } => "run_not_rerunnable",
                Rejection::StaleIncarnation => "stale_incarnation",
                Rejection::QueueNotFound => "queue_not_found",
                Rejection::QueueShared => "queue_shared",
                Rejection::TokenTtl { .. } => "token_ttl_too_short",
                Rejection::Callback(refusal) => match refusal.why {
                    Refused::AttemptMismatch { .. } => "attempt_mismatch",
                    Refused::AttemptIdMismatch { .. } => "attempt_id_mismatch",
                    Refused::InvalidToken => "invalid_token",
                    Refused::TaskTerminal { .. } => "task_already_terminal",
                    Refused::AttemptCompleted => "attempt_already_completed",
                    Refused::AlreadyStarted => "attempt_already_started",
                    Refused::Expired => "task_expired",
                },
            },
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Malformed { message } => message.clone(),
            Self::Invalid { message, .. } | Self::UnknownField { message, .. } | Self::BadArgument { message, .. } => {
                message.clone()
            }
            Self::InvalidBearer => "the bearer token is not valid".to_owned(),
            Self::NoRole => "none of the groups in the token has a role".to_owned(),
            Self::ProviderUnavailable => {
                "the keys of the identity provider cannot be fetched: try again later".to_owned()
            }
            Self::MissingBootstrapKey => "send the bootstrap key of this worker in X-Worker-Bootstrap-Key".to_owned(),
            Self::InvalidBootstrapKey => "the bootstrap key is not valid for this worker".to_owned(),
            Self::BootstrapNotConfigured => {
                "no bootstrap keys are configured: set auth.worker_bootstrap_keys".to_owned()
            }
            Self::NoSigningKey => {
                "no signing key is configured: set auth.worker_private_key_file or auth.worker_signing_key_file"
                    .to_owned()
            }
            Self::Forbidden { role, scope } => {
                format!("the role {} does not have the required scope {}", role.as_str(), scope.as_str())
            }
            Self::RoleForbidden { role } => {
                format!("a key with the role {} cannot create a key with a higher role", role.as_str())
            }
            Self::WorkerScope { scope } => format!("the worker token lacks the scope {}", scope.as_str()),
            Self::OwnerForbidden => "this API key belongs to another owner".to_owned(),
            Self::RateLimited { limit, .. } => format!("more than {limit} requests per minute: try again later"),
            Self::TooManyFailures { .. } => {
                "too many failed authentications from this address: try again later".to_owned()
            }
            Self::TenantLimit { limit, message, .. } => format!("{message} ({limit}): try again later"),
            Self::TokenTtl { needed_ms, allowed_ms } => token_ttl_message(*needed_ms, *allowed_ms),
            Self::UnsupportedMediaType => "send the body as Content-Type: application/json".to_owned(),
            Self::BodyTooLarge { limit } => format!("the body may have at most {limit} bytes"),
            Self::PayloadTooLarge { field } => format!("{field} may have at most {} bytes", limits::PAYLOAD_BYTES),
            Self::BodyTimeout => "the body did not arrive in time".to_owned(),
            Self::InvalidTaskToken => INVALID_TASK_TOKEN.to_owned(),
            Self::MissingWorkerToken => {
                "send the worker token in X-Worker-Token or as Authorization: Bearer".to_owned()
            }
            Self::InvalidWorkerToken => "the worker token is not valid for this worker".to_owned(),
            Self::WorkerAuthNotConfigured => "no worker credential is configured: set auth.worker_token".to_owned(),
            Self::WorkerMismatch => "worker_id differs from the worker of the credential".to_owned(),
            Self::MissingApiKey => "send the API key in X-API-Key".to_owned(),
            Self::InvalidApiKey => "the API key is not valid".to_owned(),
            Self::TenantForbidden => "this API key belongs to another tenant".to_owned(),
            Self::NotFound { what } => match *what {
                "task_not_found" => "no such task".to_owned(),
                "queue_not_found" => "no such queue".to_owned(),
                "api_key_not_found" => "no such API key".to_owned(),
                "tenant_not_found" => "no such tenant".to_owned(),
                "task_key_not_found" => "no such task key".to_owned(),
                _ => "no such path: see /api/v1/openapi.json".to_owned(),
            },
            Self::MethodNotAllowed => "this path does not support the method: see /api/v1/openapi.json".to_owned(),
            Self::Busy { .. } => "too many requests are waiting: try again later".to_owned(),
            Self::StoreUnavailable { .. } => "the store is unavailable: try again later".to_owned(),
            Self::ShuttingDown => "the control plane is shutting down: try again".to_owned(),
            Self::Internal => "internal error: the server log has details under this request id".to_owned(),
            Self::Refused(rejection) => match rejection {
                Rejection::NotFound => "no such task".to_owned(),
                Rejection::Conflict(conflict) => conflict_message(conflict),
                Rejection::IdempotencyConflict { index, existing: None } => {
                    format!("the idempotency key of entry {index} belongs to a task of another owner: use another key")
                }
                Rejection::IdempotencyConflict { index, existing: Some(existing) } => {
                    format!(
                        "the idempotency key of entry {index} belongs to task {existing}, which has different content"
                    )
                }
                Rejection::AlreadyTerminal { state } => format!("the task has ended: {}", state.as_str()),
                Rejection::NotRetryable { past_deadline: true, .. } => "the deadline of the task has passed".to_owned(),
                Rejection::NotRetryable { sealed: true, .. } => {
                    "its run has ended or continued without it: rerun it with POST /api/v1/runs/{id}/rerun".to_owned()
                }
                Rejection::RunNotFound => "no such run".to_owned(),
                Rejection::RunKeyConflict { existing: None, .. } => {
                    "the run_key belongs to a run of another owner: use another key".to_owned()
                }
                Rejection::RunKeyConflict { existing: Some((run, _)), .. } => {
                    format!("the run_key belongs to {run}, which has different content")
                }
                Rejection::RunAlreadyTerminal { state } => format!("the run has ended: {}", words::run(*state)),
                Rejection::RunNotRerunnable { state } => {
                    format!("only a run that is Failed or Canceled can be rerun; this one is {}", words::run(*state))
                }
                Rejection::NotRetryable { state, .. } => {
                    format!("only a task that Failed or was Canceled can be retried; this one is {}", state.as_str())
                }
                Rejection::StaleIncarnation => "a newer process uses this worker_id: stop".to_owned(),
                Rejection::QueueNotFound => "no such queue".to_owned(),
                Rejection::QueueShared => "this queue is shared by all tenants: only an admin can change it".to_owned(),
                Rejection::TokenTtl { needed_ms, allowed_ms, .. } => token_ttl_message(*needed_ms, *allowed_ms),
                Rejection::Callback(refusal) => callback_message(refusal),
            },
        }
    }

    fn field(&self) -> Option<String> {
        match self {
            Self::TokenTtl { .. } => Some("token_ttl_seconds".to_owned()),
            Self::Refused(Rejection::TokenTtl { index, .. }) => Some(format!("tasks[{index}].token_ttl_seconds")),
            Self::Invalid { field, .. }
            | Self::UnknownField { field, .. }
            | Self::BadArgument { field, .. }
            | Self::PayloadTooLarge { field } => Some(field.clone()),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after }
            | Self::StoreUnavailable { retry_after }
            | Self::RateLimited { retry_after, .. }
            | Self::TooManyFailures { retry_after }
            | Self::TenantLimit { retry_after, .. } => Some(*retry_after),
            Self::ProviderUnavailable => Some(Duration::from_secs(5)),
            Self::ShuttingDown | Self::Internal => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    fn class(&self) -> ErrorClass {
        match self.status() {
            StatusCode::UNAUTHORIZED => ErrorClass::Unauthorized,
            StatusCode::FORBIDDEN => ErrorClass::Forbidden,
            StatusCode::NOT_FOUND => ErrorClass::NotFound,
            StatusCode::CONFLICT => ErrorClass::Conflict,
            StatusCode::REQUEST_TIMEOUT => ErrorClass::Timeout,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => ErrorClass::ResourceLimit,
            StatusCode::SERVICE_UNAVAILABLE => ErrorClass::Unavailable,
            StatusCode::INTERNAL_SERVER_ERROR => ErrorClass::InternalError,
            _ => ErrorClass::BadRequest,
        }
    }

    /// As the user API says it.
    pub fn for_user(self, id: &RequestId) -> Response {
        self.log(id);
        let body = UserError {
            code: self.class(),
            error: self.code("task_not_found").to_owned(),
            message: self.message(),
            request_id: id.0.clone(),
            field: self.field(),
            existing_run_id: None,
            existing_fingerprint: None,
            requested_fingerprint: None,
        };
        let body = match &self {
            Self::Refused(Rejection::RunKeyConflict { existing, requested }) => UserError {
                existing_run_id: existing.map(|(run, _)| run.to_string()),
                existing_fingerprint: existing.map(|(_, digest)| render::fingerprint(&digest)),
                requested_fingerprint: Some(render::fingerprint(requested)),
                ..body
            },
            _ => body,
        };
        self.respond(Json(body))
    }

    /// As the pull contract says it.
    pub fn for_worker(self, id: &RequestId) -> Response {
        self.log(id);
        let conflict = self.conflict();
        let body = WorkerError {
            ok: false,
            ack: conflict.map(|conflict| conflict.ack),
            error: self.code("job_not_found").to_owned(),
            message: self.message(),
            status: conflict.map(|conflict| render::job_status(conflict.state, conflict.dead_lettered).to_owned()),
            field: self.field(),
            request_id: id.0.clone(),
        };
        self.respond(Json(body))
    }

    /// As the callback contract says it. Its words are a closed set.
    pub fn for_callback(self, id: &RequestId) -> Response {
        self.log(id);
        let mut body = CallbackError {
            error: match self {
                Self::Busy { .. } | Self::ShuttingDown => "store_unavailable",
                _ => self.code("task_not_found"),
            }
            .to_owned(),
            message: self.message(),
            field: self.field(),
            retry_after_ms: self.retry_after().map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            retryable: Some(self.is_worth_a_retry()),
            request_id: Some(id.0.clone()),
            ..CallbackError::default()
        };
        if let Self::Refused(Rejection::Callback(refusal)) = &self {
            // Whoever has no good token learns nothing about the task.
            if refusal.why != Refused::InvalidToken {
                body.state = Some(refusal.phase.as_str().to_owned());
            }
            match &refusal.why {
                Refused::AttemptMismatch { expected, received } => {
                    (body.expected_attempt, body.received_attempt) = (Some(*expected), Some(*received));
                }
                Refused::AttemptIdMismatch { expected, received } => {
                    body.expected_attempt_id = Some(expected.to_string());
                    body.received_attempt_id = Some(received.to_string());
                }
                Refused::TaskTerminal { cancel_reason } => {
                    body.cancel_reason = cancel_reason.as_deref().map(ToOwned::to_owned);
                }
                _ => {}
            }
        }
        self.respond(Json(body))
    }

    /// Whether the same request may succeed later.
    fn is_worth_a_retry(&self) -> bool {
        let status = self.status();
        status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::REQUEST_TIMEOUT
    }

    /// As one item of an exchange says it.
    pub fn for_item(&self) -> ItemAnswer {
        let conflict = self.conflict();
        ItemAnswer {
            ok: false,
            ack: conflict.map(|conflict| conflict.ack),
            error: Some(self.code("job_not_found").to_owned()),
            message: Some(self.message()),
            status: conflict.map(|conflict| render::job_status(conflict.state, conflict.dead_lettered).to_owned()),
            field: self.field(),
            http_status: Some(self.status().as_u16()),
            ..ItemAnswer::default()
        }
    }

    /// What went wrong inside was logged where it happened; this line ties it to the request.
    fn log(&self, id: &RequestId) {
        if *self == Self::Internal {
            tracing::error!(request.id = id.0, "request failed with an internal error");
        }
    }

    fn conflict(&self) -> Option<&Conflict> {
        match self {
            Self::Refused(Rejection::Conflict(conflict)) => Some(conflict),
            _ => None,
        }
    }

    fn respond(&self, body: impl IntoResponse) -> Response {
        let mut response = (self.status(), body).into_response();
        if let Some(after) = self.retry_after() {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil().max(1.0) as u64));
        }
        if let Self::RateLimited { limit, .. } = self {
            response.headers_mut().insert("x-ratelimit-limit", HeaderValue::from(*limit));
            response.headers_mut().insert("x-ratelimit-remaining", HeaderValue::from(0));
        }
        response
    }
}

/// One message for every cause: it tells the holder nothing about other tasks.
const INVALID_TASK_TOKEN: &str = "the task token is not valid for this task and attempt";

fn token_ttl_message(needed_ms: i64, allowed_ms: i64) -> String {
    format!(
        "the task tokens must be valid for {} s (time-out, dispatch and cancel grace), the maximum is {} s",
        needed_ms.div_euclid(1000) + i64::from(needed_ms % 1000 > 0),
        allowed_ms / 1000
    )
}

fn callback_message(refusal: &Refusal) -> String {
    match &refusal.why {
        Refused::AttemptMismatch { expected, received } if received < expected => {
            format!("attempt {expected} is current: attempt {received} was superseded")
        }
        Refused::AttemptMismatch { expected, received } => {
            format!("attempt {expected} is current: there is no attempt {received} yet")
        }
        Refused::AttemptIdMismatch { .. } => "attemptId does not match the current attempt".to_owned(),
        Refused::InvalidToken => INVALID_TASK_TOKEN.to_owned(),
        Refused::TaskTerminal { .. } => format!("the task has ended: {}", refusal.phase.as_str()),
        Refused::AttemptCompleted => "the attempt has ended".to_owned(),
        Refused::AlreadyStarted => "another worker holds the attempt".to_owned(),
        Refused::Expired => "the lease of the attempt has expired".to_owned(),
    }
}

fn conflict_message(conflict: &Conflict) -> String {
    match conflict.kind {
        ConflictKind::StaleAttempt => {
            format!("attempt {} is current: this one was superseded", conflict.attempt)
        }
        ConflictKind::StaleLease => "the lease token does not match the attempt".to_owned(),
        ConflictKind::LeaseExpired => "the lease has expired".to_owned(),
        ConflictKind::AttemptClosed => "the attempt has ended".to_owned(),
        ConflictKind::ConflictingCompletion => "the attempt was already reported with different content".to_owned(),
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Busy { retry_after } => Self::Busy { retry_after },
            EngineError::Unavailable { retry_after } => Self::StoreUnavailable { retry_after },
            EngineError::Closed => Self::ShuttingDown,
            EngineError::Internal => Self::Internal,
        }
    }
}

impl From<Rejection> for Fault {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::TaskId;

    #[test]
    fn refusals_about_tenants_and_owners_say_what_and_no_more() {
        let hidden = Rejection::IdempotencyConflict { index: 2, existing: None };
        let named = Rejection::IdempotencyConflict { index: 2, existing: Some(TaskId::from_u128(7)) };
        for (rejection, status, code, class) in [
            (Rejection::QueueNotFound, 404, "queue_not_found", ErrorClass::NotFound),
            (Rejection::QueueShared, 403, "queue_shared", ErrorClass::Forbidden),
            (hidden.clone(), 409, "idempotency_conflict", ErrorClass::Conflict),
            (named.clone(), 409, "idempotency_conflict", ErrorClass::Conflict),
        ] {
            let fault = Fault::Refused(rejection);
            assert_eq!((fault.status().as_u16(), fault.code("task_not_found")), (status, code));
            assert_eq!(fault.class(), class);
        }
        let task = TaskId::from_u128(7).to_string();
        assert!(Fault::Refused(named).message().contains(&task));
        let message = Fault::Refused(hidden).message();
        assert!(message.contains("entry 2") && !message.contains(&task), "{message}");
    }
}
