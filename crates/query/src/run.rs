//! Queries from their arrival to the last frame of their answer: how many at once, for how long, in how much memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures_util::StreamExt;
use tenure_contract::query::process::{Ask, Begun, Done, Failure, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::failure::Wrong;
use crate::results::{self, Results};
use crate::session;

/// Of data, in one frame.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for a reader.
const AHEAD: usize = 8;
/// How long the last frame waits for a reader that has stopped reading.
const LAST_FRAME: Duration = Duration::from_secs(5);

/// What all queries of a process may use.
#[derive(Debug, Clone)]
pub struct Settings {
    pub at_once: usize,
    /// Beyond those that run.
    pub waiting: usize,
    /// Of one query; less if it asks for less.
    pub memory_bytes: usize,
    pub timeout: Duration,
    /// A private folder; what a query puts there is removed when it ends.
    pub spill: PathBuf,
}

#[derive(Debug)]
pub struct Runner {
    settings: Settings,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
}

type Send = mpsc::Sender<Bytes>;

impl Runner {
    pub fn new(settings: Settings) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(settings.at_once));
        Arc::new(Self { settings, permits, waiting: AtomicUsize::new(0) })
    }

    /// Queries that hold a place, also those that were told to end and have not ended yet.
    pub fn running(&self) -> usize {
        self.settings.at_once - self.permits.available_permits()
    }

    /// Queries that wait for a place.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Begins a query. It ends with the last frame, at its time limit, or when the receiver is dropped.
    pub fn start(self: &Arc<Self>, ask: Ask) -> mpsc::Receiver<Bytes> {
        let (send, receive) = mpsc::channel(AHEAD);
        tokio::spawn(Arc::clone(self).supervise(ask, send));
        receive
    }

    async fn supervise(self: Arc<Self>, ask: Ask, send: Send) {
        let (id, began) = (ask.query_id.clone(), Instant::now());
        let timeout = Duration::from_millis(ask.bounds.timeout_ms).min(self.settings.timeout);
        // A task of its own: planning may take long without a pause, and its place is free only when it has ended.
        let work = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&self).work(ask, send.clone())));
        let ended = tokio::select! {
            () = send.closed() => {
                tracing::info!(query_id = %id, "the caller of a query went away");
                return;
            }
            ended = work => ended.unwrap_or_else(|_| {
                Err(Wrong::new(Failure::QueryFailed, "the query engine failed on this query"))
            }),
            () = tokio::time::sleep(timeout) => {
                Err(Wrong::new(Failure::QueryTimeout, format!("the query took longer than {} s", timeout.as_secs_f32())))
            }
        };
        let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last: Frame<Vec<u8>> = match ended {
            Ok(done) => {
                tracing::info!(query_id = %id, rows = done.rows, duration_ms, "query done");
                Frame::Done(done)
            }
            Err(Wrong(failed)) => {
                tracing::info!(query_id = %id, error = failed.error.code(), duration_ms, "query failed");
                Frame::Failed(failed)
            }
        };
        let _ = send.send_timeout(last.encode().into(), LAST_FRAME).await;
    }

    async fn work(self: Arc<Self>, ask: Ask, send: Send) -> Result<Done, Wrong> {
        let _place = self.place().await?;
        let spill = tempfile::Builder::new().prefix("query-").tempdir_in(&self.settings.spill).map_err(|_| {
            Wrong::new(Failure::QueryFailed, "the query process has no folder for intermediate results")
        })?;
        let asked = usize::try_from(ask.bounds.memory_bytes).unwrap_or(usize::MAX);
        let planned = session::plan(&ask, asked.min(self.settings.memory_bytes), spill.path()).await?;
        let planning = |error| Wrong::planning(&error);
        let mut frame = planned.context.execute_logical_plan(planned.plan).await.map_err(planning)?;
        if let Some(rows) = ask.bounds.rows {
            // One more than is shown tells whether there are more.
            let fetch = usize::try_from(rows).unwrap_or(usize::MAX).saturating_add(1);
            frame = frame.limit(0, Some(fetch)).map_err(planning)?;
        }
        let plan = pausing(frame.create_physical_plan().await.map_err(planning)?).map_err(planning)?;
        let mut batches = execute_stream(plan, planned.context.task_ctx()).map_err(planning)?;
        let schema = batches.schema();
        let begun: Frame<Vec<u8>> = Frame::Begun(Begun { columns: results::columns(&schema), reads: planned.reads });
        deliver(&send, begun.encode()).await?;
        let mut results = Results::new(ask.format, schema, ask.bounds)?;
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(|error| Wrong::running(&error))?;
            data(&send, &results.write(&batch)?).await?;
            if results.is_full() {
                break;
            }
        }
        let (rest, done) = results.finish()?;
        data(&send, &rest).await?;
        Ok(done)
    }

    /// A place among those that run, after a wait among those that may wait.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Wrong> {
        if let Ok(place) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(place);
        }
        let busy = || Wrong::new(Failure::QueryBusy, "too many queries are running and waiting: try again");
        let _waits = Waits::begin(self).ok_or_else(busy)?;
        Arc::clone(&self.permits).acquire_owned().await.map_err(|_| busy())
    }
}

/// Counts one that waits, until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(runner: &'a Runner) -> Option<Self> {
        let room = |waiting| (waiting < runner.settings.waiting).then_some(waiting + 1);
        runner.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).ok().map(|_| Self(&runner.waiting))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A plan whose every operator lets others run from time to time. Some operators make many batches from one of their input;
/// without this a query could not be stopped while they do.
fn pausing(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    let pauses = |node| Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>));
    plan.transform_up(pauses).map(|transformed| transformed.data)
}

async fn data(send: &Send, bytes: &[u8]) -> Result<(), Wrong> {
    for piece in bytes.chunks(PIECE_BYTES) {
        deliver(send, Frame::Data(piece).encode()).await?;
    }
    Ok(())
}

/// A caller that has stopped reading gets no answer.
async fn deliver(send: &Send, frame: Vec<u8>) -> Result<(), Wrong> {
    let gone = |_| Wrong::new(Failure::QueryFailed, "the caller went away");
    send.send(frame.into()).await.map_err(gone)
}
