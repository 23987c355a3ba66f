//! The same commands give the same answers and leave the same state: on SQLite, on Postgres, and by the core alone.

mod ops;
mod reference;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tempfile::TempDir;
use tenure_core::attempt::Failure;
use tenure_core::command::claim::Grant;
use tenure_core::command::expire::Expire;
use tenure_core::command::promote::Promote;
use tenure_core::command::queues::SetQueue;
use tenure_core::command::redrive::Redrive;
use tenure_core::command::run::RunSubmitted;
use tenure_core::command::{Answer, Command, Numbers, Reach};
use tenure_core::queue::QueueSettings;
use tenure_core::run::{Edge, RunState};
use tenure_core::task::{Place, Standing, State};
use tenure_core::{RunId, Seq, Timestamp};
use tenure_store::{
    AttemptView, Batch, Clock, DeadLetterFilter, Lane, NewRedrive, RedriveFilter, RedriveView, RunFilter, Store,
    TaskFilter,
};

use crate::common::raw::Raw;
use crate::common::{Client, Home, Kind, START, invariants};
use ops::{Known, OWNERS, QUEUES, Step};
use reference::{Came, Reference, transport_of};

type Checked = Result<(), TestCaseError>;

fn same<T: PartialEq + Debug>(what: &str, kind: &str, expected: &T, got: &T) -> Checked {
    if expected == got {
        return Ok(());
    }
    Err(TestCaseError::fail(format!("{what} on {kind}\nexpected {expected:?}\n     got {got:?}")))
}

/// The three, at the same point in the same story.
struct Three {
    reference: Reference,
    stores: Vec<Arc<dyn Store>>,
    clock: Arc<Clock>,
    known: Known,
    last: Option<Batch>,
    redrives: u128,
}

impl Three {
    async fn run(&mut self, steps: &[Step]) -> Checked {
        for step in steps {
            self.step(step).await?;
        }
        self.compare().await
    }

    async fn step(&mut self, step: &Step) -> Checked {
        match step {
            Step::Batch(ops) => {
                let now = self.reference.now();
                let commands: Vec<_> = ops.iter().filter_map(|op| self.known.command(op, now)).collect();
                self.batch(commands).await
            }
            Step::Again => match self.last.clone() {
                Some(batch) => self.execute(Batch { retrying: true, ..batch }).await,
                None => Ok(()),
            },
            Step::Advance(ms) => {
                self.clock.advance(*ms);
                self.reference.advance(*ms);
                Ok(())
            }
            Step::Outage(ms) => {
                self.clock.advance_through_outage(*ms);
                self.reference.advance_through_outage(*ms);
                Ok(())
            }
            Step::MarkAlive => {
                let expected = self.reference.mark_alive();
                for store in &self.stores {
                    same("the grace", store.kind(), &expected, &store.mark_alive().await.unwrap())?;
                }
                Ok(())
            }
            Step::Reap => {
                let expected = self.reference.expired();
                for store in &self.stores {
                    let expired = store.expired(1_000).await.unwrap().into_iter().collect();
                    same("what has expired", store.kind(), &expected, &expired)?;
                }
                self.batch(expected.into_iter().map(|row| Command::Expire(Expire { row })).collect()).await
            }
            Step::Promote => {
                let expected = self.reference.due();
                for store in &self.stores {
                    let due = store.due(1_000).await.unwrap().rows.into_iter().collect();
                    same("what is due", store.kind(), &expected, &due)?;
                }
                self.batch(expected.into_iter().map(|row| Command::Promote(Promote { row })).collect()).await
            }
            Step::StartRedrive { key, queue, tenant, owner } => {
                self.redrives += 1;
                let filter = RedriveFilter {
                    queue: queue.map(|queue| QUEUES[queue].to_owned()),
                    tenant: tenant.map(|tenant| ["acme", "beta", "gamma"][tenant].to_owned()),
                    owner: owner.map(|owner| OWNERS[owner].to_owned()),
                    ..RedriveFilter::default()
                };
                let key = key.map(|key| key.to_string());
                let new = NewRedrive { redrive_id: self.redrives, key, filter, rate: Some(1.5) };
                let expected = self.reference.start_redrive(&new);
                for store in &self.stores {
                    same("a new redrive", store.kind(), &expected, &store.start_redrive(&new).await.unwrap())?;
                }
                Ok(())
            }
            Step::Redrive { which, limit } => {
                let open = self.reference.open_redrives();
                if open.is_empty() {
                    return Ok(());
                }
                self.redrive(which.get(&open), *limit).await
            }
            Step::Rerun { run, key, owner, reach } => match self.known.run(*run) {
                Some(run) => self.rerun(run, *key, *owner, reach).await,
                None => Ok(()),
            },
        }
    }

    async fn redrive(&mut self, redrive: &RedriveView, limit: usize) -> Checked {
        let mut rows = self.reference.dead_letters(&redrive.filter, redrive.cursor);
        rows.truncate(limit);
        for store in &self.stores {
            let found = store.redrive_matches(redrive, limit).await.unwrap();
            same("the next dead letters", store.kind(), &rows, &found)?;
        }
        let cursor = rows.last().copied().unwrap_or(redrive.cursor);
        let finished = rows.len() < limit;
        let step = Redrive { redrive_id: redrive.redrive_id, rows, cursor, finished, started_at: redrive.started_at };
        self.batch(vec![Command::Redrive(step)]).await
    }

    /// What the stores have of a run is what it is repeated from.
    async fn rerun(&mut self, id: RunId, key: Option<u8>, owner: Option<usize>, reach: &Reach) -> Checked {
        let found = self.reference.runs.get(&id.seq());
        let run = found.filter(|run| reach.covers(&run.tenant, run.owner.as_deref())).cloned();
        let tasks: Vec<_> = run.iter().flat_map(|_| self.reference.tasks_of(id.seq())).collect();
        let tasks: Vec<_> = tasks
            .into_iter()
            .map(|row| {
                let (body, place) = (Arc::clone(&self.reference.bodies[&row]), self.reference.places[&row].clone());
                let queue = Arc::clone(&self.reference.queues[&place.queue()].name);
                (body, place, queue, self.reference.run_tasks[&row].depends_on.clone())
            })
            .collect();
        for store in &self.stores {
            let material = store.run_material(id, reach).await.unwrap();
            let (shown, found) = material.map_or((None, Vec::new()), |material| (Some(material.run), material.tasks));
            same("a run to repeat", store.kind(), &run, &shown)?;
            let found: Vec<_> =
                found.into_iter().map(|(view, waits)| (view.body, view.place, view.queue, waits)).collect();
            same("the tasks to repeat", store.kind(), &tasks, &found)?;
        }
        match run.filter(|run| matches!(run.state(), RunState::Failed | RunState::Canceled)) {
            Some(run) => {
                let again = self.known.rerun(&run, &tasks, key, owner);
                self.batch(vec![Command::SubmitRun(again)]).await
            }
            None => Ok(()),
        }
    }

    async fn batch(&mut self, commands: Vec<Command>) -> Checked {
        if commands.is_empty() {
            return Ok(());
        }
        let wanted = commands.iter().map(|command| command.profile().numbers).sum::<usize>() as i64;
        let start = self.known.next_number + 1;
        self.known.next_number += wanted;
        let numbers = Numbers::new(start, start + wanted);
        let batch = Batch { commands: Arc::new(commands), numbers, lane: Lane::Work, retrying: false };
        self.last = Some(batch.clone());
        self.execute(batch).await
    }

    async fn execute(&mut self, batch: Batch) -> Checked {
        let expected = self.reference.execute(&batch);
        for store in &self.stores {
            let done = store.execute(batch.clone()).await;
            let done = done.map_err(|error| TestCaseError::fail(format!("{}: {}", store.kind(), error.chain())))?;
            same(&format!("{:?}", batch.commands), store.kind(), &expected, &Came::from(done))?;
        }
        for (command, outcome) in batch.commands.iter().zip(expected.outcomes) {
            match outcome {
                Ok(Answer::Submitted(submitted)) => self.known.learn_tasks(&submitted),
                Ok(Answer::RunSubmitted(RunSubmitted { created: true, .. })) => {
                    if let Command::SubmitRun(submit) = command {
                        self.known.learn_run(submit);
                    }
                }
                Ok(Answer::Claimed(claimed)) => self.known.learn_grants(&claimed.grants),
                _ => {}
            }
        }
        Ok(())
    }

    /// Everything that can be read, and the invariants.
    async fn compare(&self) -> Checked {
        for store in &self.stores {
            self.compare_tasks(&**store).await?;
            self.compare_runs(&**store).await?;
            self.compare_queues(&**store).await?;
            let kind = store.kind();
            let mut open = store.open_redrives().await.unwrap();
            open.sort_by_key(|redrive| redrive.redrive_id);
            same("redrives", kind, &self.reference.open_redrives(), &open)?;
            let events: Vec<_> =
                store.events(0, 1_000).await.unwrap().into_iter().map(|batch| (batch.at, batch.facts)).collect();
            same("facts", kind, &self.reference.facts, &events)?;
            same("the time", kind, &self.reference.now(), &store.now().await.unwrap())?;
            let filter = DeadLetterFilter { limit: 1_000, ..DeadLetterFilter::default() };
            let dead = store.dead_letters(&filter).await.unwrap().items.iter().map(|view| view.id().seq()).collect();
            same("dead letters", kind, &self.reference.dead_letters(&RedriveFilter::default(), Seq(0)), &dead)?;
            self.compare_reaches(&**store).await?;
        }
        Ok(())
    }

    async fn compare_tasks(&self, store: &dyn Store) -> Checked {
        let page = store.tasks(&TaskFilter { limit: 1_000, ..TaskFilter::default() }).await.unwrap();
        let known: BTreeSet<Seq> = self.reference.bodies.keys().copied().collect();
        let listed = page.items.iter().map(|view| view.id().seq()).collect();
        same("the tasks", store.kind(), &known, &listed)?;
        for view in page.items {
            let seq = view.id().seq();
            same("a body", store.kind(), &self.reference.bodies[&seq], &view.body)?;
            let place = &self.reference.places[&seq];
            same("a place", store.kind(), place, &view.place)?;
            let history = store.attempts(view.id(), &Reach::All).await.unwrap().unwrap();
            let mut expected: Vec<_> =
                self.reference.attempts.range((seq, 0)..=(seq, u32::MAX)).map(|(_, attempt)| attempt.clone()).collect();
            if let Place::Finished(finished) = place {
                expected.extend(finished.carry.last.as_deref().cloned());
            }
            let open = history.iter().filter(|attempt| matches!(attempt, AttemptView::Open(_))).count();
            same("open attempts", store.kind(), &usize::from(matches!(place, Place::Running(_))), &open)?;
            let closed = history.into_iter().filter_map(|attempt| match attempt {
                AttemptView::Closed(closed) => Some(*closed),
                AttemptView::Open(_) => None,
            });
            same("the history", store.kind(), &expected, &closed.collect())?;
        }
        Ok(())
    }

    async fn compare_runs(&self, store: &dyn Store) -> Checked {
        let kind = store.kind();
        let listed = store.runs(&RunFilter { limit: 1_000, ..RunFilter::default() }).await.unwrap().items;
        let expected: Vec<_> = self.reference.runs.values().rev().cloned().collect();
        same("the runs", kind, &expected, &listed)?;
        for state in RunState::ALL {
            let filter = RunFilter { state: Some(state), limit: 1_000, ..RunFilter::default() };
            let listed = store.runs(&filter).await.unwrap().items.into_iter().map(|run| run.id).collect();
            let expected: Vec<_> = expected.iter().filter(|run| run.state() == state).map(|run| run.id).collect();
            same(&format!("the runs that are {state:?}"), kind, &expected, &listed)?;
        }
        for run in &expected {
            let view = store.run(run.id, &Reach::All).await.unwrap().unwrap();
            same("a run", kind, run, &view.run)?;
            let rows: Vec<Seq> = self.reference.tasks_of(run.id.seq()).collect();
            same("its tasks", kind, &rows, &view.tasks.iter().map(|task| task.id.seq()).collect())?;
            for task in &view.tasks {
                let row = task.id.seq();
                let (body, place) = (&self.reference.bodies[&row], &self.reference.places[&row]);
                let key = |row: &Seq| Arc::clone(self.reference.bodies[row].task_key());
                let waits: Vec<_> = self.reference.run_tasks[&row].depends_on.iter().map(key).collect();
                same("a name", kind, body.task_key(), &task.key)?;
                same("what it depends on", kind, &waits, &task.depends_on)?;
                let started = task.state == State::Running && task.started_at.is_some();
                let shown = Standing { state: task.state, attempt: task.attempt, started };
                same("where it stands", kind, &place.standing(), &shown)?;
                let ended = match place {
                    Place::Finished(finished) => {
                        // A stack is shown with the task, not with the run.
                        let failure = finished.failure.clone().map(|failure| Failure { stack: None, ..failure });
                        (Some(finished.finished_at), failure)
                    }
                    _ => (None, None),
                };
                same("how it ended", kind, &ended, &(task.finished_at, task.failure.clone()))?;
                let upstream = store.upstream(row).await.unwrap();
                same("what it waits for", kind, &self.reference.upstream(row), &upstream)?;
            }
        }
        Ok(())
    }

    /// What the lists show to whom.
    async fn compare_reaches(&self, store: &dyn Store) -> Checked {
        let tenant = Reach::Tenant("acme".into());
        let owners = OWNERS.map(|owner| Reach::Owner { tenant: "acme".into(), owner: owner.into() });
        for reach in owners.into_iter().chain([tenant]) {
            let filter = TaskFilter { limit: 1_000, reach: reach.clone(), ..TaskFilter::default() };
            let page = store.tasks(&filter).await.unwrap();
            let listed: BTreeSet<Seq> = page.items.iter().map(|view| view.id().seq()).collect();
            let covered = self.reference.bodies.iter().filter(|(_, body)| reach.covers_task(body));
            let expected = covered.map(|(seq, _)| *seq).collect();
            same(&format!("the tasks for {reach:?}"), store.kind(), &expected, &listed)?;
            let filter = RunFilter { limit: 1_000, reach: reach.clone(), ..RunFilter::default() };
            let listed = store.runs(&filter).await.unwrap().items.into_iter().map(|run| run.id).collect();
            let all = self.reference.runs.values().rev();
            let covered = all.filter(|run| reach.covers(&run.tenant, run.owner.as_deref())).map(|run| run.id);
            same(&format!("the runs for {reach:?}"), store.kind(), &covered.collect::<Vec<_>>(), &listed)?;
        }
        Ok(())
    }

    async fn compare_queues(&self, store: &dyn Store) -> Checked {
        let listed = store.queues(None, None, 10).await.unwrap().items;
        same("how many queues", store.kind(), &self.reference.queues.len(), &listed.len())?;
        for stats in listed {
            let queue = &self.reference.queues[&stats.queue.id];
            same("a queue", store.kind(), queue, &stats.queue)?;
            same("counters", store.kind(), &self.reference.counts(queue.id), &stats.counts)?;
            let oldest: Option<Timestamp> = self
                .reference
                .places
                .values()
                .filter_map(|place| match place {
                    Place::Ready(waiting) if waiting.queue == queue.id => Some(waiting.at),
                    _ => None,
                })
                .min();
            same("the oldest", store.kind(), &oldest, &stats.oldest_ready_at)?;
        }
        Ok(())
    }
}

/// Empties a database for the next story. Much faster than a new one.
const EMPTY: &str = "
    DELETE FROM bodies; DELETE FROM blocked; DELETE FROM run_edges; DELETE FROM run_tasks; DELETE FROM runs; DELETE FROM scheduled; DELETE FROM ready; DELETE FROM running; DELETE FROM finished;
    DELETE FROM attempts; DELETE FROM redrives; DELETE FROM events; DELETE FROM workers; DELETE FROM queue_seen;
    DELETE FROM queue_counts; DELETE FROM queues; DELETE FROM outbox; UPDATE meta SET next_number = 1, alive_at = 'epoch', grace_until = 'epoch', gap_ended_at = 'epoch';
    ALTER TABLE queues ALTER queue_id RESTART; ALTER TABLE events ALTER batch RESTART";

/// The queues that exist when a story begins.
const EXISTING: [&str; 3] = [QUEUES[0], QUEUES[1], QUEUES[2]];

async fn story(postgres: &Home, raw: &Raw, steps: &[Step]) -> Checked {
    let clock = Arc::new(Clock::default());
    clock.freeze(START);
    let sqlite = Home::Sqlite(TempDir::new().unwrap());
    let mut stores = Vec::new();
    for home in [&sqlite, postgres] {
        stores.push(home.open(&clock).await.unwrap());
    }
    raw.execute(EMPTY).await;
    for store in &stores {
        let client = Client { store: Arc::clone(store) };
        for (name, reach) in EXISTING.into_iter().zip([Reach::All, Reach::All, Reach::Tenant("acme".into())]) {
            store.set_default_transport(transport_of(name));
            let settings = QueueSettings::default();
            let set = SetQueue { queue: name.into(), settings, transport: None, keep_push: false, reach };
            client.run(Command::SetQueue(set)).await.unwrap();
        }
    }
    let reference = Reference::new(&EXISTING, "own", "acme");
    let known = Known::default();
    let mut three = Three { reference, stores, clock, known, last: None, redrives: 0 };
    three.run(steps).await?;
    for (store, raw) in three.stores.iter().zip([&sqlite.raw().await, raw]) {
        let edges = raw.rows("SELECT upstream, downstream FROM run_edges ORDER BY upstream, downstream").await;
        let number = |value: &Option<String>| Seq(value.as_ref().unwrap().parse().unwrap());
        let edges = edges.iter().map(|row| Edge { upstream: number(&row[0]), downstream: number(&row[1]) }).collect();
        same("the edges", store.kind(), &three.reference.edges, &edges)?;
        invariants::check_rows(&**store, raw).await;
    }
    Ok(())
}

/// `cases` stories, unless PROPTEST_CASES says how many.
fn tell(cases: u32, per_batch: usize, runs: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (postgres, raw) = runtime.block_on(async {
        let home = Home::prepared(Kind::Postgres).await;
        let clock = Arc::new(Clock::default());
        home.open(&clock).await.unwrap();
        let raw = home.raw().await;
        (home, raw)
    });
    let mut config = Config { failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let told = TestRunner::new(config)
        .run(&ops::steps(per_batch, runs), |steps| runtime.block_on(story(&postgres, &raw, &steps)));
    if let Err(error) = told {
        panic!("{error}");
    }
}

#[test]
fn one_command_at_a_time() {
    tell(40, 1, 2);
}

#[test]
fn batches_of_commands() {
    tell(60, 4, 2);
}

#[test]
fn runs_and_what_their_ends_lead_to() {
    tell(60, 4, 7);
}

/// Grants of one story name tasks of that story only; what a store answers must not come from the one before.
#[test]
fn a_story_starts_empty() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let home = Home::prepared(Kind::Postgres).await;
        let client = Client { store: home.open(&Arc::new(Clock::default())).await.unwrap() };
        client.put_in("high").await;
        let _: Grant = client.claim_one("high").await;
        home.raw().await.execute(EMPTY).await;
        let client = Client { store: home.open(&Arc::new(Clock::default())).await.unwrap() };
        assert_eq!(client.store.queues(None, None, 10).await.unwrap().items.len(), 0);
        client.put_in("high").await;
        assert_eq!(client.queue("high").await.queue.id.0, 1);
    });
}
