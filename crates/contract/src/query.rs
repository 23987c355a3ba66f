//! Queries: SQL over datasets, for users and for the code of tasks.

pub mod process;
mod rows;

use serde::{Deserialize, Serialize};

use crate::Json;
pub use process::ResultColumn;

/// Rows of an answer if the request names no limit.
pub const ROWS_DEFAULT: u64 = 1_000;
/// The most rows of an answer.
pub const ROWS_MAX: u64 = 10_000;

/// Body of `POST /api/v1/query`. Unknown fields are ignored.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"sql": "SELECT severity, count(*) FROM alert_events GROUP BY 1", "limit": 100})))]
pub struct QueryRequest {
    /// One SELECT. Relations are names of datasets.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 65536))]
    pub sql: String,
    /// The dataset that is also called `dataset`: a name or an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_id: Option<String>,
    /// Names or ids of the datasets that can be read; default all that are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datasets: Option<Vec<String>>,
    /// Rows of an answer; 1 to 10,000, default 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// `json` (default), `csv` or `parquet`. The last two are exported.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(json|csv|parquet)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Writes the result to the object store: all of it, as JSON lines with `format` `json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<bool>,
    /// `interactive` (default), or `batch`: a task runs the query and exports its result.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(interactive|batch)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// At most 60, for tasks 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

impl std::fmt::Debug for QueryRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, format, export, mode, .. } = self;
        f.debug_struct("QueryRequest")
            .field("limit", limit)
            .field("format", format)
            .field("export", export)
            .field("mode", mode)
            .finish_non_exhaustive()
    }
}

/// Body of `POST /v1/task/query`: a [`QueryRequest`], and the attempt if the caller wants it compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskQueryRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_token: Option<String>,
    #[serde(flatten)]
    pub query: QueryRequest,
}

/// The answer to a query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum QueryAnswer {
    Inline(QueryRows),
    Export(QueryExport),
    Batch(QueryBatch),
}

impl QueryAnswer {
    /// Reads an answer. `mode` says which of them it is.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Which {
            mode: String,
        }
        match &*serde_json::from_str::<Which>(text)?.mode {
            "export" => serde_json::from_str(text).map(Self::Export),
            "batch" => serde_json::from_str(text).map(Self::Batch),
            _ => serde_json::from_str(text).map(Self::Inline),
        }
    }
}

/// The rows of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueryRows {
    /// Always `inline`.
    pub mode: String,
    /// The same as `mode`.
    pub delivery: String,
    pub query_id: String,
    pub columns: Vec<ResultColumn>,
    /// A list for each row.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Vec<Object>>))]
    pub rows: Json,
    pub row_count: u64,
    /// There are more rows than the limit, or than 10 MiB.
    pub truncated: bool,
    pub duration_ms: u64,
}

/// A query that runs as a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueryBatch {
    /// Always `batch`.
    pub mode: String,
    /// Always `export`.
    pub delivery: String,
    pub query_id: String,
    /// The task that runs it. Its result says how many rows there are.
    pub task_id: String,
    /// Why it runs as a task: `requested`.
    pub reason: String,
    /// A prefix; it holds one file once the task has succeeded.
    pub output_location: String,
}

/// A result in the object store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueryExport {
    /// Always `export`.
    pub mode: String,
    /// The same as `mode`.
    pub delivery: String,
    pub query_id: String,
    /// A prefix; it holds one file.
    pub output_location: String,
    pub format: String,
    pub row_count: u64,
    pub bytes: u64,
    /// When the result is removed.
    pub expires_at: String,
    /// Where a user reads the file. A path of this server needs the API key; another address is valid for an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_url: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_what_it_says() {
        let rows = r#"{"mode":"inline","delivery":"inline","query_id":"q","columns":[{"name":"n","type":"int64"}],
            "rows":[[1],[12345678901234567890]],"row_count":2,"truncated":false,"duration_ms":3}"#;
        let Ok(QueryAnswer::Inline(rows)) = QueryAnswer::parse(rows) else { panic!("no rows") };
        assert_eq!(rows.rows.as_str(), "[[1],[12345678901234567890]]");
        let export = r#"{"mode":"export","delivery":"export","query_id":"q","output_location":"s3://b/p/","format":"csv",
            "row_count":2,"bytes":10,"expires_at":"2026-01-01T00:00:00Z"}"#;
        assert!(matches!(QueryAnswer::parse(export), Ok(QueryAnswer::Export(_))));
        assert!(QueryAnswer::parse("{}").is_err());
    }
}
