//! Changes of tasks, runs and sandboxes as server-sent events, with ids and replay.

use std::convert::Infallible;
use std::future::ready;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure_contract::events::{RunEvent, TaskEvent};
use tenure_contract::sandboxes::SandboxEvent;
use tenure_core::command::Reach;
use tenure_engine::sandboxes::{EventFilter, SandboxEvents, SandboxNotice};
use tenure_engine::{Event, EventId};

use super::words;
use crate::access::guard::User;
use crate::api::errors::refuse;
use crate::contracts::sandboxes::Params;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;
use crate::{limits, watchers};

pub fn router() -> Router<App> {
    Router::new().route("/api/v1/events", get(events))
}

/// Watch changes of tasks, runs and sandboxes
///
/// Events of tasks and runs are named `task` or `run` and carry an id. Send the last id back as `Last-Event-ID` to continue after it. An event
/// named `reset` means that earlier events were removed: read the current state again.
///
/// Events of sandboxes have no name. With `types` or `sandbox_id` the stream has them alone, with ids that are numbers and can be continued after; a
/// removed range begins with the type `events.gap`. `types=*` stands for all. Without these parameters they are mixed in, and carry no id.
#[utoipa::path(get, path = "/api/v1/events", operation_id = "watch_events", tag = "events", security(("api_key" = ["read"])),
    params(("Last-Event-ID" = Option<String>, Header, description = "continue after this event"),
           ("types" = Option<String>, Query, description = "types of events of sandboxes, separated by commas"),
           ("sandbox_id" = Option<String>, Query, description = "events of this sandbox")),
    responses((status = 200, description = "server-sent events", content_type = "text/event-stream", body = TaskEvent)))]
pub async fn events(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let opened = async {
        let params = Params::of(&uri)?;
        let after = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
        let place = app.event_streams.enter(&caller)?;
        let number = after.filter(|text| !text.is_empty()).and_then(number);
        let asks = ["types", "sandbox_id"].iter().any(|name| params.text(name).is_some());
        if asks || (number.is_some() && app.sandboxes().is_ok()) {
            if after.is_some_and(|text| !text.is_empty()) && number.is_none() {
                return Err(Fault::invalid("Last-Event-ID", "must be the id of an event of sandboxes, unchanged"));
            }
            let filter = filter(caller.reach(), &params);
            let events = app.sandboxes()?.manager.events(filter, number).await?;
            return Ok((of_sandboxes(events, true), place));
        }
        let after = match after {
            None => None,
            Some(text) => {
                let after = EventId::parse(text);
                Some(after.ok_or_else(|| Fault::invalid("Last-Event-ID", "must be the id of an event, unchanged"))?)
            }
        };
        let tasks = of_tasks(app.engine.events(caller.reach(), after).await?);
        let Ok(part) = app.sandboxes() else { return Ok((tasks, place)) };
        let mixed_in = EventFilter { reach: caller.reach(), ..EventFilter::default() };
        let sandboxes = of_sandboxes(part.manager.events(mixed_in, None).await?, false);
        Ok::<_, Fault>((both(tasks, sandboxes), place))
    };
    match opened.await {
        Err(fault) => refuse(fault, &id),
        Ok((events, place)) => {
            let counted = events.map(move |event| {
                let _counted_until_the_end = &place;
                Ok::<_, Infallible>(event)
            });
            let counted = counted.take_until(watchers::until_refused(app.clone(), headers, caller));
            let keep_alive = KeepAlive::new().interval(limits::EVENT_KEEP_ALIVE);
            axum::response::Sse::new(counted).keep_alive(keep_alive).into_response()
        }
    }
}

type Events = BoxStream<'static, Sse>;

/// A store that is away ends a stream; the watcher comes back with its last id.
fn of_tasks(events: tenure_engine::Events) -> Events {
    stream::unfold(events, |mut events| async move {
        let event = events.next().await.ok().flatten()?;
        Some((render(&event), events))
    })
    .boxed()
}

fn of_sandboxes(events: SandboxEvents, with_ids: bool) -> Events {
    stream::unfold(events, move |mut events| async move {
        let notice = events.next().await.ok().flatten()?;
        Some((notice, events))
    })
    .map(move |notice| of_sandbox(&notice, with_ids))
    .boxed()
}

/// Events of both, until one of them ends.
fn both(one: Events, other: Events) -> Events {
    let ending = |events: Events| events.map(Some).chain(stream::iter([None]));
    stream::select(ending(one), ending(other)).take_while(|event| ready(event.is_some())).filter_map(ready).boxed()
}

/// `<n>` or `evt-<n>`.
fn number(text: &str) -> Option<i64> {
    text.strip_prefix("evt-").unwrap_or(text).parse().ok().filter(|number: &i64| *number >= 0)
}

fn filter(reach: Reach, params: &Params) -> EventFilter {
    let types = params.text("types").into_iter().flat_map(|types| types.split(',')).map(str::trim);
    let types: Vec<String> = types.filter(|kind| !kind.is_empty()).map(ToOwned::to_owned).collect();
    EventFilter {
        reach,
        types: if types.iter().any(|kind| kind == "*") { Vec::new() } else { types },
        sandbox: params.text("sandbox_id").map(ToOwned::to_owned),
    }
}

fn of_sandbox(notice: &SandboxNotice, with_id: bool) -> Sse {
    let (number, event) = match notice {
        SandboxNotice::Event(event) => {
            let data = (!event.data.is_empty()).then(|| serde_json::from_str(&event.data).ok()).flatten();
            let wire = SandboxEvent {
                id: format!("evt-{}", event.id),
                kind: event.kind.clone(),
                sandbox_id: event.sandbox.as_deref().map(ToOwned::to_owned),
                timestamp: event.at.to_string(),
                data,
            };
            (event.id, wire)
        }
        SandboxNotice::Gap(number) => {
            let wire = SandboxEvent {
                id: format!("evt-{number}"),
                kind: "events.gap".to_owned(),
                sandbox_id: None,
                timestamp: String::new(),
                data: None,
            };
            (*number, wire)
        }
    };
    let sse = Sse::default().data(serde_json::to_string(&event).unwrap_or_default());
    if with_id { sse.id(number.to_string()) } else { sse }
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
