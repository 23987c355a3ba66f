mod artifacts;
mod background;
mod claims;
mod deletion;
mod order;
mod session;
mod submits;
mod writes;

use std::collections::BTreeMap;

use super::*;
use crate::attempt::{AttemptState, Reason, Receipt};
use crate::command::claim::{Claim, ClaimTask, Claimant, Claimer, Grant, NotGrantedReason, Seed};
use crate::command::report::AttemptReport;
use crate::command::testing::{
    at, attempt_id, body, claimer, failed, id, no_backoff, one_attempt, queue, ready, running, running_with,
    scheduled_retry, settings, succeeded, swept, token,
};
use crate::command::{Conflict, ConflictKind};
use crate::event::FactKind;
use crate::lease::Lease;
use crate::queue::{FairnessKey, Rate};
use crate::task::{Carry, FailReason, Idempotency, Running, Spec, Waiting};

/// A world with the queue `q`, in which each command may use the numbers that it says it needs and no more.
fn world_for(now: i64, commands: &[Command]) -> World {
    let numbers = commands.iter().map(|command| command.profile().numbers).sum::<usize>() as i64;
    let mut world = World::new(at(now), Grace::NONE, Numbers::new(1_000, 1_000 + numbers));
    world.add_queue(queue(), 0);
    world
}

/// Loads one task as a store does: history only for the commands that need it.
fn load(world: &mut World, place: Place, history: &[ClosedAttempt], commands: &[Command]) {
    if commands.iter().any(|command| needs_history(command, &place)) {
        world.history.insert(id().seq(), history.to_vec());
    }
    if let Place::Ready(waiting) = &place {
        world.candidates.entry(waiting.queue).or_default().push_back(id().seq());
    }
    world.add_task(Task { id: id(), place, body: Some(Arc::new(body(Spec::default()))) });
}

/// Decides a batch about one task.
fn run(place: Place, now: i64, commands: &[Command]) -> (Vec<Outcome>, Writes) {
    let mut world = world_for(now, commands);
    load(&mut world, place, &[], commands);
    let outcomes = world.decide(commands, false);
    (outcomes, world.writes())
}

fn claim(seed: u8) -> Command {
    Command::Claim(Claim { claimer: claimer(seed), queues: vec!["q".into()], max_jobs: 1 })
}

fn claim_task(seed: u8) -> Command {
    Command::ClaimTask(ClaimTask { claimer: claimer(seed), task: id(), message: None })
}

fn complete(seed: u8) -> Command {
    let report = succeeded("1");
    Command::Report(AttemptReport { task: id(), attempt_id: attempt_id(seed), token: token(seed), report, data: None })
}

fn fail(seed: u8) -> Command {
    let report = failed("X");
    Command::Report(AttemptReport { task: id(), attempt_id: attempt_id(seed), token: token(seed), report, data: None })
}

fn heartbeat(seed: u8) -> Command {
    let progress = Default::default();
    let (task, token) = (id(), token(seed));
    Command::Heartbeat(heartbeat::Heartbeat { task, attempt: None, token, worker: None, progress, checkpoint: None })
}

fn expire() -> Command {
    Command::Expire(expire::Expire { row: id().seq() })
}

fn cancel() -> Command {
    let mode = cancel::Mode::Cooperative;
    Command::Cancel(cancel::Cancel { task: id(), reason: "stop".into(), mode, reach: Default::default() })
}

fn retry() -> Command {
    Command::Retry(retry::Retry { task: id(), reach: Default::default() })
}

fn hello(worker: &str, incarnation: &str) -> Command {
    Command::Hello(hello::Hello { worker: worker.into(), incarnation: incarnation.into() })
}

fn new_task(seq: i64, key: Option<(&str, u8)>) -> submit::NewTask {
    submit::NewTask {
        id: TaskId::new(0, 0, Seq(seq)),
        queue: "q".into(),
        operator: "extract".into(),
        tenant: "acme".into(),
        owner: None,
        workspace: "default".into(),
        priority: 5,
        payload: "{}".into(),
        spec: Spec::default(),
        start: submit::Start::Now,
        tags: BTreeMap::new(),
        idempotency: key.map(|(key, digest)| Idempotency { key: key.into(), fingerprint: [digest; 32] }),
        traceparent: None,
        submitted_by: None,
        envelope: None,
    }
}

fn submit(tasks: Vec<submit::NewTask>) -> Command {
    Command::Submit(submit::Submit { tasks, maker: None })
}

fn submitted(outcome: &Outcome) -> Vec<(Seq, State, bool)> {
    match outcome {
        Ok(Answer::Submitted(tasks)) => tasks.iter().map(|task| (task.id.seq(), task.state, task.created)).collect(),
        other => panic!("not submitted: {other:?}"),
    }
}

fn grants(outcome: &Outcome) -> &[Grant] {
    match outcome {
        Ok(Answer::Claimed(claimed)) => &claimed.grants,
        other => panic!("not granted: {other:?}"),
    }
}

fn conflict(outcome: &Outcome) -> Conflict {
    match outcome {
        Err(Rejection::Conflict(conflict)) => *conflict,
        other => panic!("not a conflict: {other:?}"),
    }
}

fn counts(writes: &Writes) -> Counts {
    assert!(writes.queues.counts.len() <= 1, "one queue");
    writes.queues.counts.get(&queue().id).copied().unwrap_or_default()
}

/// The finished row of the one task, which nothing else was written about.
fn finish_row(writes: &Writes) -> &crate::task::Finished {
    assert_eq!(
        (writes.tasks.schedule.len(), writes.tasks.ready.len(), writes.tasks.run.len(), writes.tasks.finish.len()),
        (0, 0, 0, 1)
    );
    &writes.tasks.finish[0].1
}

#[test]
fn history_is_needed_only_for_a_report_or_heartbeat_of_another_attempt_than_the_last() {
    let held = Place::Running(running());
    let waits = Place::Ready(scheduled_retry());
    let fresh = Place::Ready(Waiting { carry: Carry::default(), ..ready() });
    for (command, place, needed) in [
        (complete(1), &held, false),
        (fail(1), &waits, false),
        (heartbeat(1), &waits, false),
        (complete(2), &held, true),
        (fail(2), &waits, true),
        (heartbeat(2), &held, true),
        (complete(1), &fresh, true),
        (cancel(), &held, false),
        (claim_task(1), &held, false),
    ] {
        assert_eq!(needs_history(&command, place), needed, "{command:?}");
    }
}
