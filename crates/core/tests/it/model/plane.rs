//! The control plane of the model: rows in memory, and the real decisions between loading and writing them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tenure_core::attempt::ClosedAttempt;
use tenure_core::batch::{Load, Outcome, Saved, Session, World, Writes};
use tenure_core::command::{Command, Numbers, Task};
use tenure_core::outage::{Marks, Reading};
use tenure_core::task::{Carry, Place, Running};
use tenure_core::{AttemptId, Seq, TaskId, Timestamp};

use crate::model::mutant::Mutant;
use crate::model::system::{Config, TICK_MS, at, worker_index};

/// In place of a digest while a row is being changed.
const OPEN: u64 = 0;

/// A task in the store: the row of the place where it stands, and its rows of the attempt history.
#[derive(Clone)]
pub struct Row {
    pub id: TaskId,
    pub place: Place,
    pub history: Vec<ClosedAttempt>,
    /// Digest of all the above. The types of the core have no `Hash`; their `Debug` shows everything but the token, and
    /// that is drawn together with the attempt id, which it shows.
    digest: u64,
}

impl Row {
    pub fn new(id: TaskId, place: Place) -> Self {
        let mut row = Self { id, place, history: Vec::new(), digest: 0 };
        row.seal();
        row
    }

    /// Makes the same in all states what no decision looks at any more: times of what is over, and how often the
    /// network repeated what was refused. Whoever wants to judge them does so before.
    fn forget(&mut self, config: &Config) {
        let over = |closed: &mut ClosedAttempt| {
            (closed.granted_at, closed.ended_at) = (Timestamp::MIN, Timestamp::MIN);
            closed.last_heartbeat_at = None;
            if let Some(evidence) = &mut closed.evidence {
                (evidence.received_at, evidence.more) = (Timestamp::MIN, 0);
            }
            if let Some(callback) = &mut closed.callback {
                (callback.started_at, callback.deliveries) = (callback.started_at.map(|_| Timestamp::MIN), 0);
            }
        };
        self.history.iter_mut().for_each(over);
        last_attempt(&mut self.place).into_iter().for_each(over);
        match &mut self.place {
            Place::Finished(finished) => {
                finished.finished_at = Timestamp::MIN;
                finished.dead_lettered_at = finished.dead_lettered_at.map(|_| Timestamp::MIN);
            }
            Place::Ready(waiting) => waiting.at = Timestamp::MIN,
            Place::Running(held) => {
                // What the grace of an outage depends on.
                let extended_at = if config.outages == 0 { Timestamp::MIN } else { held.extended_at() };
                if held.last_heartbeat_at.is_some() {
                    held.last_heartbeat_at = Some(extended_at);
                }
                if config.timeout > config.ticks {
                    held.granted_at = extended_at;
                }
                if let Some(delivery) = &mut held.carry.delivery {
                    delivery.ready_at = Timestamp::MIN;
                    delivery.accepted_at = delivery.accepted_at.map(|_| Timestamp::MIN);
                    delivery.started_at = delivery.started_at.map(|_| Timestamp::MIN);
                }
            }
            Place::Blocked(_) | Place::Scheduled(_) => {}
        }
    }

    fn seal(&mut self) {
        let mut hasher = DefaultHasher::new();
        format!("{:?} {:?}", self.place, self.history).hash(&mut hasher);
        self.digest = hasher.finish();
    }

    /// The record of an ended attempt: in the history, or with the task, or both.
    pub fn records(&self, attempt: AttemptId) -> impl Iterator<Item = &ClosedAttempt> {
        self.history.iter().chain(self.place.last_attempt()).filter(move |record| record.id == attempt)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} after {:?}", self.place, self.history)
    }
}

/// What the store holds.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct Store {
    pub rows: Vec<Arc<Row>>,
    /// The newest process of each worker that said hello.
    pub boots: Vec<Option<u8>>,
    /// When a control plane was last alive, in ticks.
    pub alive_at: u8,
    /// End of the outage grace, in ticks.
    pub grace_until: u8,
    /// When the last outage ended, in ticks.
    pub gap_ended_at: u8,
}

impl Store {
    fn marks(&self) -> Marks {
        let Self { alive_at, grace_until, gap_ended_at, .. } = self;
        let alive_at = reading(*alive_at).alive;
        Marks { alive_at, grace_until: at(*grace_until), gap_ended_at: at(*gap_ended_at) }
    }

    /// A control plane says that it is alive.
    pub fn mark(&mut self, now: u8, longest_lease: u8) {
        let longest = i64::from(longest_lease) * TICK_MS;
        let outage = self.marks().show_outage(reading(now));
        let marks = self.marks().renewed(reading(now), outage.then_some(longest));
        [self.alive_at, self.grace_until, self.gap_ended_at] = marks.all().map(ticks);
    }

    pub fn index(&self, row: Seq) -> usize {
        self.rows.iter().position(|other| other.id.seq() == row).expect("the row exists")
    }

    /// Loads what the session asks for, decides, writes: one transaction.
    pub fn execute(&mut self, command: &Command, now: u8, config: &Config) -> Outcome {
        let command = &config.mutant.tamper_command(command, self);
        let numbers = Numbers::new(1_000, 1_000 + command.profile().numbers as i64);
        let mut session = Session::new(std::slice::from_ref(command), numbers, false);
        while let Some((load, world)) = session.next_load() {
            self.load(load, world, command, now, config);
        }
        let mut write = session.write();
        let commits = config.mutant.tamper_writes(command, &mut write.writes);
        let outcome = session.done(&write, Saved::default()).outcomes.remove(0);
        if commits {
            if config.mutant == Mutant::None {
                self.check_leaves(&write.writes);
            }
            self.commit(write.writes);
        }
        config.mutant.tamper_outcome(command, outcome)
    }

    fn load(&self, load: &Load<'_>, world: &mut World, command: &Command, now: u8, config: &Config) {
        if load.begin {
            world.begin(at(now), config.mutant.tamper_marks(self.marks()).grace(reading(now)));
            let open = self.rows.iter().filter(|row| matches!(row.place, Place::Running(_))).count();
            world.add_queue(config.queue(), config.mutant.tamper_open(open) as u32);
        }
        let seen = self.rows.iter().map(|row| {
            let (mut place, mut history) = (row.place.clone(), row.history.clone());
            config.mutant.tamper_row(command, &mut place, &mut history);
            (row.id, place, history)
        });
        let seen: Vec<_> = seen.collect();
        for ((id, place, history), body) in seen.iter().zip(&config.bodies) {
            let (id, row) = (*id, id.seq());
            if load.tasks.rows.contains(&row) {
                world.add_task(Task { id, place: place.clone(), body: None });
            }
            if load.tasks.bodies.contains(&row) {
                world.add_body(Arc::clone(body));
            }
            let wanted = |closed: &&ClosedAttempt| {
                load.tasks.attempts.contains(&row) || load.tasks.named_attempts.contains(&(row, closed.number))
            };
            history.iter().filter(wanted).for_each(|closed| world.add_attempt(row, closed.clone()));
        }
        let held = |mine: &dyn Fn(&Running) -> bool| -> Vec<(TaskId, Running)> {
            let held = seen.iter().filter_map(|(id, place, _)| match place {
                Place::Running(held) if mine(held) => Some((*id, held.clone())),
                _ => None,
            });
            held.collect()
        };
        for (index, claim) in &load.claims.repeats {
            let name = claim.claimer.name();
            let mine = |held: &Running| held.lease.holder.as_ref().zip(held.claim_id.as_ref()) == name;
            world.add_claimed(*index, claim, held(&mine));
        }
        for ready in &load.claims.ready {
            let found = seen.iter().filter_map(|(id, place, _)| match place {
                Place::Ready(waiting) if waiting.queue == ready.queue => Some((*id, waiting.clone())),
                _ => None,
            });
            world.add_ready(ready.queue, found.collect());
        }
        for worker in &load.workers.names {
            if let Some(boot) = self.boots[worker_index(worker)] {
                world.add_incarnation(worker, boot_name(boot));
            }
        }
        for hello in &load.workers.held {
            world.add_held(hello, held(&|held: &Running| held.lease.holder.as_ref() == Some(&hello.worker)));
        }
    }

    /// A row is deleted where it stands, and nowhere else.
    fn check_leaves(&self, writes: &Writes) {
        let stands = |row: &Seq, expected: fn(&Place) -> bool| assert!(expected(&self.rows[self.index(*row)].place));
        writes.tasks.unschedule.iter().for_each(|row| stands(row, |place| matches!(place, Place::Scheduled(_))));
        writes.tasks.unready.iter().for_each(|row| stands(row, |place| matches!(place, Place::Ready(_))));
        writes.tasks.unrun.iter().for_each(|row| stands(row, |place| matches!(place, Place::Running(_))));
        writes.tasks.unfinish.iter().for_each(|row| stands(row, |place| matches!(place, Place::Finished(_))));
        writes.tasks.renew.iter().for_each(|(row, _)| stands(row, |place| matches!(place, Place::Running(_))));
    }

    /// Writes the rows as a store does, and insists that what leaves a place enters one.
    fn commit(&mut self, writes: Writes) {
        let left = [writes.tasks.unschedule, writes.tasks.unready, writes.tasks.unrun, writes.tasks.unfinish].concat();
        let schedule = writes.tasks.schedule.into_iter().map(|(id, row)| (id, Place::Scheduled(row)));
        let ready = writes.tasks.ready.into_iter().map(|(id, row)| (id, Place::Ready(row)));
        let run = writes.tasks.run.into_iter().map(|(id, row)| (id, Place::Running(row)));
        let finish = writes.tasks.finish.into_iter().map(|(id, row)| (id, Place::Finished(row)));
        let mut entered = Vec::new();
        for (id, place) in schedule.chain(ready).chain(run).chain(finish) {
            entered.push(id.seq());
            self.row_mut(id.seq()).place = place;
        }
        assert_eq!(sorted(left), sorted(entered));
        for (row, running) in writes.tasks.renew {
            self.row_mut(row).place = Place::Running(running);
        }
        for (row, closed) in writes.tasks.attempts {
            let history = &mut self.row_mut(row).history;
            history.retain(|old| old.number != closed.number);
            history.push(closed);
            history.sort_by_key(|old| old.number);
        }
        for (row, number) in writes.tasks.drop_attempts {
            self.row_mut(row).history.retain(|old| old.number != number);
        }
        for hello in writes.hellos {
            self.boots[worker_index(&hello.worker)] = Some(hello.incarnation.parse().expect("processes are numbered"));
        }
    }

    /// Ends the changes of a command, once they were looked at.
    pub fn seal(&mut self, config: &Config) {
        for row in self.rows.iter_mut().filter(|row| row.digest == OPEN) {
            let row = Arc::make_mut(row);
            row.forget(config);
            row.seal();
        }
    }

    /// For a change: [`Store::seal`] comes last.
    fn row_mut(&mut self, row: Seq) -> &mut Row {
        let index = self.index(row);
        let row = Arc::make_mut(&mut self.rows[index]);
        row.digest = OPEN;
        row
    }
}

/// The clock of the model begins at 0, where a mark of life would be none.
fn reading(now: u8) -> Reading {
    Reading { now: at(now), alive: at(now).plus(1) }
}

fn sorted(mut rows: Vec<Seq>) -> Vec<Seq> {
    rows.sort_unstable();
    rows
}

/// The record of the last attempt, in the row of the task's place.
pub fn last_attempt(place: &mut Place) -> Option<&mut ClosedAttempt> {
    let carry: &mut Carry = match place {
        Place::Scheduled(waiting) | Place::Ready(waiting) => &mut waiting.carry,
        Place::Blocked(_) | Place::Running(_) => return None,
        Place::Finished(finished) => &mut finished.carry,
    };
    carry.last.as_deref_mut()
}

pub fn boot_name(boot: u8) -> Arc<str> {
    boot.to_string().into()
}

/// A time of the core in ticks of the model.
pub fn ticks(time: Timestamp) -> u8 {
    u8::try_from(time.as_millis() / TICK_MS).unwrap_or(u8::MAX)
}
