//! A primary that goes away, and its standby that takes over.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_testkit::{Database, Postgres, PrivatePostgres, wait_until};

use crate::survival::kit::{PATIENCE, Site};

/// How many submits are acknowledged before the failover, and after it.
const SUBMITS: usize = 60;

struct Pair {
    primary: PrivatePostgres,
    standby: PrivatePostgres,
    database: Database,
}

impl Pair {
    /// Commits wait for the standby: otherwise what was acknowledged last would not be there.
    async fn start() -> Self {
        let primary = Postgres::start().await;
        let database = primary.database().await;
        let standby = primary.standby().await;
        primary.wait_for_standby().await;
        Self { primary, standby, database }
    }

    fn url(&self) -> String {
        let (first, second, name) = (self.primary.port(), self.standby.port(), self.database.name());
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{name}?target_session_attrs=read-write")
    }
}

/// Submits until `count` were acknowledged. Gives their ids, and how long the longest time without one was.
async fn submit(site: &Site, count: usize) -> (Vec<String>, Duration) {
    let (mut ids, mut longest, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
    while ids.len() < count {
        let task = json!({"queue": "q", "operator": "echo", "lease_ttl_seconds": 30});
        let (status, answer) = site.post("/api/v1/tasks", &task).await;
        match status {
            201 => ids.push(answer["task_id"].as_str().unwrap().to_owned()),
            503 => {
                assert!(last.elapsed() < PATIENCE, "nothing was taken for {PATIENCE:?}");
                continue;
            }
            _ => panic!("{status} {answer}"),
        }
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    (ids, longest)
}

async fn survives(pair: &Pair, fail_over: impl AsyncFnOnce(&Pair)) -> Site {
    let site = Site::start(Some(&pair.url())).await;
    let _worker = site.worker(&["--name", "w", "--concurrency", "8"]);
    let running = site.submit("sleep", json!({"payload": {"ms": 3_000}, "lease_ttl_seconds": 15})).await;
    site.until(&running, "Running").await;
    let (mut ids, _) = submit(&site, SUBMITS).await;
    let ((more, longest), ()) = tokio::join!(submit(&site, 2 * SUBMITS), fail_over(pair));
    ids.extend(more);
    ids.extend(submit(&site, SUBMITS).await.0);
    eprintln!("{} submits were acknowledged, with a pause of {longest:?}", ids.len());
    for id in &ids {
        site.until(id, "Succeeded").await;
    }
    assert_eq!(site.until(&running, "Succeeded").await["attempt"], 1, "running work was not aborted");
    site
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_loses_nothing_that_was_acknowledged() {
    let pair = Pair::start().await;
    survives(&pair, async |pair| {
        pair.primary.kill();
        pair.standby.promote().await;
    })
    .await;
}

/// Its connections stay and take reads, which is of no use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_only_reads_any_more_is_left_for_its_successor() {
    let pair = Pair::start().await;
    let _site = survives(&pair, async |pair| {
        pair.primary.demote().await;
        pair.standby.promote().await;
    })
    .await;
    // A commit that waits there for a standby that is none any more does not know that nobody waits for it.
    let of_tenure = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name LIKE 'tenure%' AND wait_event IS DISTINCT FROM 'SyncRep'";
    wait_until("nobody is left behind", PATIENCE, async || pair.primary.ask(of_tenure).await == "0").await;
}
