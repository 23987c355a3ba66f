//! How workers of jobs are told of tasks: by the control plane if they ask, by Redis, by SQS.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use tenure_core::TaskId;
use tenure_core::attempt::{Failure, Report};
use tenure_core::command::Reach;
use tenure_core::command::claim::{Grant, NotGrantedReason};
use tenure_core::command::queues::PauseQueue;
use tenure_core::command::report::AttemptReport;
use tenure_core::dag::deployment::VersionState;
use tenure_core::queue::Transport;
use tenure_core::task::State;
use tenure_engine::dags::NewVersion;
use tenure_engine::store::{Clock, OutboxFilter, OutboxState};
use tenure_engine::{EngineConfig, Transports};
use tenure_testkit::{Moto, Redis, wait_until};
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::sqs::{SqsConfig, SqsTransport};

use crate::dags::{ORG, Plane, plane_with, version};
use crate::harness::{Home, SOON};
use crate::on_both_stores;

on_both_stores!(
    whoever_asks_is_told_of_what_can_be_claimed,
    a_request_waits_for_work_and_not_for_ever,
    those_who_ask_at_once_get_different_tasks,
    what_cannot_be_claimed_is_not_told_until_it_can,
    each_runtime_and_pool_has_a_stream,
    a_wake_up_that_was_lost_is_repeated,
    a_free_slot_and_the_end_of_a_pause_are_told,
    the_end_of_a_pause_of_a_moment_is_told,
    held_tasks_are_announced_when_their_version_is_active,
    the_last_attempt_leaves_no_wake_up,
    a_queue_that_is_down_holds_up_nothing_and_loses_nothing,
    a_wake_up_that_is_refused_holds_up_no_other,
);

/// One source for each way to wake somebody up.
fn jobs(config: u32) -> String {
    let source = |name: &str, more: &str| {
        format!(
            "  - {{ name: {name}, activation: source, operator: {name}, outputs: 0, source: {{ kind: manual }}, {more} }}\n"
        )
    };
    let mut yaml = "name: wakes\njobs:\n".to_owned();
    yaml += &source("plain", "runtime: worker");
    yaml += &source("gpu", "runtime: worker, scaling: { worker_pool: gpu }");
    yaml += &source("one", "runtime: worker, scaling: { max_concurrency: 1 }");
    yaml += &source("once", "runtime: worker, max_attempts: 1");
    yaml += &source("boxed", "runtime: sandbox");
    yaml += "  - { name: tick, activation: source, runtime: dispatcher, operator: noop, outputs: 0, source: { kind: manual } }\n";
    yaml += "  - { name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: { kind: manual }, scaling: { worker_pool: import } }\n";
    yaml += &format!(
        "  - {{ name: decode, activation: reactive, runtime: worker, operator: decode, outputs: 0, execution_strategy: \
         PerPartition, inputs: [{{ from: {{ job: import, output: 0 }} }}], config: {{ n: {config} }} }}\n"
    );
    yaml
}

async fn open(home: &Home, config: EngineConfig) -> Plane {
    let plane = plane_with(home, config).await;
    plane.deploy(&jobs(0)).await;
    plane
}

impl Plane {
    async fn trigger(&self, job: &str, request: impl std::fmt::Display) -> TaskId {
        let request = format!("{job}-{request}").into();
        self.dags.trigger(ORG, "wakes", job, &request, None).await.unwrap().task
    }

    async fn asked(&self, queue: &str) -> Vec<TaskId> {
        self.dags.wakeups(queue, 10, Duration::ZERO).await.unwrap()
    }

    /// What somebody is told who asks and has time.
    async fn told(&self, queue: &str) -> Vec<TaskId> {
        let until = Instant::now() + SOON;
        loop {
            let told = self.dags.wakeups(queue, 10, Duration::from_secs(20)).await.unwrap();
            if !told.is_empty() || Instant::now() > until {
                return told;
            }
        }
    }

    async fn report(&self, grant: &Grant, report: Report) {
        let (task, attempt_id, token) = (grant.task, grant.attempt_id, grant.token);
        let report = AttemptReport { task, attempt_id, token, report, data: None };
        self.engine.report(report, 0).await.unwrap().unwrap();
    }

    async fn pause(&self, task: TaskId, paused: bool) {
        let queue = Arc::clone(&self.engine.task(task, &Reach::All).await.unwrap().unwrap().queue);
        self.engine.pause_queue(PauseQueue { queue, paused, reach: Reach::All }).await.unwrap().unwrap();
    }

    async fn outbox(&self, state: OutboxState) -> usize {
        let filter = OutboxFilter { state: Some(state), limit: 1_000, ..OutboxFilter::default() };
        self.engine.outbox(&filter).await.unwrap().items.len()
    }

    async fn stands(&self, task: TaskId) -> State {
        self.engine.task(task, &Reach::All).await.unwrap().unwrap().place.state()
    }
}

async fn whoever_asks_is_told_of_what_can_be_claimed(home: Home) {
    let plane = open(&home, EngineConfig::default()).await;
    for job in ["plain", "gpu", "boxed", "tick"] {
        plane.trigger(job, 1).await;
    }
    for (queue, job) in [("worker", "plain"), ("worker.gpu", "gpu"), ("sandbox", "boxed")] {
        let task = plane.nth(job, 1).await;
        assert_eq!(plane.asked(queue).await, [task], "{queue}");
        assert_eq!(plane.asked(queue).await, [task], "{queue}: who has no time gets what there is");
        plane.claim(task).await.unwrap();
        assert!(plane.asked(queue).await.is_empty(), "{queue}: it is taken");
    }
    for queue in ["nothing", "worker.", "", "lambda", "dispatcher", "dag::worker"] {
        assert!(plane.asked(queue).await.is_empty(), "{queue}");
    }
    plane.stop().await;
}

async fn a_request_waits_for_work_and_not_for_ever(home: Home) {
    let plane = open(&home, EngineConfig::default()).await;
    let started = Instant::now();
    assert!(plane.dags.wakeups("worker", 10, Duration::from_millis(300)).await.unwrap().is_empty());
    assert!(started.elapsed() >= Duration::from_millis(300));
    let wait = plane.dags.wakeups("worker", 10, Duration::from_secs(20));
    let submit = async {
        wait_until("somebody who waits", SOON, async || plane.engine.claims_waiting() == 1).await;
        plane.trigger("plain", 1).await
    };
    let (told, task) = tokio::join!(wait, submit);
    assert_eq!(told.unwrap(), [task]);
    // Who hangs up leaves nothing behind.
    {
        let mut gone = std::pin::pin!(plane.dags.wakeups("worker.gpu", 10, Duration::from_secs(20)));
        let _ = tokio::time::timeout(Duration::from_millis(50), gone.as_mut()).await;
    }
    assert_eq!(plane.engine.claims_waiting(), 0);
    // The end of the control plane ends the wait.
    let (told, ()) = tokio::join!(plane.dags.wakeups("worker.gpu", 1, Duration::from_secs(20)), async {
        wait_until("somebody who waits", SOON, async || plane.engine.claims_waiting() == 1).await;
        plane.engine.begin_shutdown();
    });
    assert!(told.unwrap().is_empty());
    plane.stop().await;
}

async fn those_who_ask_at_once_get_different_tasks(home: Home) {
    let plane = open(&home, EngineConfig::default()).await;
    let mut tasks = BTreeSet::new();
    for n in 0..40 {
        tasks.insert(plane.trigger(if n % 2 == 0 { "plain" } else { "once" }, n).await);
    }
    let polls = (0..4).map(|_| plane.dags.wakeups("worker", 50, Duration::ZERO));
    let told = futures_util::future::try_join_all(polls).await.unwrap();
    assert!(told.iter().all(|tasks| tasks.len() == 10), "at most ten: {told:?}");
    assert_eq!(told.into_iter().flatten().collect::<BTreeSet<_>>(), tasks);
    plane.stop().await;
}

async fn what_cannot_be_claimed_is_not_told_until_it_can(home: Home) {
    let plane = open(&home, EngineConfig::default()).await;
    // The limit.
    let tasks = [plane.trigger("one", 1).await, plane.trigger("one", 2).await];
    assert_eq!(plane.asked("worker").await, [tasks[0]], "there is one slot");
    let grant = plane.claim(tasks[0]).await.unwrap();
    assert!(plane.asked("worker").await.is_empty());
    let (told, ()) = tokio::join!(plane.told("worker"), async {
        wait_until("somebody who waits", SOON, async || plane.engine.claims_waiting() == 1).await;
        plane.report(&grant, Report::succeeded(None)).await;
    });
    assert_eq!(told, [tasks[1]]);
    plane.claim(tasks[1]).await.unwrap();
    // A pause.
    let paused = plane.trigger("plain", 1).await;
    plane.pause(paused, true).await;
    assert!(plane.asked("worker").await.is_empty());
    let (told, ()) = tokio::join!(plane.told("worker"), async {
        wait_until("somebody who waits", SOON, async || plane.engine.claims_waiting() == 1).await;
        plane.pause(paused, false).await;
    });
    assert_eq!(told, [paused]);
    plane.claim(paused).await.unwrap();
    // A version that is not active.
    let held = held_decode(&plane).await;
    assert!(plane.asked("worker").await.is_empty());
    let (told, ()) = tokio::join!(plane.told("worker"), async {
        wait_until("somebody who waits", SOON, async || plane.engine.claims_waiting() == 1).await;
        plane.dags.cut_over(ORG, "wakes", 2).await.unwrap();
    });
    assert_eq!(told, [held]);
    plane.stop().await;
}

/// A task of a second version that waits for that version to be made active.
async fn held_decode(plane: &Plane) -> TaskId {
    let yaml = jobs(1);
    plane.dags.deploy(NewVersion { manual: true, ..version(&yaml) }).await.unwrap();
    wait_until("nothing to rebuild", SOON, async || {
        plane.dags.view(ORG).await.unwrap().deployment.version("wakes", 2).unwrap().state == VersionState::Ready
    })
    .await;
    let import = plane.trigger("import", 1).await;
    plane.run(import, "1-5").await;
    let newest = plane.nth("decode", 2).await;
    let tasks = plane.tasks("decode").await;
    let both: Vec<TaskId> = tasks.iter().map(|task| task.body.id).collect();
    assert_eq!(both[0], newest);
    // One is the active version's and is claimed; the other one waits.
    let claims = [plane.claim(both[0]).await, plane.claim(both[1]).await];
    let held = claims.iter().position(|claim| *claim == Err(NotGrantedReason::NotDue)).unwrap();
    assert!(claims[1 - held].is_ok());
    both[held]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_control_plane_wakes_who_waits() {
    let home = Home::postgres().await;
    let (here, there) = (open(&home, EngineConfig::default()).await, plane_with(&home, EngineConfig::default()).await);
    let (told, task) = tokio::join!(there.told("worker"), async {
        wait_until("somebody who waits", SOON, async || there.engine.claims_waiting() == 1).await;
        here.trigger("plain", 1).await
    });
    assert_eq!(told, [task]);
    assert!(there.claim(task).await.is_ok());
    here.stop().await;
    there.stop().await;
}

/// A worker that knows Redis and the contract, and nothing else of Tenure.
struct Outside {
    connection: redis::Connection,
}

impl Outside {
    fn new(server: &Redis) -> Self {
        Self { connection: redis::Client::open(server.url()).unwrap().get_connection().unwrap() }
    }

    fn run<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    /// What is new in a stream, acknowledged: the values of each entry's only field.
    fn read(&mut self, stream: &str) -> Vec<String> {
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        let mut command = redis::cmd("XREADGROUP");
        command.arg(&["GROUP", "tenure", "outside", "COUNT", "1000", "STREAMS", stream, ">"]);
        let found: Option<Vec<(String, Entries)>> = match command.query(&mut self.connection) {
            Ok(found) => found,
            Err(error) if error.code() == Some("NOGROUP") => None,
            Err(error) => panic!("{error}"),
        };
        let mut bodies = Vec::new();
        for (id, fields) in found.into_iter().flatten().flat_map(|(_, entries)| entries) {
            assert_eq!(fields.keys().collect::<Vec<_>>(), ["body"]);
            bodies.extend(fields.into_values());
            self.run::<i64>(&["XACK", stream, "tenure", &id]);
        }
        bodies
    }

    /// The tasks that a stream tells of, until `last` is among them.
    async fn until(&mut self, stream: &str, last: TaskId) -> Vec<String> {
        let mut told = Vec::new();
        wait_until(&format!("{stream} tells of {last}"), SOON, async || {
            for body in self.read(stream) {
                let id = body.strip_prefix("{\"task_id\":\"").and_then(|rest| rest.strip_suffix("\"}")).unwrap();
                told.push(id.to_owned());
            }
            told.contains(&last.to_string())
        })
        .await;
        told
    }
}

fn redis_config(server: &Redis) -> EngineConfig {
    let redis = RedisTransport::new(RedisConfig { url: server.url(), ..RedisConfig::default() }).unwrap();
    EngineConfig {
        transports: Transports { redis: Some(Arc::new(redis)), sqs: None },
        default_transport: Transport::Redis,
        ..EngineConfig::default()
    }
}

fn names(tasks: &[TaskId]) -> Vec<String> {
    tasks.iter().map(ToString::to_string).collect()
}

async fn each_runtime_and_pool_has_a_stream(home: Home) {
    let server = Redis::start().await;
    let plane = open(&home, redis_config(&server)).await;
    let mut outside = Outside::new(&server);
    let tick = plane.trigger("tick", 1).await;
    let tasks = [plane.trigger("plain", 1).await, plane.trigger("once", 1).await];
    let (gpu, boxed) = (plane.trigger("gpu", 1).await, plane.trigger("boxed", 1).await);
    assert_eq!(outside.until("worker", tasks[1]).await, names(&tasks));
    assert_eq!(outside.until("worker.gpu", gpu).await, names(&[gpu]));
    assert_eq!(outside.until("sandbox", boxed).await, names(&[boxed]));
    assert_ne!(plane.stands(tick).await, State::Failed);
    let streams: BTreeSet<String> = outside.run(&["KEYS", "*"]);
    assert_eq!(streams, BTreeSet::from(["worker".into(), "worker.gpu".into(), "sandbox".into()]));
    // A task that has ended is taken out of the stream, whether its message was acknowledged or not.
    for task in tasks {
        let grant = plane.claim(task).await.unwrap();
        plane.report(&grant, Report::succeeded(None)).await;
    }
    wait_until("an empty stream", SOON, async || outside.run::<i64>(&["XLEN", "worker"]) == 0).await;
    // Who asks the control plane is told as well.
    assert_eq!(plane.asked("worker.gpu").await, [gpu]);
    plane.stop().await;
}

async fn a_wake_up_that_was_lost_is_repeated(home: Home) {
    let server = Redis::start().await;
    let clock = Arc::new(Clock::default());
    let plane = open(&home, EngineConfig { clock: Arc::clone(&clock), ..redis_config(&server) }).await;
    let mut outside = Outside::new(&server);
    let tasks = [plane.trigger("plain", 1).await, plane.trigger("plain", 2).await];
    outside.until("worker", tasks[1]).await;
    wait_until("published", SOON, async || plane.outbox(OutboxState::Published).await == 2).await;
    let running = plane.claim(tasks[0]).await.unwrap();
    for n in 0..3 {
        clock.advance(61_000);
        // Only what still waits, and once.
        assert_eq!(outside.until("worker", tasks[1]).await, names(&tasks[1..]));
        wait_until("published", SOON, async || plane.outbox(OutboxState::Waiting).await == 0).await;
        if n == 0 {
            plane.report(&running, Report::succeeded(None)).await;
        }
    }
    clock.advance(30_000);
    let marker = plane.trigger("plain", 3).await;
    assert_eq!(outside.until("worker", marker).await, names(&[marker]), "not before its time");
    // A message that was replaced is gone, so that the stream does not grow.
    assert!(outside.run::<i64>(&["XLEN", "worker"]) <= 4);
    plane.stop().await;
}

async fn a_free_slot_and_the_end_of_a_pause_are_told(home: Home) {
    let server = Redis::start().await;
    let clock = Arc::new(Clock::default());
    let plane = open(&home, EngineConfig { clock: Arc::clone(&clock), ..redis_config(&server) }).await;
    let mut outside = Outside::new(&server);
    let tasks = [plane.trigger("one", 1).await, plane.trigger("one", 2).await, plane.trigger("one", 3).await];
    outside.until("worker", tasks[2]).await;
    wait_until("published", SOON, async || plane.outbox(OutboxState::Published).await == 3).await;
    for n in 0..2 {
        let grant = plane.claim(tasks[n]).await.unwrap();
        assert_eq!(plane.claim(tasks[n + 1]).await, Err(NotGrantedReason::NotDue));
        plane.report(&grant, Report::succeeded(None)).await;
        assert!(outside.until("worker", tasks[n + 1]).await.len() <= 2, "one slot, one wake-up");
    }
    plane.claim(tasks[2]).await.unwrap();
    let paused = plane.trigger("plain", 1).await;
    outside.until("worker", paused).await;
    plane.pause(paused, true).await;
    let other = plane.trigger("once", 1).await;
    outside.until("worker", other).await;
    wait_until("published", SOON, async || plane.outbox(OutboxState::Waiting).await == 0).await;
    clock.advance(61_000);
    assert!(!outside.until("worker", other).await.contains(&paused.to_string()), "it cannot be claimed");
    assert_eq!(plane.claim(paused).await, Err(NotGrantedReason::NotDue));
    plane.pause(paused, false).await;
    assert_eq!(outside.until("worker", paused).await, names(&[paused]));
    plane.stop().await;
}

async fn the_end_of_a_pause_of_a_moment_is_told(home: Home) {
    let server = Redis::start().await;
    let clock = Arc::new(Clock::default());
    let plane = open(&home, EngineConfig { clock: Arc::clone(&clock), ..redis_config(&server) }).await;
    let mut outside = Outside::new(&server);
    let task = plane.trigger("plain", 1).await;
    outside.until("worker", task).await;
    wait_until("published", SOON, async || plane.outbox(OutboxState::Published).await == 1).await;
    // No look that goes by the clock could see the pause, or repeat the wake-up.
    clock.freeze(plane.engine.now().await.unwrap());
    plane.pause(task, true).await;
    assert_eq!(plane.claim(task).await, Err(NotGrantedReason::NotDue));
    plane.pause(task, false).await;
    assert_eq!(outside.until("worker", task).await, names(&[task]));
    plane.claim(task).await.unwrap();
    plane.stop().await;
}

async fn held_tasks_are_announced_when_their_version_is_active(home: Home) {
    let server = Redis::start().await;
    let plane = open(&home, redis_config(&server)).await;
    let mut outside = Outside::new(&server);
    let held = held_decode(&plane).await;
    let marker = plane.trigger("plain", 1).await;
    assert!(!outside.until("worker", marker).await.contains(&held.to_string()));
    plane.dags.cut_over(ORG, "wakes", 2).await.unwrap();
    assert_eq!(outside.until("worker", held).await, names(&[held]));
    plane.claim(held).await.unwrap();
    plane.stop().await;
}

async fn the_last_attempt_leaves_no_wake_up(home: Home) {
    let server = Redis::start().await;
    let clock = Arc::new(Clock::default());
    let plane = open(&home, EngineConfig { clock: Arc::clone(&clock), ..redis_config(&server) }).await;
    let mut outside = Outside::new(&server);
    let (last, retried) = (plane.trigger("once", 1).await, plane.trigger("plain", 1).await);
    outside.until("worker", retried).await;
    for task in [last, retried] {
        let grant = plane.claim(task).await.unwrap();
        plane.report(&grant, Report::failed(Failure::new("E", "no", None, Some(true)))).await;
    }
    assert_eq!((plane.stands(last).await, plane.stands(retried).await), (State::Failed, State::Scheduled));
    assert_eq!(plane.outbox(OutboxState::Waiting).await + plane.outbox(OutboxState::Published).await, 0);
    // The back-off of the other one is over: that is told, and then nothing else.
    clock.advance(46_000);
    assert_eq!(outside.until("worker", retried).await, names(&[retried]));
    clock.advance(120_000);
    let marker = plane.trigger("plain", 2).await;
    assert!(!outside.until("worker", marker).await.contains(&last.to_string()));
    plane.stop().await;
}

async fn a_queue_that_is_down_holds_up_nothing_and_loses_nothing(home: Home) {
    let mut server = Redis::start().await;
    let plane = open(&home, redis_config(&server)).await;
    let before = plane.trigger("plain", 0).await;
    Outside::new(&server).until("worker", before).await;
    server.kill();
    let mut tasks = Vec::new();
    for n in 1..=20 {
        tasks.push(plane.trigger("plain", n).await);
    }
    wait_until("the outbox", SOON, async || plane.outbox(OutboxState::Waiting).await >= 20).await;
    // Whoever asks can work meanwhile, and a restart in between changes nothing.
    assert_eq!(plane.asked("worker").await.len(), 10);
    plane.claim(tasks[0]).await.unwrap();
    plane.stop().await;
    let clock = Arc::new(Clock::default());
    let plane = plane_with(&home, EngineConfig { clock: Arc::clone(&clock), ..redis_config(&server) }).await;
    server.restart().await;
    let mut outside = Outside::new(&server);
    let mut missing: BTreeSet<TaskId> = tasks[1..].iter().copied().collect();
    while let Some(next) = missing.first().copied() {
        let told: BTreeSet<String> = outside.until("worker", next).await.into_iter().collect();
        missing.retain(|task| !told.contains(&task.to_string()));
    }
    wait_until("an empty outbox", SOON, async || plane.outbox(OutboxState::Waiting).await == 0).await;
    // It has lost everything, also what it had before.
    clock.advance(61_000);
    outside.until("worker", before).await;
    plane.stop().await;
}

async fn a_wake_up_that_is_refused_holds_up_no_other(home: Home) {
    let server = Redis::start().await;
    let config = EngineConfig { outbox_tries: 2, ..redis_config(&server) };
    let plane = open(&home, config).await;
    let mut outside = Outside::new(&server);
    // Something else has the name.
    outside.run::<String>(&["SET", "worker.gpu", "taken"]);
    let (bad, good) = (plane.trigger("gpu", 1).await, plane.trigger("plain", 1).await);
    assert_eq!(outside.until("worker", good).await, names(&[good]));
    wait_until("the failed row", SOON, async || plane.outbox(OutboxState::Failed).await == 1).await;
    let later = plane.trigger("plain", 2).await;
    assert_eq!(outside.until("worker", later).await, names(&[later]));
    assert_eq!(plane.asked("worker.gpu").await, [bad], "whoever asks is told");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqs_has_a_queue_per_runtime_and_pool_and_bodies_alone() {
    let moto = Moto::start().await;
    let client = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(moto.url());
    let client = aws_sdk_sqs::Client::from_conf(client.build());
    let config = SqsConfig {
        create_queues: true,
        queue_prefix: "t-".to_owned(),
        outside_names: BTreeMap::from([("sandbox".to_owned(), "their-boxes".to_owned())]),
        ..SqsConfig::default()
    };
    let sqs = SqsTransport::from_client(&client, config).unwrap();
    let clock = Arc::new(Clock::default());
    let config = EngineConfig {
        transports: Transports { redis: None, sqs: Some(Arc::new(sqs)) },
        default_transport: Transport::Sqs,
        clock: Arc::clone(&clock),
        ..EngineConfig::default()
    };
    let home = Home::sqlite();
    let plane = open(&home, config).await;
    for (job, queue) in [("plain", "t-worker"), ("gpu", "t-worker_gpu"), ("boxed", "their-boxes")] {
        let task = plane.trigger(job, 1).await;
        for _ in 0..2 {
            let body = received(&client, queue).await;
            assert_eq!(body, format!("{{\"task_id\":\"{task}\"}}"), "{queue}");
            wait_until("published", SOON, async || plane.outbox(OutboxState::Waiting).await == 0).await;
            // It is acknowledged and nobody claims it: it comes again.
            clock.advance(61_000);
        }
        plane.claim(task).await.unwrap();
    }
    plane.stop().await;
}

/// The next message of a queue, deleted.
async fn received(client: &aws_sdk_sqs::Client, queue: &str) -> String {
    wait_until(&format!("a message in {queue}"), SOON, async || {
        let url = client.get_queue_url().queue_name(queue).send().await.ok()?.queue_url?;
        let asked = client.receive_message().queue_url(&url).message_attribute_names("All").wait_time_seconds(1);
        let message = asked.send().await.unwrap().messages?.into_iter().next()?;
        assert!(message.message_attributes.is_none_or(|attributes| attributes.is_empty()));
        client.delete_message().queue_url(url).receipt_handle(message.receipt_handle.unwrap()).send().await.unwrap();
        message.body
    })
    .await
}
