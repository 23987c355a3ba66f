//! Deploying and looking.

use reqwest::Method;
use serde_json::{Value, json};

use super::*;
use crate::cases;

cases!(
    Server,
    on_sqlite: [
        everything_wrong_with_a_dag_is_listed_with_its_place,
        what_a_dry_run_shows_is_written_nowhere,
        dags_are_listed_in_pages,
        near_names_are_suggested,
        what_is_done_with_dags_is_audited,
    ],
    on_both_stores: [
        a_dag_is_deployed_and_shown,
        the_same_text_is_one_version,
        a_manual_source_fires_once_per_request,
        tasks_are_counted_by_job,
    ],
);

async fn a_dag_is_deployed_and_shown(server: Server) {
    server.still().await;
    let now = server.engine.now().await.unwrap().to_string();
    let deployed = deploy(&server, &chain(0)).await;
    let id = deployed["dag_version_id"].as_str().unwrap().to_owned();
    let hash = deployed["yaml_hash"].as_str().unwrap().to_owned();
    assert!(hash.strip_prefix("sha256:").is_some_and(|digest| digest.len() == 64), "{hash}");
    let expected = json!({"name": "chain", "version": 1, "dag_version_id": id, "yaml_hash": hash, "state": "Active",
        "changed_jobs": ["count", "decode", "import"], "rebuild_jobs": ["count", "decode"], "kept_jobs": [],
        "removed_jobs": [], "warnings": [], "dry_run": false});
    assert_eq!(deployed, expected);
    let list = server.get(DAGS).await.ok();
    let item = json!({"name": "chain", "active_version": 1, "latest_version": 1, "state": "Active", "updated_at": now});
    assert_eq!(list, json!({"items": [item], "next_cursor": null}));
    let dag = shown(&server, "chain").await;
    assert_eq!((&dag["active_version"], &dag["version"], &dag["state"]), (&json!(1), &json!(1), &json!("Active")));
    assert_eq!(dag["yaml"], json!(chain(0)));
    let [count, decode, import] = &dag["jobs"].as_array().unwrap()[..] else { panic!("{dag}") };
    assert_eq!((&import["activation"], &import["source"]), (&json!("source"), &json!("manual")));
    assert_eq!((&import["inputs"], &import["outputs"][0]["dataset_name"]), (&json!([]), &Value::Null));
    let raw = &import["outputs"][0];
    let input = json!({"input_index": 0, "alias": "raw", "from": {"job": "import", "output": 0},
        "dataset_uuid": raw["dataset_uuid"], "dataset_name": null, "dataset_version": raw["dataset_version"]});
    assert_eq!(decode["inputs"], json!([input]));
    let output = &decode["outputs"][0];
    assert_eq!((&output["output_index"], &output["dataset_name"]), (&json!(0), &json!("decoded")));
    assert_eq!((&decode["runtime"], &decode["operator"]), (&json!("worker"), &json!("decode")));
    assert_eq!(decode["tasks"], json!({"queued": 0, "running": 0, "failed": 0}));
    let input = json!({"input_index": 0, "alias": "decoded", "from": {"dataset": "decoded"},
        "dataset_uuid": output["dataset_uuid"], "dataset_name": "decoded", "dataset_version": output["dataset_version"]});
    assert_eq!((&count["inputs"], &count["outputs"]), (&json!([input]), &json!([])));
    let listed = versions(&server, "chain").await;
    let version = json!({"version": 1, "dag_version_id": id, "yaml_hash": hash, "state": "Active",
        "previous_version": null, "created_at": now, "rebuild": {"total": 0, "done": 0, "failed": 0}});
    assert_eq!(listed, [version]);
}

async fn the_same_text_is_one_version(server: Server) {
    let first = deploy(&server, &chain(0)).await;
    let again = post_yaml(&server, "", &[], &chain(0)).await;
    assert_eq!((again.status.as_u16(), &again.body["dag_version_id"]), (200, &first["dag_version_id"]));
    assert_eq!((&again.body["version"], &again.body["changed_jobs"]), (&json!(1), &json!([])));
    // At the same time, too.
    let (server, yaml) = (&server, chain(1));
    let posts = (0..8).map(|_| async { post_yaml(server, "?cutover=manual", &[], &yaml).await });
    let answers = futures_util::future::join_all(posts).await;
    let created = answers.iter().filter(|answer| answer.status.as_u16() == 201).count();
    assert_eq!(created, 1, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.status.is_success() && answer.body["version"] == 2), "{answers:?}");
    assert_eq!(versions(server, "chain").await.len(), 2);
}

async fn what_a_dry_run_shows_is_written_nowhere(server: Server) {
    let plan = post_yaml(&server, "?dry_run=true", &[], &chain(0)).await;
    assert_eq!(plan.status.as_u16(), 200, "{}", plan.body);
    let plan = plan.body;
    assert_eq!((&plan["dry_run"], &plan["version"], &plan["state"]), (&json!(true), &json!(1), &json!("Active")));
    assert_eq!(plan["dag_version_id"], Value::Null, "there is no such version");
    assert_eq!(server.get(DAGS).await.ok()["items"], json!([]));
    assert_eq!(server.get(DATASETS).await.ok()["items"], json!([]));
    deploy(&server, &chain(0)).await;
    let plan = post_yaml(&server, "?dry_run=true", &[], &chain(1)).await.ok();
    assert_eq!((&plan["version"], &plan["state"]), (&json!(2), &json!("Staging")));
    assert_eq!((&plan["changed_jobs"], &plan["rebuild_jobs"]), (&json!(["decode"]), &json!(["count", "decode"])));
    assert_eq!((&plan["kept_jobs"], &plan["removed_jobs"]), (&json!(["import"]), &json!([])));
    assert_eq!(versions(&server, "chain").await.len(), 1);
    let same = post_yaml(&server, "?dry_run=true", &[], &chain(0)).await.ok();
    assert!(same["dag_version_id"].is_string(), "{same}");
    assert_eq!(same["kept_jobs"], json!(["count", "decode", "import"]));
}

async fn everything_wrong_with_a_dag_is_listed_with_its_place(server: Server) {
    let wrong = chain(0).replace("job: import, output: 0", "job: imprt, output: 0").replace("kind: manual", "kind: at");
    let refused = post_yaml(&server, "", &[], &wrong).await.refused(422);
    assert_eq!((&refused["error"], &refused["code"]), (&json!("invalid_dag"), &json!("BAD_REQUEST")));
    let errors = refused["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 2, "{refused}");
    let unknown = &errors[1];
    assert_eq!((&unknown["line"], &unknown["job"]), (&json!(11), &json!("decode")));
    assert_eq!((&unknown["field"], &unknown["code"]), (&json!("inputs[0].from.job"), &json!("unknown_job")));
    assert_eq!(unknown["message"], "no job named 'imprt'; did you mean 'import'?");
    let column = wrong.lines().nth(10).unwrap().find("imprt").unwrap() + 1;
    assert_eq!(unknown["column"], json!(column));
    // Each by itself: what is at fault, its job, its field and its line.
    for (change, code, job, field, line) in [
        (("name: chain", "name: Chain"), "invalid_name", None, "name", 1),
        (("outputs: 0", "outputs: 33"), "out_of_range", Some("count"), "outputs", 17),
        (("n: 0", "n: 0, n: 1"), "duplicate_key", Some("decode"), "config.n", 12),
        (("    operator: count", "    operater: count"), "unknown_key", Some("count"), "operater", 16),
        (
            ("PerPartition\n    update", "Bulk\n    update"),
            "bulk_not_supported",
            Some("decode"),
            "execution_strategy",
            9,
        ),
        (
            ("update_strategy: replace", "update_strategy: append"),
            "missing_unique_key",
            Some("decode"),
            "unique_key",
            4,
        ),
        (("dataset: decoded", "dataset: decodet"), "unknown_dataset", Some("count"), "inputs[0].from.dataset", 19),
        (("job: import, output: 0", "job: decode, output: 0"), "cycle", Some("decode"), "inputs[0]", 11),
        (
            ("job: decode, output: 0", "job: decode, output: 1"),
            "unknown_output",
            None,
            "publish.decoded.from.output",
            21,
        ),
        (
            ("runtime: worker\n    operator: decode", "runtime: ecs_udf\n    operator: decode"),
            "unknown_runtime",
            Some("decode"),
            "runtime",
            6,
        ),
    ] {
        let yaml = chain(0).replacen(change.0, change.1, 1);
        let refused = post_yaml(&server, "", &[], &yaml).await.refused(422);
        let found = refused["errors"].as_array().unwrap().iter().any(|it| {
            it["code"] == code
                && it["job"] == json!(job)
                && it["field"].as_str().unwrap().starts_with(field)
                && it["line"] == line
        });
        assert!(found, "{code}: {refused:#}");
    }
    assert_eq!(server.get(DAGS).await.ok()["items"], json!([]), "nothing was deployed");
}

async fn a_manual_source_fires_once_per_request(server: Server) {
    deploy(&server, &chain(0)).await;
    let path = format!("{DAGS}/chain/jobs/import/trigger");
    let fire = async |headers: &[(&str, &str)], body: Option<Value>| {
        let answer = server.call(Method::POST, &path, headers, body.as_ref()).await;
        assert_eq!(answer.status.as_u16(), 202, "{}", answer.body);
        (answer.body["task_id"].as_str().unwrap().to_owned(), answer.body["created"].as_bool().unwrap())
    };
    let (first, created) = fire(&[], Some(json!({"request_id": "r-1", "input": {"from": 7}}))).await;
    assert!(created);
    assert_eq!(fire(&[], Some(json!({"request_id": "r-1"}))).await, (first.clone(), false));
    assert_eq!(fire(&[("Idempotency-Key", "r-1")], None).await, (first.clone(), false));
    assert_eq!(fire(&[("Idempotency-Key", "r-1")], Some(json!({"request_id": "r-1"}))).await.0, first);
    let (second, created) = fire(&[], None).await;
    assert!(created && second != first);
    assert_ne!(fire(&[], Some(json!({}))).await.0, second);
    // Unknown fields are ignored, null is absent.
    assert!(fire(&[], Some(json!({"request_id": null, "input": null, "later": 1}))).await.1);
    let task = server.task(&first).await;
    assert_eq!(task["payload"]["trigger"]["kind"], "manual", "{task}");
    let differ = server.call(Method::POST, &path, &[("Idempotency-Key", "a")], Some(&json!({"request_id": "b"}))).await;
    assert_eq!(differ.refused(422)["field"], "request_id");
    let reactive = server.post(&format!("{DAGS}/chain/jobs/decode/trigger"), json!({})).await.refused(409);
    assert_eq!(reactive["error"], "not_a_manual_source");
    let large = json!({"input": "x".repeat(200_000)});
    assert_eq!(server.post(&path, large).await.refused(422)["field"], "input");
    // Of many at once one makes the task.
    let (server, path) = (&server, &path);
    let posts = (0..8).map(|_| async { server.post(path, json!({"request_id": "r-2"})).await.ok() });
    let made = futures_util::future::join_all(posts).await;
    assert_eq!(made.iter().filter(|it| it["created"] == true).count(), 1, "{made:?}");
    assert!(made.iter().all(|it| it["task_id"] == made[0]["task_id"]));
}

async fn tasks_are_counted_by_job(server: Server) {
    deploy(&server, &chain(0)).await;
    let first = fire(&server, "r-1").await;
    fire(&server, "r-2").await;
    assert_eq!(counts(&server, "import").await, (2, 0, 0));
    let grant = claim(&server, &first).await;
    assert_eq!(counts(&server, "import").await, (1, 1, 0));
    complete(&server, &grant, partition("1-5")).await;
    nth(&server, "decode", 1).await;
    assert_eq!((counts(&server, "import").await, counts(&server, "decode").await), ((1, 0, 0), (1, 0, 0)));
    let decode = nth(&server, "decode", 1).await;
    fail(&server, &claim(&server, &decode).await).await;
    assert_eq!(counts(&server, "decode").await, (0, 0, 1));
    let other = deploy(&server, &chain(0).replace("chain", "other").replace("decoded", "others")).await;
    assert_eq!(other["state"], "Active");
    let jobs = shown(&server, "other").await["jobs"].as_array().unwrap().clone();
    assert!(jobs.iter().all(|job| job["tasks"] == json!({"queued": 0, "running": 0, "failed": 0})), "{jobs:?}");
}

async fn dags_are_listed_in_pages(server: Server) {
    let names = ["a", "b-1", "b_1", "c", "d"];
    for name in names {
        deploy(&server, &chain(0).replace("chain", name).replace("decoded", &format!("of-{name}"))).await;
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{DAGS}?limit=2{cursor}")).await.ok();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        found.extend(items.iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, names);
    assert_eq!(server.get(&format!("{DAGS}?limit=0")).await.refused(422)["field"], "limit");
    assert_eq!(server.get(&format!("{DAGS}?offset=2")).await.refused(422)["error"], "unknown_field");
}

async fn near_names_are_suggested(server: Server) {
    deploy(&server, &chain(0)).await;
    let missing = |word: &str, answer: Answer| {
        let refused = answer.refused(404);
        assert_eq!(refused["error"], word, "{refused}");
        refused["message"].as_str().unwrap().to_owned()
    };
    let dag = missing("dag_not_found", server.get(&format!("{DAGS}/chian")).await);
    assert_eq!(dag, "no such DAG; did you mean `chain`?");
    assert_eq!(missing("dag_not_found", server.get(&format!("{DAGS}/other/versions")).await), "no such DAG");
    let cut = server.post(&format!("{DAGS}/chian/cutover"), json!({"version": 1})).await;
    assert!(missing("dag_not_found", cut).contains("`chain`"));
    missing("dag_not_found", server.call(Method::POST, &format!("{DAGS}/x/rollback"), &[], None).await);
    missing("version_not_found", cutover(&server, 9).await);
    missing("version_not_found", server.get(&format!("{DAGS}/chain?version=9")).await);
    let job = missing("job_not_found", server.post(&format!("{DAGS}/chain/jobs/imports/trigger"), json!({})).await);
    assert!(job.ends_with("did you mean `import`?"), "{job}");
    missing("dag_not_found", server.post(&format!("{DAGS}/x/jobs/import/trigger"), json!({})).await);
    let dataset = missing("dataset_not_found", server.get(&format!("{DATASETS}/decodet")).await);
    assert_eq!(dataset, "no such dataset; did you mean `decoded`?");
}

async fn what_is_done_with_dags_is_audited(server: Server) {
    deploy(&server, &chain(0)).await;
    deploy(&server, &chain(0).replace("kind: manual", "kind: always_on")).await;
    until_state(&server, 2, "Active").await;
    post_yaml(&server, "?dry_run=true", &[], &chain(5)).await.ok();
    post_yaml(&server, "", &[], "name: 1").await.refused(422);
    cutover(&server, 1).await.ok();
    cutover(&server, 2).await.ok();
    rollback(&server).await.ok();
    server.post(&format!("{DAGS}/chain/jobs/import/trigger"), json!({})).await.ok();
    let invalidation = json!({"scope": "partition", "partition_key": "1-5"});
    server.post(&format!("{DATASETS}/decoded/invalidate"), invalidation).await.ok();
    let log = server.get("/api/v1/audit").await.ok();
    let mut rows: Vec<(String, String, String)> = log
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            (text("action"), text("resource"), text("status"))
        })
        .collect();
    rows.sort_unstable();
    let expected = [
        ("dag.cutover", "chain", "ok"),
        ("dag.cutover", "chain", "ok"),
        ("dag.deploy", "", "refused"),
        ("dag.deploy", "chain", "ok"),
        ("dag.deploy", "chain", "ok"),
        ("dag.rollback", "chain", "ok"),
        ("dag.trigger", "chain/import", "ok"),
        ("dataset.invalidate", "decoded", "ok"),
    ];
    let expected = expected.map(|(action, resource, status)| (action.into(), resource.into(), status.into()));
    assert_eq!(rows, expected);
}
