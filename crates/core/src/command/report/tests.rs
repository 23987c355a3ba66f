use super::*;
use crate::attempt::{Evidence, Failure};
use crate::command::cancel::{self, Cancel, Mode};
use crate::command::testing::{
    at, category, conflict, failed, granted, id, no_backoff, one_attempt, place, regranted, reported, running,
    running_with, settings, succeeded, swept, task, to_finished, to_waiting, token, whole_task, with_ctx,
};
use crate::dag::{DataRefusal, JobId};
use crate::event::FactKind;
use crate::task::{CancelRequest, Spec, State};

fn send(task: &Task, seed: u8, report: &Report, now: i64) -> Decision {
    send_with(task, seed, report, &[], now)
}

fn send_with(task: &Task, seed: u8, report: &Report, history: &[ClosedAttempt], now: i64) -> Decision {
    let sent = reported(seed, report);
    with_ctx(now, |ctx| decide(task, &sent, history, &settings(), ctx))
}

fn send_running(spec: Spec, report: &Report, now: i64) -> Decision {
    send(&task(Place::Running(running_with(spec))), 1, report, now)
}

fn after(decision: &Decision) -> Task {
    task(place(decision).clone())
}

fn receipt(decision: &Decision) -> Receipt {
    match decision.answer {
        Ok(Answer::Reported(receipt)) => receipt,
        ref other => panic!("no receipt: {other:?}"),
    }
}

fn last(decision: &Decision) -> ClosedAttempt {
    place(decision).last_attempt().expect("an attempt has ended").clone()
}

fn fatal() -> Report {
    Report::failed(Failure::new("X", "it broke for good", None, Some(false)))
}

fn canceling(requested_at: i64) -> Task {
    let cancel = CancelRequest { reason: "stop".into(), requested_at: at(requested_at), signaled_at: None };
    task(Place::Running(Running { cancel: Some(cancel), ..running() }))
}

fn cancel_now(task: &Task, mode: Mode, now: i64) -> Task {
    let command = Cancel { task: id(), reason: "stop".into(), mode, reach: Default::default() };
    let whole = whole_task(task.place.clone(), Spec::default());
    after(&with_ctx(now, |ctx| cancel::decide(&whole, &command, &settings(), ctx)))
}

const REQUEUED: Receipt = Receipt::Failed { requeued: true, dlq: false };
const DEAD: Receipt = Receipt::Failed { requeued: false, dlq: true };
const ENDED: Receipt = Receipt::Failed { requeued: false, dlq: false };

#[test]
fn a_completion_ends_the_task_with_its_result() {
    let decision = send_running(Spec::default(), &succeeded("[1]"), 1_000);
    assert_eq!(receipt(&decision), Receipt::Completed);
    let finished = to_finished(&decision);
    assert_eq!(
        (finished.end, finished.result.as_deref(), finished.finished_at),
        (End::Succeeded, Some("[1]"), at(1_000))
    );
    let closed = last(&decision);
    assert_eq!((closed.state, closed.reason, closed.ended_at), (AttemptState::Succeeded, Reason::Completed, at(1_000)));
    assert_eq!(closed.receipt, Some(Receipt::Completed));
    assert!(decision.change.unwrap().attempts.is_empty(), "the final attempt is in the finished row");
}

#[test]
fn a_failure_leads_where_its_kind_says() {
    let canceled_again =
        Report::failed(Failure::new("CANCELLED", "", None, Some(true)).of_category(category("CANCELLED")));
    for (what, spec, report, answer, state, attempt) in [
        ("retryable", Spec::default(), failed("X"), REQUEUED, State::Scheduled, AttemptState::Failed),
        ("retryable at once", no_backoff(), failed("X"), REQUEUED, State::Ready, AttemptState::Failed),
        ("the last attempt", one_attempt(), failed("X"), DEAD, State::Failed, AttemptState::Failed),
        ("not retryable", Spec::default(), fatal(), DEAD, State::Failed, AttemptState::Failed),
        ("by its code", Spec::default(), failed("DATA_QUALITY"), DEAD, State::Failed, AttemptState::Failed),
        ("stopped, unasked", Spec::default(), failed("CANCELLED"), ENDED, State::Canceled, AttemptState::Canceled),
        ("to be run again", Spec::default(), canceled_again, REQUEUED, State::Scheduled, AttemptState::Failed),
    ] {
        let decision = send_running(spec, &report, 1_000);
        assert_eq!((receipt(&decision), place(&decision).state()), (answer, state), "{what}");
        let closed = last(&decision);
        assert_eq!((closed.state, closed.receipt, closed.ended_at), (attempt, Some(answer), at(1_000)), "{what}");
    }
}

#[test]
fn stopping_though_nobody_asked_cancels_the_task() {
    let decision = send_running(Spec::default(), &failed("CANCELLED"), 1_000);
    let finished = to_finished(&decision);
    assert_eq!((finished.end, finished.cancel_reason.as_deref()), (End::Canceled, Some("worker_initiated")));
    assert_eq!(last(&decision).reason, Reason::Canceled);
}

#[test]
fn a_failure_that_says_timeout_waits_twice_as_long() {
    let retry_at = |code| to_waiting(&send_running(Spec::default(), &failed(code), 1_000)).at;
    assert_eq!((retry_at("X"), retry_at("TIMEOUT")), (at(1_000 + 1_621), at(1_000 + 3_242)));
}

#[test]
fn an_exact_replay_gets_the_same_receipt_and_changes_nothing() {
    for (what, spec, report) in [
        ("completed", Spec::default(), succeeded(r#"{"a":1,"b":[2]}"#)),
        ("completed without a result", Spec::default(), Report::succeeded(None)),
        ("failed, in back-off", Spec::default(), failed("X")),
        ("failed, ready again", no_backoff(), failed("X")),
        ("failed, dead", one_attempt(), failed("X")),
        ("canceled", Spec::default(), failed("CANCELLED")),
    ] {
        let first = send_running(spec, &report, 1_000);
        let again = send(&after(&first), 1, &report, 9_000_000);
        assert_eq!((&again.answer, &again.change), (&first.answer, &None), "{what}");
    }
}

#[test]
fn a_replay_after_a_later_attempt_gets_its_receipt_too() {
    let first = send_running(no_backoff(), &failed("X"), 1_000);
    let history = [last(&first)];
    let second = task(Place::Running(granted(to_waiting(&first), 2, 2_000)));
    let replay = send_with(&second, 1, &failed("X"), &history, 3_000);
    assert_eq!((replay.answer, replay.change), (first.answer, None));
    let done = after(&send(&second, 2, &succeeded("2"), 4_000));
    assert_eq!(receipt(&send_with(&done, 1, &failed("X"), &history, 5_000)), REQUEUED);
}

#[test]
fn results_are_compared_as_json_values() {
    let done = after(&send_running(Spec::default(), &succeeded(r#"{"a":1,"b":[true,null]}"#), 1_000));
    let other_order = succeeded(r#"{ "b": [true, null], "a": 1.0 }"#);
    assert_eq!(receipt(&send(&done, 1, &other_order, 2_000)), Receipt::Completed);
}

#[test]
fn other_content_for_a_reported_attempt_conflicts_and_is_kept_as_evidence() {
    let done = after(&send_running(Spec::default(), &succeeded("1"), 1_000));
    let dead = after(&send_running(one_attempt(), &failed("X"), 1_000));
    let waiting = after(&send_running(Spec::default(), &failed("X"), 1_000));
    for (what, before, report, outcome) in [
        ("another result", &done, succeeded("2"), AttemptState::Succeeded),
        ("no result", &done, Report::succeeded(None), AttemptState::Succeeded),
        ("failed after all", &done, failed("X"), AttemptState::Failed),
        ("another error", &dead, failed("Y"), AttemptState::Failed),
        ("succeeded after all", &dead, succeeded("1"), AttemptState::Succeeded),
        ("succeeded after all, in back-off", &waiting, succeeded("1"), AttemptState::Succeeded),
        ("canceled after all", &waiting, failed("CANCELLED"), AttemptState::Canceled),
    ] {
        let decision = send(before, 1, &report, 2_000);
        let refusal = conflict(&decision);
        assert_eq!((refusal.kind, refusal.ack), (ConflictKind::ConflictingCompletion, true), "{what}");
        let evidence = last(&decision).evidence.expect(what);
        assert_eq!((evidence.state, evidence.received_at), (outcome, at(2_000)), "{what}");
        assert_eq!(place(&decision).state(), before.place.state(), "{what}");
        assert_eq!(last(&decision).receipt, before.place.last_attempt().unwrap().receipt, "{what}");
    }
}

#[test]
fn a_late_completion_counts_as_long_as_nobody_was_granted_the_task() {
    for (what, spec, from) in [
        ("in back-off", Spec::default(), State::Scheduled),
        ("ready again", no_backoff(), State::Ready),
        ("in the dead letters", one_attempt(), State::Failed),
    ] {
        let before = swept(spec);
        assert_eq!(before.place.state(), from, "{what}");
        let decision = send(&before, 1, &succeeded("7"), 61_000);
        assert_eq!(receipt(&decision), Receipt::Completed, "{what}");
        let finished = to_finished(&decision);
        assert_eq!((finished.end, finished.result.as_deref()), (End::Succeeded, Some("7")), "{what}");
        assert_eq!((finished.dead_lettered_at, &finished.failure, finished.reason), (None, &None, None), "{what}");
        let closed = last(&decision);
        assert_eq!((closed.state, closed.reason), (AttemptState::Succeeded, Reason::Completed), "{what}");
        assert_eq!((closed.ended_at, &closed.failure), (at(61_000), &None), "{what}");
        let again = send(&after(&decision), 1, &succeeded("7"), 62_000);
        assert_eq!((again.answer, again.change), (decision.answer, None), "{what}");
    }
}

#[test]
fn a_completion_of_an_unswept_lease_closes_it_first_and_then_counts_as_late() {
    let decision = send_running(Spec::default(), &succeeded("7"), 61_000);
    assert_eq!((receipt(&decision), place(&decision).state()), (Receipt::Completed, State::Succeeded));
    let kinds: Vec<_> = decision.change.as_ref().unwrap().facts.iter().map(|fact| fact.kind).collect();
    assert_eq!(kinds, [FactKind::Retrying, FactKind::Succeeded]);
    assert!(matches!(decision.change.unwrap().attempts[..], [AttemptChange::Put(_), AttemptChange::Drop(1)]));
}

#[test]
fn a_late_retryable_failure_leaves_the_retry() {
    for (spec, from) in [(Spec::default(), State::Scheduled), (no_backoff(), State::Ready)] {
        let before = swept(spec);
        let decision = send(&before, 1, &failed("X"), 60_001);
        assert_eq!((receipt(&decision), place(&decision).state()), (REQUEUED, from));
        let (Place::Scheduled(old) | Place::Ready(old)) = &before.place else { panic!("{before:?}") };
        let waiting = to_waiting(&decision);
        assert_eq!((waiting.at, waiting.message, waiting.attempt), (old.at, old.message, old.attempt));
        assert_eq!(&*last(&decision).failure.unwrap().code, "X");
        assert_eq!(receipt(&send(&after(&decision), 1, &failed("X"), 60_002)), REQUEUED);
    }
}

#[test]
fn a_late_failure_that_is_final_withdraws_the_retry() {
    for (report, answer, end, reason, cancel_reason) in [
        (fatal(), DEAD, End::Failed, Some(FailReason::NonRetryable), None),
        (failed("CANCELLED"), ENDED, End::Canceled, None, Some("worker_initiated")),
    ] {
        let decision = send(&swept(Spec::default()), 1, &report, 60_001);
        assert_eq!(receipt(&decision), answer);
        let finished = to_finished(&decision);
        assert_eq!((finished.end, finished.reason, finished.cancel_reason.as_deref()), (end, reason, cancel_reason));
        assert_eq!(finished.dead_lettered_at.is_some(), end == End::Failed);
        assert!(matches!(decision.change.unwrap().attempts[..], [AttemptChange::Drop(1)]));
    }
}

#[test]
fn a_late_final_failure_stays_out_of_the_dead_letters_of_a_queue_without_them() {
    let queue = QueueSettings { no_dead_letter: true, ..settings() };
    let sent = reported(1, &fatal());
    let decision = with_ctx(60_001, |ctx| decide(&swept(Spec::default()), &sent, &[], &queue, ctx));
    assert_eq!((receipt(&decision), to_finished(&decision).dead_lettered_at), (ENDED, None));
}

#[test]
fn a_late_failure_adds_its_error_to_a_dead_letter() {
    for report in [failed("X"), fatal()] {
        let decision = send(&swept(one_attempt()), 1, &report, 61_000);
        assert_eq!(receipt(&decision), DEAD);
        let finished = to_finished(&decision);
        assert_eq!(finished.dead_lettered_at, Some(at(60_000)));
        assert_eq!(&*finished.failure.as_ref().unwrap().code, "X");
        assert_eq!(finished.reason, Some(FailReason::MaxAttempts));
    }
}

#[test]
fn a_late_report_is_refused_and_kept_once_the_task_was_canceled_or_its_deadline_passed() {
    let deadline = Spec { deadline: Some(at(70_000)), ..Spec::default() };
    let dead_before_it = Spec { deadline: Some(at(70_000)), ..one_attempt() };
    let revoked = cancel_now(&task(Place::Running(running())), Mode::Immediate, 1_000);
    for (what, before, state) in [
        ("canceled in back-off", &cancel_now(&swept(Spec::default()), Mode::Cooperative, 60_500), State::Canceled),
        ("canceled, then expired", &canceling(55_000), State::Canceled),
        ("taken away", &revoked, State::Canceled),
        ("deadline passed in back-off", &swept(deadline), State::Failed),
        ("deadline passed while it ran", &task(Place::Running(running_with(deadline))), State::Failed),
        ("deadline passed in the dead letters", &swept(dead_before_it), State::Failed),
    ] {
        for (report, outcome) in [(succeeded("7"), AttemptState::Succeeded), (failed("X"), AttemptState::Failed)] {
            let decision = send(before, 1, &report, 70_000);
            let refusal = conflict(&decision);
            let expected = (ConflictKind::AttemptClosed, state, true);
            assert_eq!((refusal.kind, refusal.state, refusal.ack), expected, "{what}");
            assert_eq!(last(&decision).evidence.unwrap().state, outcome, "{what}");
            assert_eq!((last(&decision).receipt, &to_finished(&decision).result), (None, &None), "{what}");
        }
    }
}

#[test]
fn a_task_that_failed_because_no_retry_fits_before_its_deadline_takes_a_report_until_then() {
    // The lease ran out before the deadline, but the retry would start behind it.
    let spec = Spec { deadline: Some(at(60_500)), ..Spec::default() };
    let before = swept(spec);
    let Place::Finished(finished) = &before.place else { panic!("{before:?}") };
    assert_eq!(finished.reason, Some(FailReason::DeadlineExceeded));
    assert_eq!(receipt(&send(&before, 1, &succeeded("7"), 60_499)), Receipt::Completed);
    assert_eq!(conflict(&send(&before, 1, &succeeded("7"), 60_500)).kind, ConflictKind::AttemptClosed);
}

#[test]
fn a_superseded_report_is_kept_and_never_applied() {
    let (second, history) = regranted();
    let decision = send_with(&second, 1, &succeeded("1"), &history, 61_000);
    let refusal = conflict(&decision);
    assert_eq!((refusal.kind, refusal.ack, refusal.attempt), (ConflictKind::StaleAttempt, true, 2));
    let change = decision.change.unwrap();
    assert_eq!(change.place, second.place);
    let [AttemptChange::Put(kept)] = &change.attempts[..] else { panic!("{change:?}") };
    let evidence = Evidence::of(&succeeded("1"), at(61_000));
    assert_eq!((kept.number, &kept.evidence), (1, &Some(evidence)));
    assert_eq!((kept.state, kept.reason), (AttemptState::Failed, Reason::HeartbeatTimeout));
}

#[test]
fn of_several_superseded_reports_the_first_is_kept_and_the_others_are_counted() {
    let (second, mut history) = regranted();
    for (report, now) in [(failed("X"), 61_000), (succeeded("1"), 62_000), (failed("X"), 63_000)] {
        let decision = send_with(&second, 1, &report, &history, now);
        let [AttemptChange::Put(kept)] = &decision.change.unwrap().attempts[..] else { panic!("one row") };
        history = vec![(**kept).clone()];
    }
    let evidence = history[0].evidence.clone().unwrap();
    assert_eq!((evidence.received_at, evidence.state, evidence.more), (at(61_000), AttemptState::Failed, 2));
}

#[test]
fn a_superseded_report_of_a_reported_attempt_with_other_content_conflicts() {
    let first = send_running(no_backoff(), &failed("X"), 1_000);
    let second = task(Place::Running(granted(to_waiting(&first), 2, 2_000)));
    let refusal = conflict(&send_with(&second, 1, &succeeded("1"), &[last(&first)], 3_000));
    assert_eq!((refusal.kind, refusal.ack), (ConflictKind::ConflictingCompletion, true));
}

#[test]
fn the_wrong_token_is_refused_wherever_the_attempt_stands() {
    let (second, history) = regranted();
    let held = task(Place::Running(running()));
    for (what, task, attempt, history, ack) in [
        ("running", &held, 1, &[][..], false),
        ("in back-off", &swept(Spec::default()), 1, &[], true),
        ("in the dead letters", &swept(one_attempt()), 1, &[], true),
        ("superseded", &second, 1, &history, false),
    ] {
        let report = succeeded("1");
        let sent = AttemptReport { token: token(9), ..reported(attempt, &report) };
        let decision = with_ctx(59_999, |ctx| decide(task, &sent, history, &settings(), ctx));
        let refusal = conflict(&decision);
        assert_eq!((refusal.kind, refusal.ack, decision.change), (ConflictKind::StaleLease, ack, None), "{what}");
    }
}

#[test]
fn an_attempt_that_nobody_knows_is_stale_and_leaves_no_trace() {
    let decision = send(&task(Place::Running(running())), 9, &succeeded("1"), 1_000);
    assert_eq!((conflict(&decision).kind, decision.change), (ConflictKind::StaleAttempt, None));
}

#[test]
fn the_message_of_a_refused_report_may_go_unless_it_is_the_live_one() {
    let report = succeeded("1");
    let wrong = AttemptReport { token: token(9), ..reported(1, &report) };
    let refused = |task: &Task| with_ctx(1_000, |ctx| decide(task, &wrong, &[], &settings(), ctx));
    assert!(!conflict(&refused(&task(Place::Running(running())))).ack);
    assert!(conflict(&refused(&swept(Spec::default()))).ack);
    assert!(conflict(&refused(&swept(one_attempt()))).ack);
    assert!(conflict(&refused(&swept(one_attempt()))).dead_lettered);
}

#[test]
fn within_the_cancel_grace_the_holder_may_still_succeed() {
    let decision = send(&canceling(10_000), 1, &succeeded("1"), 59_000);
    assert_eq!((receipt(&decision), to_finished(&decision).end), (Receipt::Completed, End::Succeeded));
    assert_eq!(to_finished(&decision).cancel_reason.as_deref(), Some("stop"));
}

#[test]
fn within_the_cancel_grace_any_failure_cancels_the_task() {
    for (report, state) in [(failed("X"), AttemptState::Failed), (failed("CANCELLED"), AttemptState::Canceled)] {
        let decision = send(&canceling(10_000), 1, &report, 20_000);
        assert_eq!(receipt(&decision), ENDED);
        let finished = to_finished(&decision);
        assert_eq!((finished.end, finished.cancel_reason.as_deref()), (End::Canceled, Some("stop")));
        assert_eq!(last(&decision).state, state);
    }
}

#[test]
fn after_the_cancel_grace_the_report_is_too_late() {
    let held = match canceling(0).place {
        Place::Running(running) => {
            let lease = crate::lease::Lease { expires_at: at(90_000), ..running.lease.clone() };
            task(Place::Running(Running { lease, ..running }))
        }
        other => panic!("{other:?}"),
    };
    let decision = send(&held, 1, &succeeded("1"), 50_000);
    assert_eq!((conflict(&decision).kind, conflict(&decision).state), (ConflictKind::AttemptClosed, State::Canceled));
    assert_eq!(last(&decision).reason, Reason::CancelTimeout);
    assert!(last(&decision).evidence.is_some());
}

/// What a report says about datasets is written with the first success that counts, late or not, and with nothing else.
#[test]
fn data_is_written_once_and_only_with_a_success_that_counts() {
    let data = Arc::new(DataReport::of("acme".into(), JobId(7)));
    let sent = |report: &Report| AttemptReport { data: Some(Arc::clone(&data)), ..reported(1, report) };
    let say = |task: &Task, report: &Report, history: &[ClosedAttempt], now| {
        with_ctx(now, |ctx| decide(task, &sent(report), history, &settings(), ctx))
    };
    let is_written = |decision: &Decision| {
        let change = decision.change.as_ref();
        change.is_some_and(|change| change.data.iter().any(|it| (it.task, it.attempt) == (id(), 1)))
    };
    let held = task(Place::Running(running()));
    let (superseded, history) = regranted();
    for (what, decision, expected) in [
        ("the holder", say(&held, &succeeded("1"), &[], 1_000), true),
        ("late, in back-off", say(&swept(Spec::default()), &succeeded("1"), &[], 61_000), true),
        ("late, a dead letter", say(&swept(one_attempt()), &succeeded("1"), &[], 61_000), true),
        ("a failure", say(&held, &failed("X"), &[], 1_000), false),
        ("a late failure for good", say(&swept(Spec::default()), &fatal(), &[], 61_000), false),
        ("superseded", say(&superseded, &succeeded("1"), &history, 61_000), false),
    ] {
        assert_eq!(is_written(&decision), expected, "{what}");
    }
    let done = after(&say(&held, &succeeded("1"), &[], 1_000));
    assert!(!is_written(&say(&done, &succeeded("1"), &[], 2_000)), "a replay");
}

#[test]
fn a_report_that_counts_only_under_a_lease_is_refused_late() {
    let data = DataReport { live_only: true, ..DataReport::of("acme".into(), JobId(7)) };
    let say = |task: &Task, now| {
        let sent = AttemptReport { data: Some(Arc::new(data.clone())), ..reported(1, &succeeded("1")) };
        with_ctx(now, |ctx| decide(task, &sent, &[], &settings(), ctx))
    };
    let held = task(Place::Running(running()));
    assert_eq!(receipt(&say(&held, 59_999)), Receipt::Completed);
    for (what, decision) in [
        ("expired, not yet reaped", say(&held, 60_000)),
        ("in back-off", say(&swept(Spec::default()), 61_000)),
        ("a dead letter", say(&swept(one_attempt()), 61_000)),
    ] {
        assert_eq!(conflict(&decision).kind, ConflictKind::LeaseExpired, "{what}");
        assert!(decision.change.is_none_or(|change| change.data.is_empty()), "{what}");
    }
}

#[test]
fn contents_are_judged_after_the_receipt_and_the_fence() {
    let refusal = DataRefusal { code: "dataset_not_granted", message: "no".to_owned() };
    let data = DataReport { refusal: Some(refusal.clone()), ..DataReport::of("acme".into(), JobId(7)) };
    let wrong = |token| AttemptReport { token, data: Some(Arc::new(data.clone())), ..reported(1, &succeeded("1")) };
    let judged = |task: &Task, token, now| with_ctx(now, |ctx| decide(task, &wrong(token), &[], &settings(), ctx));
    let held = task(Place::Running(running()));
    let decision = judged(&held, token(1), 1_000);
    assert_eq!((decision.answer, decision.change), (Err(Rejection::Data(refusal.clone())), None));
    assert_eq!(conflict(&judged(&held, token(9), 1_000)).kind, ConflictKind::StaleLease);
    let late = judged(&swept(Spec::default()), token(1), 61_000);
    assert_eq!((late.answer, late.change), (Err(Rejection::Data(refusal)), None));
    // What was accepted before gets its receipt again.
    let done = after(&send(&held, 1, &succeeded("1"), 1_000));
    assert_eq!(receipt(&judged(&done, token(1), 2_000)), Receipt::Completed);
}

#[test]
fn a_lease_is_of_no_use_to_another_worker_whose_name_is_proven() {
    let by = |worker: &str, report: &Report| Report { worker: Some(worker.into()), ..report.clone() };
    let held = task(Place::Running(running()));
    let holder = running().lease.holder.unwrap();
    let refused = send(&held, 1, &by("another", &succeeded("1")), 1_000);
    assert_eq!(conflict(&refused).kind, ConflictKind::OtherWorker);
    // The holder goes on, and the history shows both.
    let held = after(&refused);
    let again = after(&send(&held, 1, &by("another", &failed("X")), 2_000));
    let done = send(&again, 1, &by(&holder, &succeeded("2")), 3_000);
    assert_eq!(receipt(&done), Receipt::Completed);
    let last = to_finished(&done).carry.last.clone().unwrap();
    let evidence = last.evidence.unwrap();
    assert_eq!(
        (evidence.worker.as_deref(), evidence.result.as_deref(), evidence.more),
        (Some("another"), Some("1"), 1)
    );
    assert_eq!(to_finished(&done).carry.evidence, None);
    // Nor is one that has ended: not even its receipt is told.
    let done = after(&done);
    assert_eq!(conflict(&send(&done, 1, &by("another", &succeeded("2")), 4_000)).kind, ConflictKind::OtherWorker);
    assert_eq!(receipt(&send(&done, 1, &by(&holder, &succeeded("2")), 4_000)), Receipt::Completed);
    let late = send(&swept(Spec::default()), 1, &by("another", &succeeded("1")), 61_000);
    assert_eq!(conflict(&late).kind, ConflictKind::OtherWorker);
    // A credential that many share proves no name.
    assert_eq!(receipt(&send(&held, 1, &succeeded("1"), 1_000)), Receipt::Completed);
}

#[test]
fn what_a_stopping_holder_gives_back_costs_nothing_but_not_for_ever() {
    let stopping = Failure::new("WORKER_SHUTDOWN", "the worker was shut down", None, Some(true)).given_back(true);
    let report = Report::failed(stopping);
    let mut held = running_with(one_attempt());
    let mut free = 0;
    loop {
        let decision = send(&task(Place::Running(held)), 1, &report, 1_000);
        if receipt(&decision) == DEAD {
            assert_eq!(last(&decision).reason, Reason::Failed);
            break;
        }
        free += 1;
        assert_eq!((receipt(&decision), last(&decision).reason), (REQUEUED, Reason::HandedBack));
        let waiting = to_waiting(&decision);
        assert_eq!((waiting.at, place(&decision).state()), (at(1_000), State::Ready), "without a back-off");
        assert!(decision.change.as_ref().unwrap().facts.iter().any(|fact| fact.kind == FactKind::Released));
        let again = send(&after(&decision), 1, &report, 2_000);
        assert_eq!((receipt(&again), again.change), (REQUEUED, None), "a replay");
        held = granted(waiting, 1, 3_000);
    }
    assert_eq!(free, limits::HANDED_BACK_MAX);

    let canceled = send(&canceling(500), 1, &report, 1_000);
    assert_eq!((receipt(&canceled), place(&canceled).state()), (ENDED, State::Canceled), "it was to end anyway");
}
