//! The checker judged: odd stories that it must accept, and for every rule stories that break it.

use super::*;

const SANDBOX: &str = "sb-1";
const RUNTIME: &str = "rt-1";
const PATH: &str = "/workspace/a";

/// A history told in milliseconds. Requests last one unless they say otherwise.
struct Teller(Story);

fn row(sandbox: &str, state: &str) -> Row {
    let runtime = sandbox.replace("sb", "rt");
    Row {
        sandbox: sandbox.into(),
        nonce: Some(sandbox.replace("sb", "n")),
        owner: Some("ann".into()),
        state: state.into(),
        worker: Some("w0".into()),
        runtime: (state != "creating").then_some(runtime),
        memory_mb: 64,
        vcpus: 1,
    }
}

fn create(nonce: &str, key: Option<&str>, ttl_ms: u64) -> Call {
    Call::Create { nonce: nonce.into(), key: key.map(Into::into), owner: "ann".into(), ttl_ms }
}

fn exec() -> Call {
    Call::Exec { sandbox: SANDBOX.into() }
}

fn show() -> Call {
    Call::Show { sandbox: SANDBOX.into() }
}

fn destroy() -> Call {
    Call::Destroy { sandbox: SANDBOX.into() }
}

fn write(value: &str) -> Call {
    Call::Write { sandbox: SANDBOX.into(), path: PATH.into(), value: value.into() }
}

fn read() -> Call {
    Call::Read { sandbox: SANDBOX.into(), path: PATH.into() }
}

fn extend(ttl_ms: u64) -> Call {
    Call::Extend { sandbox: SANDBOX.into(), ttl_ms }
}

fn list() -> Call {
    Call::List { owner: None }
}

fn ran() -> Answer {
    Answer::Ran { runtime: RUNTIME.into() }
}

fn content(value: &str) -> Answer {
    Answer::Content { value: value.into() }
}

fn missing() -> Answer {
    Answer::Refused { status: 404, what: "NOT_FOUND".into() }
}

fn unknown() -> Answer {
    Answer::Unknown { why: "time-out".into() }
}

fn seen(state: &str) -> Answer {
    Answer::Seen { row: row(SANDBOX, state) }
}

impl Teller {
    fn empty() -> Self {
        let limits = Limits {
            total: 4,
            per_owner: 3,
            worker_sandboxes: 2,
            worker_memory_mb: 160,
            worker_vcpus: 3,
            ttl_grace_ms: 300,
            slack_ms: 10,
            request_ms: 50,
        };
        let ended = Ended { created_after_ms: Some(5), ..Ended::default() };
        Self(Story { limits, ended, ..Story::default() })
    }

    /// Created at 0 with a time of 1 s, and on worker 0.
    fn new() -> Self {
        Self::empty().created("sb-1", 0)
    }

    fn created(self, sandbox: &str, at: u64) -> Self {
        let call = create(&sandbox.replace("sb", "n"), None, 1_000);
        self.op(at, call, Answer::Created { row: row(sandbox, "running") })
    }

    fn op(self, at: u64, call: Call, answer: Answer) -> Self {
        self.long_op(at, at + 1, call, answer)
    }

    fn long_op(mut self, from: u64, to: u64, call: Call, answer: Answer) -> Self {
        let answered = (!matches!(answer, Answer::Unknown { .. })).then_some(to * MS);
        let id = self.0.ops.len();
        self.0.ops.push(Op { id, asked: from * MS, answered, call, answer });
        self
    }

    fn runtime(mut self, sandbox: &str, runtime: &str, worker: usize, from: u64, to: u64) -> Self {
        self.0.sightings.push(Sighting {
            worker,
            runtime: runtime.into(),
            sandbox: sandbox.into(),
            nonce: Some(sandbox.replace("sb", "n")),
            first: from * MS,
            last: to * MS,
            gone: Some((to + 1) * MS),
        });
        self
    }

    fn down(mut self, from: u64, to: u64) -> Self {
        self.0.downs.push(Down { worker: 0, from: from * MS, to: to * MS });
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Story)) -> Self {
        change(&mut self.0);
        self
    }

    fn broken(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = check(&self.0).into_iter().map(|violation| violation.rule).collect();
        rules.dedup();
        rules
    }

    fn is_good(&self) {
        assert_eq!(self.broken(), [], "{:#?}", check(&self.0));
    }

    fn breaks(&self, rule: Rule) {
        let found = check(&self.0);
        assert_eq!(self.broken(), [rule], "{found:#?}");
        assert!(found.iter().all(|violation| !violation.to_string().is_empty()));
    }
}

#[test]
fn a_plain_life_is_good() {
    Teller::new()
        .runtime(SANDBOX, RUNTIME, 0, 0, 40)
        .op(10, exec(), ran())
        .op(12, write("a"), Answer::Written)
        .op(14, read(), content("a"))
        .op(16, show(), seen("unhealthy"))
        .op(18, list(), Answer::Listed { rows: vec![row(SANDBOX, "running")] })
        .op(20, extend(2_000), Answer::Extended)
        .op(41, destroy(), Answer::Destroyed { done: true })
        .op(43, show(), missing())
        .op(45, exec(), missing())
        .is_good();
}

#[test]
fn two_runtimes_at_once_are_found_on_one_worker_and_on_two() {
    let story = Teller::new().runtime(SANDBOX, RUNTIME, 0, 0, 40);
    story.runtime(SANDBOX, "rt-2", 1, 30, 60).breaks(Rule::TwoRuntimes);
    let story = Teller::new().runtime(SANDBOX, RUNTIME, 0, 0, 40);
    story.runtime(SANDBOX, "rt-2", 0, 39, 60).breaks(Rule::TwoRuntimes);
}

#[test]
fn a_runtime_after_another_that_was_never_used_is_good() {
    let story = Teller::new().runtime(SANDBOX, "rt-0", 0, 0, 20);
    story.runtime(SANDBOX, RUNTIME, 0, 20, 60).op(70, exec(), ran()).is_good();
}

#[test]
fn answers_of_two_runtimes_are_found() {
    let other = Answer::Ran { runtime: "rt-2".into() };
    Teller::new().op(10, exec(), ran()).op(20, exec(), other).breaks(Rule::OtherRuntime);
    let mut moved = row(SANDBOX, "running");
    moved.runtime = Some("rt-2".into());
    Teller::new().op(10, show(), Answer::Seen { row: moved }).breaks(Rule::OtherRuntime);
}

#[test]
fn a_runtime_after_its_time_and_grace_is_found() {
    // Created in the first millisecond: its time ends after 1001 ms, and 310 ms more are allowed.
    Teller::new().runtime(SANDBOX, RUNTIME, 0, 0, 1_311).is_good();
    Teller::new().runtime(SANDBOX, RUNTIME, 0, 0, 1_312).breaks(Rule::Outlived);
    let extended =
        |answer: Answer, to: u64| Teller::new().op(500, extend(1_000), answer).runtime(SANDBOX, RUNTIME, 0, 0, to);
    extended(Answer::Extended, 1_811).is_good();
    extended(Answer::Extended, 1_812).breaks(Rule::Outlived);
    extended(unknown(), 1_860).is_good();
    extended(unknown(), 1_861).breaks(Rule::Outlived);
    extended(missing(), 1_312).with(|story| story.ops[1].answer = Answer::NotSent).breaks(Rule::Outlived);
}

#[test]
fn a_runtime_of_a_lost_create_has_a_time_too() {
    let story = |to| Teller::empty().op(0, create("n-1", None, 1_000), unknown()).runtime(SANDBOX, RUNTIME, 0, 5, to);
    story(1_360).is_good();
    story(1_361).breaks(Rule::Outlived);
}

#[test]
fn a_worker_that_is_down_may_be_late_and_is_not_when_it_is_back() {
    let story = |to| Teller::new().runtime(SANDBOX, RUNTIME, 0, 0, to).down(1_200, 2_000);
    story(2_010).is_good();
    story(2_011).breaks(Rule::Outlived);
    Teller::new().runtime(SANDBOX, RUNTIME, 0, 0, 1_400).down(10, 900).breaks(Rule::Outlived);
    Teller::new().runtime(SANDBOX, RUNTIME, 1, 0, 1_400).down(1_200, 2_000).breaks(Rule::Outlived);
}

#[test]
fn a_lost_write_is_found() {
    let wrote = || Teller::new().op(10, write("a"), Answer::Written);
    wrote().op(20, write("b"), Answer::Written).op(30, read(), content("a")).breaks(Rule::LostWrite);
    wrote().op(30, read(), content("")).breaks(Rule::LostWrite);
    wrote().op(20, write("b"), Answer::NotSent).op(30, read(), content("b")).breaks(Rule::LostWrite);
    // The sandbox is there afterwards, so that the file is what is missing.
    wrote().op(30, read(), missing()).op(40, exec(), ran()).breaks(Rule::LostWrite);
    wrote().op(30, read(), missing()).op(40, show(), missing()).breaks(Rule::LostSandbox);
    wrote().op(20, destroy(), Answer::Destroyed { done: true }).op(30, read(), missing()).is_good();
}

#[test]
fn a_write_without_an_answer_may_come_at_any_time() {
    let story = || Teller::new().op(10, write("a"), unknown()).op(20, write("b"), Answer::Written);
    story().op(30, read(), content("b")).is_good();
    story().op(30, read(), content("a")).is_good();
    story().op(30, read(), missing()).op(40, exec(), ran()).breaks(Rule::LostWrite);
    Teller::new().op(10, write("a"), unknown()).op(30, read(), missing()).op(40, exec(), ran()).is_good();
    // Two at a time: either may be the last.
    let both =
        || Teller::new().long_op(10, 20, write("a"), Answer::Written).long_op(15, 25, write("b"), Answer::Written);
    both().op(30, read(), content("a")).is_good();
    both().op(30, read(), content("b")).is_good();
    let during = Teller::new().op(5, write("a"), Answer::Written).long_op(10, 20, write("b"), Answer::Written);
    during.op(12, read(), content("a")).op(14, read(), content("b")).is_good();
}

#[test]
fn a_sandbox_that_is_lost_before_its_time_is_found() {
    let alive = || Teller::new().op(10, exec(), ran());
    alive().op(500, show(), missing()).breaks(Rule::LostSandbox);
    alive().op(500, exec(), missing()).breaks(Rule::LostSandbox);
    alive().op(500, show(), seen("error")).is_good();
    alive().op(1_100, show(), missing()).is_good();
    alive().op(20, destroy(), unknown()).op(500, show(), missing()).is_good();
    alive().op(20, destroy(), Answer::NotSent).op(500, show(), missing()).breaks(Rule::LostSandbox);
    alive().op(20, extend(5_000), Answer::Extended).op(4_000, show(), missing()).breaks(Rule::LostSandbox);
    alive().op(20, extend(100), Answer::Extended).op(500, show(), missing()).is_good();
    alive().op(20, extend(100), unknown()).op(30, extend(5_000), Answer::Extended).op(500, show(), missing()).is_good();
}

#[test]
fn what_comes_back_is_found() {
    let destroyed = |done| Teller::new().op(10, destroy(), Answer::Destroyed { done });
    for done in [true, false] {
        destroyed(done).op(20, exec(), ran()).breaks(Rule::CameBack);
        destroyed(done).op(20, show(), seen("running")).breaks(Rule::CameBack);
        destroyed(done).op(20, show(), seen("expired")).is_good();
        let rows = vec![row(SANDBOX, "unhealthy")];
        destroyed(done).op(20, list(), Answer::Listed { rows }).breaks(Rule::CameBack);
    }
    // While it is being destroyed it may be seen.
    Teller::new().long_op(10, 30, destroy(), Answer::Destroyed { done: true }).op(15, exec(), ran()).is_good();
    let during = Teller::new().long_op(10, 30, destroy(), Answer::Destroyed { done: true });
    during.op(15, exec(), missing()).op(17, show(), seen("running")).is_good();
    destroyed(true).runtime(SANDBOX, RUNTIME, 0, 0, 12).breaks(Rule::CameBack);
    destroyed(false).runtime(SANDBOX, RUNTIME, 0, 0, 12).is_good();
    Teller::new().op(1_100, show(), missing()).op(1_200, show(), seen("running")).breaks(Rule::CameBack);
}

#[test]
fn a_worker_with_too_much_is_found() {
    let runtimes = |third: u64| {
        let story = Teller::new().created("sb-2", 2).created("sb-3", 4);
        let story = story.runtime("sb-1", "rt-1", 0, 10, 50).runtime("sb-2", "rt-2", 0, 20, 50);
        story.runtime("sb-3", "rt-3", 0, third, 90)
    };
    runtimes(51).is_good();
    runtimes(50).breaks(Rule::OverCapacity);
    let listed = |change: &dyn Fn(&mut Row)| {
        let mut rows = vec![row("sb-1", "running"), row("sb-2", "creating")];
        change(&mut rows[1]);
        Teller::new().created("sb-2", 2).op(10, list(), Answer::Listed { rows })
    };
    listed(&|_| {}).is_good();
    listed(&|row| row.memory_mb = 128).breaks(Rule::OverCapacity);
    listed(&|row| row.vcpus = 3).breaks(Rule::OverCapacity);
    listed(&|row| (row.worker, row.memory_mb) = (Some("w1".into()), 128)).is_good();
    let rows = vec![row("sb-1", "running"), row("sb-2", "running"), row("sb-3", "unhealthy")];
    let story = Teller::new().created("sb-2", 2).created("sb-3", 4);
    story.op(10, list(), Answer::Listed { rows }).breaks(Rule::OverCapacity);
}

#[test]
fn more_than_a_cap_allows_is_found() {
    let story = |count: usize| {
        let story = (1..=count).fold(Teller::empty(), |story, n| story.created(&format!("sb-{n}"), n as u64 * 2));
        (1..=count).fold(story, |story, n| {
            let call = Call::Show { sandbox: format!("sb-{n}") };
            story.op(100, call, Answer::Seen { row: row(&format!("sb-{n}"), "running") })
        })
    };
    story(3).is_good();
    story(4).breaks(Rule::OverCap);
    // Of several owners: the cap on all.
    let owned = |count: usize| {
        story(count).with(|story| {
            for (n, op) in story.ops.iter_mut().enumerate() {
                if let Call::Create { owner, .. } = &mut op.call {
                    *owner = format!("owner{}", n % 2);
                }
            }
        })
    };
    owned(4).is_good();
    owned(5).breaks(Rule::OverCap);
    let listed = |count: usize, worker: fn(usize) -> Option<String>| {
        let rows = (1..=count).map(|n| Row { worker: worker(n), ..row(&format!("sb-{n}"), "running") }).collect();
        let story = (1..=count)
            .fold(Teller::empty(), |story, n| story.op(n as u64, create(&format!("n-{n}"), None, 1_000), unknown()));
        story.op(50, list(), Answer::Listed { rows })
    };
    listed(3, |n| Some(format!("w{n}"))).is_good();
    listed(4, |n| Some(format!("w{n}"))).breaks(Rule::OverCap);
    // Those that wait for a place do not count.
    listed(4, |n| (n > 1).then(|| format!("w{n}"))).is_good();
}

#[test]
fn a_key_or_a_create_with_two_sandboxes_is_found() {
    let again = |sandbox: &str| Answer::Created { row: row(sandbox, "running") };
    let first = |key| Teller::empty().op(0, create("n-1", key, 1_000), again("sb-1"));
    first(Some("k")).op(10, create("n-1", Some("k"), 1_000), again("sb-1")).is_good();
    let split = first(Some("k")).op(10, create("n-1", Some("k"), 1_000), again("sb-2"));
    assert_eq!(split.broken(), [Rule::KeySplit, Rule::DoubleCreate]);
    first(Some("k")).op(10, create("n-2", Some("k"), 1_000), again("sb-2")).breaks(Rule::KeySplit);
    let other = Row { nonce: Some("n-1".into()), ..row("sb-2", "running") };
    first(None).op(10, list(), Answer::Listed { rows: vec![other.clone()] }).breaks(Rule::DoubleCreate);
    let found = first(None).runtime("sb-2", "rt-2", 1, 5, 8);
    found.with(|story| story.sightings[0].nonce = Some("n-1".into())).breaks(Rule::DoubleCreate);
}

#[test]
fn what_nobody_asked_for_is_found() {
    Teller::new().op(10, list(), Answer::Listed { rows: vec![row("sb-9", "running")] }).breaks(Rule::Invented);
    Teller::new().runtime("sb-9", "rt-9", 0, 5, 8).breaks(Rule::Invented);
    let nameless = Row { nonce: None, ..row(SANDBOX, "running") };
    Teller::new().op(10, list(), Answer::Listed { rows: vec![nameless] }).breaks(Rule::Invented);
}

#[test]
fn what_is_left_at_the_end_is_found() {
    let story = Teller::new().runtime(SANDBOX, RUNTIME, 0, 0, 40);
    story.with(|story| story.sightings[0].gone = None).breaks(Rule::Leaked);
    Teller::new().with(|story| story.ended.processes.push("sleep".into())).breaks(Rule::Leaked);
    for state in ["creating", "running", "unhealthy"] {
        Teller::new().with(|story| story.ended.rows.push(row(SANDBOX, state))).breaks(Rule::NotEnded);
    }
    for state in ["error", "expired"] {
        Teller::new().with(|story| story.ended.rows.push(row(SANDBOX, state))).is_good();
    }
    Teller::new().with(|story| story.ended.created_after_ms = None).breaks(Rule::NotLive);
}
