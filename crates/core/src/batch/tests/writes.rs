use super::*;
use crate::command::testing::blocked;

#[test]
fn a_heartbeat_is_an_update_in_place() {
    let (_, writes) = run(Place::Running(running()), 1_000, &[heartbeat(1)]);
    assert_eq!((writes.tasks.renew.len(), writes.tasks.unrun.len(), writes.tasks.run.len()), (1, 0, 0));
    assert_eq!(counts(&writes), Counts::default());
}

#[test]
fn a_regrant_in_the_same_batch_replaces_the_row_and_writes_the_attempt() {
    let (_, writes) = run(Place::Running(running_with(no_backoff())), 60_000, &[claim_task(2)]);
    assert_eq!((&writes.tasks.unrun[..], writes.tasks.run.len(), writes.tasks.renew.len()), (&[id().seq()][..], 1, 0));
    assert_eq!(writes.tasks.run[0].1.attempt, 2);
    assert!(matches!(&writes.tasks.attempts[..], [(_, first)] if first.number == 1));
    assert_eq!(counts(&writes), Counts::default());
}

#[test]
fn a_late_completion_in_the_batch_of_the_expiry_leaves_the_attempt_in_the_finished_row_only() {
    for commands in [&[expire(), complete(1)][..], &[complete(1)], &[complete(1), expire()]] {
        let (outcomes, writes) = run(Place::Running(running()), 60_000, commands);
        assert!(outcomes.contains(&Ok(Answer::Reported(Receipt::Completed))));
        let last = finish_row(&writes).carry.last.as_deref().unwrap();
        assert_eq!((last.number, last.state), (1, AttemptState::Succeeded));
        assert_eq!((writes.tasks.attempts.len(), &writes.tasks.unrun[..]), (0, &[id().seq()][..]));
        assert_eq!(writes.tasks.drop_attempts, [(id().seq(), 1)]);
        assert_eq!(counts(&writes), Counts { running: -1, finished: 1, ..Counts::default() });
    }
}

#[test]
fn a_dead_letter_that_is_retried_and_canceled_in_one_batch_changes_its_row_only() {
    let (_, writes) = run(swept(one_attempt()).place, 70_000, &[retry(), cancel()]);
    assert_eq!((&writes.tasks.unfinish[..], finish_row(&writes).attempt), (&[id().seq()][..], 1));
    assert_eq!((writes.tasks.attempts.len(), &writes.tasks.drop_attempts[..]), (0, &[(id().seq(), 1)][..]));
    assert_eq!(counts(&writes), Counts { dead_lettered: -1, ..Counts::default() });
}

#[test]
fn counts_are_the_difference_of_the_places() {
    let dead = swept(one_attempt()).place;
    for (what, place, now, command, expected) in [
        ("grant", Place::Ready(ready()), 0, claim(1), Counts { ready: -1, running: 1, ..Counts::default() }),
        (
            "success",
            Place::Running(running()),
            1,
            complete(1),
            Counts { running: -1, finished: 1, ..Counts::default() },
        ),
        ("back-off", Place::Running(running()), 1, fail(1), Counts { running: -1, scheduled: 1, ..Counts::default() }),
        (
            "death",
            Place::Running(running_with(one_attempt())),
            1,
            fail(1),
            Counts { running: -1, finished: 1, dead_lettered: 1, ..Counts::default() },
        ),
        (
            "promotion",
            Place::Scheduled(scheduled_retry()),
            70_000,
            Command::Promote(promote::Promote { row: id().seq() }),
            Counts { scheduled: -1, ready: 1, ..Counts::default() },
        ),
        (
            "late success of a dead letter",
            dead.clone(),
            61_000,
            complete(1),
            Counts { dead_lettered: -1, ..Counts::default() },
        ),
        ("retry", dead, 61_000, retry(), Counts { finished: -1, dead_lettered: -1, ready: 1, ..Counts::default() }),
        (
            "cancel of a waiting task",
            Place::Ready(ready()),
            1,
            cancel(),
            Counts { ready: -1, finished: 1, ..Counts::default() },
        ),
        ("cancel of a held task", Place::Running(running()), 1, cancel(), Counts::default()),
        (
            "submit",
            Place::Running(running()),
            1,
            submit(vec![new_task(7, None)]),
            Counts { ready: 1, ..Counts::default() },
        ),
    ] {
        let (_, writes) = run(place, now, &[command]);
        assert_eq!(counts(&writes), expected, "{what}");
    }
}

#[test]
fn what_changes_nothing_writes_nothing() {
    for (place, command) in [
        (Place::Running(running()), complete(9)),
        (Place::Running(running()), expire()),
        (Place::Ready(ready()), heartbeat(9)),
        (Place::Scheduled(Waiting { at: at(9_000), ..ready() }), claim(1)),
    ] {
        assert!(run(place, 1_000, &[command]).1.is_empty());
    }
}

#[test]
fn a_new_task_that_is_granted_and_completed_in_one_batch_is_a_body_and_a_finished_row() {
    let new = new_task(7, None);
    let seed = Seed([1; 32]);
    let (attempt_id, token) = seed.draw(0);
    let commands = [
        submit(vec![new.clone()]),
        Command::ClaimTask(ClaimTask { claimer: claimer(1), task: new.id, message: None }),
        Command::Report(AttemptReport { task: new.id, attempt_id, token, report: succeeded("1"), data: None }),
    ];
    let mut world = world_for(0, &commands);
    world.decide(&commands, false);
    let writes = world.writes();
    assert_eq!((writes.tasks.bodies.len(), finish_row(&writes).attempt), (1, 1));
    assert_eq!((writes.tasks.unready.len(), writes.tasks.unrun.len(), writes.tasks.unfinish.len()), (0, 0, 0));
    assert_eq!(counts(&writes), Counts { finished: 1, ..Counts::default() });
    let kinds: Vec<_> = writes.facts.iter().map(|fact| fact.kind).collect();
    assert_eq!(kinds, [FactKind::Submitted, FactKind::Started, FactKind::Succeeded]);
}

/// A store may take the row of a held task out when it loads it. A report that is refused must leave the lease behind.
#[test]
fn a_row_that_was_taken_is_put_back_unless_the_task_moved_on() {
    let decide = |command: Command| {
        let commands = [command];
        let mut world = world_for(1_000, &commands);
        world.add_taken(Task { id: id(), place: Place::Running(running()), body: None });
        world.decide(&commands, false);
        world.writes()
    };
    let refused = decide(complete(9));
    assert_eq!(refused.tasks.run, [(id(), running())]);
    assert!(refused.tasks.unrun.is_empty() && refused.queues.counts.is_empty() && !refused.is_empty());
    let renewed = decide(heartbeat(1));
    assert_eq!((renewed.tasks.run.len(), renewed.tasks.renew.len(), renewed.tasks.unrun.len()), (1, 0, 0));
    let accepted = decide(complete(1));
    assert_eq!((accepted.tasks.run.len(), accepted.tasks.unrun.len(), accepted.tasks.finish.len()), (0, 0, 1));
    assert_eq!(counts(&accepted), Counts { running: -1, finished: 1, ..Counts::default() });
}

#[test]
fn a_change_in_any_part_is_something_to_write() {
    assert!(Writes::default().is_empty());
    for writes in [
        Writes { settled: vec![1], ..Writes::default() },
        Writes { runs: RunWrites { resolved: vec![Seq(1)], ..RunWrites::default() }, ..Writes::default() },
        Writes { tasks: TaskWrites { block: vec![(id(), blocked())], ..TaskWrites::default() }, ..Writes::default() },
    ] {
        assert!(!writes.is_empty(), "{writes:?}");
    }
}
