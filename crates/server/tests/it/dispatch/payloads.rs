//! What work is told in one flat object, and how ranges are written.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use tenure_auth::Secret;
use tenure_server::{DispatchSecrets, Live};

use super::kit::{self, Claim, ORG, Plane};
use crate::cases;
use crate::harness::{Home, database};

cases!(
    starts,
    on_both_stores: [
        the_payload_has_what_the_trigger_brought_over_the_config,
        ranges_are_written_as_their_dag_writes_them,
    ],
);

const SECRET: &str = "hook-secret-of-the-tests";

mod starts {
    use super::*;

    pub async fn sqlite() -> Plane {
        with_secret(Home::Sqlite(tempfile::tempdir().unwrap())).await
    }

    pub async fn postgres() -> Plane {
        with_secret(Home::Postgres(database().await)).await
    }
}

async fn with_secret(home: Home) -> Plane {
    kit::plane_on(Arc::new(home), Arc::default(), |dispatch| {
        let secret = Secret::new(SECRET).unwrap();
        dispatch.secrets = DispatchSecrets(Live::new([("hook_key".to_owned(), secret)].into()));
    })
    .await
}

const HOOKS: &str = "name: hooks
jobs:
  - { name: range, activation: source, runtime: worker, operator: range, outputs: 1, config: { chain: 1, size: 3 },
      source: { kind: webhook, webhook_path: new-range, secret: hook_key } }
  - { name: own, activation: source, runtime: worker, operator: own, outputs: 1, source: { kind: manual },
      config: { operator: mine, config_hash: h, dataset_uuid: d } }
";

/// Delivers a body to the webhook and claims the task that it makes.
async fn deliver(plane: &Plane, body: &str) -> Claim {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signed = hmac::sign(&key, format!("{at}.{body}").as_bytes());
    let hex: String = signed.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let signature = format!("t={at},v1={hex}");
    let headers = [("X-Tenure-Signature", signature.as_str())];
    let made = plane.send("/api/v1/webhooks/new-range", &headers, body.to_owned()).await;
    plane.claim(made.body["task_id"].as_str().unwrap()).await
}

async fn the_payload_has_what_the_trigger_brought_over_the_config(plane: Plane) {
    plane.deploy(HOOKS).await;
    let claim = deliver(&plane, r#"{"size":4,"from":1000000}"#).await;
    let work = &claim["work_payload"];
    assert_eq!((&work["chain"], &work["size"], &work["from"]), (&json!(1), &json!(4), &json!(1_000_000)));
    assert_eq!((&work["operator"], &claim["task"]["config"]["size"]), (&json!("range"), &json!(3)));
    assert_eq!(work["dataset_uuid"], claim["task"]["outputs"][0]["dataset_uuid"]);
    assert_eq!(plane.fetch(claim.task()).await.ok()["work_payload"], *work);
    let hash = work["config_hash"].clone();
    // What is not an object brings nothing; the payload is an object all the same.
    for body in ["[1,2]", "7", "\"text\"", "not JSON", "null"] {
        let claim = deliver(&plane, body).await;
        let work = claim["work_payload"].as_object().unwrap();
        let keys: Vec<&str> = work.keys().map(String::as_str).collect();
        assert_eq!(keys, ["chain", "config_hash", "dataset_uuid", "operator", "size"], "{body}");
        assert_eq!(work["config_hash"], hash, "the same configuration");
    }
    // Tenure adds what is not there, and replaces nothing.
    let trigger = async |request: &str, input: Option<&str>| {
        let made = plane.dags.trigger(ORG, "hooks", "own", &request.into(), input.map(Into::into)).await.unwrap();
        plane.claim(&made.task.to_string()).await
    };
    let own = trigger("r-1", None).await;
    assert_eq!(own["work_payload"], json!({"operator": "mine", "config_hash": "h", "dataset_uuid": "d"}));
    let own = trigger("r-2", Some(r#"{"operator":"theirs","partition_key":"x"}"#)).await;
    let expected = json!({"operator": "theirs", "config_hash": "h", "dataset_uuid": "d", "partition_key": "x"});
    assert_eq!(own["work_payload"], expected);
}

/// A DAG whose second job reads partitions of the first.
fn chain(ranges: &str) -> String {
    kit::CHAIN.replace("name: chain\n", &format!("name: chain\nranges: {ranges}\n"))
}

async fn ranges_are_written_as_their_dag_writes_them(plane: Plane) {
    let part = |key: &str| json!({"partition_key": key});
    let (ranges, key, start, end) = ("half_open", "1000-2000", 1_000, 2_000);
    plane.deploy(&chain(ranges)).await;
    plane.active(1).await;
    let before = plane.count("decode").await;
    // Published with the end outside, as this spelling has it everywhere.
    let claim = plane.claim(&plane.fire(&format!("{ranges}-1")).await).await;
    let dataset = &claim["task"]["outputs"][0]["dataset_uuid"];
    let published = json!([{"dataset_uuid": dataset, "range_start": 1_000, "range_end": 2_000}]);
    plane.complete(&claim, json!({"outcome": "success", "datasets_published": published})).await.ok();
    let decode = plane.claim(&plane.nth("decode", before + 1).await).await;
    let told = &decode["task"]["inputs"][0]["partition"];
    let expected = (&json!(key), &json!(start), &json!(end));
    assert_eq!((&told["partition_key"], &told["start"], &told["end"]), expected, "{ranges}");
    let work = &decode["work_payload"];
    let expected = (&json!(key), &json!(1_000), &json!(2_000));
    assert_eq!((&work["partition_key"], &work["range_start"], &work["range_end"]), expected, "{ranges}");
    // The same partition in the words of the DAG is the same one: nothing new is made.
    let again = plane.claim(&plane.fire(&format!("{ranges}-2")).await).await;
    plane.events(&again, json!([again.event(0, part(key))])).await.ok();
    // Keys of workers pass unchanged, and what is not a range has no numbers.
    plane.events(&again, json!([again.event(0, part("5-9")), again.event(0, part("05-9"))])).await.ok();
    plane.nth("decode", before + 3).await;
    let mut keys: Vec<Value> = Vec::new();
    for task in plane.get("/api/v1/tasks?operator=decode").await.ok()["items"].as_array().unwrap() {
        let fetched = plane.fetch(task["task_id"].as_str().unwrap()).await.ok();
        let partition = &fetched["inputs"][0]["partition"];
        if fetched["job"]["dag_version"] == 1 {
            keys.push(json!([partition["partition_key"], fetched["work_payload"]["range_end"]]));
        }
    }
    keys.sort_by_key(Value::to_string);
    assert_eq!(keys, [json!(["05-9", null]), json!([key, 2_000]), json!(["5-9", 9])], "{ranges}");
    // A range that ends before it starts is none, and nor is one that holds nothing.
    let refused = plane.events(&again, json!([again.event(0, json!({"partition_key": "9-8", "start": 9}))])).await;
    assert_eq!(refused.refused(422)["error"], "partition_mismatch", "{ranges}");
    // An edge between DAGs of different kinds is refused.
    plane
        .deploy(&format!("{}publish:\n  raw_logs: {{ from: {{ job: import, output: 0 }} }}\n", chain("half_open")))
        .await;
    plane.active(2).await;
    let reader = "name: reader
jobs:
  - { name: read, activation: reactive, runtime: worker, operator: read, outputs: 0, execution_strategy: PerPartition,
      inputs: [{ from: { dataset: raw_logs } }] }
";
    let refused = plane.deploy_text(reader).await;
    assert_eq!((refused.status.as_u16(), &refused.body["error"]), (422, &json!("invalid_dag")), "{}", refused.body);
    assert!(refused.body.to_string().contains("ranges"), "{}", refused.body);
    let same = plane.deploy_text(&reader.replace("name: reader\n", "name: reader\nranges: half_open\n")).await;
    assert!(same.status.is_success(), "{}", same.body);
}
