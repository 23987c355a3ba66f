//! A Postgres that goes away and comes back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_testkit::{Postgres, wait_until};

use crate::survival::kit::{PATIENCE, Site};

/// Longer than a lease of the task that runs meanwhile.
const GONE: Duration = Duration::from_secs(20);

/// Callers ask for so long. Each waits for its last answer, so that Postgres stands still for up to 24 s more: 12 s until
/// a server that says nothing is given up, twice that for a request that waits behind another.
const STILL: Duration = Duration::from_secs(16);
/// 12 s for what was under way, twice as long for what waits behind it; half of it is for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(28);
const CALLERS: usize = 48;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_gone_for_twenty_seconds_loses_nothing() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let site = Site::start(Some(database.url())).await;
    let _worker = site.worker(&["--name", "w", "--concurrency", "4"]);
    let running = site.submit("sleep", json!({"payload": {"ms": 28_000}, "lease_ttl_seconds": 5})).await;
    let waiting = site.submit("echo", json!({"delay_ms": 10_000})).await;
    site.until(&running, "Running").await;

    let before = site.memory();
    postgres.kill();
    let load = under_load(&site, GONE).await;
    postgres.start_again().await;
    load.check(before, site.memory());

    is_back(&site).await;
    site.until(&waiting, "Succeeded").await;
    let task = site.until(&running, "Succeeded").await;
    assert_eq!(task["attempt"], 1, "the outage did not abort running work: {task}");
}

/// Its connections stay open and nothing comes over them: only time tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_that_stands_still_is_noticed_and_loses_nothing() {
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let site = Site::start(Some(database.url())).await;
    let _worker = site.worker(&["--name", "w", "--concurrency", "4"]);
    let running = site.submit("sleep", json!({"payload": {"ms": 35_000}, "lease_ttl_seconds": 5})).await;
    site.until(&running, "Running").await;

    let before = site.memory();
    postgres.freeze();
    let load = under_load(&site, STILL).await;
    postgres.thaw();
    load.check(before, site.memory());

    is_back(&site).await;
    let task = site.until(&running, "Succeeded").await;
    assert_eq!(task["attempt"], 1, "the outage did not abort running work: {task}");
}

async fn is_back(site: &Site) {
    let back = Instant::now();
    wait_until("the server is back", PATIENCE, async || {
        site.post("/api/v1/tasks", &json!({"queue": "q", "operator": "echo"})).await.0 == 201
    })
    .await;
    eprintln!("back {:?} after Postgres was", back.elapsed());
    assert!(back.elapsed() < Duration::from_secs(45), "it took {:?}", back.elapsed());
}

/// What callers got while there was no Postgres.
#[derive(Default)]
struct Load {
    answers: usize,
    longest: Duration,
}

impl Load {
    fn check(&self, before: u64, after: u64) {
        let grown = after.saturating_sub(before) >> 20;
        eprintln!("{} answers, the last after {:?}; memory grew by {grown} MiB", self.answers, self.longest);
        assert!(self.answers > CALLERS, "callers were answered, again and again");
        assert!(self.longest < ANSWERED_WITHIN, "{:?}", self.longest);
        assert!(grown < 64, "it grew by {grown} MiB");
    }
}

/// Many callers of everything that needs the store, for as long as it is gone. All are told so, in time.
async fn under_load(site: &Site, time: Duration) -> Load {
    let task = json!({"queue": "q", "operator": "echo", "payload": {"text": "x".repeat(10_000)}});
    let unknown = "01890000-0000-7000-8000-000000000000";
    let beat = json!({"worker_id": "w", "job_id": unknown, "lease_token": "lt_00000000000000000000000000"});
    let claim = json!({"worker_id": "w2", "streams": ["other"], "max_wait_ms": 0});
    let routes: [(&str, Option<&Value>); 6] = [
        ("/api/v1/tasks", Some(&task)),
        ("/api/v1/tasks", None),
        ("/api/v1/queues", None),
        ("/api/v1/ready", None),
        ("/internal/worker/heartbeat", Some(&beat)),
        ("/internal/worker/claim", Some(&claim)),
    ];
    let gone = Instant::now();
    let callers = (0..CALLERS).map(async |caller| {
        let (path, body) = routes[caller % routes.len()];
        let mut load = Load::default();
        while gone.elapsed() < time {
            let asked = Instant::now();
            let response = site.request(path, body).await.unwrap_or_else(|error| panic!("{path}: {error:?}"));
            load.longest = load.longest.max(asked.elapsed());
            load.answers += 1;
            // The kernel may still have sent an answer that Postgres gave before.
            if asked.duration_since(gone) > Duration::from_secs(1) {
                assert_eq!(response.status(), 503, "{path}");
                assert!(path == "/api/v1/ready" || response.headers().contains_key("retry-after"), "{path}");
            }
            let alive = Instant::now();
            assert_eq!(site.request("/api/v1/live", None).await.unwrap().status(), 200);
            assert!(alive.elapsed() < ANSWERED_WITHIN, "{:?}", alive.elapsed());
            tokio::task::yield_now().await;
        }
        load
    });
    let loads = futures_util::future::join_all(callers).await;
    let longest = loads.iter().map(|load| load.longest).max().unwrap_or_default();
    Load { answers: loads.iter().map(|load| load.answers).sum(), longest }
}
