//! Queues of datasets in Redis and SQS.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_engine::dags::NewVersion;
use tenure_testkit::{Moto, Redis, wait_until};
use tenure_transport::Upkeep;
use tenure_transport::redis::{RedisConfig, RedisTransport};

use super::stand::{DAG, Stand, row, written};
use crate::dispatch::kit;
use crate::harness::{Home, SOON, database, sqs_transport};

const QUEUE: &str = "dag::buffer.alerts";
const DEAD: &str = "dag::buffer.alerts.dead";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let redis = Redis::start().await;
    let url = redis.url();
    let transport = RedisTransport::new(RedisConfig { url, group: "others".into(), ..RedisConfig::default() }).unwrap();
    let home = Home::Redis(database().await, tokio::sync::Mutex::new(redis));
    batches_go_through_the_queue_of_their_dataset(home, Arc::new(transport)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqs() {
    let moto = Moto::start().await;
    let transport = sqs_transport(&moto.url());
    let home = Home::Sqs(database().await, tokio::sync::Mutex::new(moto));
    batches_go_through_the_queue_of_their_dataset(home, Arc::new(transport)).await;
}

/// `queue` is that of somebody else who reads and writes it.
async fn batches_go_through_the_queue_of_their_dataset(home: Home, queue: Arc<dyn Upkeep>) {
    let stand = Stand::deploy(kit::plane(home).await, DAG).await;
    let claim = stand.claim("r-1").await;
    stand.publish(&claim, json!({"records": [row("task", 1)]})).await.ok();
    stand.plane.post(&stand.path("publish"), json!({"records": [row("user", 1)]})).await.ok();
    written(&stand, 2).await;
    // A producer that knows nothing but the queue; and one that sends its message twice.
    let bare = json!({"dataset_uuid": stand.dataset, "records": [row("bare", 1)]}).to_string();
    for body in [&bare, &bare] {
        queue.send(&QUEUE.into(), body).await.unwrap();
    }
    written(&stand, 3).await;
    // What is wrong with a message ends among the dead letters, and in their queue.
    let foreign = json!({"org_id": "0190c0de-0000-7000-8000-000000000009", "records": [row("foreign", 1)]}).to_string();
    let secret = json!({"batch_uri": "file:///etc/passwd"}).to_string();
    for body in [&foreign, &secret, "no json"] {
        queue.send(&QUEUE.into(), body).await.unwrap();
    }
    let dead = stand.dead(3).await;
    let mut codes: Vec<&str> = dead.iter().map(|letter| letter["error"]["code"].as_str().unwrap()).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["foreign_org", "malformed_message", "prefix_not_granted"]);
    let mut told: Vec<Value> = Vec::new();
    wait_until("dead letters are told", SOON, async || {
        for message in queue.take(&DEAD.into(), 10).await.unwrap() {
            queue.settle(&[message.receipt]).await.unwrap();
            told.push(serde_json::from_str(&message.body).unwrap());
        }
        told.len() >= 3
    })
    .await;
    assert!(told.iter().all(|letter| letter["receives"] == 10 && letter["dataset_uuid"] == json!(stand.dataset)));
    assert!(told.iter().any(|letter| letter["original"]["message"] == foreign));
    assert_eq!(stand.keys().await.len(), 3);
    // A batch may be in the scratch folder of a task of the organisation, and nowhere else in the object store.
    let own = stand.artifact(&claim, "own.jsonl", &row("own", 1).to_string());
    let plane = &stand.plane;
    plane.dags.deploy(NewVersion { org: "other", yaml: kit::CHAIN, manual: false, dry_run: false }).await.unwrap();
    let stranger = plane.dags.trigger("other", "chain", "import", &"r-1".into(), None).await.unwrap().task.to_string();
    let nobody = "0190c0de-0000-7000-8000-000000000001";
    let scratch = format!("scratch/{}/1/buffers", claim.task());
    let elsewhere = [
        own.replace(claim.task(), &stranger),
        own.replace(claim.task(), nobody),
        own.replace(&scratch, &format!("scratch/results/{nobody}")),
        own.replace(&scratch, &format!("dataset/{}/version/{nobody}/staging/{nobody}/1/0", stand.dataset)),
        own.replace(&scratch, &format!("buffers/{nobody}")),
    ];
    for uri in &elsewhere {
        let path = std::path::PathBuf::from(uri.strip_prefix("file://").unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, row("stolen", 1).to_string()).unwrap();
    }
    for uri in elsewhere.iter().chain([&own]) {
        queue.send(&QUEUE.into(), &json!({"batch_uri": uri}).to_string()).await.unwrap();
    }
    written(&stand, 4).await;
    let dead = stand.dead(3 + elsewhere.len()).await;
    let codes = dead.iter().filter(|letter| letter["error"]["code"] == "prefix_not_granted");
    assert_eq!(codes.count(), 1 + elsewhere.len());
    assert!(!stand.keys().await.contains(&"stolen".to_owned()));
}
