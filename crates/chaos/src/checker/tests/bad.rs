use super::*;

/// The rules that a story breaks, which each test says exactly.
fn breaks(story: &Story) -> Vec<Rule> {
    story.rules()
}

#[test]
fn an_acknowledged_submit_that_is_gone() {
    let mut story = Story::new();
    story.ended.tasks.clear();
    assert_eq!(breaks(&story), [Rule::LostSubmit]);
}

#[test]
fn one_key_and_two_tasks() {
    let mut story = Story::new().grant(10, 1).complete(20, 1).ended("Succeeded", 1);
    let other = FinalTask { nonce: "m".into(), state: "Canceled".into(), ..FinalTask::default() };
    story.ended.tasks.insert("other".into(), other);
    let told = |task: &str| Answer::Submitted { tasks: vec![Accepted { task: task.into(), created: false }] };
    story = story.op(2, submit("n", Some("k")), told(TASK)).op(4, submit("m", Some("k")), told("other"));
    story = story.op(6, Call::Cancel { task: "other".into(), immediate: false }, canceled("Canceled"));
    assert_eq!(breaks(&story), [Rule::KeySplit]);
}

#[test]
fn one_submission_and_two_tasks() {
    let mut story = Story::new().op(5, cancel(false), canceled("Canceled")).ended("Canceled", 0);
    let twin = story.ended.tasks[TASK].clone();
    story.ended.tasks.insert("twin".into(), twin);
    let story = story.op(6, Call::Cancel { task: "twin".into(), immediate: false }, canceled("Canceled"));
    assert!(breaks(&story).contains(&Rule::DoubleCreate));
}

#[test]
fn two_answers_that_say_they_created_it() {
    let again = Answer::Submitted { tasks: vec![Accepted { task: TASK.into(), created: true }] };
    let story = Story::new().op(2, submit("n", None), again).op(5, cancel(false), canceled("Canceled"));
    assert_eq!(breaks(&story.ended("Canceled", 0)), [Rule::DoubleCreate]);
}

#[test]
fn a_part_of_a_batch() {
    let mut story = Story::new().op(5, cancel(false), canceled("Canceled")).ended("Canceled", 0);
    let Call::Submit { tasks } = &mut story.ops[0].call else { panic!("the first is the submit") };
    tasks.push(Submission { nonce: "m".into(), ..tasks[0].clone() });
    (story.ops[0].answer, story.ops[0].answered) = (unknown(), None);
    assert_eq!(breaks(&story), [Rule::HalfBatch]);
}

#[test]
fn a_task_that_nobody_submitted() {
    let mut story = Story::new().grant(10, 1).complete(20, 1).ended("Succeeded", 1);
    story.ops.remove(0);
    assert_eq!(breaks(&story), [Rule::Invented]);
}

#[test]
fn two_completions() {
    // The second is of the same attempt, so nobody was overtaken.
    let story = Story::new().grant(10, 1).complete(20, 1).op(30, complete(1, "2"), completed());
    assert_eq!(breaks(&story.ended("Succeeded", 1)), [Rule::TwoCompletions, Rule::NoOrder]);
}

#[test]
fn a_repeat_that_gets_another_answer() {
    let story = Story::new().grant(10, 1).fail(20, 1, true).grant(200, 2).fail(300, 1, false).complete(400, 2);
    assert_eq!(breaks(&story.ended("Succeeded", 2)), [Rule::ReceiptChanged, Rule::NoOrder]);
}

#[test]
fn a_completion_of_an_overtaken_holder() {
    let story = Story::new().grant(10, 1).grant(1_100, 2).complete(1_200, 1).ended("Succeeded", 2);
    assert_eq!(breaks(&story), [Rule::StaleAccepted, Rule::NoOrder]);
}

#[test]
fn a_heartbeat_of_an_overtaken_holder() {
    let story = Story::new().grant(10, 1).grant(1_100, 2).beat(1_200, 1).complete(1_300, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story), [Rule::StaleAccepted, Rule::NoOrder]);
}

#[test]
fn a_fence_that_goes_back() {
    let mut story = Story::new().grant(10, 1).grant(1_100, 2).complete(1_200, 2).ended("Succeeded", 2);
    for op in &mut story.ops {
        if let Answer::Granted { jobs } = &mut op.answer {
            jobs[0].fence = 10 - jobs[0].fence;
        }
    }
    assert!(breaks(&story).contains(&Rule::GrantOrder));
}

#[test]
fn a_task_granted_to_two_at_the_same_time() {
    let mut story = Story::new().grant(10, 1).complete(500, 1).ended("Succeeded", 1);
    let twin = Granted { attempt_id: "other".into(), ..job(1) };
    story = story.op(10, claim("v", None), Answer::Granted { jobs: vec![twin] });
    assert!(breaks(&story).contains(&Rule::DoubleGrant));
    let story = Story::new().grant_to(10, 1, "w", Some("c")).grant_to(20, 1, "v", Some("c")).complete(30, 1);
    assert_eq!(breaks(&story.ended("Succeeded", 1)), [Rule::DoubleGrant], "an id of a claim belongs to its worker");
}

#[test]
fn a_task_granted_again_while_the_lease_lives() {
    let story = Story::new().grant(10, 1).grant(500, 2).complete(600, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story), [Rule::NoOrder]);
    let story = Story::new().grant(10, 1).beat(900, 1).grant(1_500, 2).complete(1_600, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story), [Rule::NoOrder], "a heartbeat made it longer");
}

#[test]
fn a_task_that_ran_after_it_had_succeeded() {
    let story = Story::new().grant(10, 1).complete(20, 1).grant(2_000, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story), [Rule::NoOrder]);
}

#[test]
fn a_completion_that_was_accepted_and_forgotten() {
    let story = Story::new().grant(10, 1).complete(20, 1).grant(2_000, 2).op(2_100, complete(2, "2"), unknown());
    assert_eq!(breaks(&story.ended("Failed", 2)), [Rule::NoOrder]);
}

#[test]
fn a_result_that_nobody_reported() {
    let mut story = Story::new().grant(10, 1).complete(20, 1).ended("Succeeded", 1);
    story.ended.tasks.get_mut(TASK).unwrap().result = Some("7".into());
    assert_eq!(breaks(&story), [Rule::NoOrder]);
}

#[test]
fn a_live_holder_that_is_refused() {
    let story = Story::new().grant(10, 1).op(20, complete(1, "0"), refused("stale_attempt")).grant(1_100, 2);
    assert_eq!(breaks(&story.complete(1_200, 2).ended("Succeeded", 2)), [Rule::NoOrder]);
    let story = Story::new().grant(10, 1).op(500, heartbeat(1), refused("lease_expired")).complete(600, 1);
    assert_eq!(breaks(&story.ended("Succeeded", 1)), [Rule::NoOrder]);
}

#[test]
fn a_cancel_that_was_acknowledged_and_forgotten() {
    let story = Story::new().op(5, cancel(false), canceled("Canceled")).grant(10, 1).complete(20, 1);
    assert_eq!(breaks(&story.ended("Succeeded", 1)), [Rule::NoOrder]);
    let story = Story::new().grant(10, 1).op(15, cancel(false), canceled("Running")).beat(20, 1).complete(30, 1);
    assert_eq!(breaks(&story.ended("Succeeded", 1)), [Rule::NoOrder], "the heartbeat did not tell");
}

#[test]
fn more_attempts_than_the_budget() {
    let story = Story::new().grant(10, 1).fail(20, 1, true).grant(30, 2).fail(40, 2, true).grant(50, 3);
    let story = story.fail(60, 3, true).grant(70, 4).complete(80, 4).ended("Succeeded", 4);
    assert_eq!(breaks(&story), [Rule::NoOrder]);
}

#[test]
fn a_delayed_task_that_ran_early() {
    let mut story = Story::new().grant(10, 1).complete(20, 1).ended("Succeeded", 1);
    let Call::Submit { tasks } = &mut story.ops[0].call else { panic!("the first is the submit") };
    tasks[0].delay_ms = 500;
    assert_eq!(breaks(&story), [Rule::NoOrder]);
}

#[test]
fn an_attempt_that_nobody_asked_for() {
    let mut story = Story::new().grant(10, 1);
    story.note_attempt(2, "v");
    assert_eq!(breaks(&story.grant(5_000, 3).complete(5_100, 3).ended("Succeeded", 3)), [Rule::AttemptHistory]);
}

#[test]
fn an_attempt_that_is_missing_in_the_history() {
    let mut story = Story::new().grant(10, 1).grant(2_000, 2).complete(2_100, 2).ended("Succeeded", 2);
    story.ended.tasks.get_mut(TASK).unwrap().attempts.remove(0);
    assert_eq!(breaks(&story), [Rule::AttemptHistory]);
}

#[test]
fn a_task_that_has_not_ended() {
    assert_eq!(breaks(&Story::new()), [Rule::NotEnded]);
    assert_eq!(breaks(&Story::new().grant(10, 1).ended("Running", 1)), [Rule::NotEnded]);
}

#[test]
fn effects_out_of_order() {
    let story = Story::new().grant(10, 1).grant(2_000, 2).complete(2_100, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story.effect(2).effect(1)), [Rule::Ledger]);
}

#[test]
fn an_effect_that_is_not_that_of_the_accepted_completion() {
    let story = Story::new().grant(10, 1).grant(2_000, 2).complete(2_100, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story.effect(1)), [Rule::Ledger], "the last holder did not write");
    let story = Story::new().grant(10, 1).op(20, fail(1, ReportKind::FailFinal), failed(false, true));
    assert_eq!(breaks(&story.effect(2).ended("Failed", 1)), [Rule::Ledger], "nobody ever had this fence");
}

#[test]
fn a_heartbeat_long_after_the_end_of_the_lease() {
    let story = Story::new().grant(10, 1).beat(61_000, 1).complete(61_100, 1).ended("Succeeded", 1);
    assert_eq!(breaks(&story), [Rule::ExpiredRenewed]);
    let story = Story::new().grant(10, 1).beat(500, 1).beat(2_600, 1).complete(2_700, 1).ended("Succeeded", 1);
    assert_eq!(breaks(&story), [Rule::ExpiredRenewed], "a second after the end of what an earlier one extended");
    let outage = Story::new().grant(10, 1).outage(500, 7_000).beat(19_000, 1).complete(19_100, 1);
    assert_eq!(breaks(&outage.ended("Succeeded", 1)), [Rule::ExpiredRenewed], "long after an outage");
}

#[test]
fn a_lease_lost_right_after_an_outage() {
    let lost = |at| Story::new().grant(10, 1).outage(500, 7_000).grant(at, 2).complete(at + 100, 2);
    assert_eq!(breaks(&lost(7_100).ended("Succeeded", 2)), [Rule::NoOrder]);
    assert_eq!(breaks(&lost(7_900).ended("Succeeded", 2)), [Rule::NoOrder]);
    assert_eq!(breaks(&lost(8_100).ended("Succeeded", 2)), [], "its holder had the time of a lease");
    let refused = Story::new().grant(10, 1).outage(500, 7_000).op(7_200, heartbeat(1), refused("lease_expired"));
    assert_eq!(breaks(&refused.complete(7_300, 1).ended("Succeeded", 1)), [Rule::NoOrder]);
}

#[test]
fn a_grant_that_comes_late() {
    let story = Story::new().grant(80_000, 1).complete(80_100, 1).ended("Succeeded", 1);
    assert_eq!(breaks(&story), [Rule::LateGrant], "the first one");
    let story = Story::new().grant(10, 1).grant(81_000, 2).complete(81_100, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story), [Rule::LateGrant], "after a lease that ran out");
    let story = Story::new().grant(10, 1).fail(20, 1, true).grant(61_000, 2).complete(61_100, 2).ended("Succeeded", 2);
    assert_eq!(breaks(&story), [Rule::LateGrant], "after a failure");
    let story = Story::new().grant(10, 1).outage(500, 60_000).grant(81_000, 2).complete(81_100, 2);
    assert_eq!(breaks(&story.ended("Succeeded", 2)), [], "there was nobody to grant it");
}

#[test]
fn a_back_off_that_is_ignored() {
    let after = |at| Story::new().backoff_ms(200).grant(10, 1).fail(20, 1, true).grant(at, 2).complete(at + 10, 2);
    assert_eq!(breaks(&after(100).ended("Succeeded", 2)), [Rule::NoOrder]);
    assert_eq!(breaks(&after(230).ended("Succeeded", 2)), []);
    let second = |at| after(230).fail(250, 2, true).grant(at, 3).complete(at + 10, 3);
    let mut story = second(500).ended("Succeeded", 3);
    story.ops.retain(|op| op.call != complete(2, "1"));
    assert_eq!(breaks(&story), [Rule::NoOrder], "the second one is twice as long");
    let lost = |at| Story::new().backoff_ms(200).grant(10, 1).grant(at, 2).complete(at + 10, 2);
    assert_eq!(breaks(&lost(1_050).ended("Succeeded", 2)), [Rule::NoOrder], "after a lease that ran out");
    assert_eq!(breaks(&lost(1_250).ended("Succeeded", 2)), []);
}

#[test]
fn a_server_that_fails() {
    let failed = |status: u16, times: u64| {
        let read = |story: Story, n| {
            let answer = Answer::Unknown { why: format!("{status}"), status: Some(status) };
            story.op(30_000 + n, Call::Read { task: TASK.into() }, answer)
        };
        (0..times).fold(Story::new().grant(10, 1).complete(20, 1), read).ended("Succeeded", 1)
    };
    for (status, times) in [(500, 1), (500, 50), (501, 1), (429, 1), (503, 6), (504, 50)] {
        assert_eq!(breaks(&failed(status, times)), [Rule::ServerError], "{times} times {status}");
    }
    assert_eq!(breaks(&failed(503, 5)), [], "a few are allowed");
    assert_eq!(breaks(&failed(503, 50).outage(25_000, 32_000)), [], "it was down");
    assert_eq!(breaks(&failed(500, 1).outage(25_000, 32_000)), [Rule::ServerError], "this has no excuse");
}

#[test]
fn a_refusal_with_a_wrong_reason() {
    let done = || Story::new().grant(10, 1).complete(20, 1).ended("Succeeded", 1);
    for (call, error) in [(cancel(false), "task_not_retryable"), (retry(), "task_already_terminal")] {
        assert_eq!(breaks(&done().op(30, call.clone(), refused(error))), [Rule::NoOrder, Rule::WrongReason], "{error}");
        assert_eq!(breaks(&done().op(30, call, refused("not_found"))), [Rule::NoOrder, Rule::WrongReason]);
    }
    let read = Call::Read { task: TASK.into() };
    for (call, error) in [
        (read, "not_found"),
        (claim("w", None), "stale_incarnation"),
        (submit("n", Some("k")), "idempotency_conflict"),
        (submit("n", None), "queue_paused"),
    ] {
        assert_eq!(breaks(&done().op(30, call, refused(error))), [Rule::WrongReason], "{error}");
    }
    let other = Answer::Refused { status: 404, error: "task_already_terminal".into() };
    assert_eq!(breaks(&done().op(30, cancel(false), other)), [Rule::WrongReason], "a wrong status");
    let stale = refused("stale_attempt");
    assert_eq!(breaks(&done().op(30, heartbeat(1), stale)), [Rule::NoOrder], "no other attempt was granted");
}

#[test]
fn a_forged_token_that_is_accepted() {
    let forged = || Call::Forged { task: TASK.into(), attempt_id: attempt_id(1) };
    let story = |answer| Story::new().grant(10, 1).op(15, forged(), answer).complete(20, 1).ended("Succeeded", 1);
    assert_eq!(breaks(&story(completed())), [Rule::ForgedAccepted]);
    assert_eq!(breaks(&story(refused("stale_attempt"))), [Rule::WrongReason], "nobody has it");
    assert_eq!(breaks(&story(refused("stale_lease"))), []);
}

#[test]
fn a_claim_that_gets_other_jobs_when_it_is_sent_again() {
    let again = |at, jobs| {
        let story = Story::new().grant_to(10, 1, "w", Some("c"));
        story.op(at, claim("w", Some("c")), Answer::Granted { jobs }).complete(1_500, 1).ended("Succeeded", 1)
    };
    assert_eq!(breaks(&again(500, Vec::new())), [Rule::RepeatChanged]);
    assert_eq!(breaks(&again(500, vec![job(1)])), []);
    assert_eq!(breaks(&again(1_200, Vec::new())), [], "its lease has ended");
}

#[test]
fn a_key_with_other_content_that_is_accepted() {
    let told = Answer::Submitted { tasks: vec![Accepted { task: TASK.into(), created: false }] };
    let story = Story::new().op(5, submit("m", Some("k")), told).grant(10, 1).complete(20, 1);
    assert_eq!(breaks(&story.ended("Succeeded", 1)), [Rule::KeySplit]);
}

/// The task is the last one of a run, after another that ended like this.
fn after(first: &str, completed_at: Option<u64>) -> Story {
    let mut story = Story::new().grant(100, 1).complete(200, 1).ended("Succeeded", 1);
    let tasks = ["f", "n"].map(|nonce| Submission { nonce: nonce.into(), ..Submission::default() });
    story.ops[0].call = Call::Run { tasks: tasks.into() };
    let other = FinalTask { nonce: "f".into(), state: first.into(), ..FinalTask::default() };
    story.ended.tasks.insert("first".into(), other);
    let report = Report { kind: ReportKind::Complete, content: "1".into() };
    let report = Call::Report { task: "first".into(), attempt_id: "a".into(), report };
    match completed_at {
        Some(at) => story.op(at, report, completed()),
        None => story,
    }
}

#[test]
fn a_task_of_a_run_that_does_not_wait() {
    assert_eq!(breaks(&after("Succeeded", Some(50))), []);
    assert_eq!(breaks(&after("Succeeded", Some(150))), [Rule::RunOrder]);
    assert_eq!(breaks(&after("Failed", None)), [Rule::RunOrder]);
    let mut half = after("Succeeded", Some(50));
    half.ended.tasks.remove("first");
    assert!(breaks(&half).contains(&Rule::HalfBatch));
}

#[test]
fn a_door_that_should_be_closed() {
    let done = || Story::new().grant(10, 1).complete(20, 1).ended("Succeeded", 1);
    let trespass = || Call::Trespass { task: TASK.into() };
    assert_eq!(breaks(&done().op(30, trespass(), completed())), [Rule::TenantSeen]);
    assert_eq!(breaks(&done().op(30, Call::Knock, completed())), [Rule::RevokedAccepted]);
    let refused = |status, error: &str| Answer::Refused { status, error: error.into() };
    let closed = done().op(30, trespass(), refused(404, "task_not_found"));
    assert_eq!(breaks(&closed.op(31, Call::Knock, refused(401, "invalid_api_key"))), []);
    assert_eq!(breaks(&done().op(30, trespass(), refused(403, "forbidden"))), [Rule::WrongReason]);
}
