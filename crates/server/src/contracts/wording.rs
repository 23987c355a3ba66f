//! The status, the word and the message that answer a fault. The contracts share them, except for what the rules of
//! tasks refuse: each contract has words of its own for that.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure_contract::suggest;
use tenure_core::command::Rejection;

use crate::dispatch::status_of;
use crate::error::{
    BadRequest, Credential, Fault, Forbidden, SandboxFaultKind, Setting, Thing, Unavailable, key_owner,
};
use crate::request::RequestId;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wording {
    pub status: StatusCode,
    /// Stable: clients match on it, and each has a page in `docs/errors/`.
    pub word: &'static str,
    pub message: String,
}

impl Wording {
    pub fn new(status: StatusCode, word: &'static str, message: impl ToString) -> Self {
        Self { status, word, message: message.to_string() }
    }

    /// `refusal` returns nothing for a rejection that the contract cannot meet.
    pub fn of(fault: &Fault, refusal: fn(&Rejection) -> Option<Self>) -> Self {
        match fault {
            Fault::Request(wrong) => Self::of_request(wrong),
            Fault::NotFound(thing) => Self::new(StatusCode::NOT_FOUND, not_found(*thing), thing),
            Fault::QueueNotFound { near } => {
                let message = format!("no such queue{}", suggest::meant(near.as_deref()));
                Self::new(StatusCode::NOT_FOUND, "queue_not_found", message)
            }
            Fault::ScheduleNotFound { near } => {
                let message = format!("no such schedule{}", suggest::meant(near.as_deref()));
                Self::new(StatusCode::NOT_FOUND, "schedule_not_found", message)
            }
            Fault::RedriveNotFound => Self::new(StatusCode::NOT_FOUND, "redrive_not_found", "no such redrive"),
            Fault::RedriveConflict { redrive_id } => Self::new(
                StatusCode::CONFLICT,
                "idempotency_conflict",
                format!(
                    "the idempotency key belongs to redrive {redrive_id}, which has another filter: use another key"
                ),
            ),
            Fault::KeyTaken { existing } => Self::new(
                StatusCode::CONFLICT,
                "idempotency_conflict",
                format!("the idempotency key {}", key_owner(*existing)),
            ),
            Fault::ScheduleExists => Self::new(
                StatusCode::CONFLICT,
                "schedule_exists",
                "a schedule of this name exists: change it with PATCH, or use another name",
            ),
            Fault::MethodNotAllowed => Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path does not support the method: see /api/v1/openapi.json",
            ),
            Fault::MissingCredential(credential) => {
                let (word, message) = missing(*credential);
                Self::new(StatusCode::UNAUTHORIZED, word, message)
            }
            Fault::InvalidCredential(credential) => {
                let (word, message) = invalid(*credential);
                Self::new(StatusCode::UNAUTHORIZED, word, message)
            }
            Fault::Forbidden(forbidden) => Self::new(StatusCode::FORBIDDEN, forbidden_word(forbidden), forbidden),
            Fault::Unavailable(unavailable) => Self::of_unavailable(unavailable),
            Fault::NotConfigured(setting) => Self::new(StatusCode::SERVICE_UNAVAILABLE, unset(*setting), setting),
            Fault::Refused(rejection) => refusal(rejection).unwrap_or_else(|| {
                tracing::error!(reason = ?rejection, "the contract has no word for this refusal");
                Self::internal()
            }),
            Fault::Sandbox(fault) => {
                let (status, word) = sandbox(fault.kind);
                Self::new(status, word, &fault.message)
            }
            Fault::Dispatch(fault) => Self::new(status_of(fault.code), fault.code, &fault.message),
            Fault::Internal => Self::internal(),
        }
    }

    fn of_request(wrong: &BadRequest) -> Self {
        let (status, word) = match wrong {
            BadRequest::Malformed { .. } => (StatusCode::BAD_REQUEST, "malformed_request"),
            BadRequest::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            BadRequest::BodyTooLarge { .. } | BadRequest::PayloadTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large")
            }
            BadRequest::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            BadRequest::Invalid { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_argument"),
            BadRequest::UnknownField { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "unknown_field"),
            BadRequest::BadArgument { .. } => (StatusCode::BAD_REQUEST, "invalid_argument"),
            BadRequest::TokenTtl { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "token_ttl_too_short"),
            BadRequest::Runtime { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "wrong_runtime"),
        };
        Self::new(status, word, wrong)
    }

    fn of_unavailable(unavailable: &Unavailable) -> Self {
        let (status, word) = match unavailable {
            Unavailable::RateLimited { .. } | Unavailable::TooManyFailures { .. } | Unavailable::Backlog { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limited")
            }
            Unavailable::TenantLimit { .. } => (StatusCode::TOO_MANY_REQUESTS, "tenant_limit"),
            Unavailable::Busy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            Unavailable::Store { .. } | Unavailable::DiskFull { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable")
            }
            Unavailable::IdentityProvider => (StatusCode::SERVICE_UNAVAILABLE, "identity_provider_unavailable"),
            Unavailable::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        };
        Self::new(status, word, unavailable)
    }

    fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "internal error: the server log has details under this request id",
        )
    }

    /// The whole answer: `body` with the status, and the headers that go with the fault.
    pub fn respond(&self, fault: &Fault, id: &RequestId, body: impl Serialize) -> Response {
        if self.status == StatusCode::INTERNAL_SERVER_ERROR {
            // The cause was logged where it happened; this line ties it to the request.
            tracing::error!(request.id = id.0, "request failed with an internal error");
        }
        let mut response = (self.status, Json(body)).into_response();
        if let Some(after) = fault.retry_after() {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Fault::Unavailable(Unavailable::RateLimited { limit, .. }) = fault {
            response.headers_mut().insert("x-ratelimit-limit", HeaderValue::from(*limit));
            response.headers_mut().insert("x-ratelimit-remaining", HeaderValue::from(0));
        }
        response
    }
}

const fn sandbox(kind: SandboxFaultKind) -> (StatusCode, &'static str) {
    match kind {
        SandboxFaultKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        SandboxFaultKind::Invalid => (StatusCode::BAD_REQUEST, "invalid_argument"),
        SandboxFaultKind::Denied => (StatusCode::FORBIDDEN, "denied"),
        SandboxFaultKind::Conflict => (StatusCode::CONFLICT, "conflict"),
        SandboxFaultKind::Timeout => (StatusCode::REQUEST_TIMEOUT, "timeout"),
        SandboxFaultKind::Limit => (StatusCode::TOO_MANY_REQUESTS, "resource_limit"),
        SandboxFaultKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
        SandboxFaultKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "worker_unavailable"),
        SandboxFaultKind::NoAnswer => (StatusCode::BAD_GATEWAY, "no_answer"),
        SandboxFaultKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "unsupported"),
        SandboxFaultKind::Range => (StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable"),
        SandboxFaultKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    }
}

const fn not_found(thing: Thing) -> &'static str {
    match thing {
        Thing::Path => "not_found",
        Thing::ApiKey => "api_key_not_found",
        Thing::Tenant => "tenant_not_found",
        Thing::TaskKey => "task_key_not_found",
    }
}

const fn missing(credential: Credential) -> (&'static str, &'static str) {
    match credential {
        Credential::WorkerToken => {
            ("missing_worker_token", "send the worker token in X-Worker-Token or as Authorization: Bearer")
        }
        Credential::BootstrapKey => {
            ("missing_bootstrap_key", "send the bootstrap key of this worker in X-Worker-Bootstrap-Key")
        }
        Credential::ApiKey | Credential::Bearer => ("missing_api_key", "send the API key in X-API-Key"),
        Credential::TaskToken => invalid(credential),
        Credential::Capability => (
            "missing_capability",
            "send the capability token of the claim in X-Trace-Task-Capability or as Authorization: Bearer",
        ),
    }
}

const fn invalid(credential: Credential) -> (&'static str, &'static str) {
    match credential {
        Credential::WorkerToken => ("invalid_worker_token", "the worker token is not valid for this worker"),
        Credential::BootstrapKey => ("invalid_bootstrap_key", "the bootstrap key is not valid for this worker"),
        // One message for every cause: it tells the holder nothing about other tasks.
        Credential::TaskToken => ("invalid_token", "the task token is not valid for this task and attempt"),
        Credential::Capability => ("invalid_capability", "the capability token is not valid"),
        Credential::ApiKey => ("invalid_api_key", "the API key is not valid"),
        Credential::Bearer => ("invalid_bearer_token", "the bearer token is not valid"),
    }
}

const fn forbidden_word(forbidden: &Forbidden) -> &'static str {
    match forbidden {
        Forbidden::WorkerMismatch => "worker_mismatch",
        Forbidden::WorkerScope { .. } | Forbidden::UserScope { .. } | Forbidden::HigherRole { .. } => "forbidden",
        Forbidden::NoRole => "no_role",
        Forbidden::Tenant | Forbidden::NoTenant => "tenant_forbidden",
        Forbidden::Owner => "owner_forbidden",
        Forbidden::Origin | Forbidden::Host | Forbidden::SimpleRequest => "origin_forbidden",
    }
}

const fn unset(setting: Setting) -> &'static str {
    match setting {
        Setting::WorkerToken | Setting::BootstrapKeys => "worker_auth_not_configured",
        Setting::SigningKey | Setting::TaskKey => "signing_key_not_configured",
    }
}
