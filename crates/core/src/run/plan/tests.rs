use super::*;
use crate::command::report;
use crate::command::testing::{at, blocked, body, id, one_attempt, swept, task, to_finished, with_ctx};
use crate::command::testing::{reported, running, settings, succeeded};
use crate::run::{InRun, RunCounts};

fn new_task(seq: i64) -> NewTask {
    NewTask {
        id: TaskId::new(0, 0, Seq(seq)),
        queue: "q".into(),
        operator: "op".into(),
        tenant: "acme".into(),
        owner: None,
        workspace: "default".into(),
        priority: 5,
        payload: "{}".into(),
        spec: Spec::default(),
        start: Start::Now,
        tags: BTreeMap::new(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
    }
}

fn entry(key: &str, depends_on: &[&str]) -> Entry {
    Entry { key: key.into(), depends_on: depends_on.iter().map(ToString::to_string).collect(), task: new_task(1) }
}

fn plan(entries: Vec<Entry>) -> Result<SubmitRun, Flaw> {
    let plan = Plan {
        id: RunId::from_u128(7),
        key: None,
        tenant: "acme".into(),
        workspace: "default".into(),
        owner: None,
        labels: BTreeMap::new(),
        deadline: None,
        entries,
        maker: None,
    };
    plan.submit()
}

fn flaw(entries: Vec<Entry>) -> (Option<usize>, String, String) {
    let Flaw { entry, field, message } = plan(entries).unwrap_err();
    (entry, field, message)
}

#[test]
fn keys_become_places_in_the_list() {
    let planned = plan(vec![entry("c", &["a", "b"]), entry("a", &[]), entry("b", &["a"])]).unwrap();
    let edges: Vec<_> = planned.tasks.iter().map(|member| member.depends_on.clone()).collect();
    assert_eq!(edges, [vec![1, 2], vec![], vec![1]]);
}

#[test]
fn what_does_not_fit_together_is_refused_where_it_stands() {
    for (entries, place, field, said) in [
        (vec![entry("a", &[]), entry("a", &[])], 1, "key", "tasks[0] already has the key a"),
        (vec![entry("a", &["b"])], 0, "depends_on[0]", "no task of this run has the key b"),
        (vec![entry("a", &[]), entry("b", &["a", "a"])], 1, "depends_on[1]", "a is named twice"),
        (vec![entry("a", &["a"])], 0, "depends_on", "these tasks depend on each other in a cycle: a → a"),
    ] {
        assert_eq!(flaw(entries), (Some(place), field.to_owned(), said.to_owned()));
    }
}

#[test]
fn a_cycle_is_shown_without_the_tasks_that_only_lead_to_it() {
    let entries = vec![entry("d", &["a"]), entry("a", &["b"]), entry("b", &["c"]), entry("c", &["a"]), entry("e", &[])];
    let (_, field, message) = flaw(entries);
    assert_eq!(field, "depends_on");
    let cycle = message.rsplit(": ").next().unwrap();
    assert_eq!(cycle.matches('→').count(), 3, "{cycle}");
    assert!(["a", "b", "c"].iter().all(|key| cycle.contains(key)) && !cycle.contains('d'), "{cycle}");
}

#[test]
fn a_payload_names_outputs_of_tasks_that_it_depends_on() {
    let naming = |payload: &str, depends_on: &[&str]| {
        let mut last = entry("b", depends_on);
        last.task.payload = payload.into();
        vec![entry("a", &[]), last]
    };
    let named = r#"{"rows":{"$from":"a","path":"/rows"}}"#;
    assert_eq!(plan(naming(named, &["a"])).unwrap().tasks[1].refs, [0]);
    for (payload, depends_on, said) in
        [(named, &[][..], "not in depends_on"), (r#"{"$from":"a","path":"rows"}"#, &["a"], "not a JSON pointer")]
    {
        let (place, field, message) = flaw(naming(payload, depends_on));
        assert_eq!((place, &*field), (Some(1), "payload"));
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn the_fingerprint_is_that_of_the_content() {
    let fingerprint = |entries| plan(entries).unwrap().run.fingerprint;
    let base = || vec![entry("a", &[]), entry("b", &[]), entry("c", &["a", "b"])];
    assert_eq!(fingerprint(base()), fingerprint(vec![entry("a", &[]), entry("b", &[]), entry("c", &["b", "a"])]));
    assert_ne!(fingerprint(base()), fingerprint(vec![entry("a", &[]), entry("b", &[]), entry("c", &["a"])]));
    let with = |change: fn(&mut NewTask)| {
        let mut entries = base();
        change(&mut entries[0].task);
        fingerprint(entries)
    };
    assert_eq!(with(|task| task.spec.max_attempts = Some(limits::MAX_ATTEMPTS_DEFAULT)), fingerprint(base()));
    assert_eq!(with(|task| task.payload = " { } ".into()), fingerprint(base()));
    assert_ne!(with(|task| task.payload = "[]".into()), fingerprint(base()));
}

fn past_run(counts: RunCounts) -> Run {
    Run {
        id: RunId::from_u128(7),
        key: Some("nightly".into()),
        tenant: "acme".into(),
        workspace: "default".into(),
        owner: Some("ann".into()),
        fingerprint: [1; 32],
        labels: BTreeMap::new(),
        deadline: Some(at(50_000)),
        parent: None,
        created_at: at(0),
        finished_at: Some(at(60_000)),
        cancel_reason: None,
        counts,
    }
}

/// `a` succeeded, `b`, which depends on it, failed.
fn repeat(counts: RunCounts) -> Result<SubmitRun, Rejection> {
    let done = with_ctx(1_000, |ctx| {
        report::decide(&task(Place::Running(running())), &reported(1, &succeeded("[1]")), &[], &settings(), ctx)
    });
    let (done, dead) = (Place::Finished(to_finished(&done).clone()), swept(one_attempt()).place);
    let of = |seq, key: &str| {
        let spec = Spec { deadline: Some(at(50_000)), ..Spec::default() };
        let run = Some(InRun { run: RunId::from_u128(7), key: key.into() });
        Body { id: TaskId::new(0, 0, Seq(seq)), run, ..body(spec) }
    };
    let (a, b, queue) = (of(1, "a"), of(2, "b"), Arc::from("q"));
    let tasks = [
        PastTask { body: &a, queue: &queue, place: &done, depends_on: &[] },
        PastTask { body: &b, queue: &queue, place: &dead, depends_on: &[Seq(1)] },
    ];
    let ids: Vec<TaskId> = (10..13).map(|seq| TaskId::new(0, 0, Seq(seq))).collect();
    rerun(&past_run(counts), &tasks, &ids, Repeat::default(), at(60_000))
}

#[test]
fn a_rerun_carries_over_what_succeeded_and_runs_the_rest() {
    let again = repeat(RunCounts { succeeded: 1, failed: 1, ..RunCounts::default() }).unwrap();
    let [a, b] = &again.tasks[..] else { panic!("{again:?}") };
    assert_eq!((&*a.key, a.carried.clone()), ("a", Some(Carried { result: Some("[1]".into()) })));
    assert_eq!((&*b.key, &b.carried, &b.depends_on[..]), ("b", &None, &[0][..]));
    assert_eq!((b.task.id.seq(), b.task.spec.deadline, again.run.deadline), (Seq(12), None, None));
    assert_eq!((again.run.parent, again.run.owner.as_deref()), (Some(RunId::from_u128(7)), Some("ann")));
}

#[test]
fn only_a_run_that_failed_or_was_canceled_is_repeated() {
    let none = RunCounts::default();
    assert!(repeat(RunCounts { succeeded: 1, canceled: 1, ..none }).is_ok());
    for (counts, state) in [
        (RunCounts { succeeded: 2, ..none }, RunState::Succeeded),
        (RunCounts { succeeded: 1, open: 1, ..none }, RunState::Running),
    ] {
        assert_eq!(repeat(counts), Err(Rejection::RunNotRerunnable { state }));
    }
}

#[test]
fn a_run_that_retention_has_begun_to_remove_is_not_found() {
    assert_eq!(repeat(RunCounts { succeeded: 2, failed: 1, ..RunCounts::default() }), Err(Rejection::RunNotFound));
}

#[test]
fn a_task_that_never_ran_keeps_its_references() {
    let mut waits = blocked();
    waits.carry.run.as_mut().unwrap().refs = BTreeMap::from([("a".to_owned(), Seq(1))]);
    let place = Place::Finished(waits.ended(End::Skipped, at(1_000)));
    let (one, two, queue) =
        (Body { id: TaskId::new(0, 0, Seq(1)), ..body(Spec::default()) }, body(Spec::default()), Arc::from("q"));
    let dead = swept(one_attempt()).place;
    let tasks = [
        PastTask { body: &one, queue: &queue, place: &dead, depends_on: &[] },
        PastTask { body: &two, queue: &queue, place: &place, depends_on: &[Seq(1)] },
    ];
    let counts = RunCounts { failed: 1, skipped: 1, ..RunCounts::default() };
    let again = rerun(&past_run(counts), &tasks, &[id(); 3], Repeat::default(), at(60_000)).unwrap();
    assert_eq!(again.tasks[1].refs, [0]);
}
