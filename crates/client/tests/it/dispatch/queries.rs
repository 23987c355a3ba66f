//! Queries of a handler.

use tenure_client::query::{QueryAnswer, QueryRequest};

use super::*;

fn rows() -> Value {
    json!({"mode": "inline", "delivery": "inline", "query_id": "q", "row_count": 2, "truncated": false, "duration_ms": 1,
        "columns": [{"name": "severity", "type": "text"}, {"name": "n", "type": "int64"}],
        "rows": [["info", 3], [null, 1]]})
}

/// A worker whose operator asks this and reports what came of it.
fn asking(plane: &DispatchPlane) -> Worker {
    worker(plane).operator("ask", async |task: Task| {
        let rows = task.query("SELECT severity, count(*) FROM raw GROUP BY 1").await?;
        let counts: Vec<(Option<String>, i64)> = rows.decode()?;
        task.set_state(&json!({"counts": counts}))?;
        Ok(())
    })
}

#[tokio::test]
async fn a_handler_queries_by_the_capability_token_of_its_task() {
    let plane = DispatchPlane::start().await;
    plane.first("query", [Say::No(503, "query_busy"), Say::Cut, Say::With(rows())]);
    let (_stop, _run) = spawn(asking(&plane));
    plane.task(plain(1, "ask"));
    let completed = plane.until("task-complete", 1).await.remove(0);
    assert_eq!(completed["operator_state"], json!({"counts": [["info", 3], [null, 1]]}));
    for asked in plane.of("query") {
        assert_eq!(asked.path, "/v1/task/query");
        assert_eq!(asked.headers["x-trace-task-capability"], "first-capability");
        assert!(!asked.headers.contains_key("x-trace-worker-token"));
        let expected = json!({"task_id": id(1), "attempt": 1, "lease_token": "0190c0de-0000-7000-8000-000000000777",
            "sql": "SELECT severity, count(*) FROM raw GROUP BY 1"});
        assert_eq!(asked.body, expected);
    }
    assert_eq!(plane.of("query").len(), 3);
}

#[tokio::test]
async fn an_export_of_a_task_stays_in_the_object_store() {
    let plane = DispatchPlane::start().await;
    let export = json!({"mode": "export", "delivery": "export", "query_id": "q", "output_location": "s3://b/scratch/",
        "format": "parquet", "row_count": 9, "bytes": 80, "expires_at": "2099-01-01T00:00:00Z"});
    plane.always("query", Say::With(export));
    let worker = worker(&plane).operator("export", async |task: Task| {
        let request = QueryRequest { sql: "SELECT 1".into(), format: Some("parquet".into()), ..Default::default() };
        let QueryAnswer::Export(made) = task.query_with(request).await? else { panic!("no export") };
        task.set_state(&json!({"at": made.output_location, "url": made.result_url}))?;
        // Something else than rows is no answer to a query for rows.
        let error = task.query("SELECT 1").await.unwrap_err();
        assert!(error.is_retryable(), "{}", error.message());
        Ok(())
    });
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "export"));
    let completed = plane.until("task-complete", 1).await.remove(0);
    assert_eq!(completed["operator_state"], json!({"at": "s3://b/scratch/", "url": null}), "{completed}");
}

#[tokio::test]
async fn a_query_that_is_refused_says_whether_another_attempt_helps() {
    for (status, word, retryable) in [
        (400, "invalid_sql", false),
        (403, "dataset_not_granted", false),
        (422, "query_memory_exceeded", false),
        (422, "query_timeout", true),
        (422, "query_failed", true),
    ] {
        let plane = DispatchPlane::start().await;
        plane.always("query", Say::No(status, word));
        let (_stop, _run) = spawn(asking(&plane));
        plane.task(plain(1, "ask"));
        let completed = plane.until("task-complete", 1).await.remove(0);
        assert_eq!(fields(&completed, &["status", "retryable"]), [&json!("Failed"), &json!(retryable)], "{word}");
        assert!(completed["error"]["message"].as_str().unwrap().contains(word), "{completed}");
        assert_eq!(plane.of("query").len(), 1, "{word}");
    }
}

#[tokio::test]
async fn a_query_of_an_attempt_that_is_over_ends_the_handler() {
    let plane = DispatchPlane::start().await;
    plane.always("query", Say::No(409, "stale_lease"));
    let (dropped, was_dropped) = oneshot::channel::<()>();
    let dropped = Mutex::new(Some(dropped));
    let worker = worker(&plane).operator("ask", move |task: Task| {
        let dropped = dropped.lock().unwrap().take();
        async move {
            let _dropped = dropped;
            task.query("SELECT 1").await.map(drop)
        }
    });
    let (stop, run) = spawn(worker);
    plane.task(plain(1, "ask"));
    assert!(tokio::time::timeout(Duration::from_secs(30), was_dropped).await.unwrap().is_err());
    drop(stop);
    end(run).await.unwrap();
    assert!(plane.of("task-complete").is_empty());
}
