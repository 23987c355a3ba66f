//! Logs of a task.

use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Deserialize;
use tenure_contract::pull::LogLine;
use tenure_contract::user::{TaskLogLine, TaskLogs};
use tenure_core::command::Rejection;
use tenure_engine::store::LogPiece;

use super::tasks::cursor;
use super::{errors, query};
use crate::access::guard::User;
use crate::error::Fault;
use crate::page;
use crate::request::RequestId;
use crate::state::App;
use crate::validate;

/// How long a request that follows waits for more.
const FOLLOW: Duration = Duration::from_secs(20);

/// Which lines
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LogsQuery {
    /// Of this attempt only
    #[param(minimum = 1)]
    attempt: Option<u32>,
    /// `next_cursor` or `follow_cursor` of the answer before
    cursor: Option<String>,
    /// Wait up to 20 s for lines after `cursor`, unless the task has ended
    #[serde(default)]
    follow: bool,
}

/// Show the logs of a task
///
/// What command operators print and what handlers log, oldest first. Logs may be incomplete: they are bounded in size, rate and age.
#[utoipa::path(get, path = "/api/v1/tasks/{id}/logs", operation_id = "get_task_logs", tag = "tasks", params(("id" = String, Path, description = "UUID, task_<ULID> or ULID"), LogsQuery), security(("api_key" = ["read"])),
    responses((status = 200, body = TaskLogs, description = "Lines")))]
pub async fn logs(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(task): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: LogsQuery = query(&uri)?;
        let task = validate::task_id(&task, "id")?;
        let after = asked.cursor.as_deref().map(cursor).transpose()?.map_or(0, |after| after.0);
        let wait = if asked.follow { FOLLOW } else { Duration::ZERO };
        let read = app.engine.task_logs(task, &caller.reach(), asked.attempt, after, wait).await?;
        let read = read.ok_or(Fault::Refused(Rejection::NotFound))?;
        let last = read.pieces.last().map_or(after, |piece| piece.id).to_string();
        let body = TaskLogs {
            items: read.pieces.iter().flat_map(lines).collect(),
            next_cursor: read.more.then(|| last.clone()),
            follow_cursor: last,
            ended: read.ended,
        };
        page::whole(StatusCode::OK, &body)
    };
    answer.await.unwrap_or_else(|fault| errors::refuse(fault, &id))
}

fn lines(piece: &LogPiece) -> Vec<TaskLogLine> {
    let lines: Vec<LogLine> = serde_json::from_str(&piece.lines).unwrap_or_default();
    let shown = |line: LogLine| TaskLogLine {
        attempt: piece.attempt,
        at: line.at.unwrap_or_else(|| piece.at.to_string()),
        stream: line.stream.unwrap_or_else(|| "log".to_owned()),
        text: line.text,
    };
    lines.into_iter().map(shown).collect()
}
