use std::time::Duration;

use axum::http::StatusCode;
use tenure_contract::dags::DagProblem;
use tenure_core::dag::data::DataRefusal;

use crate::error::{Fault, cut};

/// Why there is no answer about a DAG, its data, or a task of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchFault {
    /// A word of [`CODES`].
    pub code: &'static str,
    pub message: String,
    /// Everything that is wrong with the text of a DAG.
    pub problems: Vec<DagProblem>,
}

/// The words of the dispatch contract, by status.
const CODES: &[(StatusCode, &[&str])] = &[
    (StatusCode::BAD_REQUEST, &["malformed_request", "invalid_sql"]),
    (
        StatusCode::UNAUTHORIZED,
        &[
            "missing_capability",
            "invalid_capability",
            "missing_worker_token",
            "invalid_worker_token",
            "invalid_api_key",
            "invalid_signature",
        ],
    ),
    (StatusCode::FORBIDDEN, &["capability_mismatch", "worker_mismatch", "dataset_not_granted", "prefix_not_granted"]),
    (
        StatusCode::NOT_FOUND,
        &[
            "task_not_found",
            "dag_not_found",
            "version_not_found",
            "job_not_found",
            "dataset_not_found",
            "webhook_not_found",
            "bundle_not_found",
            "result_not_found",
        ],
    ),
    (
        StatusCode::CONFLICT,
        &[
            "stale_attempt",
            "stale_lease",
            "lease_expired",
            "attempt_closed",
            "completion_conflict",
            "task_canceled",
            "dataset_version_conflict",
            "version_not_ready",
            "no_previous_version",
            "not_a_manual_source",
            "idempotency_conflict",
            "bundle_in_use",
        ],
    ),
    (
        StatusCode::PAYLOAD_TOO_LARGE,
        &["body_too_large", "inline_too_large", "batch_too_large", "manifest_too_large", "bundle_too_large"],
    ),
    (
        StatusCode::UNPROCESSABLE_ENTITY,
        &[
            "invalid_dag",
            "invalid_event",
            "partition_mismatch",
            "unknown_dataset_version",
            "output_without_position",
            "missing_success_marker",
            "invalid_manifest",
            "schema_hash_mismatch",
            "dataset_ambiguous",
            "incompatible_schema",
            "unsupported_content_type",
            "unsupported_field",
            "invalid_prefix",
            "scope_too_large",
            "invalid_bundle",
            "query_timeout",
            "query_memory_exceeded",
            "query_failed",
        ],
    ),
    (
        StatusCode::SERVICE_UNAVAILABLE,
        &["data_store_unavailable", "object_store_unavailable", "query_busy", "query_unavailable"],
    ),
];

/// The status that goes with a word of the contract.
pub fn status_of(code: &str) -> StatusCode {
    let known = CODES.iter().find(|(_, codes)| codes.contains(&code)).map(|(status, _)| *status);
    known.unwrap_or_else(|| {
        tracing::error!(code, "a word of the dispatch contract has no status");
        StatusCode::INTERNAL_SERVER_ERROR
    })
}

impl DispatchFault {
    pub fn fault(code: &'static str, message: impl Into<String>) -> Fault {
        Fault::Dispatch(Box::new(Self { code, message: cut(message.into()), problems: Vec::new() }))
    }

    /// When the same request may succeed.
    pub fn retry_after(&self) -> Option<Duration> {
        (status_of(self.code) == StatusCode::SERVICE_UNAVAILABLE).then_some(Duration::from_secs(1))
    }

    /// `invalid_dag`, with everything that is wrong.
    pub fn invalid_dag(problems: Vec<DagProblem>) -> Fault {
        let message = match problems.as_slice() {
            [only] => format!("line {}: {}", only.line, only.message),
            many => format!("the DAG has {} errors", many.len()),
        };
        Fault::Dispatch(Box::new(Self { code: "invalid_dag", message: cut(message), problems }))
    }
}

impl From<DataRefusal> for Fault {
    fn from(refusal: DataRefusal) -> Self {
        DispatchFault::fault(refusal.code, refusal.message)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_word_has_one_status() {
        let all: Vec<&str> = CODES.iter().flat_map(|(_, codes)| codes.iter().copied()).collect();
        let distinct: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), distinct.len());
        assert_eq!(status_of("stale_lease"), StatusCode::CONFLICT);
        assert_eq!(status_of("no_such_word"), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
