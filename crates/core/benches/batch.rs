//! Deciding a batch, and finding out what it changed: what a control plane does between load and write.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::hint::black_box;
use std::sync::Arc;

use divan::Bencher;
use tenure_core::attempt::Report;
use tenure_core::batch::World;
use tenure_core::command::claim::{Claim, Claimer, Seed};
use tenure_core::command::report::AttemptReport;
use tenure_core::command::{Answer, Command, Numbers, Task};
use tenure_core::id::Fence;
use tenure_core::lease::Grace;
use tenure_core::queue::{Queue, QueueId};
use tenure_core::task::{Carry, Place, Spec, Waiting};
use tenure_core::{Seq, TaskId, Timestamp};

const SIZES: [usize; 3] = [1, 100, 1_000];
const QUEUE: QueueId = QueueId(1);
const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn main() {
    divan::main();
}

fn empty() -> World {
    let mut world = World::new(NOW, Grace::NONE, Numbers::new(1, 100_000));
    world.add_queue(Queue::new(QUEUE, "q".into()), 0);
    world
}

fn id(number: usize) -> TaskId {
    TaskId::new(NOW.as_millis(), 0, Seq(number as i64 + 1))
}

/// Ready tasks at the head of a queue, as a store loads them for a claim.
fn ready(count: usize) -> World {
    let mut world = empty();
    world.expect_tasks(count);
    for number in 0..count {
        let waiting = Waiting {
            queue: QUEUE,
            priority: 5,
            at: NOW,
            fair: None,
            message: number as i64,
            attempt: 0,
            fence: Fence(0),
            carry: Carry::fresh(Spec::default()),
        };
        world.add_task(Task { id: id(number), place: Place::Ready(waiting), body: None });
    }
    world.candidates.insert(QUEUE, (0..count).map(|number| id(number).seq()).collect());
    world
}

fn claim(count: usize) -> Vec<Command> {
    let claimer = Claimer::worker("w".into(), Seed([7; 32]));
    vec![Command::Claim(Claim { claimer, queues: vec!["q".into()], max_jobs: count })]
}

/// Held tasks, and the reports that end them.
fn held(count: usize) -> (World, Vec<Command>) {
    let mut granting = ready(count);
    let outcome = granting.decide(&claim(count)).remove(0);
    let Ok(Answer::Claimed(claimed)) = outcome else { unreachable!("a claim of ready tasks is granted") };
    let reports = claimed.grants.iter().map(|grant| {
        Command::Report(AttemptReport {
            task: id(grant.seq().0.unsigned_abs() as usize - 1),
            attempt_id: grant.attempt_id,
            token: grant.token,
            report: Report::succeeded(Some(Arc::from("{\"ok\":true}"))),
        })
    });
    let reports = reports.collect();
    let mut world = empty();
    for (task, running) in granting.writes().run {
        world.add_task(Task { id: task, place: Place::Running(running), body: None });
    }
    (world, reports)
}

#[divan::bench(args = SIZES)]
fn claim_tasks(bencher: Bencher<'_, '_>, count: usize) {
    let commands = claim(count);
    bencher.with_inputs(|| ready(count)).bench_values(|mut world| {
        black_box(world.decide(&commands));
        world.writes()
    });
}

#[divan::bench(args = SIZES)]
fn complete_tasks(bencher: Bencher<'_, '_>, count: usize) {
    bencher.with_inputs(|| held(count)).bench_values(|(mut world, commands)| {
        black_box(world.decide(&commands));
        world.writes()
    });
}

#[divan::bench(args = SIZES)]
fn decide_completions_only(bencher: Bencher<'_, '_>, count: usize) {
    bencher.with_inputs(|| held(count)).bench_values(|(mut world, commands)| world.decide(&commands));
}
