//! One request of the claim loop, sent until it has an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_contract::pull::{ExchangeClaim, ExchangeResponse};
use tokio_util::sync::CancellationToken;

use super::caller::ExchangeError;
use super::error::WorkerError;
use super::link::Link;
use super::report::Batch;
use crate::http::Backoff;

/// For the answer, beyond what the claim waits.
const ANSWER_WAIT: Duration = Duration::from_secs(15);
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How often reports are sent in vain, in a way that may be their own fault, before they go in smaller requests.
const TRIES: usize = 2;

pub(crate) struct Turn {
    pub(crate) link: Arc<Link>,
    pub(crate) reports: Batch,
    pub(crate) claim: Option<Claim>,
    pub(crate) draining: CancellationToken,
}

/// A claim, and when it was sent for the first time: the leases that it brings may have begun then.
pub(crate) struct Claim {
    pub(crate) wanted: ExchangeClaim,
    pub(crate) sent_at: Instant,
}

pub(crate) struct TurnEnd {
    pub(crate) reports: Batch,
    /// The claim that was sent last.
    pub(crate) claim: Option<Claim>,
    pub(crate) response: Response,
}

/// How a turn ended.
pub(crate) enum Response {
    Answered(Box<ExchangeResponse>),
    /// The request does not get through, perhaps for what is in it.
    Stuck,
    /// The error ends the worker.
    Refused(WorkerError),
}

impl Turn {
    /// Sends the same reports and the same claim, under the same `claim_id`, until there is an answer: an answer that
    /// got lost is then repeated by the server, and no granted job is left without a holder that knows of it. When the
    /// worker drains, the claim is taken out before the request is sent again. Reports that do not get through give way.
    pub(crate) async fn run(mut self) -> TurnEnd {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut in_vain = 0;
        let response = loop {
            if self.draining.is_cancelled() {
                self.claim = None;
            }
            if self.claim.is_none() && self.reports.is_empty() {
                break Response::Answered(Box::default());
            }
            match self.send().await {
                Ok(response) => break Response::Answered(Box::new(response)),
                Err(ExchangeError::Fatal(error)) => break Response::Refused(error),
                Err(ExchangeError::Again { reason, retry_after, own_fault }) => {
                    let wait = backoff.next(retry_after);
                    tracing::warn!(
                        reports = self.reports.len(),
                        wait_seconds = wait.as_secs_f64(),
                        reason,
                        "the server did not answer"
                    );
                    in_vain += usize::from(own_fault);
                    if in_vain == TRIES && !self.reports.is_empty() {
                        break Response::Stuck;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.draining.cancelled(), if self.claim.is_some() => {}
                    }
                }
            }
        };
        TurnEnd { reports: self.reports, claim: self.claim, response }
    }

    async fn send(&self) -> Result<ExchangeResponse, ExchangeError> {
        let mut request = self.link.request();
        self.reports.write(&mut request);
        request.claim = self.claim.as_ref().map(|claim| claim.wanted.clone());
        request.worker = request.claim.as_ref().and_then(|_| self.link.about());
        let claim_wait_ms = request.claim.as_ref().and_then(|claim| claim.max_wait_ms).unwrap_or_default();
        let claim_wait = Duration::from_millis(u64::try_from(claim_wait_ms).unwrap_or_default());
        self.link.exchange_large(&request, ANSWER_WAIT + claim_wait).await
    }
}
