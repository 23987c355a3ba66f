//! Deliveries of webhooks. Their senders have no API key: each delivery is signed with the secret of its source.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use tenure_auth::{SignedDelivery, WebhookSignature};
use tenure_contract::dags::SourceFired;
use tenure_contract::error::UserError;
use tenure_core::dag::definition::Signature;
use tenure_engine::dags::TriggerError;

use super::{dags, respond_with};
use crate::access::guard::{SignedSender, unix_now};
use crate::access::limiter::Allowance;
use crate::dispatch::DispatchFault;
use crate::error::{Fault, Unavailable};
use crate::request::RequestId;
use crate::state::App;

const BODY_BYTES: usize = 1 << 20;
const DELIVERY_ID_BYTES: usize = 100;
/// Deliveries to the sources of an organisation.
const PER_ORG: Allowance = Allowance { per_minute: 1_000.0, burst: 1_000.0 };

const TENURE_SIGNATURE: &str = "x-tenure-signature";
const GITHUB_SIGNATURE: &str = "x-hub-signature-256";
const DELIVERY_IDS: [&str; 2] = ["x-tenure-delivery", "x-github-delivery"];

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/webhooks/{*path}", post(deliver))
}

/// Deliver to a webhook source
#[utoipa::path(post, path = "/api/v1/webhooks/{path}", operation_id = "deliver_webhook", tag = "dags",
    params(("path" = String, Path, description = "The `webhook_path` of the source; it may contain slashes"),
        ("X-Tenure-Signature" = Option<String>, Header, description = "`t=<unix>,v1=<hex>`: HMAC-SHA256 of `{t}.{body}`, for `signature: tenure`"),
        ("X-Hub-Signature-256" = Option<String>, Header, description = "`sha256=<hex>`: HMAC-SHA256 of the body, for `signature: github`"),
        ("X-Tenure-Delivery" = Option<String>, Header, description = "Names the delivery: the same one again makes the same task")),
    responses((status = 202, body = SourceFired, description = "The task of the delivery"),
        (status = "4XX", body = UserError, description = "The delivery was refused"),
        (status = 503, body = UserError)))]
pub async fn deliver(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(sender): Extension<SignedSender>,
    Path(path): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = received(&app, &sender, &path, &headers, body).await;
    respond_with(StatusCode::ACCEPTED, answer, &id)
}

async fn received(
    app: &App,
    sender: &SignedSender,
    path: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<SourceFired, Fault> {
    let raw = dags::read(headers, body, BODY_BYTES).await?;
    let source = app.dispatch.dags.webhook(path).await?;
    let secret = source.as_ref().and_then(|source| app.dispatch.config.secrets.get(&source.job.org, &source.secret));
    if let (Some(source), None) = (&source, &secret) {
        tracing::warn!(
            dag.name = %source.job.dag, job.name = %source.job.definition.name, secret.name = %source.secret,
            "a webhook refuses every delivery: its secret is not in dispatch.secrets"
        );
    }
    // An unknown path takes as long as a wrong signature.
    let kind = source.as_ref().map_or(Signature::Tenure, |source| source.signature);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let sent = match kind {
        Signature::Tenure => WebhookSignature::Tenure(text(TENURE_SIGNATURE)),
        Signature::Github => WebhookSignature::Github(text(GITHUB_SIGNATURE)),
    };
    let signed = sent.verify(secret.as_ref(), &raw.bytes, unix_now());
    let Some(source) = source else {
        return Err(sender.failed(app, DispatchFault::fault("webhook_not_found", "no such webhook")));
    };
    let Some(signed) = signed else {
        let message = "the signature of the delivery is not valid, or too old";
        return Err(sender.failed(app, DispatchFault::fault("invalid_signature", message)));
    };
    let limit = app.limiter.take(&format!("webhook:{}", source.job.org), PER_ORG, Instant::now());
    if !limit.allowed {
        let (limit, retry_after) = (PER_ORG.per_minute as u32, limit.retry_after);
        return Err(Unavailable::RateLimited { limit, retry_after }.into());
    }
    let mut delivery_id = delivery_id(headers, &signed)?;
    if source.signature == Signature::Tenure {
        delivery_id = app.dispatch.dags.name_delivery(path, &signed.digest, &delivery_id).await?;
    }
    let body = std::str::from_utf8(&raw.bytes).map_err(|_| Fault::malformed("the body must be UTF-8"))?;
    let fired = app.dispatch.dags.deliver(&source, &delivery_id, body.into()).await.map_err(|error| match error {
        TriggerError::Engine(error) => Fault::from(error),
        // Another version became active meanwhile.
        _ => DispatchFault::fault("webhook_not_found", "no such webhook"),
    })?;
    Ok(SourceFired { task_id: uuid::Uuid::from_u128(fired.task.as_u128()).to_string(), created: fired.created })
}

/// The sender's name for the delivery, or the digest of what it signed.
fn delivery_id(headers: &HeaderMap, signed: &SignedDelivery) -> Result<Arc<str>, Fault> {
    let Some(sent) = DELIVERY_IDS.iter().find_map(|name| headers.get(*name)) else {
        return Ok(signed.digest.as_str().into());
    };
    let plain =
        |text: &&str| (1..=DELIVERY_ID_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let message = || format!("the delivery id must have 1 to {DELIVERY_ID_BYTES} printable characters without spaces");
    sent.to_str().ok().filter(plain).map(Into::into).ok_or_else(|| Fault::malformed(message()))
}
