//! The sink of a buffered dataset, through many sudden ends of its process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::OpenFlags;
use tenure_core::dag::{DatasetId, Schema};
use tenure_data::{Access, DataStore, Table};
use tenure_engine::buffers::{Buffers, Upload};
use tenure_engine::dags::{DagSettings, NewVersion};
use tenure_engine::store::Clock;
use tenure_engine::{Engine, EngineConfig};
use tenure_objects::{Objects, Place, Settings};
use tenure_testkit::wait_until;
use tokio::runtime::Runtime;

use crate::harness::{Home, SOON};

const ORG: &str = "default";
const KILLS: usize = 20;
const BATCHES: usize = 4;
const ROWS: usize = 25;
const YAML: &str = "name: d
jobs:
  - { name: a, activation: source, runtime: worker, operator: a, outputs: 1, source: { kind: manual } }
publish:
  t:
    from: { job: a, output: 0 }
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{ name: org_id, type: uuid, nullable: false }, { name: key, type: text, nullable: false }]
      unique: [org_id, key]
";

/// A control plane until its runtime is dropped, which is as sudden as a crash.
async fn plane(url: &str, clock: &Arc<Clock>, data: &Arc<dyn DataStore>) -> (Engine, Buffers, Table) {
    let config = EngineConfig { clock: Arc::clone(clock), ..EngineConfig::default() };
    let engine = Engine::open_with(url, config).await.unwrap();
    let dags = engine.dags(DagSettings::default());
    dags.deploy(NewVersion { org: ORG, yaml: YAML, manual: false, dry_run: false }).await.unwrap();
    let view = dags.view(ORG).await.unwrap();
    let id: DatasetId = view.deployment.dataset_named("t").unwrap();
    let schema: Schema =
        serde_json::from_str(view.deployment.active("d").unwrap().published["t"].schema.as_ref().unwrap()).unwrap();
    let buffers = dags.buffers(Arc::clone(data), None);
    (engine, buffers, Table::new(id, Arc::new(schema)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_uploaded_for_a_dead_letter_goes_with_it() {
    let (folder, home) = (tempfile::tempdir().unwrap(), Home::sqlite());
    let place = Place::Folder { path: folder.path().join("objects"), allow_file: true };
    let objects: Arc<Objects> = Arc::new(Settings::new(place).open().unwrap());
    let data: Arc<dyn DataStore> = Arc::new(tenure_data::Sqlite::new(folder.path().join("data.db")));
    let clock = Arc::new(Clock::default());
    let config = EngineConfig { clock: Arc::clone(&clock), ..EngineConfig::default() };
    let engine = Engine::open_with(&home.url(), config).await.unwrap();
    let dags = engine.dags(DagSettings::default());
    let yaml = YAML.replace("    schema:", "    buffer: { max_receives: 1 }\n    schema:");
    dags.deploy(NewVersion { org: ORG, yaml: &yaml, manual: false, dry_run: false }).await.unwrap();
    let buffers = dags.buffers(data, Some(Arc::clone(&objects)));
    // Lines are uploaded whatever their size. One of these has no key.
    for lines in ["{\"key\":\"a\"}\n", "{}\n"] {
        buffers.publish(&ORG.into(), "t", Upload::Lines(lines.into()), None, None).await.unwrap();
    }
    let uploads = || walk(&folder.path().join("objects"));
    wait_until("one is written and one is dead", SOON, async || {
        let dead = buffers.dead(&ORG.into(), "t", 0, 9).await.unwrap();
        dead.items.len() == 1 && uploads() == 1
    })
    .await;
    buffers.prune().await.unwrap();
    assert_eq!(uploads(), 1, "it can be replayed");
    clock.advance(31 * 24 * 3_600_000);
    buffers.prune().await.unwrap();
    // The sink removes old batches too, and may be the one that has found it.
    wait_until("both are gone", SOON, async || {
        uploads() == 0 && buffers.dead(&ORG.into(), "t", 0, 9).await.unwrap().items.is_empty()
    })
    .await;
}

/// How many files are below a folder.
fn walk(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap);
    entries.map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { 1 }).sum()
}

/// Keys of the rows behind a cursor, and where they end.
async fn behind(data: &Arc<dyn DataStore>, table: &Table, after: i64) -> (Vec<String>, i64) {
    let reading = data.reading(table).await.unwrap();
    let upto = reading.upto.unwrap_or(0);
    let keys = match &reading.access {
        Access::Sqlite { path } => {
            let file = rusqlite::Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
            let sql = format!("SELECT key FROM \"{}\" WHERE _seq > ?1 AND _seq <= ?2", reading.table);
            let mut statement = file.prepare(&sql).unwrap();
            statement.query_map([after, upto], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        }
        Access::Postgres { url, schema, .. } => {
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let sql = format!("SELECT key FROM {schema}.\"{}\" WHERE _seq > $1 AND _seq <= $2", reading.table);
            client.query(&sql, &[&after, &upto]).await.unwrap().iter().map(|row| row.get(0)).collect()
        }
    };
    (keys, upto)
}

fn key(n: usize) -> String {
    format!("k{n:06}")
}

fn records(from: usize) -> Arc<str> {
    let rows: Vec<String> = (from..from + ROWS).map(|n| format!("{{\"key\":\"{}\"}}", key(n))).collect();
    format!("[{}]", rows.join(",")).into()
}

/// `new` makes a handle to the data store that lives as long as one process.
fn through_kills(home: &Home, new: impl Fn() -> Arc<dyn DataStore>) {
    let (clock, url) = (Arc::new(Clock::default()), home.url());
    let (mut seen, mut cursor, mut sent) = (Vec::new(), 0, BTreeSet::new());
    for kill in 0..=KILLS {
        // Duties and batches of the process before are free.
        clock.advance(200_000);
        let runtime = Runtime::new().unwrap();
        let data = new();
        runtime.block_on(async {
            let (_engine, buffers, table) = plane(&url, &clock, &data).await;
            data.ensure(&table).await.unwrap();
            for batch in 0..BATCHES {
                // Every other batch has rows of the one before.
                let from = (kill * BATCHES + batch) * ROWS - if batch % 2 == 1 { ROWS / 2 } else { 0 };
                sent.extend((from..from + ROWS).map(key));
                buffers.publish(&ORG.into(), "t", Upload::Records(records(from)), None, None).await.unwrap();
            }
            let wanted = if kill == KILLS { sent.len() } else { seen.len() + kill % 3 * ROWS };
            wait_until("rows are written", SOON, async || {
                let (keys, upto) = behind(&data, &table, cursor).await;
                seen.extend(keys);
                cursor = upto;
                seen.len() >= wanted
            })
            .await;
        });
        runtime.shutdown_timeout(Duration::ZERO);
    }
    seen.sort_unstable();
    assert_eq!(seen, sent.into_iter().collect::<Vec<_>>(), "each row once");
}

#[test]
fn a_reader_misses_nothing_in_sqlite_however_often_the_sink_ends() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let home = runtime.block_on(Home::postgres());
    through_kills(&home, || Arc::new(tenure_data::Sqlite::new(folder.path().join("data.db"))));
}

#[test]
fn a_reader_misses_nothing_in_postgres_however_often_the_sink_ends() {
    let runtime = Runtime::new().unwrap();
    let home = runtime.block_on(Home::postgres());
    through_kills(&home, || Arc::new(tenure_data::Postgres::new(&home.url(), None).unwrap()));
}
