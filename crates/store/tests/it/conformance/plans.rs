//! Plans of the hot statements. A plan that was made while a table was empty is kept for as long as its connection
//! lives; it must still be the right one when the table is full.

use crate::common::{Fixture, Kind};

const BLOCKED: &str = include_str!("../../../src/postgres/sql/blocked.sql");
const BODIES: &str = include_str!("../../../src/postgres/sql/bodies.sql");
const CONNECTION: &str = include_str!("../../../src/postgres/sql/connection.sql");
const OUTBOX: &str = include_str!("../../../src/postgres/sql/outbox.sql");
const READY: &str = include_str!("../../../src/postgres/sql/ready.sql");
const RUNNING: &str = include_str!("../../../src/postgres/sql/running.sql");
const RUN_EDGES: &str = include_str!("../../../src/postgres/sql/run_edges.sql");
const RUN_TASKS: &str = include_str!("../../../src/postgres/sql/run_tasks.sql");
const RUNS: &str = include_str!("../../../src/postgres/sql/runs.sql");

/// What a connection for batches runs when it is made.
const SESSION: [&str; 2] = ["session", "session_batches"];

/// Name, file, arguments.
const HOT: [(&str, &str, &str); 24] = [
    ("ready_candidates", READY, "1, 100, 0::smallint, now(), 0"),
    ("ready_candidates_of_values", READY, "1, '{acme,other}', 50"),
    ("ready_lock", READY, "'{7,8,9}', '{8}'"),
    ("ready_delete", READY, "'{7,8,9}'"),
    ("running_lock", RUNNING, "'{7,8,9}'"),
    ("running_get", RUNNING, "'{7,8,9}'"),
    ("running_take", RUNNING, "'{7,8,9}'"),
    ("running_delete", RUNNING, "'{7,8,9}'"),
    (
        "running_renew",
        RUNNING,
        "'{7}', ARRAY[now()], ARRAY[now()], '{1}', '{a}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{w}', '{NULL}', '{NULL}', '{NULL}'",
    ),
    ("outbox_settle", OUTBOX, "'{7,8,9}'"),
    ("outbox_receipts", OUTBOX, "'{7,8,9}'"),
    ("outbox_published", OUTBOX, "'{7,8}', '{a,b}', now()"),
    ("outbox_take", OUTBOX, "now(), 'enqueue_task', 'redis', 100, now()"),
    ("outbox_republish", OUTBOX, "'{7,8}', now()"),
    ("edges_get", RUN_EDGES, "'{7,8,9}'"),
    ("edges_reached", RUN_EDGES, "'{7,8,9}'"),
    ("edges_delete", RUN_EDGES, "'{7,8,9}'"),
    ("blocked_lock", BLOCKED, "'{7,8,9}'"),
    ("blocked_delete", BLOCKED, "'{7,8,9}'"),
    ("blocked_count_down", BLOCKED, "'{7,8}', '{1,2}'"),
    ("runs_lock", RUNS, "'{7,8,9}'"),
    ("run_tasks_open", RUN_TASKS, "'{7}'"),
    ("bodies_fill", BODIES, "'{7,8}', '{a,b}'"),
    ("running_of_claim", RUNNING, "'w', 'c'"),
];

const FILL: &str = "
    INSERT INTO ready (seq, id, queue_id, priority, at, fair, message, attempt, fence)
    SELECT n, gen_random_uuid(), 1, n % 10, now(), 'acme', n, 0, 0 FROM generate_series(1, 20000) n;
    INSERT INTO running (seq, id, queue_id, priority, message, worker_id, token, fence, expires_at, attempt, attempt_id,
        claim_id, granted_at, lease_ttl_ms, heartbeat_ms)
    SELECT n, gen_random_uuid(), 1, 5, n, 'w' || n % 100, gen_random_uuid(), 1, now(), 1, gen_random_uuid(),
        'c' || n, now(), 60000, 20000 FROM generate_series(1, 20000) n;
    INSERT INTO outbox (id, kind, key, body, queue_id, seq, created_at, due_at)
    SELECT n, 'enqueue_task', CASE WHEN n % 2 = 0 THEN 'redis' ELSE 'sqs' END, 'body', 1, n, now(), now()
    FROM generate_series(1, 20000) n;
    INSERT INTO run_edges SELECT n, n + 1 FROM generate_series(1, 20000) n;
    INSERT INTO run_tasks SELECT n, n / 100, NULL FROM generate_series(1, 20000) n;
    INSERT INTO blocked (seq, id, queue_id, priority, waiting_on, at)
    SELECT n, gen_random_uuid(), 1, 5, 1, now() FROM generate_series(1, 20000) n";

/// The statement that a file has under this name.
pub fn statement(file: &'static str, name: &str) -> &'static str {
    file.split("-- name: ").find_map(|text| text.strip_prefix(name)?.strip_prefix('\n')).unwrap()
}

/// Prepares on empty tables, fills them, and shows what the kept plans do.
async fn plans(vacuumed: bool) -> Vec<(&'static str, String)> {
    let t = Fixture::new(Kind::Postgres).await;
    for settings in SESSION {
        t.raw.execute(statement(CONNECTION, settings)).await;
    }
    // The server makes a plan for all arguments after a few executions; here from the first.
    t.raw.execute("SET plan_cache_mode = force_generic_plan").await;
    if vacuumed {
        t.raw.execute("VACUUM ANALYZE ready").await;
        t.raw.execute("VACUUM ANALYZE running").await;
        t.raw.execute("VACUUM ANALYZE outbox").await;
        t.raw.execute("VACUUM ANALYZE run_edges").await;
        t.raw.execute("VACUUM ANALYZE run_tasks").await;
        t.raw.execute("VACUUM ANALYZE blocked").await;
    }
    for (name, file, arguments) in HOT {
        t.raw.execute(&format!("PREPARE {name} AS {}", statement(file, name))).await;
        t.raw.execute(&format!("EXECUTE {name} ({arguments})")).await;
    }
    t.raw.execute(FILL).await;
    let mut plans = Vec::new();
    for (name, _, arguments) in HOT {
        let lines = t.raw.rows(&format!("EXPLAIN EXECUTE {name} ({arguments})")).await;
        plans.push((name, lines.into_iter().map(|mut line| line.remove(0).unwrap() + "\n").collect::<String>()));
    }
    plans
}

async fn no_table_is_read_from_end_to_end(vacuumed: bool) {
    for (name, plan) in plans(vacuumed).await {
        assert!(!plan.contains("Seq Scan"), "{name}:\n{plan}");
        assert!(plan.contains("Index"), "{name}:\n{plan}");
        // Any other index that has the number in it would be walked from end to end.
        let by_number = ["_lock", "_get", "_delete", "_take", "_settle", "_receipts"]
            .iter()
            .any(|end| name.ends_with(end) && name != "outbox_take");
        assert!(!by_number || plan.contains("_pkey"), "{name}:\n{plan}");
        // A claim reads the head of the order: sorting would read all that waits.
        assert!(!name.starts_with("ready_candidates") || !plan.contains("Sort"), "{name}:\n{plan}");
    }
}

#[tokio::test]
async fn plans_made_on_new_tables_use_the_indexes() {
    no_table_is_read_from_end_to_end(false).await;
}

/// Once the server has counted and found nothing, reading the whole table looks cheapest.
#[tokio::test]
async fn plans_made_on_tables_known_to_be_empty_use_the_indexes() {
    no_table_is_read_from_end_to_end(true).await;
}
