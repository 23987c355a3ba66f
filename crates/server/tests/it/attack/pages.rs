//! Pages are bounded in bytes.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Server, retryable};

cases!(Server, on_both_stores: [a_page_of_large_tasks_is_short_and_has_a_cursor, attempts_have_pages],);

const LARGE: usize = 900_000;

/// All items, page by page, and how many bytes the largest page had.
async fn walk(server: &Server, path: &str, limit: usize) -> (Vec<Value>, usize, usize) {
    let (mut items, mut largest, mut pages, mut cursor) = (Vec::new(), 0, 0, String::new());
    loop {
        let page = server.get(&format!("{path}?limit={limit}{cursor}")).await.ok();
        largest = largest.max(page.to_string().len());
        pages += 1;
        let found = page["items"].as_array().unwrap();
        assert!(found.len() <= limit);
        items.extend(found.iter().cloned());
        match page["next_cursor"].as_str() {
            None => return (items, largest, pages),
            Some(next) => cursor = format!("&cursor={next}"),
        }
    }
}

async fn a_page_of_large_tasks_is_short_and_has_a_cursor(server: Server) {
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(server.submit(json!({"payload": {"n": n, "text": "x".repeat(LARGE)}})).await);
    }
    // A result counts, too.
    let job = server.claim("w-1").await;
    server.complete("w-1", &job, json!("y".repeat(LARGE))).await.ok();
    ids.reverse();
    let (items, largest, pages) = walk(&server, "/api/v1/tasks", 100).await;
    let found: Vec<&str> = items.iter().map(|item| item["task_id"].as_str().unwrap()).collect();
    assert_eq!(found, ids, "none is missing and none comes twice");
    assert!(largest < 6 << 20, "{largest}");
    assert!((3..=5).contains(&pages), "{pages}");
    // Small ones are as many as were asked for.
    for _ in 0..5 {
        server.submit(json!({"queue": "small"})).await;
    }
    let small = server.get("/api/v1/tasks?queue=small&limit=5").await.ok();
    assert_eq!((small["items"].as_array().unwrap().len(), &small["next_cursor"]), (5, &Value::Null));
}

async fn attempts_have_pages(server: Server) {
    let id = server.submit(json!({"max_attempts": 8, "retry": {"initial_backoff_ms": 0}})).await;
    for n in 0..7 {
        let job = server.claim("w-1").await;
        let mut error = retryable();
        error["stack"] = json!(format!("{n}").repeat(60_000));
        server.fail("w-1", &job, error).await.ok();
    }
    let job = server.claim("w-1").await;
    let path = format!("/api/v1/tasks/{id}/attempts");
    for (limit, expected) in [(1, 8), (3, 3), (7, 2), (8, 1), (100, 1)] {
        let (items, _, pages) = walk(&server, &path, limit).await;
        let numbers: Vec<u64> = items.iter().map(|item| item["attempt"].as_u64().unwrap()).collect();
        assert_eq!((numbers, pages), ((1..=8).collect(), expected), "{limit}");
    }
    server.complete("w-1", &job, json!({})).await.ok();
    assert_eq!(walk(&server, &path, 4).await.0.len(), 8, "also when the task has ended");
    let wrong = server.get(&format!("{path}?cursor=x")).await.refused(422);
    assert_eq!(wrong["field"], "cursor");
    server.get(&format!("{path}?limit=0")).await.refused(422);
}
