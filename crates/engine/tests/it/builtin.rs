//! Tasks of built-in operators, which the control plane runs itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::attempt::{Category, Report};
use tenure_core::command::claim::{ClaimTask, Claimant, Claimer};
use tenure_core::dag::InvalidationId;
use tenure_core::dag::data::{NewInvalidation, Scope};
use tenure_core::dag::judge::{Said, SaidOutput, SaidVersion, Where};
use tenure_core::dag::task::TaskInput;
use tenure_core::queue::{Push, QueueSettings};
use tenure_core::task::{Place, State};
use tenure_engine::dags::{Dags, NewVersion, Sender};
use tenure_engine::delivery::{Courier, Handover, Parcel};
use tenure_engine::store::{Clock, TaskFilter, TaskView};
use tenure_engine::{Engine, EngineConfig, TaskClaim, random_bits, random_seed};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON};
use crate::on_both_stores;

on_both_stores!(
    ranges_are_split_and_joined,
    changed_data_runs_through_built_in_operators_again,
    a_firing_of_a_tick_makes_one_task,
    what_an_operator_cannot_do_fails_with_its_reason,
    a_control_plane_that_dies_in_the_middle_is_replaced,
    many_ranges_are_written_in_pieces,
);

const ORG: &str = "acme";

const RANGES: &str = "name: ranges
jobs:
  - { name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: { kind: manual } }
  - name: split
    activation: reactive
    runtime: dispatcher
    operator: range_splitter
    outputs: 1
    inputs: [{ from: { job: import, output: 0 } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { size: 5 }
  - name: join
    activation: reactive
    runtime: dispatcher
    operator: range_aggregator
    outputs: 1
    inputs: [{ from: { job: split, output: 0 } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { size: 20 }
  - name: small
    activation: reactive
    runtime: worker
    operator: small
    outputs: 0
    inputs: [{ from: { job: split, output: 0 } }]
    execution_strategy: PerPartition
  - name: large
    activation: reactive
    runtime: worker
    operator: large
    outputs: 0
    inputs: [{ from: { job: join, output: 0 } }]
    execution_strategy: PerPartition
";

struct Plane {
    engine: Engine,
    dags: Dags,
}

/// A control plane whose couriers run built-in operators.
async fn plane(home: &Home, clock: &Arc<Clock>) -> Plane {
    let plane = idle_plane(home, clock).await;
    plane.engine.deliver(vec![plane.dags.builtin()]);
    plane
}

async fn idle_plane(home: &Home, clock: &Arc<Clock>) -> Plane {
    let config = EngineConfig { clock: Arc::clone(clock), ..EngineConfig::default() };
    let engine = Engine::open_with(&home.url(), config).await.unwrap();
    let dags = engine.dags(Default::default());
    Plane { engine, dags }
}

impl Plane {
    async fn deploy(&self, yaml: &str) {
        self.dags.deploy(NewVersion { org: ORG, yaml, manual: false, dry_run: false }).await.unwrap();
    }

    async fn tasks(&self, operator: &str) -> Vec<TaskView> {
        let filter = TaskFilter { operator: Some(operator.to_owned()), limit: 500, ..TaskFilter::default() };
        self.engine.tasks(&filter).await.unwrap().items
    }

    /// The positions of the tasks of an operator when there are so many, in order.
    async fn positions(&self, operator: &str, count: usize) -> Vec<String> {
        let what = format!("{count} of {operator}");
        wait_until(&what, SOON, async || self.tasks(operator).await.len() >= count).await;
        let mut positions: Vec<String> = self.tasks(operator).await.iter().map(position).collect();
        positions.sort();
        positions
    }

    /// Fires the source and says that it wrote this partition.
    async fn import(&self, dag: &str, key: &str) {
        let fired = self.dags.trigger(ORG, dag, "import", &key.into(), None).await.unwrap();
        let claimant =
            Claimant { id: "w".into(), incarnation: None, claim_id: None, kills_on_expiry: false, dispatch: true };
        let claimer = Claimer { worker: Some(claimant), seed: random_seed() };
        let claim = ClaimTask { claimer, task: fired.task, message: None };
        let TaskClaim::Granted(claimed) = self.engine.claim_task(claim).await.unwrap().unwrap() else {
            panic!("not granted")
        };
        let grant = &claimed.grants[0];
        let input: TaskInput = serde_json::from_str(&grant.body.as_ref().unwrap().payload).unwrap();
        let output = SaidOutput {
            dataset: input.outputs[0].dataset,
            version: SaidVersion::Generation(input.outputs[0].version),
            at: Where { partition_key: Some(key.into()), ..Where::default() },
            location: "none:".into(),
            row_count: None,
            bytes: None,
            schema_hash: None,
            manifest: None,
        };
        let said = Said { outputs: vec![output], ..Said::default() };
        let sender = Sender { task: grant.task, attempt: 1, token: grant.token, attempt_id: None };
        self.dags.report(&sender, &ORG.into(), &input, Report::succeeded(None), &said).await.unwrap().unwrap();
    }

    /// Waits until nothing of these operators is left to do.
    async fn settled(&self, operators: &[&str]) {
        for operator in operators {
            wait_until(operator, SOON, async || {
                self.tasks(operator).await.iter().all(|task| task.place.state() == State::Succeeded)
            })
            .await;
        }
    }
}

fn position(task: &TaskView) -> String {
    let input: TaskInput = serde_json::from_str(&task.body.payload).unwrap();
    let at = &input.inputs[0];
    format!("{} g{}", at.position.as_ref().unwrap().text(), at.generation)
}

async fn ranges_are_split_and_joined(home: Home) {
    let plane = plane(&home, &Arc::default()).await;
    plane.deploy(RANGES).await;
    plane.import("ranges", "0-12").await;
    let small = ["partition:0-4 g0", "partition:10-12 g0", "partition:5-9 g0"];
    assert_eq!(plane.positions("small", 3).await, small);
    wait_until("joined in part", SOON, async || plane.tasks("range_aggregator").await.len() == 3).await;
    plane.settled(&["range_splitter", "range_aggregator"]).await;
    assert!(plane.tasks("large").await.is_empty(), "nothing is complete");
    plane.import("ranges", "13-40").await;
    assert_eq!(plane.positions("large", 2).await, ["partition:0-19 g0", "partition:20-39 g0"]);
    plane.settled(&["range_splitter", "range_aggregator"]).await;
    // Nothing is left to do, however often one looks.
    plane.dags.reconcile().await.unwrap();
    assert_eq!((plane.tasks("small").await.len(), plane.tasks("large").await.len()), (9, 2));
    for operator in ["range_splitter", "range_aggregator"] {
        assert!(plane.tasks(operator).await.iter().all(|task| attempt(task) == 1), "{operator}");
    }
    plane.engine.shutdown().await;
}

fn attempt(task: &TaskView) -> u32 {
    match &task.place {
        Place::Finished(finished) => finished.attempt,
        Place::Running(running) => running.attempt,
        Place::Ready(waiting) | Place::Scheduled(waiting) => waiting.attempt,
        Place::Blocked(_) => 0,
    }
}

async fn changed_data_runs_through_built_in_operators_again(home: Home) {
    let plane = plane(&home, &Arc::default()).await;
    plane.deploy(RANGES).await;
    plane.import("ranges", "0-9").await;
    plane.import("ranges", "10-19").await;
    plane.positions("large", 1).await;
    plane.settled(&["range_splitter", "range_aggregator"]).await;
    let import = plane.tasks("import").await;
    let input: TaskInput = serde_json::from_str(&import[0].body.payload).unwrap();
    let changed = NewInvalidation {
        id: InvalidationId::from_u128(random_bits()),
        dataset: input.outputs[0].dataset,
        version: input.outputs[0].version,
        scope: Scope::Partition { partition_key: "0-9".into() },
        reason: "correction".into(),
    };
    plane.dags.invalidate(ORG, &changed).await.unwrap();
    // Both parts of the changed range, the range that contains them, and nothing else.
    let small = plane.positions("small", 6).await;
    assert_eq!(&small[..4], ["partition:0-4 g0", "partition:0-4 g1", "partition:10-14 g0", "partition:15-19 g0"]);
    assert_eq!(&small[4..], ["partition:5-9 g0", "partition:5-9 g1"]);
    // Each of the two parts says that the range has changed.
    let large = plane.positions("large", 3).await;
    assert_eq!(large, ["partition:0-19 g0", "partition:0-19 g1", "partition:0-19 g2"]);
    plane.settled(&["range_splitter", "range_aggregator"]).await;
    plane.engine.shutdown().await;
}

async fn a_firing_of_a_tick_makes_one_task(home: Home) {
    let plane = plane(&home, &Arc::default()).await;
    let yaml = "name: ticks
jobs:
  - { name: tick, activation: source, runtime: dispatcher, operator: tick, outputs: 2, source: { kind: manual } }
  - { name: idle, activation: source, runtime: dispatcher, operator: noop, outputs: 1, source: { kind: manual } }
  - name: react
    activation: reactive
    runtime: worker
    operator: react
    outputs: 0
    inputs: [{ from: { job: tick, output: 1 } }]
    execution_strategy: PerUpdate
  - name: never
    activation: reactive
    runtime: worker
    operator: never
    outputs: 0
    inputs: [{ from: { job: idle, output: 0 } }]
    execution_strategy: PerUpdate
";
    plane.deploy(yaml).await;
    let mut fired = Vec::new();
    for request in ["a", "b", "a"] {
        fired.push(plane.dags.trigger(ORG, "ticks", "tick", &request.into(), None).await.unwrap().task.seq().0);
    }
    plane.dags.trigger(ORG, "ticks", "idle", &"a".into(), None).await.unwrap();
    let mut expected = [fired[0], fired[1]].map(|cursor| format!("cursor:{cursor} g0"));
    expected.sort();
    assert_eq!(plane.positions("react", 2).await, expected);
    wait_until("ends", SOON, async || plane.tasks("noop").await.len() == 1).await;
    plane.settled(&["tick", "noop"]).await;
    plane.dags.reconcile().await.unwrap();
    assert_eq!((plane.tasks("react").await.len(), plane.tasks("never").await.len()), (2, 0));
    plane.engine.shutdown().await;
}

async fn what_an_operator_cannot_do_fails_with_its_reason(home: Home) {
    let plane = plane(&home, &Arc::default()).await;
    plane.deploy(RANGES).await;
    plane.import("ranges", "today").await;
    for (operator, category, word) in [("range_splitter", Category::DataQuality, "partition 'today' is not a range")] {
        let failed = async || plane.tasks(operator).await.iter().any(|task| task.place.state() == State::Failed);
        wait_until(operator, SOON, failed).await;
        let [task] = &plane.tasks(operator).await[..] else { panic!("one task of {operator}") };
        let Place::Finished(finished) = &task.place else { panic!("{task:?}") };
        let failure = finished.failure.as_ref().unwrap();
        assert_eq!((failure.category, finished.attempt), (Some(category), 1), "{failure:?}");
        assert!(failure.message.contains(word) && finished.dead_lettered_at.is_some(), "{failure:?}");
    }
    plane.engine.shutdown().await;
}

/// Takes tasks of built-in operators and never ends one.
#[derive(Debug, Default)]
struct Stuck {
    taken: AtomicUsize,
}

impl Courier for Stuck {
    fn serves(&self, settings: &QueueSettings) -> bool {
        settings.push.as_ref().is_some_and(|push| &*push.url == "builtin:")
    }

    fn check(&self, _: &Push) -> Result<(), String> {
        Ok(())
    }

    fn deliver(&self, _: Parcel) -> BoxFuture<'_, Handover> {
        self.taken.fetch_add(1, Ordering::SeqCst);
        std::future::pending().boxed()
    }
}

async fn a_control_plane_that_dies_in_the_middle_is_replaced(home: Home) {
    let (clock, stuck) = (Arc::<Clock>::default(), Arc::new(Stuck::default()));
    let first = idle_plane(&home, &clock).await;
    first.engine.deliver(vec![Arc::clone(&stuck) as Arc<dyn Courier>]);
    first.deploy(RANGES).await;
    first.import("ranges", "0-4").await;
    wait_until("taken", SOON, async || stuck.taken.load(Ordering::SeqCst) == 1).await;
    first.engine.shutdown().await;
    drop(first);
    let second = plane(&home, &clock).await;
    clock.advance(66_000);
    assert_eq!(second.positions("small", 1).await, ["partition:0-4 g0"]);
    second.settled(&["range_splitter"]).await;
    let [split] = &second.tasks("range_splitter").await[..] else { panic!("one task") };
    assert_eq!(attempt(split), 1, "the delivery is repeated under the lease of the attempt");
    second.engine.shutdown().await;
}

async fn many_ranges_are_written_in_pieces(home: Home) {
    let plane = plane(&home, &Arc::default()).await;
    plane.deploy(&RANGES.replace("size: 5 }", "size: 1 }").replace("size: 20 }", "size: 2500 }")).await;
    plane.import("ranges", "0-2499").await;
    plane.positions("range_splitter", 1).await;
    plane.settled(&["range_splitter"]).await;
    let count = async || {
        let queues = plane.engine.queues(None, None, 20).await.unwrap().items;
        queues.iter().find(|row| row.queue.name.contains(":small:")).map_or(0, |row| row.counts.ready)
    };
    wait_until("a task for each part", SOON, async || count().await == 2_500).await;
    plane.engine.shutdown().await;
}

/// Two control planes deliver and report at once: every range is told of once, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_control_planes_run_each_task_once() {
    let home = Home::postgres().await;
    let clock = Arc::default();
    let planes = [plane(&home, &clock).await, plane(&home, &clock).await];
    planes[0].deploy(RANGES).await;
    let keys: Vec<String> = (0..24).rev().map(|n| format!("{}-{}", n * 5, n * 5 + 4)).collect();
    let importing = keys.iter().enumerate().map(|(n, key)| planes[n % 2].import("ranges", key));
    futures_util::future::join_all(importing).await;
    let expected: Vec<String> = {
        let mut all: Vec<String> = (0..6).map(|n| format!("partition:{}-{} g0", n * 20, n * 20 + 19)).collect();
        all.sort();
        all
    };
    assert_eq!(planes[1].positions("large", 6).await, expected);
    planes[0].settled(&["range_splitter", "range_aggregator"]).await;
    for (operator, count) in [("range_splitter", 24), ("range_aggregator", 24), ("small", 24), ("large", 6)] {
        let tasks = planes[0].tasks(operator).await;
        assert_eq!(tasks.len(), count, "{operator}");
        assert!(tasks.iter().all(|task| attempt(task) <= 1), "{operator}");
    }
    for plane in planes {
        plane.engine.shutdown().await;
    }
}
