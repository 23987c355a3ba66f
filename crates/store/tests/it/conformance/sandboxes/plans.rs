//! Statements about sandboxes use the indexes made for them, in plans that were made while the tables were empty. Rows
//! that are destroyed are in none of those.

use crate::common::{Fixture, Kind};

/// Files of both dialects, by table.
macro_rules! files {
    ($($name:ident: $file:literal,)+) => {
        $(const $name: [&str; 2] = [
            include_str!(concat!("../../../../src/sqlite/sql/", $file)),
            include_str!(concat!("../../../../src/postgres/sql/", $file)),
        ];)+
    };
}

files! {
    EVENTS: "sandbox_events.sql",
    KEYS: "sandbox_keys.sql",
    SANDBOXES: "sandboxes.sql",
    PIECES: "snapshot_pieces.sql",
    QUEUE: "spawn_queue.sql",
}

/// Statements of changes: name, files, arguments, and the index that finds the rows; one of two if both serve.
const HOT: [(&str, [&str; 2], &str, &str); 9] = [
    ("sandbox_get", SANDBOXES, "'sb-1'", "sandboxes_pkey"),
    ("sandboxes_named", SANDBOXES, "'{sb-1,sb-2}'", "sandboxes_pkey"),
    ("sandboxes_usage", SANDBOXES, "", "sandboxes_placed|sandboxes_counted"),
    ("sandboxes_counted", SANDBOXES, "'t-1', 'o-1'", "sandboxes_counted"),
    ("sandboxes_idle", SANDBOXES, "'p-1', 32", "sandboxes_warm"),
    ("sandboxes_prune", SANDBOXES, "now(), 10", "sandboxes_destroyed"),
    ("sandbox_key_get", KEYS, "'t-1', 'o-1', 'k'", "sandbox_keys_pkey"),
    ("spawn_queue_ahead", QUEUE, "'process', 7, 256", "spawn_queue_by_provider"),
    ("snapshot_pieces_size", PIECES, "'snap-1'", "snapshot_pieces_pkey"),
];

/// Statements of readers.
const READS: [(&str, [&str; 2], &str, &str); 8] = [
    ("sandboxes_list", SANDBOXES, "$NEXT, NULL, NULL, NULL, NULL, 100, NULL, NULL", "sandboxes_by_time"),
    ("sandboxes_of_tenant", SANDBOXES, "$NEXT, NULL, NULL, NULL, NULL, 100, 't-20', NULL", "sandboxes_by_tenant"),
    ("sandboxes_of_owner", SANDBOXES, "$NEXT, NULL, NULL, NULL, NULL, 100, 't-20', 'o-20'", "sandboxes_by_owner"),
    ("sandboxes_of_worker", SANDBOXES, "$NEXT, NULL, 'w-7', NULL, NULL, 100, NULL, NULL", "sandboxes_by_worker"),
    ("sandboxes_over", SANDBOXES, "$NEXT, NULL, NULL, now(), NULL, 100, NULL, NULL", "sandboxes_by_end"),
    ("sandboxes_count_warm", SANDBOXES, "", "sandboxes_warm"),
    ("snapshot_pieces_abandoned", PIECES, "now(), 64", "snapshot_pieces_first"),
    ("sandbox_events_after", EVENTS, "7, 100", "sandbox_events_pkey"),
];

/// A few rows live among many that are destroyed.
const FILL: &str = "
    INSERT INTO sandboxes (id, tenant, owner, state, provider, memory_mb, vcpus, spec, worker_id, runtime_id, request_id,
        pool, created_at, changed_at, expires_at, spawn_deadline)
    SELECT 'sb-' || n, 't-' || n % 50, 'o-' || n % 500, CASE WHEN n % 20 = 0 THEN 'running' ELSE 'destroyed' END,
        'process', 512, 1, '{}', 'w-' || n / 20 % 20, 'rt', 'req', NULL, now() + n * interval '1 ms', now(),
        now() + n * interval '1 s', now()
    FROM generate_series(1, 10000) n;
    INSERT INTO spawn_queue (sandbox_id, provider, deadline, per_owner, per_tenant)
    SELECT 'sb-' || n, CASE WHEN n % 2 = 0 THEN 'process' ELSE 'docker' END, now(), 0, 0 FROM generate_series(1, 2000) n;
    INSERT INTO snapshot_pieces SELECT 'snap-' || n / 100, n % 100, 'x', now() + n * interval '1 s'
    FROM generate_series(1, 10000) n;
    INSERT INTO sandbox_events (at, kind) SELECT now(), 'k' FROM generate_series(1, 5000) n";

async fn prepare(t: &Fixture, name: &str, file: &'static str) {
    t.raw.execute(&format!("PREPARE {name} AS {}", super::super::plans::statement(file, name))).await;
}

fn execute(name: &str, arguments: &str) -> String {
    let arguments = arguments.replace("$NEXT", "now() + interval '1 day', ''");
    if arguments.is_empty() { format!("EXECUTE {name}") } else { format!("EXECUTE {name} ({arguments})") }
}

async fn check(t: &Fixture, name: &str, arguments: &str, index: &str) {
    let lines = t.raw.rows(&format!("EXPLAIN {}", execute(name, arguments))).await;
    let plan = lines.into_iter().map(|mut line| line.remove(0).unwrap() + "\n").collect::<String>();
    let found = index.split('|').any(|index| plan.contains(index));
    assert!(found && !plan.contains("Seq Scan on sandboxes"), "{name} without {index}:\n{plan}");
}

/// A connection for changes keeps the plan that it made while the tables were empty.
#[tokio::test]
async fn of_changes_on_postgres() {
    let t = Fixture::new(Kind::Postgres).await;
    t.raw.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan").await;
    for (name, [_, file], arguments, _) in HOT {
        prepare(&t, name, file).await;
        t.raw.execute(&execute(name, arguments)).await;
    }
    t.raw.execute(FILL).await;
    for (name, _, arguments, index) in HOT {
        check(&t, name, arguments, index).await;
    }
}

/// A connection for reads plans for the parameters of the moment.
#[tokio::test]
async fn of_readers_on_postgres() {
    let t = Fixture::new(Kind::Postgres).await;
    t.raw.execute(FILL).await;
    t.raw.execute("ANALYZE").await;
    for (name, [_, file], arguments, index) in READS {
        prepare(&t, name, file).await;
        check(&t, name, arguments, index).await;
    }
}

#[tokio::test]
async fn on_sqlite() {
    let t = Fixture::new(Kind::Sqlite).await;
    for (name, [file, _], _, index) in HOT.into_iter().chain(READS) {
        // The second connection binds no parameters: a constant stands for each.
        let mut statement = super::super::plans::statement(file, name).to_owned();
        for parameter in (1..=9).map(|n| format!("?{n}")) {
            statement = statement.replace(&parameter, "abs(1)");
        }
        let lines = t.raw.rows(&format!("EXPLAIN QUERY PLAN {statement}")).await;
        let plan = lines.into_iter().map(|mut line| line.remove(3).unwrap() + "\n").collect::<String>();
        // SQLite has its own names for the indexes of primary keys.
        let found = match index.strip_suffix("_pkey") {
            Some(_) => plan.contains("sqlite_autoindex") || plan.contains("PRIMARY KEY"),
            None => index.split('|').any(|index| plan.contains(index)),
        };
        assert!(found, "{name} without {index}:\n{plan}");
    }
}
