//! Changes of tasks and runs as server-sent events, with ids and replay.

use std::convert::Infallible;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use tenure_contract::events::{RunEvent, TaskEvent};
use tenure_engine::{Event, EventId};

use super::words;
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::error::{Fault, Unavailable};
use crate::limits;
use crate::request::RequestId;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/events", get(events))
}

/// Watch changes of tasks and runs
///
/// Each event is named `task` or `run` and carries an id. Send the last id back as `Last-Event-ID` to continue after it. An event
/// named `reset` means that earlier events were removed: read the current state again.
#[utoipa::path(get, path = "/api/v1/events", operation_id = "watch_events", tag = "events", security(("api_key" = ["read"])),
    params(("Last-Event-ID" = Option<String>, Header, description = "continue after this event")),
    responses((status = 200, description = "server-sent events", content_type = "text/event-stream", body = TaskEvent)))]
pub async fn events(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
) -> Response {
    let opened = async {
        let after = match headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default()) {
            None => None,
            Some(text) => {
                let after = EventId::parse(text);
                Some(after.ok_or_else(|| Fault::invalid("Last-Event-ID", "must be the id of an event, unchanged"))?)
            }
        };
        let place = app.event_streams.clone().try_acquire_owned();
        let place = place.map_err(|_| Unavailable::Busy { retry_after: std::time::Duration::from_secs(5) })?;
        Ok::<_, Fault>((app.engine.events(caller.reach(), after).await?, place))
    };
    match opened.await {
        Err(fault) => refuse(fault, &id),
        Ok(watching) => {
            let stream = stream::unfold(watching, |(mut events, place)| async move {
                // A store that is away ends the stream; the watcher comes back with its last id.
                let event = events.next().await.ok().flatten()?;
                Some((Ok::<_, Infallible>(render(&event)), (events, place)))
            });
            let keep_alive = KeepAlive::new().interval(limits::EVENT_KEEP_ALIVE);
            axum::response::Sse::new(stream).keep_alive(keep_alive).into_response()
        }
    }
}

fn render(event: &Event) -> Sse {
    match event {
        Event::Reset { id } => Sse::default().event("reset").id(id.to_string()).data("{}"),
        Event::Run { id, at, run, kind, state } => {
            let event = RunEvent {
                kind: kind.as_str().to_owned(),
                run_id: run.to_string(),
                state: words::run(*state),
                at: at.to_string(),
            };
            let data = serde_json::to_string(&event).unwrap_or_default();
            Sse::default().event("run").id(id.to_string()).data(data)
        }
        Event::Task { id, at, queue, fact } => {
            let event = TaskEvent {
                kind: fact.kind.as_str().to_owned(),
                task_id: fact.task.to_string(),
                queue: queue.to_string(),
                state: words::task(fact.state),
                attempt: fact.attempt,
                reason: fact.reason.map(|reason| reason.as_str().to_owned()),
                at: at.to_string(),
            };
            let data = serde_json::to_string(&event).unwrap_or_default();
            Sse::default().event("task").id(id.to_string()).data(data)
        }
    }
}
