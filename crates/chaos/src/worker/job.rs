//! One job in the hands of a bad worker.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Held, Worker};
use crate::history::{Answer, Call, Report, ReportKind};
use crate::http::Reply;
use crate::rng::Rng;

/// How often a report without an answer is sent again.
const TRIES: usize = 8;

/// What will happen to a job, drawn when it starts.
#[derive(Debug, Clone, Copy)]
struct Manners {
    works_for: Duration,
    beats: bool,
    /// Sends its only heartbeat when the lease has ended, by this much.
    beats_late: Option<Duration>,
    /// Goes on and reports although it was told that the lease is gone.
    deaf: bool,
    end: Ending,
    /// Sends the same report again, after this time.
    again: Option<Duration>,
    /// Says something else afterwards.
    contradicts: bool,
    /// Somebody without the token speaks for it first.
    forges: bool,
    /// Does not ask again when an answer is lost.
    gives_up: bool,
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Report(ReportKind),
    /// Says nothing.
    Silence,
}

impl Manners {
    fn draw(rng: &mut Rng, ttl: Duration) -> Self {
        let ttl_ms = ttl.as_millis() as u64;
        let works_for = match rng.between(0, 100) {
            0..60 => rng.between(1, 60),
            60..85 => rng.between(60, ttl_ms / 2),
            85..95 => rng.between(ttl_ms / 2, ttl_ms),
            _ => rng.between(ttl_ms, ttl_ms * 2),
        };
        let end = match rng.between(0, 100) {
            0..78 => Ending::Report(ReportKind::Complete),
            78..91 => Ending::Report(ReportKind::FailRetryable),
            91..95 => Ending::Report(ReportKind::FailFinal),
            95..97 => Ending::Report(ReportKind::FailCancelled),
            _ => Ending::Silence,
        };
        Self {
            works_for: Duration::from_millis(works_for),
            beats: rng.chance(80),
            beats_late: rng.chance(6).then(|| Duration::from_millis(rng.between(10, ttl_ms / 2))),
            deaf: rng.chance(30),
            end,
            again: rng.chance(15).then(|| Duration::from_millis(rng.between(0, ttl_ms * 2))),
            contradicts: rng.chance(4),
            forges: rng.chance(6),
            gives_up: rng.chance(10),
        }
    }
}

/// Holds the slot until the first report was answered, or there is none.
pub(super) async fn run(worker: Arc<Worker>, held: Held, slot: Option<OwnedSemaphorePermit>) {
    let ttl = Duration::from_millis(held.job.ttl_ms);
    let manners = worker.draw(|rng| Manners::draw(rng, ttl));
    if manners.forges {
        worker.forge(&held).await;
    }
    let wants_end = worker.works(&held, &manners, ttl).await;
    let mut end = manners.end;
    match wants_end {
        Heard::GoOn => {}
        Heard::LeaseLost if manners.deaf => {}
        Heard::LeaseLost => return,
        Heard::Cancel if manners.deaf => {}
        Heard::Cancel => end = Ending::Report(ReportKind::FailCancelled),
    }
    let Ending::Report(kind) = end else { return };
    match worker.write_effect(&held.job).await {
        Some(true) => {}
        // The guard knows of a later holder. A worker that reports all the same must be refused.
        Some(false) if manners.deaf => {}
        Some(false) | None => return,
    }
    let report = worker.report_of(&held, kind);
    let answer = worker.report(&held, &report, if manners.gives_up { 1 } else { TRIES }).await;
    drop(slot);
    if let Some(pause) = manners.again {
        sleep(pause).await;
        worker.report(&held, &report, 1).await;
    }
    if manners.contradicts && !matches!(answer, Answer::Unknown { .. } | Answer::NotSent) {
        let kind = if kind == ReportKind::Complete { ReportKind::FailFinal } else { ReportKind::FailRetryable };
        let other = worker.report_of(&held, kind);
        worker.report(&held, &other, 1).await;
    }
}

/// What a holder learned while it worked.
enum Heard {
    GoOn,
    LeaseLost,
    Cancel,
}

impl Worker {
    /// Works and, unless it forgets to, sends heartbeats.
    async fn works(&self, held: &Held, manners: &Manners, ttl: Duration) -> Heard {
        if let Some(late) = manners.beats_late {
            sleep(ttl + late).await;
            return match self.beat(held).await {
                Answer::Renewed { should_cancel: true } => Heard::Cancel,
                Answer::Refused { .. } => Heard::LeaseLost,
                _ => Heard::GoOn,
            };
        }
        let end = Instant::now() + manners.works_for;
        let mut next = Instant::now() + ttl / 3;
        while manners.beats && next < end {
            sleep_until(next).await;
            next += ttl / 3;
            match self.beat(held).await {
                Answer::Renewed { should_cancel: true } => return Heard::Cancel,
                Answer::Refused { .. } if !manners.deaf => return Heard::LeaseLost,
                _ => {}
            }
        }
        sleep_until(end).await;
        Heard::GoOn
    }

    async fn beat(&self, held: &Held) -> Answer {
        let job = &held.job;
        let body = json!({"worker_id": self.args.name, "job_id": job.task, "lease_token": held.token});
        let call = Call::Heartbeat { task: job.task.clone(), attempt_id: job.attempt_id.clone() };
        let read = |body: &Value| Some(Answer::Renewed { should_cancel: body["should_cancel"].as_bool()? });
        self.send("/internal/worker/heartbeat", &body, call, read).await.0
    }

    /// A heartbeat or a completion with another token.
    async fn forge(&self, held: &Held) {
        let job = &held.job;
        let mut token = held.token.clone();
        let last = token.pop();
        token.push(if last == Some('0') { '1' } else { '0' });
        let mut body = json!({"worker_id": self.args.name, "job_id": job.task, "lease_token": token});
        let path = if self.draw(|rng| rng.chance(50)) {
            "/internal/worker/heartbeat"
        } else {
            body["attempt_id"] = json!(job.attempt_id);
            body["stream"] = json!(held.stream);
            body["message_id"] = json!(held.message_id);
            body["result"] = json!({"by": "nobody"});
            "/internal/worker/complete"
        };
        let call = Call::Forged { task: job.task.clone(), attempt_id: job.attempt_id.clone() };
        self.send(path, &body, call, |body| Some(Answer::Reported { body: body.clone() })).await;
    }

    /// A report that no other attempt would make.
    fn report_of(&self, held: &Held, kind: ReportKind) -> Report {
        let by = format!("{} {} {:x}", self.args.process, held.job.attempt, self.draw(Rng::draw));
        let content = match kind {
            ReportKind::Complete => json!({"by": by}),
            ReportKind::FailRetryable => json!({"code": "CHAOS", "message": by, "retryable": true}),
            ReportKind::FailFinal => json!({"code": "CHAOS", "message": by, "retryable": false}),
            ReportKind::FailCancelled => json!({"code": "CANCELLED", "message": by}),
        };
        Report { kind, content: content.to_string() }
    }

    /// Reports until there is an answer, or patience ends.
    async fn report(&self, held: &Held, report: &Report, tries: usize) -> Answer {
        let job = &held.job;
        let mut body = json!({"worker_id": self.args.name, "job_id": job.task, "attempt_id": job.attempt_id,
            "lease_token": held.token, "stream": held.stream, "message_id": held.message_id});
        let content: Value = serde_json::from_str(&report.content).unwrap_or_default();
        let path = match report.kind {
            ReportKind::Complete => {
                body["result"] = content;
                "/internal/worker/complete"
            }
            _ => {
                body["error"] = content;
                "/internal/worker/fail"
            }
        };
        let mut last = Answer::NotSent;
        for attempt in 0..tries {
            let call =
                Call::Report { task: job.task.clone(), attempt_id: job.attempt_id.clone(), report: report.clone() };
            let read = |body: &Value| body["ok"].as_bool()?.then(|| Answer::Reported { body: body.clone() });
            let (answer, reply) = self.send(path, &body, call, read).await;
            if let Reply::Told { body, .. } = &reply
                && body["ack"] == true
            {
                self.ack(held).await;
            }
            last = answer;
            if !matches!(last, Answer::Unknown { .. } | Answer::NotSent) {
                break;
            }
            sleep(Duration::from_millis(100 << attempt.min(4))).await;
        }
        last
    }
}
