//! What is of one tenant is not there for another.

use std::os::unix::fs::symlink;

use reqwest::Method;
use serde_json::json;

use super::kit::{self, DAG, Plane, alert, on_both};

on_both!(rows_files_and_views_of_others_do_not_exist);

async fn rows_files_and_views_of_others_do_not_exist(plane: Plane) {
    for tenant in ["acme", "other"] {
        plane.deploy(tenant, DAG).await;
        plane.import(tenant, 0, 4).await;
        plane.publish(tenant, vec![alert(&format!("of-{tenant}"), "info", 1)]).await;
    }
    plane.deploy("empty", "name: solo\njobs:\n  - { name: import, activation: source, runtime: worker, operator: i, outputs: 1, source: { kind: manual } }\npublish:\n  mine: { from: { job: import, output: 0 } }\n").await;
    for tenant in ["acme", "other"] {
        let body = json!({"sql": "SELECT DISTINCT owner FROM blocks"});
        assert_eq!(plane.query_of(tenant, body).await.ok()["rows"], json!([[tenant]]));
        let body = json!({"sql": "SELECT key FROM alerts"});
        assert_eq!(plane.query_of(tenant, body).await.ok()["rows"], json!([[format!("of-{tenant}")]]));
    }
    // The names of others are not known, by name or by id.
    let ids = plane.call(Method::GET, "/api/v1/datasets", &[("X-Tenant-ID", "acme")], None).await.ok();
    let ids: Vec<_> = ids["items"].as_array().unwrap().iter().map(|item| item["dataset_uuid"].clone()).collect();
    for dataset in ids.iter().cloned().chain([json!("alerts"), json!("blocks")]) {
        let body = json!({"sql": "SELECT 1", "datasets": [dataset]});
        plane.query_of("empty", body).await.refused(404, "dataset_not_found");
    }
    let refused = plane.query_of("empty", json!({"sql": "SELECT * FROM alerts"})).await.refused(400, "invalid_sql");
    assert!(!refused["message"].as_str().unwrap().contains("acme"), "{refused}");
    for id in &ids {
        let sql = format!("SELECT * FROM \"dataset_{}\"", id.as_str().unwrap());
        plane.query_of("empty", json!({"sql": sql})).await.refused(400, "invalid_sql");
    }
    // A condition on the organisation adds nothing.
    let body = json!({"sql": "SELECT count(DISTINCT org_id) FROM alerts WHERE org_id IS NOT NULL OR 1 = 1"});
    assert_eq!(plane.query_of("acme", body).await.ok()["rows"], json!([[1]]));
}

/// Two tenants share one process: what it holds for one is not there for the other, while both ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_query_is_left_in_the_process_for_others() {
    const SECRET: &str = "of-acme-only";
    let plane = kit::sqlite().await;
    for tenant in ["acme", "other"] {
        plane.deploy(tenant, DAG).await;
        plane.import(tenant, 0, 999).await;
    }
    plane.publish("acme", vec![alert(SECRET, "info", 1)]).await;
    // Its CTEs, aliases, literals, and rows that are sorted and grouped.
    let own = [
        format!(
            "WITH hidden AS (SELECT n, '{SECRET}' || n AS x FROM blocks) SELECT x FROM hidden ORDER BY x DESC LIMIT 3"
        ),
        "SELECT key AS hidden_column FROM alerts".to_owned(),
        format!("SELECT '{SECRET}' FROM blocks GROUP BY n HAVING n < 3"),
    ];
    let process = plane.process().unwrap();
    let spill = plane.folder.path().join("run/query-0/spill");
    let mut probes: Vec<String> = [
        "SELECT * FROM hidden",
        "SELECT hidden_column FROM alerts",
        "SELECT * FROM alerts",
        "SELECT count(*), min(owner), max(owner) FROM blocks",
        "SHOW ALL",
        "SET datafusion.execution.batch_size = 1",
        "SET datafusion.catalog.information_schema = true",
        "SELECT * FROM information_schema.df_settings",
        "SELECT * FROM information_schema.views",
        "SELECT current_setting('datafusion.execution.batch_size')",
        "EXPLAIN SELECT * FROM blocks",
        "SELECT * FROM tenure_tables",
        "SELECT * FROM pg_stat_activity",
        "SELECT * FROM sqlite_master",
    ]
    .map(String::from)
    .into();
    for path in
        ["/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/dev/shm", &format!("/proc/{process}/fd/0")]
    {
        probes.push(format!("SELECT * FROM '{path}'"));
        probes.push(format!("SELECT * FROM \"{path}\""));
    }
    probes.push(format!("SELECT * FROM \"{}\"", spill.display()));
    let ask = async |tenant: &str, sql: &str| plane.query_of(tenant, json!({"sql": sql})).await;
    for probe in &probes {
        let at_once = own.iter().map(|sql| ask("acme", sql));
        let (own, others) = tokio::join!(futures_util::future::join_all(at_once), ask("other", probe));
        assert!(own.iter().all(|answer| answer.status.is_success()), "{own:?}");
        assert!(own.iter().all(|answer| answer.body.to_string().contains(SECRET)), "{own:?}");
        let text = others.body.to_string();
        assert!(!text.contains(SECRET) && !text.contains("acme"), "{probe}: {text}");
        let is_own = probe.contains("FROM blocks") && probe.starts_with("SELECT count");
        match others.status.as_u16() {
            200 if is_own => assert_eq!(others.body["rows"], json!([[1_000, "other", "other"]])),
            200 => assert_eq!(others.body["rows"], json!([]), "{probe}"),
            _ => drop(others.refused(400, "invalid_sql")),
        }
    }
    // Settings are those of the process: nothing that was tried has changed them, and nobody else opens its folder.
    let rows = "SELECT n FROM blocks ORDER BY n LIMIT 500";
    assert_eq!(ask("other", rows).await.ok()["row_count"], 500);
    let mode = std::os::unix::fs::PermissionsExt::mode(&spill.parent().unwrap().metadata().unwrap().permissions());
    assert_eq!(mode & 0o077, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_in_a_location_leads_nowhere() {
    let plane = kit::sqlite().await;
    plane.deploy("default", DAG).await;
    let secret = tempfile::tempdir().unwrap();
    kit::write_blocks(&secret.path().join("secret.parquet"), 0, 4, "secret");
    let task = plane.trigger("default", "import", "1").await;
    let claim = plane.claim(&task).await;
    let output = &claim["task"]["outputs"][0];
    let location = output["staging_prefix"].as_str().unwrap();
    let folder = std::path::PathBuf::from(location.strip_prefix("file://").unwrap());
    std::fs::create_dir_all(&folder).unwrap();
    kit::write_blocks(&folder.join("a.parquet"), 0, 4, "default");
    std::fs::write(folder.join("_SUCCESS"), "").unwrap();
    let body = json!({"task_id": claim["task_id"], "attempt": 1, "lease_token": claim["lease_token"],
        "status": "Completed", "outputs": [{"output_index": 0, "dataset_uuid": output["dataset_uuid"],
            "dataset_version": output["dataset_version"], "location": location, "partition_key": "0-4"}]});
    plane.as_task(&claim, "complete", body).await.ok();
    assert_eq!(plane.rows("SELECT DISTINCT owner FROM blocks").await, json!([["default"]]));
    // Whoever may still write there puts a link in the place of the file.
    std::fs::remove_file(folder.join("a.parquet")).unwrap();
    symlink(secret.path().join("secret.parquet"), folder.join("a.parquet")).unwrap();
    let answer = plane.query("SELECT DISTINCT owner FROM blocks").await;
    assert!(!answer.status.is_success() && !answer.body.to_string().contains("secret"), "{answer:?}");
}
