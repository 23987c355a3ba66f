//! Queues that do not exist, and queues that a batch deletes.

use super::*;
use crate::batch::tests::session::drive;

fn delete(force: bool) -> Command {
    Command::DeleteQueue(queues::DeleteQueue { queue: "q".into(), force, reach: Reach::All })
}

fn world_with(commands: &[Command], tasks: Counts) -> World {
    let mut world = world_for(0, commands);
    world.add_counts(queue().id, tasks);
    world
}

#[test]
fn a_queue_that_does_not_exist_is_neither_paused_nor_changed_nor_deleted() {
    let name: Arc<str> = "typo".into();
    let pause = |paused| queues::PauseQueue { queue: Arc::clone(&name), paused, reach: Reach::All };
    let change = queues::QueueChange { max_running: Some(Some(1)), ..queues::QueueChange::default() };
    let commands = [
        Command::PauseQueue(pause(true)),
        Command::PauseQueue(pause(false)),
        Command::PatchQueue(queues::PatchQueue { queue: Arc::clone(&name), change, reach: Reach::All }),
        Command::DeleteQueue(queues::DeleteQueue { queue: Arc::clone(&name), force: true, reach: Reach::All }),
    ];
    let mut made = Vec::new();
    let mut session =
        drive(&commands, false, |load, _| made.extend(load.queues.make.keys().map(|name| name.to_string())));
    assert_eq!(made, Vec::<String>::new(), "no store is asked to create it");
    let write = session.write();
    assert!(write.writes.is_empty());
    let outcomes = session.done(&write, Saved::default()).outcomes;
    assert!(outcomes.iter().all(|outcome| *outcome == Err(Rejection::QueueNotFound)), "{outcomes:?}");
}

#[test]
fn an_empty_queue_is_deleted_once() {
    let commands = [delete(false), delete(false)];
    let mut world = world_with(&commands, Counts { finished: 7, ..Counts::default() });
    assert_eq!(world.decide(&commands, false), [Ok(Answer::Done(true)), Err(Rejection::QueueNotFound)]);
    let writes = world.writes();
    assert_eq!((writes.queues.deleted.len(), writes.queues.changed.len()), (1, 0));
}

#[test]
fn a_deletion_that_may_have_been_committed_before_is_answered_as_one() {
    let commands =
        [Command::DeleteQueue(queues::DeleteQueue { queue: "gone".into(), force: false, reach: Reach::All })];
    assert_eq!(world_for(0, &commands).decide(&commands, true), [Ok(Answer::Done(true))]);
    assert_eq!(world_for(0, &commands).decide(&commands, false), [Err(Rejection::QueueNotFound)]);
}

#[test]
fn a_deletion_is_judged_by_what_the_rest_of_its_batch_leaves() {
    // Whatever their order, the task is submitted and keeps its queue.
    for commands in [[delete(true), submit(vec![new_task(2, None)])], [submit(vec![new_task(2, None)]), delete(true)]] {
        let mut world = world_with(&commands, Counts::default());
        let outcomes = world.decide(&commands, false);
        let refused = Err(Rejection::QueueNotEmpty(Counts { ready: 1, ..Counts::default() }));
        assert!(outcomes.contains(&refused), "{outcomes:?}");
        let writes = world.writes();
        assert_eq!((writes.queues.deleted.len(), writes.tasks.ready.len()), (0, 1));
    }

    // The last task of a queue ends, and the queue is deleted.
    let commands = [delete(false), complete(1)];
    let mut world = world_with(&commands, Counts { running: 1, ..Counts::default() });
    load(&mut world, Place::Running(running()), &[], &commands);
    assert_eq!(world.decide(&commands, false), [Ok(Answer::Done(true)), Ok(Answer::Reported(Receipt::Completed))]);
    let writes = world.writes();
    assert_eq!((writes.queues.deleted.len(), writes.tasks.finish.len()), (1, 1));
    assert_eq!(writes.queues.counts[&queue().id], Counts { running: -1, finished: 1, ..Counts::default() });
}

#[test]
fn a_queue_to_delete_is_locked_and_counted() {
    let commands = [delete(false)];
    let mut counted = false;
    drive(&commands, false, |load, world| {
        if load.queues.counted.contains(&queue().id) {
            counted = true;
            world.add_counts(queue().id, Counts::default());
        }
    });
    assert!(counted);
}

/// The queue was deleted, so nothing counts its tasks.
#[test]
fn a_late_report_of_a_task_whose_queue_was_deleted_changes_no_counts() {
    let commands = [complete(1)];
    let dead = swept(one_attempt()).place;
    let decided = |exists| {
        let mut world = World::new(at(61_000), Grace::NONE, Numbers::new(1_000, 1_002));
        if exists {
            world.add_queue(queue(), 0);
        }
        load(&mut world, dead.clone(), &[], &commands);
        assert_eq!(world.decide(&commands, false), [Ok(Answer::Reported(Receipt::Completed))]);
        world.writes().queues.counts.len()
    };
    assert_eq!((decided(true), decided(false)), (1, 0));
}
