use super::*;

fn accepts(what: &str, story: &Story) {
    let mut ops = story.ops.clone();
    ops.sort_by_key(|op| op.asked);
    let verdict = check(&History { ops }, &story.ended, &story.effects, &story.faults);
    assert!(verdict.violations.is_empty(), "{what}: {:#?}", verdict.violations);
}

#[test]
fn a_task_that_just_runs() {
    let story = Story::new().grant(10, 1).beat(200, 1).effect(1).complete(900, 1).ended("Succeeded", 1);
    accepts("grant, heartbeat, complete", &story);
}

#[test]
fn a_late_completion_counts_before_the_next_grant() {
    let story = Story::new().grant(10, 1).complete(5_000, 1).ended("Succeeded", 1);
    accepts("long after the lease", &story);
    let story = Story::new().grant(10, 1).op(2_000, heartbeat(1), refused("lease_expired")).complete(2_100, 1);
    accepts("though a heartbeat was refused", &story.ended("Succeeded", 1));
}

#[test]
fn a_late_completion_takes_a_task_off_the_dead_letters() {
    let story = Story::new().grant(10, 1).grant(1_100, 2).grant(2_200, 3);
    let read = Call::Read { task: TASK.into() };
    let dead = Answer::Seen { state: "Failed".into(), attempt: 3, fence: 3 };
    accepts("of the last attempt", &story.op(3_500, read, dead).complete(4_000, 3).ended("Succeeded", 3));
}

#[test]
fn a_worker_that_stopped_takes_its_task_off_the_dead_letters() {
    let story = Story::new().grant(10, 1).grant(1_100, 2).grant(2_200, 3);
    let story = story.op(3_500, heartbeat(3), refused("lease_expired"));
    let story = story.op(4_000, fail(3, ReportKind::FailCancelled), failed(false, false));
    accepts("late, of the last attempt", &story.ended("Canceled", 3));
}

#[test]
fn an_unknown_completion_that_did_happen() {
    let story = Story::new().grant(10, 1).op(100, complete(1, "1"), unknown()).ended("Succeeded", 1);
    accepts("nobody asked again", &story);
    let story = Story::new().grant(10, 1).op(100, complete(1, "1"), unknown()).op(4_000, complete(1, "1"), completed());
    accepts("asked again, with the receipt", &story.ended("Succeeded", 1));
}

#[test]
fn an_unknown_completion_that_did_not_happen() {
    let story = Story::new().grant(10, 1).op(100, complete(1, "1"), unknown()).grant(1_100, 2).complete(1_200, 2);
    accepts("another attempt ran", &story.effect(1).effect(2).ended("Succeeded", 2));
}

#[test]
fn a_replay_after_a_later_attempt() {
    let story = Story::new().grant(10, 1).fail(100, 1, true).grant(300, 2).fail(400, 1, true).complete(500, 2);
    accepts("of a fail that was answered", &story.ended("Succeeded", 2));
    let story = Story::new()
        .grant(10, 1)
        .op(100, fail(1, ReportKind::FailRetryable), unknown())
        .grant(300, 2)
        .fail(400, 1, true)
        .complete(500, 2);
    accepts("of a fail whose answer was lost", &story.ended("Succeeded", 2));
}

#[test]
fn a_report_of_an_overtaken_holder_that_is_refused() {
    let story = Story::new().grant(10, 1).grant(1_100, 2).op(1_200, complete(1, "0"), refused("stale_attempt"));
    let story = story.op(1_300, heartbeat(1), refused("stale_attempt")).complete(1_500, 2);
    accepts("and changes nothing", &story.effect(1).effect(2).ended("Succeeded", 2));
}

#[test]
fn a_race_between_a_completion_and_the_next_grant() {
    let story = Story::new().grant(10, 1).long_op(900, 1_500, complete(1, "1"), completed()).ended("Succeeded", 1);
    accepts("it won", &story);
    let story = Story::new().grant(10, 1).long_op(900, 1_500, complete(1, "0"), refused("stale_attempt"));
    accepts("it lost", &story.grant(1_100, 2).complete(1_600, 2).ended("Succeeded", 2));
}

#[test]
fn a_claim_whose_answer_was_lost() {
    let mut story = Story::new().op(10, claim("v", None), unknown());
    story.note_attempt(1, "v");
    let story = story.grant(20, 2).complete(100, 2).ended("Succeeded", 2);
    accepts("taken back at once", &story);
    let mut story = Story::new().op(10, claim("v", Some("c")), unknown());
    story.note_attempt(1, "v");
    accepts("run out", &story.grant(1_500, 2).complete(1_600, 2).ended("Succeeded", 2));
    let story = Story::new().op(10, claim("v", Some("c")), unknown()).grant_to(500, 1, "v", Some("c"));
    accepts("asked again under the same id", &story.complete(900, 1).ended("Succeeded", 1));
    let story = Story::new().grant_to(10, 1, "v", Some("c")).grant_to(500, 1, "v", Some("c"));
    accepts("the same jobs again", &story.complete(900, 1).ended("Succeeded", 1));
}

#[test]
fn an_undelivered_grant_costs_nothing_of_the_budget() {
    let mut story = Story::new().op(10, claim("v", None), unknown());
    story.note_attempt(1, "v");
    let story = story.grant(20, 2).fail(30, 2, true).grant(40, 3).fail(50, 3, true).grant(60, 4).fail(70, 4, false);
    accepts("the fourth attempt is the last", &story.ended("Failed", 4));
}

#[test]
fn a_newer_process_of_the_same_worker_voids_what_the_older_one_held() {
    let of = |incarnation: &str| Call::Claim {
        worker: "w".into(),
        incarnation: Some(incarnation.into()),
        claim_id: None,
        job: None,
    };
    let mut story = Story::new();
    story.note_attempt(1, "w");
    story.note_attempt(2, "w");
    let story = story.op(10, of("a"), Answer::Granted { jobs: vec![job(1)] });
    let story = story.op(100, of("b"), Answer::Granted { jobs: vec![job(2)] });
    accepts("before the lease ran out", &story.complete(200, 2).ended("Succeeded", 2));
}

#[test]
fn a_cancel_at_every_state() {
    let story = Story::new().op(5, cancel(false), canceled("Canceled")).ended("Canceled", 0);
    accepts("while it waits", &story);
    let told = Answer::Renewed { should_cancel: true };
    let story = Story::new().grant(10, 1).op(20, cancel(false), canceled("Running")).op(30, heartbeat(1), told);
    let story = story.op(40, fail(1, ReportKind::FailCancelled), failed(false, false)).ended("Canceled", 1);
    accepts("while it runs", &story);
    let story = Story::new().grant(10, 1).op(20, cancel(true), canceled("Canceled"));
    let story =
        story.op(30, heartbeat(1), refused("attempt_closed")).op(40, complete(1, "1"), refused("attempt_closed"));
    accepts("at once", &story.ended("Canceled", 1));
    let story = Story::new().grant(10, 1).op(20, cancel(false), canceled("Running")).complete(30, 1);
    accepts(
        "the holder was faster",
        &story.op(40, cancel(false), refused("task_already_terminal")).ended("Succeeded", 1),
    );
    let story = Story::new().op(5, cancel(false), unknown()).grant(10, 1).complete(20, 1).ended("Succeeded", 1);
    accepts("it was lost", &story);
}

#[test]
fn a_manual_retry_goes_on_with_attempt_and_fence() {
    let retried = Answer::Retried { attempt: 1, max_attempts: 6 };
    let final_fail = fail(1, ReportKind::FailFinal);
    let story = Story::new().grant(10, 1).op(20, final_fail, failed(false, true)).op(30, retry(), retried);
    let story = story.op(40, retry(), refused("task_not_retryable")).grant(50, 2).complete(60, 2);
    accepts("of a failed task", &story.ended("Succeeded", 2));
    let story = Story::new().grant(10, 1).op(20, fail(1, ReportKind::FailFinal), failed(false, true));
    accepts(
        "that was unknown and happened",
        &story.op(30, retry(), unknown()).grant(50, 2).complete(60, 2).ended("Succeeded", 2),
    );
}

#[test]
fn a_submit_that_was_sent_twice_under_one_key() {
    let mut story = Story::new();
    story.ops.clear();
    let again = Answer::Submitted { tasks: vec![Accepted { task: TASK.into(), created: false }] };
    let story = story.op(0, submit("n", Some("k")), unknown()).op(10, submit("n", Some("k")), again);
    accepts("the first one did happen", &story.grant(20, 1).complete(30, 1).ended("Succeeded", 1));
}

#[test]
fn a_conflicting_report_is_refused() {
    let story = Story::new().grant(10, 1).complete(20, 1);
    let story = story.op(30, complete(1, "2"), refused("conflicting_completion"));
    accepts("and the first one stands", &story.ended("Succeeded", 1));
}

#[test]
fn a_claim_that_waited_for_a_delayed_task() {
    let mut story = Story::new();
    let Call::Submit { tasks } = &mut story.ops[0].call else { panic!("the first is the submit") };
    tasks[0].delay_ms = 500;
    story.note_attempt(1, "w");
    let story = story.long_op(10, 510, claim("w", None), Answer::Granted { jobs: vec![job(1)] });
    accepts("and was answered when it was due", &story.complete(600, 1).ended("Succeeded", 1));
}
