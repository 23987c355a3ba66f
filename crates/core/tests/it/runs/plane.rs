//! A store of runs in memory: it loads for a batch what a real one loads, and counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::attempt::{Category, Failure, Report};
use tenure_core::batch::{KnownRun, Outcome, RunLoad, Saved, Session, TaskLoad, World, Writes};
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::claim::{ClaimTask, Claimer, Seed};
use tenure_core::command::report::AttemptReport;
use tenure_core::command::run::{CancelRun, NewMember, NewRun, SubmitRun};
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Command, Numbers, Reach, Task};
use tenure_core::event::FactKind;
use tenure_core::lease::Grace;
use tenure_core::queue::{Queue, QueueId};
use tenure_core::run::{Edge, Run, RunState, RunTask};
use tenure_core::task::{Place, Spec, State};
use tenure_core::{RunId, Seq, TaskId, Timestamp};

pub const RUN: i64 = 900_000;

#[derive(Debug, Default)]
pub struct Plane {
    pub tasks: BTreeMap<Seq, Task>,
    pub edges: BTreeSet<Edge>,
    pub runs: BTreeMap<Seq, Run>,
    pub members: Vec<RunTask>,
    pub facts: Vec<(FactKind, TaskId)>,
    /// Rows of tasks and edges that the consequences of the last batch had to load.
    pub touched: usize,
    pub woken: Vec<TaskId>,
    /// How often the last batch had to look for what its ends lead to.
    pub rounds: usize,
    /// Edges and tasks are found in the opposite order, and edges twice.
    pub backwards: bool,
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

pub fn id(task: usize) -> TaskId {
    TaskId::new(0, 0, Seq(1 + task as i64))
}

pub fn run_id() -> RunId {
    RunId::from_u128(TaskId::new(0, 0, Seq(RUN)).as_u128())
}

pub fn key(task: usize) -> Arc<str> {
    format!("t{task}").into()
}

pub fn new_task(task: usize, payload: &str, spec: Spec) -> NewTask {
    NewTask {
        id: id(task),
        queue: "q".into(),
        operator: "work".into(),
        tenant: "acme".into(),
        owner: None,
        workspace: "default".into(),
        priority: 5,
        payload: payload.into(),
        spec,
        start: Start::Now,
        tags: BTreeMap::new(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
    }
}

/// One attempt each, so that every failure is final.
pub fn member(task: usize, depends_on: &[usize]) -> NewMember {
    let spec = Spec { max_attempts: Some(1), ..Spec::default() };
    NewMember {
        key: key(task),
        task: new_task(task, "{}", spec),
        depends_on: depends_on.to_vec(),
        refs: Vec::new(),
        carried: None,
    }
}

pub fn submission(tasks: Vec<NewMember>) -> SubmitRun {
    let run = NewRun {
        id: run_id(),
        key: Some("daily".into()),
        tenant: "acme".into(),
        workspace: "default".into(),
        owner: None,
        fingerprint: [1; 32],
        labels: BTreeMap::new(),
        deadline: None,
        parent: None,
    };
    SubmitRun { run, tasks, maker: None }
}

fn seed(task: usize) -> Seed {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(task as u64).to_be_bytes());
    Seed(bytes)
}

pub fn claim(task: usize) -> Command {
    let claimer = Claimer::worker("w".into(), seed(task));
    Command::ClaimTask(ClaimTask { claimer, task: id(task), message: None })
}

pub fn complete(task: usize, result: &str) -> Command {
    let (attempt_id, token) = seed(task).draw(0);
    let report = Report::succeeded(Some(result.into()));
    Command::Report(AttemptReport { task: id(task), attempt_id, token, report, data: None })
}

pub fn fail(task: usize, code: &str) -> Command {
    let (attempt_id, token) = seed(task).draw(0);
    let category = (code == "CANCELLED").then_some(Category::Canceled);
    let report = Report::failed(Failure::new(code, "it broke", None, None).of_category(category));
    Command::Report(AttemptReport { task: id(task), attempt_id, token, report, data: None })
}

pub fn cancel(task: usize) -> Command {
    Command::Cancel(Cancel { task: id(task), reason: "stop".into(), mode: Mode::Immediate, reach: Reach::All })
}

pub fn cancel_run(mode: Mode) -> Command {
    Command::CancelRun(CancelRun { run: run_id(), reason: "enough".into(), mode, reach: Reach::All })
}

impl Plane {
    /// A plane with this run.
    pub fn with(tasks: Vec<NewMember>) -> Self {
        let mut plane = Self::default();
        plane.one(Command::SubmitRun(submission(tasks)), 0).expect("the run is new");
        plane
    }

    pub fn one(&mut self, command: Command, now: i64) -> Outcome {
        self.execute(&[command], now).remove(0)
    }

    /// One transaction: load, decide, draw the consequences, write.
    pub fn execute(&mut self, commands: &[Command], now: i64) -> Vec<Outcome> {
        let numbers = commands.iter().map(|command| command.profile().numbers).sum::<usize>() as i64;
        let mut session = Session::new(commands, Numbers::new(1_000_000, 1_000_000 + numbers), false);
        (self.touched, self.rounds) = (0, 0);
        while let Some((load, world)) = session.next_load() {
            if load.begin {
                world.begin(at(now), Grace::NONE);
                world.add_queue(Queue::new(QueueId(1), "q".into()), 0);
            }
            self.load_tasks(&load.tasks, world);
            self.load_runs(&load.runs, world);
            self.load_edges(&load.runs, world);
        }
        self.woken = session.world().wakes().map(|wake| wake.task).collect();
        let write = session.write();
        let outcomes = session.done(&write, Saved::default()).outcomes;
        self.write(write.writes);
        outcomes
    }

    fn load_tasks(&mut self, load: &TaskLoad, world: &mut World) {
        for task in load.rows.iter().filter_map(|row| self.tasks.get(row)) {
            world.add_task(task.clone());
        }
        for task in load.blocked.iter().filter_map(|row| self.tasks.get(row)) {
            if let Place::Blocked(_) = &task.place {
                self.touched += 1;
                world.add_task(task.clone());
            }
        }
    }

    fn load_runs(&self, load: &RunLoad, world: &mut World) {
        for run in load.rows.iter().filter_map(|row| self.runs.get(row)) {
            world.add_run(run.clone());
        }
        for scope in &load.keys {
            let has_it =
                |run: &&Run| (&run.tenant, &run.workspace, run.key.as_ref()) == (&scope.0, &scope.1, Some(&scope.2));
            if let Some(run) = self.runs.values().find(has_it) {
                let known = KnownRun { id: run.id, owner: run.owner.clone(), fingerprint: run.fingerprint };
                world.add_run_key(scope.clone(), known);
            }
        }
        let mut members: Vec<&RunTask> = self.members.iter().filter(|task| load.members.contains(&task.run)).collect();
        if self.backwards {
            members.reverse();
        }
        for member in members {
            let task = &self.tasks[&member.task];
            if !matches!(task.place, Place::Finished(_)) {
                world.add_member(member.run, member.task);
                world.add_task(task.clone());
            }
        }
        for row in &load.bodies {
            self.tasks[row].body.iter().for_each(|body| world.add_whole_body(Arc::clone(body)));
        }
        for row in load.results.union(&load.result_sizes) {
            let Place::Finished(finished) = &self.tasks[row].place else { panic!("it has not ended") };
            if load.results.contains(row) {
                world.add_result(*row, finished.result.clone());
            } else {
                world.add_result_size(*row, finished.result.as_ref().map_or(0, |result| result.len()));
            }
        }
    }

    fn load_edges(&mut self, load: &RunLoad, world: &mut World) {
        let mut edges = Vec::new();
        let mut line: Vec<(Seq, bool)> = load.broken.iter().map(|row| (*row, true)).collect();
        line.extend(load.satisfied.iter().map(|row| (*row, false)));
        self.rounds += usize::from(!line.is_empty());
        let mut seen = BTreeSet::new();
        while let Some((row, on)) = line.pop() {
            if !seen.insert(row) {
                continue;
            }
            let from = Edge { upstream: row, downstream: Seq(i64::MIN) };
            for edge in self.edges.range(from..).take_while(|edge| edge.upstream == row) {
                edges.push(*edge);
                if on {
                    line.push((edge.downstream, true));
                }
            }
        }
        self.touched += edges.len();
        if self.backwards {
            edges.reverse();
            edges.extend_from_within(..);
        }
        edges.into_iter().for_each(|edge| world.add_edge(edge));
    }

    fn write(&mut self, writes: Writes) {
        for body in writes.tasks.bodies {
            let stands = Task { id: body.id, place: placeholder(), body: Some(Arc::clone(&body)) };
            self.tasks.insert(body.seq(), stands);
        }
        for row in &writes.tasks.unblock {
            assert!(matches!(self.tasks[row].place, Place::Blocked(_)), "it was there");
        }
        let block = writes.tasks.block.into_iter().map(|(id, row)| (id, Place::Blocked(row)));
        let schedule = writes.tasks.schedule.into_iter().map(|(id, row)| (id, Place::Scheduled(row)));
        let ready = writes.tasks.ready.into_iter().map(|(id, row)| (id, Place::Ready(row)));
        let run = writes.tasks.run.into_iter().map(|(id, row)| (id, Place::Running(row)));
        let finish = writes.tasks.finish.into_iter().map(|(id, row)| (id, Place::Finished(row)));
        for (id, place) in block.chain(schedule).chain(ready).chain(run).chain(finish) {
            self.tasks.get_mut(&id.seq()).expect("it has a body").place = place;
        }
        for (row, running) in writes.tasks.renew {
            self.tasks.get_mut(&row).expect("it is held").place = Place::Running(running);
        }
        for (row, waiting_on) in writes.tasks.count_down {
            let Some(Task { place: Place::Blocked(blocked), .. }) = self.tasks.get_mut(&row) else {
                panic!("only what is blocked counts down")
            };
            blocked.waiting_on = waiting_on;
        }
        for (row, payload) in writes.runs.payloads {
            let task = self.tasks.get_mut(&row).expect("it is there");
            let mut body = (**task.body.as_ref().expect("it has a body")).clone();
            body.payload = payload;
            task.body = Some(Arc::new(body));
        }
        for row in &writes.runs.resolved {
            self.edges.retain(|edge| edge.upstream != *row);
        }
        self.edges.extend(writes.runs.edges);
        self.members.extend(writes.runs.tasks);
        for run in writes.runs.new.into_iter().chain(writes.runs.changed) {
            self.runs.insert(run.id.seq(), run);
        }
        self.facts.extend(writes.facts.iter().map(|fact| (fact.kind, fact.task)));
    }

    pub fn state(&self, task: usize) -> State {
        self.tasks[&id(task).seq()].place.state()
    }

    pub fn states(&self) -> Vec<State> {
        self.tasks.values().map(|task| task.place.state()).collect()
    }

    pub fn run(&self) -> &Run {
        &self.runs[&run_id().seq()]
    }

    pub fn run_state(&self) -> RunState {
        self.run().state()
    }

    pub fn payload(&self, task: usize) -> &str {
        &self.tasks[&id(task).seq()].body.as_ref().expect("it has a body").payload
    }

    pub fn claim_all(&mut self, now: i64) {
        for task in 0..self.tasks.len() {
            if self.state(task) == State::Ready {
                self.one(claim(task), now).expect("a claim is answered");
            }
        }
    }

    /// What holds whatever happened.
    pub fn check(&self) {
        let run = self.run();
        let count = |state| self.states().iter().filter(|other| **other == state).count() as u32;
        assert_eq!(run.counts.total() as usize, self.tasks.len());
        assert_eq!(run.counts.succeeded, count(State::Succeeded), "{run:?}");
        assert_eq!(run.counts.failed, count(State::Failed), "{run:?}");
        assert_eq!(run.counts.skipped, count(State::Skipped), "{run:?}");
        assert_eq!(run.counts.canceled, count(State::Canceled), "{run:?}");
        assert_eq!(run.finished_at.is_some(), run.counts.open == 0);
        for task in self.tasks.values() {
            if let Place::Blocked(blocked) = &task.place {
                let waits = self.edges.iter().filter(|edge| edge.downstream == task.id.seq()).count();
                assert_eq!(blocked.waiting_on as usize, waits, "it counts its open edges: {task:?}");
                assert!(waits > 0, "what waits for nothing is not blocked: {task:?}");
            }
        }
    }
}

/// Stands in until the row of a new task is written.
fn placeholder() -> Place {
    let member = tenure_core::run::Member { run: Seq(0), sealed: false, refs: BTreeMap::new() };
    Place::Blocked(tenure_core::task::Blocked {
        queue: QueueId(1),
        priority: 5,
        waiting_on: 1,
        at: at(0),
        fair: None,
        carry: tenure_core::task::Carry { run: Some(Box::new(member)), ..Default::default() },
    })
}
