use super::*;

#[test]
fn the_same_key_and_content_is_the_same_task_inside_a_batch_too() {
    let commands = [
        submit(vec![new_task(1, Some(("k", 1))), new_task(2, Some(("k", 1))), new_task(3, None)]),
        submit(vec![new_task(4, Some(("k", 1)))]),
    ];
    let mut world = world_for(0, &commands);
    let outcomes = world.decide(&commands, false);
    let ready = State::Ready;
    assert_eq!(submitted(&outcomes[0]), [(Seq(1), ready, true), (Seq(1), ready, false), (Seq(3), ready, true)]);
    assert_eq!(submitted(&outcomes[1]), [(Seq(1), ready, false)]);
    assert_eq!(world.writes().tasks.bodies.len(), 2);
}

#[test]
fn a_key_with_other_content_refuses_the_whole_submission() {
    let commands = [
        submit(vec![new_task(1, Some(("k", 1)))]),
        submit(vec![new_task(2, None), new_task(3, Some(("k", 2))), new_task(4, Some(("l", 1)))]),
        submit(vec![new_task(5, Some(("l", 2)))]),
    ];
    let mut world = world_for(0, &commands);
    let outcomes = world.decide(&commands, false);
    let existing = TaskId::new(0, 0, Seq(1));
    assert_eq!(outcomes[1], Err(Rejection::IdempotencyConflict { index: 1, existing: Some(existing) }));
    assert_eq!(submitted(&outcomes[2]), [(Seq(5), State::Ready, true)], "a refused key is not taken");
    let made: Vec<_> = world.writes().tasks.bodies.iter().map(|body| body.seq()).collect();
    assert_eq!(made, [Seq(1), Seq(5)]);
}

#[test]
fn a_key_is_unique_per_tenant_and_workspace() {
    let other = submit::NewTask { tenant: "other".into(), ..new_task(2, Some(("k", 2))) };
    let beside = submit::NewTask { workspace: "beside".into(), ..new_task(3, Some(("k", 3))) };
    let commands = [submit(vec![new_task(1, Some(("k", 1))), other, beside])];
    let outcomes = world_for(0, &commands).decide(&commands, false);
    assert!(submitted(&outcomes[0]).iter().all(|(_, _, created)| *created));
}

#[test]
fn a_key_of_the_store_leads_to_its_task() {
    let commands = [submit(vec![new_task(2, Some(("k", 1)))]), submit(vec![new_task(3, Some(("k", 2)))])];
    let mut world = world_for(0, &commands);
    let owner = KeyOwner { id: id(), owner: None, fingerprint: [1; 32], state: State::Succeeded };
    world.keys.insert(("acme".into(), "default".into(), "k".into()), owner);
    let outcomes = world.decide(&commands, false);
    assert_eq!(submitted(&outcomes[0]), [(id().seq(), State::Succeeded, false)]);
    assert_eq!(outcomes[1], Err(Rejection::IdempotencyConflict { index: 0, existing: Some(id()) }));
    assert!(world.writes().is_empty());
}

/// Whether the key was there before or came with the same batch: only who may see the task is told of it.
#[test]
fn a_key_of_another_owner_is_taken_and_says_no_more() {
    let of =
        |seq, owner: Option<&str>| submit::NewTask { owner: owner.map(Into::into), ..new_task(seq, Some(("k", 1))) };
    for (first, second, seen) in [
        (Some("ann"), Some("ann"), true),
        (Some("ann"), Some("bob"), false),
        (None, Some("bob"), false),
        // Who reaches the whole tenant submits for nobody in particular.
        (Some("ann"), None, true),
        (None, None, true),
    ] {
        let expected = if seen {
            Ok(vec![(Seq(1), State::Ready, false)])
        } else {
            Err(Rejection::IdempotencyConflict { index: 0, existing: None })
        };
        let commands = [submit(vec![of(1, first)]), submit(vec![of(2, second)])];
        let in_batch = world_for(0, &commands).decide(&commands, false).pop().unwrap();
        let mut world = world_for(0, &commands[1..]);
        let known = KeyOwner {
            id: TaskId::new(0, 0, Seq(1)),
            owner: first.map(Into::into),
            fingerprint: [1; 32],
            state: State::Ready,
        };
        world.keys.insert(("acme".into(), "default".into(), "k".into()), known);
        let stored = world.decide(&commands[1..], false).pop().unwrap();
        for outcome in [in_batch, stored] {
            let outcome = outcome.map(|answer| submitted(&Ok(answer)));
            assert_eq!(outcome, expected, "{first:?} {second:?}");
        }
    }
}

/// Not even what has other content names the task of another owner.
#[test]
fn a_key_of_another_owner_does_not_tell_whether_the_content_is_the_same() {
    let ann = submit::NewTask { owner: Some("ann".into()), ..new_task(1, Some(("k", 1))) };
    let bob = submit::NewTask { owner: Some("bob".into()), ..new_task(2, Some(("k", 2))) };
    let commands = [submit(vec![ann]), submit(vec![bob])];
    let outcomes = world_for(0, &commands).decide(&commands, false);
    assert_eq!(outcomes[1], Err(Rejection::IdempotencyConflict { index: 0, existing: None }));
}

#[test]
fn the_state_behind_a_key_is_the_one_that_earlier_commands_made() {
    let first = new_task(1, Some(("k", 1)));
    let grant = Command::ClaimTask(ClaimTask { claimer: claimer(1), task: first.id, message: None });
    let commands = [submit(vec![first]), grant, submit(vec![new_task(2, Some(("k", 1)))])];
    let outcomes = world_for(0, &commands).decide(&commands, false);
    assert_eq!(submitted(&outcomes[2]), [(Seq(1), State::Running, false)]);
}

#[test]
fn a_submission_decided_again_finds_what_its_first_try_made() {
    let commands = [submit(vec![new_task(1, Some(("k", 1))), new_task(2, None)])];
    let mut first = world_for(0, &commands);
    let outcomes = first.decide(&commands, false);
    let writes = first.writes();

    let mut again = world_for(5_000, &commands);
    for (id, waiting) in writes.tasks.ready {
        again.add_task(Task { id, place: Place::Ready(waiting), body: None });
    }
    let owner = KeyOwner { id: TaskId::new(0, 0, Seq(1)), owner: None, fingerprint: [1; 32], state: State::Ready };
    again.keys.insert(("acme".into(), "default".into(), "k".into()), owner);
    assert_eq!(again.decide(&commands, false), outcomes);
    assert!(again.writes().is_empty());
}

fn granted(outcome: &Outcome) -> Vec<Seq> {
    match outcome {
        Ok(Answer::Claimed(claimed)) => claimed.grants.iter().map(Grant::seq).collect(),
        other => panic!("no claim: {other:?}"),
    }
}

/// Of the whole submission nothing is left, whoever submits it; what others ask in the same batch goes on.
#[test]
fn a_queue_of_another_tenant_is_not_there_to_submit_to() {
    let other = submit::NewTask { tenant: "other".into(), ..new_task(2, None) };
    let commands = [submit(vec![new_task(1, Some(("k", 1))), other]), submit(vec![new_task(3, Some(("k", 2)))])];
    for (tenant, refused) in [(Some("acme"), true), (None, false)] {
        let mut world = world_for(0, &commands);
        world.add_queue(Queue { tenant: tenant.map(Into::into), ..queue() }, 0);
        let outcomes = world.decide(&commands, false);
        let made: Vec<_> = world.writes().tasks.bodies.iter().map(|body| body.seq()).collect();
        if refused {
            assert_eq!(outcomes[0], Err(Rejection::QueueNotFound));
            assert_eq!((submitted(&outcomes[1]).len(), made), (1, vec![Seq(3)]), "the key was not taken either");
        } else {
            assert_eq!(submitted(&outcomes[0]).len(), 2);
        }
    }
}

#[test]
fn a_setting_that_is_refused_leaves_the_queue_as_it_is() {
    let foreign = || Reach::Tenant("other".into());
    for (tenant, expected) in [(Some("acme"), Rejection::QueueNotFound), (None, Rejection::QueueShared)] {
        let settings = QueueSettings { fairness_key: Some(FairnessKey::Tenant), ..QueueSettings::default() };
        let commands = [
            Command::SetQueue(queues::SetQueue {
                queue: "q".into(),
                settings,
                transport: None,
                keep_push: false,
                reach: foreign(),
            }),
            Command::PauseQueue(queues::PauseQueue { queue: "q".into(), paused: true, reach: foreign() }),
        ];
        let mut world = world_for(0, &commands);
        // As it was loaded: what is written is what differs from that.
        world.add_queue(Queue { tenant: tenant.map(Into::into), ..queue() }, 0);
        let outcomes = world.decide(&commands, false);
        assert_eq!(outcomes, [Err(expected.clone()), Err(expected)]);
        assert!(world.writes().is_empty());
    }
}

/// The claim that waits for a task need not wait for the commit of its submit.
#[test]
fn a_new_task_of_an_empty_queue_is_granted_by_its_own_batch_in_order() {
    let urgent = submit::NewTask { priority: 0, ..new_task(3, None) };
    let commands = [submit(vec![new_task(2, None), urgent]), claim(1), claim(2), claim(3)];
    let mut world = world_for(0, &commands);
    world.empty.insert(QueueId(1));
    let outcomes = world.decide(&commands, false);
    let found: Vec<_> = outcomes[1..].iter().map(granted).collect();
    assert_eq!(found, [vec![Seq(3)], vec![Seq(2)], vec![]]);
    assert_eq!(world.wakes().count(), 0, "nobody else need come for them");
    let writes = world.writes();
    assert_eq!((writes.tasks.ready.len(), writes.tasks.run.len()), (0, 2));
}

/// Rows that were not loaded may come before it.
#[test]
fn a_new_task_of_a_queue_that_may_hold_others_waits_for_its_commit() {
    let commands = [submit(vec![new_task(2, None)]), claim(1)];
    let mut world = world_for(0, &commands);
    let outcomes = world.decide(&commands, false);
    assert_eq!(granted(&outcomes[1]), []);
    assert_eq!(world.wakes().count(), 1);
}
