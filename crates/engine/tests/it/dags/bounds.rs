//! What is deployed stays within bounds, and the trouble of one organisation is not that of others.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tenure_core::dag::deployment::{Refused, VersionState};
use tenure_core::task::State;
use tenure_engine::dags::{DeployError, NewVersion};
use tenure_testkit::wait_until;

use super::{ORG, Plane, chain, plane, version};
use crate::harness::{Home, SOON};
use crate::on_both_stores;

on_both_stores!(
    old_versions_go_with_their_jobs_queues_and_data,
    jobs_with_open_tasks_stay,
    the_trouble_of_one_organisation_is_not_that_of_others,
    how_far_a_rebuild_is_can_be_counted,
    a_dag_of_a_thousand_jobs_is_deployed_quickly,
);

/// The first column of the first row.
async fn number(home: &Home, query: &str) -> i64 {
    match home {
        Home::Sqlite(folder) => {
            let conn = rusqlite::Connection::open(folder.path().join("tenure.db")).unwrap();
            conn.query_row(query, [], |row| row.get(0)).unwrap()
        }
        Home::Postgres(database) => {
            let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.query_one(query, &[]).await.unwrap().get(0)
        }
    }
}

async fn execute(home: &Home, statement: &str) {
    match home {
        Home::Sqlite(folder) => {
            let conn = rusqlite::Connection::open(folder.path().join("tenure.db")).unwrap();
            conn.busy_timeout(SOON).unwrap();
            conn.execute_batch(statement).unwrap();
        }
        Home::Postgres(database) => {
            let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(statement).await.unwrap();
        }
    }
}

/// Versions without anything to rebuild, one after the other.
async fn deploy_many(plane: &Plane, numbers: std::ops::RangeInclusive<u32>) {
    for n in numbers {
        plane.deploy(&chain(n)).await;
        wait_until("the version", SOON, async || plane.state(i64::from(n)).await == VersionState::Active).await;
    }
}

async fn old_versions_go_with_their_jobs_queues_and_data(home: Home) {
    let plane = plane(&home).await;
    deploy_many(&plane, 1..=9).await;
    let jobs = "SELECT count(*) FROM dag_jobs";
    // The source is the same in all of them.
    assert_eq!(number(&home, jobs).await, 1 + 9 * 2);
    wait_until("what is left", SOON, async || {
        plane.dags.reconcile().await.unwrap();
        number(&home, jobs).await <= 1 + 5 * 2
    })
    .await;
    let (queues, generations) = ("SELECT count(*) FROM queues", "SELECT count(*) FROM dataset_generations");
    assert_eq!(number(&home, queues).await, number(&home, jobs).await);
    // One output of the source, and one of each `decode`.
    assert_eq!(number(&home, generations).await, 1 + (number(&home, jobs).await - 1) / 2);
    let view = plane.dags.view(ORG).await.unwrap();
    assert_eq!(view.deployment.dags["chain"].versions.len(), 9, "numbers and YAML stay");
    assert_eq!(number(&home, "SELECT count(*) FROM dag_versions").await, 9);
    assert_eq!(plane.dags.cut_over(ORG, "chain", 2).await, Err(DeployError::Refused(Refused::Retired)));
    // The versions that are left work: the one before, and an old one that is deployed again.
    plane.run_all("r-1", "1-5", 1).await;
    assert_eq!(plane.dags.roll_back(ORG, "chain").await.unwrap().switch.active, Some(8));
    let again = plane.dags.deploy(version(&chain(2))).await.unwrap();
    assert_eq!((again.planned.number, again.planned.is_new), (2, false));
    plane.stop().await;
}

async fn jobs_with_open_tasks_stay(home: Home) {
    let plane = plane(&home).await;
    deploy_many(&plane, 1..=1).await;
    let import = plane.fire("r-1").await;
    plane.run(import, "1-5").await;
    let decode = plane.nth("decode", 1).await;
    let running = plane.claim(decode).await.unwrap();
    let old = plane.dags.view(ORG).await.unwrap().deployment.active("chain").unwrap().jobs["decode"];
    // What follows from `import` is rebuilt for each version; nobody does it, so each is replaced by the next.
    for n in 2..=8 {
        plane.deploy(&chain(n)).await;
    }
    for _ in 0..3 {
        plane.dags.reconcile().await.unwrap();
    }
    plane.complete(&running, "1-5").await.unwrap();
    let view = plane.dags.view(ORG).await.unwrap();
    assert!(view.deployment.jobs.contains_key(&old), "its version is active");
    assert!(view.deployment.jobs.len() <= 1 + 2 * 4, "{}", view.deployment.jobs.len());
    let open = plane.count("decode", State::Ready).await + plane.count("decode", State::Scheduled).await;
    assert!(open <= 1, "tasks of abandoned versions are canceled: {open}");
    plane.stop().await;
}

async fn the_trouble_of_one_organisation_is_not_that_of_others(home: Home) {
    let plane = plane(&home).await;
    let yaml = chain(0);
    plane.dags.deploy(NewVersion { org: "broken", ..version(&yaml) }).await.unwrap();
    plane.deploy(&yaml).await;
    let theirs = plane.dags.trigger("broken", "chain", "import", &"r-1".into(), None).await.unwrap().task;
    let grant = plane.claim(theirs).await.unwrap();
    plane.stop().await;
    // Their job cannot be read any more; their event comes first.
    execute(&home, "UPDATE dag_jobs SET definition = 'x' WHERE org = 'broken' AND name = 'decode'").await;
    let plane = self::plane(&home).await;
    plane.complete_as("broken", &grant, "1-5").await.unwrap();
    let import = plane.fire("r-1").await;
    plane.run(import, "6-9").await;
    let decode = plane.nth("decode", 1).await;
    assert_eq!(&*plane.engine.task(decode, &tenure_core::command::Reach::All).await.unwrap().unwrap().body.tenant, ORG);
    plane.dags.reconcile().await.unwrap();
    plane.stop().await;
}

async fn how_far_a_rebuild_is_can_be_counted(home: Home) {
    let plane = plane(&home).await;
    plane.deploy(&chain(0)).await;
    for (n, key) in ["1-5", "6-9"].into_iter().enumerate() {
        plane.run_all(&format!("r-{n}"), key, n + 1).await;
    }
    plane.deploy(&chain(1)).await;
    let counts = async || {
        let counts = plane.dags.rebuild_counts(ORG, "chain", 2).await.unwrap();
        (counts.total, counts.succeeded, counts.failed)
    };
    wait_until("what is to be rebuilt", SOON, async || counts().await == (2, 0, 0)).await;
    for (n, key) in ["6-9", "1-5"].into_iter().enumerate() {
        let task = plane.tasks("decode").await[n].body.id;
        plane.run(task, key).await;
        wait_until("what follows", SOON, async || counts().await == (3 + n as u64, 1 + n as u64, 0)).await;
    }
    assert_eq!(plane.state(2).await, VersionState::Staging);
    for task in plane.tasks("count").await.iter().take(2) {
        plane.run(task.body.id, "1-5").await;
    }
    wait_until("the version", SOON, async || plane.state(2).await == VersionState::Active).await;
    assert_eq!(counts().await, (4, 4, 0));
    assert_eq!(plane.dags.rebuild_counts(ORG, "chain", 1).await.unwrap().total, 0);
    plane.stop().await;
}

/// A chain, in the order that is worst for whoever looks for what comes first; every output has a name.
fn thousand(config: u32) -> String {
    let mut yaml = "name: large\njobs:\n".to_owned();
    for n in (1..1_000).rev() {
        let job =
            "execution_strategy: PerPartition, update_strategy: replace, runtime: worker, operator: step, outputs: 1";
        writeln!(
            yaml,
            "  - {{ name: j{n}, activation: reactive, {job}, config: {{ n: {config} }}, inputs: [{{ from: {{ job: j{}, output: 0 }} }}] }}",
            n - 1
        )
        .unwrap();
    }
    yaml.push_str("  - { name: j0, activation: source, runtime: worker, operator: first, outputs: 1, source: { kind: manual } }\npublish:\n");
    for n in 0..1_000 {
        writeln!(yaml, "  d{n}: {{ from: {{ job: j{n}, output: 0 }} }}").unwrap();
    }
    yaml
}

/// Below a second in a release build; a build without optimisation takes several times as long.
async fn a_dag_of_a_thousand_jobs_is_deployed_quickly(home: Home) {
    let plane = plane(&home).await;
    for n in 0..3 {
        let yaml = thousand(n);
        let started = Instant::now();
        plane.deploy(&yaml).await;
        let took = started.elapsed();
        // Measured without optimisation on a busy machine: 1.0 to 1.9 s.
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    plane.stop().await;
}
