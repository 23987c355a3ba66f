//! Wake-ups that the worker receives itself, in place of asking the server for work.
//!
//! A wake-up names one job. The worker claims that very job at the server, runs it as ever, and settles the wake-up when
//! the server says that it is over (`ack: true`): with the answer to the report, or with the refusal of the claim. Until
//! then each heartbeat also tells the transport that the wake-up is being worked on. While the transport cannot be
//! reached the worker asks the server for work, and tries the transport again every few seconds.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tenure_contract::pull::{ClaimRequest, Job};
use tenure_transport::{Delivery, Receipt, Transport, TransportError};
use tokio_util::sync::CancellationToken;

use super::caller::ExchangeError;
use super::error::WorkerError;
use super::id;
use super::lease::Lease;
use super::link::{JobClaim, Link};
use super::turn::{FIRST_WAIT, LONGEST_WAIT};
use crate::http::Backoff;

/// Between attempts to reach a transport that is down. A claim at the server waits no longer than this meanwhile.
pub(crate) const RETRY: Duration = Duration::from_secs(5);
/// Claims under way at once.
const CLAIMS: usize = 16;
/// Wake-ups that could not be settled yet. The control plane settles them too, so the oldest may go.
const SETTLING_MAX: usize = 10_000;

/// How a worker learns of work.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum WakeBy {
    /// It asks the server, which answers when there is some.
    #[default]
    Pull,
    /// It receives wake-ups from a service, and asks the server while that cannot be reached.
    Transport(Arc<dyn Transport>),
}

impl fmt::Debug for WakeBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pull => "pull",
            Self::Transport(transport) => transport.name(),
        })
    }
}

impl<T: Transport + 'static> From<Arc<T>> for WakeBy {
    fn from(transport: Arc<T>) -> Self {
        Self::Transport(transport)
    }
}

/// The transport as the claim loop sees it.
pub(crate) struct Wakes {
    transport: Arc<dyn Transport>,
    queues: Vec<Arc<str>>,
    /// When it is tried again; `None` while it works.
    again_at: Option<Instant>,
    round: Option<BoxFuture<'static, RoundEnd>>,
    settling: Vec<Receipt>,
    settled: Option<BoxFuture<'static, Settled>>,
    settle_at: Instant,
}

type Settled = (Vec<Receipt>, Result<(), TransportError>);

/// What came of receiving once, and of claiming what was received.
pub(crate) struct RoundEnd {
    received: Result<(), TransportError>,
    /// Nothing came although there was time to wait.
    pub(crate) early: bool,
    /// Jobs, the receipts of their wake-ups, and when the claim was sent.
    pub(crate) granted: Vec<(Job, Receipt, Instant)>,
    over: Vec<Receipt>,
    /// The worker gets no new work.
    pub(crate) drained: bool,
    pub(crate) fatal: Option<WorkerError>,
}

/// What happened on the transport's side.
pub(crate) enum WakeEvent {
    Round(RoundEnd),
    Settled(Settled),
}

impl Wakes {
    pub(crate) fn new(by: &WakeBy, queues: &[String]) -> Option<Self> {
        let WakeBy::Transport(transport) = by else { return None };
        Some(Self {
            transport: Arc::clone(transport),
            queues: queues.iter().map(|queue| queue.as_str().into()).collect(),
            again_at: None,
            round: None,
            settling: Vec::new(),
            settled: None,
            settle_at: Instant::now(),
        })
    }

    /// Whether the server is to be asked for work: the transport is down, and is not being tried just now.
    pub(crate) fn are_down(&self) -> bool {
        self.again_at.is_some_and(|at| Instant::now() < at) && self.round.is_none()
    }

    /// Receives up to `free` wake-ups and claims their jobs.
    pub(crate) fn start_round(&mut self, link: &Arc<Link>, free: usize, wait: Duration, draining: &CancellationToken) {
        if self.round.is_some() || self.are_down() {
            return;
        }
        let round = Round {
            transport: Arc::clone(&self.transport),
            link: Arc::clone(link),
            queues: self.queues.clone(),
            // One that was down is only asked whether it is back.
            wait: if self.again_at.is_some() { Duration::ZERO } else { wait },
            draining: draining.clone(),
        };
        self.round = Some(round.run(free).boxed());
    }

    pub(crate) fn start_settling(&mut self) {
        if self.settled.is_some() || self.settling.is_empty() || Instant::now() < self.settle_at {
            return;
        }
        let (transport, receipts) = (Arc::clone(&self.transport), std::mem::take(&mut self.settling));
        self.settled = Some(
            async move {
                let result = transport.settle(&receipts).await;
                (receipts, result)
            }
            .boxed(),
        );
    }

    /// When [`start_settling`](Self::start_settling) has something to do again.
    pub(crate) fn settle_at(&self) -> Option<Instant> {
        (self.settled.is_none() && !self.settling.is_empty()).then_some(self.settle_at)
    }

    /// The wake-ups are over. Leaves those that have gone on to the control plane.
    pub(crate) fn settle(&mut self, receipts: impl IntoIterator<Item = Receipt>) {
        self.settling.extend(receipts);
        let excess = self.settling.len().saturating_sub(SETTLING_MAX);
        self.settling.drain(..excess);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.round.is_none() && self.settled.is_none() && self.settling.is_empty()
    }

    /// Waits for what is under way.
    pub(crate) async fn next(&mut self) -> WakeEvent {
        let event = tokio::select! {
            end = running(&mut self.round) => WakeEvent::Round(end),
            end = running(&mut self.settled) => WakeEvent::Settled(end),
        };
        match event {
            WakeEvent::Round(_) => self.round = None,
            WakeEvent::Settled(_) => self.settled = None,
        }
        event
    }

    /// Takes note of what a round says about the transport, and of what is to be settled.
    pub(crate) fn note(&mut self, end: &mut RoundEnd) {
        let name = self.transport.name();
        match &end.received {
            Ok(()) if self.again_at.take().is_some() => {
                tracing::info!(transport.name = name, "receiving wake-ups again")
            }
            Ok(()) => {}
            Err(error) => {
                if self.again_at.is_none() {
                    tracing::warn!(transport.name = name, %error, "cannot receive wake-ups: polling the server meanwhile");
                }
                self.again_at = Some(Instant::now() + RETRY);
            }
        }
        self.settle(std::mem::take(&mut end.over));
    }

    /// Tries later again what could not be settled; not on the way out.
    pub(crate) fn note_settled(&mut self, (receipts, result): Settled, working: bool) {
        let Err(error) = result else { return };
        tracing::debug!(%error, count = receipts.len(), "cannot settle wake-ups");
        if working {
            self.settle_at = Instant::now() + RETRY;
            self.settle(receipts);
        } else {
            self.settling.clear();
        }
    }

    /// On the way out, nothing waits for its time.
    pub(crate) fn hurry(&mut self) {
        self.settle_at = Instant::now();
    }
}

async fn running<T>(lane: &mut Option<BoxFuture<'static, T>>) -> T {
    match lane {
        Some(lane) => lane.await,
        None => std::future::pending().await,
    }
}

struct Round {
    transport: Arc<dyn Transport>,
    link: Arc<Link>,
    queues: Vec<Arc<str>>,
    wait: Duration,
    draining: CancellationToken,
}

/// What became of one claim.
enum Claimed {
    Granted(Box<Job>, Receipt, Instant),
    /// The wake-up is over.
    Over(Receipt),
    /// The wake-up stays, for the control plane to judge.
    Left,
    /// The wake-up stays: this worker gets no new work.
    Drained,
    Fatal(WorkerError),
}

impl Round {
    async fn run(self, free: usize) -> RoundEnd {
        let started = Instant::now();
        let received = tokio::select! {
            biased;
            // The transport gives back what it took for somebody who no longer waits.
            () = self.draining.cancelled() => Ok(Vec::new()),
            received = self.transport.receive(&self.queues, free, self.wait) => received,
        };
        let mut end = RoundEnd {
            received: Ok(()),
            early: false,
            granted: Vec::new(),
            over: Vec::new(),
            drained: false,
            fatal: None,
        };
        let deliveries = match received {
            Ok(deliveries) => deliveries,
            Err(error) => {
                end.received = Err(error);
                return end;
            }
        };
        end.early = deliveries.is_empty() && started.elapsed() < self.wait / 2;
        let mut claims = stream::iter(deliveries).map(|delivery| self.claim(delivery)).buffer_unordered(CLAIMS);
        while let Some(claimed) = claims.next().await {
            match claimed {
                Claimed::Granted(job, receipt, sent_at) => end.granted.push((*job, receipt, sent_at)),
                Claimed::Over(receipt) => end.over.push(receipt),
                Claimed::Left => {}
                Claimed::Drained => end.drained = true,
                Claimed::Fatal(error) => end.fatal = Some(error),
            }
        }
        drop(claims);
        self.announce(&end.granted);
        end
    }

    /// Claims the job of a wake-up, under one `claim_id` until there is an answer.
    async fn claim(&self, delivery: Delivery) -> Claimed {
        let request = ClaimRequest {
            job_id: Some(delivery.task.to_string()),
            stream: Some(delivery.queue.to_string()),
            message_id: Some(delivery.message_id.to_string()),
            claim_id: Some(id::claim_id()),
            ..self.link.claim_request()
        };
        let sent_at = Instant::now();
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            if self.draining.is_cancelled() {
                return Claimed::Left;
            }
            match self.link.claim(&request).await {
                Ok(JobClaim { job: Some(mut job), .. }) => {
                    // What the report names is the message that is to be settled.
                    job.stream = delivery.queue.to_string();
                    job.message_id = delivery.message_id.to_string();
                    return Claimed::Granted(job, delivery.receipt, sent_at);
                }
                Ok(JobClaim { is_over: true, .. }) => return Claimed::Over(delivery.receipt),
                Ok(JobClaim { drained: true, .. }) => return Claimed::Drained,
                Ok(_) => return Claimed::Left,
                Err(ExchangeError::Fatal(error @ WorkerError::Refused { status, .. }))
                    if !matches!(status, 401 | 403) =>
                {
                    tracing::error!(%error, task.id = %delivery.task, "claim of a wake-up refused");
                    return Claimed::Left;
                }
                Err(ExchangeError::Fatal(error)) => return Claimed::Fatal(error),
                Err(ExchangeError::Again { reason, retry_after, .. }) => {
                    let wait = backoff.next(retry_after);
                    tracing::warn!(wait_seconds = wait.as_secs_f64(), reason, "the server did not answer");
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.draining.cancelled() => {}
                    }
                }
            }
        }
    }

    /// The first heartbeat may be later than the transport would wait.
    fn announce(&self, granted: &[(Job, Receipt, Instant)]) {
        if granted.is_empty() {
            return;
        }
        let held: Vec<_> = granted.iter().map(|(job, receipt, _)| (lease_time(job), receipt.clone())).collect();
        let transport = Arc::clone(&self.transport);
        tokio::spawn(async move { extend(&*transport, held).await });
    }
}

/// The wake-ups of leases that were just renewed are being worked on.
pub(crate) async fn extend_of(transport: &dyn Transport, leases: &[&Lease]) {
    let held = leases.iter().filter_map(|lease| Some((lease_time(&lease.job), lease.receipt.clone()?))).collect();
    extend(transport, held).await;
}

async fn extend(transport: &dyn Transport, held: Vec<(Duration, Receipt)>) {
    let mut by_time: HashMap<Duration, Vec<Receipt>> = HashMap::new();
    for (time, receipt) in held {
        by_time.entry(time).or_default().push(receipt);
    }
    for (time, receipts) in by_time {
        if let Err(error) = transport.extend(&receipts, time).await {
            // The lease is what counts: whoever gets the wake-up meanwhile is refused.
            tracing::debug!(%error, count = receipts.len(), "cannot extend wake-ups");
        }
    }
}

fn lease_time(job: &Job) -> Duration {
    Duration::from_secs(job.lease_ttl_seconds.max(1))
}
