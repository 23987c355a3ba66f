//! Which SQL passes, and what a refusal says.

use std::collections::BTreeSet;

use tenure_query::gate::{self, DEPTH, LITERAL_BYTES, SQL_BYTES};

fn attached() -> BTreeSet<String> {
    ["dataset", "raw_logs", "call"].map(String::from).into()
}

fn passes(sql: &str) {
    if let Err(refused) = gate::pass(sql, &attached()) {
        panic!("{sql}: {refused}");
    }
}

/// The message of the refusal.
fn refused(sql: &str) -> String {
    match gate::pass(sql, &attached()) {
        Ok(_) => panic!("passed: {sql}"),
        Err(refused) => refused.to_string(),
    }
}

#[test]
fn ordinary_queries_pass() {
    for sql in [
        "SELECT 1",
        "select * from raw_logs;",
        "SELECT r.* FROM raw_logs AS r WHERE r.n > 3 ORDER BY 1 DESC NULLS LAST LIMIT 10 OFFSET 5",
        "SELECT \"Mixed\" FROM \"raw_logs\"",
        "SELECT count(*), sum(n) FILTER (WHERE n > 0) FROM RAW_LOGS GROUP BY a, b HAVING count(*) > 1",
        "WITH x AS (SELECT n FROM raw_logs), y AS (SELECT n FROM x) SELECT * FROM y JOIN x USING (n)",
        "SELECT * FROM raw_logs WHERE n IN (SELECT n FROM dataset) AND EXISTS (SELECT 1 FROM dataset d WHERE d.n = raw_logs.n)",
        "SELECT n, row_number() OVER (PARTITION BY a ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM raw_logs",
        "SELECT CASE WHEN n = 1 THEN 'a' ELSE 'b' END, n::text, CAST(n AS DOUBLE), n BETWEEN 1 AND 2 FROM raw_logs",
        "SELECT substring(a FROM 2 FOR 3), trim(BOTH 'x' FROM a), position('x' IN a), extract(year FROM t) FROM raw_logs",
        "SELECT DATE '2025-01-01', INTERVAL '1 day', TIMESTAMP '2025-01-01 00:00:00'",
        "(SELECT n FROM raw_logs UNION ALL SELECT n FROM dataset) EXCEPT SELECT 1",
        "SELECT * FROM (VALUES (1), (2)) AS v(n)",
        "SELECT a LIKE 'x%' ESCAPE '!', a ILIKE 'x', a ~ '^x', a IS DISTINCT FROM 'b' FROM raw_logs",
        "SELECT DISTINCT ON (a) a, n FROM raw_logs ORDER BY a, n",
        "SELECT l.n FROM raw_logs l LEFT JOIN dataset d ON l.n = d.n CROSS JOIN call",
        "SELECT $$a dollar$$, E'\\n', now(), current_date FROM raw_logs",
        "SELECT a FROM raw_logs GROUP BY ROLLUP (a)",
    ] {
        passes(sql);
    }
}

#[test]
fn a_url_is_a_text_and_call_is_a_name() {
    passes("SELECT 'https://example.org/x.csv' AS url, 's3://b/x.parquet' FROM raw_logs");
    passes("SELECT call FROM call");
    passes("SELECT call, n AS call2 FROM raw_logs WHERE call = 'x.csv'");
}

#[test]
fn only_one_select_is_run() {
    for (sql, says) in [
        ("SELECT 1; SELECT 2", "only one statement"),
        ("SELECT 1;; ", "only one statement"),
        ("", "cannot be parsed"),
        (";", "cannot be parsed"),
        ("SELECT 1 SELECT 2", "goes on"),
        ("INSERT INTO raw_logs VALUES (1)", "INSERT"),
        ("UPDATE raw_logs SET n = 1", "UPDATE"),
        ("DELETE FROM raw_logs", "DELETE"),
        ("MERGE INTO raw_logs USING dataset ON true WHEN MATCHED THEN DELETE", "MERGE"),
        ("TRUNCATE raw_logs", "TRUNCATE"),
        ("CREATE TABLE x (n INT)", "CREATE"),
        ("CREATE TABLE x AS SELECT 1", "CREATE"),
        ("CREATE VIEW x AS SELECT 1", "CREATE"),
        ("CREATE FUNCTION f() RETURNS INT RETURN 1", "CREATE"),
        ("DROP TABLE raw_logs", "DROP"),
        ("ALTER TABLE raw_logs ADD COLUMN x INT", "ALTER"),
        ("COPY raw_logs TO '/tmp/x.csv'", "COPY"),
        ("COPY (SELECT 1) TO STDOUT", "COPY"),
        ("SET x = 1", "SET"),
        ("RESET x", "RESET"),
        ("SHOW TABLES", "SHOW"),
        ("SHOW ALL", "SHOW"),
        ("EXPLAIN SELECT 1", "EXPLAIN"),
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN"),
        ("DESCRIBE raw_logs", ""),
        ("CALL f()", "CALL"),
        ("PREPARE p AS SELECT 1", "PREPARE"),
        ("EXECUTE p", "EXECUTE"),
        ("BEGIN", ""),
        ("COMMIT", "COMMIT"),
        ("VALUES (1)", "VALUES"),
        ("TABLE raw_logs", ""),
        ("ATTACH DATABASE 'x' AS y", ""),
        ("INSTALL httpfs", ""),
        ("LOAD httpfs", ""),
        ("PRAGMA x", ""),
        ("VACUUM", ""),
        ("GRANT SELECT ON raw_logs TO x", "GRANT"),
        ("LISTEN x", "LISTEN"),
    ] {
        let message = refused(sql);
        assert!(message.contains(says), "{sql}: {message}");
    }
}

#[test]
fn constructs_that_do_more_than_read_are_named() {
    for (sql, says) in [
        ("WITH x AS (INSERT INTO raw_logs VALUES (1) RETURNING n) SELECT * FROM x", "INSERT"),
        ("WITH x AS (UPDATE raw_logs SET n = 1 RETURNING n) SELECT * FROM x", "UPDATE"),
        ("WITH x AS (DELETE FROM raw_logs RETURNING n) SELECT * FROM x", "DELETE"),
        ("WITH x AS (SELECT 1) INSERT INTO raw_logs SELECT * FROM x", "INSERT"),
        ("WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT * FROM x) SELECT * FROM x", "WITH RECURSIVE"),
        ("SELECT n INTO x FROM raw_logs", "INTO"),
        ("SELECT n FROM raw_logs FOR UPDATE", "locking"),
        ("SELECT n FROM raw_logs FOR SHARE", "locking"),
        ("SELECT * FROM raw_logs TABLESAMPLE SYSTEM (10)", "TABLESAMPLE"),
        ("SELECT $1 FROM raw_logs", "placeholders"),
    ] {
        let message = refused(sql);
        assert!(message.contains(says), "{sql}: {message}");
    }
}

#[test]
fn relations_are_attached_names_or_ctes_in_scope() {
    for (sql, says) in [
        ("SELECT * FROM other", "'other'"),
        ("SELECT * FROM raw_lgs", "did you mean `raw_logs`"),
        ("SELECT * FROM public.raw_logs", "qualified"),
        ("SELECT * FROM a.b.raw_logs", "qualified"),
        ("SELECT * FROM information_schema.tables", "qualified"),
        ("SELECT * FROM pg_catalog.pg_class", "qualified"),
        ("SELECT * FROM pg_class", "'pg_class'"),
        ("SELECT * FROM duckdb_settings", "'duckdb_settings'"),
        ("SELECT * FROM \"RAW_LOGS\"", "'RAW_LOGS'"),
        // Scopes: after its query, in itself, before it.
        ("SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x) a, x", "'x'"),
        ("WITH x AS (SELECT * FROM x) SELECT * FROM x", "'x'"),
        ("WITH x AS (SELECT * FROM y), y AS (SELECT 1) SELECT * FROM x", "'y'"),
        ("SELECT (WITH x AS (SELECT 1) SELECT * FROM x), n FROM x", "'x'"),
    ] {
        let message = refused(sql);
        assert!(message.contains(says), "{sql}: {message}");
    }
    passes("WITH raw_logs AS (SELECT * FROM raw_logs) SELECT * FROM raw_logs");
    passes("WITH x AS (SELECT 1) SELECT * FROM (SELECT * FROM x) y WHERE 1 IN (SELECT * FROM x)");
}

/// However a file is spelled, and wherever it stands.
#[test]
fn a_file_is_no_relation() {
    for file in ["'x.csv'", "\"x.csv\"", "$$x.csv$$", "E'x.csv'", "\"/etc/passwd\"", "\"s3://b/x.parquet\"", "x.csv"] {
        for sql in [
            format!("SELECT * FROM {file}"),
            format!("SELECT * FROM raw_logs, {file}"),
            format!("SELECT * FROM raw_logs JOIN {file} ON true"),
            format!("SELECT * FROM (SELECT * FROM {file}) x"),
            format!("WITH x AS (SELECT * FROM {file}) SELECT * FROM x"),
            format!("SELECT 1 WHERE 1 IN (SELECT n FROM {file})"),
            format!("SELECT (SELECT n FROM {file})"),
            format!("SELECT 1 UNION SELECT n FROM {file}"),
            format!("SELECT 1 WHERE EXISTS (SELECT 1 FROM {file})"),
            format!("SELECT sum(n) FILTER (WHERE n IN (SELECT n FROM {file})) FROM raw_logs"),
            format!("SELECT 1 ORDER BY (SELECT n FROM {file})"),
            format!("SELECT 1 LIMIT (SELECT n FROM {file})"),
            format!("SELECT count(*) OVER (ORDER BY (SELECT n FROM {file})) FROM raw_logs"),
            format!("SELECT CASE WHEN (SELECT true FROM {file}) THEN 1 END"),
        ] {
            let message = refused(&sql);
            assert!(!message.contains("x.csv") && !message.contains("passwd"), "{sql}: {message}");
        }
    }
}

#[test]
fn functions_are_those_of_the_list() {
    for name in [
        "read_text",
        "read_ndjson",
        "read_csv",
        "read_parquet",
        "glob",
        "parquet_metadata",
        "current_setting",
        "duckdb_settings",
        "version",
        "arrow_typeof",
        "input_file_name",
        "repeat",
        "lpad",
        "pg_read_file",
        "getenv",
        "set_config",
        "pg_sleep",
        "query_to_xml",
        "generate_series",
        "range",
        "unnest",
    ] {
        let message = refused(&format!("SELECT {name}('x')"));
        assert!(message.contains(name), "{name}: {message}");
        let message = refused(&format!("SELECT * FROM {name}('x')"));
        assert!(message.contains("table function") && message.to_lowercase().contains(name), "{name}: {message}");
        refused(&format!("SELECT * FROM raw_logs, LATERAL {name}('x') AS f"));
        refused(&format!("SELECT n FROM raw_logs WHERE n IN (SELECT {name}('x'))"));
    }
    for sql in [
        "SELECT current_user",
        "SELECT session_user",
        "SELECT pg_catalog.abs(1)",
        "SELECT x.upper('a')",
        "SELECT upper(a => 'x')",
        "SELECT ARRAY(SELECT 1)",
        "SELECT ARRAY[1]",
        "SELECT a['x'] FROM raw_logs",
        "SELECT a -> 'x' FROM raw_logs",
        "SELECT 1 = ANY (SELECT 1)",
        "SELECT a COLLATE \"C\" FROM raw_logs",
        "SELECT * FROM unnest(ARRAY[1])",
        "SELECT * FROM TABLE(f())",
        "SELECT \"ABS\"(1)",
    ] {
        refused(sql);
    }
}

#[test]
fn sizes_are_bounded() {
    let filled = |length: usize| format!("SELECT 1 -- {}", "x".repeat(length - 12));
    passes(&filled(SQL_BYTES));
    assert!(refused(&filled(SQL_BYTES + 1)).contains("65536"));
    passes(&format!("SELECT '{}'", "x".repeat(LITERAL_BYTES)));
    assert!(refused(&format!("SELECT '{}'", "x".repeat(LITERAL_BYTES + 1))).contains("4096"));
    assert!(refused(&format!("SELECT $${}$$", "x".repeat(LITERAL_BYTES + 1))).contains("4096"));
    assert!(refused(&format!("SELECT {}", "1".repeat(LITERAL_BYTES + 1))).contains("4096"));
    for sql in ["SELECT 1 \0", "SELECT 'a\0b'", "SELECT 1 -- \0", "SELECT \"a\0b\" FROM raw_logs"] {
        assert!(refused(sql).contains("NUL"), "{sql:?}");
    }
}

#[test]
fn depth_is_bounded_however_it_is_made() {
    let nested = |depth: usize| format!("SELECT {}1{}", "(".repeat(depth), ")".repeat(depth));
    // The query, its SELECT and the number are three levels.
    passes(&nested(DEPTH - 3));
    assert!(refused(&nested(DEPTH - 2)).contains("64"));
    for sql in [
        nested(20_000),
        format!("SELECT {}1", "- ".repeat(20_000)),
        format!("SELECT {}true", "NOT ".repeat(15_000)),
        format!("SELECT 1{}", "+1".repeat(32_000)),
        format!("SELECT 1{}", " OR n".repeat(13_000)),
        format!("SELECT 1{}", " UNION SELECT 1".repeat(4_000)),
        format!("SELECT {}1{}", "(SELECT ".repeat(5_000), ")".repeat(5_000)),
        format!("SELECT * FROM {}raw_logs{}", "(".repeat(10_000), ")".repeat(10_000)),
        format!("SELECT {}1{}", "CASE WHEN true THEN ".repeat(2_000), " END".repeat(2_000)),
        format!("SELECT 1{}", "::int".repeat(12_000)),
    ] {
        refused(&sql);
    }
}

#[test]
fn no_message_repeats_a_literal() {
    for sql in [
        "SELECT 'sesame' FROM nowhere",
        "SELECT 'sesame",
        "SELECT 'a' 'sesame' 'b' FROM",
        "SELECT * FROM 'sesame'",
        "SELECT * FROM 'raw_logs'",
        "SELECT * FROM \"sesame open\"",
        "SELECT sesame('x') FROM \"x y\" WHERE",
        "SET x = 'sesame'",
        "SELECT \"se sesame\"('x')",
    ] {
        let message = refused(sql);
        assert!(!message.contains("sesame"), "{sql}: {message}");
    }
}

#[test]
fn a_refusal_says_where() {
    assert_eq!(
        refused("SELECT 1\nFROM other"),
        "line 2, column 6: the relation 'other' is none of the datasets of this query"
    );
    assert!(refused("SELECT 1 FROM , x").starts_with("line 1, column "));
}

#[test]
fn what_is_read_is_known() {
    let passed = gate::pass("WITH x AS (SELECT * FROM dataset) SELECT * FROM x, raw_logs", &attached()).unwrap();
    assert_eq!(passed.reads, ["dataset", "raw_logs"].map(String::from).into());
}
