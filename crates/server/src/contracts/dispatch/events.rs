//! Events of a task before its end.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use std::sync::Arc;
use tenure_contract::dispatch::{Error, EventsAnswer, EventsBody, EventsRequest, dialect};
use tenure_core::LeaseToken;
use tenure_core::command::emit::Emit;
use tenure_core::command::{ConflictKind, Rejection};
use tenure_core::dag::VersionId;
use tenure_core::dag::data::{DataReport, Position};
use tenure_core::dag::judge::Said;
use tenure_engine::dags::{Sender, Stage};

use super::who::{Seen, Speaker, Who};
use super::{BODY_BYTES, Capability, respond, said};
use crate::access::guard::AsWorker;
use crate::access::task_token::Presented;
use crate::error::Fault;
use crate::request::{self, RequestId};
use crate::state::App;

/// `POST /v1/task/events`
#[utoipa::path(post, path = "/v1/task/events", operation_id = "dispatch_events", tag = "dispatch contract",
    request_body = EventsBody, security(("capability_token" = [])),
    responses((status = 200, body = EventsAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn events(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(presented): Extension<Presented<Capability>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(record(&app, &Who::Task(presented), &headers, body).await, &id)
}

/// `POST /internal/events`
#[utoipa::path(post, path = "/internal/events", operation_id = "dispatch_events_alias", tag = "dispatch contract",
    request_body = EventsBody, security(("worker_token" = ["worker:lease"])),
    responses((status = 200, body = EventsAnswer), (status = "4XX", body = Error), (status = 503, body = Error)))]
pub async fn events_alias(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(worker): AsWorker,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(record(&app, &Who::Worker(worker), &headers, body).await, &id)
}

async fn record(app: &App, who: &Who, headers: &HeaderMap, body: Body) -> Result<EventsAnswer, Fault> {
    let raw = request::read_any(headers, body, BODY_BYTES).await?;
    let request = dialect::events(&raw.bytes)?;
    let speaker = who.speaker(app, &request.attempt)?;
    let seen = Seen::of(app, speaker.task).await?;
    let proof = speaker.proof(&seen)?;
    let data = data(app, &seen, &request, &speaker).await?;
    let named: Vec<(VersionId, Position)> =
        data.events.iter().map(|event| (event.version, event.position.clone())).collect();
    let before = app.dispatch.dags.recorded_events(&named).await?;
    let duplicates = before.iter().flatten().count();
    // Names of events that were sent twice count as such.
    let repeated = request.events.len().saturating_sub(named.len());
    let accepted = EventsAnswer { accepted: request.events.len(), duplicates: duplicates + repeated };
    let only_events = data.invalidations.is_empty() && !named.is_empty();
    let emit = Emit { task: speaker.task, attempt: speaker.attempt, proof, data: Arc::new(data) };
    match app.engine.emit(emit, raw.bytes.len()).await? {
        Ok(_) => {
            app.dispatch.dags.recorded();
            Ok(accepted)
        }
        // A repeat of what is on record changes nothing, whenever it comes.
        Err(Rejection::Conflict(conflict))
            if conflict.kind == ConflictKind::AttemptClosed
                && only_events
                && before.iter().all(|event| {
                    event.as_ref().and_then(|event| event.producer) == Some((speaker.task, speaker.attempt))
                }) =>
        {
            Ok(accepted)
        }
        Err(rejection) => Err(rejection.into()),
    }
}

async fn data(app: &App, seen: &Seen, request: &EventsRequest, speaker: &Speaker) -> Result<DataReport, Fault> {
    let task = &seen.task;
    let read = || {
        Ok(Said {
            events: said::events(&request.events)?,
            invalidations: said::invalidations(task, speaker.attempt, &request.invalidations)?,
            ..Said::default()
        })
    };
    match read() {
        Err(refusal) => {
            Ok(DataReport { refusal: Some(refusal), ..DataReport::of(Arc::clone(&task.org), task.input.job) })
        }
        Ok(said) => {
            // The token is judged with the command.
            let token = LeaseToken::from_u128(0);
            let sender = Sender { task: speaker.task, attempt: speaker.attempt, token, attempt_id: None };
            Ok(app.dispatch.dags.data(&sender, &task.org, &task.input, &said, Stage::Midway).await?)
        }
    }
}
