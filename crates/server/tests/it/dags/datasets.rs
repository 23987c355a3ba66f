//! Datasets: what is shown of them, and what follows when their data has changed.

use super::*;
use crate::cases;

cases!(
    Server,
    on_sqlite: [datasets_are_listed_in_pages, a_wrong_invalidation_says_what_is_wrong],
    on_both_stores: [
        a_dataset_shows_partitions_cursors_and_lineage,
        an_invalidated_partition_is_computed_again,
    ],
);

/// Reads `decoded` of `chain` by cursor.
const REPORT: &str = "name: reports
jobs:
  - name: report
    activation: reactive
    runtime: worker
    operator: report
    outputs: 1
    execution_strategy: PerUpdate
    update_strategy: replace
    inputs: [{ from: { dataset: decoded } }]
publish:
  reports:
    from: { job: report, output: 0 }
    storage: postgres
    schema: { columns: [{ name: org_id, type: uuid, nullable: false }, { name: total, type: int64 }], unique: [org_id] }
";

async fn dataset(server: &Server, name: &str) -> Value {
    server.get(&format!("{DATASETS}/{name}")).await.ok()
}

async fn a_dataset_shows_partitions_cursors_and_lineage(server: Server) {
    deploy(&server, &chain(0)).await;
    deploy(&server, REPORT).await;
    run_all(&server, "1-5", 1).await;
    run_all(&server, "6-9", 2).await;
    let shown = dataset(&server, "decoded").await;
    assert_eq!(
        (&shown["name"], &shown["storage"], &shown["write_mode"]),
        (&json!("decoded"), &Value::Null, &json!("direct"))
    );
    assert_eq!(shown["producer"], json!({"dag": "chain", "job": "decode", "output_index": 0}));
    assert_eq!(shown["schema"], Value::Null);
    let items = shown["partitions"]["items"].as_array().unwrap();
    let first = &items[0];
    assert_eq!((items.len(), &shown["partitions"]["next_cursor"]), (2, &Value::Null));
    assert_eq!((&first["partition_key"], &first["start"], &first["end"]), (&json!("1-5"), &json!(1), &json!(5)));
    assert_eq!((&first["generation"], &first["row_count"], &first["bytes"]), (&json!(0), &json!(20), &json!(4096)));
    assert_eq!(first["location"], "s3://tenure/staging/");
    assert!(first["materialized_at"].as_str().unwrap().ends_with('Z'));
    let version = &shown["versions"][0];
    assert_eq!((&version["dataset_version"], &version["current"]), (&shown["current_version"], &json!(true)));
    let uuid = shown["dataset_uuid"].as_str().unwrap();
    assert_eq!(dataset(&server, uuid).await, shown, "by id it is the same");
    let names = |list: &Value| -> Vec<(String, String, i64)> {
        let text = |it: &Value, name: &str| it[name].as_str().unwrap_or("-").to_owned();
        let list = list.as_array().unwrap().iter();
        list.map(|it| (text(it, "job"), text(it, "name"), it["distance"].as_i64().unwrap())).collect()
    };
    let upstream = names(&shown["lineage"]["upstream"]);
    assert_eq!(upstream, [("import".to_owned(), "-".to_owned(), 1)]);
    let downstream = names(&shown["lineage"]["downstream"]);
    assert_eq!(downstream, [("count".to_owned(), "-".to_owned(), 1), ("report".to_owned(), "reports".to_owned(), 1)]);
    assert_eq!(shown["lineage"]["downstream"][0]["dataset_uuid"], Value::Null, "it has no output");
    assert_eq!(shown["lineage"]["downstream"][1]["reads"], json!([uuid]));
    assert_eq!(
        shown["cursor"],
        json!({"produced": null, "consumers": [{"dag": "reports", "job": "report", "value": null}]})
    );
    // The report is written by cursor; of that nobody reads.
    let report = nth(&server, "report", 2).await;
    complete(&server, &claim(&server, &report).await, cursor(12_345)).await;
    let reports = dataset(&server, "reports").await;
    assert_eq!(reports["cursor"], json!({"produced": 12_345, "consumers": []}));
    assert_eq!(reports["schema"]["columns"][1]["name"], "total");
    assert_eq!(reports["schema"]["unique"], json!(["org_id"]));
    let listed = server.get(&format!("{DATASETS}?dag=reports")).await.ok();
    let item = json!({"dataset_uuid": reports["dataset_uuid"], "name": "reports", "storage": "postgres",
        "write_mode": "direct", "current_version": reports["current_version"], "cursor": 12_345,
        "producer": {"dag": "reports", "job": "report", "output_index": 0}});
    assert_eq!(listed, json!({"items": [item], "next_cursor": null}));
    // Partitions come in pages.
    let page = server.get(&format!("{DATASETS}/decoded?limit=1")).await.ok();
    assert_eq!(page["partitions"]["next_cursor"], "1-5");
    let page = server.get(&format!("{DATASETS}/decoded?limit=1&cursor=1-5")).await.ok();
    assert_eq!(
        (&page["partitions"]["items"][0]["partition_key"], &page["partitions"]["next_cursor"]),
        (&json!("6-9"), &Value::Null)
    );
    let unknown = "00000000-0000-4000-8000-000000000000";
    let refused = server.get(&format!("{DATASETS}/decoded?version={unknown}")).await.refused(422);
    assert_eq!(refused["error"], "unknown_dataset_version");
}

async fn an_invalidated_partition_is_computed_again(server: Server) {
    deploy(&server, &chain(0)).await;
    run_all(&server, "1-5", 1).await;
    let import = shown(&server, "chain").await["jobs"][2]["outputs"][0]["dataset_uuid"].as_str().unwrap().to_owned();
    let path = format!("{DATASETS}/{import}/invalidate");
    let body = json!({"scope": "partition", "partition_key": "1-5", "reason": "reorg"});
    let key = [("Idempotency-Key", "i-1")];
    let answer = server.call(Method::POST, &path, &key, Some(&body)).await;
    assert_eq!(answer.status.as_u16(), 202, "{}", answer.body);
    assert_eq!((&answer.body["generation"], &answer.body["dependents"]), (&json!(1), &json!(1)));
    let again = server.call(Method::POST, &path, &key, Some(&body)).await;
    assert_eq!((again.status.as_u16(), &again.body), (202, &answer.body), "the same request is the same invalidation");
    let decode = nth(&server, "decode", 2).await;
    let task = server.task(&decode).await;
    assert_eq!(task["payload"]["invalidation"]["id"], answer.body["invalidation_id"], "{task}");
    run(&server, &decode, "1-5").await;
    // What was written anew has changed, too.
    let count = nth(&server, "count", 2).await;
    run(&server, &count, "1-5").await;
    let decoded = dataset(&server, "decoded").await;
    assert_eq!(decoded["partitions"]["items"][0]["generation"], 1);
    // Rows may be in any partition: each is computed again at once, and what was made from it.
    run_all(&server, "6-9", 3).await;
    let rows = json!({"scope": "row_range", "row_filter": {"block": {"gte": 995, "lte": 1005}}});
    let answer = server.post(&path, rows).await;
    assert_eq!((answer.status.as_u16(), &answer.body["generation"]), (202, &json!(1)));
    assert_eq!(answer.body["dependents"], 1);
    nth(&server, "decode", 5).await;
    for (operator, invalidation) in [("decode", Some(&answer.body["invalidation_id"])), ("count", None)] {
        nth(&server, operator, 5).await;
        let mut keys = Vec::new();
        for task in tasks(&server, operator).await.iter().take(2) {
            let task = server.task(task["task_id"].as_str().unwrap()).await;
            let key = task["payload"]["inputs"][0]["position"]["partition"]["key"].as_str().unwrap().to_owned();
            assert!(invalidation.is_none_or(|id| task["payload"]["invalidation"]["id"] == *id), "{task}");
            run(&server, task["task_id"].as_str().unwrap(), &key).await;
            keys.push(key);
        }
        keys.sort();
        assert_eq!(keys, ["1-5", "6-9"], "{operator}");
    }
    let generations: Vec<Value> = dataset(&server, "decoded").await["partitions"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|partition| partition["generation"].clone())
        .collect();
    assert_eq!(generations, [json!(2), json!(1)], "only what was written anew, and once");
}

async fn a_wrong_invalidation_says_what_is_wrong(server: Server) {
    deploy(&server, &chain(0)).await;
    let path = format!("{DATASETS}/decoded/invalidate");
    for (body, word, part) in [
        (json!({}), "invalid_argument", "is required"),
        (json!({"scope": "all"}), "invalid_argument", "must be partition or row_range"),
        (json!({"scope": "partition"}), "invalid_argument", "is required with scope partition"),
        (json!({"scope": "row_range"}), "invalid_argument", "is required with scope row_range"),
        (json!({"scope": "partition", "partition_key": "1-5", "row_filter": {}}), "invalid_argument", "goes with"),
        (json!({"scope": "partition", "partition_key": "a b"}), "invalid_event", "scope: "),
        (json!({"scope": "partition", "partition_key": ""}), "invalid_event", "scope: "),
        (
            json!({"scope": "partition", "partition_key": "1-5", "reason": "why not"}),
            "invalid_argument",
            "must be reorg",
        ),
        (json!({"scope": "row_range", "row_filter": []}), "invalid_event", "must be an object of columns"),
        (json!({"scope": "row_range", "row_filter": {"n": 1}}), "invalid_event", "n must be an object"),
        (json!({"scope": "row_range", "row_filter": {"n": {"eq": 1}}}), "invalid_event", "gte, lte, gt and lt"),
        (json!({"scope": "row_range", "row_filter": {"n": {"gt": null}}}), "invalid_event", "a number or a text"),
    ] {
        let refused = server.post(&path, body.clone()).await.refused(422);
        assert_eq!(refused["error"], word, "{body}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains(part), "{body}: {refused}");
    }
    assert_eq!(server.send(&path, &[], "{").await.refused(400)["error"], "malformed_request");
    // Nothing writes it any more.
    deploy(
        &server,
        &chain(0)
            .replace("  decoded: { from: { job: decode, output: 0 } }", "  other: { from: { job: decode, output: 0 } }")
            .replace("dataset: decoded", "dataset: other"),
    )
    .await;
    until_state(&server, 2, "Active").await;
    assert_eq!(server.get(&format!("{DATASETS}/decoded")).await.refused(404)["error"], "dataset_not_found");
}

async fn datasets_are_listed_in_pages(server: Server) {
    for name in ["b", "a"] {
        deploy(&server, &chain(0).replace("chain", name).replace("decoded", &format!("of-{name}"))).await;
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{DATASETS}?limit=3{cursor}")).await.ok();
        let items = page["items"].as_array().unwrap();
        found.extend(items.iter().map(|it| {
            let text = |it: &Value| it.as_str().unwrap_or("-").to_owned();
            format!("{} {} {}", text(&it["producer"]["dag"]), text(&it["producer"]["job"]), text(&it["name"]))
        }));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["a decode of-a", "a import -", "b decode of-b", "b import -"]);
    let published = server.get(&format!("{DATASETS}?published=true")).await.ok();
    assert_eq!(published["items"].as_array().unwrap().len(), 2);
    assert_eq!(server.get(&format!("{DATASETS}?cursor=x")).await.refused(422)["field"], "cursor");
    assert_eq!(server.get(&format!("{DATASETS}?name=x")).await.refused(422)["error"], "unknown_field");
}
