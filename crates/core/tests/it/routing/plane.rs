//! The rows that a store keeps about DAGs, and what a control plane does with them between two transactions.
//!
//! What is decided is decided by the core: `plan`, `route`, `judge`, and the switches of a deployment. What is written
//! follows the statements of the stores.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::{Value, json};
use tenure_core::Timestamp;
use tenure_core::dag::data::{NewInvalidation, Position, Read, Scope};
use tenure_core::dag::definition::{DagDefinition, ExecutionStrategy};
use tenure_core::dag::deploy::{Deploy, Fresh, plan};
use tenure_core::dag::deployment::{Job, Switch};
use tenure_core::dag::judge::{Rules, Said, SaidEvent, SaidOutput, SaidVersion, Where, judge};
use tenure_core::dag::route::{Delivery, Event, Readers, Unrouted, dedupe_key, route};
use tenure_core::dag::task::{InputAt, Invalidated, TaskInput, Trigger};
use tenure_core::dag::{
    Cursor, DagVersionId, DataReport, DatasetId, Deployment, InvalidationId, JobId, VersionId, named_bits,
};

use super::mutant::Mutant;

pub const DAG: &str = "chain";

/// Dataset, version, position and generation.
pub type EventKey = (DatasetId, VersionId, Position, i64);
pub type TaskKey = (JobId, Arc<str>);

/// What is deployed, as one control plane has read it.
#[derive(Clone)]
pub struct Doc {
    pub seq: u8,
    pub deployment: Deployment,
    readers: Readers,
    digest: u64,
}

impl Doc {
    fn new(seq: u8, deployment: Deployment) -> Arc<Self> {
        let mut hasher = DefaultHasher::new();
        format!("{deployment:?}").hash(&mut hasher);
        Arc::new(Self { seq, readers: Readers::of(&deployment), deployment, digest: hasher.finish() })
    }

    /// Jobs of the active version.
    pub fn active(&self) -> BTreeSet<JobId> {
        self.deployment.active(DAG).into_iter().flat_map(|version| version.jobs.values().copied()).collect()
    }

    /// Whether no job at work reads this version, and none writes it as the current one.
    pub fn is_old(&self, dataset: DatasetId, version: VersionId) -> bool {
        let live = self.deployment.live_jobs();
        let read = live.iter().filter_map(|id| self.deployment.jobs.get(id)).flat_map(|job| &job.inputs);
        let mut read = read.map(|input| self.deployment.reads(input));
        !self.deployment.is_current(dataset, version) && !read.any(|read| read == Some(version))
    }
}

impl PartialEq for Doc {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}

impl fmt::Debug for Doc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}", self.seq, self.digest)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    Queued,
    Running,
    /// Its holder was lost. It is queued again, and the late report of the holder counts.
    Lost,
    Done,
    Canceled,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub input: Arc<TaskInput>,
    pub state: TaskState,
}

impl Task {
    /// The input that caused it.
    pub fn cause(&self) -> Option<&InputAt> {
        self.input.inputs.iter().find(|at| at.position.is_some())
    }

    pub fn waits(&self) -> bool {
        matches!(self.state, TaskState::Queued | TaskState::Lost)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Partition {
    pub generation: i64,
    /// The generation of the input that it was made from; `None` if nothing was written yet.
    pub made_from: Option<i64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Invalidation {
    pub new: NewInvalidation,
    pub generation: i64,
    /// Its tasks were made.
    pub routed: bool,
}

/// What the store holds.
#[derive(Debug, Clone)]
pub struct Rows {
    pub doc: Arc<Doc>,
    fresh: u64,
    /// Jobs whose queue grants rebuild tasks only.
    pub held: BTreeSet<JobId>,
    /// Generation and highest cursor.
    pub versions: BTreeMap<VersionId, (i64, Option<i64>)>,
    pub partitions: BTreeMap<(VersionId, Arc<str>), Partition>,
    /// `None` until it was looked at, then why it was not routed.
    pub events: BTreeMap<EventKey, Option<Option<Unrouted>>>,
    pub invalidations: BTreeMap<InvalidationId, Invalidation>,
    pub read_cursors: BTreeMap<(JobId, VersionId), i64>,
    read_partitions: BTreeMap<(JobId, VersionId, Arc<str>), i64>,
    pub tasks: BTreeMap<TaskKey, Task>,
}

struct Counter<'a>(&'a mut u64);

impl Fresh for Counter<'_> {
    fn id(&mut self) -> u128 {
        *self.0 += 1;
        u128::from(*self.0)
    }

    fn job(&mut self) -> JobId {
        *self.0 += 1;
        JobId(self.0.cast_signed())
    }
}

/// `import` fires by hand, `decode` reads it and `count` reads `decode`. `config` decides what `decode` is.
pub fn chain(execution: &str, config: u32) -> DagDefinition {
    let job = |name: &str, activation: Value, outputs: u32, config: u32| {
        json!({"name": name, "activation": activation, "runtime": {"worker": {"name": "worker"}}, "operator": name,
            "outputs": outputs, "timeout_seconds": 60, "max_attempts": 3, "heartbeat_timeout_seconds": 120,
            "config": format!("{{\"n\":{config}}}")})
    };
    let reads = |from: &str| {
        let input = json!({"from": {"job": {"job": from, "output": 0}}, "alias": from});
        json!({"reactive": {"inputs": [input], "execution": execution}})
    };
    let jobs = [
        job("import", json!({"source": {"source": {"kind": "manual"}}}), 1, 0),
        job("decode", reads("import"), 1, config),
        job("count", reads("decode"), 0, 0),
    ];
    serde_json::from_value(json!({"name": DAG, "jobs": jobs})).expect("a definition")
}

/// A position as it is written: a number is a cursor, anything else names a partition.
fn place(text: &str) -> Where {
    match text.parse().ok().and_then(Cursor::new) {
        cursor @ Some(_) => Where { cursor, ..Where::default() },
        None => Where { partition_key: Some(text.into()), ..Where::default() },
    }
}

fn text_of(position: &Position) -> String {
    match position {
        Position::Cursor(cursor) => cursor.to_string(),
        Position::Partition(partition) => partition.key.to_string(),
    }
}

impl Rows {
    /// The first version is active, and `import` runs once for each of these positions.
    pub fn new(definition: &DagDefinition, fires: &[&str], mutant: Mutant) -> Self {
        let mut rows = Self {
            doc: Doc::new(0, Deployment::default()),
            fresh: 0,
            held: BTreeSet::new(),
            versions: BTreeMap::new(),
            partitions: BTreeMap::new(),
            events: BTreeMap::new(),
            invalidations: BTreeMap::new(),
            read_cursors: BTreeMap::new(),
            read_partitions: BTreeMap::new(),
            tasks: BTreeMap::new(),
        };
        rows.deploy(definition, false, mutant);
        let import = rows.doc.deployment.active(DAG).expect("the first version is active").jobs["import"];
        for place in fires {
            let trigger = Trigger::Manual { request_id: Arc::from(*place), input: None };
            let input = rows.input_of(&Arc::clone(&rows.doc), import, trigger).expect("it is deployed");
            let task = Task { input: Arc::new(input), state: TaskState::Running };
            rows.tasks.insert((import, format!("manual:import:{place}").into()), task);
        }
        rows
    }

    /// The output of `import`, which no version changes.
    pub fn imported(&self) -> (DatasetId, VersionId) {
        let import = self.doc.deployment.active(DAG).expect("a version is active").jobs["import"];
        let output = self.doc.deployment.jobs[&import].outputs[0];
        (output.dataset, output.version)
    }

    fn write(&mut self, deployment: Deployment) {
        self.doc = Doc::new(self.doc.seq + 1, deployment);
    }

    /// One transaction. Returns the jobs whose waiting tasks are to be canceled.
    pub fn deploy(&mut self, definition: &DagDefinition, manual: bool, mutant: Mutant) -> Vec<JobId> {
        let yaml_hash = &format!("{:?}", definition.jobs[1].config);
        let deploy = Deploy { definition, yaml_hash, manual, now: Timestamp::from_millis(7) };
        let planned = plan(&self.doc.deployment, &deploy, &mut Counter(&mut self.fresh)).expect("it can be deployed");
        self.versions.extend(planned.generations.iter().map(|(_, version)| (*version, (0, None))));
        if mutant != Mutant::NotHeld {
            let deployed = &planned.deployment.jobs;
            self.held.extend(planned.jobs.iter().map(|(id, _)| *id).filter(|id| deployed[id].held));
        }
        self.write(planned.deployment);
        planned.switch.into_iter().flat_map(|switch| switch.retired).chain(planned.abandoned).collect()
    }

    /// Writes a switch to another version. Returns whose tasks are to be canceled, and whether also what runs.
    pub fn switched(&mut self, deployment: Deployment, switch: Switch, mutant: Mutant) -> Vec<(JobId, bool)> {
        for (job, held) in switch.held {
            if held {
                self.held.insert(job);
            } else if mutant != Mutant::NotReleased {
                self.held.remove(&job);
            }
        }
        self.write(deployment);
        let waiting = switch.retired.into_iter().map(|job| (job, false));
        waiting.chain(switch.abandoned.into_iter().map(|job| (job, true))).collect()
    }

    pub fn note_rebuilding(&mut self, number: i64) {
        let mut deployment = self.doc.deployment.clone();
        deployment.note_rebuilding(DAG, number);
        self.write(deployment);
    }

    pub fn make_ready(&mut self, number: i64, rebuilt: u64) {
        let mut deployment = self.doc.deployment.clone();
        assert!(deployment.make_ready(DAG, number, rebuilt));
        self.write(deployment);
    }

    pub fn cancel(&mut self, jobs: &[(JobId, bool)], mutant: Mutant) {
        for ((job, _), task) in &mut self.tasks {
            let asked = jobs.iter().find(|(asked, _)| asked == job);
            let Some((_, running)) = asked.filter(|(_, running)| !(mutant == Mutant::RollbackForgets && *running))
            else {
                continue;
            };
            if task.waits() || *running && task.state == TaskState::Running {
                task.state = TaskState::Canceled;
            }
        }
    }

    pub fn unrouted(&self) -> Vec<EventKey> {
        self.events.iter().filter(|(_, looked_at)| looked_at.is_none()).map(|(key, _)| key.clone()).collect()
    }

    pub fn open(&self) -> Vec<InvalidationId> {
        self.invalidations.iter().filter(|(_, row)| !row.routed).map(|(id, _)| *id).collect()
    }

    fn generation(&self, version: VersionId, position: &Position) -> i64 {
        let partition = position.partition().and_then(|it| self.partitions.get(&(version, Arc::clone(&it.key))));
        partition.map_or_else(|| self.versions.get(&version).map_or(0, |it| it.0), |it| it.generation)
    }

    /// The version at work that has a job: the active one first.
    fn version_of(doc: &Doc, job: &Job, id: JobId) -> Option<(i64, DagVersionId)> {
        let dag = doc.deployment.dags.get(DAG)?;
        let staged = doc.deployment.staged(DAG).map(|(number, _)| number);
        let versions =
            dag.active.into_iter().chain(staged).filter_map(|number| Some((number, dag.versions.get(&number)?)));
        let mut having = versions.filter(|(_, version)| version.jobs.get(&job.name) == Some(&id));
        having.next().map(|(number, version)| (number, version.id))
    }

    fn input_of(&self, doc: &Doc, id: JobId, trigger: Trigger) -> Option<TaskInput> {
        let job = doc.deployment.jobs.get(&id)?;
        let (dag_version, _) = Self::version_of(doc, job, id)?;
        let at = job.inputs.iter().enumerate().filter_map(|(input_index, input)| {
            let version = doc.deployment.reads(input)?;
            Some(InputAt { input_index, dataset: input.dataset, version, position: None, generation: 0 })
        });
        let (inputs, outputs) = (at.collect(), job.outputs.clone());
        Some(TaskInput { job: id, dag_version, trigger, inputs, outputs, invalidation: None, rebuild: None })
    }

    /// Makes a task, unless there is one with its key.
    fn make(&mut self, doc: &Doc, delivery: &Delivery, event: &Event<'_>, why: Why<'_>, mutant: Mutant) {
        let Some(mut input) = self.input_of(doc, delivery.job, why.trigger(delivery.input)) else { return };
        let Some(at) = input.inputs.get_mut(delivery.input) else { return };
        (at.position, at.generation) = (Some(event.position.clone()), event.generation);
        if delivery.rebuild {
            let job = &doc.deployment.jobs[&delivery.job];
            input.rebuild = Self::version_of(doc, job, delivery.job).map(|(_, id)| id);
        }
        if let Why::Invalidated(row) = why {
            let NewInvalidation { id, scope, reason, .. } = row.new.clone();
            input.invalidation = Some(Invalidated { id, scope, reason });
        }
        let key = mutant.tamper_key(&delivery.key, &input.trigger);
        let task = self.tasks.entry((delivery.job, key));
        let task = task.or_insert_with(|| Task { input: Arc::new(input), state: TaskState::Queued });
        // One that was canceled with its version goes on when the version is at work again.
        if task.state == TaskState::Canceled && mutant != Mutant::CanceledStays {
            task.state = TaskState::Queued;
        }
    }

    /// Makes the tasks of an event. Returns why there are none.
    pub fn route(&mut self, doc: &Doc, key: &EventKey, mutant: Mutant) -> Option<Unrouted> {
        let (dataset, version, position, generation) = key;
        let version = mutant.tamper_version(*version, &doc.deployment, *dataset);
        let event = Event { dataset: *dataset, version, position, generation: *generation };
        match route(&doc.deployment, &doc.readers, &event) {
            Err(why) => Some(why),
            Ok(deliveries) => {
                let is_current = doc.deployment.is_current(*dataset, version);
                for delivery in deliveries {
                    self.make(doc, &mutant.tamper_delivery(delivery, is_current), &event, Why::Event, mutant);
                }
                None
            }
        }
    }

    pub fn route_invalidation(&mut self, doc: &Doc, id: InvalidationId, mutant: Mutant) {
        let row = self.invalidations[&id].clone();
        let position = match &row.new.scope {
            Scope::Partition { partition_key } => position(partition_key),
            Scope::RowRange { .. } => Position::Cursor(self.versions[&row.new.version].1.unwrap_or_default()),
        };
        let NewInvalidation { dataset, version, .. } = row.new;
        let event = Event { dataset, version, position: &position, generation: row.generation };
        for delivery in route(&doc.deployment, &doc.readers, &event).unwrap_or_default() {
            self.make(doc, &delivery, &event, Why::Invalidated(&row), mutant);
        }
    }

    /// Looks for what a job has not read.
    pub fn reconcile_job(&mut self, doc: &Doc, id: JobId, mutant: Mutant) {
        let Some(job) = doc.deployment.jobs.get(&id) else { return };
        for (index, input) in job.inputs.iter().enumerate() {
            let Some(version) = doc.deployment.reads(input) else { continue };
            let (generation, produced) = self.versions[&version];
            let mut unread: Vec<(Position, i64)> = Vec::new();
            if job.execution == Some(ExecutionStrategy::PerUpdate)
                && let Some(produced) = produced
                && self.read_cursors.get(&(id, version)).is_none_or(|read| *read < produced)
            {
                unread.push((Position::Cursor(produced), generation));
            }
            for ((of, key), row) in
                self.partitions.iter().filter(|((of, _), row)| *of == version && row.made_from.is_some())
            {
                let read = self.read_partitions.get(&(id, *of, Arc::clone(key)));
                if read.is_none_or(|read| *read < row.generation) {
                    unread.push((position(key), row.generation));
                }
            }
            for (position, generation) in unread {
                let event = Event { dataset: input.dataset, version, position: &position, generation };
                let key = dedupe_key(&event).into();
                let delivery = Delivery { job: id, input: index, key, rebuild: job.held };
                let why = if job.held { Why::Rebuild } else { Why::Event };
                self.make(doc, &delivery, &event, why, mutant);
            }
        }
    }

    /// One look of the reconciler at a deployment.
    pub fn reconcile(&mut self, doc: &Doc, mutant: Mutant) {
        let live = doc.deployment.live_jobs();
        for id in live.iter().filter(|id| !doc.deployment.jobs[*id].held) {
            self.reconcile_job(doc, *id, mutant);
        }
        let rolled_back = doc.deployment.rolled_back_jobs();
        let retired = doc.deployment.jobs.keys().filter(|id| !live.contains(*id));
        let retired: Vec<(JobId, bool)> = retired.map(|id| (*id, rolled_back.contains(id))).collect();
        self.cancel(&retired, mutant);
    }

    /// What the holder of a task says about datasets: that it has written where it was told to read.
    pub fn told(&self, task: &TaskKey, ends: bool, mutant: Mutant) -> DataReport {
        let input = &self.tasks[task].input;
        let at = match (&input.trigger, self.tasks[task].cause()) {
            (Trigger::Manual { request_id, .. }, _) => place(request_id),
            (_, Some(cause)) => place(&text_of(cause.position.as_ref().expect("it has a position"))),
            (_, None) => Where::default(),
        };
        let mut said = Said::default();
        for output in &input.outputs {
            let (dataset, version, at) = (output.dataset, output.version, at.clone());
            if ends {
                said.outputs.push(SaidOutput {
                    dataset,
                    version: SaidVersion::Generation(version),
                    at,
                    location: "none:".into(),
                    row_count: None,
                    bytes: None,
                    schema_hash: None,
                    manifest: None,
                });
            } else {
                said.events.push(SaidEvent { dataset, version, at });
            }
        }
        let cascade = |dataset, scope: &Scope| {
            InvalidationId::from_u128(named_bits(&format!("{}:{}:{dataset}:{scope:?}", task.0.0, task.1)))
        };
        let rules = Rules {
            org: "acme".into(),
            replaces: mutant.cascades(input),
            ends,
            knows: &|_, version| self.versions.contains_key(&version),
            cascade: &cascade,
        };
        judge(input, &said, &rules).expect("it says what it may")
    }

    /// Writes a report, in one transaction.
    pub fn commit(&mut self, report: &DataReport, mutant: Mutant) {
        for new in &report.invalidations {
            self.invalidate(new, mutant);
        }
        let stale = report.made_from().is_some_and(|(version, key, generation)| {
            let read = self.read_partitions.get(&(report.job, version, Arc::clone(key)));
            read.is_some_and(|read| *read > generation)
        });
        for output in &report.outputs {
            let version = output.version;
            match &output.position {
                Position::Cursor(cursor) => self.produce(version, *cursor, mutant),
                Position::Partition(partition) => {
                    let generation = self.versions[&version].0;
                    let row = self.partitions.entry((version, Arc::clone(&partition.key)));
                    let row = row.or_insert(Partition { generation, made_from: None });
                    if !stale || mutant == Mutant::StaleWrites {
                        row.made_from = Some(report.made_from().map_or(0, |(_, _, generation)| generation));
                    }
                }
            }
        }
        for event in &report.events {
            if let Position::Cursor(cursor) = event.position {
                self.produce(event.version, cursor, mutant);
            }
            let generation = self.generation(event.version, &event.position);
            self.events.entry((event.dataset, event.version, event.position.clone(), generation)).or_default();
        }
        for read in &report.reads {
            let (seen, to) = match read {
                Read::UpTo { version, cursor } => {
                    (self.read_cursors.entry((report.job, *version)).or_insert(*cursor), *cursor)
                }
                Read::Partition { version, key, generation } => {
                    let edge = (report.job, *version, Arc::clone(key));
                    (self.read_partitions.entry(edge).or_insert(*generation), *generation)
                }
            };
            *seen = if mutant == Mutant::CursorsAreSet { to } else { to.max(*seen) };
        }
    }

    fn produce(&mut self, version: VersionId, cursor: i64, mutant: Mutant) {
        let (_, highest) = self.versions.get_mut(&version).expect("it is known");
        let forward = highest.is_none_or(|highest| highest < cursor);
        if forward || mutant == Mutant::CursorsAreSet {
            *highest = Some(cursor);
        }
    }

    /// The same id again changes nothing.
    pub fn invalidate(&mut self, new: &NewInvalidation, mutant: Mutant) {
        if self.invalidations.contains_key(&new.id) && mutant != Mutant::InvalidatedTwice {
            return;
        }
        let generation = match &new.scope {
            Scope::Partition { partition_key } => {
                let first = Partition { generation: self.versions[&new.version].0, made_from: None };
                let row = self.partitions.entry((new.version, Arc::clone(partition_key))).or_insert(first);
                row.generation += 1;
                row.generation
            }
            Scope::RowRange { .. } => {
                let rows = self.partitions.iter_mut().filter(|((version, _), _)| *version == new.version);
                rows.for_each(|(_, row)| row.generation += 1);
                let (generation, _) = self.versions.get_mut(&new.version).expect("it is known");
                *generation += 1;
                *generation
            }
        };
        self.invalidations.insert(new.id, Invalidation { new: new.clone(), generation, routed: false });
    }

    /// Tasks that rebuild this version of the DAG: all, and those that have succeeded.
    pub fn rebuild_counts(&self, version: DagVersionId) -> (u64, u64) {
        let tasks = self.tasks.values().filter(|task| task.input.rebuild == Some(version));
        let (all, done): (Vec<_>, Vec<_>) = tasks.map(|task| ((), task.state == TaskState::Done)).unzip();
        (all.len() as u64, done.into_iter().filter(|done| *done).count() as u64)
    }
}

/// Why a task is made.
#[derive(Clone, Copy)]
enum Why<'a> {
    Event,
    Rebuild,
    Invalidated(&'a Invalidation),
}

impl Why<'_> {
    fn trigger(self, input_index: usize) -> Trigger {
        match self {
            Self::Event => Trigger::Event { input_index, event_id: "e".into() },
            Self::Rebuild => Trigger::Rebuild,
            Self::Invalidated(_) => Trigger::Invalidation,
        }
    }
}

fn position(key: &Arc<str>) -> Position {
    Position::Partition(tenure_core::dag::data::Partition { key: Arc::clone(key), ends: None })
}
