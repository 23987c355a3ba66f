//! Stories about limits of queues, deadlines, redrives and exchanges: each with one that must be accepted.

use super::*;
use crate::history::Limited;
use crate::system::{BURST, PACE, SLOTS_OF_QUEUE};

fn breaks(story: &Story) -> Vec<Rule> {
    story.rules()
}

/// Tasks of queues with limits.
struct Queue {
    story: Story,
    tasks: u32,
}

impl Queue {
    fn new() -> Self {
        let mut story = Story::new();
        (story.ops, story.ended.tasks) = Default::default();
        story.ended.at = 100_000 * MS;
        Self { story, tasks: 0 }
    }

    /// Submitted and granted then; it succeeds when the last number says so.
    fn task(mut self, who: Limited, submitted: u64, granted: u64, done: u64) -> Self {
        self.tasks += 1;
        let (id, nonce) = (format!("t{}", self.tasks), format!("n{}", self.tasks));
        let submission =
            Submission { nonce: nonce.clone(), max_attempts: 1, limited: Some(who), ..Submission::default() };
        let accepted = vec![Accepted { task: id.clone(), created: true }];
        let call = Call::Submit { tasks: vec![submission] };
        let job = Granted {
            task: id.clone(),
            nonce: nonce.clone(),
            attempt: 1,
            attempt_id: id.clone(),
            fence: 1,
            ttl_ms: TTL_MS,
        };
        let report = Report { kind: ReportKind::Complete, content: "1".into() };
        let complete = Call::Report { task: id.clone(), attempt_id: id.clone(), report };
        self.story = self.story.op(submitted, call, Answer::Submitted { tasks: accepted });
        self.story = self.story.op(granted, claim("w", None), Answer::Granted { jobs: vec![job] });
        self.story = self.story.op(done, complete, completed());
        let attempt =
            FinalAttempt { attempt: 1, attempt_id: id.clone(), fence: 1, worker: "w".into(), reason: String::new() };
        let task = FinalTask {
            nonce,
            state: "Succeeded".into(),
            attempt: 1,
            fence: 1,
            result: Some("1".into()),
            ttl_ms: TTL_MS,
            attempts: vec![attempt],
        };
        self.story.ended.tasks.insert(id, task);
        self
    }

    fn crowd(self, count: u64, granted: impl Fn(u64) -> u64, length: u64) -> Self {
        (0..count).fold(self, |queue, n| queue.task(Limited::Crowd, n, granted(n), granted(n) + length))
    }

    fn rules(&self) -> Vec<Rule> {
        self.story.rules()
    }
}

#[test]
fn more_attempts_than_slots() {
    let at_once = |count| Queue::new().crowd(count, |n| 100 + n * 200, 900);
    assert_eq!(at_once(SLOTS_OF_QUEUE).rules(), []);
    let ended = Queue::new().crowd(SLOTS_OF_QUEUE + 4, |n| 100 + n * 200, 700);
    assert_eq!(ended.rules(), [], "each ends before it is too many");
    assert_eq!(at_once(SLOTS_OF_QUEUE + 1).rules(), [Rule::LimitExceeded]);
    let expired = Queue::new().crowd(SLOTS_OF_QUEUE + 2, |n| 100 + n * 300, 50_000);
    assert_eq!(expired.rules(), [], "a lease that has ended holds no slot");
}

#[test]
fn grants_that_come_too_fast() {
    let paced = |count: u64, ms: u64| {
        (0..count).fold(Queue::new(), |queue, n| queue.task(Limited::Paced, n, 100 + n * ms, 102 + n * ms))
    };
    assert_eq!(paced(30, 1_000 / PACE).rules(), []);
    assert_eq!(paced(30, 50).rules(), [Rule::RateExceeded]);
    assert_eq!(paced(BURST, 5).rules(), []);
    let crowd = Queue::new().crowd(30, |n| 100 + n * 20, 2);
    assert_eq!(crowd.rules(), [], "the other queue has no rate");
}

#[test]
fn a_crowd_that_is_served_before_one_who_waits() {
    let alone = |submitted, granted| {
        Queue::new().crowd(8, |n| 100 + n * 200, 20).task(Limited::Loner, submitted, granted, granted + 20)
    };
    assert_eq!(alone(50, 350).rules(), [], "two were before it");
    assert_eq!(alone(50, 950).rules(), [Rule::Unfair]);
    assert_eq!(alone(850, 1_150).rules(), [], "it came late itself");
    let other = alone(50, 950).task(Limited::Loner, 60, 850, 870);
    assert_eq!(other.rules(), [Rule::Unfair], "the other one waited too long; this one follows it");
}

#[test]
fn a_deadline_that_is_ignored() {
    let story = |at| Story::new().deadline(at).grant(10, 1);
    let failed = |at| story(at).ended("Failed", 1);
    assert_eq!(breaks(&failed(500)), [], "it has passed while it ran");
    assert_eq!(breaks(&Story::new().deadline(500).ended("Failed", 0)), [], "or before");
    assert_eq!(breaks(&story(5_000).complete(900, 1).ended("Succeeded", 1)), []);
    assert_eq!(breaks(&story(300).complete(900, 1).ended("Succeeded", 1)), [Rule::PastDeadline]);
    assert_eq!(breaks(&failed(300).beat(900, 1)), [Rule::PastDeadline]);
    let granted = Story::new().deadline(300).grant(800, 1).complete(900, 1).ended("Succeeded", 1);
    assert_eq!(breaks(&granted), [Rule::PastDeadline]);
    let early = Story::new().deadline(5_000).ended("Failed", 0);
    let early = early.op(1_000, Call::Read { task: TASK.into() }, seen("Failed", 0));
    assert_eq!(breaks(&early), [Rule::NoOrder], "it has not passed yet");
    let replay = story(1_000).complete(900, 1).complete(3_000, 1).ended("Succeeded", 1);
    assert_eq!(breaks(&replay), [], "the receipt of what counted before");
    let closed = |at| failed(at).op(1_400, complete(1, "1"), refused("attempt_closed"));
    assert_eq!(breaks(&closed(1_200)), [], "a late report does not count any more");
    assert_eq!(breaks(&closed(10_000)), [Rule::NoOrder], "it would have counted");
}

#[test]
fn a_retry_that_does_not_fit_in_before_the_deadline() {
    let fail = |deadline| {
        let story = Story::new().backoff_ms(800).deadline(deadline).grant(10, 1);
        story.fail(500, 1, false).ended("Failed", 1)
    };
    assert_eq!(breaks(&fail(1_000)), []);
    assert_eq!(breaks(&fail(9_000)), [Rule::NoOrder], "it would have");
    let late = fail(1_000).op(2_000, retry(), refused("task_not_retryable"));
    assert_eq!(breaks(&late), []);
    let retried = fail(1_000).op(2_000, retry(), Answer::Retried { attempt: 1, max_attempts: 6 });
    assert_eq!(breaks(&retried), [Rule::PastDeadline]);
}

fn redrive() -> Call {
    Call::Redrive { tasks: vec![TASK.into()] }
}

fn redriving() -> Answer {
    Answer::Redriving { redrive: "rd".into() }
}

fn seen(state: &str, attempt: u32) -> Answer {
    Answer::Seen { state: state.into(), attempt, fence: attempt.into() }
}

/// Failed for good at 20, and read as such.
fn dead() -> Story {
    let story = Story::new().grant(10, 1).op(20, fail(1, ReportKind::FailFinal), failed(false, true));
    story.op(30, Call::Read { task: TASK.into() }, seen("Failed", 1))
}

#[test]
fn a_redrive_that_leaves_a_dead_letter_where_it_was() {
    let left = || dead().op(40, redrive(), redriving()).ended("Failed", 1);
    assert_eq!(breaks(&left()), [Rule::RedriveLost]);
    assert_eq!(breaks(&dead().op(40, redrive(), unknown()).ended("Failed", 1)), [], "nobody knows");
    let again = |story: Story| story.grant(2_000, 2).complete(2_100, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&again(dead().op(40, redrive(), redriving()))), []);
    assert_eq!(breaks(&again(dead().op(40, redrive(), unknown()))), []);
    assert_eq!(breaks(&again(dead())), [Rule::NoOrder], "nobody asked for it");
}

#[test]
fn a_redrive_that_releases_a_task_twice() {
    let dead_again = |story: Story| {
        let fails = |attempt: u32| fail(attempt, ReportKind::FailFinal);
        let story = story.grant(100, 2).op(110, fails(2), failed(false, true));
        story.grant(2_000, 3).op(2_100, fails(3), failed(false, true)).ended("Failed", 3)
    };
    let once = dead().op(40, redrive(), redriving());
    assert_eq!(breaks(&dead_again(once)), [Rule::NoOrder]);
    let twice = dead().op(40, redrive(), redriving()).op(50, redrive(), redriving());
    assert_eq!(breaks(&dead_again(twice)), []);
}

#[test]
fn an_answer_that_says_nothing() {
    let story = |status| {
        let answer = Answer::Unknown { why: "cannot be read: null".into(), status };
        Story::new().grant(10, 1).op(15, heartbeat(1), answer).complete(20, 1).ended("Succeeded", 1)
    };
    assert_eq!(breaks(&story(Some(200))), [Rule::Unreadable]);
    assert_eq!(breaks(&story(None)), [], "it got lost");
}

/// What a watcher sees of a task that succeeds at its second attempt.
fn stream() -> Stream {
    let kinds = [
        ("submitted", "Ready", 0),
        ("started", "Running", 1),
        ("retrying", "Scheduled", 1),
        ("ready", "Ready", 1),
        ("started", "Running", 2),
        ("succeeded", "Succeeded", 2),
    ];
    let seen = kinds.into_iter().zip(1_i64..).map(|((kind, state, attempt), batch)| Seen {
        id: (batch, 0),
        kind: kind.into(),
        task: TASK.into(),
        state: state.into(),
        attempt,
    });
    Stream { name: "watcher".into(), seen: seen.collect(), problems: Vec::new(), complete: true }
}

fn watched(change: impl FnOnce(&mut Stream)) -> Vec<Rule> {
    let mut story = Story::new().grant(10, 1).fail(20, 1, true).grant(2_000, 2).complete(2_100, 2);
    story = story.ended("Succeeded", 2);
    let mut stream = stream();
    change(&mut stream);
    story.ended.streams.push(stream);
    story.rules()
}

#[test]
fn a_stream_without_all_events() {
    assert_eq!(watched(|_| {}), []);
    for missing in [0, 1, 4, 5] {
        let rules = watched(|stream| drop(stream.seen.remove(missing)));
        assert_eq!(rules, [Rule::EventLost], "without number {missing}");
    }
    assert_eq!(watched(|stream| stream.seen.clear()), [Rule::EventLost]);
    assert_eq!(watched(|stream| stream.complete = false), [Rule::EventLost], "it does not know how it ended");
    assert_eq!(watched(|stream| stream.problems.push("refused".into())), [Rule::EventLost]);
    let reset = |stream: &mut Stream| stream.seen[2].kind = "reset".into();
    assert_eq!(watched(reset), [Rule::EventLost], "nothing was removed");
}

#[test]
fn a_stream_out_of_order() {
    assert_eq!(watched(|stream| stream.seen[3].id = (3, 0)), [Rule::EventOrder], "the same twice");
    assert_eq!(watched(|stream| stream.seen[2].id = (4, 7)), [Rule::EventOrder]);
    assert_eq!(watched(|stream| stream.seen[2].id = (2, 1)), [], "a later one of the same batch");
    let twice = watched(|stream| {
        let again = Seen { id: (9, 0), ..stream.seen[1].clone() };
        stream.seen.insert(5, Seen { id: (5, 1), ..again });
    });
    assert_eq!(twice, [Rule::EventLost], "an attempt that began twice");
}
