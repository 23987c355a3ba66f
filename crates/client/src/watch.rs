//! Following one task until it ends.
//!
//! Events say when to look, a poll makes sure that a look comes also without events, and what is shown is always the
//! task as the server has it. A lost, doubled or late event therefore costs time at most.

use std::time::{Duration, Instant};

use reqwest::{Method, Response};
use tenure_contract::events::TaskEvent;
use tenure_contract::user::Task;
use tenure_contract::words::TaskState;

use crate::client::Client;
use crate::error::ClientError;
use crate::sse::Parser;

/// Between looks while events arrive.
const POLL_WITH_EVENTS: Duration = Duration::from_secs(10);
/// Between looks at a running task for one who follows its progress, which has no events.
const POLL_PROGRESS: Duration = Duration::from_millis(300);
/// Between looks without events: grows from the first to the second.
const POLL_FIRST: Duration = Duration::from_millis(100);
const POLL_LAST: Duration = Duration::from_secs(2);
/// Before the feed is asked for again after it broke.
const FEED_AGAIN: Duration = Duration::from_secs(2);
const FEED_CONNECT: Duration = Duration::from_secs(5);

impl Client {
    /// Follows a task until it ends.
    pub fn watch(&self, task_id: impl Into<String>) -> Watch {
        Watch {
            client: self.clone(),
            task_id: task_id.into(),
            last: None,
            feed: Feed::new(self.clone()),
            pause: POLL_FIRST,
            sees_progress: false,
        }
    }

    /// Waits until the task has ended and returns it, however it ended. Outages shorter than `timeout` are sat out.
    pub async fn wait(&self, task_id: &str, timeout: Duration) -> Result<Task, ClientError> {
        let mut watch = self.watch(task_id);
        let mut outage = None;
        let ended = tokio::time::timeout(timeout, async {
            loop {
                match watch.next().await {
                    Some(Ok(task)) if task.state.is_final() => return Ok(task),
                    Some(Ok(_)) | None => outage = None,
                    Some(Err(error)) if error.is_temporary() => outage = Some(error),
                    Some(Err(error)) => return Err(error),
                }
            }
        });
        if let Ok(result) = ended.await {
            return result;
        }
        Err(outage.unwrap_or_else(|| ClientError::StillRunning {
            task_id: task_id.to_owned(),
            state: watch.last.map_or_else(|| "unknown".to_owned(), |task| task.state.to_string()),
            waited: timeout,
        }))
    }
}

/// Whether nothing changed that a watcher would want to see: renewals of the lease are no news.
fn looks_alike(a: &Task, b: &Task) -> bool {
    let news = |task: &Task| (task.fence, task.attempt, task.cancel_requested, task.progress_pct);
    a.state == b.state && a.progress_message == b.progress_message && news(a) == news(b)
}

/// The changes of one task, see [`Client::watch`].
#[derive(Debug)]
pub struct Watch {
    client: Client,
    task_id: String,
    last: Option<Task>,
    feed: Feed,
    pause: Duration,
    sees_progress: bool,
}

impl Watch {
    /// Sees the progress of a running task within a second too. Without this, changes of state are seen at once, and progress
    /// with them or after a while.
    #[must_use]
    pub fn with_progress(mut self) -> Self {
        self.sees_progress = true;
        self
    }

    /// The task as it is now, then after each change that was seen; `None` once it has ended.
    ///
    /// After an error the next call tries again.
    pub async fn next(&mut self) -> Option<Result<Task, ClientError>> {
        if self.last.as_ref().is_some_and(|task| task.state.is_final()) {
            return None;
        }
        // The feed is open before the first look, so that no change can fall between the two.
        self.feed.open().await;
        let mut look_now = self.last.is_none() && self.pause == POLL_FIRST;
        loop {
            if !look_now {
                self.wait_for_change().await;
            }
            look_now = false;
            match self.client.get(&self.task_id).await {
                Ok(task) if self.last.as_ref().is_some_and(|last| looks_alike(last, &task)) => {}
                Ok(task) => {
                    // Events carry the canonical spelling of the id.
                    self.task_id.clone_from(&task.task_id);
                    self.pause = POLL_FIRST;
                    self.last = Some(task.clone());
                    return Some(Ok(task));
                }
                Err(error) => {
                    self.pause = longer(self.pause);
                    return Some(Err(error));
                }
            }
        }
    }

    async fn wait_for_change(&mut self) {
        self.feed.open().await;
        let is_running = self.last.as_ref().is_some_and(|task| task.state == TaskState::Running);
        let pause = match self.feed.is_open() {
            _ if self.sees_progress && is_running => POLL_PROGRESS,
            true => POLL_WITH_EVENTS,
            false => self.pause,
        };
        self.pause = longer(self.pause);
        let until = tokio::time::Instant::now() + pause;
        loop {
            match tokio::time::timeout_at(until, self.feed.next()).await {
                Ok(Some(event)) if event.task_id != self.task_id => {}
                // An event of this task, the end of the feed, or time to look anyway.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(POLL_LAST)
}

/// `GET /api/v1/events`, opened again where it broke off.
#[derive(Debug)]
struct Feed {
    client: Client,
    open: Option<Response>,
    parser: Parser,
    ready: std::collections::VecDeque<TaskEvent>,
    last_id: Option<String>,
    try_at: Instant,
    /// The server has no such feed, or not for us.
    absent: bool,
}

impl Feed {
    fn new(client: Client) -> Self {
        Self {
            client,
            open: None,
            parser: Parser::default(),
            ready: Default::default(),
            last_id: None,
            try_at: Instant::now(),
            absent: false,
        }
    }

    fn is_open(&self) -> bool {
        self.open.is_some()
    }

    async fn open(&mut self) {
        if self.is_open() || self.absent || Instant::now() < self.try_at {
            return;
        }
        self.try_at = Instant::now() + FEED_AGAIN;
        self.parser = Parser::default();
        let mut request = self.client.request(Method::GET, self.client.url(&["events"]));
        request = request.header("accept", "text/event-stream");
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        match tokio::time::timeout(FEED_CONNECT, request.send()).await {
            Ok(Ok(response)) if response.status().is_success() => self.open = Some(response),
            Ok(Ok(response)) => self.absent = response.status().is_client_error() && response.status() != 429,
            Ok(Err(_)) | Err(_) => {}
        }
    }

    /// The next event; `None` when the feed broke. Waits for ever on a feed that is not open.
    async fn next(&mut self) -> Option<TaskEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let Some(response) = &mut self.open else { return std::future::pending().await };
            let events = match response.chunk().await {
                Ok(Some(piece)) => self.parser.push(&piece).ok(),
                Ok(None) | Err(_) => None,
            };
            let Some(events) = events else {
                self.open = None;
                return None;
            };
            for event in events {
                self.last_id = event.id.or(self.last_id.take());
                self.ready.extend(serde_json::from_str::<TaskEvent>(&event.data));
            }
        }
    }
}
