//! The heartbeat thread.
//!
//! It renews leases, passes on cancellations, and decides that a lease is lost: when the server says so, or when the
//! lease has run out by the local monotonic clock because no heartbeat was answered. Clocks of worker and server are
//! never compared. It also keeps a token fresh that the server issues. What it does to a lost lease ([`Lease::lose`]) happens on this thread and needs nothing from the
//! caller's runtime.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_contract::pull::{HeartbeatItem, ItemAnswer, Watch};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::caller::{ExchangeError, STALE_INCARNATION, is_temporary};
use super::error::WorkerError;
use super::lease::{CancelReason, Lease};
use super::link::{Link, Process};
use super::registry::Registry;
use super::wake::{self, WakeBy};
use super::{EXCHANGE_BYTES, EXCHANGE_ITEMS};

/// Bounds of the time that an answer is waited for.
const ANSWER_MIN: Duration = Duration::from_millis(200);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A job that has lasted this long is watched.
const WATCH_AFTER: Duration = Duration::from_millis(250);
/// How long the server waits for something to tell, and how much longer for its answer.
const WATCH_MS: i64 = 20_000;
const WATCH_PATIENCE: Duration = Duration::from_secs(30);
/// After a watch that failed.
const WATCH_PAUSE: Duration = Duration::from_secs(5);

/// The running thread. Dropping it stops the heartbeats.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stop: CancellationToken,
    ended: oneshot::Receiver<WorkerError>,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Supervisor {
    pub(crate) fn start(process: Process, registry: Arc<Registry>, wake_by: WakeBy) -> Result<Self, WorkerError> {
        let stop = CancellationToken::new();
        let (end, ended) = oneshot::channel();
        let stopped = stop.clone();
        std::thread::Builder::new()
            .name("tenure-heartbeat".into())
            .spawn(move || {
                if let Err(error) = supervise(process, &registry, &wake_by, &stopped) {
                    registry.lose_all(&error.to_string());
                    // Nobody listens once the worker itself has ended.
                    let _ = end.send(error);
                }
            })
            .map_err(|error| WorkerError::Supervisor(error.to_string()))?;
        Ok(Self { stop, ended })
    }

    /// Waits for the end that should not come.
    pub(crate) async fn failed(&mut self) -> WorkerError {
        (&mut self.ended).await.unwrap_or_else(|_| WorkerError::Supervisor("it panicked".into()))
    }
}

fn supervise(
    process: Process,
    registry: &Arc<Registry>,
    wake_by: &WakeBy,
    stop: &CancellationToken,
) -> Result<(), WorkerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| WorkerError::Supervisor(error.to_string()))?;
    runtime.block_on(async {
        let link = Arc::new(Link::new(process)?);
        let mut beats = tokio::task::JoinSet::new();
        let mut keeping_token = std::pin::pin!(link.keep_token());
        let mut watching = std::pin::pin!(watch(&link, registry));
        loop {
            let now = Instant::now();
            let tick = registry.tick(now);
            for lease in tick.expired {
                tracing::warn!(task.id = %lease.job.job_id, lease.fence = lease.job.fence, "lease expired without a renewal");
                lease.lose("no heartbeat was answered in its time".into());
            }
            // A request that hangs must not delay the heartbeats of other leases, so each goes its own way.
            for batch in batches(tick.beats, now) {
                beats.spawn(send(Arc::clone(&link), Arc::clone(registry), wake_by.clone(), batch));
            }
            let wake_at = tick.wake_at.unwrap_or(now + Duration::from_secs(3600));
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(sent) = beats.join_next() => {
                    sent.map_err(|error| WorkerError::Supervisor(error.to_string()))??;
                }
                error = &mut keeping_token => return Err(error),
                never = &mut watching => match never {},
                () = registry.woken() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
    })
}

/// Learns at once which jobs are to stop, by a request that waits at the server while jobs are held that last. Their next
/// heartbeat, which follows at once, says why.
async fn watch(link: &Link, registry: &Registry) -> Infallible {
    let mut cursor = None;
    loop {
        tokio::time::sleep(WATCH_AFTER).await;
        let lasting = Instant::now().checked_sub(WATCH_AFTER).is_some_and(|then| registry.holds_since(then));
        if !lasting {
            continue;
        }
        let mut request = link.request();
        request.watch = Some(Watch { max_wait_ms: Some(WATCH_MS), cursor: cursor.clone() });
        match link.exchange(&request, WATCH_PATIENCE).await.map(|answer| answer.watch) {
            Ok(Some(answer)) => {
                answer.stop.iter().for_each(|job_id| registry.hurry(job_id));
                cursor = Some(answer.cursor);
            }
            // A server that does not know of it: heartbeats have to do.
            Ok(None) => return std::future::pending().await,
            Err(_) => tokio::time::sleep(WATCH_PAUSE).await,
        }
    }
}

struct Batch {
    leases: Vec<Arc<Lease>>,
    items: Vec<HeartbeatItem>,
    sent_at: Instant,
    patience: Duration,
}

/// Cuts what is due into requests that the server takes.
fn batches(due: Vec<Arc<Lease>>, now: Instant) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut bytes = 0;
    for lease in due {
        let item = heartbeat(&lease, now);
        let size = item.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.len())
            + item.message.as_ref().map_or(0, String::len);
        let patience = lease.beat(|beat| beat.patience(now)).clamp(ANSWER_MIN, ANSWER_MAX);
        match batches.last_mut() {
            Some(batch) if batch.leases.len() < EXCHANGE_ITEMS && bytes + size <= EXCHANGE_BYTES => {
                batch.leases.push(lease);
                batch.items.push(item);
                batch.patience = batch.patience.min(patience);
                bytes += size;
            }
            _ => {
                batches.push(Batch { leases: vec![lease], items: vec![item], sent_at: now, patience });
                bytes = size;
            }
        }
    }
    batches
}

fn heartbeat(lease: &Lease, now: Instant) -> HeartbeatItem {
    let news = lease.beat(|beat| beat.sent(now));
    let (progress_pct, message) = news.progress.unzip();
    HeartbeatItem {
        job_id: lease.job.job_id.clone(),
        lease_token: lease.job.lease_token.clone(),
        progress_pct: progress_pct.map(i64::from),
        message: message.filter(|message| !message.is_empty()),
        checkpoint: news.checkpoint,
    }
}

/// Sends one request and settles its leases. The error ends the worker.
async fn send(link: Arc<Link>, registry: Arc<Registry>, wake_by: WakeBy, batch: Batch) -> Result<(), WorkerError> {
    let mut request = link.request();
    request.heartbeat = Some(batch.items);
    let answers = match link.exchange(&request, batch.patience).await {
        Ok(answer) => answer.heartbeat.unwrap_or_default(),
        Err(ExchangeError::Again { reason, retry_after, .. }) => {
            tracing::warn!(leases = batch.leases.len(), reason, "heartbeat not answered, trying again");
            let now = Instant::now();
            batch.leases.iter().for_each(|lease| lease.beat(|beat| beat.failed(now, retry_after)));
            return Ok(());
        }
        Err(ExchangeError::Fatal(error @ WorkerError::Superseded { .. })) => return Err(error),
        // The claim loop decides whether a refused worker ends; here the leases are kept as long as they may be.
        Err(ExchangeError::Fatal(error)) => {
            tracing::error!(%error, "heartbeat refused");
            let now = Instant::now();
            batch.leases.iter().for_each(|lease| lease.beat(|beat| beat.failed(now, None)));
            return Ok(());
        }
    };
    let answers: Vec<_> =
        answers.into_iter().map(Some).chain(std::iter::repeat(None)).take(batch.leases.len()).collect();
    let (mut renewed, mut over) = (Vec::new(), Vec::new());
    for (lease, answer) in batch.leases.iter().zip(&answers) {
        match answer {
            Some(answer) if answer.ok => renewed.push(&**lease),
            Some(answer) if answer.ack == Some(true) => over.extend(lease.receipt.clone()),
            _ => {}
        }
    }
    for (lease, answer) in batch.leases.iter().zip(answers) {
        settle(&link, &registry, lease, answer, batch.sent_at)?;
    }
    if let WakeBy::Transport(transport) = wake_by {
        wake::extend_of(&*transport, &renewed).await;
        if let Err(error) = transport.settle(&over).await {
            tracing::debug!(%error, count = over.len(), "cannot settle wake-ups");
        }
    }
    Ok(())
}

fn settle(
    link: &Link,
    registry: &Registry,
    lease: &Lease,
    answer: Option<ItemAnswer>,
    sent_at: Instant,
) -> Result<(), WorkerError> {
    let Some(answer) = answer else {
        lease.beat(|beat| beat.failed(Instant::now(), None));
        return Ok(());
    };
    if answer.ok {
        lease.beat(|beat| beat.answered(sent_at));
        if answer.should_cancel == Some(true) {
            lease.request_cancel(CancelReason::Requested(answer.cancel_reason.unwrap_or_default()));
        }
        return Ok(());
    }
    let error = answer.error.unwrap_or_default();
    if error == STALE_INCARNATION {
        return Err(link.superseded());
    }
    match answer.http_status {
        Some(404 | 409) => {
            registry.remove(lease);
            lease.lose(format!("the server answered {error}"));
        }
        Some(status) if !is_temporary(status) => {
            tracing::error!(task.id = %lease.job.job_id, status, error, "heartbeat refused");
            lease.beat(|beat| beat.refused(Instant::now()));
        }
        _ => lease.beat(|beat| beat.failed(Instant::now(), None)),
    }
    Ok(())
}
