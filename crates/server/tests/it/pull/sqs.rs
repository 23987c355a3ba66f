//! Wake-ups over SQS, against a server that speaks as SQS does (moto): it is slow, so there are few messages.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::wait_until;
use tenure_transport::sqs::SqsTransport;
use tenure_transport::{Delivery, Transport, Upkeep};

use crate::harness::{Home, SOON, Server, sqs_client, sqs_transport};

const LONG: Duration = Duration::from_secs(60);

struct Queue {
    client: aws_sdk_sqs::Client,
    reader: SqsTransport,
}

impl Queue {
    async fn of(server: &Server) -> Self {
        let Home::Sqs(_, moto) = &*server.home else { panic!("no SQS") };
        let url = moto.lock().await.url();
        Self { client: sqs_client(&url), reader: sqs_transport(&url) }
    }

    async fn url(&self) -> String {
        self.client.get_queue_url().queue_name("q").send().await.unwrap().queue_url.unwrap()
    }

    async fn depth(&self) -> u64 {
        self.reader.depth(&"q".into()).await.unwrap()
    }

    async fn wait_for(&self, depth: u64) {
        wait_until(&format!("{depth} messages"), LONG, async || self.depth().await == depth).await;
    }

    async fn read(&self, max: usize) -> Vec<Delivery> {
        self.reader.receive(&[Arc::from("q")], max, SOON).await.unwrap()
    }
}

async fn claim_by(server: &Server, delivery: &Delivery) -> Value {
    let claim = json!({"worker_id": "reader", "job_id": &*delivery.task, "stream": "q",
                       "message_id": &*delivery.message_id});
    server.worker("claim", claim).await.ok()
}

/// Receives and runs what it finds until `count` jobs are done.
async fn run_by_queue(server: &Server, queue: &Queue, count: usize) {
    let mut done = 0;
    while done < count {
        for delivery in queue.read((count - done).min(10)).await {
            let job = claim_by(server, &delivery).await;
            if job["claimed"] == true {
                assert_eq!(server.complete("reader", &job, json!({})).await.ok()["ack"], true);
                done += 1;
            }
            queue.reader.settle(&[delivery.receipt]).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_names_the_task_and_nothing_else() {
    let server = Server::sqs().await;
    let queue = Queue::of(&server).await;
    let id = server.submit(json!({})).await;
    queue.wait_for(1).await;
    let received = queue.client.receive_message().queue_url(queue.url().await).visibility_timeout(0);
    let message = received.send().await.unwrap().messages.unwrap().remove(0);
    assert_eq!(message.body.unwrap(), format!(r#"{{"task_id":"{id}"}}"#));
    let job = server.claim("w-1").await;
    assert_eq!(job["message_id"], json!(message.message_id.unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_receives_it_claims_that_very_job() {
    let server = Server::sqs().await;
    let queue = Queue::of(&server).await;
    let id = server.submit(json!({})).await;
    let delivery = queue.read(1).await.remove(0);
    assert_eq!(*delivery.task, *id);
    // It was not settled, so it comes again; the job is held, and its message is live.
    let job = claim_by(&server, &delivery).await;
    let again = queue.read(1).await.remove(0);
    let refused = claim_by(&server, &again).await;
    assert_eq!((&refused["reason"], &refused["ack"]), (&json!("already_running"), &json!(false)));
    assert_eq!(server.complete("reader", &job, json!({})).await.ok()["ack"], true);
    let again = queue.read(1).await.remove(0);
    let refused = claim_by(&server, &again).await;
    assert_eq!((&refused["reason"], &refused["ack"]), (&json!("completed"), &json!(true)));
    queue.reader.settle(&[again.receipt]).await.unwrap();
    queue.wait_for(0).await;
    assert_eq!(server.attempts(&id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purged_queue_costs_a_sweep_and_no_task() {
    let server = Server::sqs().await;
    let queue = Queue::of(&server).await;
    for _ in 0..15 {
        server.submit(json!({})).await;
    }
    queue.wait_for(15).await;
    run_by_queue(&server, &queue, 5).await;
    queue.client.purge_queue().queue_url(queue.url().await).send().await.unwrap();
    // Whether a message is lost cannot be asked: those that are a while old are published again.
    server.advance(5_000);
    run_by_queue(&server, &queue, 10).await;
    let counts = server.queue("q").await["counts"].clone();
    assert_eq!((&counts["ready"], &counts["running"]), (&json!(0), &json!(0)), "{counts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_comes_back_empty_costs_a_sweep_and_no_task() {
    let server = Server::sqs().await;
    let Home::Sqs(_, moto) = &*server.home else { panic!("no SQS") };
    for _ in 0..5 {
        server.submit(json!({})).await;
    }
    Queue::of(&server).await.wait_for(5).await;
    moto.lock().await.kill();
    // Tasks are taken, claims come from the store, and the outbox grows.
    for _ in 0..5 {
        server.submit(json!({})).await;
    }
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({})).await.ok();
    moto.lock().await.restart().await;
    server.advance(5_000);
    let queue = Queue::of(&server).await;
    run_by_queue(&server, &queue, 9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_and_poison_stop_nobody() {
    let server = Server::sqs().await;
    let queue = Queue::of(&server).await;
    let id = server.submit(json!({})).await;
    queue.wait_for(1).await;
    let url = queue.url().await;
    for body in [format!(r#"{{"task_id":"{id}"}}"#), "no json".to_owned(), r#"{"task_id":"no uuid"}"#.to_owned()] {
        queue.client.send_message().queue_url(&url).message_body(body).send().await.unwrap();
    }
    server.submit(json!({})).await;
    queue.wait_for(5).await;
    run_by_queue(&server, &queue, 2).await;
    assert_eq!(server.attempts(&id).await.len(), 1);
}
