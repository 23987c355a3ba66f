use super::*;

fn incarnated(incarnation: &str) -> Place {
    Place::Running(Running { incarnation: Some(incarnation.into()), ..running() })
}

fn say(place: Place, known: Option<&str>, command: Command) -> (Outcome, Writes) {
    let commands = [command];
    let mut world = world_for(1_000, &commands);
    load(&mut world, place, &[], &commands);
    world.held.insert("w".into(), vec![id().seq()]);
    if let Some(known) = known {
        world.incarnations.insert("w".into(), known.into());
    }
    let outcome = world.decide(&commands, false).remove(0);
    (outcome, world.writes())
}

#[test]
fn a_new_process_voids_what_the_one_before_it_held() {
    let (outcome, writes) = say(incarnated("A"), Some("A"), hello("w", "B"));
    assert_eq!((outcome, writes.hellos.len()), (Ok(Answer::Done(true)), 1));
    let [(_, closed)] = &writes.tasks.attempts[..] else { panic!("{writes:?}") };
    assert_eq!((closed.state, closed.reason, closed.ended_at), (AttemptState::Failed, Reason::WorkerLost, at(1_000)));
    assert_eq!((writes.tasks.unrun.len(), writes.tasks.schedule.len()), (1, 1));
}

#[test]
fn what_is_not_an_older_process_of_the_name_is_left_alone() {
    for place in [incarnated("B"), Place::Running(running())] {
        let (outcome, writes) = say(place, Some("A"), hello("w", "B"));
        assert_eq!((outcome, writes.tasks.unrun.len()), (Ok(Answer::Done(true)), 0));
    }
    let (outcome, writes) = say(incarnated("A"), Some("B"), hello("w", "B"));
    assert_eq!((outcome, writes.is_empty()), (Ok(Answer::Done(false)), true));
}

#[test]
fn an_older_process_is_refused_and_voids_nothing() {
    let (outcome, writes) = say(incarnated("B"), Some("B"), hello("w", "A"));
    assert_eq!((outcome, writes.is_empty()), (Err(Rejection::StaleIncarnation), true));
}

#[test]
fn a_voided_lease_yields_to_the_report_of_its_holder_until_the_next_grant() {
    let commands = [hello("w", "B"), complete(1)];
    let mut world = world_for(1_000, &commands);
    load(&mut world, incarnated("A"), &[], &commands);
    world.held.insert("w".into(), vec![id().seq()]);
    assert_eq!(world.decide(&commands, false)[1], Ok(Answer::Reported(Receipt::Completed)));
}

#[test]
fn a_redrive_releases_each_dead_letter_once_and_writes_its_progress() {
    let step = Command::Redrive(redrive::Redrive {
        redrive_id: 7,
        rows: vec![id().seq(), Seq(9)],
        cursor: Seq(9),
        finished: true,
        started_at: at(65_000),
    });
    let (outcomes, writes) = run(swept(one_attempt()).place, 70_000, &[step.clone(), step]);
    assert_eq!(outcomes, [Ok(Answer::Redriven { released: 1 }), Ok(Answer::Redriven { released: 0 })]);
    let progress = |released| RedriveProgress { redrive_id: 7, cursor: Seq(9), released, finished: true };
    assert_eq!(writes.redrives, [progress(1), progress(0)]);
    assert_eq!((writes.tasks.ready.len(), writes.tasks.unfinish.len(), writes.tasks.attempts.len()), (1, 1, 1));
}

#[test]
fn a_row_that_is_gone_is_no_error() {
    let commands = [
        expire(),
        Command::Promote(promote::Promote { row: id().seq() }),
        Command::Release(release::Release { row: id().seq(), attempt_id: attempt_id(1), by_holder: false }),
    ];
    let mut world = world_for(0, &commands);
    assert!(world.decide(&commands, false).into_iter().all(|outcome| outcome == Ok(Answer::Done(false))));
}

#[test]
fn within_the_outage_grace_nothing_expires_and_so_nothing_is_granted_twice() {
    let commands = [expire(), claim_task(2), claim(3), heartbeat(1)];
    let mut world = world_for(90_000, &commands);
    world.grace = Grace::new(at(90_000), at(100_000));
    load(&mut world, Place::Running(running_with(no_backoff())), &[], &commands);
    let outcomes = world.decide(&commands, false);
    assert_eq!(outcomes[0], Ok(Answer::Done(false)));
    assert!(matches!(outcomes[1], Ok(Answer::NotGranted(_))));
    assert_eq!(grants(&outcomes[2]), []);
    let Ok(Answer::Renewed(renewed)) = &outcomes[3] else { panic!("{outcomes:?}") };
    assert_eq!(renewed.expires_at, at(150_000));
    let writes = world.writes();
    assert!(
        matches!(&writes.tasks.renew[..], [(_, Running { lease: Lease { generation, .. }, .. })] if *generation == running().lease.generation)
    );
}

#[test]
fn a_changed_fairness_key_asks_for_new_values_of_the_waiting_rows() {
    let set = |fairness_key| {
        let settings = QueueSettings { fairness_key, ..settings() };
        Command::SetQueue(queues::SetQueue {
            queue: "q".into(),
            settings,
            transport: None,
            keep_push: false,
            reach: Reach::All,
        })
    };
    let (_, writes) = run(Place::Ready(ready()), 0, &[set(Some(FairnessKey::Tenant))]);
    assert_eq!((&writes.queues.refair[..], writes.queues.changed.len()), (&[queue().id][..], 1));
    let (_, writes) = run(Place::Ready(ready()), 0, &[set(None)]);
    assert!(writes.is_empty());
}
