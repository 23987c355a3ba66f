//! Datasets and results in S3, for which moto stands in.

use std::sync::Arc;

use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Value, json};
use tenure_core::objects::Prefix;
use tenure_objects::{Credentials, Limits, Place, Settings};
use tenure_testkit::Moto;

use super::kit::{self, DAG, Plane};

const BUCKET: &str = "tenure-test";

struct Stand {
    moto: Moto,
    plane: Plane,
    http: reqwest::Client,
}

impl Stand {
    async fn start() -> Self {
        let (moto, http) = (Moto::start().await, reqwest::Client::new());
        assert!(http.put(format!("{}/{BUCKET}", moto.url())).send().await.unwrap().status().is_success());
        let place = Place::S3 {
            root: Prefix::parse(&format!("s3://{BUCKET}/some/where/"), false).unwrap(),
            endpoint_url: Some(moto.url()),
            region: Some("eu-central-1".into()),
            path_style: true,
        };
        let credentials = Credentials { access_key_id: "AKIDSESAME".into(), secret_access_key: "sesame".into() };
        let limits = Limits { retries: 1, ..Limits::default() };
        let settings = Settings { limits, credentials: Some(credentials), ..Settings::new(place) };
        let objects = Arc::new(settings.open().unwrap());
        let plane = kit::plane(None, |config| config.dispatch.objects = Some(objects)).await;
        plane.deploy("default", DAG).await;
        Self { moto, plane, http }
    }

    /// The address of an object, for those who need no right.
    fn address(&self, uri: &str) -> String {
        format!("{}/{}", self.moto.url(), uri.strip_prefix("s3://").unwrap())
    }

    async fn import(&self, start: i64, end: i64) {
        let claim = self.plane.claim(&self.plane.trigger("default", "import", &start.to_string()).await).await;
        let output = &claim["task"]["outputs"][0];
        let location = output["staging_prefix"].as_str().unwrap();
        assert!(location.starts_with(&format!("s3://{BUCKET}/some/where/")), "{location}");
        let file = tempfile::NamedTempFile::new().unwrap();
        kit::write_blocks(file.path(), start, end, "default");
        let bytes = std::fs::read(file.path()).unwrap();
        for (name, bytes) in [(format!("{start}.parquet"), bytes), ("_SUCCESS".to_owned(), Vec::new())] {
            let put = self.http.put(self.address(&format!("{location}{name}"))).body(bytes).send().await.unwrap();
            assert!(put.status().is_success());
        }
        let body = json!({"task_id": claim["task_id"], "attempt": 1, "lease_token": claim["lease_token"],
            "status": "Completed", "outputs": [{"output_index": 0, "dataset_uuid": output["dataset_uuid"],
                "dataset_version": output["dataset_version"], "location": location,
                "partition_key": format!("{start}-{end}"), "start": start, "end": end}]});
        self.plane.as_task(&claim, "complete", body).await.ok();
    }

    async fn export(&self, format: &str) -> Value {
        let sql = "SELECT n, owner FROM blocks ORDER BY n";
        self.plane.query_of("default", json!({"sql": sql, "format": format, "export": true})).await.ok()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_read_by_addresses_and_results_have_one() {
    let mut stand = Stand::start().await;
    stand.import(0, 9).await;
    stand.import(10, 14).await;
    // The process has no credential: an address that is signed is all that it gets.
    assert_eq!(stand.plane.rows("SELECT count(*), sum(n) FROM blocks").await, json!([[15, 105]]));
    let claim = stand.plane.claim(&stand.plane.nth("decode", 2).await).await;
    let own = stand.plane.as_task(&claim, "query", json!({"sql": "SELECT count(*) FROM raw"})).await.ok();
    assert_eq!(own["rows"], json!([[15]]));

    for (format, name) in [("csv", "result.csv"), ("parquet", "result.parquet"), ("json", "result.jsonl")] {
        let answer = stand.export(format).await;
        let location = answer["output_location"].as_str().unwrap();
        assert!(location.starts_with(&format!("s3://{BUCKET}/some/where/scratch/results/")), "{location}");
        let url = answer["result_url"].as_str().unwrap();
        assert!(url.starts_with(&stand.address(&format!("{location}{name}"))), "{url}");
        assert!(url.contains("X-Amz-Signature=") && url.contains("X-Amz-Expires=3600"), "{url}");
        assert!(!url.contains("=sesame"), "{url}");
        let bytes = stand.http.get(url).send().await.unwrap().bytes().await.unwrap();
        assert_eq!(answer["bytes"], bytes.len());
        match format {
            "csv" => assert!(bytes.starts_with(b"n,owner\r\n0,default\r\n")),
            "json" => assert!(bytes.starts_with(b"{\"n\":0,\"owner\":\"default\"}\n")),
            _ => {
                let reader = SerializedFileReader::new(bytes).unwrap();
                assert_eq!(reader.metadata().file_metadata().num_rows(), 15);
            }
        }
    }
    let body = json!({"sql": "SELECT n FROM raw", "format": "parquet"});
    let answer = stand.plane.as_task(&claim, "query", body).await.ok();
    let scratch = format!("s3://{BUCKET}/some/where/scratch/{}/1/results/", claim["task_id"].as_str().unwrap());
    assert!(answer["output_location"].as_str().unwrap().starts_with(&scratch), "{answer}");
    assert_eq!(answer.get("result_url"), None);

    // A store that is away is told as such, without an address.
    stand.moto.kill();
    let away = stand.plane.query("SELECT count(*) FROM blocks").await.refused(503, "object_store_unavailable");
    let message = away["message"].as_str().unwrap();
    assert!(!message.contains("127.0.0.1") && !message.contains("X-Amz"), "{message}");
}
