use super::*;

fn named(worker: &str, claim_id: &str, seed: u8) -> Command {
    let claimer = Claimer {
        worker: Some(Claimant {
            id: worker.into(),
            incarnation: None,
            claim_id: Some(claim_id.into()),
            kills_on_expiry: false,
            dispatch: false,
        }),
        ..claimer(seed)
    };
    Command::Claim(Claim { claimer, queues: vec!["q".into()], max_jobs: 1 })
}

/// Held by worker `w` through its claim `c1` of seed 1.
fn held_by_claim(spec: Spec) -> Place {
    Place::Running(Running { claim_id: Some("c1".into()), ..running_with(spec) })
}

fn repeat(place: Place, now: i64, commands: &[Command], repeated: usize) -> Vec<Outcome> {
    let mut world = world_for(now, commands);
    load(&mut world, place, &[], commands);
    world.repeats.insert(repeated, vec![id().seq()]);
    world.decide(commands, false)
}

#[test]
fn a_claim_sent_again_gets_what_it_holds() {
    let outcomes = repeat(held_by_claim(Spec::default()), 1_000, &[named("w", "c1", 2)], 0);
    assert_eq!(grants(&outcomes[0])[0].token, token(1));
}

#[test]
fn a_claim_decided_again_finds_what_its_first_try_was_granted() {
    let outcomes = repeat(Place::Running(running()), 1_000, &[claim(1)], 0);
    assert_eq!(grants(&outcomes[0])[0].token, token(1));
}

#[test]
fn a_claim_sent_twice_in_one_batch_gets_the_same_jobs() {
    let commands = [named("w", "c1", 1), named("w", "c1", 2), named("w", "c2", 3)];
    let (outcomes, writes) = run(Place::Ready(ready()), 0, &commands);
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!((grants(&outcomes[0]).len(), grants(&outcomes[2]).len()), (1, 0));
    assert_eq!(writes.tasks.run.len(), 1);
}

#[test]
fn a_claim_sent_again_after_its_lease_expired_gets_nothing_of_it() {
    // A claim reserves no numbers: an expired lease that it meets is left to the reaper.
    let outcomes = repeat(held_by_claim(Spec::default()), 60_000, &[named("w", "c1", 2)], 0);
    assert_eq!(grants(&outcomes[0]), []);
}

#[test]
fn a_claim_sent_again_never_gets_the_lease_of_another_holder() {
    let other = Claimer::worker("v".into(), claimer(2).seed);
    let taken = Command::ClaimTask(ClaimTask { claimer: other, task: id(), message: None });
    let commands = [fail(1), taken, named("w", "c1", 3)];
    let outcomes = repeat(held_by_claim(no_backoff()), 1_000, &commands, 2);
    assert_eq!(grants(&outcomes[1])[0].token, token(2));
    assert_eq!(grants(&outcomes[2]), []);
}

#[test]
fn queues_are_tried_strictly_in_the_listed_order() {
    let commands = |first: &str, second: &str| {
        [Command::Claim(Claim { claimer: claimer(1), queues: vec![first.into(), second.into()], max_jobs: 3 })]
    };
    for (first, second, order) in [("q", "r", [1, 2, 3]), ("r", "q", [3, 1, 2])] {
        let commands = commands(first, second);
        let mut world = world_for(0, &commands);
        world.add_queue(Queue::new(QueueId(2), "r".into()), 0);
        for (seq, queue) in [(1, QueueId(1)), (2, QueueId(1)), (3, QueueId(2))] {
            let place = Place::Ready(Waiting { queue, ..ready() });
            world.add_task(Task { id: TaskId::new(0, 0, Seq(seq)), place, body: None });
            world.candidates.entry(queue).or_default().push_back(Seq(seq));
        }
        let outcomes = world.decide(&commands, false);
        let granted: Vec<_> = grants(&outcomes[0]).iter().map(|grant| grant.seq().0).collect();
        assert_eq!(granted, order);
        let tokens: HashSet<_> = grants(&outcomes[0]).iter().map(|grant| grant.token.reveal()).collect();
        assert_eq!(tokens.len(), 3, "each job has its own lease");
    }
}

#[test]
fn a_task_that_missed_its_deadline_fails_instead_of_being_granted() {
    let spec = Spec { deadline: Some(at(500)), ..Spec::default() };
    let (outcomes, writes) = run(Place::Ready(Waiting { carry: Carry::fresh(spec), ..ready() }), 500, &[claim(1)]);
    assert_eq!(grants(&outcomes[0]), []);
    assert_eq!(finish_row(&writes).reason, Some(FailReason::DeadlineExceeded));
}

#[test]
fn an_unknown_queue_counts_as_empty() {
    let commands = [Command::Claim(Claim { claimer: claimer(1), queues: vec!["x".into(), "q".into()], max_jobs: 1 })];
    assert_eq!(grants(&run(Place::Ready(ready()), 0, &commands).0[0]).len(), 1);
}

/// A world whose queue has this setting, with two ready tasks and `running` open attempts.
fn limited(settings: QueueSettings, running: u32, commands: &[Command]) -> World {
    let mut world = world_for(0, commands);
    world.add_queue(Queue { settings, ..queue() }, running);
    for (seq, fair) in [(1, "a"), (2, "b")] {
        let place = Place::Ready(Waiting { fair: Some(fair.into()), ..ready() });
        world.add_task(Task { id: TaskId::new(0, 0, Seq(seq)), place, body: None });
        world.candidates.entry(queue().id).or_default().push_back(Seq(seq));
    }
    world
}

#[test]
fn slots_bound_the_grants_of_a_batch_and_come_back_with_the_end_of_an_attempt() {
    let slots = QueueSettings { max_running: Some(1), ..settings() };
    let (attempt_id, token) = Seed([1; 32]).draw(0);
    let first = TaskId::new(0, 0, Seq(1));
    let done = Command::Report(AttemptReport { task: first, attempt_id, token, report: succeeded("1"), data: None });
    let commands = [claim(1), claim(2), done, claim(3)];
    let mut world = limited(slots.clone(), 0, &commands);
    let outcomes = world.decide(&commands, false);
    let granted: Vec<_> = [0, 1, 3].map(|index| grants(&outcomes[index]).len()).into();
    assert_eq!(granted, [1, 0, 1]);
    let Ok(Answer::Claimed(full)) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!(full.full, [queue().name]);

    let commands = [claim(1)];
    assert_eq!(grants(&limited(slots, 1, &commands).decide(&commands, false)[0]), []);
}

#[test]
fn a_rate_bounds_the_grants_of_a_batch_and_says_when_to_ask_again() {
    let rate = QueueSettings { rate: Some(Rate { per_second: 2.0, burst: 1.0 }), ..settings() };
    let commands = [claim(1), claim(2)];
    let mut world = limited(rate, 0, &commands);
    let outcomes = world.decide(&commands, false);
    assert_eq!((grants(&outcomes[0]).len(), grants(&outcomes[1]).len()), (1, 0));
    let Ok(Answer::Claimed(empty)) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!(empty.retry_at, Some(at(500)));
    assert!(world.writes().queues.changed[0].bucket.level.is_some());
}

#[test]
fn a_named_claim_sent_again_takes_no_second_token_of_the_rate() {
    let rate = QueueSettings { rate: Some(Rate { per_second: 1.0, burst: 5.0 }), ..settings() };
    let first = TaskId::new(0, 0, Seq(1));
    let same = Command::ClaimTask(ClaimTask { claimer: claimer(1), task: first, message: None });
    let commands = [same.clone(), same];
    let mut world = limited(rate, 0, &commands);
    let outcomes = world.decide(&commands, false);
    assert_eq!(grants(&outcomes[0]), grants(&outcomes[1]));
    assert_eq!(world.writes().queues.changed[0].bucket.level, Some((4.0, at(0))));
}

#[test]
fn the_fair_cursor_follows_the_last_grant() {
    let fair = QueueSettings { fairness_key: Some(FairnessKey::Tenant), ..settings() };
    let commands = [claim(1), claim(2)];
    let mut world = limited(fair, 0, &commands);
    world.decide(&commands, false);
    assert_eq!(world.writes().queues.changed[0].fair_cursor.as_deref(), Some("b"));
}

#[test]
fn a_paused_queue_grants_nothing_from_the_pause_on() {
    let pause = |paused| Command::PauseQueue(queues::PauseQueue { queue: "q".into(), paused, reach: Reach::All });
    let (outcomes, writes) = run(Place::Ready(ready()), 0, &[pause(true), claim(1), pause(false), claim(2)]);
    assert_eq!((grants(&outcomes[1]).len(), grants(&outcomes[3]).len()), (0, 1));
    assert!(writes.queues.changed.is_empty(), "it is as it was");
}
