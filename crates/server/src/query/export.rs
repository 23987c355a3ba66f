//! Results in the object store.

use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tenure_contract::query::QueryExport;
use tenure_contract::query::process::{Done, Format, Frame};
use tenure_core::objects::Prefix;
use tenure_engine::Engine;
use tenure_objects::{ObjectError, Objects, Upload};
use uuid::Uuid;

use super::Queries;
use super::answer::{Question, json};
use super::endpoint::{Running, failed};
use crate::access::caller::Caller;
use crate::dispatch::{DispatchFault, NO_OBJECT_STORE};
use crate::error::Fault;

/// How long a result is kept.
pub(super) const KEPT_MS: i64 = 7 * 24 * 3_600_000;
/// How long its address is valid.
const URL_MS: i64 = 3_600_000;
/// How often old results are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);

/// The files that results are in.
pub const FILE_NAMES: [(&str, &str); 3] = [
    ("result.csv", "text/csv; charset=utf-8"),
    ("result.parquet", "application/vnd.apache.parquet"),
    ("result.jsonl", "application/jsonl"),
];

const fn file_of(format: Format) -> (&'static str, &'static str) {
    match format {
        Format::Csv => ("result.csv", "csv"),
        Format::Parquet => ("result.parquet", "parquet"),
        Format::JsonLines | Format::Rows => ("result.jsonl", "json"),
    }
}

pub(super) fn fault(error: &ObjectError) -> Fault {
    tracing::warn!(error = %error, reason = ?std::error::Error::source(error), "a result cannot be written or read");
    DispatchFault::fault("object_store_unavailable", "the object store is not available: try again")
}

/// A result on its way.
#[derive(Debug)]
pub struct Export {
    location: Prefix,
    name: String,
    word: &'static str,
    upload: Upload,
}

/// A result that is there.
#[derive(Debug)]
pub struct Written {
    pub done: Done,
    /// Its name.
    pub file: String,
    location: Prefix,
    word: &'static str,
}

impl Export {
    pub async fn begin(queries: &Queries, question: &Question, id: &str, format: Format) -> Result<Self, Fault> {
        let (Some(objects), Some(below)) = (&queries.dispatch.config.objects, &question.exports) else {
            return Err(DispatchFault::fault("object_store_unavailable", NO_OBJECT_STORE));
        };
        let location = below.below(id).map_err(|_| Fault::Internal)?;
        let (name, word) = file_of(format);
        let upload = objects.upload(&location, name).await.map_err(|error| fault(&error))?;
        Ok(Self { location, name: name.to_owned(), word, upload })
    }

    /// Begins a Parquet file of an output.
    pub async fn of_output(objects: &Objects, location: Prefix, name: String) -> Result<Self, Fault> {
        let upload = objects.upload(&location, &name).await.map_err(|error| fault(&error))?;
        Ok(Self { location, name, word: "parquet", upload })
    }

    /// Writes all of the result, or nothing.
    pub async fn write(self, running: &mut Running) -> Result<Written, Fault> {
        let Self { location, name, word, mut upload } = self;
        let ended = loop {
            match running.next().await {
                Ok(Frame::Data(piece)) => {
                    if let Err(error) = upload.write(Bytes::from(piece)).await {
                        break Err(fault(&error));
                    }
                }
                Ok(Frame::Done(done)) => break Ok(done),
                Ok(Frame::Failed(why)) => break Err(failed(why)),
                Ok(Frame::Begun(_)) => break Err(Fault::Internal),
                Err(lost) => break Err(lost),
            }
        };
        match ended {
            Ok(done) => {
                upload.finish().await.map_err(|error| fault(&error))?;
                Ok(Written { done, file: name, location, word })
            }
            Err(why) => {
                upload.abort().await;
                Err(why)
            }
        }
    }
}

impl Written {
    /// What a task that has written it says.
    pub fn summary(&self, expires_at: &str) -> String {
        let Done { rows, bytes, .. } = self.done;
        serde_json::json!({
            "output_location": self.location.to_string(), "file": self.file, "format": self.word, "row_count": rows,
            "bytes": bytes, "expires_at": expires_at,
        })
        .to_string()
    }

    pub async fn remove(&self, queries: &Queries) {
        if let Some(objects) = &queries.dispatch.config.objects
            && let Err(error) = objects.delete(&self.location, &self.file).await
        {
            tracing::warn!(error = %error, "a result that was not recorded cannot be removed");
        }
    }

    pub async fn answer(&self, queries: &Queries, question: &Question, id: &str) -> Result<Bytes, Fault> {
        let now = queries.engine.now().await?;
        let result_url = if question.with_url { Some(self.url(queries, id).await?) } else { None };
        json(&QueryExport {
            mode: "export".to_owned(),
            delivery: "export".to_owned(),
            query_id: id.to_owned(),
            output_location: self.location.to_string(),
            format: self.word.to_owned(),
            row_count: self.done.rows,
            bytes: self.done.bytes,
            expires_at: now.plus(KEPT_MS).to_string(),
            result_url,
        })
    }

    /// An address of the object store, or a path of this server.
    async fn url(&self, queries: &Queries, id: &str) -> Result<String, Fault> {
        let objects = queries.dispatch.config.objects.as_ref().ok_or(Fault::Internal)?;
        let valid_for = Duration::from_millis(URL_MS.unsigned_abs());
        let signed = objects.presigned_get(&self.location, &self.file, valid_for).await;
        Ok(match signed.map_err(|error| fault(&error))? {
            Some(url) => url,
            None => format!("/api/v1/query/{id}/result"),
        })
    }
}

/// Where the results of an organisation are.
pub fn of_org(objects: &Objects, org: &str) -> Option<Prefix> {
    let org = tenure_core::dag::org_id(org);
    objects.layout().all_scratch().ok()?.below(&format!("results/{org}")).ok()
}

/// The result of a query of a user, for an hour.
pub async fn result(queries: &Queries, caller: &Caller, id: &str) -> Result<Response, Fault> {
    let missing = || DispatchFault::fault("result_not_found", "no such result, or its address has expired");
    let id = Uuid::try_parse(id).map_err(|_| missing())?.to_string();
    let row = queries.engine.identity().query_audit(&id).await.map_err(tenure_engine::EngineError::from)?;
    let row = row.filter(|row| *row.entry.org == *caller.home()).ok_or_else(missing)?;
    let file = row.entry.export.ok_or_else(missing)?;
    let (name, kind) = FILE_NAMES.iter().find(|(name, _)| *name == file).ok_or_else(missing)?;
    if queries.engine.now().await? > row.at.plus(URL_MS) {
        return Err(missing());
    }
    let objects = queries.dispatch.config.objects.as_ref().ok_or_else(missing)?;
    let location = of_org(objects, &caller.home()).and_then(|below| below.below(&id).ok()).ok_or_else(missing)?;
    let (length, bytes) = match objects.stream(&location, name).await {
        Err(ObjectError::NotFound) => return Err(missing()),
        found => found.map_err(|error| fault(&error))?,
    };
    let headers = [
        (header::CONTENT_TYPE, (*kind).to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

/// Removes results that are old, until the engine stops.
pub async fn keep_sweeping(engine: Engine, objects: std::sync::Arc<Objects>) {
    loop {
        if let Ok(now) = engine.now().await {
            match objects.sweep_results(now.plus(-KEPT_MS)).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(count = removed, "removed old results of queries"),
                Err(error) => tracing::warn!(error = %error, "cannot remove old results of queries"),
            }
        }
        tokio::select! {
            () = tokio::time::sleep(SWEEP_EVERY) => {}
            () = engine.stopped() => return,
        }
    }
}
