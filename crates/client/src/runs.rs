//! Runs: tasks that depend on each other, submitted and followed as one.

use std::time::Duration;

use reqwest::{Method, Url};
use tenure_contract::run::{RerunRequest, Run, RunCanceled, RunSubmission};
use tenure_contract::user::{CancelRequest, Page};
use tenure_contract::words::RunState;

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::filter;

/// Between two looks at a run: grows from the first to the second while nothing changes.
const LOOK_FIRST: Duration = Duration::from_millis(200);
const LOOK_LAST: Duration = Duration::from_secs(2);

/// Filter of [`Client::runs`](crate::Client::runs).
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    pub state: Option<RunState>,
    /// `name:value`.
    pub label: Option<String>,
    pub run_key: Option<String>,
    /// The first digits of an id, at least 4.
    pub id_prefix: Option<String>,
    pub tenant: Option<String>,
    pub workspace: Option<String>,
    /// RFC 3339.
    pub created_after: Option<String>,
    pub created_before: Option<String>,
    /// Default 100, up to 1000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl RunFilter {
    fn write(&self, url: &mut Url) {
        let (state, limit) = (filter::text(&self.state), filter::text(&self.limit));
        filter::write(
            url,
            &[
                ("state", &state),
                ("label", &self.label),
                ("run_key", &self.run_key),
                ("id_prefix", &self.id_prefix),
                ("tenant", &self.tenant),
                ("workspace", &self.workspace),
                ("created_after", &self.created_after),
                ("created_before", &self.created_before),
                ("limit", &limit),
                ("cursor", &self.cursor),
            ],
        );
    }
}

impl Client {
    /// Submits a run of up to 10,000 tasks, all or none. With a `run_key` the call is repeated when no answer comes.
    pub async fn submit_run(&self, run: &RunSubmission) -> Result<Run, ClientError> {
        let call = Call::new(Method::POST, self.url(&["runs"])).json(run)?;
        self.call(call.repeatable(run.run_key.is_some())).await
    }

    /// A run with its tasks.
    pub async fn run(&self, run_id: &str) -> Result<Run, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["runs", run_id]))).await
    }

    /// One page of runs, newest first and without their tasks; `next_cursor` goes into the filter of the next.
    pub async fn runs(&self, filter: &RunFilter) -> Result<Page<Run>, ClientError> {
        let mut url = self.url(&["runs"]);
        filter.write(&mut url);
        self.call(Call::new(Method::GET, url)).await
    }

    /// Ends what has not started, and asks what runs to stop.
    pub async fn cancel_run(&self, run_id: &str, request: &CancelRequest) -> Result<RunCanceled, ClientError> {
        let call = Call::new(Method::POST, self.url(&["runs", run_id, "cancel"])).json(request)?;
        self.call(call.repeatable(true)).await
    }

    /// Repeats a run that is `Failed` or `Canceled`: what succeeded is carried over, all else runs anew. With a `run_key`
    /// the call is repeated when no answer comes.
    pub async fn rerun(&self, run_id: &str, request: &RerunRequest) -> Result<Run, ClientError> {
        let call = Call::new(Method::POST, self.url(&["runs", run_id, "rerun"])).json(request)?;
        self.call(call.repeatable(request.run_key.is_some())).await
    }

    /// Follows a run until it ends.
    pub fn watch_run(&self, run_id: impl Into<String>) -> RunWatch {
        RunWatch { client: self.clone(), run_id: run_id.into(), last: None, pause: LOOK_FIRST, failed: false }
    }
}

/// The changes of one run, see [`Client::watch_run`].
#[derive(Debug)]
pub struct RunWatch {
    client: Client,
    run_id: String,
    last: Option<Run>,
    pause: Duration,
    failed: bool,
}

impl RunWatch {
    /// The run as it is now, then after each change that was seen; `None` once it has ended.
    ///
    /// After an error the next call tries again.
    pub async fn next(&mut self) -> Option<Result<Run, ClientError>> {
        if self.last.as_ref().is_some_and(|run| run.state.is_final()) {
            return None;
        }
        loop {
            if self.last.is_some() || self.failed {
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 3 / 2).min(LOOK_LAST);
            }
            match self.client.run(&self.run_id).await {
                Ok(run) => {
                    self.failed = false;
                    if self.last.as_ref() != Some(&run) {
                        self.pause = LOOK_FIRST;
                        self.last = Some(run.clone());
                        return Some(Ok(run));
                    }
                }
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
