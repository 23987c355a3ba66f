//! Runs by the rules of the core: what the end of a task leads to, and nothing else.

mod plane;
mod random;

use tenure_core::command::cancel::Mode;
use tenure_core::command::run::{Carried, NewMember};
use tenure_core::command::{Answer, Command, NotRetryableReason, Reach, Rejection, expire, promote, redrive, retry};
use tenure_core::event::FactKind;
use tenure_core::run::RunState;
use tenure_core::task::{Place, Spec, State};
use tenure_core::{RunId, TaskId, Timestamp, limits};

use plane::{Plane, at, cancel, cancel_run, claim, complete, fail, id, key, member, new_task, run_id, submission};

use State::{Blocked, Canceled, Failed, Ready, Running, Skipped, Succeeded};

fn retry_of(task: usize) -> Command {
    Command::Retry(retry::Retry { task: id(task), reach: Reach::All })
}

/// 0 → 1 → 2, and 3 by itself.
fn chain() -> Plane {
    Plane::with(vec![member(0, &[]), member(1, &[0]), member(2, &[1]), member(3, &[])])
}

#[test]
fn a_task_is_ready_when_all_before_it_succeeded_and_wakes_like_any_other() {
    let mut plane = Plane::with(vec![member(0, &[]), member(1, &[]), member(2, &[0, 1])]);
    assert_eq!(plane.states(), [Ready, Ready, Blocked]);
    plane.claim_all(1);
    plane.one(complete(0, "1"), 2).unwrap();
    assert_eq!((plane.state(2), plane.woken.len()), (Blocked, 0));
    plane.one(complete(1, "1"), 3).unwrap();
    assert_eq!((plane.state(2), &*plane.woken), (Ready, &[id(2)][..]));
    plane.check();
    plane.claim_all(4);
    plane.one(complete(2, "1"), 5).unwrap();
    assert_eq!((plane.run_state(), plane.run().finished_at), (RunState::Succeeded, Some(at(5))));
    assert_eq!(plane.facts.last().unwrap(), &(FactKind::RunSucceeded, TaskId::from_u128(run_id().as_u128())));
}

#[test]
fn both_ends_in_one_batch_flip_both_edges() {
    let mut plane = Plane::with(vec![member(0, &[]), member(1, &[]), member(2, &[0, 1])]);
    plane.claim_all(1);
    plane.execute(&[complete(0, "1"), complete(1, "1"), complete(0, "1")], 2);
    assert_eq!(plane.state(2), Ready);
    plane.check();
}

#[test]
fn a_failure_skips_all_behind_it_and_nothing_else() {
    let mut plane = chain();
    plane.claim_all(1);
    plane.one(fail(0, "X"), 2).unwrap();
    assert_eq!(plane.states(), [Failed, Skipped, Skipped, Running]);
    assert_eq!(plane.run_state(), RunState::Running, "one of its tasks is still at it");
    let Place::Finished(skipped) = &plane.tasks[&id(2).seq()].place else { panic!("it has ended") };
    let failure = skipped.failure.as_ref().unwrap();
    assert_eq!(&*failure.code, "UPSTREAM_FAILED");
    assert_eq!((skipped.attempt, skipped.dead_lettered_at), (0, None));
    plane.one(complete(3, "1"), 3).unwrap();
    assert_eq!(plane.run_state(), RunState::Failed);
    plane.check();
    assert!(plane.edges.is_empty());
}

#[test]
fn a_failure_that_will_be_retried_leads_to_nothing() {
    let spec = Spec { max_attempts: Some(2), ..Spec::default() };
    let first = NewMember { task: new_task(0, "{}", spec), ..member(0, &[]) };
    let mut plane = Plane::with(vec![first, member(1, &[0])]);
    plane.claim_all(1);
    plane.one(fail(0, "X"), 2).unwrap();
    assert_eq!(plane.states(), [State::Scheduled, Blocked]);
    assert_eq!(plane.touched, 0, "nothing had to be loaded for it");
    plane.check();
}

#[test]
fn a_canceled_task_cancels_all_behind_it_with_its_reason() {
    for first in [0, 1] {
        let mut plane = chain();
        plane.one(cancel(first), 1).unwrap();
        let expected =
            if first == 0 { [Canceled, Canceled, Canceled, Ready] } else { [Ready, Canceled, Canceled, Ready] };
        assert_eq!(plane.states(), expected);
        let Place::Finished(last) = &plane.tasks[&id(2).seq()].place else { panic!("it has ended") };
        assert_eq!(last.cancel_reason.as_deref(), Some("stop"));
        plane.check();
    }
}

#[test]
fn a_canceled_run_ends_what_waits_and_asks_what_runs() {
    let mut plane = chain();
    plane.one(claim(0), 1).unwrap();
    let answer = plane.one(cancel_run(Mode::Cooperative), 2).unwrap();
    assert!(matches!(answer, Answer::RunCanceled(canceled) if &*canceled.reason == "enough"));
    assert_eq!(plane.states(), [Running, Canceled, Canceled, Canceled]);
    assert_eq!(plane.run_state(), RunState::Canceling);
    let Place::Running(held) = &plane.tasks[&id(0).seq()].place else { panic!("it is held") };
    assert_eq!(held.cancel.as_ref().map(|cancel| &*cancel.reason), Some("enough"));
    plane.check();

    let repeat = Command::CancelRun(tenure_core::command::run::CancelRun {
        run: run_id(),
        reason: "other".into(),
        mode: Mode::Cooperative,
        reach: Reach::All,
    });
    let answer = plane.one(repeat.clone(), 3).unwrap();
    assert!(
        matches!(answer, Answer::RunCanceled(canceled) if &*canceled.reason == "enough"),
        "the first reason counts"
    );

    plane.one(complete(0, "1"), 4).unwrap();
    assert_eq!((plane.state(0), plane.run_state()), (Succeeded, RunState::Canceled));
    assert!(plane.one(repeat, 5).is_ok(), "a repeat is not an error");
    plane.check();
}

#[test]
fn a_run_that_has_ended_cannot_be_canceled() {
    let mut plane = Plane::with(vec![member(0, &[])]);
    plane.claim_all(1);
    plane.one(complete(0, "1"), 2).unwrap();
    let refusal = Rejection::RunAlreadyTerminal { state: RunState::Succeeded };
    assert_eq!(plane.one(cancel_run(Mode::Cooperative), 3), Err(refusal));
}

#[test]
fn a_run_out_of_reach_is_not_there() {
    let mut plane = chain();
    let other = |run: RunId, reach| {
        Command::CancelRun(tenure_core::command::run::CancelRun {
            run,
            reason: "x".into(),
            mode: Mode::Immediate,
            reach,
        })
    };
    assert_eq!(plane.one(other(run_id(), Reach::Tenant("other".into())), 1), Err(Rejection::RunNotFound));
    let bob = Reach::Owner { tenant: "acme".into(), owner: "bob".into() };
    assert_eq!(plane.one(other(run_id(), bob.clone()), 1), Err(Rejection::RunNotFound), "it has no owner");
    plane.runs.values_mut().for_each(|run| run.owner = Some("ann".into()));
    assert_eq!(plane.one(other(run_id(), bob), 1), Err(Rejection::RunNotFound), "it has another owner");
    let guessed = RunId::from_u128(run_id().as_u128() ^ 1 << 70);
    assert_eq!(plane.one(other(guessed, Reach::All), 1), Err(Rejection::RunNotFound));
    assert_eq!(plane.states(), [Ready, Blocked, Blocked, Ready]);
    let ann = Reach::Owner { tenant: "acme".into(), owner: "ann".into() };
    assert!(plane.one(other(run_id(), ann), 1).is_ok(), "it is hers");
}

#[test]
fn what_never_was_ready_does_not_become_so_by_a_retry() {
    let mut plane = chain();
    plane.one(cancel(2), 1).unwrap();
    assert_eq!(plane.states(), [Ready, Blocked, Canceled, Ready]);
    let answer = plane.one(retry_of(2), 2);
    assert!(matches!(answer, Err(Rejection::NotRetryable { reason: NotRetryableReason::Sealed, .. })), "{answer:?}");
    assert_eq!(plane.state(2), Canceled, "the task before it has not succeeded");
    plane.check();
}

#[test]
fn a_batch_that_ends_nothing_looks_for_nothing() {
    let mut plane = chain();
    assert_eq!(plane.rounds, 0);
    plane.one(claim(0), 1).unwrap();
    assert_eq!((plane.state(0), plane.rounds), (Running, 0));
    plane.one(complete(0, "1"), 2).unwrap();
    assert_eq!(plane.rounds, 1);
    plane.one(complete(0, "1"), 3).unwrap();
    assert_eq!(plane.rounds, 0, "what is told again ends nothing again");
}

#[test]
fn a_deadline_that_passes_while_a_task_waits_fails_it_and_skips_those_behind() {
    let spec = Spec { deadline: Some(at(10)), ..Spec::default() };
    let second = NewMember { task: new_task(1, "{}", spec), ..member(1, &[0]) };
    let mut plane = Plane::with(vec![member(0, &[]), second, member(2, &[1])]);
    plane.one(claim(0), 1).unwrap();
    let row = id(1).seq();
    assert_eq!(plane.one(Command::Expire(expire::Expire { row }), 9), Ok(Answer::Done(false)));
    assert_eq!(plane.one(Command::Expire(expire::Expire { row }), 10), Ok(Answer::Done(true)));
    assert_eq!(plane.states(), [Running, Failed, Skipped]);
    plane.check();
    plane.one(complete(0, "1"), 11).unwrap();
    assert_eq!((plane.state(1), plane.run_state()), (Failed, RunState::Failed), "its edge flips and leads to nothing");
    plane.check();
}

#[test]
fn a_task_with_a_time_of_its_own_waits_for_it_behind_the_others() {
    let mut later = member(1, &[0]);
    later.task.start = tenure_core::command::submit::Start::At(at(100));
    let mut plane = Plane::with(vec![member(0, &[]), later]);
    plane.claim_all(1);
    plane.one(complete(0, "1"), 2).unwrap();
    assert_eq!((plane.state(1), plane.woken.len()), (State::Scheduled, 0));
    plane.one(Command::Promote(promote::Promote { row: id(1).seq() }), 100).unwrap();
    assert_eq!(plane.state(1), Ready);
    plane.check();
}

/// The lease of 0 expires: it fails for good, for a reason that yields to its holder's late report.
fn expired(mut plane: Plane) -> Plane {
    plane.one(claim(0), 0).unwrap();
    plane.one(Command::Expire(expire::Expire { row: id(0).seq() }), 60).unwrap();
    assert_eq!(plane.state(0), Failed);
    plane
}

#[test]
fn a_late_report_is_refused_and_kept_once_the_failure_had_consequences() {
    let mut plane = expired(chain());
    assert_eq!(plane.state(1), Skipped);
    let answer = plane.one(complete(0, "late"), 61);
    assert!(matches!(answer, Err(Rejection::Conflict(_))), "{answer:?}");
    assert_eq!(plane.states(), [Failed, Skipped, Skipped, Ready]);
    let Place::Finished(finished) = &plane.tasks[&id(0).seq()].place else { panic!("it has ended") };
    assert!(finished.carry.last.as_ref().unwrap().evidence.is_some(), "it is kept as evidence");
    plane.check();
}

#[test]
fn a_late_report_is_refused_once_the_run_has_ended() {
    let mut plane = expired(Plane::with(vec![member(0, &[])]));
    assert_eq!(plane.run_state(), RunState::Failed);
    assert!(matches!(plane.one(complete(0, "late"), 61), Err(Rejection::Conflict(_))));
    assert_eq!((plane.state(0), plane.run_state()), (Failed, RunState::Failed));
    plane.check();
}

#[test]
fn a_late_report_counts_while_nothing_followed_from_the_failure() {
    let mut plane = expired(Plane::with(vec![member(0, &[]), member(1, &[])]));
    plane.check();
    plane.one(complete(0, "late"), 61).unwrap();
    assert_eq!(plane.states(), [Succeeded, Ready]);
    plane.check();
    plane.claim_all(62);
    plane.one(complete(1, "1"), 63).unwrap();
    assert_eq!(plane.run_state(), RunState::Succeeded);
}

#[test]
fn a_late_report_in_the_batch_of_the_expiry_is_not_too_late() {
    let mut plane = chain();
    plane.one(claim(0), 0).unwrap();
    let row = id(0).seq();
    let answers = plane.execute(&[Command::Expire(expire::Expire { row }), complete(0, "late")], 60);
    assert!(answers[1].is_ok(), "{answers:?}");
    assert_eq!(plane.states(), [Succeeded, Ready, Blocked, Ready]);
    plane.check();
}

fn redrive_of(task: usize) -> Command {
    let row = id(task).seq();
    let started_at = Timestamp::MAX;
    Command::Redrive(redrive::Redrive { redrive_id: 1, rows: vec![row], cursor: row, finished: true, started_at })
}

#[test]
fn what_had_consequences_is_neither_retried_nor_redriven() {
    let mut plane = chain();
    plane.claim_all(1);
    plane.one(fail(0, "X"), 2).unwrap();
    for task in [0, 1] {
        let answer = plane.one(retry_of(task), 3);
        assert!(
            matches!(answer, Err(Rejection::NotRetryable { reason: NotRetryableReason::Sealed, .. })),
            "{answer:?}"
        );
    }
    assert_eq!(plane.one(redrive_of(0), 3), Ok(Answer::Redriven { released: 0 }));
    assert_eq!(plane.states(), [Failed, Skipped, Skipped, Running]);

    // A failure that nothing depends on can be retried as long as its run goes on.
    let mut plane = Plane::with(vec![member(0, &[]), member(1, &[])]);
    plane.claim_all(1);
    plane.one(fail(0, "X"), 2).unwrap();
    plane.one(retry_of(0), 3).unwrap();
    assert_eq!((plane.state(0), plane.run().counts.open), (Ready, 2));
    plane.check();
}

#[test]
fn in_a_run_that_has_ended_nothing_is_retried_or_redriven() {
    let mut plane = Plane::with(vec![member(0, &[])]);
    plane.claim_all(1);
    plane.one(fail(0, "X"), 2).unwrap();
    assert!(matches!(
        plane.one(retry_of(0), 3),
        Err(Rejection::NotRetryable { reason: NotRetryableReason::Sealed, .. })
    ));
    assert_eq!(plane.one(redrive_of(0), 3), Ok(Answer::Redriven { released: 0 }));
    assert_eq!((plane.state(0), plane.run_state()), (Failed, RunState::Failed));
}

#[test]
fn in_a_run_that_was_asked_to_stop_nothing_starts_again() {
    let mut plane = Plane::with(vec![member(0, &[]), member(1, &[])]);
    plane.claim_all(1);
    plane.one(fail(0, "X"), 2).unwrap();
    plane.one(cancel_run(Mode::Cooperative), 3).unwrap();
    assert_eq!((plane.state(0), plane.run_state()), (Failed, RunState::Canceling));
    assert!(matches!(
        plane.one(retry_of(0), 4),
        Err(Rejection::NotRetryable { reason: NotRetryableReason::Sealed, .. })
    ));
    assert_eq!(plane.one(redrive_of(0), 4), Ok(Answer::Redriven { released: 0 }));
    plane.check();
}

fn asks(task: usize, payload: &str, of: &[usize]) -> NewMember {
    let spec = Spec { max_attempts: Some(1), ..Spec::default() };
    NewMember { task: new_task(task, payload, spec), refs: of.to_vec(), ..member(task, of) }
}

#[test]
fn outputs_are_filled_in_when_a_task_becomes_ready() {
    let payload = r#"{"rows":{"$from":"t0","path":"/rows"},"all":{"$from":"t1"},"n":1.50}"#;
    let mut plane = Plane::with(vec![member(0, &[]), member(1, &[]), asks(2, payload, &[0, 1])]);
    plane.claim_all(1);
    plane.one(complete(0, r#"{"rows":[1,2]}"#), 2).unwrap();
    assert_eq!(plane.payload(2), payload, "it is written when nothing is left to wait for");
    plane.one(complete(1, "true"), 3).unwrap();
    assert_eq!((plane.state(2), plane.payload(2)), (Ready, r#"{"rows":[1,2],"all":true,"n":1.50}"#));
    plane.check();
}

#[test]
fn an_output_that_is_not_there_fails_the_task_and_skips_those_behind_it() {
    let payload = r#"{"$from":"t0","path":"/nothing"}"#;
    let mut plane = Plane::with(vec![member(0, &[]), asks(1, payload, &[0]), member(2, &[1])]);
    plane.claim_all(1);
    plane.one(complete(0, "{}"), 2).unwrap();
    assert_eq!(plane.states(), [Succeeded, Failed, Skipped]);
    let Place::Finished(failed) = &plane.tasks[&id(1).seq()].place else { panic!("it has ended") };
    let failure = failed.failure.as_ref().unwrap();
    assert_eq!((&*failure.code, failure.is_retryable()), ("CONFIGURATION", false));
    assert!(failure.message.contains("/nothing"), "{}", failure.message);
    assert_eq!(plane.run_state(), RunState::Failed);
    plane.check();
}

#[test]
fn what_one_end_fills_in_is_bounded() {
    // One output of a mebibyte, and more tasks that ask for it than there is room for.
    let large = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let asking = limits::FILLED_BYTES / large.len() + 3;
    let mut tasks = vec![member(0, &[])];
    tasks.extend((1..=asking).map(|task| asks(task, r#"{"$from":"t0"}"#, &[0])));
    tasks.push(member(asking + 1, &[asking]));
    let mut plane = Plane::with(tasks);
    plane.claim_all(1);
    plane.one(complete(0, &large), 2).unwrap();
    let filled = (1..=asking).filter(|task| plane.state(*task) == Ready).count();
    let bytes: usize =
        (1..=asking).filter(|task| plane.state(*task) == Ready).map(|task| plane.payload(task).len()).sum();
    assert!(bytes <= limits::FILLED_BYTES && bytes + 2 * large.len() > limits::FILLED_BYTES, "{bytes} bytes");
    for task in filled + 1..=asking {
        let Place::Finished(failed) = &plane.tasks[&id(task).seq()].place else { panic!("it has ended") };
        let failure = failed.failure.as_ref().unwrap();
        assert_eq!((&*failure.code, plane.payload(task)), ("CONFIGURATION", r#"{"$from":"t0"}"#));
        assert!(failure.message.contains("64 MiB"), "{}", failure.message);
    }
    assert_eq!(plane.state(asking + 1), Skipped);
    plane.check();
}

#[test]
fn what_succeeded_is_carried_over_and_does_not_run_again() {
    let carried = |task, depends_on: &[usize], result: &str| {
        let result = Some(result.into());
        NewMember { carried: Some(Carried { result }), ..member(task, depends_on) }
    };
    let payload = r#"{"$from":"t0"}"#;
    let mut plane = Plane::with(vec![carried(0, &[], "[7]"), asks(1, payload, &[0]), member(2, &[0, 1])]);
    assert_eq!(plane.states(), [Succeeded, Ready, Blocked]);
    assert_eq!((plane.payload(1), plane.woken.len()), ("[7]", 1));
    let Place::Finished(first) = &plane.tasks[&id(0).seq()].place else { panic!("it has ended") };
    assert_eq!((first.attempt, first.result.as_deref()), (0, Some("[7]")));
    plane.check();
    plane.claim_all(1);
    plane.one(complete(1, "1"), 2).unwrap();
    assert_eq!(plane.state(2), Ready);
    plane.check();

    // Even what cannot be filled in from it is known at once.
    let payload = r#"{"$from":"t0","path":"/x"}"#;
    let plane = Plane::with(vec![carried(0, &[], "[7]"), asks(1, payload, &[0]), member(2, &[1])]);
    assert_eq!((&*plane.states(), plane.run_state()), (&[Succeeded, Failed, Skipped][..], RunState::Failed));
    plane.check();
}

#[test]
fn a_run_key_names_one_run() {
    let tasks = || vec![member(0, &[])];
    let mut plane = Plane::with(tasks());
    let mut repeat = submission(tasks());
    repeat.run.id = RunId::from_u128(TaskId::new(0, 0, tenure_core::Seq(RUN_TWO)).as_u128());
    let answer = plane.one(Command::SubmitRun(repeat.clone()), 1).unwrap();
    assert!(matches!(answer, Answer::RunSubmitted(known) if known.id == run_id() && !known.created));

    let mut other = repeat.clone();
    other.run.fingerprint = [2; 32];
    let refusal = Rejection::RunKeyConflict { existing: Some((run_id(), [1; 32])), requested: [2; 32] };
    assert_eq!(plane.one(Command::SubmitRun(other), 1), Err(refusal));

    let mut foreign = repeat.clone();
    foreign.run.owner = Some("bob".into());
    let refusal = Rejection::RunKeyConflict { existing: None, requested: [1; 32] };
    assert_eq!(plane.one(Command::SubmitRun(foreign), 1), Err(refusal), "whose it is stays hidden");

    let mut elsewhere = repeat.clone();
    elsewhere.run.tenant = "other".into();
    let answer = plane.one(Command::SubmitRun(elsewhere), 1).unwrap();
    assert!(matches!(answer, Answer::RunSubmitted(new) if new.created), "a key lives in its tenant");

    repeat.run.workspace = "other".into();
    let answer = plane.one(Command::SubmitRun(repeat), 1).unwrap();
    assert!(matches!(answer, Answer::RunSubmitted(new) if new.created), "a key lives in its workspace");
}

#[test]
fn a_run_key_names_one_run_in_one_batch_too() {
    let mut second = submission(vec![NewMember { task: new_task(1, "{}", Spec::default()), ..member(1, &[]) }]);
    second.run.id = RunId::from_u128(TaskId::new(0, 0, tenure_core::Seq(RUN_TWO)).as_u128());
    let mut plane = Plane::default();
    let both = [Command::SubmitRun(submission(vec![member(0, &[])])), Command::SubmitRun(second)];
    let answers = plane.execute(&both, 0);
    assert!(matches!(&answers[0], Ok(Answer::RunSubmitted(new)) if new.created), "{answers:?}");
    assert!(matches!(&answers[1], Ok(Answer::RunSubmitted(known)) if known.id == run_id() && !known.created));
    assert_eq!((plane.runs.len(), plane.tasks.len()), (1, 1));
}

const RUN_TWO: i64 = plane::RUN + 1;

#[test]
fn the_cost_of_an_end_is_that_of_its_edges() {
    // One task before two thousand, and all of them before one.
    let wide = 2_000;
    let mut tasks = vec![member(0, &[])];
    tasks.extend((1..=wide).map(|task| member(task, &[0])));
    tasks.push(member(wide + 1, &(1..=wide).collect::<Vec<_>>()));
    let mut plane = Plane::with(tasks);
    plane.claim_all(1);
    plane.one(complete(0, "1"), 2).unwrap();
    assert_eq!(plane.touched, 2 * wide, "an edge and a task each");
    plane.claim_all(3);
    for task in 1..=wide {
        plane.one(complete(task, "1"), 4).unwrap();
        assert_eq!(plane.touched, 2, "one edge and the task behind it");
    }
    assert_eq!(plane.state(wide + 1), Ready);
    plane.check();
}

#[test]
fn an_edge_that_is_found_twice_counts_once() {
    let tasks = vec![member(0, &[]), member(1, &[]), member(2, &[0, 1])];
    let mut plane = Plane { backwards: true, ..Plane::with(tasks) };
    plane.claim_all(1);
    plane.one(complete(0, "1"), 2).unwrap();
    assert_eq!(plane.state(2), Blocked, "it waits for the other one");
    plane.check();
}

#[test]
fn the_order_in_which_rows_are_found_makes_no_difference() {
    let told = |backwards| {
        let tasks = || vec![member(0, &[]), member(1, &[0]), member(2, &[0]), member(3, &[1, 2])];
        let mut plane = Plane { backwards, ..Plane::with(tasks()) };
        plane.claim_all(1);
        plane.one(fail(0, "X"), 2).unwrap();
        let Place::Finished(last) = &plane.tasks[&id(3).seq()].place else { panic!("it has ended") };
        let said = last.failure.as_ref().unwrap().message.clone();
        let mut other = Plane { backwards, ..Plane::with(tasks()) };
        other.one(cancel_run(Mode::Immediate), 1).unwrap();
        (plane.facts, said, other.facts)
    };
    assert_eq!(told(false), told(true));
}

#[test]
fn keys_and_runs_stand_in_the_bodies() {
    let plane = chain();
    let body = plane.tasks[&id(1).seq()].body.clone().unwrap();
    let run = body.run.as_ref().unwrap();
    assert_eq!((run.run, &run.key), (run_id(), &key(1)));
}
