//! Wake-ups over Redis Streams: what stands in the stream, who takes it out, and what happens when Redis loses it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_engine::Duty;
use tenure_engine::store::{MAKERS_OWN_MS, OutboxFilter};
use tenure_testkit::{Redis, wait_until};
use tenure_transport::redis::{RedisConfig, RedisTransport};
use tenure_transport::{Delivery, Transport};

use crate::harness::{Home, SOON, Server, database, later, report, retryable};

/// Long enough for tens of thousands of messages on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The id of an entry, and its fields.
type Entry = (String, Vec<(String, String)>);

/// Another look at the Redis of a server, and a worker that reads it by itself.
struct Stream {
    redis: redis::aio::MultiplexedConnection,
    reader: RedisTransport,
}

impl Stream {
    async fn of(server: &Server) -> Self {
        let Home::Redis(_, redis) = &*server.home else { panic!("no Redis") };
        let url = redis.lock().await.url();
        let client = redis::Client::open(url.as_str()).unwrap();
        let redis = client.get_multiplexed_async_connection().await.unwrap();
        let config = RedisConfig { url, consumer: "reader".to_owned(), ..RedisConfig::default() };
        Self { redis, reader: RedisTransport::new(config).unwrap() }
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut ask = redis::cmd(command[0]);
        ask.arg(&command[1..]);
        ask.query_async(&mut self.redis.clone()).await.unwrap()
    }

    async fn len(&self, stream: &str) -> u64 {
        self.ask(&["XLEN", stream]).await
    }

    async fn pending(&self, stream: &str) -> u64 {
        let summary: Vec<redis::Value> = self.ask(&["XPENDING", stream, "tenure"]).await;
        redis::from_redis_value(summary[0].clone()).unwrap()
    }

    async fn entries(&self, stream: &str) -> Vec<Entry> {
        self.ask(&["XRANGE", stream, "-", "+"]).await
    }

    async fn wait_for(&self, stream: &str, len: u64) {
        wait_until(&format!("{len} entries in {stream}"), LONG, async || self.len(stream).await == len).await;
    }

    async fn read(&self, queues: &[&str], max: usize) -> Vec<Delivery> {
        let queues: Vec<Arc<str>> = queues.iter().map(|queue| (*queue).into()).collect();
        self.reader.receive(&queues, max, SOON).await.unwrap()
    }
}

async fn claim_by(server: &Server, delivery: &Delivery) -> Value {
    let claim = json!({"worker_id": "reader", "job_id": &*delivery.task, "stream": &*delivery.queue,
                       "message_id": &*delivery.message_id});
    server.worker("claim", claim).await.ok()
}

/// Reads the stream and runs what it finds until `count` jobs are done.
async fn run_by_stream(server: &Server, stream: &Stream, queue: &str, count: usize) {
    let mut done = 0;
    while done < count {
        for delivery in stream.read(&[queue], (count - done).min(100)).await {
            let job = claim_by(server, &delivery).await;
            if job["claimed"] == true {
                assert_eq!(server.complete("reader", &job, json!({})).await.ok()["ack"], true);
                done += 1;
            }
            stream.reader.settle(&[delivery.receipt]).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_names_the_job_and_its_enqueue_and_goes_with_the_job() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    let id = server.submit(json!({"retry": later()})).await;
    stream.wait_for("q", 1).await;
    let (entry, fields) = stream.entries("q").await.remove(0);
    assert_eq!(fields[0], ("job_id".to_owned(), id.clone()));
    assert_eq!(fields[1].0, "enqueue_id");
    assert_eq!(fields.len(), 2);
    let job = server.claim("w-1").await;
    assert_eq!((&job["job_id"], &job["stream"], &job["message_id"]), (&json!(id), &json!("q"), &json!(entry)));
    // A retry is another enqueue.
    server.fail("w-1", &job, retryable()).await.ok();
    stream.wait_for("q", 0).await;
    server.advance(600_000);
    stream.wait_for("q", 1).await;
    let (_, again) = stream.entries("q").await.remove(0);
    assert_eq!(again[0], fields[0]);
    assert_ne!(again[1], fields[1]);
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({})).await.ok();
    stream.wait_for("q", 0).await;
    assert_eq!(stream.pending("q").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waited_gets_the_name_of_the_entry_too() {
    let server = Server::redis().await;
    // It does not wait long for that name: a Redis that is slow, as with its first call, leaves it without.
    wait_until("a claim with the name of its entry", SOON, async || {
        let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 30_000});
        let (job, id) = tokio::join!(server.worker("claim", claim), server.submit(json!({})));
        let job = job.ok();
        assert_eq!(job["job_id"], json!(id));
        job["message_id"].as_str().unwrap().contains('-')
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_over_four_streams_leaves_no_message_pending() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    let queues = ["s-1", "s-2", "s-3", "s-4"];
    for queue in queues {
        for _ in 0..3 {
            server.submit(json!({"queue": queue})).await;
        }
        stream.wait_for(queue, 3).await;
    }
    for n in 0..12 {
        let claim = json!({"worker_id": "w-1", "streams": queues, "max_wait_ms": 1_000});
        let job = server.worker("claim", claim).await.ok();
        assert_eq!(job["stream"], queues[n / 3], "strictly in order");
        server.complete("w-1", &job, json!({})).await.ok();
    }
    for queue in queues {
        stream.wait_for(queue, 0).await;
        assert_eq!(stream.pending(queue).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_reads_the_stream_claims_that_very_job() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    let ids = [server.submit(json!({})).await, server.submit(json!({"priority": 0})).await];
    stream.wait_for("q", 2).await;
    let delivery = stream.read(&["q"], 1).await.remove(0);
    assert_eq!(*delivery.task, *ids[0], "the stream is in the order of enqueues");
    let job = claim_by(&server, &delivery).await;
    assert_eq!((&job["claimed"], &job["message_id"]), (&json!(true), &json!(&*delivery.message_id)));
    // Its message is live while it runs; another one that names it is not.
    let again = claim_by(&server, &delivery).await;
    assert_eq!((&again["reason"], &again["ack"]), (&json!("already_running"), &json!(false)));
    let older = Delivery { message_id: "1-1".into(), ..delivery.clone() };
    let again = claim_by(&server, &older).await;
    assert_eq!((&again["reason"], &again["ack"]), (&json!("already_running"), &json!(true)));
    // The control plane takes the entry out by itself.
    assert_eq!(server.complete("reader", &job, json!({})).await.ok()["ack"], true);
    stream.wait_for("q", 1).await;
    let again = claim_by(&server, &delivery).await;
    assert_eq!((&again["reason"], &again["ack"]), (&json!("completed"), &json!(true)));
    assert_eq!(stream.pending("q").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_of_a_message_are_no_second_grant_and_are_swept_up() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    let id = server.submit(json!({})).await;
    stream.wait_for("q", 1).await;
    let (_, fields) = stream.entries("q").await.remove(0);
    for _ in 0..5 {
        let _: String = stream.ask(&["XADD", "q", "*", "job_id", &fields[0].1, "enqueue_id", &fields[1].1]).await;
    }
    let mut granted = 0;
    for delivery in stream.read(&["q"], 10).await {
        granted += u32::from(claim_by(&server, &delivery).await["claimed"] == true);
    }
    assert_eq!(granted, 1);
    assert_eq!(server.attempts(&id).await.len(), 1);
    stream.wait_for("q", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_wake_up_is_dropped_and_stops_nobody() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    server.submit(json!({})).await;
    stream.wait_for("q", 1).await;
    for poison in [["XADD", "q", "*", "job_id", "no-uuid"], ["XADD", "q", "*", "what", "ever"]] {
        let _: String = stream.ask(&poison).await;
    }
    server.submit(json!({})).await;
    stream.wait_for("q", 4).await;
    run_by_stream(&server, &stream, "q", 2).await;
    stream.wait_for("q", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_reader_took_is_taken_over_and_runs() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    server.put("/api/v1/queues/q", json!({"lease_ttl_seconds": 1})).await.ok();
    let id = server.submit(json!({})).await;
    let taken = stream.read(&["q"], 1).await.remove(0);
    // It never claims. After the length of a lease there is another entry, and the old one is gone.
    let again = stream.read(&["q"], 1).await.remove(0);
    assert_eq!((&*again.task, again.enqueue), (&*id, taken.enqueue));
    assert_ne!(again.message_id, taken.message_id);
    let job = claim_by(&server, &again).await;
    assert_eq!(job["claimed"], true);
    server.complete("reader", &job, json!({})).await.ok();
    stream.wait_for("q", 0).await;
    assert_eq!(stream.pending("q").await, 0);
    assert_eq!(server.attempts(&id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_holder_took_is_left_to_its_lease() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    server.put("/api/v1/queues/q", json!({"lease_ttl_seconds": 5})).await.ok();
    let retry = json!({"retry": {"initial_backoff_ms": 0}});
    let id = server.submit(retry).await;
    let taken = stream.read(&["q"], 1).await.remove(0);
    assert_eq!(claim_by(&server, &taken).await["claimed"], true);
    // Reaper, sweep and takeover all see it. One entry and one more attempt come of it.
    let again = stream.read(&["q"], 1).await.remove(0);
    assert_ne!(again.enqueue, taken.enqueue, "enqueued again");
    stream.wait_for("q", 1).await;
    let job = claim_by(&server, &again).await;
    assert_eq!((&job["claimed"], &job["attempt"]), (&json!(true), &json!(2)));
    server.complete("reader", &job, json!({})).await.ok();
    stream.wait_for("q", 0).await;
    assert_eq!(server.attempts(&id).await.len(), 2);
}

/// Loses what Redis holds, and sees that those who read it get all of it again.
async fn survives(lose: impl AsyncFnOnce(&Server, &Stream)) {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    let tasks: Vec<_> = (0..500).map(|_| json!({"queue": "q", "operator": "op"})).collect();
    server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    stream.wait_for("q", 500).await;
    run_by_stream(&server, &stream, "q", 10).await;
    lose(&server, &stream).await;
    let stream = Stream::of(&server).await;
    run_by_stream(&server, &stream, "q", 490).await;
    stream.wait_for("q", 0).await;
    let counts = server.queue("q").await["counts"].clone();
    assert_eq!((&counts["ready"], &counts["running"]), (&json!(0), &json!(0)), "{counts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_stream_costs_a_sweep_and_no_task() {
    survives(async |_, stream| {
        let _: u64 = stream.ask(&["DEL", "q"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_costs_a_sweep_and_no_task() {
    survives(async |_, stream| {
        let _: String = stream.ask(&["FLUSHALL"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroyed_group_costs_a_sweep_and_no_task() {
    survives(async |_, stream| {
        let _: u64 = stream.ask(&["XGROUP", "DESTROY", "q", "tenure"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_empty_costs_a_sweep_and_no_task() {
    survives(async |server, _| {
        let Home::Redis(_, redis) = &*server.home else { panic!("no Redis") };
        let mut redis = redis.lock().await;
        redis.kill();
        redis.restart().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_claims_come_from_the_store_and_with_it_it_is_used_again() {
    let server = Server::redis().await;
    let Home::Redis(_, redis) = &*server.home else { panic!("no Redis") };
    redis.lock().await.kill();
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    assert_eq!(job["job_id"], json!(id));
    assert!(job["message_id"].as_str().unwrap().parse::<i64>().is_ok(), "the number of the enqueue: {job}");
    server.complete("w-1", &job, json!({})).await.ok();
    for _ in 0..20 {
        server.submit(json!({})).await;
    }
    redis.lock().await.restart().await;
    let stream = Stream::of(&server).await;
    stream.wait_for("q", 20).await;
    run_by_stream(&server, &stream, "q", 20).await;
    let job = async || Some(server.claim("w-1").await).filter(|job| !job.is_null());
    server.submit(json!({})).await;
    stream.wait_for("q", 1).await;
    let job = wait_until("a job", SOON, job).await;
    assert!(job["message_id"].as_str().unwrap().contains('-'), "{job}");
}

/// A control plane that dies right behind its commits publishes nothing. Neither does one that knows no Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_commit_and_publish_delays_and_loses_nothing() {
    let server = Server::redis().await;
    let there = server.beside_mute().await;
    let stream = Stream::of(&server).await;
    let retry = json!({"retry": {"initial_backoff_ms": 0}, "lease_ttl_seconds": 30});
    let submitted = there.submit(retry).await;
    server.advance(MAKERS_OWN_MS);
    let delivery = stream.read(&["q"], 1).await.remove(0);
    assert_eq!(*delivery.task, *submitted);
    let job = claim_by(&there, &delivery).await;
    there
        .worker("fail", {
            let mut fail = report("reader", &job);
            fail["error"] = retryable();
            fail
        })
        .await
        .ok();
    server.advance(MAKERS_OWN_MS);
    let delivery = stream.read(&["q"], 1).await.remove(0);
    assert_eq!(*delivery.task, *submitted, "failed there");
    let job = claim_by(&there, &delivery).await;
    assert_eq!(job["attempt"], 2);
    server.advance(30_000);
    let delivery = stream.read(&["q"], 1).await.remove(0);
    assert_eq!(*delivery.task, *submitted, "expired");
    let job = claim_by(&server, &delivery).await;
    assert_eq!(job["attempt"], 3);
    server.complete("reader", &job, json!({})).await.ok();
    stream.wait_for("q", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_transport_on_a_live_queue_loses_nothing() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    for _ in 0..30 {
        server.submit(json!({})).await;
    }
    stream.wait_for("q", 30).await;
    run_by_stream(&server, &stream, "q", 5).await;
    server.put("/api/v1/queues/q", json!({"transport": "embedded"})).await.ok();
    stream.wait_for("q", 0).await;
    for _ in 0..5 {
        let job = server.claim("w-1").await;
        assert!(job["message_id"].as_str().unwrap().parse::<i64>().is_ok());
        server.complete("w-1", &job, json!({})).await.ok();
    }
    server.put("/api/v1/queues/q", json!({"transport": "redis"})).await.ok();
    stream.wait_for("q", 20).await;
    run_by_stream(&server, &stream, "q", 20).await;
    stream.wait_for("q", 0).await;
}

/// What a queue has left behind in a Redis that is down is taken out when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_leaves_a_redis_that_is_down_leaves_nothing_behind() {
    let keeps = |_: &Path, _: u16| ["--appendonly", "yes", "--appendfsync", "always"].map(ToOwned::to_owned).to_vec();
    let database = database().await;
    let server = Server::on(Home::Redis(database, Redis::start_with(keeps).await.into())).await;
    let Home::Redis(_, redis) = &*server.home else { panic!("no Redis") };
    for _ in 0..5 {
        server.submit(json!({})).await;
    }
    Stream::of(&server).await.wait_for("q", 5).await;
    redis.lock().await.kill();
    server.put("/api/v1/queues/q", json!({"transport": "embedded"})).await.ok();
    // Time for the sweeps that follow a change, at once and two seconds later.
    let changed = Instant::now();
    wait_until("the sweeps", SOON, async || changed.elapsed() > Duration::from_secs(4)).await;
    redis.lock().await.restart().await;
    Stream::of(&server).await.wait_for("q", 0).await;
    let all = OutboxFilter { limit: 10, ..OutboxFilter::default() };
    let empty = async || server.engine.store().outbox(&all).await.unwrap().items.is_empty();
    wait_until("an empty outbox", SOON, empty).await;
    assert_eq!(server.queue("q").await["counts"]["ready"], 5);
}

/// One that knows no Redis is there first, and takes up all that it can do for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_without_redis_leaves_its_upkeep_to_those_with_it() {
    let mut first = Server::redis().await;
    let mute = first.beside_mute().await;
    first.stop().await;
    wait_until("it has what the first had", SOON, async || mute.engine.has(Duty::Reaper)).await;
    let server = first.beside().await;
    let stream = Stream::of(&server).await;
    for _ in 0..5 {
        server.submit(json!({})).await;
    }
    stream.wait_for("q", 5).await;
    let _: u64 = stream.ask(&["DEL", "q"]).await;
    run_by_stream(&server, &stream, "q", 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_fifty_thousand_messages_runs_to_the_last_job() {
    let server = Server::redis().await;
    let stream = Stream::of(&server).await;
    let tasks: Vec<_> = (0..10_000).map(|_| json!({"queue": "q", "operator": "op"})).collect();
    for _ in 0..5 {
        server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    }
    stream.wait_for("q", 50_000).await;
    let mut done: Vec<Value> = Vec::new();
    let mut left = 50_000;
    while left > 0 {
        let claim = json!({"streams": ["q"], "max_jobs": 100, "max_wait_ms": 0});
        let turn = json!({"worker_id": "w-1", "claim": claim, "complete": std::mem::take(&mut done)});
        let answer = server.worker("exchange", turn).await.ok();
        let jobs = answer["jobs"].as_array().unwrap().clone();
        assert!(!jobs.is_empty(), "{left} are left");
        left -= jobs.len();
        done = jobs
            .into_iter()
            .map(|job| {
                json!({"job_id": job["job_id"], "attempt_id": job["attempt_id"], "lease_token": job["lease_token"],
                       "result": {}})
            })
            .collect();
    }
    server.worker("exchange", json!({"worker_id": "w-1", "complete": done})).await.ok();
    stream.wait_for("q", 0).await;
    assert_eq!(stream.pending("q").await, 0);
}
