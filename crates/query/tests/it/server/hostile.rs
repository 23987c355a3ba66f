//! SQL that is refused, and what is told about it.

use serde_json::json;

use super::kit::{self, DAG};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_that_is_not_one_select_over_datasets_is_refused() {
    let plane = kit::sqlite().await;
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 9).await;
    for sql in [
        "SELECT 1; SELECT 2",
        "DELETE FROM blocks",
        "INSERT INTO blocks VALUES (1)",
        "UPDATE blocks SET n = 1",
        "CREATE TABLE t AS SELECT * FROM blocks",
        "DROP TABLE blocks",
        "COPY blocks TO '/tmp/secret-path.csv'",
        "SET datafusion.execution.batch_size = 1",
        "SHOW ALL",
        "EXPLAIN SELECT * FROM blocks",
        "WITH gone AS (DELETE FROM blocks RETURNING *) SELECT * FROM gone",
        "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r) SELECT * FROM r",
        "SELECT * FROM public.blocks",
        "SELECT * FROM datafusion.public.blocks",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM generate_series(1, 10)",
        "SELECT * FROM '/etc/secret-path'",
        "SELECT * FROM \"/etc/secret-path.csv\"",
        "SELECT * FROM $$/etc/secret-path.csv$$",
        "SELECT * FROM (SELECT * FROM 'secret-path.csv') t",
        "WITH t AS (SELECT * FROM 'secret-path.parquet') SELECT * FROM t",
        "SELECT n FROM blocks WHERE n IN (SELECT n FROM 'secret-path.csv')",
        "SELECT * FROM read_text('/etc/secret-path')",
        "SELECT * FROM read_ndjson('x')",
        "SELECT * FROM glob('*')",
        "SELECT * FROM parquet_metadata('x')",
        "SELECT current_setting('x')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * INTO t FROM blocks",
        "SELECT * FROM blocks FOR UPDATE",
        "SELECT * FROM tenure_tables",
        "SELECT * FROM nothing",
        "not sql at all",
        "",
    ] {
        let refused = plane.query(sql).await.refused(400, "invalid_sql");
        let message = refused["message"].as_str().unwrap();
        assert!(!message.contains("secret-path"), "{sql}: {message}");
    }
    for (sql, rows) in [
        ("SELECT 'https://example.com/x.parquet' FROM blocks LIMIT 1", json!([["https://example.com/x.parquet"]])),
        ("SELECT n AS call FROM blocks ORDER BY call LIMIT 1;", json!([[0]])),
        ("WITH t AS (SELECT n FROM blocks) SELECT max(n) FROM t", json!([[9]])),
    ] {
        assert_eq!(plane.rows(sql).await, rows, "{sql}");
    }
    let long = format!("SELECT '{}'", "x".repeat(70_000));
    plane.query(&long).await.refused(400, "invalid_sql");
    // A body beyond all bounds is not read.
    let huge = json!({"sql": "x".repeat(2 << 20)});
    plane.query_of("default", huge).await.refused(413, "body_too_large");
}
