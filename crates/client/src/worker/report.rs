//! What became of tasks, on its way to the server.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_contract::Json;
use tenure_contract::pull::{CompleteItem, ExchangeRequest, ExchangeResponse, FailItem, ItemAnswer, JobError};

use super::error::{TaskError, WorkerError};
use super::lease::Lease;
use super::{EXCHANGE_BYTES, EXCHANGE_ITEMS};

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) lease: Arc<Lease>,
    pub(crate) outcome: Outcome,
}

/// Of an outcome that the server did not take.
const REPORT_REFUSED: &str = "REPORT_REFUSED";

#[derive(Debug)]
pub(crate) enum Outcome {
    Complete(Json),
    Fail(JobError),
}

impl Report {
    /// Says instead that the outcome was refused. Not possible for what says so already.
    pub(crate) fn replace_by_refusal(&mut self, refused: &WorkerError) -> bool {
        if matches!(&self.outcome, Outcome::Fail(error) if error.code == REPORT_REFUSED) {
            return false;
        }
        let message = format!("the server did not take the outcome of this attempt: {refused}");
        self.outcome = Outcome::Fail(TaskError::permanent(REPORT_REFUSED, message).into_wire());
        true
    }

    fn bytes(&self) -> usize {
        match &self.outcome {
            Outcome::Complete(result) => result.len(),
            Outcome::Fail(error) => error.message.len() + error.stack.as_ref().map_or(0, String::len),
        }
    }
}

/// Reports that go in one request. Sent again it has the same content, so the server knows it for a replay.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    completes: Vec<(Arc<Lease>, Json)>,
    fails: Vec<(Arc<Lease>, JobError)>,
}

impl Batch {
    /// Takes as many as one request may carry, and not more than `most`, oldest first.
    pub(crate) fn take(ready: &mut VecDeque<Report>, most: usize) -> Self {
        let mut batch = Self::default();
        let mut bytes = 0;
        while let Some(report) = ready.front() {
            bytes += report.bytes();
            if batch.is_full() || batch.len() >= most || (bytes > EXCHANGE_BYTES && !batch.is_empty()) {
                break;
            }
            match ready.pop_front() {
                Some(Report { lease, outcome: Outcome::Complete(result) }) => batch.completes.push((lease, result)),
                Some(Report { lease, outcome: Outcome::Fail(error) }) => batch.fails.push((lease, error)),
                None => break,
            }
        }
        batch
    }

    fn is_full(&self) -> bool {
        self.completes.len() == EXCHANGE_ITEMS || self.fails.len() == EXCHANGE_ITEMS
    }

    pub(crate) fn len(&self) -> usize {
        self.completes.len() + self.fails.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn into_reports(self) -> impl Iterator<Item = Report> {
        let completes = self.completes.into_iter();
        let completes = completes.map(|(lease, result)| Report { lease, outcome: Outcome::Complete(result) });
        completes.chain(self.fails.into_iter().map(|(lease, error)| Report { lease, outcome: Outcome::Fail(error) }))
    }

    pub(crate) fn write(&self, request: &mut ExchangeRequest) {
        let completes = self.completes.iter().map(|(lease, result)| CompleteItem {
            job_id: lease.job.job_id.clone(),
            attempt_id: lease.job.attempt_id.clone(),
            lease_token: lease.job.lease_token.clone(),
            stream: Some(lease.job.stream.clone()),
            message_id: Some(lease.job.message_id.clone()),
            result: Some(result.clone()),
            metrics: lease.metrics(),
        });
        let fails = self.fails.iter().map(|(lease, error)| FailItem {
            job_id: lease.job.job_id.clone(),
            attempt_id: lease.job.attempt_id.clone(),
            lease_token: lease.job.lease_token.clone(),
            stream: Some(lease.job.stream.clone()),
            message_id: Some(lease.job.message_id.clone()),
            error: error.clone(),
            metrics: lease.metrics(),
        });
        request.complete = (!self.completes.is_empty()).then(|| completes.collect());
        request.fail = (!self.fails.is_empty()).then(|| fails.collect());
    }

    /// Pairs each report with its answer, if it has one.
    pub(crate) fn answered(self, response: &mut ExchangeResponse) -> Vec<(Report, Option<ItemAnswer>)> {
        let completes = padded(response.complete.take());
        let fails = padded(response.fail.take());
        let completed = self.completes.into_iter().zip(completes).map(|((lease, result), answer)| {
            let report = Report { lease, outcome: Outcome::Complete(result) };
            (report, answer)
        });
        let failed = self.fails.into_iter().zip(fails).map(|((lease, error), answer)| {
            let report = Report { lease, outcome: Outcome::Fail(error) };
            (report, answer)
        });
        completed.chain(failed).collect()
    }
}

fn padded(answers: Option<Vec<ItemAnswer>>) -> impl Iterator<Item = Option<ItemAnswer>> {
    answers.unwrap_or_default().into_iter().map(Some).chain(std::iter::repeat(None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestLease;

    fn report(outcome: Outcome) -> Report {
        Report { lease: TestLease::new("test", &()).into_lease(), outcome }
    }

    #[test]
    fn a_batch_stays_within_items_and_bytes() {
        let mut ready: VecDeque<_> = (0..EXCHANGE_ITEMS + 1).map(|_| report(Outcome::Complete(Json::null()))).collect();
        assert_eq!(Batch::take(&mut ready, usize::MAX).len(), EXCHANGE_ITEMS);
        assert_eq!(ready.len(), 1);

        let large = Json::from_trusted(format!("\"{}\"", "x".repeat(EXCHANGE_BYTES / 2)));
        let mut ready: VecDeque<_> = (0..3).map(|_| report(Outcome::Complete(large.clone()))).collect();
        assert_eq!(Batch::take(&mut ready, usize::MAX).len(), 1);
        assert_eq!(ready.len(), 2);
    }

    #[test]
    fn answers_keep_to_their_reports_and_may_be_missing() {
        let mut ready = VecDeque::from([
            report(Outcome::Fail(JobError::default())),
            report(Outcome::Complete(Json::null())),
            report(Outcome::Complete(Json::null())),
        ]);
        let batch = Batch::take(&mut ready, usize::MAX);
        let ok = ItemAnswer { ok: true, ..ItemAnswer::default() };
        let refused = ItemAnswer { http_status: Some(409), ..ItemAnswer::default() };
        let mut response = ExchangeResponse {
            complete: Some(vec![ok.clone()]),
            fail: Some(vec![refused.clone()]),
            ..ExchangeResponse::default()
        };
        let answers: Vec<_> = batch.answered(&mut response).into_iter().map(|(_, answer)| answer).collect();
        assert_eq!(answers, [Some(ok), None, Some(refused)]);
    }
}
