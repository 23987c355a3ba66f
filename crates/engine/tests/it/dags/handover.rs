//! Two control planes that route for a moment at the same time, as when the duty to route changes hands.

use tenure_engine::store::Hold;

use super::*;

/// A version is ready when all its rebuild tasks have succeeded. The last one that was counted may have made events, and
/// another control plane may route them after the count and before the look for events.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_another_router_makes_after_the_count_are_waited_for() {
    let home = Home::postgres().await;
    let first = plane(&home).await;
    first.deploy(&chain(0)).await;
    first.run_all("r-1", "1-5", 1).await;
    first.deploy(&chain(1)).await;
    let decode = first.nth("decode", 2).await;
    let grant = first.claim(decode).await.unwrap();
    let hold = |step| first.engine.store().faults().hold_after(step);
    let stops = async |hold: &Hold| wait_until("the router stops", SOON, async || hold.is_reached()).await;
    // The first has looked for events when the last task that there is reports, and counts it as done.
    let looked = hold("find invalidations");
    stops(&looked).await;
    first.complete(&grant, "1-5").await.unwrap();
    let counted = hold("count tasks");
    looked.release();
    stops(&counted).await;
    // The second routes the event of the report. There is nothing left to route then, and one more task to wait for.
    let second = plane(&home).await;
    second.dags.route_all().await.unwrap();
    let count = second.nth("count", 2).await;
    counted.release();
    second.run(count, "1-5").await;
    let version = async || second.dags.view(ORG).await.unwrap().deployment.version("chain", 2).unwrap().clone();
    wait_until("the version", SOON, async || version().await.state == VersionState::Active).await;
    assert_eq!(version().await.rebuilt, 2, "it has waited for the task of `count`");
    first.stop().await;
    second.stop().await;
}
