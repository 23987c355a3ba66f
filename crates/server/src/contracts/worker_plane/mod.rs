//! Workers that hold sandboxes: heartbeats and renewals of leases. A worker speaks for itself only.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, http::StatusCode};
use serde::{Deserialize, Serialize};
use tenure_contract::sandboxes::{SandboxError, WorkerInfo};
use tenure_contract::worker_plane::{self as wire, Heartbeat};
use tenure_contract::worker_rpc::LeaseToken;
use tenure_core::sandbox::Held;
use tenure_core::sandbox::placement::Capacity;
use tenure_core::{Timestamp, limits};
use tenure_engine::store::Beat;

use super::Dialect;
use super::sandboxes::{errors, render};
use crate::access::guard::AsWorker;
use crate::error::{Credential, Fault, Forbidden};
use crate::request::{self, RequestId};
use crate::sandboxes::{duration_ms, workers};
use crate::state::App;
use crate::validate;

pub const DIALECT: Dialect = Dialect { name: None, owns, router, refuse: errors::refuse };

/// A heartbeat with its inventory.
const BODY_BYTES: usize = 4 << 20;
const INVENTORY_MAX: usize = 10_000;
const WORDS_MAX: usize = 256;
const WORD_BYTES: usize = 256;
const URL_BYTES: usize = 2048;
/// Tokens that a worker is told to refuse.
const REVOKED_MAX: usize = 10_000;

/// Tokens are issued by the user API.
fn owns(path: &str) -> bool {
    path.strip_prefix("/api/v1/worker/").is_some_and(|rest| rest.split('/').nth(1) != Some("token"))
}

fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/worker/{id}/heartbeat", post(heartbeat))
        .route("/api/v1/worker/{id}/leases/{resource}/renew", post(renew))
}

/// What a worker is answered.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HeartbeatReply {
    #[serde(flatten)]
    worker: WorkerInfo,
    /// Runtimes to destroy.
    #[schema(value_type = Vec<Object>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    orphans: Vec<wire::Orphan>,
    /// Tokens to refuse.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    revoked_token_ids: Vec<String>,
    /// What this control plane knows beyond the contract.
    features: Vec<String>,
}

/// How long a lease should last.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct RenewRequest {
    /// A duration such as `60s`; longer than `leases.max_ttl` is shortened.
    #[serde(default)]
    ttl: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RenewReply {
    #[schema(value_type = Object)]
    lease: LeaseToken,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_expires_at: Option<String>,
}

/// Report that a worker is alive, and what it holds
#[utoipa::path(post, path = "/api/v1/worker/{id}/heartbeat", operation_id = "worker_heartbeat", tag = "worker plane", params(("id" = String, Path)),
    request_body(content = Object, description = "What the worker is, has room for and holds"), security(("worker_token" = ["worker:heartbeat"])),
    responses((status = 200, body = HeartbeatReply, description = "The worker as it is known now"), (status = "4XX", body = SandboxError), (status = 503, body = SandboxError)))]
pub async fn heartbeat(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    Path(named): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let worker = itself(&worker, &named)?;
        let beat: Heartbeat = read(&headers, body).await?;
        let reply = app.sandboxes()?.manager.heartbeat(&checked(worker, beat)?).await?;
        let mut revoked: Vec<String> =
            app.identity.revoked().unwrap_or_default().iter().take(REVOKED_MAX).cloned().collect();
        revoked.sort();
        Ok(HeartbeatReply {
            worker: WorkerInfo {
                desired_status: reply.desired_status,
                ..render::worker(&reply.worker, reply.is_stale, None)
            },
            orphans: reply
                .orphans
                .into_iter()
                .map(|orphan| wire::Orphan {
                    sandbox_id: orphan.sandbox.to_string(),
                    runtime_id: orphan.runtime_id.to_string(),
                })
                .collect(),
            revoked_token_ids: revoked,
            features: reply.features.iter().map(|&feature| feature.to_owned()).collect(),
        })
    };
    respond(answer.await, &id)
}

/// Renew the lease of a worker on a sandbox
#[utoipa::path(post, path = "/api/v1/worker/{id}/leases/{resource}/renew", operation_id = "renew_worker_lease", tag = "worker plane", params(("id" = String, Path), ("resource" = String, Path)),
    request_body = RenewRequest, security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = RenewReply, description = "The renewed lease"),
              (status = 409, body = SandboxError, description = "`reason` is lease_expired or lease_stale"), (status = "4XX", body = SandboxError), (status = 503, body = SandboxError)))]
pub async fn renew(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    Path((named, resource)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let worker = itself(&worker, &named)?;
        let part = app.sandboxes()?;
        let asked: RenewRequest = read(&headers, body).await?;
        let ttl_ms = match asked.ttl.as_deref().filter(|ttl| !ttl.is_empty()) {
            Some(ttl) => duration_ms(ttl, "ttl")?,
            None => part.manager.settings().lease_ttl_ms,
        };
        let resource = validate::text_of(&resource, "resource", WORD_BYTES)?;
        let renewed = part.manager.renew(worker, &resource, ttl_ms).await?;
        Ok(RenewReply {
            lease: workers::lease(&renewed.lease),
            sandbox_expires_at: renewed.sandbox_expires_at.map(|at| at.to_string()),
        })
    };
    respond(answer.await, &id)
}

/// The worker that calls, if the path names it too.
fn itself<'a>(worker: &'a tenure_auth::Worker, named: &str) -> Result<&'a str, Fault> {
    // A shared token is everybody's: the header says who shows it.
    let own = worker.id.as_deref().ok_or(Fault::MissingCredential(Credential::WorkerToken))?;
    if own == named { Ok(own) } else { Err(Forbidden::WorkerMismatch.into()) }
}

async fn read<T: serde::de::DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Fault> {
    let mut raw = request::read_any(headers, body, BODY_BYTES).await?;
    if raw.bytes.trim_ascii().is_empty() {
        raw.bytes = bytes::Bytes::from_static(b"{}");
    }
    raw.decode()
}

fn respond<T: Serialize>(answer: Result<T, Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(body) => (StatusCode::OK, Json(body)).into_response(),
        Err(fault) => errors::refuse(fault, id),
    }
}

/// A heartbeat within its limits.
fn checked(worker: &str, beat: Heartbeat) -> Result<Beat, Fault> {
    let short = |text: String, field: &str, max: usize| {
        if text.len() > max || text.chars().any(char::is_control) {
            return Err(Fault::bad(
                field,
                &format!("{field} may have at most {max} bytes, without control characters"),
            ));
        }
        Ok(text)
    };
    let words = |words: Vec<String>, field: &str| {
        if words.len() > WORDS_MAX {
            return Err(Fault::bad(field, &format!("{field} may have at most {WORDS_MAX} entries")));
        }
        words.into_iter().map(|word| short(word, field, WORD_BYTES)).collect::<Result<Vec<_>, _>>()
    };
    let optional = |text: Option<String>, field: &str| {
        text.filter(|text| !text.is_empty()).map(|text| short(text, field, URL_BYTES)).transpose()
    };
    let status = short(beat.status.trim().to_ascii_lowercase(), "status", WORD_BYTES)?;
    let inventory = match beat.inventory {
        None => None,
        Some(items) if items.len() > INVENTORY_MAX => {
            return Err(Fault::bad("inventory", &format!("inventory may have at most {INVENTORY_MAX} entries")));
        }
        Some(items) => Some(items.into_iter().map(held).collect::<Result<Vec<_>, _>>()?),
    };
    Ok(Beat {
        worker: validate::text_of(worker, "worker_id", limits::WORKER_ID_BYTES)?,
        hostname: short(beat.hostname, "hostname", WORD_BYTES)?,
        status: if status.is_empty() { wire::ONLINE.to_owned() } else { status },
        providers: words(beat.providers, "providers")?,
        capabilities: words(beat.capabilities, "capabilities")?,
        capacity: Capacity {
            max_sandboxes: beat.capacity.max_sandboxes,
            memory_mb: beat.capacity.memory_mb,
            vcpus: beat.capacity.vcpus,
            rpc_url: optional(beat.capacity.rpc_url, "rpc_url")?,
            preview_domain: optional(beat.capacity.preview_domain, "preview_domain")?,
        },
        boot_id: optional(beat.boot_id, "boot_id")?,
        seq: beat.seq,
        inventory,
    })
}

/// When it was first named, and how often as an orphan, is known to the store.
fn held(item: wire::InventoryItem) -> Result<Held, Fault> {
    let texts = [&item.sandbox_id, &item.runtime_id, &item.provider, &item.state];
    if item.sandbox_id.is_empty() || texts.iter().any(|text| text.len() > WORD_BYTES || text.contains('\0')) {
        return Err(Fault::bad("inventory", &format!("inventory names a sandbox with 1 to {WORD_BYTES} bytes")));
    }
    Ok(Held {
        sandbox_id: item.sandbox_id.into(),
        runtime_id: Arc::from(item.runtime_id),
        provider: item.provider,
        state: item.state,
        generation: item.generation,
        since: Timestamp::from_millis(0),
        orphan_beats: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_bounded_and_a_blank_status_is_online() {
        let beat = checked("w-1", Heartbeat::default()).unwrap();
        assert_eq!((beat.status.as_str(), beat.inventory.is_none()), ("online", true));
        let draining = Heartbeat { status: " Draining ".into(), ..Heartbeat::default() };
        assert_eq!(checked("w-1", draining).unwrap().status, "draining");
        let item = |sandbox_id: &str| wire::InventoryItem {
            sandbox_id: sandbox_id.into(),
            runtime_id: String::new(),
            provider: String::new(),
            state: String::new(),
            generation: 0,
        };
        for beat in [
            Heartbeat { hostname: "h".repeat(257), ..Heartbeat::default() },
            Heartbeat { hostname: "a\0b".into(), ..Heartbeat::default() },
            Heartbeat { providers: vec!["p".into(); 257], ..Heartbeat::default() },
            Heartbeat { inventory: Some(vec![item("")]), ..Heartbeat::default() },
            Heartbeat { inventory: Some(vec![item("sb-1"); 10_001]), ..Heartbeat::default() },
        ] {
            assert!(checked("w-1", beat).is_err());
        }
    }
}
