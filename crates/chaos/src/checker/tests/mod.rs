//! The checker judged: stories that it must accept, and stories with one thing wrong that it must reject.

mod bad;
mod good;
mod more;

use serde_json::json;

use super::*;
use crate::faults::Spell;
use crate::history::{Accepted, Answer, Call, Granted, Op, Report, ReportKind, Submission};
use crate::ledger::Write;
use crate::plan::Fault;

const MS: u64 = 1_000_000;
const TTL_MS: u64 = 1_000;
const TASK: &str = "task";

/// A history of one task, told in milliseconds. Operations last one unless they say otherwise.
struct Story {
    ops: Vec<Op>,
    ended: Ended,
    effects: Effects,
    faults: Faults,
}

fn attempt_id(attempt: u32) -> String {
    format!("att{attempt}")
}

impl Story {
    /// Submitted at 0 with a budget of 3.
    fn new() -> Self {
        let story =
            Self { ops: Vec::new(), ended: Ended::default(), effects: Effects::default(), faults: Faults::default() };
        let tasks = vec![Accepted { task: TASK.into(), created: true }];
        story.ended("Ready", 0).op(0, submit("n", None), Answer::Submitted { tasks })
    }

    fn op(self, at: u64, call: Call, answer: Answer) -> Self {
        self.long_op(at, at + 1, call, answer)
    }

    fn long_op(mut self, from: u64, to: u64, call: Call, answer: Answer) -> Self {
        let unknown = matches!(answer, Answer::Unknown { .. });
        let answered = (!unknown).then_some(to * MS);
        self.ops.push(Op { id: format!("op{}", self.ops.len()), asked: from * MS, answered, call, answer });
        self
    }

    /// To worker `w`, in the order of the attempts.
    fn grant(self, at: u64, attempt: u32) -> Self {
        self.grant_to(at, attempt, "w", None)
    }

    fn grant_to(mut self, at: u64, attempt: u32, worker: &str, claim_id: Option<&str>) -> Self {
        self.note_attempt(attempt, worker);
        self.op(at, claim(worker, claim_id), Answer::Granted { jobs: vec![job(attempt)] })
    }

    fn note_attempt(&mut self, attempt: u32, worker: &str) {
        let task = self.ended.tasks.get_mut(TASK).unwrap();
        if task.attempts.iter().all(|known| known.attempt != attempt) {
            task.attempts.push(FinalAttempt {
                attempt,
                attempt_id: attempt_id(attempt),
                fence: u64::from(attempt),
                worker: worker.into(),
                reason: String::new(),
            });
            task.attempts.sort_by_key(|attempt| attempt.attempt);
        }
    }

    fn beat(self, at: u64, attempt: u32) -> Self {
        self.op(at, heartbeat(attempt), Answer::Renewed { should_cancel: false })
    }

    fn complete(self, at: u64, attempt: u32) -> Self {
        self.op(at, complete(attempt, "1"), completed())
    }

    fn fail(self, at: u64, attempt: u32, requeued: bool) -> Self {
        self.op(at, fail(attempt, ReportKind::FailRetryable), failed(requeued, !requeued))
    }

    fn effect(mut self, fence: u64) -> Self {
        self.effects.accepted.push(Write { task: TASK.into(), fence, worker: "w".into() });
        let row = self.effects.guarded.entry(TASK.into()).or_default();
        *row = fence.max(*row);
        self
    }

    /// The only control plane was killed, and started again.
    fn outage(mut self, from: u64, to: u64) -> Self {
        let (from, to) = (from * MS, to * MS);
        self.faults = Faults::new(&[Spell { fault: Fault::KillServer(0), from, on: from, off: to, to }], 1);
        self
    }

    fn backoff_ms(mut self, backoff_ms: u64) -> Self {
        self.submission().backoff_ms = backoff_ms;
        self
    }

    fn deadline(mut self, at: u64) -> Self {
        self.submission().deadline = Some(at * MS);
        self
    }

    fn submission(&mut self) -> &mut Submission {
        let Call::Submit { tasks } = &mut self.ops[0].call else { panic!("the first is the submit") };
        &mut tasks[0]
    }

    /// How the task stands at the end.
    fn ended(mut self, state: &str, attempt: u32) -> Self {
        self.ended.at = 100_000 * MS;
        let task = self.ended.tasks.entry(TASK.into()).or_default();
        task.nonce = "n".into();
        task.state = state.into();
        task.attempt = attempt;
        task.fence = attempt.into();
        task.ttl_ms = TTL_MS;
        task.result = (state == "Succeeded").then(|| "1".to_owned());
        self
    }

    fn rules(&self) -> Vec<Rule> {
        let mut ops = self.ops.clone();
        ops.sort_by_key(|op| op.asked);
        let verdict = check(&History { ops }, &self.ended, &self.effects, &self.faults);
        assert_eq!(verdict.undecided, 0);
        let mut rules: Vec<_> = verdict.violations.iter().map(|violation| violation.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

fn submit(nonce: &str, key: Option<&str>) -> Call {
    let task = Submission { nonce: nonce.into(), key: key.map(Into::into), max_attempts: 3, ..Submission::default() };
    Call::Submit { tasks: vec![task] }
}

fn claim(worker: &str, claim_id: Option<&str>) -> Call {
    Call::Claim { worker: worker.into(), incarnation: None, claim_id: claim_id.map(Into::into), job: None }
}

fn job(attempt: u32) -> Granted {
    let (task, nonce) = (TASK.into(), "n".into());
    Granted { task, nonce, attempt, attempt_id: attempt_id(attempt), fence: attempt.into(), ttl_ms: TTL_MS }
}

fn heartbeat(attempt: u32) -> Call {
    Call::Heartbeat { task: TASK.into(), attempt_id: attempt_id(attempt) }
}

fn complete(attempt: u32, result: &str) -> Call {
    let report = Report { kind: ReportKind::Complete, content: result.into() };
    Call::Report { task: TASK.into(), attempt_id: attempt_id(attempt), report }
}

fn fail(attempt: u32, kind: ReportKind) -> Call {
    let report = Report { kind, content: "error".into() };
    Call::Report { task: TASK.into(), attempt_id: attempt_id(attempt), report }
}

fn cancel(immediate: bool) -> Call {
    Call::Cancel { task: TASK.into(), immediate }
}

fn retry() -> Call {
    Call::Retry { task: TASK.into() }
}

fn completed() -> Answer {
    Answer::Reported { body: json!({"ok": true, "ack": true}) }
}

fn failed(requeued: bool, dlq: bool) -> Answer {
    Answer::Reported { body: json!({"ok": true, "ack": true, "requeued": requeued, "dlq": dlq}) }
}

fn refused(error: &str) -> Answer {
    Answer::Refused { status: 409, error: error.into() }
}

fn unknown() -> Answer {
    Answer::Unknown { why: "time-out".into(), status: None }
}

fn canceled(state: &str) -> Answer {
    Answer::Canceled { state: state.into() }
}
