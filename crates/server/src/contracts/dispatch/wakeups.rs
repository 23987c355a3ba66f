//! Wake-ups for workers without an external queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Extension, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Deserialize;
use tenure_contract::dispatch::{Error, Wakeup, Wakeups};
use tenure_core::WorkerId;
use tenure_engine::WorkerCall;
use tenure_engine::dags::{WAKEUPS_MAX, WAKEUPS_WAIT};

use super::respond;
use crate::access::guard::AsWorker;
use crate::api;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;

/// No queue has a longer name.
const NAME_BYTES: usize = 256;

#[derive(Debug, Deserialize)]
struct WakeupsQuery {
    queue: String,
    max: Option<u64>,
    wait_seconds: Option<u64>,
}

/// `GET /internal/task-wakeups`
#[utoipa::path(get, path = "/internal/task-wakeups", operation_id = "dispatch_wakeups", tag = "dispatch contract",
    params(
        ("queue" = String, Query, description = "`worker`, `worker.{pool}` or `sandbox`"),
        ("max" = Option<i64>, Query, description = "Maximum number of tasks to return; 10 by default and at most"),
        ("wait_seconds" = Option<i64>, Query, description = "How long to wait if there are none, up to 20, which is the default")),
    security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = Wakeups), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn wakeups(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    uri: Uri,
) -> Response {
    let answer = async {
        let query: WakeupsQuery = api::query(&uri)?;
        if query.queue.len() > NAME_BYTES {
            return Err(Fault::malformed("queue must have at most 256 bytes"));
        }
        let max = query.max.map_or(WAKEUPS_MAX, |max| usize::try_from(max).unwrap_or(WAKEUPS_MAX));
        let wait = query.wait_seconds.map_or(WAKEUPS_WAIT, Duration::from_secs);
        if let Some(name) = &worker.id {
            let (name, queues): (WorkerId, [Arc<str>; 1]) = (name.as_str().into(), [query.queue.as_str().into()]);
            let call = WorkerCall { worker: &name, contract: "dispatch", queues: &queues, details: None };
            app.engine.saw_worker(call);
            if !app.engine.may_get_work(&name, Instant::now() + wait.min(WAKEUPS_WAIT)).await {
                return Ok(Wakeups { messages: Vec::new() });
            }
        }
        let tasks = app.dispatch.dags.wakeups(&query.queue, max, wait).await?;
        Ok(Wakeups { messages: tasks.iter().map(|task| Wakeup { task_id: task.to_string() }).collect() })
    };
    respond(answer.await, &id)
}
