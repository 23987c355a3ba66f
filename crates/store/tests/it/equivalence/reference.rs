//! A third store, in memory: everything in maps, and everything loaded for every batch. That other stores load and write
//! less, and how they do it, must make no difference.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tenure_core::attempt::ClosedAttempt;
use tenure_core::batch::{Counts, Done, KnownRun, Load, Outcome, Saved, Session, World, Writes};
use tenure_core::command::Task;
use tenure_core::event::Fact;
use tenure_core::outage::{Marks, Reading};
use tenure_core::queue::{Queue, QueueId, Transport};
use tenure_core::run::{Edge, Run, RunTask, Upstream};
use tenure_core::task::{Body, Place, Running, State, Waiting};
use tenure_core::{DurationMs, Seq, TaskId, Timestamp, WorkerId};
use tenure_store::{Batch, NewRedrive, RedriveFilter, RedriveView};

use crate::common::START;

#[derive(Debug)]
pub struct Reference {
    pub queues: BTreeMap<QueueId, Queue>,
    pub bodies: BTreeMap<Seq, Arc<Body>>,
    pub places: BTreeMap<Seq, Place>,
    pub attempts: BTreeMap<(Seq, u32), ClosedAttempt>,
    pub facts: Vec<(Timestamp, Vec<Fact>)>,
    pub redrives: BTreeMap<u128, (Option<String>, RedriveView)>,
    pub runs: BTreeMap<Seq, Run>,
    pub run_tasks: BTreeMap<Seq, RunTask>,
    pub edges: BTreeSet<Edge>,
    workers: HashMap<WorkerId, Arc<str>>,
    marks: Marks,
    outage_ms: DurationMs,
    ahead_ms: DurationMs,
}

/// What a batch came to, in a shape that can be compared.
#[derive(Debug, PartialEq)]
pub struct Came {
    pub outcomes: Vec<Outcome>,
    wakes: BTreeMap<Arc<str>, usize>,
    freed: BTreeSet<Arc<str>>,
    next_due: Option<Timestamp>,
    facts: BTreeMap<&'static str, u64>,
    now: Timestamp,
}

impl From<Done> for Came {
    fn from(done: Done) -> Self {
        Self {
            outcomes: done.outcomes,
            wakes: done.wakes.into_iter().collect(),
            freed: done.freed.into_iter().collect(),
            next_due: done.next_due,
            facts: done.facts.into_iter().map(|(kind, count)| (kind.as_str(), count)).collect(),
            now: done.now,
        }
    }
}

impl Reference {
    /// The queues exist from the start, under the ids that a store gives them one after the other. `own` is that of
    /// `tenant`.
    pub fn new(names: &[&str], own: &str, tenant: &str) -> Self {
        let queue = |(id, name): (QueueId, &&str)| {
            let tenant = (*name == own).then(|| tenant.into());
            (id, Queue { tenant, transport: transport_of(name), ..Queue::new(id, (*name).into()) })
        };
        let queues = (1..).map(QueueId).zip(names).map(queue).collect();
        Self {
            queues,
            bodies: BTreeMap::new(),
            places: BTreeMap::new(),
            attempts: BTreeMap::new(),
            facts: Vec::new(),
            redrives: BTreeMap::new(),
            runs: BTreeMap::new(),
            run_tasks: BTreeMap::new(),
            edges: BTreeSet::new(),
            workers: HashMap::new(),
            marks: Marks::NONE,
            outage_ms: 0,
            ahead_ms: 0,
        }
    }

    pub fn advance(&mut self, ms: DurationMs) {
        self.ahead_ms += ms;
    }

    pub fn advance_through_outage(&mut self, ms: DurationMs) {
        self.outage_ms += ms;
    }

    pub fn now(&self) -> Timestamp {
        START.plus(self.outage_ms + self.ahead_ms)
    }

    fn reading(&self) -> Reading {
        Reading { now: self.now(), alive: START.plus(self.outage_ms) }
    }

    pub fn mark_alive(&mut self) -> Option<Timestamp> {
        let (reading, longest) = (self.reading(), self.running().map(|(_, running)| running.lease_ttl_ms).max());
        let longest = self.marks.show_outage(reading).then(|| longest.unwrap_or(0));
        self.marks = self.marks.renewed(reading, longest);
        longest.map(|_| self.marks.grace_until)
    }

    fn running(&self) -> impl Iterator<Item = (Seq, &Running)> {
        self.places.iter().filter_map(|(seq, place)| match place {
            Place::Running(running) => Some((*seq, running)),
            _ => None,
        })
    }

    pub fn expired(&self) -> BTreeSet<Seq> {
        let now = self.now();
        let is_over = |place: &Place| match place {
            Place::Running(running) => running.lease.expires_at <= now,
            Place::Scheduled(waiting) | Place::Ready(waiting) => waiting.carry.spec.is_past_deadline(now),
            Place::Blocked(blocked) => blocked.carry.spec.is_past_deadline(now),
            Place::Finished(_) => false,
        };
        self.places.iter().filter(|(_, place)| is_over(place)).map(|(seq, _)| *seq).collect()
    }

    pub fn due(&self) -> BTreeSet<Seq> {
        let is_due = |place: &Place| matches!(place, Place::Scheduled(waiting) if waiting.at <= self.now());
        self.places.iter().filter(|(_, place)| is_due(place)).map(|(seq, _)| *seq).collect()
    }

    pub fn execute(&mut self, batch: &Batch) -> Came {
        let mut session = Session::new(&batch.commands, batch.numbers, batch.retrying);
        while let Some((load, world)) = session.next_load() {
            if load.begin {
                self.make_queues(&load.queues.make);
                self.load_all(world);
            }
            self.load_asked(load, world);
        }
        // Where the decisions put the tasks, not what was made of that for a store to write.
        let places = session.world().tasks().map(|task| (task.id.seq(), task.place.clone())).collect();
        let write = session.write();
        // Nobody publishes wake-ups: there are no receipts.
        let body = |row: &Seq| Some((*row, Arc::clone(self.bodies.get(row)?)));
        let saved = Saved { bodies: write.bodies.iter().filter_map(body).collect(), ..Saved::default() };
        let done = session.done(&write, saved);
        self.apply(places, write.writes);
        done.into()
    }

    fn make_queues(&mut self, make: &BTreeMap<&Arc<str>, Option<&str>>) {
        for (name, tenant) in make {
            if self.queues.values().all(|queue| queue.name != **name) {
                let id = QueueId(i32::try_from(self.queues.len()).unwrap() + 1);
                let (tenant, transport) = (tenant.map(Into::into), transport_of(name));
                self.queues.insert(id, Queue { tenant, transport, ..Queue::new(id, Arc::clone(name)) });
            }
        }
    }

    /// All that there is, whatever is asked for.
    fn load_all(&self, world: &mut World) {
        world.begin(self.now(), self.marks.grace(self.reading()));
        for queue in self.queues.values() {
            let running = self.running().filter(|(_, running)| running.queue == queue.id).count();
            world.add_queue(queue.clone(), u32::try_from(running).unwrap());
        }
        for (seq, place) in &self.places {
            let body = &self.bodies[seq];
            world.add_task(Task { id: body.id, place: place.clone(), body: Some(Arc::clone(body)) });
            if body.idempotency.is_some() {
                world.add_key((**body).clone());
            }
        }
        for ((seq, _), attempt) in &self.attempts {
            world.add_attempt(*seq, attempt.clone());
        }
        for run in self.runs.values() {
            world.add_run(run.clone());
            if let Some(key) = &run.key {
                let known = KnownRun { id: run.id, owner: run.owner.clone(), fingerprint: run.fingerprint };
                world.add_run_key((Arc::clone(&run.tenant), Arc::clone(&run.workspace), Arc::clone(key)), known);
            }
        }
        for (worker, incarnation) in &self.workers {
            world.add_incarnation(worker, Arc::clone(incarnation));
        }
    }

    /// What a command, or an end, has to be answered with. Here too, more than it asks for.
    fn load_asked(&self, load: &Load<'_>, world: &mut World) {
        let held = || self.running().map(|(seq, running)| (self.bodies[&seq].id, running.clone())).collect();
        for (index, claim) in &load.claims.repeats {
            world.add_claimed(*index, claim, held());
        }
        for hello in &load.workers.held {
            world.add_held(hello, held());
        }
        for ready in &load.claims.ready {
            world.add_ready(ready.queue, self.candidates(ready.queue));
        }
        for run in &load.runs.members {
            let open = |row: &Seq| !matches!(self.places[row], Place::Finished(_));
            self.tasks_of(*run).filter(open).for_each(|row| world.add_member(*run, row));
        }
        if !(load.runs.satisfied.is_empty() && load.runs.broken.is_empty()) {
            self.edges.iter().for_each(|edge| world.add_edge(*edge));
        }
    }

    pub fn tasks_of(&self, run: Seq) -> impl Iterator<Item = Seq> {
        self.run_tasks.values().filter(move |task| task.run == run).map(|task| task.task)
    }

    /// What a task waits for, or has waited for.
    pub fn upstream(&self, row: Seq) -> Vec<Upstream> {
        let waits = self.run_tasks.get(&row).into_iter().flat_map(|task| &task.depends_on);
        let upstream = waits.map(|row| {
            let body = &self.bodies[row];
            Upstream { key: Arc::clone(body.task_key()), task: body.id, state: self.places[row].state() }
        });
        upstream.filter(|upstream| upstream.state != State::Succeeded).collect()
    }

    /// All that is ready in a queue, by priority and age.
    fn candidates(&self, queue: QueueId) -> Vec<(TaskId, Waiting)> {
        let ready = self.places.iter().filter_map(|(seq, place)| match place {
            Place::Ready(waiting) if waiting.queue == queue => Some((self.bodies[seq].id, waiting.clone())),
            _ => None,
        });
        let mut ready: Vec<_> = ready.collect();
        ready.sort_by_key(|(id, waiting)| (waiting.priority, waiting.at, id.seq()));
        ready
    }

    fn apply(&mut self, places: Vec<(Seq, Place)>, writes: Writes) {
        self.bodies.extend(writes.tasks.bodies.into_iter().map(|body| (body.seq(), body)));
        self.places.extend(places);
        for (seq, payload) in writes.runs.payloads {
            let body = Body { payload, ..(*self.bodies[&seq]).clone() };
            self.bodies.insert(seq, Arc::new(body));
        }
        self.runs.extend(writes.runs.new.into_iter().chain(writes.runs.changed).map(|run| (run.id.seq(), run)));
        self.run_tasks.extend(writes.runs.tasks.into_iter().map(|task| (task.task, task)));
        self.edges.retain(|edge| !writes.runs.resolved.contains(&edge.upstream));
        self.edges.extend(writes.runs.edges);
        for (seq, number) in writes.tasks.drop_attempts {
            self.attempts.remove(&(seq, number));
        }
        self.attempts.extend(writes.tasks.attempts.into_iter().map(|(seq, closed)| ((seq, closed.number), closed)));
        self.queues.extend(writes.queues.changed.into_iter().map(|queue| (queue.id, queue)));
        for id in writes.queues.refair {
            let key = self.queues[&id].settings.fairness_key.clone();
            for (seq, place) in self.places.iter_mut().filter(|(_, place)| place.queue() == id) {
                let value = key.as_ref().map(|key| self.bodies[seq].fairness_value(key));
                match place {
                    Place::Scheduled(waiting) | Place::Ready(waiting) => waiting.fair = value,
                    Place::Running(running) => running.fair = value,
                    Place::Blocked(blocked) => blocked.fair = value,
                    Place::Finished(_) => {}
                }
            }
        }
        self.workers.extend(writes.hellos.into_iter().map(|hello| (hello.worker, hello.incarnation)));
        for step in writes.redrives {
            if let Some((_, redrive)) = self.redrives.get_mut(&step.redrive_id) {
                redrive.cursor = step.cursor;
                redrive.released += step.released;
                redrive.finished = step.finished;
            }
        }
        if !writes.facts.is_empty() {
            self.facts.push((self.now(), writes.facts));
        }
    }

    pub fn counts(&self, queue: QueueId) -> Counts {
        let mut counts = Counts::default();
        for place in self.places.values().filter(|place| place.queue() == queue) {
            match place {
                Place::Blocked(_) => counts.blocked += 1,
                Place::Scheduled(_) => counts.scheduled += 1,
                Place::Ready(_) => counts.ready += 1,
                Place::Running(_) => counts.running += 1,
                Place::Finished(finished) => {
                    counts.finished += 1;
                    counts.dead_lettered += i64::from(finished.dead_lettered_at.is_some());
                }
            }
        }
        counts
    }

    pub fn dead_letters(&self, filter: &RedriveFilter, after: Seq) -> Vec<Seq> {
        let matches = |seq: &Seq| {
            let Some(Place::Finished(finished)) = self.places.get(seq) else { return false };
            let body = &self.bodies[seq];
            let same = |wanted: &Option<String>, is: Option<&str>| wanted.is_none() || wanted.as_deref() == is;
            finished.dead_lettered_at.is_some_and(|at| {
                filter.after.is_none_or(|after| at >= after) && filter.before.is_none_or(|before| at < before)
            }) && same(&filter.queue, self.queues.get(&finished.queue).map(|queue| &*queue.name))
                && same(&filter.operator, Some(&body.operator))
                && same(&filter.reason, finished.reason.map(|reason| reason.as_str()))
                && same(&filter.error_code, finished.failure.as_ref().map(|failure| &*failure.code))
                && same(&filter.tenant, Some(&body.tenant))
                && same(&filter.owner, body.owner.as_deref())
                && filter.rows.as_ref().is_none_or(|rows| rows.contains(seq))
        };
        self.places.keys().copied().filter(|seq| *seq > after).filter(matches).collect()
    }

    pub fn start_redrive(&mut self, new: &NewRedrive) -> RedriveView {
        let known = self
            .redrives
            .values()
            .find(|(key, view)| view.redrive_id == new.redrive_id || (key.is_some() && *key == new.key));
        if let Some((_, known)) = known {
            return known.clone();
        }
        let matched = self.dead_letters(&new.filter, Seq(0)).len() as u64;
        let view = RedriveView {
            redrive_id: new.redrive_id,
            filter: new.filter.clone(),
            rate: new.rate,
            matched,
            released: 0,
            cursor: Seq(0),
            started_at: self.now(),
            finished: matched == 0,
            paused: false,
            canceled: false,
        };
        self.redrives.insert(new.redrive_id, (new.key.clone(), view.clone()));
        view
    }

    pub fn open_redrives(&self) -> Vec<RedriveView> {
        self.redrives.values().map(|(_, view)| view).filter(|view| !view.finished).cloned().collect()
    }
}

/// How the wake-ups of the story's queues travel. Nobody publishes any.
pub fn transport_of(queue: &str) -> Transport {
    if queue == "high" { Transport::Embedded } else { Transport::Redis }
}
