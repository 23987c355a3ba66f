use super::*;
use crate::attempt::{Failure, Reason};
use crate::command::cancel::{self, Cancel, Mode};
use crate::command::claim::{self, Claimer};
use crate::command::push::{self, PushOutcome, Pushed};
use crate::command::testing::{
    self, at, attempt_id, category, claimer, dispatched, id, no_backoff, one_attempt, place, push_settings, queue,
    running, to_finished, to_running, to_waiting, whole_task, with_ctx,
};
use crate::queue::Queue;
use crate::task::{End, FailReason, Spec, State, Waiting};

fn callback(seed: u8, attempt: u32, call: Call) -> Callback {
    Callback {
        task: id(),
        tenant: "acme".into(),
        workspace: "default".into(),
        proof: Proof { attempt, attempt_id: attempt_id(seed) },
        attempt,
        attempt_id: None,
        worker: "w-1".into(),
        call,
    }
}

fn started() -> Call {
    Call::Started { told_at: Some(at(7)) }
}

fn alive() -> Call {
    Call::Heartbeat { told_at: None, progress: Progress::default(), checkpoint: None }
}

fn completion(outcome: AttemptState) -> Completion {
    Completion {
        outcome,
        output: None,
        error: None,
        phase: None,
        partial_progress: None,
        metrics: None,
        told_completed_at: None,
    }
}

fn succeeded(output: &str) -> Call {
    Call::completed(Completion { output: Some(output.into()), ..completion(AttemptState::Succeeded) })
}

fn failed(code: &str) -> Call {
    let error = Some(Failure::new(code, "it broke", None, None).of_category(category(code)));
    Call::completed(Completion { error, ..completion(AttemptState::Failed) })
}

fn send(task: &Task, command: &Callback, history: &[ClosedAttempt], now: i64) -> Decision {
    with_ctx(now, |ctx| decide(task, command, history, &push_settings(), ctx))
}

fn call(task: &Task, call: Call, now: i64) -> Decision {
    send(task, &callback(1, 1, call), &[], now)
}

fn on_its_way(spec: Spec) -> Task {
    whole_task(Place::Running(dispatched(spec)), spec)
}

fn after(decision: &Decision, task: &Task) -> Task {
    match &decision.change {
        Some(change) => Task { place: change.place.clone(), ..task.clone() },
        None => task.clone(),
    }
}

fn started_at(spec: Spec, ms: i64) -> Task {
    let task = on_its_way(spec);
    after(&call(&task, started(), ms), &task)
}

fn told(decision: &Decision) -> (AttemptState, Timestamp, Disposition) {
    match decision.answer {
        Ok(Answer::Callback(CallbackAnswer::Reported(told))) => (told.state, told.at, told.disposition),
        ref other => panic!("{other:?}"),
    }
}

/// Why it was refused, the state of the task, and whether a worker has started its attempt.
fn refused(decision: &Decision) -> (RefusalReason, State, bool) {
    match &decision.answer {
        Err(Rejection::Callback(refusal)) => (refusal.why.clone(), refusal.standing.state, refusal.standing.started),
        other => panic!("{other:?}"),
    }
}

fn last(decision: &Decision) -> ClosedAttempt {
    place(decision).last_attempt().expect("an attempt has ended").clone()
}

/// Attempt 1 fell silent, attempt 2 was granted at `ms` by a dispatcher of seed 2.
fn regranted(ms: i64) -> (Task, Vec<ClosedAttempt>) {
    let first = started_at(no_backoff(), 0);
    let (swept, _) = with_ctx(ms, |ctx| expire::settle(&first, &push_settings(), ctx));
    let Place::Ready(waiting) = &swept.place else { panic!("{swept:?}") };
    let history = vec![(**waiting.carry.last.as_ref().unwrap()).clone()];
    (Task { place: Place::Running(grant_again(waiting, ms)), ..first }, history)
}

fn grant_again(waiting: &Waiting, ms: i64) -> Running {
    let queue = Queue { settings: push_settings(), ..queue() };
    let dispatcher = Claimer::delivery(claimer(2).seed);
    let (change, _) = with_ctx(ms, |ctx| claim::grant(id(), waiting, &dispatcher, 0, &queue, ctx));
    match change.place {
        Place::Running(running) => running,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_start_binds_the_worker_and_begins_the_lease_of_heartbeats() {
    let decision = call(&on_its_way(Spec::default()), started(), 2_000);
    assert_eq!(decision.answer, Ok(Answer::Callback(CallbackAnswer::Started { at: at(2_000) })));
    let running = to_running(&decision);
    assert_eq!((running.lease.holder.as_deref(), running.lease.expires_at), (Some("w-1"), at(92_000)));
    let delivery = running.carry.delivery.as_ref().unwrap();
    assert_eq!((delivery.started_at, delivery.told_started_at), (Some(at(2_000)), Some(at(7))));
    assert_eq!((delivery.next_at, running.last_heartbeat_at), (None, Some(at(2_000))));
    assert_eq!(decision.change.as_ref().unwrap().facts[0].kind, FactKind::Started);
    assert!(place(&decision).standing().started);
}

#[test]
fn an_attempt_that_was_claimed_has_no_token() {
    let claimed = whole_task(Place::Running(running()), Spec::default());
    let sent = testing::reported(1, &Report::succeeded(Some("1".into())));
    let ended = with_ctx(1_000, |ctx| report::decide(&claimed, &sent, &[], &push_settings(), ctx));
    let ended = after(&ended, &claimed);
    assert_eq!(ended.place.state(), State::Succeeded);
    for task in [claimed, ended] {
        for what in [started(), alive(), succeeded("1"), failed("USER_CODE")] {
            let forged = Callback {
                proof: Proof { attempt: 1, attempt_id: running().attempt_id },
                worker: running().lease.holder.unwrap(),
                ..callback(1, 1, what)
            };
            let decision = send(&task, &forged, &[], 2_000);
            assert_eq!((refused(&decision).0, decision.change), (RefusalReason::InvalidToken, None));
        }
    }
}

#[test]
fn a_start_repeated_by_its_worker_changes_nothing_and_another_worker_is_told() {
    let held = started_at(Spec::default(), 1_000);
    let again = call(&held, started(), 2_000);
    assert_eq!((again.answer, again.change), (Ok(Answer::Callback(CallbackAnswer::Started { at: at(2_000) })), None));
    for what in [started(), alive(), succeeded("1")] {
        let other = Callback { worker: "w-2".into(), ..callback(1, 1, what) };
        let decision = send(&held, &other, &[], 2_000);
        assert_eq!(refused(&decision), (RefusalReason::AlreadyStarted, State::Running, true));
        assert_eq!(decision.change, None);
    }
}

#[test]
fn a_heartbeat_or_an_end_without_a_start_counts_as_one() {
    let task = on_its_way(Spec::default());
    let beat = call(&task, alive(), 2_000);
    let running = to_running(&beat);
    assert_eq!((running.lease.holder.as_deref(), running.started_at()), (Some("w-1"), Some(at(2_000))));
    let end = call(&task, succeeded("1"), 3_000);
    assert_eq!(told(&end), (AttemptState::Succeeded, at(3_000), Disposition::Recorded));
    assert_eq!((last(&end).worker.as_deref(), last(&end).callback.unwrap().started_at), (Some("w-1"), Some(at(3_000))));
    assert_eq!(to_finished(&end).result.as_deref(), Some("1"));
}

#[test]
fn the_time_of_one_attempt_runs_from_its_start() {
    let spec = Spec { timeout_ms: Some(30_000), ..Spec::default() };
    let held = started_at(spec, 100_000);
    let beat = call(&held, alive(), 129_999);
    assert_eq!(to_running(&beat).lease.expires_at, at(130_000));
    let (over, _) = with_ctx(130_000, |ctx| expire::settle(&held, &push_settings(), ctx));
    assert_eq!(over.place.last_attempt().unwrap().reason, Reason::Timeout);
}

#[test]
fn the_order_of_the_checks() {
    let (second, history) = regranted(90_000);
    let with = |attempt, proof_of: (u32, u8), body: Option<u8>| Callback {
        attempt,
        proof: Proof { attempt: proof_of.0, attempt_id: attempt_id(proof_of.1) },
        attempt_id: body.map(|seed| SentAttemptId::Id(attempt_id(seed))),
        ..callback(1, 1, started())
    };
    let mismatch = |received| RefusalReason::AttemptMismatch { expected: 2, received };
    for (what, command, expected) in [
        ("a stale attempt with its own token", with(1, (1, 1), None), mismatch(1)),
        ("an attempt to come", with(3, (1, 1), None), mismatch(3)),
        (
            "another attempt id",
            with(2, (1, 1), Some(1)),
            RefusalReason::AttemptIdMismatch { expected: attempt_id(2), received: SentAttemptId::Id(attempt_id(1)) },
        ),
        (
            "what is not an attempt id",
            Callback { attempt_id: Some(SentAttemptId::read("7")), ..with(2, (2, 2), None) },
            RefusalReason::AttemptIdMismatch { expected: attempt_id(2), received: SentAttemptId::Other("7".into()) },
        ),
        ("the token of attempt 1 for attempt 2", with(2, (1, 1), None), RefusalReason::InvalidToken),
        ("the same, with the right id in the body", with(2, (1, 1), Some(2)), RefusalReason::InvalidToken),
        ("a token of the right number and another id", with(2, (2, 9), None), RefusalReason::InvalidToken),
        ("a token of another number and the right id", with(2, (1, 2), None), RefusalReason::InvalidToken),
    ] {
        assert_eq!(refused(&send(&second, &command, &history, 91_000)), (expected, State::Running, false), "{what}");
    }
    assert!(send(&second, &with(2, (2, 2), Some(2)), &history, 91_000).answer.is_ok());
    for scope in [
        Callback { tenant: "other".into(), ..callback(2, 2, started()) },
        Callback { workspace: "other".into(), ..callback(2, 2, started()) },
    ] {
        assert_eq!(send(&second, &scope, &history, 91_000).answer, Err(Rejection::NotFound));
    }
}

#[test]
fn an_exact_replay_gets_the_first_answer_whatever_has_happened_since() {
    let held = started_at(no_backoff(), 0);
    let first = call(&held, failed("USER_CODE"), 1_000);
    assert_eq!(told(&first), (AttemptState::Failed, at(1_000), Disposition::Recorded));
    let ready = after(&first, &held);
    let duplicate = (AttemptState::Failed, at(1_000), Disposition::Duplicate);
    let again = call(&ready, failed("USER_CODE"), 2_000);
    assert_eq!((told(&again), again.change), (duplicate, None));
    let Place::Ready(waiting) = &ready.place else { panic!("{ready:?}") };
    let second = Task { place: Place::Running(grant_again(waiting, 3_000)), ..held };
    let history = [(**waiting.carry.last.as_ref().unwrap()).clone()];
    let replay = send(&second, &callback(1, 1, failed("USER_CODE")), &history, 4_000);
    assert_eq!((told(&replay), replay.change), (duplicate, None));
    let stolen =
        Callback { proof: Proof { attempt: 2, attempt_id: attempt_id(2) }, ..callback(1, 1, failed("USER_CODE")) };
    assert!(send(&second, &stolen, &history, 4_000).answer.is_err(), "only with a token of that attempt");
}

#[test]
fn a_replay_is_compared_by_what_it_says_not_by_what_was_measured() {
    let held = started_at(Spec::default(), 0);
    let with = |output: &str, metrics: Option<&str>, phase: Option<&str>, partial: Option<&str>, clock: i64| {
        Call::completed(Completion {
            output: Some(output.into()),
            metrics: metrics.map(Into::into),
            phase: phase.map(Into::into),
            partial_progress: partial.map(Into::into),
            told_completed_at: Some(at(clock)),
            ..completion(AttemptState::Succeeded)
        })
    };
    let done = after(&call(&held, with(r#"{"a":1,"b":2}"#, Some("1"), None, Some("[1]"), 1), 1_000), &held);
    let same = call(&done, with(r#"{ "b": 2, "a": 1 }"#, Some("2"), None, Some("[ 1 ]"), 2), 2_000);
    assert_eq!(told(&same), (AttemptState::Succeeded, at(1_000), Disposition::Duplicate));
    for other in [
        with(r#"{"a":1}"#, Some("1"), None, Some("[1]"), 1),
        with(r#"{"a":1,"b":2}"#, Some("1"), Some("x"), Some("[1]"), 1),
        with(r#"{"a":1,"b":2}"#, Some("1"), None, None, 1),
        failed("USER_CODE"),
    ] {
        let decision = call(&done, other, 2_000);
        let expected = (RefusalReason::TaskTerminal { cancel_reason: None }, State::Succeeded, false);
        assert_eq!(refused(&decision), expected);
        assert_eq!(last(&decision).evidence.unwrap().worker.as_deref(), Some("w-1"));
    }
}

#[test]
fn a_late_end_counts_until_another_attempt_is_granted() {
    for (what, spec, state) in [
        ("in back-off", Spec::default(), State::Scheduled),
        ("ready again", no_backoff(), State::Ready),
        ("after the last attempt", one_attempt(), State::Failed),
    ] {
        let held = started_at(spec, 0);
        let (silent, _) = with_ctx(90_000, |ctx| expire::settle(&held, &push_settings(), ctx));
        assert_eq!(silent.place.state(), state, "{what}");
        let late = call(&silent, succeeded("7"), 91_000);
        assert_eq!(told(&late), (AttemptState::Succeeded, at(91_000), Disposition::Late), "{what}");
        assert_eq!((to_finished(&late).end, to_finished(&late).dead_lettered_at), (End::Succeeded, None), "{what}");
        let again = call(&after(&late, &silent), succeeded("7"), 95_000);
        assert_eq!(told(&again), (AttemptState::Succeeded, at(91_000), Disposition::Duplicate), "{what}");
        let unswept = call(&held, succeeded("7"), 91_000);
        assert_eq!(told(&unswept).2, Disposition::Late, "{what}, not swept");
        let gave_up = call(&silent, Call::completed(completion(AttemptState::Canceled)), 91_000);
        assert_eq!(told(&gave_up), (AttemptState::Canceled, at(91_000), Disposition::Late), "{what}");
        let ended = to_finished(&gave_up);
        assert_eq!(
            (ended.end, ended.cancel_reason.as_deref(), ended.dead_lettered_at),
            (End::Canceled, Some("worker_initiated"), None),
            "{what}"
        );
        for early in [started(), alive()] {
            let is_beat = early == alive();
            let (why, ..) = refused(&call(&silent, early, 91_000));
            let expected = match (is_beat, state) {
                (true, _) => RefusalReason::Expired,
                (false, State::Failed) => RefusalReason::TaskTerminal { cancel_reason: None },
                (false, _) => RefusalReason::AttemptCompleted,
            };
            assert_eq!(why, expected, "{what}");
        }
    }
}

#[test]
fn a_late_end_of_an_attempt_that_nobody_was_seen_to_start_counts_too() {
    let task = on_its_way(Spec::default());
    let accepted = Pushed { row: id().seq(), attempt_id: attempt_id(1), delivery: 1, outcome: PushOutcome::Accepted };
    let accepted = after(&with_ctx(1, |ctx| push::pushed(&task, &accepted, &push_settings(), ctx)), &task);
    for (before, reason) in [(&task, Reason::DispatchFailed), (&accepted, Reason::StartTimeout)] {
        let (over, _) = with_ctx(300_000, |ctx| expire::settle(before, &push_settings(), ctx));
        assert_eq!(over.place.last_attempt().unwrap().reason, reason);
        let late = call(&over, succeeded("1"), 300_001);
        assert_eq!((told(&late).2, last(&late).worker.as_deref()), (Disposition::Late, Some("w-1")));
    }
}

#[test]
fn nobody_else_reports_late_for_an_attempt_that_a_worker_had() {
    let held = started_at(Spec::default(), 0);
    let (silent, _) = with_ctx(90_000, |ctx| expire::settle(&held, &push_settings(), ctx));
    let other = Callback { worker: "w-2".into(), ..callback(1, 1, succeeded("7")) };
    let decision = send(&silent, &other, &[], 91_000);
    assert_eq!((refused(&decision).0, decision.change), (RefusalReason::AlreadyStarted, None));
    // Where no report would count any more, that comes first, and it is kept.
    let done = after(&call(&held, succeeded("1"), 1_000), &held);
    let decision = send(&done, &other, &[], 2_000);
    assert_eq!(refused(&decision).0, RefusalReason::TaskTerminal { cancel_reason: None });
    assert_eq!(last(&decision).evidence.unwrap().worker.as_deref(), Some("w-2"));
}

#[test]
fn a_superseded_end_is_kept_and_never_applied() {
    let (second, history) = regranted(90_000);
    let decision = send(&second, &callback(1, 1, succeeded("1")), &history, 91_000);
    let expected = RefusalReason::AttemptMismatch { expected: 2, received: 1 };
    assert_eq!(refused(&decision), (expected, State::Running, false));
    let change = decision.change.unwrap();
    assert_eq!(change.place, second.place);
    let [super::super::AttemptChange::Put(kept)] = &change.attempts[..] else { panic!("{change:?}") };
    let evidence = kept.evidence.as_ref().unwrap();
    assert_eq!(
        (evidence.state, evidence.worker.as_deref(), evidence.received_at),
        (AttemptState::Succeeded, Some("w-1"), at(91_000))
    );
    let wrong = Callback { proof: Proof { attempt: 1, attempt_id: attempt_id(9) }, ..callback(1, 1, succeeded("1")) };
    assert_eq!(send(&second, &wrong, &history, 91_000).change, None, "nobody knows that token");
}

#[test]
fn an_attempt_is_not_judged_by_the_heartbeats_of_the_one_before() {
    let (second, _) = regranted(90_000);
    let Place::Running(running) = &second.place else { panic!("{second:?}") };
    assert_eq!((running.last_heartbeat_at, running.lease.expires_at), (None, at(390_000)));
}

#[test]
fn no_heartbeat_revives_an_attempt_that_is_over_and_no_clock_of_a_worker_keeps_one_alive() {
    let held = started_at(Spec::default(), 0);
    assert_eq!(refused(&call(&held, alive(), 90_000)).0, RefusalReason::Expired);
    let future = Call::Heartbeat { told_at: Some(at(9_000_000)), progress: Progress::default(), checkpoint: None };
    let beat = call(&held, future, 1_000);
    assert_eq!(to_running(&beat).lease.expires_at, at(91_000));
}

#[test]
fn a_cancel_before_the_start_ends_the_task_and_the_start_is_told_why() {
    let task = on_its_way(Spec::default());
    let command =
        Cancel { task: id(), reason: "changed_my_mind".into(), mode: Mode::Cooperative, reach: Default::default() };
    let canceled = after(&with_ctx(500, |ctx| cancel::decide(&task, &command, &push_settings(), ctx)), &task);
    assert_eq!(canceled.place.state(), State::Canceled);
    let expected = RefusalReason::TaskTerminal { cancel_reason: Some("changed_my_mind".into()) };
    assert_eq!(refused(&call(&canceled, started(), 600)), (expected.clone(), State::Canceled, false));
    let late = call(&canceled, succeeded("1"), 600);
    assert_eq!(refused(&late).0, expected);
    assert!(last(&late).evidence.is_some());
}

#[test]
fn ends_within_the_grace_of_a_cancel() {
    let held = started_at(Spec::default(), 0);
    let command = Cancel { task: id(), reason: "stop".into(), mode: Mode::Cooperative, reach: Default::default() };
    let canceling = after(&with_ctx(500, |ctx| cancel::decide(&held, &command, &push_settings(), ctx)), &held);
    let beat = call(&canceling, alive(), 1_000);
    let Ok(Answer::Callback(CallbackAnswer::Renewed { renewed, .. })) = &beat.answer else { panic!("{beat:?}") };
    assert_eq!(renewed.cancel.as_deref(), Some("stop"));
    for (what, call_, attempt, end) in [
        ("success", succeeded("1"), AttemptState::Succeeded, End::Succeeded),
        ("failure", failed("USER_CODE"), AttemptState::Failed, End::Canceled),
        ("stopped", Call::completed(completion(AttemptState::Canceled)), AttemptState::Canceled, End::Canceled),
    ] {
        let decision = call(&canceling, call_, 2_000);
        assert_eq!(told(&decision), (attempt, at(2_000), Disposition::Recorded), "{what}");
        assert_eq!(to_finished(&decision).end, end, "{what}");
    }
}

#[test]
fn the_outcome_decides_and_what_does_not_fit_it_is_kept() {
    let held = started_at(Spec::default(), 0);
    let error = Some(Failure::new("USER_CODE", "odd", None, None));
    for (what, sent, end, retried) in [
        ("failed without an error", completion(AttemptState::Failed), None, true),
        (
            "succeeded with an error",
            Completion { error: error.clone(), ..completion(AttemptState::Succeeded) },
            Some(End::Succeeded),
            false,
        ),
        (
            "canceled with an output",
            Completion { output: Some("1".into()), ..completion(AttemptState::Canceled) },
            Some(End::Canceled),
            false,
        ),
        (
            "failed, in the category of cancels",
            Completion {
                error: Some(Failure::new("CANCELLED", "x", None, None).of_category(category("CANCELLED"))),
                ..completion(AttemptState::Failed)
            },
            Some(End::Failed),
            false,
        ),
    ] {
        let decision = call(&held, Call::completed(sent.clone()), 1_000);
        assert_eq!(told(&decision).0, sent.outcome, "{what}");
        assert_eq!(place(&decision).state() == State::Scheduled, retried, "{what}");
        if let Some(end) = end {
            assert_eq!(to_finished(&decision).end, end, "{what}");
        } else {
            assert_eq!(
                &*to_waiting(&decision).carry.last.as_ref().unwrap().failure.as_ref().unwrap().code,
                "USER_CODE"
            );
        }
        let stored = last(&decision).callback.unwrap().completion.unwrap();
        assert_eq!((&stored.error, &stored.output), (&sent.error, &sent.output), "{what}");
        let again = call(&after(&decision, &held), Call::completed(sent), 2_000);
        assert_eq!(told(&again).2, Disposition::Duplicate, "{what}");
    }
    let unasked = call(&held, Call::completed(completion(AttemptState::Canceled)), 1_000);
    assert_eq!(to_finished(&unasked).cancel_reason.as_deref(), Some("worker_initiated"));
}

#[test]
fn categories_decide_about_the_retry_unless_the_worker_does() {
    let held = started_at(Spec::default(), 0);
    for (code, default) in [
        ("USER_CODE", true),
        ("DATA_QUALITY", false),
        ("INFRASTRUCTURE", true),
        ("CONFIGURATION", false),
        ("TIMEOUT", true),
        ("CANCELLED", false),
    ] {
        for (told, retried) in [(None, default), (Some(true), true), (Some(false), false)] {
            let error = Some(Failure::new(code, "", None, told).of_category(category(code)));
            let sent = Call::completed(Completion { error, ..completion(AttemptState::Failed) });
            let decision = call(&held, sent, 1_000);
            assert_eq!(place(&decision).state() == State::Scheduled, retried, "{code} {told:?}");
            if !retried {
                assert_eq!(to_finished(&decision).reason, Some(FailReason::NonRetryable), "{code} {told:?}");
            }
        }
    }
    let delay = |code| to_waiting(&call(&held, failed(code), 1_000)).at.since(at(1_000));
    assert_eq!((delay("USER_CODE"), delay("TIMEOUT")), (1_621, 3_242));
}

#[test]
fn what_an_attempt_saved_is_handed_to_the_next() {
    let held = started_at(no_backoff(), 0);
    let beat = Call::Heartbeat { told_at: None, progress: Progress::default(), checkpoint: Some("\"p1\"".into()) };
    let held = after(&call(&held, beat, 500), &held);
    let silent = with_ctx(100_000, |ctx| expire::settle(&held, &push_settings(), ctx)).0;
    let Place::Ready(waiting) = &silent.place else { panic!("{silent:?}") };
    assert_eq!(grant_again(waiting, 100_001).carry.checkpoint.as_deref(), Some("\"p1\""));
    let sent = Completion { partial_progress: Some("\"p2\"".into()), ..completion(AttemptState::Failed) };
    let ended = call(&held, Call::completed(sent.clone()), 1_000);
    assert_eq!(to_waiting(&ended).carry.checkpoint.as_deref(), Some("\"p2\""));
    let late = call(&silent, Call::completed(sent), 100_002);
    assert_eq!(to_waiting(&late).carry.checkpoint.as_deref(), Some("\"p2\""));
}
