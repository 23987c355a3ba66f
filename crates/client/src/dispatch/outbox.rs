//! Events that a handler emits while it runs: gathered, and sent until they are accepted.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tenure_contract::Json;
use tenure_contract::dispatch::{Event, EventsBody, Invalidation};
use tenure_contract::query::{QueryAnswer, QueryRequest};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::calls::{AttemptCalls, Refused};
use crate::worker::error::{TaskError, WorkerError};
use crate::worker::lease::Lease;
use crate::worker::lock;
use crate::worker::pulse::Pulse;

/// The most events and invalidations that wait to be accepted. A handler that emits more waits.
const PENDING_MAX: usize = 1_000;
const PENDING_BYTES: usize = 4 << 20;
/// Of one request. The server takes 1 MiB.
const BATCH_MAX: usize = 500;
const BATCH_BYTES: usize = 512 << 10;

#[derive(Debug, Clone)]
pub(crate) enum Emitted {
    Event(Event),
    Invalidation(Invalidation),
}

impl Emitted {
    fn size(&self) -> Result<usize, TaskError> {
        fn of(value: &impl Serialize) -> Result<usize, TaskError> {
            Ok(Json::of(value)?.len())
        }
        match self {
            Self::Event(event) => of(event),
            Self::Invalidation(invalidation) => of(invalidation),
        }
    }
}

/// Of one attempt. While a request is on its way, what is emitted gathers for the next.
#[derive(Debug)]
pub(crate) struct Outbox {
    calls: Arc<AttemptCalls>,
    lease: Arc<Lease>,
    pulse: Arc<Pulse<AttemptCalls>>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they came; those under way stay until they are accepted.
    pending: VecDeque<(Emitted, usize)>,
    bytes: usize,
    sending: bool,
    refused: Option<TaskError>,
}

impl State {
    fn has_room_for(&self, size: usize) -> bool {
        self.pending.is_empty() || (self.pending.len() < PENDING_MAX && self.bytes + size <= PENDING_BYTES)
    }
}

impl Outbox {
    pub(crate) fn new(calls: Arc<AttemptCalls>, lease: Arc<Lease>, pulse: Arc<Pulse<AttemptCalls>>) -> Self {
        Self { calls, lease, pulse, state: Mutex::default(), changed: Notify::new() }
    }

    /// Keeps one for sending. Waits while too many are kept. The error is of one that was refused before.
    pub(crate) async fn put(self: &Arc<Self>, emitted: Emitted) -> Result<(), TaskError> {
        let size = emitted.size()?;
        if size > BATCH_BYTES {
            let message = format!("an event or invalidation has {size} bytes, the limit is {BATCH_BYTES}");
            return Err(TaskError::permanent("EVENT_TOO_LARGE", message));
        }
        self.when(|state| {
            state.has_room_for(size).then(|| {
                state.pending.push_back((emitted.clone(), size));
                state.bytes += size;
                if !std::mem::replace(&mut state.sending, true) {
                    self.pulse.spawn(Arc::clone(self).send());
                }
            })
        })
        .await
    }

    /// Waits until all are accepted.
    pub(crate) async fn flush(&self) -> Result<(), TaskError> {
        self.when(|state| state.pending.is_empty().then_some(())).await
    }

    /// Runs a query for the handler. Dropping the future ends it.
    pub(crate) async fn query(&self, query: QueryRequest) -> Result<QueryAnswer, TaskError> {
        let (calls, lease) = (Arc::clone(&self.calls), Arc::clone(&self.lease));
        let stop = CancellationToken::new();
        let _stopped = stop.clone().drop_guard();
        let asking = async move { stop.run_until_cancelled(calls.query(query, || lease.is_held())).await };
        let answer = self.pulse.run(asking).await.flatten();
        match answer.unwrap_or_else(|| Err(Refused::GivenUp("the heartbeat thread ended".to_owned()))) {
            Ok(answer) => Ok(answer),
            Err(Refused::Gone(error)) => {
                self.pulse.registry.remove(&self.lease);
                self.lease.lose(error.to_string());
                std::future::pending().await
            }
            Err(Refused::Wrong(error)) => Err(of_a_query(&error)),
            Err(Refused::GivenUp(reason)) => {
                Err(TaskError::infrastructure(format!("the query was not answered: {reason}")))
            }
        }
    }

    /// Waits until the state is as wanted. If the lease is lost meanwhile, the waiting handler ends.
    async fn when<T>(&self, mut wanted: impl FnMut(&mut State) -> Option<T>) -> Result<T, TaskError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = lock(&self.state);
                if let Some(refused) = &state.refused {
                    return Err(refused.clone());
                }
                if let Some(found) = wanted(&mut state) {
                    return Ok(found);
                }
            }
            changed.await;
        }
    }

    async fn send(self: Arc<Self>) {
        while let Some((body, count)) = self.next() {
            match self.calls.events(&body, || self.lease.is_held()).await {
                Ok(_) => self.accepted(count),
                Err(refused) => return self.refuse(refused),
            }
        }
    }

    /// The first of them, as long as they are of one kind: what was said first is told first.
    fn next(&self) -> Option<(EventsBody, usize)> {
        let mut state = lock(&self.state);
        let mut body = self.calls.events_body();
        let mut bytes = 0;
        for (emitted, size) in state.pending.iter().take(BATCH_MAX) {
            bytes += size;
            match emitted {
                _ if bytes > BATCH_BYTES => break,
                Emitted::Event(event) if body.invalidations.is_empty() => body.events.push(event.clone()),
                Emitted::Invalidation(changed) if body.events.is_empty() => body.invalidations.push(changed.clone()),
                Emitted::Event(_) | Emitted::Invalidation(_) => break,
            }
        }
        let count = body.events.len() + body.invalidations.len();
        state.sending = count > 0 && self.lease.is_held();
        state.sending.then_some((body, count))
    }

    fn accepted(&self, count: usize) {
        let mut state = lock(&self.state);
        let bytes: usize = state.pending.drain(..count).map(|(_, size)| size).sum();
        state.bytes -= bytes;
        drop(state);
        self.changed.notify_waiters();
    }

    fn refuse(&self, refused: Refused) {
        let error = match refused {
            Refused::Gone(error) => {
                self.pulse.registry.remove(&self.lease);
                self.lease.lose(error.to_string());
                return;
            }
            Refused::Wrong(error) => TaskError::permanent("USER_CODE", format!("events were refused: {error}")),
            Refused::GivenUp(reason) => TaskError::infrastructure(format!("events were not sent: {reason}")),
        };
        let mut state = lock(&self.state);
        state.sending = false;
        state.refused = Some(error);
        drop(state);
        self.changed.notify_waiters();
    }
}

/// Whether another attempt may succeed with the same query.
fn of_a_query(error: &WorkerError) -> TaskError {
    let message = format!("the query was refused: {error}");
    match error {
        WorkerError::Refused { error: word, .. } if word == "query_timeout" => TaskError::timeout(message),
        WorkerError::Refused { error: word, .. } if word == "query_failed" => TaskError::user_code(message),
        _ => TaskError::permanent("USER_CODE", message),
    }
}
