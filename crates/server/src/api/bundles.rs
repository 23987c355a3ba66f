//! Bundles of code that jobs run.

use std::io::SeekFrom;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tenure_bundle::limits::BUNDLE_BYTES;
use tenure_bundle::{Archive, Manifest};
use tenure_contract::dags;
use tenure_engine::dags::{Bundle, RemoveBundleError, new_bundle_id};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use uuid::Uuid;

use super::errors::refuse;
use super::respond;
use crate::access::guard::User;
use crate::dispatch::{DispatchFault, ZIP, object_store_down};
use crate::error::{BadRequest, Fault};
use crate::request::RequestId;
use crate::state::App;
use crate::{audit, limits, memory};

/// A bundle must arrive within this.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// What is in memory of a bundle on its way to the file, and then to the object store.
const UPLOAD_MEMORY: usize = 8 << 20;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/udf/bundles", post(upload)).route("/api/v1/udf/bundles/{id}", get(show).delete(remove))
}

/// Upload a bundle
///
/// The body is a zip file of at most 64 MiB with `bundle_manifest.json`. A bundle never changes; one whose bytes are known
/// is not made again.
#[utoipa::path(post, path = "/api/v1/udf/bundles", operation_id = "upload_bundle", tag = "dags", security(("api_key" = ["api"])),
    request_body(content = String, content_type = "application/zip", description = "The zip file"),
    responses((status = 201, body = dags::Bundle, description = "A new bundle"),
        (status = 200, body = dags::Bundle, description = "The bytes are known")))]
pub async fn upload(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = store(&app, &caller.home(), &headers, body).await;
    let name = answer.as_ref().map_or_else(|_| String::new(), |(bundle, _)| bundle.id.to_string());
    let answer = audit::operation(&app, &caller, &id, "bundle.upload", &name, answer).await;
    match answer {
        Ok((bundle, is_new)) => {
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            (status, Json(rendered(&bundle))).into_response()
        }
        Err(fault) => refuse(fault, &id),
    }
}

async fn store(app: &App, org: &Arc<str>, headers: &HeaderMap, body: Body) -> Result<(Bundle, bool), Fault> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > BUNDLE_BYTES) {
        return Err(too_large());
    }
    let part = &app.dispatch;
    part.objects()?;
    let place = part.uploads.enter(org)?;
    let mut room = memory::room();
    room.enlarge(UPLOAD_MEMORY).await?;
    let received = tokio::time::timeout(UPLOAD_TIMEOUT, receive(body)).await;
    let Received { file, sha256, bytes } = received.map_err(|_| Fault::from(BadRequest::BodyTimeout))??;
    if let Some(known) = part.dags.bundle_of(org, &sha256).await? {
        return Ok((known, false));
    }
    let own = file.try_clone().map_err(disk)?;
    let manifest = tokio::task::spawn_blocking(move || checked(own)).await.map_err(|_| Fault::Internal)??;
    let (app, org) = (app.clone(), Arc::clone(org));
    // Goes on when the caller does not wait: otherwise bytes would be left that are not on record.
    let keeping = tokio::spawn(async move {
        let _held = (place, room);
        keep(&app, &org, Received { file, sha256, bytes }, &manifest).await
    });
    keeping.await.map_err(|_| Fault::Internal)?
}

/// Writes a bundle to the object store, and then records it.
async fn keep(app: &App, org: &str, received: Received, manifest: &Manifest) -> Result<(Bundle, bool), Fault> {
    let Received { file, sha256, bytes } = received;
    let (part, id) = (&app.dispatch, new_bundle_id());
    let prefix = part.bundle_place(org, id)?;
    let mut content = tokio::fs::File::from_std(file);
    content.seek(SeekFrom::Start(0)).await.map_err(disk)?;
    part.objects()?.put_from(&prefix, ZIP, &mut content).await.map_err(object_store_down)?;
    let found = part.dags.add_bundle(org, id, &sha256, bytes, manifest).await?;
    let is_new = found.as_ref().is_some_and(|bundle| bundle.id == id);
    if is_new {
        part.finish_bundle(org, id).await?;
    } else {
        part.remove_bundle_bytes(org, id).await?;
    }
    let found = found.ok_or_else(|| DispatchFault::fault("invalid_bundle", "the organisation has too many bundles"))?;
    Ok((found, is_new))
}

struct Received {
    file: std::fs::File,
    sha256: String,
    bytes: u64,
}

/// Writes the body to a file without a name, which goes with this process. Bytes are counted as they come.
async fn receive(body: Body) -> Result<Received, Fault> {
    let file = tokio::task::spawn_blocking(tempfile::tempfile).await.map_err(|_| Fault::Internal)?.map_err(disk)?;
    let mut file = tokio::fs::File::from_std(file);
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut parts = body.into_data_stream();
    loop {
        let part = tokio::time::timeout(limits::BODY_TIMEOUT, parts.next()).await;
        let Some(part) = part.map_err(|_| Fault::from(BadRequest::BodyTimeout))? else { break };
        let part = part.map_err(|_| Fault::malformed("the body is incomplete"))?;
        bytes += part.len() as u64;
        if bytes > BUNDLE_BYTES {
            return Err(too_large());
        }
        hash.update(&part);
        file.write_all(&part).await.map_err(disk)?;
    }
    file.flush().await.map_err(disk)?;
    Ok(Received { file: file.into_std().await, sha256: tenure_bundle::hex(hash.finalize()), bytes })
}

fn checked(file: std::fs::File) -> Result<Manifest, Fault> {
    let archive = Archive::open_file(file)?;
    archive.check()?;
    Ok(archive.into_manifest())
}

fn too_large() -> Fault {
    DispatchFault::fault("bundle_too_large", format!("the bundle has more than {BUNDLE_BYTES} bytes"))
}

fn disk(error: std::io::Error) -> Fault {
    tracing::error!(%error, "cannot keep an upload in a temporary file");
    Fault::Internal
}

fn rendered(bundle: &Bundle) -> dags::Bundle {
    let manifest = &bundle.manifest;
    dags::Bundle {
        bundle_id: bundle.id.to_string(),
        sha256: bundle.sha256.to_string(),
        runtime: manifest.runtime.as_str().to_owned(),
        entrypoint: manifest.entrypoint.clone(),
        files: u32::try_from(manifest.files.len()).unwrap_or(u32::MAX),
        bytes: bundle.bytes.unsigned_abs(),
    }
}

/// Show a bundle
#[utoipa::path(get, path = "/api/v1/udf/bundles/{id}", operation_id = "show_bundle", tag = "dags", security(("api_key" = ["read"])),
    params(("id" = String, Path, description = "bundle_id")),
    responses((status = 200, body = dags::Bundle, description = "The bundle")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(bundle): Path<String>,
) -> Response {
    let answer = async {
        let found = app.dispatch.dags.bundle(&caller.home(), named(&bundle)?).await?;
        found.as_ref().map(rendered).ok_or_else(missing)
    };
    respond(answer.await, &id)
}

fn missing() -> Fault {
    DispatchFault::fault("bundle_not_found", "no bundle has this id")
}

fn named(id: &str) -> Result<Uuid, Fault> {
    Uuid::try_parse(id).map_err(|_| missing())
}

/// Remove a bundle
///
/// Refused while a job of a DAG version that is active, staged, or can be returned to runs it. Uploading the same bytes later
/// makes a bundle with another id.
#[utoipa::path(delete, path = "/api/v1/udf/bundles/{id}", operation_id = "remove_bundle", tag = "dags", security(("api_key" = ["api"])),
    params(("id" = String, Path, description = "bundle_id")),
    responses((status = 204, description = "Removed"), (status = 409, description = "A deployed job runs it")))]
pub async fn remove(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(bundle): Path<String>,
) -> Response {
    let answer = removed(&app, &caller.home(), &bundle).await;
    match audit::operation(&app, &caller, &id, "bundle.remove", &bundle, answer).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(fault) => refuse(fault, &id),
    }
}

async fn removed(app: &App, org: &Arc<str>, id: &str) -> Result<(), Fault> {
    let dags = &app.dispatch.dags;
    let bundle = dags.remove_bundle(org, named(id)?).await.map_err(|error| match error {
        RemoveBundleError::NotFound => missing(),
        error @ RemoveBundleError::InUse { .. } => DispatchFault::fault("bundle_in_use", error.to_string()),
        RemoveBundleError::Engine(error) => error.into(),
    })?;
    app.dispatch.remove_bundle_bytes(org, bundle.id).await
}
