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
