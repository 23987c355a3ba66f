//! Random DAGs whose versions change while data changes, against the data that there should be.
//!
//! Every job writes what it has read with its own name around it, so that the data of the active version follows from what
//! the sources wrote last. The reference works that out from the beginning; it knows nothing of tasks, events and
//! generations. Whatever was lost, overwritten by something older, or not made again shows as other data.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::StreamExt;
use tenure_core::dag::judge::SaidInvalidation;
use tenure_core::dag::task::Trigger;
use tenure_core::dag::{Deployment, JobId};

use super::super::*;
use super::kit::{Case, Rng, Seed, halves, name, output, place_of, ready, report, run, seeds, settle, stop_routing};

const STEPS: u64 = 50;
const DAG: &str = "random";

/// What a job writes, by partition.
type Data = BTreeMap<String, String>;

/// A job that reads one other job, or none.
#[derive(Debug, Clone)]
struct JobPlan {
    reads: Option<usize>,
    /// It writes the two halves of a range instead of the range.
    splits: bool,
    /// Changes with a version that changes the job.
    config: u32,
}

fn yaml(jobs: &[JobPlan]) -> String {
    let mut yaml = format!("name: {DAG}\njobs:\n");
    for (index, job) in jobs.iter().enumerate() {
        let name = name(index);
        yaml += &format!("  - name: {name}\n    operator: {name}\n    runtime: worker\n    outputs: 1\n");
        yaml += &format!("    config: {{ n: {} }}\n", job.config);
        yaml += &match job.reads {
            None => "    activation: source\n    source: { kind: manual }\n".to_owned(),
            Some(from) => format!(
                "    activation: reactive\n    execution_strategy: PerPartition\n    update_strategy: replace\n    \
                 inputs: [{{ from: {{ job: j{from}, output: 0 }} }}]\n"
            ),
        };
    }
    yaml
}

impl JobPlan {
    fn writes(&self, index: usize, key: &str, read: &str) -> Vec<(String, String)> {
        let content = format!("{}.{}({read})", name(index), self.config);
        let keys = if self.splits { halves(key) } else { None };
        keys.unwrap_or_else(|| vec![key.to_owned()]).into_iter().map(|key| (key, content.clone())).collect()
    }
}

/// What follows from what the sources have written.
fn expected(jobs: &[JobPlan], sources: &[Data]) -> Vec<Data> {
    let mut all: Vec<Data> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let data = match job.reads {
            None => sources[index].clone(),
            Some(from) => all[from].iter().flat_map(|(key, read)| job.writes(index, key, read)).collect(),
        };
        all.push(data);
    }
    all
}

/// A task that runs, and what it read when it began.
struct Running {
    grant: Grant,
    read: Option<(String, String)>,
}

/// A case whose data is compared.
struct DataCase {
    rng: Rng,
    /// The jobs of each version, by its number.
    versions: BTreeMap<i64, Vec<JobPlan>>,
    jobs: BTreeMap<JobId, (usize, JobPlan)>,
    sources: Vec<Data>,
    running: Vec<Running>,
    firings: u64,
    /// What the jobs of the active version had written when the version that waits was deployed.
    at_deployment: Option<(i64, Vec<Data>)>,
}

impl DataCase {
    fn draw(mut rng: Rng) -> Self {
        let mut jobs = vec![JobPlan { reads: None, splits: false, config: 0 }];
        for _ in 0..2 + rng.below(3) {
            let reads = Some(rng.below(jobs.len() as u64) as usize);
            jobs.push(JobPlan { reads, splits: rng.one_in(4), config: 0 });
        }
        let sources = vec![Data::new(); jobs.len()];
        let (jobs_by_id, running, firings) = Default::default();
        Self {
            rng,
            versions: BTreeMap::from([(1, jobs)]),
            jobs: jobs_by_id,
            sources,
            running,
            firings,
            at_deployment: None,
        }
    }

    fn know(&mut self, deployment: &Deployment, number: i64) {
        let version = deployment.version(DAG, number).unwrap();
        for (index, job) in self.versions[&number].iter().enumerate() {
            self.jobs.insert(version.jobs[&*name(index)], (index, job.clone()));
        }
    }

    /// Has the source write a partition, for the first time or anew.
    async fn fire(&mut self, plane: &Plane) {
        let first = self.rng.below(3) * 10;
        self.firings += 1;
        let request = format!("{first}-{}:{}", first + 9, self.firings);
        plane.dags.trigger(ORG, DAG, &name(0), &request.as_str().into(), None).await.unwrap();
    }

    /// Begins any task that may run. While a version waits, mostly one of those that it waits for.
    async fn take(&mut self, plane: &Plane) {
        let mut waiting = ready(plane).await;
        if !self.rng.one_in(3) && waiting.iter().any(|task| task.body.spec.rebuild) {
            waiting.retain(|task| task.body.spec.rebuild);
        }
        if let Some(task) = self.rng.pick(&waiting) {
            self.begin(plane, task.body.id).await;
        }
    }

    /// Whether it could begin: the tasks of a version that waits are held.
    async fn begin(&mut self, plane: &Plane, task: TaskId) -> bool {
        let Ok(grant) = plane.claim(task).await else { return false };
        let given = input(&grant);
        let read = match given.inputs.first() {
            None => None,
            Some(at) => {
                let key = at.position.as_ref().unwrap().partition().unwrap().key.to_string();
                let row = plane.engine.store().partition(at.version, &key).await.unwrap().unwrap();
                Some((key, row.location.expect("it was written").to_string()))
            }
        };
        self.running.push(Running { grant, read });
        true
    }

    /// Ends any task that runs.
    async fn finish(&mut self, plane: &Plane) {
        if self.running.is_empty() {
            return;
        }
        let Running { grant, read } = self.running.swap_remove(self.rng.below(self.running.len() as u64) as usize);
        let given = input(&grant);
        let (index, job) = self.jobs[&given.job].clone();
        let mut said = Said::default();
        let written = match &read {
            Some((key, read)) => job.writes(index, key, read),
            None => {
                let Trigger::Manual { request_id, .. } = &given.trigger else { panic!("it was fired by hand") };
                let (key, firing) = request_id.split_once(':').unwrap();
                // Whoever writes data anew says that it has changed.
                let id = InvalidationId::from_u128(random_bits());
                let scope = Scope::Partition { partition_key: key.into() };
                let changed =
                    SaidInvalidation { id, dataset: given.outputs[0].dataset, scope, reason: "correction".into() };
                said.invalidations.extend(self.sources[index].contains_key(key).then_some(changed));
                vec![(key.to_owned(), format!("{key}#{firing}"))]
            }
        };
        said.outputs = written.iter().map(|(key, content)| output(given.outputs[0], place_of(key), content)).collect();
        let reply = report(plane, &grant, &said).await;
        // What runs of a version that is rolled back is canceled.
        if reply.is_ok() && read.is_none() {
            self.sources[index].extend(written);
        }
    }

    /// Deploys a version in which some jobs are other ones. Nobody waits until all events are routed.
    async fn deploy(&mut self, plane: &Plane) {
        let view = plane.dags.view(ORG).await.unwrap();
        if view.deployment.staged(DAG).is_some() {
            return;
        }
        let number = self.versions.keys().max().unwrap() + 1;
        let mut jobs = self.active(&view.deployment).to_vec();
        let changed = 1 + self.rng.below(jobs.len() as u64 - 1) as usize;
        jobs[changed].config = number as u32;
        if self.rng.one_in(2) {
            stop_routing(plane);
            self.finish(plane).await;
        }
        let active = view.deployment.active(DAG).unwrap();
        let mut there = Vec::new();
        for index in 0..jobs.len() {
            let job = &view.deployment.jobs[&active.jobs[&*name(index)]];
            there.push(written(plane, job.outputs[0].version).await);
        }
        let yaml = yaml(&jobs);
        let deployed = plane.dags.deploy(NewVersion { manual: true, ..version(&yaml) }).await.unwrap();
        assert_eq!(deployed.planned.number, number);
        self.versions.insert(number, jobs);
        self.know(&deployed.planned.deployment, number);
        self.at_deployment = Some((number, there));
    }

    fn active(&self, deployment: &Deployment) -> &[JobPlan] {
        &self.versions[&deployment.dags[DAG].active.unwrap()]
    }

    /// Makes the version that waits active, if it is ready; or goes back to the one before.
    async fn switch(&mut self, plane: &Plane) {
        let view = plane.dags.view(ORG).await.unwrap();
        let staged = view.deployment.staged(DAG).map(|(number, version)| (number, version.state));
        match staged {
            Some((number, VersionState::Ready)) => {
                self.has_what_was_there(plane, &view.deployment, number).await;
                plane.dags.cut_over(ORG, DAG, number).await.unwrap();
            }
            Some(_) => {}
            None => match plane.dags.roll_back(ORG, DAG).await {
                Ok(_) | Err(DeployError::Refused(Refused::NoPrevious)) => {}
                Err(error) => panic!("{error}"),
            },
        }
    }

    /// A version that is ready has all that its new jobs make of the data that was there when it was deployed.
    async fn has_what_was_there(&self, plane: &Plane, deployment: &Deployment, number: i64) {
        let Some((of, there)) = &self.at_deployment else { return };
        assert_eq!(*of, number);
        let version = deployment.version(DAG, number).unwrap();
        let mut all: Vec<Data> = Vec::new();
        for (index, plan) in self.versions[&number].iter().enumerate() {
            let job = &deployment.jobs[&version.jobs[&*name(index)]];
            // Jobs that the active version has as well need not have caught up.
            let (true, Some(from)) = (job.held, plan.reads) else {
                all.push(there[index].clone());
                continue;
            };
            let data: Data = all[from].iter().flat_map(|(key, read)| plan.writes(index, key, read)).collect();
            let made: BTreeSet<String> = written(plane, job.outputs[0].version).await.into_keys().collect();
            let missing: Vec<&String> = data.keys().filter(|key| !made.contains(*key)).collect();
            assert!(missing.is_empty(), "version {number} is ready without {missing:?} of {}", name(index));
            all.push(data);
        }
    }

    async fn switch_if_ready(&mut self, plane: &Plane) {
        let view = plane.dags.view(ORG).await.unwrap();
        if view.deployment.staged(DAG).is_some_and(|(_, version)| version.state == VersionState::Ready) {
            self.switch(plane).await;
        }
    }
}

impl Case for DataCase {
    async fn step(&mut self, plane: &Plane) {
        match self.rng.below(14) {
            0..=2 => self.fire(plane).await,
            3..=6 => self.take(plane).await,
            7..=9 => self.finish(plane).await,
            10 => plane.dags.reconcile().await.unwrap(),
            11 => stop_routing(plane),
            12 => self.deploy(plane).await,
            _ => self.switch(plane).await,
        }
    }

    /// A version that waits becomes active.
    async fn drain(&mut self, plane: &Plane) {
        loop {
            while !self.running.is_empty() {
                self.finish(plane).await;
            }
            settle(plane).await;
            for task in ready(plane).await {
                self.begin(plane, task.body.id).await;
            }
            if !self.running.is_empty() {
                continue;
            }
            let view = plane.dags.view(ORG).await.unwrap();
            let Some((number, _)) = view.deployment.staged(DAG) else { return };
            let is_ready = async || {
                let view = plane.dags.view(ORG).await.unwrap();
                let version = view.deployment.version(DAG, number).unwrap();
                // The look for what is to be rebuilt may have come after the tasks were looked for.
                version.state == VersionState::Ready || ready(plane).await.iter().any(|it| it.body.spec.rebuild)
            };
            wait_until("the version is ready", SOON, is_ready).await;
            self.switch_if_ready(plane).await;
        }
    }

    async fn compare(&self, plane: &Plane) {
        let view = plane.dags.view(ORG).await.unwrap();
        let version = view.deployment.active(DAG).unwrap();
        for (index, data) in expected(self.active(&view.deployment), &self.sources).into_iter().enumerate() {
            let job = &view.deployment.jobs[&version.jobs[&*name(index)]];
            let there = written(plane, job.outputs[0].version).await;
            assert_eq!(there, data, "what {} has written", name(index));
        }
    }

    fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

async fn written(plane: &Plane, version: tenure_core::dag::VersionId) -> Data {
    let rows = plane.engine.store().partitions(version, None, 1_000).await.unwrap().items;
    rows.into_iter().filter_map(|row| Some((row.key.to_string(), row.location?.to_string()))).collect()
}

async fn run_case(seed: u64, home: Home) {
    let _named = Seed(seed);
    let mut case = DataCase::draw(Rng(seed));
    let plane = plane(&home).await;
    plane.deploy(&yaml(&case.versions[&1])).await;
    let view = plane.dags.view(ORG).await.unwrap();
    case.know(&view.deployment, 1);
    let plane = run(&mut case, plane, &home, STEPS).await;
    // Data changes while a version is away that has made something of it, and then it returns.
    case.deploy(&plane).await;
    case.drain(&plane).await;
    for _ in 0..STEPS / 2 {
        match case.rng.below(3) {
            0 => case.fire(&plane).await,
            1 => case.take(&plane).await,
            _ => case.finish(&plane).await,
        }
    }
    case.switch(&plane).await;
    case.drain(&plane).await;
    case.compare(&plane).await;
    plane.stop().await;
}

/// Cases wait for the router more than they compute.
async fn run_cases(cases: impl IntoIterator<Item = (u64, Home)>) {
    let cases = cases.into_iter().map(|(seed, home)| run_case(seed, home));
    futures_util::stream::iter(cases).buffer_unordered(4).collect::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_versions_end_with_the_data_of_the_reference_on_sqlite() {
    run_cases(seeds(60).into_iter().map(|seed| (seed, Home::sqlite()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_versions_end_with_the_data_of_the_reference_on_postgres() {
    let mut cases = Vec::new();
    for seed in seeds(8) {
        cases.push((1_000 + seed, Home::postgres().await));
    }
    run_cases(cases).await;
}
