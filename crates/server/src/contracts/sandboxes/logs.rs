//! What a sandbox wrote to its console, and what it uses.

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use tenure_contract::sandboxes::SandboxStats;
use tenure_contract::worker_rpc as wire;

use super::{Params, respond, respond_whole};
use crate::access::guard::User;
use crate::request::RequestId;
use crate::sandboxes::calls::call;
use crate::state::App;

const LINES_DEFAULT: i64 = 100;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/sandboxes/{id}/logs", get(logs)).route("/api/v1/sandboxes/{id}/stats", get(stats))
}

/// Show the end of the console of a sandbox
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/logs", operation_id = "get_sandbox_logs", tag = "sandboxes",
    params(("id" = String, Path), ("lines" = Option<i64>, Query, description = "default 100; 0 for all")), security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<String>, description = "The lines")))]
pub async fn logs(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    uri: Uri,
) -> Response {
    let answer = async {
        let part = app.sandboxes()?;
        let lines = Params::of(&uri)?.number("lines")?.unwrap_or(LINES_DEFAULT);
        let found = call(&app, &caller, &sandbox, |to| async move {
            let wire::TargetParams { sandbox_id, provider, runtime_id } = to.runtime.clone();
            let params = wire::LogsParams { sandbox_id, provider, runtime_id, lines };
            part.rpc.logs(&to.target, to.call(), &params).await
        });
        found.await
    };
    respond_whole(&app, &caller, answer.await, &id).await
}

/// Show what a sandbox uses
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/stats", operation_id = "get_sandbox_stats", tag = "sandboxes", params(("id" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = SandboxStats, description = "The use")))]
pub async fn stats(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
) -> Response {
    let answer = async {
        let part = app.sandboxes()?;
        let found = call(&app, &caller, &sandbox, |to| async move {
            match part.rpc.stats(&to.target, to.call(), &to.runtime).await {
                Ok(stats) => Ok(Some(stats)),
                // Neither a worker of the contract alone nor every provider can tell.
                Err(tenure_rpc::Error::Unsupported { .. }) => Ok(None),
                Err(error) if error.code() == Some(wire::Code::Invalid) => Ok(None),
                Err(error) => Err(error),
            }
        });
        Ok(match found.await? {
            None => SandboxStats::default(),
            Some(stats) => SandboxStats {
                supported: true,
                cpu_pct: Some(stats.cpu_pct),
                mem_bytes: Some(stats.mem_bytes),
                mem_limit_bytes: Some(stats.mem_limit_bytes),
                pids: Some(stats.pids),
                disk_bytes: Some(stats.disk_bytes),
            },
        })
    };
    respond(answer.await, &id)
}
