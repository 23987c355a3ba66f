//! The sink of a buffered dataset, through many kills of its process.

use std::collections::{BTreeSet, VecDeque};
use std::process::Command;
use std::sync::Arc;

use rusqlite::OpenFlags;
use tenure_core::dag::{DatasetId, Schema};
use tenure_data::{Access, DataStore, Table};
use tenure_engine::buffers::{Buffers, Upload};
use tenure_engine::dags::{DagSettings, NewVersion};
use tenure_engine::store::Clock;
use tenure_engine::{Engine, EngineConfig};
use tenure_objects::{Objects, Place, Settings};
use tenure_testkit::{Child, wait_until, wait_until_blocking};
use tokio::runtime::Runtime;

use crate::harness::{Home, SOON};

const ORG: &str = "default";
/// Of each test: together more than a hundred.
const KILLS: usize = 50;
const BATCHES: usize = 3;
const ROWS: usize = 20;
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

/// A control plane on a store.
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

/// Tells a process that it is a sink: where tasks are, where rows are, how far its clock is ahead, its first row.
const ROLE: &str = "TENURE_TEST_SINK";

/// A control plane in a process of its own, which publishes, writes, and is killed. As a test it does nothing.
#[test]
#[allow(clippy::print_stdout, reason = "the process that has started it reads what it prints")]
fn a_sink_that_is_killed() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [url, data, ahead, first] = role.split('\t').collect::<Vec<_>>().try_into().unwrap();
    let data: Arc<dyn DataStore> = match data.strip_prefix("sqlite:") {
        Some(path) => Arc::new(tenure_data::Sqlite::new(path.into())),
        None => Arc::new(tenure_data::Postgres::new(data, None).unwrap()),
    };
    let clock = Arc::new(Clock::default());
    clock.advance(ahead.parse().unwrap());
    let first: usize = first.parse().unwrap();
    Runtime::new().unwrap().block_on(async {
        let (_engine, buffers, _) = plane(url, &clock, &data).await;
        for batch in 0..BATCHES {
            // Every other batch has rows of the one before.
            let from = first + batch * ROWS - if batch % 2 == 1 { ROWS / 2 } else { 0 };
            buffers.publish(&ORG.into(), "t", Upload::Records(records(from)), None, None).await.unwrap();
            println!("\nsent {from}");
        }
        std::future::pending::<()>().await;
    });
}

struct Sink {
    process: Child,
    /// Rows of batches that were accepted, as it says.
    sent: BTreeSet<String>,
}

impl Sink {
    fn start(url: &str, data: &str, number: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "buffers::a_sink_that_is_killed", "--nocapture"]);
        // Duties and batches of those before are free, also while they live.
        command.env(ROLE, format!("{url}\t{data}\t{}\t{}", number * 200_000, number * BATCHES * ROWS));
        Self { process: Child::spawn(command), sent: BTreeSet::new() }
    }

    /// How many batches were accepted until now.
    fn look(&mut self) -> usize {
        let output = self.process.output();
        assert!(output.status.is_none(), "it ended by itself: {output:?}");
        let starts: Vec<usize> =
            output.stdout.lines().filter_map(|line| line.strip_prefix("sent ")?.parse().ok()).collect();
        self.sent.extend(starts.iter().flat_map(|from| (*from..from + ROWS).map(key)));
        starts.len()
    }
}

/// A reader follows its cursor while sinks are killed. `beside` live on while another one starts, which believes that they
/// are gone.
fn through_kills(url: &str, data_url: &str, data: Arc<dyn DataStore>, beside: usize) {
    let runtime = Runtime::new().unwrap();
    let table = runtime.block_on(async {
        let (engine, _, table) = plane(url, &Arc::default(), &data).await;
        data.ensure(&table).await.unwrap();
        engine.shutdown().await;
        table
    });
    let (mut seen, mut cursor, mut sent) = (Vec::new(), 0, BTreeSet::new());
    let mut read = || {
        let (keys, upto) = runtime.block_on(behind(&data, &table, cursor));
        seen.extend(keys);
        cursor = upto;
        seen.len()
    };
    let mut living: VecDeque<Sink> = VecDeque::new();
    let mut kill = |mut sink: Sink| {
        sink.look();
        sink.process.kill();
        sent.append(&mut sink.sent);
    };
    for number in 0..=KILLS {
        while living.len() > beside {
            living.pop_front().into_iter().for_each(&mut kill);
        }
        let mut sink = Sink::start(url, data_url, number);
        wait_until_blocking("batches are accepted", SOON, || {
            read();
            sink.look() > number % BATCHES
        });
        living.push_back(sink);
    }
    let mut last = living.pop_back().unwrap();
    living.into_iter().for_each(kill);
    wait_until_blocking("the last one has sent all", SOON, || last.look() == BATCHES);
    sent.append(&mut last.sent);
    wait_until_blocking("all rows are written", SOON, || read() >= sent.len());
    let once: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "a row was read twice");
    let missed: Vec<&String> = sent.difference(&once).collect();
    assert!(missed.is_empty(), "accepted and not read: {missed:?}");
}

#[test]
fn a_reader_misses_nothing_in_sqlite_however_often_the_sink_is_killed() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let home = runtime.block_on(Home::postgres());
    let path = folder.path().join("data.db");
    let data = Arc::new(tenure_data::Sqlite::new(path.clone()));
    // One process writes to a file.
    through_kills(&home.url(), &format!("sqlite:{}", path.display()), data, 0);
}

#[test]
fn a_reader_misses_nothing_in_postgres_however_often_concurrent_sinks_are_killed() {
    let runtime = Runtime::new().unwrap();
    let home = runtime.block_on(Home::postgres());
    let data = Arc::new(tenure_data::Postgres::new(&home.url(), None).unwrap());
    through_kills(&home.url(), &home.url(), data, 2);
}
