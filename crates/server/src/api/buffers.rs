//! Rows that users publish to buffered datasets, and batches that were rejected.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use tenure_contract::Json;
use tenure_contract::dags::{BatchError, DeadBatch, DeadBatchPage, PublishRequest, ReplayRequest, Replayed};
use tenure_contract::dispatch::BufferPublished;
use tenure_contract::user::Page;
use tenure_core::dag::PublishId;
use tenure_core::dag::buffer::{BATCH_BYTES, Batch, CONTENT_TYPE, Content, message};
use tenure_engine::buffers::{PublishError, Upload};
use tenure_engine::store::buffers::{PublishRow, PublishState};

use super::dags::{BODY_BYTES, named, read};
use super::{query, respond, respond_with};
use crate::access::guard::User;
use crate::dispatch::DispatchFault;
use crate::error::{BadRequest, Fault, Unavailable};
use crate::request::{self, Raw, RequestId};
use crate::state::App;
use crate::{audit, validate};

/// Records of a dead letter that a list shows.
const SHOWN_BYTES: usize = 16 << 10;
/// Dead letters of a page: each may have as much.
const PAGE: usize = 100;
/// Dead letters that a request names.
const REPLAYED: usize = 1_000;
/// What surrounds the records of a body.
const ENVELOPE_BYTES: usize = 1 << 10;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/buffers/{dataset}/publish", post(publish))
        .route("/api/v1/buffers/{dataset}/dead", get(dead))
        .route("/api/v1/buffers/{dataset}/replay", post(replay))
}

/// Publish rows to a buffered dataset
///
/// The body is `{"records": […]}`, or JSON lines with the content type `application/jsonl`; at most 16 MiB. The rows are
/// written by the sink of the dataset: all of them, or none if one is wrong.
#[utoipa::path(post, path = "/api/v1/buffers/{dataset}/publish", operation_id = "publish_buffer", tag = "datasets",
    params(("dataset" = String, Path, description = "Name, or dataset_uuid"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same one again is the same batch")),
    request_body(content((PublishRequest = "application/json"), (String = "application/jsonl"))), security(("api_key" = ["api"])),
    responses((status = 202, body = BufferPublished, description = "The batch is recorded")))]
pub async fn publish(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(dataset): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let (upload, schema_hash) = upload(&headers, body).await?;
        let key = named(None, &headers)?;
        let buffers = app.dispatch.buffers()?;
        let schema_hash = schema_hash.map(Into::into);
        let accepted = buffers.publish(&caller.home(), &dataset, upload, schema_hash, key.as_deref()).await?;
        Ok(BufferPublished::accepted(accepted.id.to_string(), accepted.duplicate))
    };
    let answer = answer.await;
    let answer = audit::operation(&app, &caller, &id, "buffer.publish", &dataset, answer).await;
    respond_with(StatusCode::ACCEPTED, answer, &id)
}

async fn upload(headers: &HeaderMap, body: Body) -> Result<(Upload, Option<String>), Fault> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("application/json");
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let limit = BATCH_BYTES as usize;
    match &*kind {
        CONTENT_TYPE => Ok((Upload::Lines(whole(headers, body, limit).await?.bytes), None)),
        "application/json" => {
            let sent: PublishRequest = whole(headers, body, limit + ENVELOPE_BYTES).await?.decode()?;
            let records = sent.records.text();
            if !records.trim_start().starts_with('[') {
                return Err(Fault::invalid("records", "must be a list of objects"));
            }
            Ok((Upload::Records(records), sent.schema_hash))
        }
        _ => {
            let message = "send application/json with records, or application/jsonl";
            Err(DispatchFault::fault("unsupported_content_type", message))
        }
    }
}

async fn whole(headers: &HeaderMap, body: Body, limit: usize) -> Result<Raw, Fault> {
    match request::read_any(headers, body, limit).await {
        Err(Fault::Request(BadRequest::BodyTooLarge { .. })) => Err(PublishError::TooLarge.into()),
        read => read,
    }
}

/// A page of dead letters
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeadQuery {
    /// 1..=100, default 100
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List batches of a buffered dataset that were rejected for good
#[utoipa::path(get, path = "/api/v1/buffers/{dataset}/dead", operation_id = "list_dead_batches", tag = "datasets",
    params(("dataset" = String, Path, description = "Name, or dataset_uuid"), DeadQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = DeadBatchPage, description = "A page of dead letters")))]
pub async fn dead(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(dataset): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: DeadQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?.min(PAGE);
        let after = asked.cursor.as_deref().map_or(Ok(0), str::parse);
        let after = after.map_err(|_| Fault::invalid("cursor", "must be the next_cursor of a page"))?;
        let page = app.dispatch.buffers()?.dead(&caller.home(), &dataset, after, limit).await?;
        let items = page.items.iter().filter_map(rendered).collect();
        Ok(Page { items, next_cursor: page.next })
    };
    respond(answer.await, &id)
}

fn rendered(row: &PublishRow) -> Option<DeadBatch> {
    let PublishState::Dead(dead_at) = row.state else { return None };
    let (batch, error) = (row.batch.as_ref()?, row.error.as_ref()?);
    let long = matches!(&batch.content, Content::Records(records) if records.len() > SHOWN_BYTES);
    let shown = if long { Batch { content: Content::Records("[]".into()), ..batch.clone() } } else { batch.clone() };
    Some(DeadBatch {
        publish_id: row.id.to_string(),
        dataset_uuid: row.dataset.to_string(),
        receives: row.receives,
        error: BatchError { code: error.code.to_string(), message: error.message.to_string(), line: error.line },
        created_at: row.created_at.to_string(),
        dead_at: dead_at.to_string(),
        original: Json::from_trusted(message(&row.org, row.id, &shown)),
    })
}

/// Try rejected batches of a buffered dataset again
#[utoipa::path(post, path = "/api/v1/buffers/{dataset}/replay", operation_id = "replay_dead_batches", tag = "datasets",
    params(("dataset" = String, Path, description = "Name, or dataset_uuid")),
    request_body = ReplayRequest, security(("api_key" = ["api"])),
    responses((status = 200, body = Replayed, description = "So many batches wait again")))]
pub async fn replay(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    Path(dataset): Path<String>,
    body: Body,
) -> Response {
    let answer = async {
        let raw = read(&headers, body, BODY_BYTES).await?;
        let asked: ReplayRequest = if raw.bytes.is_empty() { ReplayRequest::default() } else { raw.decode()? };
        let ids = asked.publish_ids.map(|ids| {
            if ids.len() > REPLAYED {
                return Err(Fault::invalid("publish_ids", "has more than 1000 ids"));
            }
            let read = |id: &String| PublishId::parse(id).map_err(|_| Fault::invalid("publish_ids", "must be UUIDs"));
            ids.iter().map(read).collect::<Result<Vec<_>, _>>()
        });
        let ids = ids.transpose()?;
        let replayed = app.dispatch.buffers()?.replay(&caller.home(), &dataset, ids.as_deref()).await?;
        Ok(Replayed { replayed })
    };
    let answer = answer.await;
    let answer = audit::operation(&app, &caller, &id, "buffer.replay", &dataset, answer).await;
    respond(answer, &id)
}

impl From<PublishError> for Fault {
    fn from(error: PublishError) -> Self {
        let code = match &error {
            PublishError::UnknownDataset => "dataset_not_found",
            PublishError::SchemaHash => "schema_hash_mismatch",
            PublishError::TooLarge => "batch_too_large",
            PublishError::KeyReused => "idempotency_conflict",
            PublishError::Objects(_) | PublishError::NoObjects => "object_store_unavailable",
            PublishError::Full => return Unavailable::Backlog { retry_after: Duration::from_secs(5) }.into(),
            PublishError::Engine(error) => return error.clone().into(),
        };
        DispatchFault::fault(code, error.to_string())
    }
}
