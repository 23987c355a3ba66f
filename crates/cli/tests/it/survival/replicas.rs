//! Two servers on one Postgres, of which one dies.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_testkit::{Postgres, wait_until};

use crate::survival::kit::{PATIENCE, Site};

/// The lease of what is done for all, and the pause between two looks at it.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(4);
/// For a machine that does other things too.
const SLACK: Duration = Duration::from_secs(26);

/// All but those of transports that are not configured.
const DUTIES: usize = 10;

/// How many duties a server has.
async fn duties(site: &Site) -> usize {
    let metrics = site.text("/metrics").await;
    metrics.lines().filter(|line| line.starts_with("tenure_duty_held") && line.ends_with(" 1")).count()
}

/// The one that looks for expired leases is killed while a worker's lease is about to expire. The other one ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_takes_over_what_a_killed_one_did_for_all() {
    let database = Postgres::shared().await.database().await;
    let first = Site::start(Some(database.url())).await;
    let second = Site::beside(&first).await;
    let mut sites = [first, second];
    for round in 0..4 {
        // They change hands, for good, when the machine stands still for longer than their lease.
        let holder: usize = wait_until("one has every duty and the other none", PATIENCE, async || {
            match [duties(&sites[0]).await, duties(&sites[1]).await] {
                [DUTIES, 0] => Some(0),
                [0, DUTIES] => Some(1),
                _ => None,
            }
        })
        .await;
        sites.rotate_left(holder);
        let [holder, other] = &mut sites;
        let id = other.submit("op", json!({})).await;
        let claim = json!({"worker_id": "w", "streams": ["q"], "max_wait_ms": 5_000});
        let (status, job) = other.post("/internal/worker/claim", &claim).await;
        assert_eq!((status, &job["claimed"]), (200, &json!(true)), "{job}");
        holder.kill();
        let killed = Instant::now();
        wait_until("the lease is ended", PATIENCE, async || other.task(&id).await["state"] != "Running").await;
        let took = killed.elapsed();
        eprintln!("round {round}: an expired lease was ended {took:?} after the kill of the server that did so before");
        assert!(took < HANDED_OVER_WITHIN + SLACK, "{took:?}");
        let (_, canceled) = other.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).await;
        assert!(canceled.is_object(), "{canceled}");
        holder.start_again().await;
        sites.reverse();
    }
}
