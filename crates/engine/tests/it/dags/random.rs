//! Random DAGs and random orders of events against a small reference, which is told what happened and knows nothing of the
//! engine: which tasks there must be, how often each partition has changed, and how far every job has read.
//!
//! All cases together take about half a minute on a busy machine with two cores. A failure names its seed:
//! `TENURE_DAG_SEED=7` runs that case alone. What the engine does between two steps depends on its timing as well; the
//! reference follows whatever happened.

mod kit;
mod reference;
mod versions;

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::dag::lineage::{Lineage, Related};
use tenure_core::dag::{Cursor, Deployment, JobId, VersionId};

use super::*;
use kit::{Case, Rng, Seed, halves, name, output, place_of, ready, report, run, seeds, settle, stop_routing};
use reference::{At, Cause, Reference};

const STEPS: u64 = 40;

/// A job of a random DAG.
#[derive(Debug, Clone, Default)]
pub struct JobPlan {
    /// Empty for a source. A job may read another one twice.
    reads: Vec<usize>,
    per_partition: bool,
    replaces: bool,
    outputs: bool,
    /// It writes the two halves of a range instead of the range.
    splits: bool,
    /// A source that writes cursors, not ranges.
    cursors: bool,
}

#[derive(Debug, Clone)]
pub struct DagPlan {
    jobs: Vec<JobPlan>,
}

impl DagPlan {
    fn draw(rng: &mut Rng) -> Self {
        let sources = 1 + rng.below(2) as usize;
        let mut jobs: Vec<JobPlan> = Vec::new();
        for _ in 0..sources {
            jobs.push(JobPlan { outputs: true, cursors: rng.one_in(3), ..JobPlan::default() });
        }
        for _ in 0..1 + rng.below(4) {
            let readable: Vec<usize> = (0..jobs.len()).filter(|job| jobs[*job].outputs).collect();
            let reads = (0..1 + rng.below(3)).filter_map(|_| rng.pick(&readable).copied()).collect();
            jobs.push(JobPlan {
                reads,
                per_partition: !rng.one_in(3),
                replaces: !rng.one_in(4),
                outputs: !rng.one_in(4),
                splits: rng.one_in(3),
                cursors: false,
            });
        }
        Self { jobs }
    }

    fn yaml(&self) -> String {
        let mut yaml = "name: random\njobs:\n".to_owned();
        for (index, job) in self.jobs.iter().enumerate() {
            let (name, outputs) = (name(index), u8::from(job.outputs));
            yaml += &format!("  - name: {name}\n    operator: {name}\n    runtime: worker\n    outputs: {outputs}\n");
            if job.reads.is_empty() {
                yaml += "    activation: source\n    source: { kind: manual }\n";
                continue;
            }
            let execution = if job.per_partition { "PerPartition" } else { "PerUpdate" };
            yaml += &format!("    activation: reactive\n    execution_strategy: {execution}\n");
            if job.outputs {
                let strategy = if job.replaces { "replace" } else { "append\n    unique_key: [id]" };
                yaml += &format!("    update_strategy: {strategy}\n");
            }
            yaml += "    inputs:\n";
            for (input, from) in job.reads.iter().enumerate() {
                yaml += &format!("      - {{ from: {{ job: j{from}, output: 0 }}, alias: i{input} }}\n");
            }
        }
        yaml
    }

    /// What a job writes when it is given this.
    fn writes(&self, job: usize, at: &At) -> Vec<At> {
        let plan = &self.jobs[job];
        let split = |key: &str| Some(halves(key)?.into_iter().map(At::Part).collect());
        match at {
            _ if !plan.outputs => Vec::new(),
            At::Part(key) if plan.splits => split(key).unwrap_or_else(|| vec![at.clone()]),
            _ => vec![at.clone()],
        }
    }
}

/// A case whose tasks are compared.
struct TaskCase {
    plan: DagPlan,
    rng: Rng,
    reference: Reference,
    held: Vec<Grant>,
    done: Vec<(Grant, Vec<At>)>,
    fired: Vec<String>,
    invalidated: Vec<NewInvalidation>,
}

fn place(at: &At) -> Where {
    match at {
        At::Part(key) => place_of(key),
        At::Row(row) => Where { cursor: Cursor::new(row.unsigned_abs()), ..Where::default() },
    }
}

fn job_of(grant: &Grant) -> usize {
    grant.body.as_ref().unwrap().operator[1..].parse().unwrap()
}

/// What the task was given, by names. `None` for the task of a source.
fn cause(deployment: &Deployment, given: &TaskInput) -> Option<Cause> {
    let at = given.inputs.iter().find(|at| at.position.is_some())?;
    let from = deployment.datasets[&at.dataset].job[1..].parse().unwrap();
    let text = at.position.as_ref().unwrap().text();
    let at_ = match text.split_once(':').unwrap() {
        ("cursor", row) => At::Row(row.parse().unwrap()),
        (_, key) => At::Part(key.to_owned()),
    };
    Some(Cause { from, at: at_, generation: at.generation })
}

impl TaskCase {
    /// Fires a source, or says so again.
    async fn fire(&mut self, plane: &Plane) {
        let sources = self.plan.jobs.iter().filter(|job| job.reads.is_empty()).count();
        let source = self.rng.below(sources as u64) as usize;
        let first = self.rng.below(4) * 10;
        let at = if self.plan.jobs[source].cursors { first.to_string() } else { format!("{first}-{}", first + 9) };
        let request = format!("{source}:{at}:{}", self.rng.below(2));
        plane.dags.trigger(ORG, "random", &name(source), &request.as_str().into(), None).await.unwrap();
        if !self.fired.contains(&request) {
            self.fired.push(request);
        }
    }

    /// Claims any task.
    async fn take(&mut self, plane: &Plane) {
        if let Some(task) = self.rng.pick(&ready(plane).await) {
            self.held.push(plane.claim(task.body.id).await.unwrap());
        }
    }

    /// Where a task writes.
    fn written(&self, grant: &Grant, cause: Option<&Cause>) -> Vec<At> {
        match cause {
            Some(cause) => self.plan.writes(job_of(grant), &cause.at),
            None => {
                let tenure_core::dag::task::Trigger::Manual { request_id, .. } = input(grant).trigger else {
                    panic!("a source was fired by hand")
                };
                let at = request_id.split(':').nth(1).unwrap();
                vec![at.parse().map_or_else(|_| At::Part(at.to_owned()), At::Row)]
            }
        }
    }

    /// Completes any of the tasks that are held. Some tell of what they write before, once or twice.
    async fn finish(&mut self, plane: &Plane) {
        if self.held.is_empty() {
            return;
        }
        let index = self.rng.below(self.held.len() as u64) as usize;
        let view = plane.dags.view(ORG).await.unwrap();
        let grant = &self.held[index];
        let (given, job) = (input(grant), job_of(grant));
        let cause = cause(&view.deployment, &given);
        let written = self.written(grant, cause.as_ref());
        if self.rng.one_in(3) {
            let events = written.iter().filter_map(|at| {
                let output = given.outputs.first()?;
                Some(SaidEvent { dataset: output.dataset, version: output.version, at: place(at) })
            });
            let said = Said { events: events.collect(), ..Said::default() };
            for _ in 0..1 + self.rng.below(2) {
                let proof = Proof::Token(grant.token);
                let reply = plane.dags.emit(&Plane::sender(grant), proof, &ORG.into(), &given, &said).await.unwrap();
                assert!(reply.unwrap());
                self.reference.told(&self.plan, grant.task, job, cause.as_ref(), &written);
            }
            // It goes on, or ends at once.
            if self.rng.one_in(2) {
                return;
            }
        }
        let grant = self.held.swap_remove(index);
        report(plane, &grant, &said(&grant, &written)).await.unwrap();
        self.reference.completed(&self.plan, grant.task, job, cause, &written);
        self.done.push((grant, written));
    }

    /// A report that was accepted is sent again.
    async fn repeat(&mut self, plane: &Plane) {
        if let Some((grant, written)) = self.rng.pick(&self.done) {
            report(plane, grant, &said(grant, written)).await.unwrap();
        }
    }

    /// Says that data of any job has changed, or says so again.
    async fn invalidate(&mut self, plane: &Plane) {
        if let Some(again) = self.rng.pick(&self.invalidated).filter(|_| self.fired.len().is_multiple_of(3)) {
            plane.dags.invalidate(ORG, again).await.unwrap();
            return;
        }
        let known = self.reference.partitions();
        let Some((job, key)) = self.rng.pick(&known).cloned() else { return };
        let view = plane.dags.view(ORG).await.unwrap();
        let output = output_of(&view.deployment, job);
        let new = NewInvalidation {
            id: InvalidationId::from_u128(random_bits()),
            dataset: output.0,
            version: output.1,
            scope: Scope::Partition { partition_key: key.as_str().into() },
            reason: "reorg".into(),
        };
        plane.dags.invalidate(ORG, &new).await.unwrap();
        self.reference.invalidated(&self.plan, job, &key);
        self.invalidated.push(new);
    }

    async fn compare_output(&self, plane: &Plane, deployment: &Deployment, job: usize, id: JobId) {
        let (dataset, version) = output_of(deployment, job);
        let store = plane.engine.store();
        let rows = store.partitions(version, None, 1_000).await.unwrap().items;
        let makers: BTreeMap<String, TaskId> =
            rows.iter().filter_map(|row| Some((row.key.to_string(), row.producer?.0))).collect();
        let rows: BTreeMap<String, (i64, bool)> =
            rows.into_iter().map(|row| (row.key.to_string(), (row.generation, row.location.is_some()))).collect();
        assert_eq!(rows, self.reference.partitions_of(job), "partitions of {}", name(job));
        assert_eq!(makers, self.reference.makers_of(job), "who made the partitions of {}", name(job));
        let generation = store.generations(&[version]).await.unwrap().remove(0);
        assert_eq!(generation.cursor, self.reference.produced_by(job), "what {} has produced", name(job));
        assert_eq!(deployment.jobs[&id].outputs[0].version, version);
        let lineage = Lineage::of(deployment);
        let names = |found: Vec<Related>| found.into_iter().map(|it| it.job.to_string()).collect::<BTreeSet<_>>();
        let expected = |jobs: BTreeSet<usize>| jobs.into_iter().map(name).collect::<BTreeSet<_>>();
        let reads = |job: usize| self.plan.jobs[job].reads.clone();
        let read_by = |job: usize| (0..self.plan.jobs.len()).filter(|other| reads(*other).contains(&job)).collect();
        assert_eq!(names(lineage.upstream(dataset, 100)), expected(reach(job, reads)), "above {}", name(job));
        assert_eq!(names(lineage.downstream(dataset, 100)), expected(reach(job, read_by)), "below {}", name(job));
    }
}

/// What a task says when it has written this.
fn said(grant: &Grant, written: &[At]) -> Said {
    let outputs = written.iter().filter_map(|at| Some(output(*input(grant).outputs.first()?, place(at), "none:")));
    Said { outputs: outputs.collect(), ..Said::default() }
}

impl Case for TaskCase {
    async fn step(&mut self, plane: &Plane) {
        match self.rng.below(12) {
            0..=2 => self.fire(plane).await,
            3..=5 => self.take(plane).await,
            6 | 7 => self.finish(plane).await,
            8 => self.repeat(plane).await,
            9 => self.invalidate(plane).await,
            10 => plane.dags.reconcile().await.unwrap(),
            _ => stop_routing(plane),
        }
    }

    async fn drain(&mut self, plane: &Plane) {
        loop {
            while !self.held.is_empty() {
                self.finish(plane).await;
            }
            settle(plane).await;
            let waiting = ready(plane).await;
            if waiting.is_empty() {
                return;
            }
            for task in waiting {
                self.held.push(plane.claim(task.body.id).await.unwrap());
            }
        }
    }

    async fn compare(&self, plane: &Plane) {
        let view = plane.dags.view(ORG).await.unwrap();
        let deployment = &view.deployment;
        for job in 0..self.plan.jobs.len() {
            let filter = TaskFilter { operator: Some(name(job)), limit: 1_000, ..TaskFilter::default() };
            let tasks = plane.engine.tasks(&filter).await.unwrap().items;
            assert!(tasks.iter().all(|task| task.place.state() == State::Succeeded), "{}: all have ended", name(job));
            let mut causes: Vec<Cause> = Vec::new();
            for task in &tasks {
                let body = plane.engine.task(task.body.id, &Reach::All).await.unwrap().unwrap().body;
                causes.extend(cause(deployment, &serde_json::from_str(&body.payload).unwrap()));
            }
            causes.sort();
            assert_eq!(causes, self.reference.tasks_of(job), "tasks of {}", name(job));
            let id = deployment.active("random").unwrap().jobs[&*name(job)];
            let cursors = plane.engine.store().cursors(&[id]).await.unwrap();
            let cursors: BTreeMap<usize, i64> =
                cursors.into_iter().map(|(_, version, cursor)| (producer_of(deployment, version), cursor)).collect();
            assert_eq!(cursors, self.reference.cursors_of(job), "how far {} has read", name(job));
            if self.plan.jobs[job].outputs {
                self.compare_output(plane, deployment, job, id).await;
            }
        }
    }

    fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

fn output_of(deployment: &Deployment, job: usize) -> (tenure_core::dag::DatasetId, VersionId) {
    let id = deployment.active("random").unwrap().jobs[&*name(job)];
    let output = deployment.jobs[&id].outputs[0];
    (output.dataset, output.version)
}

fn producer_of(deployment: &Deployment, version: VersionId) -> usize {
    let dataset = deployment.datasets.values().find(|dataset| dataset.versions.contains(&version)).unwrap();
    dataset.job[1..].parse().unwrap()
}

/// Everything that is found by going on from a job.
fn reach(from: usize, next: impl Fn(usize) -> Vec<usize>) -> BTreeSet<usize> {
    let (mut found, mut open) = (BTreeSet::new(), next(from));
    while let Some(job) = open.pop() {
        if found.insert(job) {
            open.extend(next(job));
        }
    }
    found
}

async fn run_case(seed: u64, home: Home) {
    let _named = Seed(seed);
    let mut rng = Rng(seed);
    let plan = DagPlan::draw(&mut rng);
    let plane = plane(&home).await;
    plane.deploy(&plan.yaml()).await;
    let reference = Reference::default();
    let (held, done, fired, invalidated) = Default::default();
    let mut case = TaskCase { plan, rng, reference, held, done, fired, invalidated };
    run(&mut case, plane, &home, STEPS).await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_dags_do_what_the_reference_says_on_sqlite() {
    for seed in seeds(60) {
        run_case(seed, Home::sqlite()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_dags_do_what_the_reference_says_on_postgres() {
    for seed in seeds(8) {
        run_case(1_000 + seed, Home::postgres().await).await;
    }
}
