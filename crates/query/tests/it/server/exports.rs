//! Results in the object store.

use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use reqwest::Method;
use serde_json::{Value, json};

use super::kit::{self, DAG, Plane};

async fn filled() -> Plane {
    let plane = kit::sqlite().await;
    plane.deploy("acme", DAG).await;
    plane.import("acme", 0, 2_999).await;
    plane
}

fn file(plane: &Plane, answer: &Value, name: &str) -> std::path::PathBuf {
    let location = answer["output_location"].as_str().unwrap().strip_prefix("file://").unwrap();
    assert!(location.starts_with(plane.folder.path().canonicalize().unwrap().to_str().unwrap()), "{location}");
    std::path::Path::new(location).join(name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_gets_the_whole_result_as_a_file_for_an_hour() {
    let plane = filled().await;
    for (format, name) in [("csv", "result.csv"), ("parquet", "result.parquet"), ("json", "result.jsonl")] {
        let body =
            json!({"sql": "SELECT n, owner FROM blocks ORDER BY n", "format": format, "export": true, "limit": 5});
        let answer = plane.query_of("acme", body).await.ok();
        assert_eq!((&answer["mode"], &answer["delivery"]), (&json!("export"), &json!("export")));
        assert_eq!((&answer["row_count"], &answer["format"]), (&json!(3_000), &json!(format)));
        let path = file(&plane, &answer, name);
        assert!(path.to_str().unwrap().contains("/scratch/results/"), "{path:?}");
        assert_eq!(answer["bytes"], path.metadata().unwrap().len());
        assert!(answer["expires_at"].as_str().unwrap().ends_with('Z'));
        let url = answer["result_url"].as_str().unwrap();
        let read = std::fs::read(&path).unwrap();
        match format {
            "csv" => {
                let downloaded = plane.call(Method::GET, url, &[("X-Tenant-ID", "acme")], None).await;
                assert_eq!(downloaded.headers["content-type"], "text/csv; charset=utf-8");
                assert_eq!(downloaded.body, Value::String(String::from_utf8(read.clone()).unwrap()));
                assert!(read.starts_with(b"n,owner\r\n0,acme\r\n"));
                plane.call(Method::GET, url, &[("X-Tenant-ID", "other")], None).await.refused(404, "result_not_found");
                plane.clock.advance(3_600_001);
                plane.call(Method::GET, url, &[("X-Tenant-ID", "acme")], None).await.refused(404, "result_not_found");
            }
            "parquet" => {
                let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
                assert_eq!(reader.metadata().file_metadata().num_rows(), 3_000);
            }
            _ => {
                let first: Value = serde_json::from_slice(read.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
                assert_eq!(first, json!({"n": 0, "owner": "acme"}));
            }
        }
    }
    // csv and parquet are always exported.
    let body = json!({"sql": "SELECT 1 AS one", "format": "csv"});
    assert_eq!(plane.query_of("acme", body).await.ok()["mode"], "export");
    for id in ["x", "018c385a-9fb1-9509-0e89-33fe3b7b1aa9", "..%2f..%2fetc"] {
        let path = format!("/api/v1/query/{id}/result");
        plane.call(Method::GET, &path, &[], None).await.refused(404, "result_not_found");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_fails_leaves_no_file() {
    let plane = filled().await;
    let body = json!({"sql": "SELECT n, 1 / (n - 2999) FROM blocks ORDER BY n", "format": "csv"});
    plane.query_of("acme", body).await.refused(422, "query_failed");
    let results = plane.folder.path().join("objects/scratch/results");
    let left = kit::files(&results);
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_exports_below_its_scratch_prefix_without_a_url() {
    let plane = filled().await;
    let claim = plane.claim(&plane.nth("decode", 1).await).await;
    let body = json!({"sql": "SELECT n FROM raw", "format": "parquet"});
    let answer = plane.as_task(&claim, "query", body).await.ok();
    let prefix = format!("/scratch/{}/1/results/", claim["task_id"].as_str().unwrap());
    assert!(answer["output_location"].as_str().unwrap().contains(&prefix), "{answer}");
    assert_eq!((answer.get("result_url"), &answer["row_count"]), (None, &json!(100)));
    assert!(file(&plane, &answer, "result.parquet").is_file());
}
