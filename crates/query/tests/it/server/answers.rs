//! What users ask and get.

use reqwest::Method;
use serde_json::json;
use tenure_auth::{Secret, UserAuth};
use tenure_engine::store::Asker;
use tenure_server::QueryPlace;

use super::kit::{self, DAG, Plane, alert, on_both};

on_both!(
    files_and_tables_are_read_together_and_recorded,
    limits_cut_and_tell,
    a_query_without_its_record_has_no_answer,
    more_than_may_wait_are_refused,
);

async fn filled(plane: &Plane) {
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 9).await;
    plane.import("default", 10, 14).await;
    plane.publish("default", vec![alert("a", "critical", 3), alert("b", "info", 12), alert("c", "critical", 99)]).await;
}

async fn files_and_tables_are_read_together_and_recorded(plane: Plane) {
    filled(&plane).await;
    let sql = "SELECT a.key, b.n FROM blocks b JOIN alerts a ON a.n = b.n ORDER BY a.key";
    let answer = plane.query(sql).await.ok();
    assert_eq!(answer["rows"], json!([["a", 3], ["b", 12]]));
    assert_eq!((&answer["mode"], &answer["delivery"]), (&json!("inline"), &json!("inline")));
    assert_eq!((&answer["row_count"], &answer["truncated"]), (&json!(2), &json!(false)));
    assert_eq!(answer["columns"], json!([{"name": "key", "type": "text"}, {"name": "n", "type": "int64"}]));
    let row = plane.audited(&answer).await.unwrap().entry;
    assert_eq!((row.org.as_str(), row.asker, row.row_count), ("default", Asker::User("anonymous".into()), 2));
    assert_eq!((row.datasets.len(), row.columns), (2, vec!["key".to_owned(), "n".to_owned()]));
    assert!(row.sql_hash.starts_with("sha256:") && !format!("{:?}", row.sql_hash).contains("SELECT"));
    // The platform column is there, and conditions on it are.
    assert_eq!(plane.rows("SELECT key FROM alerts WHERE _seq > 1 ORDER BY _seq").await, json!([["b"], ["c"]]));
    let named = json!({"sql": "SELECT count(*) FROM dataset", "dataset_id": "blocks"});
    assert_eq!(plane.query_of("default", named).await.ok()["rows"], json!([[15]]));
    let one = json!({"sql": "SELECT count(*) FROM dataset", "datasets": ["alerts"]});
    assert_eq!(plane.query_of("default", one).await.ok()["rows"], json!([[3]]));
    let left_out = json!({"sql": "SELECT count(*) FROM blocks", "datasets": ["alerts"]});
    plane.query_of("default", left_out).await.refused(400, "invalid_sql");
    let unknown = json!({"sql": "SELECT 1", "datasets": ["nothing"]});
    plane.query_of("default", unknown).await.refused(404, "dataset_not_found");
}

async fn limits_cut_and_tell(plane: Plane) {
    filled(&plane).await;
    let cut = json!({"sql": "SELECT n FROM blocks ORDER BY n", "limit": 2});
    let answer = plane.query_of("default", cut).await.ok();
    assert_eq!((&answer["rows"], &answer["truncated"]), (&json!([[0], [1]]), &json!(true)));
    let least = json!({"sql": "SELECT n FROM blocks ORDER BY n", "limit": -5});
    assert_eq!(plane.query_of("default", least).await.ok()["row_count"], 1);
    // 15 rows to the fifth are more than the most.
    let most = "SELECT a.n FROM blocks a, blocks b, blocks c, blocks d, blocks e";
    let answer = plane.query_of("default", json!({"sql": most, "limit": 1_000_000})).await.ok();
    assert_eq!((&answer["row_count"], &answer["truncated"]), (&json!(10_000), &json!(true)));
    let wide = format!("SELECT '{}' FROM blocks a, blocks b, blocks c, blocks d", "x".repeat(4_000));
    let answer = plane.query_of("default", json!({"sql": wide, "limit": 10_000})).await.ok();
    let rows = answer["row_count"].as_u64().unwrap();
    assert!(answer["truncated"] == true && rows > 2_000 && rows * 4_000 <= 10 << 20, "{rows}");
    let endless =
        "SELECT count(*) FROM blocks a, blocks b, blocks c, blocks d, blocks e, blocks f, blocks g, blocks h, blocks i
        WHERE a.n + b.n + c.n + d.n + e.n + f.n + g.n + h.n + i.n = -1";
    let slow = json!({"sql": endless, "timeout_seconds": 1});
    plane.query_of("default", slow).await.refused(422, "query_timeout");
    plane.query_of("default", json!({"sql": "SELECT 1/(n-n) FROM blocks"})).await.refused(422, "query_failed");
    plane.query_of("default", json!({"sql": "SELECT 1", "format": "xml"})).await.refused(422, "invalid_argument");
    plane.query_of("default", json!({})).await.refused(422, "invalid_argument");
}

async fn a_query_without_its_record_has_no_answer(plane: Plane) {
    filled(&plane).await;
    plane.refuse_records(true).await;
    plane.query("SELECT count(*) FROM blocks").await.refused(500, "internal");
    let export = json!({"sql": "SELECT n FROM blocks", "format": "csv"});
    plane.query_of("default", export).await.refused(500, "internal");
    let results = plane.folder.path().join("objects/scratch/results");
    assert!(kit::files(&results).is_empty(), "a result without a record stays");
    plane.refuse_records(false).await;
    assert_eq!(plane.rows("SELECT count(*) FROM blocks").await, json!([[15]]));
}

async fn more_than_may_wait_are_refused(plane: Plane) {
    filled(&plane).await;
    let slow = "SELECT count(*) FROM blocks a, blocks b, blocks c, blocks d, blocks e, blocks f, blocks g, blocks h
        WHERE a.n + b.n + c.n + d.n + e.n + f.n + g.n + h.n = -1";
    let body = json!({"sql": slow, "timeout_seconds": 20});
    let all = futures_util::future::join_all((0..24).map(|_| plane.query_of("default", body.clone()))).await;
    let busy: Vec<_> = all.iter().filter(|answer| answer.body["error"] == "query_busy").collect();
    // Four run, sixteen wait; whoever waits has less time left.
    assert_eq!(busy.len(), 4, "{all:?}");
    assert!(busy.iter().all(|answer| answer.status.as_u16() == 503 && answer.headers.contains_key("retry-after")));
    assert!(all.iter().all(|answer| answer.body["error"] == "query_busy" || answer.body["error"] == "query_timeout"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_process_says_how_to_get_it() {
    let plane = kit::plane(None, |config| {
        config.query.place = QueryPlace::Nowhere(tenure_server::NO_QUERY_PROCESS.to_owned());
    })
    .await;
    let refused = plane.query("SELECT 1").await;
    assert!(refused.headers.contains_key("retry-after"));
    let body = refused.refused(503, "query_unavailable");
    assert!(body["message"].as_str().unwrap().contains("cargo build --release -p tenure-query"), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_ten_queries_a_minute() {
    let plane = kit::plane(None, |config| {
        config.access.update(|access| {
            let (api_key, admin_api_key) = (Secret::new("the-key-of-a-user"), Secret::new("the-key-of-an-admin"));
            access.users = UserAuth { enabled: true, api_key, admin_api_key, ..UserAuth::default() };
        });
    })
    .await;
    let sql = json!({"sql": "SELECT 1"});
    let ask = async |key| plane.call(Method::POST, "/api/v1/query", &[("X-API-Key", key)], Some(&sql)).await;
    for _ in 0..10 {
        ask("the-key-of-a-user").await.ok();
    }
    let refused = ask("the-key-of-a-user").await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.refused(429, "rate_limited");
    ask("the-key-of-an-admin").await.ok();
    plane.call(Method::POST, "/api/v1/query", &[], Some(&sql)).await.refused(401, "missing_api_key");
}
