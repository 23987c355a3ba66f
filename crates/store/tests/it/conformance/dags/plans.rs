//! Statements about datasets use the indexes made for them.

use crate::common::{Fixture, Kind};
use crate::conformance::plans::statement;

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
    EVENTS: "dataset_events.sql",
    INVALIDATIONS: "data_invalidations.sql",
    GENERATIONS: "dataset_generations.sql",
    PARTITIONS: "dataset_partitions.sql",
    CURSORS: "edge_cursors.sql",
}

const V: &str = "'00000000-0000-0000-0000-000000000001'";

/// Statements of batches: name, files, arguments, and the indexes that find the rows, all of them.
const HOT: [(&str, [&str; 2], &str, &[&str]); 7] = [
    ("generations_lock", GENERATIONS, "'{V}'", &["dataset_generations_pkey"]),
    ("generations_advance", GENERATIONS, "'{V}', '{7}'", &["dataset_generations_pkey"]),
    (
        "data_events_insert",
        EVENTS,
        "'{o}', '{V}', '{V}', '{x}', '{7}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', now()",
        &["dataset_partitions_pkey", "dataset_generations_pkey"],
    ),
    (
        "partitions_commit",
        PARTITIONS,
        "'{V}', '{k}', '{1}', '{2}', '{l}', '{1}', '{1}', '{h}', '{m}', '{NULL}', '{NULL}', '{NULL}', '{7}', '{V}', '{k}', '{0}',
         now()",
        &["dataset_generations_pkey", "edge_partitions_pkey"],
    ),
    ("data_events_routed", EVENTS, "'o', '{7,8}', '{NULL,NULL}', now()", &["dataset_events_"]),
    ("invalidation_bump_partitions", INVALIDATIONS, "V", &["data_invalidations_pkey", "dataset_partitions_pkey"]),
    ("invalidation_settle", INVALIDATIONS, "V", &["data_invalidations_pkey", "dataset_partitions_pkey"]),
];

/// Statements of readers.
const READS: [(&str, [&str; 2], &str, &[&str]); 6] = [
    ("data_events_unrouted", EVENTS, "'{}', 0, 100", &["dataset_events_unrouted"]),
    (
        "data_events_recorded",
        EVENTS,
        "'{V}', '{partition:p7}', '{p7}'",
        &["dataset_events_by_position", "dataset_partitions_pkey", "dataset_generations_pkey"],
    ),
    ("partitions_list", PARTITIONS, "V, 'p7', 100", &["dataset_partitions_pkey"]),
    ("partitions_unread", PARTITIONS, "7, V, 'p7', 100", &["dataset_partitions_pkey", "edge_partitions_pkey"]),
    ("invalidations_open", INVALIDATIONS, "'{}', 100", &["data_invalidations_open"]),
    ("edge_cursors_of_jobs", CURSORS, "'{7}'", &["edge_cursors_pkey"]),
];

/// Few events are left to be routed; most partitions were read.
const FILL: &str = "
    INSERT INTO dataset_generations (version_id, dataset_id, org, created_at)
    SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, gen_random_uuid(), 'o', now()
    FROM generate_series(1, 2000) n;
    INSERT INTO dataset_events (org, dataset_id, version_id, position, generation, partition_key, recorded_at, routed_at)
    SELECT 'o', gen_random_uuid(), ('00000000-0000-0000-0000-' || lpad((n % 20)::text, 12, '0'))::uuid,
        'partition:p' || n, 0, 'p' || n, now(), CASE WHEN n % 100 = 0 THEN NULL ELSE now() END
    FROM generate_series(1, 20000) n;
    INSERT INTO dataset_partitions (version_id, key, generation, location, materialized_at)
    SELECT ('00000000-0000-0000-0000-' || lpad((n % 20)::text, 12, '0'))::uuid, 'p' || n, 0, 'l', now()
    FROM generate_series(1, 20000) n;
    INSERT INTO edge_partitions (job_id, version_id, key, generation)
    SELECT n % 10, ('00000000-0000-0000-0000-' || lpad((n % 20)::text, 12, '0'))::uuid, 'p' || n, 0
    FROM generate_series(1, 20000) n;
    INSERT INTO edge_cursors (job_id, version_id, value)
    SELECT n, gen_random_uuid(), 7 FROM generate_series(1, 5000) n;
    INSERT INTO data_invalidations (invalidation_id, org, dataset_id, version_id, row_filter, reason, created_at, dependents)
    SELECT gen_random_uuid(), 'o', gen_random_uuid(), gen_random_uuid(), '{}', 'r', now(),
        CASE WHEN n % 100 = 0 THEN NULL ELSE 1 END
    FROM generate_series(1, 5000) n;
    INSERT INTO invalidation_dependents (invalidation_id, job_id)
    SELECT invalidation_id, 7 FROM data_invalidations";

fn execute(name: &str, arguments: &str) -> String {
    let arguments = arguments.replace("'{V}'", &format!("ARRAY[{V}::uuid]")).replace('V', V);
    format!("EXECUTE {name} ({arguments})")
}

async fn prepare(t: &Fixture, name: &str, file: &'static str) {
    t.raw.execute(&format!("PREPARE {name} AS {}", statement(file, name))).await;
}

async fn check(t: &Fixture, name: &str, arguments: &str, indexes: &[&str]) {
    let lines = t.raw.rows(&format!("EXPLAIN {}", execute(name, arguments))).await;
    let plan = lines.into_iter().map(|mut line| line.remove(0).unwrap() + "\n").collect::<String>();
    let found = indexes.iter().all(|index| plan.contains(index));
    assert!(found && !plan.contains("Seq Scan"), "{name} without {indexes:?}:\n{plan}");
}

/// A connection for batches keeps the plan that it made while the tables were empty.
#[tokio::test]
async fn of_batches_on_postgres() {
    let t = Fixture::new(Kind::Postgres).await;
    t.raw.execute("SET enable_seqscan = off").await;
    t.raw.execute("SET plan_cache_mode = force_generic_plan").await;
    for (name, [_, file], arguments, _) in HOT {
        prepare(&t, name, file).await;
        t.raw.execute(&execute(name, arguments)).await;
    }
    t.raw.execute("TRUNCATE dataset_events, dataset_partitions, dataset_generations").await;
    t.raw.execute(FILL).await;
    for (name, _, arguments, indexes) in HOT {
        check(&t, name, arguments, indexes).await;
    }
}

/// A connection for reads plans for the parameters of the moment.
#[tokio::test]
async fn of_readers_on_postgres() {
    let t = Fixture::new(Kind::Postgres).await;
    t.raw.execute(FILL).await;
    t.raw.execute("ANALYZE").await;
    for (name, [_, file], arguments, indexes) in READS {
        prepare(&t, name, file).await;
        check(&t, name, arguments, indexes).await;
    }
}

#[tokio::test]
async fn on_sqlite() {
    let t = Fixture::new(Kind::Sqlite).await;
    // One transaction writes at a time: nothing is locked.
    let all = HOT.into_iter().chain(READS).filter(|(name, ..)| *name != "generations_lock");
    for (name, [file, _], _, indexes) in all {
        // The second connection binds no parameters: a constant stands for each.
        let mut statement = statement(file, name).to_owned();
        for parameter in (1..=17).rev().map(|n| format!("?{n}")) {
            statement = statement.replace(&parameter, "abs(1)");
        }
        let lines = t.raw.rows(&format!("EXPLAIN QUERY PLAN {statement}")).await;
        let plan = lines.into_iter().map(|mut line| line.remove(3).unwrap() + "\n").collect::<String>();
        assert!(!plan.contains("SCAN p\n") && !plan.contains("SCAN g\n"), "{name}:\n{plan}");
        for index in indexes.iter().filter(|index| !index.ends_with('_')) {
            // SQLite has its own names for the indexes of primary keys.
            let found = match index.strip_suffix("_pkey") {
                Some(_) => plan.contains("PRIMARY KEY") || plan.contains("sqlite_autoindex"),
                None => plan.contains(index),
            };
            assert!(found, "{name} without {index}:\n{plan}");
        }
    }
}
