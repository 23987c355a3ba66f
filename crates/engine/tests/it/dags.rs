//! DAGs from their YAML to the last task, without the network.

mod bounds;
mod handover;
mod random;
mod sources;
mod switches;

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_core::attempt::Report;
use tenure_core::command::claim::{Claim, ClaimTask, Claimant, Claimer, Grant, NotGrantedReason};
use tenure_core::command::emit::Proof;
use tenure_core::command::{ConflictKind, Reach, Rejection};
use tenure_core::dag::InvalidationId;
use tenure_core::dag::data::{NewInvalidation, Scope};
use tenure_core::dag::deployment::{Refused, VersionState};
use tenure_core::dag::judge::{Said, SaidEvent, SaidOutput, SaidVersion, Where};
use tenure_core::dag::task::TaskInput;
use tenure_core::task::State;
use tenure_core::{TaskId, WorkerId};
use tenure_engine::dags::{DagSettings, Dags, DeployError, NewVersion, Sender, TriggerError};
use tenure_engine::store::{TaskFilter, TaskView};
use tenure_engine::{ClaimWait, Engine, EngineConfig, TaskClaim, random_bits, random_seed};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON};
use crate::on_both_stores;

on_both_stores!(
    a_partition_runs_through_the_dag_once,
    a_source_is_fired_once_per_request,
    a_wrong_dag_is_refused_and_a_plan_writes_nothing,
    a_new_version_is_rebuilt_beside_the_active_one_and_takes_over,
    a_rollback_ends_what_the_version_was_doing,
    what_was_made_from_changed_data_is_made_again,
    an_invalidation_that_others_are_in_the_way_of_is_tried_again,
    tasks_of_jobs_are_granted_to_nobody_else,
    the_settings_say_when_a_task_is_tried_again,
);

pub const ORG: &str = "acme";

/// A control plane with DAGs.
pub struct Plane {
    pub engine: Engine,
    pub dags: Dags,
}

async fn plane(home: &Home) -> Plane {
    plane_with(home, EngineConfig::default()).await
}

pub async fn plane_with(home: &Home, config: EngineConfig) -> Plane {
    let engine = Engine::open_with(&home.url(), config).await.unwrap();
    let dags = engine.dags(Default::default());
    Plane { engine, dags }
}

/// `config` decides what `decode` is.
fn chain(config: u32) -> String {
    format!(
        "name: chain
jobs:
  - {{ name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: {{ kind: manual }} }}
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs: [{{ from: {{ job: import, output: 0 }} }}]
    config: {{ n: {config} }}
  - name: count
    activation: reactive
    runtime: worker
    operator: count
    outputs: 0
    execution_strategy: PerPartition
    inputs: [{{ from: {{ job: decode, output: 0 }} }}]
"
    )
}

pub fn version(yaml: &str) -> NewVersion<'_> {
    NewVersion { org: ORG, yaml, manual: false, dry_run: false }
}

impl Plane {
    pub async fn deploy(&self, yaml: &str) {
        self.dags.deploy(version(yaml)).await.unwrap();
    }

    async fn fire(&self, request: &str) -> TaskId {
        self.dags.trigger(ORG, "chain", "import", &request.into(), None).await.unwrap().task
    }

    /// Tasks of an operator, newest first.
    pub async fn tasks(&self, operator: &str) -> Vec<TaskView> {
        let filter = TaskFilter { operator: Some(operator.to_owned()), limit: 100, ..TaskFilter::default() };
        self.engine.tasks(&filter).await.unwrap().items
    }

    async fn count(&self, operator: &str, state: State) -> usize {
        self.tasks(operator).await.iter().filter(|task| task.place.state() == state).count()
    }

    /// The newest task of an operator, when there are so many.
    pub async fn nth(&self, operator: &str, count: usize) -> TaskId {
        wait_until(operator, SOON, async || self.tasks(operator).await.len() >= count).await;
        let tasks = self.tasks(operator).await;
        assert_eq!(tasks.len(), count, "{operator}");
        tasks[0].body.id
    }

    pub async fn claim(&self, task: TaskId) -> Result<Grant, NotGrantedReason> {
        let worker: WorkerId = "w".into();
        let claimant =
            Claimant { id: worker, incarnation: None, claim_id: None, kills_on_expiry: false, dispatch: true };
        let claimer = Claimer { worker: Some(claimant), seed: random_seed() };
        match self.engine.claim_task(ClaimTask { claimer, task, message: None }).await.unwrap().unwrap() {
            TaskClaim::Granted(mut claimed) => Ok(claimed.grants.remove(0)),
            TaskClaim::NotGranted(not) => Err(not.reason),
        }
    }

    /// What a success says that wrote this partition of its first output, if it has one.
    fn wrote(grant: &Grant, key: &str) -> Said {
        let input = input(grant);
        let at = Where { partition_key: Some(key.into()), ..Where::default() };
        let outputs = input.outputs.iter().map(|output| SaidOutput {
            dataset: output.dataset,
            version: SaidVersion::Generation(output.version),
            at: at.clone(),
            location: "none:".into(),
            row_count: None,
            bytes: None,
            schema_hash: None,
            manifest: None,
        });
        Said { outputs: outputs.collect(), ..Said::default() }
    }

    fn sender(grant: &Grant) -> Sender {
        Sender { task: grant.task, attempt: grant.attempt, token: grant.token, attempt_id: None }
    }

    pub async fn complete(&self, grant: &Grant, key: &str) -> Result<(), Rejection> {
        self.complete_as(ORG, grant, key).await
    }

    async fn complete_as(&self, org: &str, grant: &Grant, key: &str) -> Result<(), Rejection> {
        let (said, report) = (Self::wrote(grant, key), Report::succeeded(Some("{}".into())));
        let reply = self.dags.report(&Self::sender(grant), &org.into(), &input(grant), report, &said).await;
        reply.unwrap().map(drop)
    }

    pub async fn run(&self, task: TaskId, key: &str) {
        let grant = self.claim(task).await.unwrap();
        self.complete(&grant, key).await.unwrap();
    }

    /// Fires the source and runs everything that follows for one partition.
    async fn run_all(&self, request: &str, key: &str, nth: usize) {
        let task = self.fire(request).await;
        self.run(task, key).await;
        for operator in ["decode", "count"] {
            let task = self.nth(operator, nth).await;
            self.run(task, key).await;
        }
    }

    /// That a partition of `import` has changed.
    async fn changed(&self, key: &str) -> NewInvalidation {
        let view = self.dags.view(ORG).await.unwrap();
        let import = view.deployment.active("chain").unwrap().jobs["import"];
        let output = view.deployment.jobs[&import].outputs[0];
        NewInvalidation {
            id: InvalidationId::from_u128(random_bits()),
            dataset: output.dataset,
            version: output.version,
            scope: Scope::Partition { partition_key: key.into() },
            reason: "reorg".into(),
        }
    }

    async fn state(&self, number: i64) -> VersionState {
        self.dags.view(ORG).await.unwrap().deployment.version("chain", number).unwrap().state
    }

    pub async fn stop(self) {
        self.engine.shutdown().await;
    }
}

fn input(grant: &Grant) -> TaskInput {
    serde_json::from_str(&grant.body.as_ref().unwrap().payload).unwrap()
}

async fn a_partition_runs_through_the_dag_once(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    let import = plane.fire("r-1").await;
    let grant = plane.claim(import).await.unwrap();
    assert_eq!((grant.attempt, grant.lease_ttl_ms, grant.heartbeat_ms), (1, 120_000, 30_000));
    // The event is told before the end, twice, and again with the end: it is one.
    let (told, sender, given) = (Plane::wrote(&grant, "1-5"), Plane::sender(&grant), input(&grant));
    let tell = async |proof| plane.dags.emit(&sender, proof, &ORG.into(), &given, &told).await.unwrap();
    for _ in 0..2 {
        assert!(tell(Proof::Token(grant.token)).await.unwrap());
    }
    let Err(Rejection::Conflict(conflict)) = tell(Proof::Holder("x".into())).await else { panic!("refused") };
    assert_eq!(conflict.kind, ConflictKind::StaleLease);
    plane.complete(&grant, "1-5").await.unwrap();
    let decode = plane.nth("decode", 1).await;
    let grant = plane.claim(decode).await.unwrap();
    let given = input(&grant);
    assert_eq!(given.inputs[0].position.as_ref().unwrap().text(), "partition:1-5");
    assert_eq!(plane.claim(decode).await, Err(NotGrantedReason::AlreadyRunning));
    plane.complete(&grant, "1-5").await.unwrap();
    let count = plane.nth("count", 1).await;
    plane.run(count, "1-5").await;
    // Nothing is left to do, however often one looks.
    plane.dags.reconcile().await.unwrap();
    for operator in ["import", "decode", "count"] {
        assert_eq!(plane.tasks(operator).await.len(), 1, "{operator}");
    }
    plane.stop().await;
}

async fn a_source_is_fired_once_per_request(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    let input: Arc<str> = r#"{"from":7}"#.into();
    let fire = async |request: &str| {
        plane.dags.trigger(ORG, "chain", "import", &request.into(), Some(Arc::clone(&input))).await.unwrap()
    };
    let (first, again, other) = (fire("r-1").await, fire("r-1").await, fire("r-2").await);
    assert_eq!((first.created, again.created, first.task), (true, false, again.task));
    assert_ne!(other.task, first.task);
    for (dag, job, expected) in [
        ("chain", "decode", TriggerError::NotManual),
        ("chain", "nothing", TriggerError::UnknownJob),
        ("other", "import", TriggerError::UnknownDag),
    ] {
        assert_eq!(plane.dags.trigger(ORG, dag, job, &"r".into(), None).await, Err(expected));
    }
    assert_eq!(plane.dags.trigger("other", "chain", "import", &"r".into(), None).await, Err(TriggerError::UnknownDag));
    plane.stop().await;
}

async fn a_wrong_dag_is_refused_and_a_plan_writes_nothing(home: Home) {
    let plane = plane(&home).await;
    let wrong = chain(0).replace("job: import, output: 0", "job: imprt, output: 0");
    let Err(DeployError::Invalid(problems)) = plane.dags.deploy(version(&wrong)).await else { panic!("refused") };
    assert!(problems.iter().any(|problem| problem.message.contains("'import'")), "{problems:?}");
    let yaml = chain(0);
    let planned = plane.dags.deploy(NewVersion { dry_run: true, ..version(&yaml) }).await.unwrap();
    assert_eq!((planned.planned.number, planned.planned.changed.len()), (1, 3));
    assert_eq!(plane.dags.view(ORG).await.unwrap().seq, 0);
    plane.deploy(&yaml).await;
    let again = plane.dags.deploy(version(&yaml)).await.unwrap();
    assert!(again.planned.is_known && plane.dags.view(ORG).await.unwrap().seq == 1);
    assert_eq!(plane.dags.roll_back(ORG, "chain").await, Err(DeployError::Refused(Refused::NoPrevious)));
    plane.stop().await;
}

async fn a_new_version_is_rebuilt_beside_the_active_one_and_takes_over(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    plane.run_all("r-1", "1-5", 1).await;
    plane.deploy(&chain(1)).await;
    assert_eq!(plane.state(2).await, VersionState::Staging);
    // What is there is decoded again for the new version.
    let rebuild = plane.nth("decode", 2).await;
    wait_until("what is to be rebuilt", SOON, async || {
        plane.dags.view(ORG).await.unwrap().deployment.version("chain", 2).unwrap().rebuilding
    })
    .await;
    // The active version works on, and what comes meanwhile waits for the new one.
    let import = plane.fire("r-2").await;
    plane.run(import, "6-9").await;
    wait_until("both versions", SOON, async || plane.tasks("decode").await.len() == 4).await;
    let waiting: Vec<TaskId> = plane.tasks("decode").await.iter().map(|task| task.body.id).take(2).collect();
    let claims = [plane.claim(waiting[0]).await, plane.claim(waiting[1]).await];
    let held: Vec<TaskId> =
        (0..2).filter(|n| claims[*n] == Err(NotGrantedReason::NotDue)).map(|n| waiting[n]).collect();
    assert_eq!(held.len(), 1, "one of them is held: {claims:?}");
    let active = claims.into_iter().find_map(Result::ok).unwrap();
    plane.complete(&active, "6-9").await.unwrap();
    let queued = plane.nth("count", 2).await;
    assert_eq!(plane.state(2).await, VersionState::Staging, "its rebuild is not done");
    plane.run(rebuild, "1-5").await;
    let follows = plane.nth("count", 3).await;
    plane.run(follows, "1-5").await;
    wait_until("the new version", SOON, async || plane.state(2).await == VersionState::Active).await;
    assert_eq!(plane.state(1).await, VersionState::Superseded);
    wait_until("what the old version had queued", SOON, async || {
        plane.engine.task(queued, &Reach::All).await.unwrap().unwrap().place.state() == State::Canceled
    })
    .await;
    plane.run(held[0], "6-9").await;
    let drained = plane.nth("count", 4).await;
    plane.run(drained, "6-9").await;
    plane.stop().await;
}

async fn a_rollback_ends_what_the_version_was_doing(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    plane.deploy(&chain(1)).await;
    wait_until("nothing to rebuild", SOON, async || plane.state(2).await == VersionState::Active).await;
    let import = plane.fire("r-1").await;
    plane.run(import, "1-5").await;
    let decode = plane.nth("decode", 1).await;
    let running = plane.claim(decode).await.unwrap();
    let switched = plane.dags.roll_back(ORG, "chain").await.unwrap();
    assert_eq!((switched.switch.active, switched.canceled_tasks), (Some(1), 1));
    assert_eq!(plane.state(2).await, VersionState::RolledBack);
    let Err(Rejection::Conflict(conflict)) = plane.complete(&running, "1-5").await else { panic!("refused") };
    assert_eq!((conflict.kind, conflict.state), (ConflictKind::AttemptClosed, State::Canceled));
    // The version that works again finds what it has missed.
    plane.dags.reconcile().await.unwrap();
    let missed = plane.nth("decode", 2).await;
    plane.run(missed, "1-5").await;
    plane.stop().await;
}

async fn what_was_made_from_changed_data_is_made_again(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    plane.run_all("r-1", "1-5", 1).await;
    let new = plane.changed("1-5").await;
    for _ in 0..2 {
        assert_eq!(plane.dags.invalidate(ORG, &new).await.unwrap().generation, 1);
    }
    let again = plane.nth("decode", 2).await;
    let grant = plane.claim(again).await.unwrap();
    assert_eq!(input(&grant).invalidation.unwrap().id, new.id);
    plane.complete(&grant, "1-5").await.unwrap();
    // What it wrote anew has changed, too.
    let follows = plane.nth("count", 2).await;
    plane.run(follows, "1-5").await;
    plane.dags.reconcile().await.unwrap();
    assert_eq!((plane.tasks("decode").await.len(), plane.tasks("count").await.len()), (2, 2));
    plane.stop().await;
}

async fn an_invalidation_that_others_are_in_the_way_of_is_tried_again(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    let new = plane.changed("1-5").await;
    plane.engine.store().faults().fail_in("invalidate data", tenure_engine::store::Fault::Contention);
    assert_eq!(plane.dags.invalidate(ORG, &new).await.unwrap().generation, 1);
    assert!(!plane.engine.store().faults().clear(), "the first try failed");
    plane.stop().await;
}

/// As long as the tasks for changed data are not made, the reconciler makes none for it: they would not say what changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reconciler_leaves_changed_data_to_its_invalidation() {
    let home = Home::postgres().await;
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    plane.run_all("r-1", "1-5", 1).await;
    plane.stop().await;
    // It has the duties, and routes nothing.
    let idle = Engine::open(&home.url()).await.unwrap();
    let plane = self::plane(&home).await;
    let new = plane.changed("1-5").await;
    plane.dags.invalidate(ORG, &new).await.unwrap();
    plane.dags.reconcile().await.unwrap();
    assert_eq!(plane.tasks("decode").await.len(), 1, "none without the invalidation");
    idle.shutdown().await;
    let again = plane.nth("decode", 2).await;
    let grant = plane.claim(again).await.unwrap();
    assert_eq!(input(&grant).invalidation.unwrap().id, new.id);
    plane.stop().await;
}

async fn tasks_of_jobs_are_granted_to_nobody_else(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    let task = plane.fire("r-1").await;
    let queue = plane.engine.task(task, &Reach::All).await.unwrap().unwrap().queue;
    let pull = || Claimer::worker("w".into(), random_seed());
    let by_queue = Claim { claimer: pull(), queues: vec![Arc::clone(&queue)], max_jobs: 1 };
    assert_eq!(plane.engine.claim(by_queue, ClaimWait::NONE).await.unwrap().grants, []);
    let by_id = ClaimTask { claimer: pull(), task, message: None };
    let answer = plane.engine.claim_task(by_id).await.unwrap().unwrap();
    assert!(matches!(answer, TaskClaim::NotGranted(not) if not.reason == NotGrantedReason::NotDue), "{answer:?}");
    // An event of a dataset that the job does not write is refused, and changes nothing.
    let grant = plane.claim(task).await.unwrap();
    let foreign = SaidEvent {
        dataset: tenure_core::dag::DatasetId::from_u128(1),
        version: tenure_core::dag::VersionId::from_u128(2),
        at: Where { partition_key: Some("1-5".into()), ..Where::default() },
    };
    let said = Said { events: vec![foreign], ..Said::default() };
    let report = || Report::succeeded(None);
    let (sender, given, org) = (Plane::sender(&grant), input(&grant), ORG.into());
    let refused = plane.dags.report(&sender, &org, &given, report(), &said).await.unwrap();
    assert!(matches!(&refused, Err(Rejection::Data(data)) if data.code == "dataset_not_granted"), "{refused:?}");
    // Nobody but the holder learns what is wrong with the contents.
    let stranger = Sender { token: tenure_core::LeaseToken::from_u128(1), ..sender };
    let unknown = Sender { attempt: 2, ..sender };
    for (sender, kind) in [(stranger, ConflictKind::StaleLease), (unknown, ConflictKind::StaleAttempt)] {
        let reply = plane.dags.report(&sender, &org, &given, report(), &said).await.unwrap();
        assert!(matches!(&reply, Err(Rejection::Conflict(conflict)) if conflict.kind == kind), "{reply:?}");
    }
    // A version that never was is refused, too.
    let own = given.outputs[0];
    for version in [tenure_core::dag::VersionId::from_u128(2), own.version] {
        let at = Where { partition_key: Some("1-5".into()), ..Where::default() };
        let event = SaidEvent { dataset: own.dataset, version, at };
        let said = Said { events: vec![event], ..Said::default() };
        let reply = plane.dags.emit(&sender, Proof::Token(grant.token), &org, &given, &said).await.unwrap();
        assert_eq!(reply.is_ok(), version == own.version, "{reply:?}");
    }
    plane.stop().await;
}

async fn the_settings_say_when_a_task_is_tried_again(home: Home) {
    let engine = Engine::open_with(&home.url(), EngineConfig::default()).await.unwrap();
    let mut settings = DagSettings::default();
    settings.retry.initial_backoff_ms = 0;
    let plane = Plane { dags: engine.dags(settings), engine };
    plane.deploy(&chain(0)).await;
    let task = plane.fire("r-1").await;
    let failed = plane.claim(task).await.unwrap();
    let report = Report::failed(tenure_core::attempt::Failure::new("X", "it broke", None, None));
    let (sender, given) = (Plane::sender(&failed), input(&failed));
    plane.dags.report(&sender, &ORG.into(), &given, report, &Said::default()).await.unwrap().unwrap();
    assert_eq!(plane.claim(task).await.map(|grant| grant.attempt), Ok(2), "at once");
    plane.stop().await;
}

/// Two control planes deploy, fire and route at once: every deployment counts and every task is made once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_make_every_task_once() {
    let home = Home::postgres().await;
    let planes = [plane(&home).await, plane(&home).await];
    let dag = |name: usize| chain(0).replace("name: chain", &format!("name: chain{name}"));
    let deploying = (0..8).map(|n| {
        let (plane, yaml) = (&planes[n % 2], dag(n));
        async move { plane.dags.deploy(version(&yaml)).await.unwrap().planned.number }
    });
    let numbers = futures_util::future::join_all(deploying).await;
    assert_eq!(numbers, [1; 8]);
    assert_eq!(planes[0].dags.view(ORG).await.unwrap().deployment.dags.len(), 8);
    let firing = (0..16).map(|n| {
        let plane = &planes[n % 2];
        async move { plane.dags.trigger(ORG, "chain0", "import", &"same".into(), None).await.unwrap() }
    });
    let fired = futures_util::future::join_all(firing).await;
    assert_eq!(fired.iter().filter(|fired| fired.created).count(), 1);
    assert_eq!(fired.iter().map(|fired| fired.task).collect::<BTreeSet<_>>().len(), 1);
    planes[0].run(fired[0].task, "1-5").await;
    let reconciling = planes.iter().map(|plane| async { plane.dags.reconcile().await.unwrap() });
    futures_util::future::join_all(reconciling).await;
    let decode = planes[1].nth("decode", 1).await;
    planes[1].run(decode, "1-5").await;
    planes[0].nth("count", 1).await;
    assert_eq!(planes[0].count("count", State::Ready).await, 1);
    for plane in planes {
        plane.stop().await;
    }
}
