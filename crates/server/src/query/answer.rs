//! A query from its request to its answer: within its bounds, and recorded before anybody is told.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use sha2::{Digest, Sha256};
use tenure_contract::Json;
use tenure_contract::query::process::{Ask, Begun, Bounds, Done, Format, Frame};
use tenure_contract::query::{QueryRequest, QueryRows, ROWS_DEFAULT, ROWS_MAX};
use tenure_core::objects::Prefix;
use tenure_engine::random_bits;
use tenure_engine::store::{Asker, QueryAudit};
use tokio::time::Instant;
use uuid::Uuid;

use super::endpoint::{Running, failed};
use super::export::Export;
use super::views::{Dataset, views};
use super::{InFlight, Queries};
use crate::dispatch::DispatchFault;
use crate::error::Fault;

pub(super) const SQL_BYTES: usize = 64 << 10;
/// Rows of an answer.
const INLINE_BYTES: u64 = 10 << 20;
/// A result that is exported.
pub(super) const EXPORT_BYTES: u64 = 4 << 30;
/// How long the process may take beyond the time limit that it was told, before it is given up.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Of an answer, at a time.
const PIECE: usize = 64 << 10;

/// A query that somebody may ask.
#[derive(Debug)]
pub struct Question {
    pub org: Arc<str>,
    pub asker: Asker,
    pub request: QueryRequest,
    pub datasets: Vec<Dataset>,
    /// The most that the caller may ask for.
    pub timeout: Duration,
    /// Where a result goes that is exported: below it, in a folder named after the query.
    pub exports: Option<Prefix>,
    /// Whether the answer has the address of the result.
    pub with_url: bool,
}

/// What a result is written as.
pub(super) fn format(request: &QueryRequest) -> Result<Format, Fault> {
    let export = request.export.unwrap_or(false);
    match request.format.as_deref().unwrap_or("json") {
        "json" if export => Ok(Format::JsonLines),
        "json" => Ok(Format::Rows),
        "csv" => Ok(Format::Csv),
        "parquet" => Ok(Format::Parquet),
        _ => Err(Fault::invalid("format", "must be json, csv or parquet")),
    }
}

/// Runs a query and answers it.
pub async fn answer(queries: &Queries, question: Question) -> Result<Response, Fault> {
    let place = queries.enter(&question.org)?;
    let body = run(queries, &question).await?;
    Ok(in_pieces(body, place))
}

/// The answer as JSON.
async fn run(queries: &Queries, question: &Question) -> Result<Bytes, Fault> {
    let Question { request, org, .. } = question;
    let format = format(request)?;
    if request.sql.len() > SQL_BYTES {
        let message = format!("the SQL has more than {SQL_BYTES} bytes");
        return Err(DispatchFault::fault("invalid_sql", message));
    }
    let began = Instant::now();
    let asked = request.timeout_seconds.map(|seconds| Duration::from_secs(u64::from(seconds.max(1))));
    let timeout = asked.unwrap_or(question.timeout).min(question.timeout);
    let deadline = began + timeout;
    let id = Uuid::from_u128(random_bits()).to_string();
    let rows = u64::try_from(request.limit.unwrap_or(ROWS_DEFAULT as i64)).unwrap_or(1).clamp(1, ROWS_MAX);
    let is_inline = format == Format::Rows;
    let looking = views(queries, org, &request.sql, &question.datasets, timeout + GRACE);
    let views = tokio::time::timeout_at(deadline, looking).await.map_err(|_| timed_out(timeout))??;
    let left = deadline.saturating_duration_since(Instant::now());
    let ask = Ask {
        query_id: id.clone(),
        sql: request.sql.clone(),
        views,
        format,
        bounds: Bounds {
            rows: is_inline.then_some(rows),
            bytes: Some(if is_inline { INLINE_BYTES } else { EXPORT_BYTES }),
            timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1),
            memory_bytes: queries.config.memory_bytes,
        },
    };
    let work = async {
        let mut running = queries.ask(&ask, deadline).await?;
        let begun = begin(&mut running).await?;
        if is_inline {
            let (data, done) = collect(&mut running).await?;
            audit(queries, question, &id, &begun, done.rows, None).await?;
            return inline(&id, begun, &data, done, began.elapsed());
        }
        let export = Export::begin(queries, question, &id, format).await?;
        let written = export.write(&mut running).await?;
        let recorded = audit(queries, question, &id, &begun, written.done.rows, Some(written.file.clone())).await;
        if let Err(fault) = recorded {
            written.remove(queries).await;
            return Err(fault);
        }
        written.answer(queries, question, &id).await
    };
    tokio::time::timeout_at(deadline + GRACE, work).await.map_err(|_| timed_out(timeout))?
}

pub(super) fn timed_out(timeout: Duration) -> Fault {
    let message = format!("the query took longer than {} s", timeout.as_secs());
    DispatchFault::fault("query_timeout", message)
}

pub(super) async fn begin(running: &mut Running) -> Result<Begun, Fault> {
    match running.next().await? {
        Frame::Begun(begun) => Ok(begun),
        Frame::Failed(why) => Err(failed(why)),
        Frame::Data(_) | Frame::Done(_) => Err(odd()),
    }
}

/// A process that answers something else is of another version, or not one.
fn odd() -> Fault {
    tracing::error!("a query process sent frames in the wrong order");
    Fault::Internal
}

async fn collect(running: &mut Running) -> Result<(Vec<u8>, Done), Fault> {
    let mut data = Vec::new();
    loop {
        match running.next().await? {
            Frame::Data(piece) if data.len() + piece.len() <= INLINE_BYTES as usize => data.extend_from_slice(&piece),
            Frame::Done(done) => return Ok((data, done)),
            Frame::Failed(why) => return Err(failed(why)),
            Frame::Begun(_) | Frame::Data(_) => return Err(odd()),
        }
    }
}

fn inline(id: &str, begun: Begun, data: &[u8], done: Done, took: Duration) -> Result<Bytes, Fault> {
    let rows = std::str::from_utf8(data).map_err(|_| odd())?;
    let rows = QueryRows {
        mode: "inline".to_owned(),
        delivery: "inline".to_owned(),
        query_id: id.to_owned(),
        columns: begun.columns,
        rows: Json::parse(&format!("[{rows}]")).map_err(|_| odd())?,
        row_count: done.rows,
        truncated: done.truncated,
        duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    };
    json(&rows)
}

pub fn json(answer: &impl serde::Serialize) -> Result<Bytes, Fault> {
    serde_json::to_vec(answer).map(Bytes::from).map_err(|_| Fault::Internal)
}

/// Records a query. Without its record it has no answer.
pub(super) async fn audit(
    queries: &Queries,
    question: &Question,
    id: &str,
    begun: &Begun,
    rows: u64,
    export: Option<String>,
) -> Result<(), Fault> {
    let read = |dataset: &&Dataset| dataset.names.iter().any(|name| begun.reads.contains(name));
    let row = QueryAudit {
        query_id: id.to_owned(),
        org: question.org.to_string(),
        asker: question.asker.clone(),
        datasets: question.datasets.iter().filter(read).map(|dataset| dataset.id.to_string()).collect(),
        columns: begun.columns.iter().map(|column| column.name.clone()).collect(),
        row_count: rows,
        sql_hash: hash(&question.request.sql),
        export,
    };
    queries.engine.identity().audit_query(&row).await.map_err(|error| {
        metrics::counter!("tenure_audit_failures_total").increment(1);
        tracing::error!(error = error.chain(), query.id = id, "cannot record a query: it is not answered");
        Fault::Internal
    })
}

fn hash(sql: &str) -> String {
    let digest = Sha256::digest(sql.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The answer, with its place until the last of it was taken.
fn in_pieces(body: Bytes, place: InFlight) -> Response {
    let length = body.len();
    let pieces = stream::unfold((body, place), async |(mut rest, place)| {
        if rest.is_empty() {
            return None;
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        Some((Ok::<Bytes, std::io::Error>(piece), (rest, place)))
    });
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, Body::from_stream(pieces)).into_response()
}
