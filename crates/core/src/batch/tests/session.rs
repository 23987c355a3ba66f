//! What a session asks for, by what it was answered.

use super::*;
use crate::command::callback::Call;
use crate::command::claim::LiveMessage;
use crate::command::testing::blocked;
use crate::queue::Transport;
use crate::task::End;

/// Runs a session. `answer` is asked after the time and the queue `q` are loaded.
pub(super) fn drive<'a>(
    commands: &'a [Command],
    retrying: bool,
    mut answer: impl FnMut(&Load<'a>, &mut World),
) -> Session<'a> {
    let numbers = commands.iter().map(|command| command.profile().numbers).sum::<usize>() as i64;
    let mut session = Session::new(commands, Numbers::new(1_000, 1_000 + numbers), retrying);
    while let Some((load, world)) = session.next_load() {
        if load.begin {
            world.begin(at(1_000), Grace::NONE);
            world.add_queue(queue(), 0);
        }
        answer(load, world);
    }
    session
}

/// The loads after the first one, in a store whose one task is here.
fn loads(commands: &[Command], place: &Place) -> Vec<String> {
    let mut loads = Vec::new();
    drive(commands, false, |load, world| {
        if load.begin {
            world.add_task(Task { id: id(), place: place.clone(), body: None });
        } else {
            loads.push(format!("{load:?}"));
        }
    });
    loads
}

fn waiting(seqs: std::ops::RangeInclusive<i64>, queue: QueueId) -> Vec<(TaskId, Waiting)> {
    seqs.map(|seq| (TaskId::new(0, 0, Seq(seq)), Waiting { queue, ..ready() })).collect()
}

fn claim_of(queues: &[&str], max_jobs: usize, seed: u8) -> Command {
    let queues = queues.iter().map(|name| Arc::from(*name)).collect();
    Command::Claim(Claim { claimer: claimer(seed), queues, max_jobs })
}

fn done(session: Session<'_>, saved: Saved) -> Done {
    let mut session = session;
    let write = session.write();
    session.done(&write, saved)
}

#[test]
fn rows_say_who_names_them() {
    let other = Command::Expire(expire::Expire { row: Seq(9) });
    for (commands, reported, scanned) in [
        (vec![complete(1), fail(2)], 1, 0),
        (vec![complete(1), heartbeat(1)], 0, 0),
        (vec![expire()], 0, 1),
        (vec![expire(), complete(1)], 0, 0),
        (vec![complete(1), other], 1, 1),
    ] {
        drive(&commands, false, |load, _| {
            if load.begin {
                let asked = (load.tasks.reported.len(), load.tasks.scanned.len());
                assert_eq!(asked, (reported, scanned), "{commands:?}");
            }
        });
    }
}

#[test]
fn an_attempt_that_is_at_hand_needs_nothing_more() {
    assert_eq!(loads(&[complete(1)], &Place::Running(running())), [""; 0]);
    assert_eq!(loads(&[complete(2)], &Place::Running(running())).len(), 1, "its attempts are needed");
    let waits = Place::Ready(scheduled_retry());
    assert_eq!(loads(&[complete(1)], &waits), [""; 0]);
    // A grant in the same batch takes the last attempt out of the row.
    let loads = loads(&[claim_task(7), complete(1)], &waits);
    assert!(loads.iter().any(|load| load.contains("attempts: {Seq(")), "{loads:?}");
}

#[test]
fn a_callback_asks_for_the_one_attempt_that_it_names() {
    let proof = callback::Proof { attempt: 1, attempt_id: attempt_id(9) };
    let commands = [Command::Callback(callback::Callback {
        task: id(),
        tenant: "acme".into(),
        workspace: "default".into(),
        proof,
        attempt: 1,
        attempt_id: None,
        worker: "w".into(),
        call: Call::Started { told_at: None },
    })];
    let mut asked = Vec::new();
    drive(&commands, false, |load, world| {
        if load.begin {
            world.add_task(Task { id: id(), place: Place::Running(running()), body: None });
        }
        asked.extend(load.tasks.named_attempts.iter().copied());
        assert_eq!(load.tasks.attempts.len(), 0, "others can be many and large");
    });
    assert_eq!(asked, [(id().seq(), 1)]);
}

#[test]
fn ready_rows_of_a_second_queue_are_loaded_only_if_the_first_has_too_few() {
    for (found, second) in [(3, None), (2, Some(1))] {
        let commands = [claim_of(&["q", "r"], 3, 1)];
        let mut asked = Vec::new();
        drive(&commands, false, |load, world| {
            if load.begin {
                world.add_queue(Queue::new(QueueId(2), "r".into()), 0);
            }
            for ready in &load.claims.ready {
                asked.push((ready.queue.0, ready.limit));
                let rows = if ready.queue == queue().id { waiting(1..=found, ready.queue) } else { Vec::new() };
                world.add_ready(ready.queue, rows);
            }
        });
        let expected: Vec<_> = [(1, 3)].into_iter().chain(second.map(|limit| (2, limit))).collect();
        assert_eq!(asked, expected);
    }
}

#[test]
fn ready_rows_that_another_command_names_are_not_relied_on() {
    let commands = [cancel(), Command::Expire(expire::Expire { row: Seq(5) }), claim_of(&["q"], 1, 1)];
    let mut asked = Vec::new();
    drive(&commands, false, |load, world| {
        if load.begin {
            world.add_task(Task { id: id(), place: Place::Ready(ready()), body: None });
            world.add_task(Task { id: TaskId::new(0, 0, Seq(5)), place: Place::Ready(ready()), body: None });
        }
        for ready in &load.claims.ready {
            asked.push(ready.limit);
            let all = [(id(), super::ready())].into_iter().chain(waiting(5..=9, ready.queue));
            world.add_ready(ready.queue, all.take(ready.limit).collect());
        }
    });
    assert_eq!(asked, [1, 2, 3], "more, should the first ones end");
}

#[test]
fn no_more_ready_rows_are_loaded_than_the_limits_leave() {
    let limited = Queue { settings: QueueSettings { max_running: Some(5), ..settings() }, ..queue() };
    let commands = [claim_of(&["q"], 10, 1)];
    let (mut counted, mut asked) = (0, Vec::new());
    drive(&commands, false, |load, world| {
        if load.begin {
            world.add_queue(limited.clone(), 0);
        }
        if load.queues.limits.contains(&limited.id) {
            counted += 1;
            world.add_queue(limited.clone(), 3);
        }
        for ready in &load.claims.ready {
            asked.push(ready.limit);
            world.add_ready(ready.queue, waiting(1..=2, ready.queue));
        }
    });
    assert_eq!((counted, asked), (1, vec![2]));
}

#[test]
fn limits_matter_to_those_who_grant_or_change_them() {
    let limited = Queue { settings: QueueSettings { max_running: Some(5), ..settings() }, ..queue() };
    let pause = queues::PauseQueue { queue: "q".into(), paused: true, reach: Reach::All };
    for (command, stands, is_limited, locks) in [
        (complete(1), Place::Running(running()), true, false),
        (claim_task(2), Place::Ready(ready()), true, true),
        (claim_task(2), Place::Ready(ready()), false, false),
        (claim(2), Place::Ready(ready()), true, true),
        (claim(2), Place::Ready(ready()), false, false),
        (Command::PauseQueue(pause), Place::Ready(ready()), false, true),
    ] {
        let commands = [command];
        let mut locked = false;
        drive(&commands, false, |load, world| {
            if load.begin {
                world.add_queue(if is_limited { limited.clone() } else { queue() }, 0);
                world.add_task(Task { id: id(), place: stands.clone(), body: None });
            }
            locked |= load.queues.limits.contains(&limited.id);
        });
        assert_eq!(locked, locks, "{commands:?}");
    }
}

#[test]
fn only_the_end_of_an_attempt_may_see_settings_that_are_out_of_date() {
    let elsewhere = QueueId(7);
    for (command, is_fresh) in [(complete(1), false), (claim_task(2), true), (retry(), true)] {
        let commands = [command];
        let mut asked = None;
        drive(&commands, false, |load, world| {
            if load.begin {
                let place = Place::Running(Running { queue: elsewhere, ..running() });
                world.add_task(Task { id: id(), place, body: None });
            }
            if load.queues.fresh.contains(&elsewhere) || load.queues.standing.contains(&elsewhere) {
                asked = Some(load.queues.fresh.contains(&elsewhere));
                world.add_queue(Queue::new(elsewhere, "e".into()), 0);
            }
        });
        assert_eq!(asked, Some(is_fresh), "{commands:?}");
    }
}

#[test]
fn leases_of_a_claim_are_looked_for_if_it_may_have_been_granted_before() {
    let named = |seed: u8| {
        let worker = Claimant {
            id: "w".into(),
            incarnation: None,
            claim_id: Some("c1".into()),
            kills_on_expiry: false,
            dispatch: false,
        };
        let claimer = Claimer { worker: Some(worker), ..claimer(seed) };
        Command::Claim(Claim { claimer, queues: vec!["q".into()], max_jobs: 2 })
    };
    for (command, retrying, looks) in
        [(claim(1), false, false), (claim(1), true, true), (named(2), false, true), (named(2), true, true)]
    {
        let commands = [command];
        let mut looked = false;
        drive(&commands, retrying, |load, _| looked |= !load.claims.repeats.is_empty());
        assert_eq!(looked, looks, "{commands:?}");
    }
}

/// Two leases of the claim, of which a report of the same batch has taken one out of its table; and that of another one.
#[test]
fn a_claim_decided_again_finds_its_leases_in_the_order_of_its_grants() {
    let claim = |seed| claim_of(&["q"], 2, seed);
    let held = |seq: i64, seed: u8, grant: usize| {
        let (attempt_id, token) = Seed([seed; 32]).draw(grant);
        let lease = Lease { token, ..running().lease };
        (TaskId::new(0, 0, Seq(seq)), Running { attempt_id, lease, ..running() })
    };
    let (first, second, other) = (held(5, 1, 0), held(4, 1, 1), held(3, 2, 0));
    let report = |(task, running): &(TaskId, Running)| heartbeat::Heartbeat {
        task: *task,
        attempt: None,
        token: running.lease.token,
        worker: None,
        progress: Default::default(),
        checkpoint: None,
    };
    let commands = [Command::Heartbeat(report(&first)), claim(1)];
    let session = drive(&commands, true, |load, world| {
        if load.begin {
            let (id, running) = first.clone();
            world.add_taken(Task { id, place: Place::Running(running), body: None });
        }
        for (index, claim) in &load.claims.repeats {
            world.add_claimed(*index, claim, vec![other.clone(), second.clone()]);
        }
        for ready in &load.claims.ready {
            world.add_ready(ready.queue, Vec::new());
        }
    });
    let outcomes = done(session, Saved::default()).outcomes;
    let rows: Vec<_> = grants(&outcomes[1]).iter().map(|grant| grant.seq().0).collect();
    assert_eq!(rows, [5, 4]);
}

#[test]
fn a_process_that_is_known_has_voided_what_there_was() {
    for (known, looks) in [(None, true), (Some("1"), true), (Some("2"), false)] {
        let commands = [hello("w", "2")];
        let mut looked = false;
        drive(&commands, false, |load, world| {
            for worker in &load.workers.names {
                known.into_iter().for_each(|known| world.add_incarnation(worker, known.into()));
            }
            looked |= !load.workers.held.is_empty();
        });
        assert_eq!(looked, looks, "{known:?}");
    }
}

#[test]
fn a_key_is_taken_by_the_task_that_has_it_wherever_that_is() {
    let holder = Body { idempotency: new_task(1, Some(("k", 1))).idempotency, ..body(Spec::default()) };
    let commands = [submit(vec![new_task(9, Some(("k", 1)))])];
    for (state, answer) in
        [(Some(State::Succeeded), (holder.seq(), State::Succeeded, false)), (None, (Seq(9), State::Ready, true))]
    {
        let session = drive(&commands, false, |load, world| {
            if load.keys.len() == 1 {
                world.add_key(holder.clone());
            }
            for row in &load.tasks.states {
                state.into_iter().for_each(|state| world.add_state(*row, state));
            }
        });
        assert_eq!(submitted(&done(session, Saved::default()).outcomes[0]), [answer], "a body alone is damage");
    }
}

#[test]
fn a_retried_submit_finds_the_tasks_that_it_made() {
    let commands = [submit(vec![new_task(9, None)])];
    for retrying in [false, true] {
        drive(&commands, retrying, |load, _| {
            if load.begin {
                assert_eq!(load.tasks.rows.contains(&Seq(9)), retrying);
            }
        });
    }
}

#[test]
fn bodies_that_the_batch_has_made_are_not_read() {
    let commands = [submit(vec![new_task(9, None)]), claim(1)];
    let mut session = drive(&commands, false, |load, world| {
        for ready in &load.claims.ready {
            world.add_ready(ready.queue, Vec::new());
        }
    });
    let write = session.write();
    assert_eq!(write.bodies, []);
    let done = session.done(&write, Saved::default());
    assert_eq!(grants(&done.outcomes[1])[0].body.as_ref().map(|body| body.seq()), Some(Seq(9)));
}

/// The task runs, or waits; the message that was received is the live one, or another.
#[test]
fn a_message_is_dropped_only_if_another_one_stands_for_the_running_task() {
    let external = Queue { transport: Transport::Redis, ..queue() };
    let held = Place::Running(Running { message: 5, ..running() });
    let waits = Place::Scheduled(Waiting { message: 5, at: at(99_000), ..ready() });
    for (place, message, receipt, ack) in [
        (&held, "7-0", Some("8-0"), true),
        (&held, "8-0", Some("8-0"), false),
        (&held, "7-0", None, false),
        (&waits, "7-0", Some("8-0"), false),
    ] {
        let command = ClaimTask { claimer: claimer(9), task: id(), message: Some(message.into()) };
        let commands = [Command::ClaimTask(command)];
        let mut session = drive(&commands, false, |load, world| {
            if load.begin {
                world.add_queue(external.clone(), 0);
                world.add_task(Task { id: id(), place: place.clone(), body: None });
            }
        });
        let write = session.write();
        let receipts = receipt.iter().map(|receipt| (5, Arc::from(*receipt))).collect();
        let done = session.done(&write, Saved { receipts, ..Saved::default() });
        let Ok(Answer::NotGranted(not)) = &done.outcomes[0] else { panic!("{:?}", done.outcomes) };
        assert_eq!(not.ack && not.live == Some(LiveMessage { queue: queue().id, message: 5 }), ack, "{message}");
    }
}

#[test]
fn a_run_is_locked_for_a_report_that_may_change_it() {
    let member = crate::run::Member { run: Seq(900), sealed: false, refs: BTreeMap::new() };
    let ended = |receipt: Option<Receipt>| {
        let last = scheduled_retry().carry.last.map(|last| Box::new(ClosedAttempt { receipt, ..*last }));
        let carry = Carry { last, run: Some(Box::new(member.clone())), ..Carry::default() };
        Place::Finished(crate::task::Finished { carry, ..blocked().ended(End::Failed, at(500)) })
    };
    let done = Some(Receipt::Completed);
    for (command, receipt, locks) in
        [(complete(1), None, true), (complete(1), done, false), (heartbeat(1), None, false), (retry(), done, true)]
    {
        let commands = [command];
        let mut locked = false;
        drive(&commands, false, |load, world| {
            if load.begin {
                world.add_task(Task { id: id(), place: ended(receipt), body: None });
            }
            locked |= load.runs.rows.contains(&Seq(900));
        });
        assert_eq!(locked, locks, "{commands:?} {receipt:?}");
    }
}
