//! Deciding a batch, and finding out what it changed: what a control plane does between load and write.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::hint::black_box;
use std::sync::Arc;

use divan::Bencher;
use tenure_core::attempt::Report;
use tenure_core::batch::{Saved, Session, Writes};
use tenure_core::command::claim::{Claim, Claimer, Seed};
use tenure_core::command::report::AttemptReport;
use tenure_core::command::{Command, Numbers, Task};
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

/// What a control plane does between load and write: the tasks are at hand, as a store has read them.
fn run(commands: &[Command], tasks: Vec<Task>) -> Writes {
    let mut session = Session::new(commands, Numbers::new(1, 100_000), false);
    let mut tasks = Some(tasks);
    while let Some((load, world)) = session.next_load() {
        if load.begin {
            world.begin(NOW, Grace::NONE);
            world.add_queue(Queue::new(QUEUE, "q".into()), 0);
        }
        if !load.tasks.rows.is_empty() {
            tasks.take().into_iter().flatten().for_each(|task| world.add_task(task));
        }
        if !load.claims.ready.is_empty() {
            let ready = tasks.take().into_iter().flatten().filter_map(|task| match task.place {
                Place::Ready(waiting) => Some((task.id, waiting)),
                _ => None,
            });
            world.add_ready(QUEUE, ready.collect());
        }
    }
    let write = session.write();
    black_box(session.done(&write, Saved::default()));
    write.writes
}

fn id(number: usize) -> TaskId {
    TaskId::new(NOW.as_millis(), 0, Seq(number as i64 + 1))
}

/// Ready tasks at the head of a queue.
fn ready(count: usize) -> Vec<Task> {
    let task = |number| {
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
        Task { id: id(number), place: Place::Ready(waiting), body: None }
    };
    (0..count).map(task).collect()
}

fn claim(count: usize) -> Vec<Command> {
    let claimer = Claimer::worker("w".into(), Seed([7; 32]));
    vec![Command::Claim(Claim { claimer, queues: vec!["q".into()], max_jobs: count })]
}

/// Held tasks, and the reports that end them.
fn held(count: usize) -> (Vec<Task>, Vec<Command>) {
    let granted = run(&claim(count), ready(count)).tasks.run;
    let reports = granted.iter().map(|(task, running)| {
        Command::Report(AttemptReport {
            task: *task,
            attempt_id: running.attempt_id,
            token: running.lease.token,
            report: Report::succeeded(Some(Arc::from("{\"ok\":true}"))),
            data: None,
        })
    });
    let reports = reports.collect();
    let held = granted.into_iter().map(|(id, running)| Task { id, place: Place::Running(running), body: None });
    (held.collect(), reports)
}

#[divan::bench(args = SIZES)]
fn claim_tasks(bencher: Bencher<'_, '_>, count: usize) {
    let commands = claim(count);
    bencher.with_inputs(|| ready(count)).bench_values(|tasks| run(&commands, tasks));
}

#[divan::bench(args = SIZES)]
fn complete_tasks(bencher: Bencher<'_, '_>, count: usize) {
    bencher.with_inputs(|| held(count)).bench_values(|(tasks, commands)| run(&commands, tasks));
}
