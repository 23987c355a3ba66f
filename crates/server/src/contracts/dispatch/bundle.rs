//! The bundle of a task, for object stores whose objects have no addresses.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tenure_contract::dispatch::Error;

use super::Capability;
use super::who::Seen;
use crate::access::task_token::{Presented, TaskToken};
use crate::dispatch::{DispatchFault, ZIP};
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;

/// `GET /v1/task/bundle`
#[utoipa::path(get, path = "/v1/task/bundle", operation_id = "dispatch_bundle", tag = "dispatch contract",
    security(("capability_token" = [])),
    responses((status = 200, body = String, content_type = "application/zip", description = "The bundle that the task of the token runs"),
              (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn download(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
) -> Response {
    let answer = async {
        let seen = Seen::of(&app, presented.bearer().task()).await?;
        let bundle = app.dispatch.bundle_of_task(&seen.task).await?;
        let bundle = bundle.ok_or_else(|| DispatchFault::fault("bundle_not_found", "this task runs no bundle"))?;
        let prefix = app.dispatch.bundle_place(&seen.task.org, bundle.id)?;
        let read = app.dispatch.objects()?.read(&prefix, ZIP).await;
        let (bytes, content) = read.map_err(crate::dispatch::object_store_down)?;
        let mut response = Body::from_stream(content).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zip"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
        Ok::<_, Fault>(response)
    };
    answer.await.unwrap_or_else(|fault| super::errors::refuse(fault, &id))
}
