//! The outbox as admins see it. No transport is connected here: what is published and what fails is said by the test.

use serde_json::{Value, json};
use tenure_core::effect::{EffectKind, enqueued_task};
use tenure_engine::store::{DueEffect, NextTry, PutOff};
use tenure_server::Transports;

use crate::cases;
use crate::harness::{Server, between, time};

cases!(
    Server,
    on_sqlite: [failed_entries_are_tried_again, bad_questions_name_their_field, a_caller_that_is_narrowed_gets_nothing],
    on_both_stores: [an_entry_is_shown_in_each_of_its_states, entries_are_filtered_and_paged],
);

const PATH: &str = "/api/v1/admin/outbox";

/// A server whose queues `q` and `r` send their wake-ups through Redis, with this many tasks of `q`.
async fn with_tasks(server: Server, count: usize) -> (Server, Vec<String>) {
    let server = server.restart_with(|config, _| config.transports = Transports { redis: true, sqs: None }).await;
    for queue in ["q", "r"] {
        server.put(&format!("/api/v1/queues/{queue}"), json!({"transport": "redis"})).await.ok();
    }
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(server.submit(json!({})).await);
    }
    (server, tasks)
}

/// Takes every waiting entry in hand, once their maker has had its time.
async fn taken(server: &Server) -> Vec<DueEffect> {
    server.advance(tenure_engine::store::MAKERS_OWN_MS + 1_000);
    server.engine.store().take_effects(EffectKind::EnqueueTask, "redis", 1000, 60_000).await.unwrap()
}

async fn put_off(server: &Server, item: &DueEffect, next: NextTry) {
    let row = PutOff { id: item.id, error: "WRONGTYPE the key holds no stream".to_owned(), next };
    server.engine.store().put_off_effects(&[row]).await.unwrap();
}

async fn entries(server: &Server, query: &str) -> Vec<Value> {
    server.get(&format!("{PATH}{query}")).await.ok()["items"].as_array().unwrap().clone()
}

fn ids(entries: &[Value]) -> Vec<&str> {
    entries.iter().map(|entry| entry["id"].as_str().unwrap()).collect()
}

async fn an_entry_is_shown_in_each_of_its_states(server: Server) {
    let (server, tasks) = with_tasks(server, 1).await;
    let shown = entries(&server, "").await;
    let entry = &shown[0];
    let now = server.engine.now().await.unwrap();
    assert!(time(&entry["created_at"]) <= now);
    assert!(between(&entry["created_at"], &entry["due_at"]) >= 0, "{entry}");
    let id = entry["id"].clone();
    assert!(id.as_str().unwrap().strip_prefix("enqueue_task:").unwrap().parse::<i64>().unwrap() > 0);
    let known = json!({"id": id, "kind": "enqueue_task", "transport": "redis", "queue": "q", "task_id": tasks[0],
        "created_at": entry["created_at"]});
    let expected = |more: Value| {
        let mut expected = known.clone();
        crate::harness::merge(&mut expected, more);
        expected
    };
    assert_eq!(shown, [expected(json!({"state": "waiting", "tries": 0, "due_at": entry["due_at"]}))]);

    let item = taken(&server).await.remove(0);
    let task = enqueued_task(&item.body).unwrap();
    assert_eq!((task.to_string(), item.tries), (tasks[0].clone(), 0));
    put_off(&server, &item, NextTry::Refused { after_ms: 1000 }).await;
    let waits = entries(&server, "").await.remove(0);
    let error = "WRONGTYPE the key holds no stream";
    let due = &waits["due_at"];
    assert_eq!(waits, expected(json!({"state": "waiting", "tries": 1, "error": error, "due_at": due})));

    put_off(&server, &item, NextTry::Never).await;
    let failed = entries(&server, "").await.remove(0);
    let at = &failed["failed_at"];
    assert_eq!(failed, expected(json!({"state": "failed", "tries": 2, "error": error, "failed_at": at})));

    server.engine.store().outbox_published(&[(item.id, "1-0".into())]).await.unwrap();
    let published = entries(&server, "").await.remove(0);
    assert_eq!((&published["state"], &published["message_id"]), (&json!("published"), &json!("1-0")));
    assert!(time(&published["published_at"]) >= time(&known["created_at"]));
    assert!(published.get("due_at").is_none() && published.get("failed_at").is_none(), "{published}");

    // With the task the entry goes.
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!({})).await.ok();
    assert_eq!(entries(&server, "").await, [Value::Null; 0]);
}

async fn entries_are_filtered_and_paged(server: Server) {
    let (server, _) = with_tasks(server, 5).await;
    server.submit(json!({"queue": "r"})).await;
    server.submit(json!({"queue": "embedded"})).await;
    let items = taken(&server).await;
    put_off(&server, &items[0], NextTry::Never).await;
    server.engine.store().outbox_published(&[(items[1].id, "1-0".into())]).await.unwrap();
    let all = entries(&server, "").await;
    assert_eq!(all.len(), 6);
    assert!(ids(&all).windows(2).all(|pair| pair[0].len() < pair[1].len() || pair[0] < pair[1]), "{all:?}");
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{PATH}?limit=4{cursor}")).await.ok();
        found.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(found, all);
    assert_eq!(ids(&entries(&server, "?state=failed").await), [ids(&all)[0]]);
    assert_eq!(ids(&entries(&server, "?state=published").await), [ids(&all)[1]]);
    assert_eq!(ids(&entries(&server, "?state=waiting").await), ids(&all)[2..]);
    assert_eq!(ids(&entries(&server, "?queue=r").await), ids(&all)[5..]);
    assert_eq!(ids(&entries(&server, "?queue=q&state=waiting").await), ids(&all)[2..5]);
    assert_eq!(entries(&server, "?queue=embedded").await, [Value::Null; 0]);
    for answer in [
        server.get(&format!("{PATH}?queue=embeded")).await,
        server.post(&format!("{PATH}/retry"), json!({"all": true, "queue": "embeded"})).await,
    ] {
        let refused = answer.refused(404);
        let said = (&refused["error"], &refused["message"]);
        assert_eq!(said, (&json!("queue_not_found"), &json!("no such queue; did you mean `embedded`?")));
    }
}

async fn failed_entries_are_tried_again(server: Server) {
    let (server, _) = with_tasks(server, 4).await;
    server.submit(json!({"queue": "r"})).await;
    let items = taken(&server).await;
    assert_eq!(items.len(), 5);
    for item in &items[1..] {
        put_off(&server, item, NextTry::Never).await;
    }
    let all = entries(&server, "").await;
    let retry = async |body: Value| server.post(&format!("{PATH}/retry"), body).await.ok();
    // The first one has not failed, and one is unknown.
    assert_eq!(retry(json!({"ids": [all[0]["id"], all[1]["id"], "enqueue_task:1"]})).await, json!({"retried": 1}));
    let again = &entries(&server, "?state=waiting").await[1];
    assert_eq!((&again["id"], &again["tries"]), (&all[1]["id"], &json!(0)));
    assert_eq!(retry(json!({"all": true, "queue": "r"})).await, json!({"retried": 1}));
    assert_eq!(entries(&server, "?state=failed").await.len(), 2);
    assert_eq!(retry(json!({"all": true})).await, json!({"retried": 2}));
    assert_eq!(retry(json!({"all": true})).await, json!({"retried": 0}));
    assert_eq!(entries(&server, "?state=failed").await, [Value::Null; 0]);
}

async fn bad_questions_name_their_field(server: Server) {
    for (query, field) in
        [("state=lost", "state"), ("limit=0", "limit"), ("limit=1001", "limit"), ("cursor=x", "cursor")]
    {
        let refused = server.get(&format!("{PATH}?{query}")).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!(field)), "{query}");
    }
    for (body, field) in [
        (json!({}), "ids"),
        (json!({"ids": ["7"]}), "ids[0]"),
        (json!({"ids": "enqueue_task:7"}), "ids"),
        (json!({"ids": ["enqueue_task:7"], "all": true}), "all"),
        (json!({"all": "yes"}), "all"),
        (json!({"ids": ["enqueue_task:7"], "queue": "q"}), "queue"),
    ] {
        let refused = server.post(&format!("{PATH}/retry"), body.clone()).await.refused(422);
        assert_eq!(refused["field"], field, "{body}");
    }
}

async fn a_caller_that_is_narrowed_gets_nothing(server: Server) {
    let (server, _) = with_tasks(server, 1).await;
    let body = json!({"all": true});
    for header in [("X-Tenant-ID", "acme"), ("X-User-ID", "ann")] {
        let list = server.call(reqwest::Method::GET, PATH, &[header], None).await;
        let retry = server.call(reqwest::Method::POST, &format!("{PATH}/retry"), &[header], Some(&body)).await;
        for refused in [list.refused(422), retry.refused(422)] {
            assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!(header.0)));
        }
    }
}
