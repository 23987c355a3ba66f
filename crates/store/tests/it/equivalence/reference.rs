//! The core in memory: everything in maps, everything loaded for every batch. What a store loads and writes less, and
//! how, must make no difference.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tenure_core::attempt::ClosedAttempt;
use tenure_core::batch::{Counts, KeyOwner, KnownRun, Outcome, World, Writes};
use tenure_core::command::claim::Claim;
use tenure_core::command::{Answer, Command, Task};
use tenure_core::event::{Fact, FactKind};
use tenure_core::lease::Grace;
use tenure_core::queue::{Queue, QueueId, Transport, rotate};
use tenure_core::run::{Edge, Run, RunTask, Upstream};
use tenure_core::task::{Body, Place, Running, State, Waiting};
use tenure_core::{DurationMs, Seq, Timestamp, WorkerId, limits};
use tenure_store::{Batch, NewRedrive, RedriveFilter, RedriveView};

use crate::common::START;
use crate::equivalence::ops::LATE;

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
    alive_at: Timestamp,
    grace_until: Timestamp,
    outage_ms: DurationMs,
    ahead_ms: DurationMs,
}

/// What a batch came to, in a shape that can be compared.
#[derive(Debug, PartialEq)]
pub struct Came {
    pub outcomes: Vec<Outcome>,
    pub wakes: BTreeMap<Arc<str>, usize>,
    pub freed: BTreeSet<Arc<str>>,
    pub next_due: Option<Timestamp>,
    pub facts: BTreeMap<&'static str, u64>,
    pub now: Timestamp,
}

pub fn fact_counts<'a>(counts: impl IntoIterator<Item = (&'a FactKind, &'a u64)>) -> BTreeMap<&'static str, u64> {
    counts.into_iter().map(|(kind, count)| (kind.as_str(), *count)).collect()
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
            alive_at: Timestamp::MIN,
            grace_until: Timestamp::MIN,
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

    fn alive(&self) -> Timestamp {
        START.plus(self.outage_ms)
    }

    pub fn mark_alive(&mut self) -> Option<Timestamp> {
        let silent = self.alive_at > Timestamp::MIN && self.alive().since(self.alive_at) > limits::OUTAGE_GAP_MS;
        if silent {
            let longest = self.running().map(|(_, running)| running.lease_ttl_ms).max().unwrap_or(0);
            self.grace_until = self.grace_until.max(self.now().plus(longest));
        }
        self.alive_at = self.alive();
        silent.then_some(self.grace_until)
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
        self.make_queue(batch);
        let mut world = self.world(batch);
        let mut outcomes = world.decide(&batch.commands);
        // Whatever there is was loaded: the edges that matter are found among all of them.
        let edges: Vec<Edge> = self.edges.iter().copied().collect();
        while world.ends().is_some() {
            world.follow(&edges);
            world.fill(&HashMap::new(), &HashMap::new());
        }
        let name = |id: &QueueId| Arc::clone(&self.queues[id].name);
        let mut wakes = BTreeMap::new();
        for wake in world.wakes() {
            *wakes.entry(name(&wake.queue)).or_default() += 1;
        }
        // Where the decisions put the tasks, not what was made of that for a store to write.
        let places: Vec<_> = world.tasks.iter().map(|(seq, cell)| (*seq, cell.task.place.clone())).collect();
        let writes = world.writes();
        let freed = writes.counts.iter().filter(|(_, counts)| counts.running < 0).map(|(id, _)| name(id)).collect();
        let next_due = writes.schedule.iter().map(|(_, waiting)| waiting.at).min();
        let mut facts = HashMap::new();
        for fact in &writes.facts {
            *facts.entry(fact.kind).or_default() += 1;
        }
        self.apply(places, writes);
        for outcome in &mut outcomes {
            if let Ok(Answer::Claimed(claimed)) = outcome {
                for grant in &mut claimed.grants {
                    grant.body = self.bodies.get(&grant.seq()).cloned();
                    grant.transport = self.queues[&grant.queue].transport;
                }
            }
            // What was never published has no name by which an older message could be told from it.
            if let Ok(Answer::NotGranted(not)) = outcome
                && not.live.is_some_and(|live| self.queues[&live.queue].transport.is_external())
            {
                not.ack = false;
            }
        }
        Came { outcomes, wakes, freed, next_due, facts: fact_counts(&facts), now: self.now() }
    }

    /// The one queue that does not exist from the start belongs to whoever names it first.
    fn make_queue(&mut self, batch: &Batch) {
        let exists = self.queues.values().any(|queue| &*queue.name == LATE);
        let maker = |command: &Command| match command {
            Command::Submit(submit) if submit.tasks.iter().any(|task| &*task.queue == LATE) => {
                Some(submit.maker.clone())
            }
            Command::SubmitRun(submit) if submit.tasks.iter().any(|member| &*member.task.queue == LATE) => {
                Some(submit.maker.clone())
            }
            Command::SetQueue(set) if &*set.queue == LATE => Some(set.reach.tenant().map(Into::into)),
            Command::PauseQueue(pause) if &*pause.queue == LATE => Some(pause.reach.tenant().map(Into::into)),
            _ => None,
        };
        if let Some(tenant) = batch.commands.iter().find_map(maker).filter(|_| !exists) {
            let id = QueueId(i32::try_from(self.queues.len()).unwrap() + 1);
            self.queues.insert(id, Queue { tenant, transport: transport_of(LATE), ..Queue::new(id, LATE.into()) });
        }
    }

    fn world(&self, batch: &Batch) -> World {
        let grace = Grace::from_marks(self.now(), self.alive().since(self.alive_at), self.grace_until);
        let mut world = World::new(self.now(), grace, batch.numbers);
        for queue in self.queues.values() {
            let running = self.running().filter(|(_, running)| running.queue == queue.id).count();
            world.add_queue(queue.clone(), u32::try_from(running).unwrap());
            let candidates = self.candidates(queue);
            if candidates.is_empty() {
                world.empty.insert(queue.id);
            }
            world.candidates.insert(queue.id, candidates.into());
        }
        for (seq, place) in &self.places {
            let body = &self.bodies[seq];
            world.add_task(Task { id: body.id, place: place.clone(), body: Some(Arc::clone(body)) });
        }
        for ((seq, _), attempt) in &self.attempts {
            world.history.entry(*seq).or_default().push(attempt.clone());
        }
        for (seq, body) in &self.bodies {
            if let Some(idempotency) = &body.idempotency {
                let scope = (Arc::clone(&body.tenant), Arc::clone(&body.workspace), Arc::clone(&idempotency.key));
                let state = self.places[seq].state();
                let (id, owner, fingerprint) = (body.id, body.owner.clone(), idempotency.fingerprint);
                world.keys.insert(scope, KeyOwner { id, owner, fingerprint, state });
            }
        }
        for run in self.runs.values() {
            world.add_run(run.clone());
            if let Some(key) = &run.key {
                let known = KnownRun { id: run.id, owner: run.owner.clone(), fingerprint: run.fingerprint };
                world.run_keys.insert((Arc::clone(&run.tenant), Arc::clone(&run.workspace), Arc::clone(key)), known);
            }
        }
        world.incarnations.extend(self.workers.clone());
        for (index, command) in batch.commands.iter().enumerate() {
            match command {
                Command::Claim(claim) => {
                    let rows = self.repeats(claim, batch.retrying);
                    if !rows.is_empty() {
                        world.repeats.insert(index, rows);
                    }
                }
                Command::CancelRun(cancel) => {
                    let run = cancel.run.seq();
                    let open = |row: &Seq| !matches!(self.places[row], Place::Finished(_));
                    world.members.insert(run, self.tasks_of(run).filter(open).collect());
                }
                Command::Hello(hello) => {
                    let held = self.running().filter(|(_, running)| {
                        let older = running.incarnation.as_ref().is_some_and(|known| **known < *hello.incarnation);
                        running.lease.holder.as_ref() == Some(&hello.worker) && older
                    });
                    world.held.entry(Arc::clone(&hello.worker)).or_default().extend(held.map(|(seq, _)| seq));
                }
                _ => {}
            }
        }
        world
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

    /// All that is ready in a queue, in the order of grants.
    fn candidates(&self, queue: &Queue) -> Vec<Seq> {
        let mut ready: Vec<(Seq, &Waiting)> = self
            .places
            .iter()
            .filter_map(|(seq, place)| match place {
                Place::Ready(waiting) if waiting.queue == queue.id => Some((*seq, waiting)),
                _ => None,
            })
            .collect();
        ready.sort_by_key(|(seq, waiting)| (waiting.priority, waiting.at, *seq));
        if queue.settings.fairness_key.is_some() {
            let value = |(_, waiting): &(Seq, &Waiting)| waiting.fair.clone().unwrap_or_default();
            ready = rotate(ready, queue.fair_cursor.as_deref(), value);
        }
        ready.into_iter().map(|(seq, _)| seq).collect()
    }

    /// What this claim was granted before: by its name, or by what it would draw.
    fn repeats(&self, claim: &Claim, retrying: bool) -> Vec<Seq> {
        let claimer = &claim.claimer;
        let is_mine = |running: &Running| match claimer.name() {
            Some(name) => running.lease.holder.as_ref().zip(running.claim_id.as_ref()) == Some(name),
            None => retrying && claimer.was_granted(running, claim.max_jobs),
        };
        let drawn = |running: &Running| {
            let place = (0..claim.max_jobs).position(|grant| claimer.seed.draw(grant).0 == running.attempt_id);
            place.unwrap_or(usize::MAX)
        };
        let mut held: Vec<_> = self.running().filter(|(_, running)| is_mine(running)).collect();
        held.sort_by_key(|(seq, running)| (drawn(running), *seq));
        held.into_iter().map(|(seq, _)| seq).collect()
    }

    fn apply(&mut self, places: Vec<(Seq, Place)>, writes: Writes) {
        self.bodies.extend(writes.bodies.into_iter().map(|body| (body.seq(), body)));
        self.places.extend(places);
        for (seq, payload) in writes.payloads {
            let body = Body { payload, ..(*self.bodies[&seq]).clone() };
            self.bodies.insert(seq, Arc::new(body));
        }
        self.runs.extend(writes.new_runs.into_iter().chain(writes.runs).map(|run| (run.id.seq(), run)));
        self.run_tasks.extend(writes.run_tasks.into_iter().map(|task| (task.task, task)));
        self.edges.retain(|edge| !writes.resolved.contains(&edge.upstream));
        self.edges.extend(writes.edges);
        for (seq, number) in writes.drop_attempts {
            self.attempts.remove(&(seq, number));
        }
        self.attempts.extend(writes.attempts.into_iter().map(|(seq, closed)| ((seq, closed.number), closed)));
        self.queues.extend(writes.queues.into_iter().map(|queue| (queue.id, queue)));
        for id in writes.refair {
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
                Place::Blocked(_) => {}
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
