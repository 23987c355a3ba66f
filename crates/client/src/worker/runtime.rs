//! The claim loop.
//!
//! Three lanes lead to the server. The first carries a turn: all reports that are ready and a claim for all free slots,
//! in one request. Without reports the claim waits at the server for work; reports that become ready meanwhile take
//! the second lane, so that no outcome waits for a poll. While a turn is on its way, what ends gathers for the next: the
//! busier the worker, the fuller its requests. The third lane is for outcomes that do not get through ([`Aside`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_contract::pull::{ExchangeClaim, ExchangeResponse, ItemAnswer, Job};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::aside::Aside;
use super::caller::{STALE_INCARNATION, is_temporary};
use super::error::WorkerError;
use super::execute::{Handler, execute};
use super::id;
use super::lease::{CancelReason, Lease};
use super::link::{Link, Process};
use super::registry::Registry;
use super::report::{Batch, Report};
use super::supervisor::Supervisor;
use super::turn::{Claim, FIRST_WAIT, LONGEST_WAIT, Response, Turn, TurnEnd};
use super::wake::{self, WakeBy, WakeEvent, Wakes};
use super::{EXCHANGE_ITEMS, about};
use crate::http::Backoff;

/// After an answer that says "not now", or a poll that did not wait.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// On shutdown, how long the last reports may take.
const LAST_REPORTS: Duration = Duration::from_secs(10);
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) queues: Vec<String>,
    pub(crate) concurrency: usize,
    pub(crate) poll_wait: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) stop_grace: Duration,
    pub(crate) outage_tolerance: Duration,
    pub(crate) kills_on_expiry: bool,
    pub(crate) wake_by: WakeBy,
    pub(crate) handlers: HashMap<String, Handler>,
}

pub(crate) struct Runtime {
    options: Options,
    link: Arc<Link>,
    registry: Arc<Registry>,
    supervisor: Supervisor,
    running: JoinSet<Option<Report>>,
    ready: VecDeque<Report>,
    /// Reports that are ready or under way.
    unreported: usize,
    turn: Lane,
    /// The turn under way is a claim that waits at the server.
    polling: bool,
    /// The turn under way has a claim.
    claiming: bool,
    flush: Lane,
    /// What wakes the worker, unless it asks the server for work.
    wakes: Option<Wakes>,
    /// No request starts before.
    not_before: Instant,
    stage: Stage,
    draining: CancellationToken,
    /// Why the worker drains, if the server wants nothing of it any more.
    refused: Option<WorkerError>,
    /// Reports that go in one request: fewer, after one was refused as a whole or did not get through.
    most: usize,
    aside: Aside,
    aside_lane: Lane,
    /// A claim that was on its way with reports that did not get through: its answer may have been lost.
    unanswered: Option<Claim>,
    /// An operator lets this worker get no new work.
    drained: bool,
    /// How long to wait after answers that say "not now", and after none.
    busy: Backoff,
}

type Lane = Option<BoxFuture<'static, TurnEnd>>;

/// How far the worker is; the times are the ends of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Working,
    /// Nothing is claimed any more, tasks and reports go on.
    Draining(Instant),
    /// Tasks were told to stop.
    Stopping(Instant),
    /// Tasks were given up; the last reports are on their way.
    Reporting(Instant),
}

impl Runtime {
    pub(crate) fn start(process: Process, options: Options) -> Result<Self, WorkerError> {
        tracing::info!(
            worker.id = process.identity.worker_id,
            queue.names = options.queues.join(","),
            "worker started"
        );
        let link = Arc::new(Link::new(process.clone())?);
        let registry = Arc::new(Registry::with_logs());
        let supervisor = Supervisor::start(process, Arc::clone(&registry), options.wake_by.clone())?;
        let wakes = Wakes::new(&options.wake_by, &options.queues);
        Ok(Self {
            options,
            link,
            registry,
            supervisor,
            running: JoinSet::new(),
            ready: VecDeque::new(),
            unreported: 0,
            turn: None,
            polling: false,
            claiming: false,
            flush: None,
            wakes,
            not_before: Instant::now(),
            stage: Stage::Working,
            draining: CancellationToken::new(),
            refused: None,
            most: usize::MAX,
            aside: Aside::default(),
            aside_lane: None,
            unanswered: None,
            drained: false,
            busy: busy(),
        })
    }

    pub(crate) async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let mut shutdown = std::pin::pin!(shutdown);
        let (logs, link) = (Arc::clone(&self.registry.logs), Arc::clone(&self.link));
        let mut logging = std::pin::pin!(async move {
            logs.send(&*link).await;
            std::future::pending::<()>().await
        });
        loop {
            let now = Instant::now();
            self.start_requests(now);
            if self.is_done() {
                return self.refused.take().map_or(Ok(()), Err);
            }
            let settle_at = self.wakes.as_ref().and_then(Wakes::settle_at).filter(|at| *at > now);
            let paused = self.not_before > now;
            let aside_at = self.aside.next_at().filter(|_| self.aside_lane.is_none() && !paused);
            tokio::select! {
                biased;
                error = self.supervisor.failed() => return Err(error),
                () = &mut shutdown, if self.stage == Stage::Working => self.begin_drain(),
                () = sleep_until(self.stage.end()) => self.end_stage()?,
                end = finished(&mut self.turn) => {
                    self.claiming = false;
                    self.settle(end)?;
                }
                end = finished(&mut self.flush) => self.settle(end)?,
                end = finished(&mut self.aside_lane) => self.settle_aside(end)?,
                Some(done) = self.running.join_next() => {
                    self.collect(done.ok().flatten());
                    while let Some(done) = self.running.try_join_next() {
                        self.collect(done.ok().flatten());
                    }
                }
                event = woken(&mut self.wakes) => self.settle_wake(event)?,
                () = sleep_until(settle_at), if settle_at.is_some() => {}
                () = sleep_until(aside_at), if aside_at.is_some() => {}
                () = sleep_until(Some(self.not_before)), if paused => {}
                () = &mut logging => {}
            }
        }
    }

    fn is_done(&self) -> bool {
        let reporting = matches!(self.stage, Stage::Reporting(_));
        self.stage != Stage::Working
            && self.running.is_empty()
            && self.unreported == 0
            && (reporting || self.wakes.as_ref().is_none_or(Wakes::is_idle))
    }

    fn collect(&mut self, report: Option<Report>) {
        self.unreported += usize::from(report.is_some());
        self.ready.extend(report);
    }

    fn start_requests(&mut self, now: Instant) {
        if now < self.not_before {
            return;
        }
        if self.turn.is_none() {
            let reports = Batch::take(&mut self.ready, self.most);
            let claim = self.next_claim(reports.is_empty());
            self.polling = reports.is_empty() && claim.is_some();
            self.claiming = claim.is_some();
            if !reports.is_empty() || claim.is_some() {
                self.turn = Some(self.send(reports, claim));
            }
        }
        if self.polling && self.flush.is_none() && !self.ready.is_empty() {
            let reports = Batch::take(&mut self.ready, self.most);
            self.flush = Some(self.send(reports, None));
        }
        self.send_aside(now);
        self.start_wakes();
    }

    fn send_aside(&mut self, now: Instant) {
        while self.aside_lane.is_none()
            && let Some(report) = self.aside.take_due(now)
        {
            if self.aside.is_hopeless(now) && !self.registry.holds(&report.lease) {
                let Job { job_id, fence, .. } = &report.lease.job;
                tracing::error!(task.id = %job_id, lease.fence = fence, "cannot deliver an outcome, giving it up");
                self.unreported -= 1;
                continue;
            }
            self.aside_lane = Some(self.send(Batch::take(&mut VecDeque::from([report]), 1), None));
        }
    }

    fn settle_aside(&mut self, end: TurnEnd) -> Result<(), WorkerError> {
        let answered = match end.response {
            Response::Answered(mut response) => end.reports.answered(&mut response),
            Response::Stuck => end.reports.into_reports().map(|report| (report, None)).collect(),
            Response::Refused(error) => return self.settle_refusal(end.reports, end.claim, error),
        };
        for (report, answer) in answered {
            match decided(answer) {
                Some(answer) => self.settle_report(report, answer)?,
                None => self.aside.put_back(report),
            }
        }
        Ok(())
    }

    fn start_wakes(&mut self) {
        let free = self.free();
        let Some(wakes) = &mut self.wakes else { return };
        wakes.start_settling();
        // A claim under way may fill the slots that are free now.
        if self.stage == Stage::Working && free > 0 && !self.claiming && !self.drained {
            wakes.start_round(&self.link, free, self.options.poll_wait, &self.draining);
        }
    }

    fn free(&self) -> usize {
        // Results that pile up because they do not get through take slots in the end.
        let piled_up = self.aside.len().saturating_sub(self.options.concurrency);
        self.options.concurrency.saturating_sub(self.running.len() + piled_up).min(EXCHANGE_ITEMS)
    }

    fn next_claim(&mut self, may_wait: bool) -> Option<Claim> {
        let free = self.free();
        let longest = match &self.wakes {
            None => self.options.poll_wait,
            // Asking is how it learns that it gets work again.
            Some(_) if self.drained => self.options.poll_wait,
            Some(wakes) if wakes.are_down() => self.options.poll_wait.min(wake::RETRY),
            Some(_) => return None,
        };
        // More reports than fit into a request: they go first.
        if self.stage != Stage::Working || free == 0 || !self.ready.is_empty() {
            return None;
        }
        let max_jobs = i64::try_from(free).ok();
        if let Some(claim) = self.unanswered.take().filter(|claim| claim.wanted.max_jobs <= max_jobs) {
            return Some(claim);
        }
        let wait = if may_wait { longest } else { Duration::ZERO };
        let wanted = ExchangeClaim {
            streams: self.options.queues.clone(),
            max_jobs,
            max_wait_ms: i64::try_from(wait.as_millis()).ok(),
            claim_id: Some(id::claim_id()),
            kills_on_expiry: self.options.kills_on_expiry,
        };
        Some(Claim { wanted, sent_at: Instant::now() })
    }

    fn send(&self, reports: Batch, claim: Option<Claim>) -> BoxFuture<'static, TurnEnd> {
        Turn { link: Arc::clone(&self.link), reports, claim, draining: self.draining.clone() }.run().boxed()
    }

    fn settle(&mut self, end: TurnEnd) -> Result<(), WorkerError> {
        let mut response = match end.response {
            Response::Answered(response) => *response,
            Response::Stuck => {
                self.settle_stuck_reports(end.reports);
                self.unanswered = end.claim.or(self.unanswered.take());
                self.back_off();
                return Ok(());
            }
            Response::Refused(error) => return self.settle_refusal(end.reports, end.claim, error),
        };
        let polled = end.reports.is_empty();
        if !polled {
            self.most = self.most.saturating_mul(2);
        }
        let reports = end.reports.answered(&mut response).into_iter().map(|(report, answer)| (report, decided(answer)));
        let (decided, undecided): (Vec<_>, Vec<_>) = reports.partition(|(_, answer)| answer.is_some());
        let takes_reports = !decided.is_empty();
        let takes_claims = end.claim.is_some() && response.claim_error.is_none();
        let not_now = !undecided.is_empty() || response.claim_error.is_some();
        for (report, answer) in decided {
            self.settle_report(report, answer.unwrap_or_default())?;
        }
        for (report, _) in undecided {
            if takes_reports || takes_claims {
                self.aside.put(report, FIRST_WAIT);
            } else {
                self.ready.push_back(report);
            }
        }
        self.settle_claim(response, end.claim, polled)?;
        match (not_now, takes_reports || takes_claims) {
            (true, false) => self.back_off(),
            (true, true) if !takes_claims => self.pause(),
            _ => self.busy = busy(),
        }
        Ok(())
    }

    /// They go in smaller requests; one that was alone already waits aside.
    fn settle_stuck_reports(&mut self, reports: Batch) {
        let alone = reports.len() == 1;
        if !alone {
            self.most = reports.len() / 2;
        }
        let mut reports: Vec<_> = reports.into_reports().collect();
        // The oldest first again.
        reports.reverse();
        for report in reports {
            if alone {
                self.aside.put(report, LONGEST_WAIT);
            } else {
                self.ready.push_front(report);
            }
        }
    }

    fn settle_refusal(&mut self, reports: Batch, claim: Option<Claim>, error: WorkerError) -> Result<(), WorkerError> {
        // The reports are at fault, or else the next claim finds out.
        if matches!(error, WorkerError::Refused { .. }) && !reports.is_empty() && self.link.is_admitted() {
            self.settle_refused_reports(reports, &error);
            self.unanswered = claim.or(self.unanswered.take());
            return Ok(());
        }
        self.give_up(error)
    }

    /// One report must not take others down with it: they go in smaller requests. One that is refused alone is followed by
    /// a failure that says so; if that is refused too, its lease runs out.
    fn settle_refused_reports(&mut self, reports: Batch, error: &WorkerError) {
        tracing::error!(%error, reports = reports.len(), "outcomes refused");
        let alone = reports.len() == 1;
        if !alone {
            self.most = reports.len() / 2;
        }
        let mut reports: Vec<_> = reports.into_reports().collect();
        // The oldest first again.
        reports.reverse();
        for mut report in reports {
            if alone && !report.replace_by_refusal(error) {
                self.unreported -= 1;
                self.registry.remove(&report.lease);
                continue;
            }
            self.ready.push_front(report);
        }
        self.pause();
    }

    /// The server refuses this worker's claims. Once it was let in, what runs may end and be reported before the worker
    /// does.
    fn give_up(&mut self, error: WorkerError) -> Result<(), WorkerError> {
        if !matches!(error, WorkerError::Refused { .. }) || !self.link.is_admitted() {
            return Err(error);
        }
        tracing::error!(%error, "the server refuses this worker: draining");
        self.refused.get_or_insert(error);
        if self.stage == Stage::Working {
            self.begin_drain();
        }
        Ok(())
    }

    fn settle_report(&mut self, mut report: Report, answer: ItemAnswer) -> Result<(), WorkerError> {
        if is_replaced(&mut report, &answer) {
            self.ready.push_back(report);
            return Ok(());
        }
        self.unreported -= 1;
        self.registry.remove(&report.lease);
        if let (Some(wakes), Some(receipt), Some(true)) = (&mut self.wakes, &report.lease.receipt, answer.ack) {
            wakes.settle([receipt.clone()]);
        }
        if !answer.ok {
            let error = answer.error.unwrap_or_default();
            if error == STALE_INCARNATION {
                return Err(self.link.superseded());
            }
            let Job { job_id, fence, .. } = &report.lease.job;
            tracing::warn!(task.id = %job_id, lease.fence = fence, error, "the server refused an outcome");
        }
        Ok(())
    }

    fn settle_claim(
        &mut self,
        response: ExchangeResponse,
        claim: Option<Claim>,
        polled: bool,
    ) -> Result<(), WorkerError> {
        let jobs = response.jobs.unwrap_or_default();
        if let Some(refused) = response.claim_error {
            return self.settle_refused_claim(refused);
        }
        let Some(Claim { wanted, sent_at }) = claim else { return Ok(()) };
        about::note_drained(&mut self.drained, response.drained);
        let wait_ms = wanted.max_wait_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default();
        if polled && jobs.is_empty() && sent_at.elapsed() < Duration::from_millis(wait_ms / 2).max(BUSY_PAUSE) {
            // A server that ends polls early is shutting down, say: do not hammer it.
            self.pause();
        }
        let tolerance = self.options.outage_tolerance;
        self.begin(jobs.into_iter().map(|job| Lease::new(job, sent_at, tolerance)));
        Ok(())
    }

    fn settle_wake(&mut self, event: WakeEvent) -> Result<(), WorkerError> {
        let Some(wakes) = &mut self.wakes else { return Ok(()) };
        let mut end = match event {
            WakeEvent::Round(end) => end,
            WakeEvent::Settled(settled) => {
                wakes.note_settled(settled, self.stage == Stage::Working);
                return Ok(());
            }
        };
        wakes.note(&mut end);
        if end.drained {
            about::note_drained(&mut self.drained, true);
        }
        if let Some(error) = end.fatal.take() {
            self.give_up(error)?;
        }
        if end.early {
            self.pause();
        }
        let tolerance = self.options.outage_tolerance;
        let granted = end.granted.into_iter();
        self.begin(granted.map(|(job, receipt, at)| Lease::new(job, at, tolerance).woken_by(receipt)));
        Ok(())
    }

    fn settle_refused_claim(&mut self, refused: ItemAnswer) -> Result<(), WorkerError> {
        let (status, error) = (refused.http_status.unwrap_or(500), refused.error.unwrap_or_default());
        if error == STALE_INCARNATION {
            return Err(self.link.superseded());
        }
        if !is_temporary(status) {
            let message = refused.message.unwrap_or_default();
            return self.give_up(WorkerError::Refused { status, error, message });
        }
        Ok(())
    }

    /// The server cannot do what it was asked: the longer that lasts, the less often it is asked.
    fn back_off(&mut self) {
        self.not_before = Instant::now() + self.busy.next(None);
    }

    fn pause(&mut self) {
        self.not_before = Instant::now() + crate::http::jittered(BUSY_PAUSE);
    }

    fn begin(&mut self, leases: impl Iterator<Item = Lease>) {
        let leases: Vec<_> = leases.map(Arc::new).collect();
        self.registry.add(&leases);
        for lease in leases {
            // The answer to a claim that was under way when the worker was told to stop.
            match self.stage {
                Stage::Working | Stage::Draining(_) => {}
                Stage::Stopping(_) => lease.request_cancel(CancelReason::Shutdown),
                Stage::Reporting(_) => lease.abandon(),
            }
            let handler = self.options.handlers.get(&lease.job.operator).cloned();
            let span = tracing::info_span!("task", task.id = %lease.job.job_id, attempt.number = lease.job.attempt, lease.fence = lease.job.fence);
            self.running.spawn(execute(lease, Arc::clone(&self.registry), handler).instrument(span));
        }
    }

    /// Stops claiming. A poll under way is given up; the server gives no work to a connection that is gone.
    fn begin_drain(&mut self) {
        tracing::info!(running = self.running.len(), "worker draining");
        self.draining.cancel();
        if self.polling {
            self.turn = None;
            self.polling = false;
            self.claiming = false;
        }
        if let Some(wakes) = &mut self.wakes {
            wakes.hurry();
        }
        self.stage = Stage::Draining(Instant::now() + self.options.drain_timeout);
    }

    fn end_stage(&mut self) -> Result<(), WorkerError> {
        let now = Instant::now();
        match self.stage {
            Stage::Working => {}
            Stage::Draining(_) => {
                tracing::warn!(running = self.running.len(), "drain time-out: telling tasks to stop");
                self.registry.all().iter().for_each(|lease| lease.request_cancel(CancelReason::Shutdown));
                self.stage = Stage::Stopping(now + self.options.stop_grace);
            }
            Stage::Stopping(_) => {
                tracing::warn!(running = self.running.len(), "tasks did not stop: giving them up");
                self.registry.all().iter().for_each(|lease| lease.abandon());
                self.stage = Stage::Reporting(now + LAST_REPORTS);
            }
            Stage::Reporting(_) => {
                return Err(WorkerError::Unreported { count: self.unreported + self.running.len() });
            }
        }
        Ok(())
    }
}

/// The answer to a report, unless it says "not now" or nothing.
fn decided(answer: Option<ItemAnswer>) -> Option<ItemAnswer> {
    answer.filter(|answer| answer.ok || !answer.http_status.is_some_and(is_temporary))
}

/// One that was refused for what it says is followed by a failure that says so, if it can be.
fn is_replaced(report: &mut Report, answer: &ItemAnswer) -> bool {
    match answer.http_status {
        // These are about who reports, or when.
        None | Some(401 | 403 | 404 | 409 | 410) => false,
        Some(_) if answer.ok => false,
        Some(status) => {
            let (error, message) = (answer.error.clone(), answer.message.clone());
            let (error, message) = (error.unwrap_or_default(), message.unwrap_or_default());
            report.replace_by_refusal(&WorkerError::Refused { status, error, message })
        }
    }
}

fn busy() -> Backoff {
    Backoff::new(FIRST_WAIT, LONGEST_WAIT)
}

impl Drop for Runtime {
    /// Whatever ended the worker, what it still holds is not its to go on with.
    fn drop(&mut self) {
        self.registry.lose_all("the worker ended");
    }
}

impl Stage {
    fn end(self) -> Option<Instant> {
        match self {
            Self::Working => None,
            Self::Draining(end) | Self::Stopping(end) | Self::Reporting(end) => Some(end),
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

async fn woken(wakes: &mut Option<Wakes>) -> WakeEvent {
    match wakes {
        Some(wakes) => wakes.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for the request of a lane, if it has one, and clears the lane.
async fn finished(lane: &mut Lane) -> TurnEnd {
    let Some(request) = lane else { return std::future::pending().await };
    let end = request.await;
    *lane = None;
    end
}
