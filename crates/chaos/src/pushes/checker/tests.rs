use serde_json::json;

use super::*;
use crate::checker::FinalAttempt;

const NONCE: &str = "p1";
const TASK: &str = "task";

/// A history of one task, told in milliseconds. Calls last one.
struct Story {
    ops: Vec<Op>,
    ended: Ended,
    faults: Faults,
}

fn of(number: u32) -> Attempt {
    Attempt { nonce: NONCE.into(), number, id: format!("att{number}") }
}

fn recorded(disposition: &str) -> Answer {
    Answer::Recorded { state: "SUCCEEDED".into(), disposition: disposition.into(), at: "then".into() }
}

fn completed(number: u32, by: &str) -> Call {
    let content = json!({"outcome": "SUCCEEDED", "output": {"by": by}}).to_string();
    Call::Completed { attempt: of(number), succeeded: true, content }
}

fn refused(status: u16, error: &str) -> Answer {
    Answer::Refused { status, error: error.into() }
}

fn delivery(number: u32) -> Call {
    Call::Delivery {
        attempt: of(number),
        queue: "push-0".into(),
        fence: number.into(),
        dispatch_id: format!("d{number}"),
        count: 1,
        wrong: Vec::new(),
    }
}

impl Story {
    fn new() -> Self {
        let story = Self { ops: Vec::new(), ended: Ended::default(), faults: Faults::default() };
        story.op(0, Call::Submit { nonce: NONCE.into() }, Answer::Submitted { task: TASK.into() })
    }

    fn op(mut self, at: u64, call: Call, answer: Answer) -> Self {
        let answered = (!matches!(answer, Answer::Unknown { .. })).then_some((at + 1) * MS);
        self.ops.push(Op { id: format!("op{}", self.ops.len()), asked: at * MS, answered, call, answer });
        self
    }

    fn delivered(self, at: u64, number: u32) -> Self {
        self.op(at, delivery(number), Answer::Took { status: 202 })
    }

    fn started(self, at: u64, number: u32) -> Self {
        self.op(at, Call::Started { attempt: of(number) }, Answer::Started)
    }

    fn completed(self, at: u64, number: u32) -> Self {
        self.op(at, completed(number, "w"), recorded("recorded"))
    }

    fn ended(mut self, state: &str, attempts: &[&str]) -> Self {
        let attempts = attempts.iter().zip(1_u32..).map(|(reason, attempt)| FinalAttempt {
            attempt,
            attempt_id: format!("att{attempt}"),
            fence: attempt.into(),
            worker: "w".into(),
            reason: (*reason).into(),
        });
        let attempts: Vec<FinalAttempt> = attempts.collect();
        let task = FinalTask {
            nonce: NONCE.into(),
            state: state.into(),
            attempt: attempts.len() as u32,
            fence: attempts.len() as u64,
            result: (state == "Succeeded").then(|| json!({"by": "w"}).to_string()),
            ttl_ms: TTL_MS,
            attempts,
        };
        self.ended.tasks.insert(TASK.into(), task);
        self
    }

    fn rules(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = check(&self.ops, &self.ended, &self.faults).iter().map(|found| found.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

/// Succeeds at the first attempt.
fn plain() -> Story {
    Story::new().delivered(10, 1).started(20, 1).completed(30, 1).ended("Succeeded", &["COMPLETED"])
}

/// Succeeds at the second, after the first one was silent.
fn second() -> Story {
    let story = Story::new().delivered(10, 1).started(20, 1).delivered(3_000, 2).started(3_010, 2);
    story.completed(3_020, 2).ended("Succeeded", &["HEARTBEAT_TIMEOUT", "COMPLETED"])
}

#[test]
fn stories_that_keep_the_promises_are_accepted() {
    assert_eq!(plain().rules(), []);
    assert_eq!(second().rules(), []);
    let again = plain().op(40, completed(1, "w"), recorded("duplicate")).delivered(50, 1);
    assert_eq!(again.rules(), [], "the same again");
    let overtaken = second().op(3_030, completed(1, "old"), refused(409, "attempt_mismatch"));
    assert_eq!(overtaken.rules(), []);
    let lost = Answer::Unknown { why: "time-out".into(), status: None };
    let unknown = Story::new().delivered(10, 1).op(30, completed(1, "w"), lost).ended("Succeeded", &["COMPLETED"]);
    assert_eq!(unknown.rules(), [], "it did happen");
}

#[test]
fn every_rule_can_be_broken() {
    let with = |at, call, answer| plain().op(at, call, answer);
    let mut gone = plain();
    gone.ended.tasks.clear();
    assert_eq!(gone.rules(), [Rule::LostSubmit]);
    let twice = with(1, Call::Submit { nonce: NONCE.into() }, Answer::Submitted { task: "other".into() });
    assert_eq!(twice.rules(), [Rule::LostSubmit]);
    assert_eq!(Story::new().ended("Running", &[]).rules(), [Rule::NotEnded]);

    let changed = |change: fn(&mut Call)| {
        let mut call = delivery(1);
        change(&mut call);
        with(15, call, Answer::Took { status: 202 }).rules()
    };
    let wrong = changed(|call| {
        let Call::Delivery { wrong, .. } = call else { return };
        wrong.push("the secret".into());
    });
    assert_eq!(wrong, [Rule::Envelope]);
    let renamed = changed(|call| {
        let Call::Delivery { dispatch_id, .. } = call else { return };
        *dispatch_id = "other".into();
    });
    assert_eq!(renamed, [Rule::DeliveryIds]);
    let mut fence = second();
    for op in &mut fence.ops {
        if let Call::Delivery { fence, .. } = &mut op.call {
            *fence = 7;
        }
    }
    assert_eq!(fence.rules(), [Rule::Fence, Rule::AttemptHistory]);

    let stale = second().op(3_015, Call::Heartbeat { attempt: of(1) }, Answer::Renewed);
    assert_eq!(stale.rules(), [Rule::StaleAccepted]);
    let stale = second().op(3_015, completed(1, "w"), recorded("recorded"));
    assert_eq!(stale.rules(), [Rule::StaleAccepted, Rule::TwoCompletions]);
    let other = with(40, completed(1, "other"), recorded("recorded"));
    assert_eq!(other.rules(), [Rule::TwoCompletions, Rule::Outcome]);
    let receipt = Answer::Recorded { state: "FAILED".into(), disposition: "duplicate".into(), at: "then".into() };
    assert_eq!(with(40, completed(1, "w"), receipt).rules(), [Rule::ReceiptChanged]);
    assert_eq!(plain().ended("Failed", &["FAILED"]).rules(), [Rule::Outcome]);
    let nobody = Story::new().delivered(10, 1).started(20, 1).ended("Succeeded", &["COMPLETED"]);
    assert_eq!(nobody.rules(), [Rule::Outcome]);
    assert_eq!(plain().ended("Succeeded", &[]).rules(), [Rule::AttemptHistory]);

    let reason = with(40, Call::Heartbeat { attempt: of(1) }, refused(401, "invalid_token"));
    assert_eq!(reason.rules(), [Rule::WrongReason]);
    let error = with(40, Call::Heartbeat { attempt: of(1) }, Answer::Unknown { why: "500".into(), status: Some(500) });
    assert_eq!(error.rules(), [Rule::ServerError]);
}

#[test]
fn a_push_that_failed_is_repeated() {
    let failed = |status| Story::new().op(10, delivery(1), Answer::Took { status });
    let ends = ["DISPATCH_FAILED", "COMPLETED"];
    let next = |story: Story| story.delivered(7_000, 2).completed(7_010, 2).ended("Succeeded", &ends);
    assert_eq!(next(failed(500)).rules(), [Rule::NotRepeated]);
    assert_eq!(next(failed(503).op(1_500, delivery(1), Answer::Took { status: 500 })).rules(), []);
    assert_eq!(next(failed(202)).rules(), [], "it was not an error");
}

#[test]
fn more_attempts_than_a_queue_allows() {
    let open = |count: u64| {
        let mut story = Story::new();
        story.ops.clear();
        for n in 0..count {
            let attempt = Attempt { nonce: format!("t{n}"), number: 1, id: format!("a{n}") };
            let Call::Delivery { queue, fence, count, wrong, .. } = delivery(1) else { return Vec::new() };
            let dispatch_id = format!("d{n}");
            let call = Call::Delivery { attempt: attempt.clone(), queue, fence, dispatch_id, count, wrong };
            story = story.op(n * 10, call, Answer::Took { status: 202 });
            story = story.op(n * 10 + 5, Call::Started { attempt }, Answer::Started);
        }
        story.rules()
    };
    assert_eq!(open(CONCURRENCY), []);
    assert_eq!(open(CONCURRENCY + 1), [Rule::LimitExceeded]);
}
