use super::*;

/// A story of one range and one row, made by hand.
struct Told {
    ops: Vec<Op>,
    ended: Ended,
    at: u64,
}

fn task(job: &str, cause: Option<(Place, u64)>, n: Option<u64>) -> FinalTask {
    FinalTask { job: job.to_owned(), state: "Succeeded".to_owned(), cause, n }
}

fn a_range(generation: u64) -> Option<(Place, u64)> {
    Some((Place::Range("0-9".to_owned()), generation))
}

fn values(cursor: u64) -> BTreeMap<String, u64> {
    let names = ["import:1", "import:1 read by tail", "tail:0", "tail:0 read by sum"];
    names.map(|name| (name.to_owned(), cursor)).into()
}

impl Told {
    fn say(&mut self, call: Call, answer: Answer) {
        let (asked, id) = (self.at + 1, format!("op-{}", self.ops.len()));
        self.at += 2;
        let answered = (!matches!(answer, Answer::Unknown { .. })).then_some(self.at);
        self.ops.push(Op { id, asked, answered, call, answer });
    }

    fn claim(&mut self, attempt: u64) {
        let call = Call::Claim { task: "d0".into(), worker: "w".into() };
        self.say(call, Answer::Claimed { attempt, fence: 10 + attempt });
    }

    fn complete(&mut self, attempt: u64, answer: Answer) {
        self.say(Call::Complete { task: "d0".into(), attempt }, answer);
    }

    fn tell(&mut self, attempt: u64, answer: Answer) {
        self.say(Call::Tell { task: "d0".into(), attempt }, answer);
    }

    fn look(&mut self, cursor: u64) {
        self.say(Call::Look, Answer::Cursors { values: values(cursor) });
    }

    fn rules(&self) -> BTreeSet<Rule> {
        check(&self.ops, &self.ended).into_iter().map(|violation| violation.rule).collect()
    }

    fn add(&mut self, id: &str, task: FinalTask) {
        self.ended.tasks.insert(id.to_owned(), task);
    }

    fn partition(&mut self, output: &str, row: (u64, bool)) {
        self.ended.partitions.entry(output.to_owned()).or_default().insert("0-9".to_owned(), row);
    }
}

fn refused() -> Answer {
    Answer::Refused { status: 409, error: "stale_attempt".into() }
}

fn unknown() -> Answer {
    Answer::Unknown { why: "time-out".into() }
}

/// The source was fired, the range was said to change once, and everything ran for it.
fn good() -> Told {
    let mut told = Told { ops: Vec::new(), ended: Ended { in_time: true, ..Ended::default() }, at: 0 };
    told.say(Call::Fire { n: 0 }, unknown());
    told.say(Call::Fire { n: 0 }, Answer::Fired { task: "i0".into() });
    told.claim(1);
    told.say(Call::Invalidate { n: 0, key: "i-1".into() }, unknown());
    told.say(Call::Invalidate { n: 0, key: "i-1".into() }, Answer::Invalidated { generation: 1 });
    told.tell(1, Answer::Told);
    told.complete(1, unknown());
    told.claim(2);
    // It had been accepted before, or is sent again by a worker that was refused.
    told.complete(1, refused());
    told.tell(1, Answer::Told);
    told.complete(2, Answer::Completed);
    told.complete(2, Answer::Completed);
    told.look(0);
    told.look(0);
    told.add("i0", task("import", None, Some(0)));
    for generation in 0..2 {
        told.add(&format!("d{generation}"), task("decode", a_range(generation), None));
        told.add(&format!("c{generation}"), task("count", a_range(generation), None));
    }
    told.add("t0", task("tail", Some((Place::Row(0), 0)), None));
    told.add("s0", task("sum", Some((Place::Row(0), 0)), None));
    told.partition("import:0", (1, true));
    told.partition("decode:0", (1, true));
    told
}

/// The rules that a change of the good story breaks.
fn broken(change: impl FnOnce(&mut Told)) -> BTreeSet<Rule> {
    let mut told = good();
    change(&mut told);
    told.rules()
}

#[test]
fn stories_that_keep_the_promises_are_accepted() {
    assert_eq!(good().rules(), BTreeSet::new());
    // A task of a later generation may end before the first one, which then makes nothing.
    assert_eq!(broken(|told| drop(told.ended.tasks.remove("c0"))), BTreeSet::new());
    // Said to change before it was there.
    assert_eq!(broken(|told| told.ended.tasks.retain(|id, _| !["d0", "c0"].contains(&id.as_str()))), BTreeSet::new());
    // An invalidation without an answer may not have happened.
    assert_eq!(broken(|told| told.say(Call::Invalidate { n: 0, key: "i-2".into() }, unknown())), BTreeSet::new());
    // A late report that counts: no other claim was granted.
    assert_eq!(broken(|told| told.tell(2, Answer::Told)), BTreeSet::new());
    // Looks that overlap may be answered in any order.
    let overlapping = broken(|told| {
        told.look(0);
        told.look(5);
        let (first, second) = (told.ops.len() - 2, told.ops.len() - 1);
        told.ops[first].answered = Some(told.at + 10);
        told.ops.swap(first, second);
        told.ops[second].answer = Answer::Cursors { values: values(0) };
    });
    assert_eq!(overlapping, BTreeSet::new());
}

#[test]
fn every_rule_can_be_broken() {
    let only = |rule| BTreeSet::from([rule]);
    assert_eq!(broken(|told| told.say(Call::Fire { n: 0 }, Answer::Fired { task: "i9".into() })), only(Rule::LostFire));
    assert_eq!(broken(|told| told.add("i9", task("import", None, Some(0)))), only(Rule::FiredTwice));
    assert_eq!(broken(|told| told.ended.in_time = false), only(Rule::NotDone));
    let failed = |told: &mut Told| told.ended.tasks.get_mut("t0").into_iter().for_each(|it| it.state = "Failed".into());
    assert_eq!(broken(failed), only(Rule::NotDone));
    assert_eq!(broken(|told| told.add("d9", task("decode", a_range(1), None))), only(Rule::TwoTasks));
    assert_eq!(broken(|told| drop(told.ended.tasks.remove("d1"))), only(Rule::NotMade));
    assert_eq!(broken(|told| drop(told.ended.tasks.remove("c1"))), only(Rule::NotMade));
    assert_eq!(broken(|told| told.partition("decode:0", (1, false))), only(Rule::NotMade));
    assert_eq!(broken(|told| told.partition("import:0", (1, false))), only(Rule::NotMade));
    // It was acknowledged and had no effect, or nobody said so.
    let acknowledged = |told: &mut Told| {
        told.say(Call::Invalidate { n: 0, key: "i-2".into() }, Answer::Invalidated { generation: 2 });
    };
    assert_eq!(broken(acknowledged), only(Rule::Generations));
    assert_eq!(
        broken(|told| told.ops.retain(|op| !matches!(op.call, Call::Invalidate { .. }))),
        only(Rule::Generations)
    );
    let again = |told: &mut Told| {
        told.partition("decode:0", (2, true));
        told.add("c2", task("count", a_range(2), None));
    };
    assert_eq!(broken(again), only(Rule::Generations));
    let back = |told: &mut Told| {
        told.look(3);
        told.look(0);
    };
    assert_eq!(broken(back), only(Rule::Cursors));
    assert_eq!(broken(|told| told.look(7)), only(Rule::Cursors), "it is not that of the last row");
    assert_eq!(broken(|told| told.complete(1, Answer::Completed)), only(Rule::CompletedTwice));
    let stale = |told: &mut Told| {
        told.ops.retain(|op| !matches!(op.call, Call::Tell { attempt: 1, .. }));
        told.tell(1, Answer::Told);
    };
    assert_eq!(broken(stale), only(Rule::StaleWrite));
    let late = |told: &mut Told| {
        told.ops.retain(|op| !matches!(op.call, Call::Complete { .. }));
        told.complete(1, Answer::Completed);
    };
    assert_eq!(broken(late), only(Rule::StaleWrite));
    let lower = |told: &mut Told| {
        let call = Call::Claim { task: "d0".into(), worker: "w".into() };
        told.say(call, Answer::Claimed { attempt: 3, fence: 12 });
    };
    assert_eq!(broken(lower), only(Rule::Fence));
}
