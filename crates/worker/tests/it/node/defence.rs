use std::time::Duration;

use serde_json::json;
use tenure_sandbox::{Deadlines, RuntimeState};
use tenure_worker::node::NodeError;

use super::peer::Renewal;
use super::*;

const SHORT: Duration = Duration::from_millis(50);

async fn is_frozen(node: &Node) -> bool {
    node.find(&target("sb-1")).await.is_ok_and(|held| held.frozen)
}

#[tokio::test]
async fn leases_are_renewed_again_and_again_and_raise_the_fence() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    until("it was renewed three times", || peer.renewals_of("sb-1") >= 3).await;
    assert_eq!(peer.with(|script| script.renewals[0].1.clone()), json!({"ttl": "1h0m0s"}));
    until("the fence is raised", || running.node.holdings().check_lease(&lease("sb-1", 3), "sb-1").is_err()).await;
    running.stop().await;
    let again = node(folder.path(), Arc::clone(&fake) as _, None, settings());
    assert!(again.holdings().check_lease(&lease("sb-1", 3), "sb-1").is_err(), "also after a restart");
}

#[tokio::test]
async fn a_lease_that_is_shorter_than_asked_for_is_renewed_in_time() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    peer.with(|script| script.lease = Some(Duration::from_secs(4)));
    let own = NodeSettings { renewal_interval: HOUR, ..settings() };
    let running = with_sandbox(folder.path(), &fake, &peer, own).await;
    until("it was renewed three times", || peer.renewals_of("sb-1") >= 3).await;
    assert!(!is_frozen(&running.node).await);
    running.stop().await;
}

#[tokio::test]
async fn renewals_begin_before_the_providers_work() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    fake.with(|inside| inside.hold_spawns = true);
    let spawn = tokio::spawn({
        let node = Arc::clone(&running.node);
        async move { node.spawn(lease("sb-2", 1), order("sb-2")).await }
    });
    until("the lease of a sandbox in creation is renewed", || peer.renewals_of("sb-2") >= 1).await;
    fake.let_go.notify_one();
    spawn.await.unwrap().unwrap();
    running.stop().await;
}

#[tokio::test]
async fn the_deadlines_are_the_sandboxs_own_too() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let seconds = Duration::from_secs;
    let own = NodeSettings { lease_ttl: seconds(600), lease_grace: seconds(60), ttl_grace: seconds(300), ..settings() };
    let running = with_sandbox(folder.path(), &fake, &peer, own).await;
    peer.with(|script| script.lease = Some(Duration::from_secs(600)));
    let near = |found: Option<Duration>, wanted: u64| {
        found.is_some_and(|found| found.as_secs() + 30 > wanted && found.as_secs() <= wanted)
    };
    until("a renewal sets them", || {
        let deadlines = fake.with(|inside| inside.deadlines.get("rt-1").copied().unwrap_or_default());
        near(deadlines.freeze_after, 600) && near(deadlines.destroy_after, 660)
    })
    .await;
    // The time to live of the sandbox ends before its lease does.
    peer.with(|script| script.sandbox_expires_at = Some(Timestamp::now()));
    until("it is destroyed after the grace of that", || {
        near(fake.with(|inside| inside.deadlines["rt-1"]).destroy_after, 300)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_lapsed_lease_freezes_and_a_renewal_thaws() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, NodeSettings { lease_ttl: SHORT, ..settings() }).await;
    until("it was renewed", || peer.renewals_of("sb-1") >= 1).await;
    peer.with(|script| script.renewal = Renewal::Fail);
    until("it is frozen", || fake.state_of("rt-1") == Some(RuntimeState::Frozen)).await;
    assert!(is_frozen(&running.node).await);
    let held = running.node.find(&target("sb-1")).await.unwrap();
    assert!(matches!(held.check_not_frozen(), Err(NodeError::Frozen(_))));
    until("the control plane hears of it", || peer.last_beat()["inventory"][0]["state"] == "unhealthy").await;
    // It comes back, acquires the lease again and says so.
    peer.with(|script| {
        script.renewal = Renewal::Grant;
        script.generations.insert("sb-1".to_owned(), 10_000);
    });
    running.node.renew(&lease("sb-1", 10_000), HOUR).await.unwrap();
    until("it is thawed", || fake.state_of("rt-1") == Some(RuntimeState::Running)).await;
    running.stop().await;
}

#[tokio::test]
async fn a_renewal_without_an_answer_delays_no_freeze() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let own = NodeSettings { lease_ttl: SHORT, call_timeout: Duration::from_secs(600), ..settings() };
    let running = with_sandbox(folder.path(), &fake, &peer, own).await;
    until("it was renewed", || peer.renewals_of("sb-1") >= 1).await;
    peer.with(|script| script.renewal = Renewal::Hang);
    until("it is frozen", || fake.state_of("rt-1") == Some(RuntimeState::Frozen)).await;
    running.task.abort();
}

#[tokio::test]
async fn a_lapsed_lease_destroys_after_the_grace() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let own = NodeSettings { lease_ttl: SHORT, lease_grace: Duration::from_millis(200), ..settings() };
    let running = with_sandbox(folder.path(), &fake, &peer, own).await;
    until("it was renewed", || peer.renewals_of("sb-1") >= 1).await;
    peer.with(|script| script.renewal = Renewal::Fail);
    until("it is destroyed", || fake.ids().is_empty()).await;
    assert!(matches!(running.node.find(&target("sb-1")).await, Err(NodeError::Destroyed(_))));
    running.stop().await;
}

#[tokio::test]
async fn a_lease_that_went_to_others_destroys_at_once() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    // Also if the provider fails at first.
    fake.with(|inside| inside.failing_destroys = 3);
    peer.with(|script| script.renewal = Renewal::Refuse(Some("lease_stale")));
    until("it is destroyed", || fake.ids().is_empty()).await;
    assert_eq!(fake.with(|inside| inside.destroyed.clone()), ["rt-1"]);
    running.stop().await;
}

#[tokio::test]
async fn a_conflict_without_a_reason_or_a_late_one_destroys_nothing() {
    for reason in [None, Some("lease_expired"), Some("something_new")] {
        let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
        let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
        peer.with(|script| script.renewal = Renewal::Refuse(reason));
        let seen = peer.renewals_of("sb-1");
        until("several renewals are refused", || peer.renewals_of("sb-1") > seen + 3).await;
        assert_eq!(fake.state_of("rt-1"), Some(RuntimeState::Running), "{reason:?}");
        running.stop().await;
    }
}

#[tokio::test]
async fn failed_renewals_are_repeated_with_growing_waits() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let own = NodeSettings { retry_wait: (Duration::from_millis(200), Duration::from_secs(600)), ..settings() };
    peer.with(|script| script.renewal = Renewal::Fail);
    let begin = Instant::now();
    let running = with_sandbox(folder.path(), &fake, &peer, own).await;
    until("the fourth try", || peer.renewals_of("sb-1") >= 4).await;
    // At least half of 200, 400 and 800 ms.
    assert!(begin.elapsed() >= Duration::from_millis(650), "{:?}", begin.elapsed());
    running.stop().await;
}

#[tokio::test]
async fn a_sandbox_past_its_time_to_live_is_destroyed() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    // Many renewals long: each says that the time has passed, none begins the grace anew.
    let own = NodeSettings { ttl_grace: Duration::from_millis(500), ..settings() };
    let running = with_sandbox(folder.path(), &fake, &peer, own).await;
    for (id, ttl) in [("sb-2", Duration::from_millis(1)), ("sb-3", Duration::ZERO)] {
        running.node.spawn(lease(id, 1), SpawnOrder { ttl, ..order(id) }).await.unwrap();
    }
    until("it is destroyed", || !fake.ids().contains(&"rt-2".to_owned())).await;
    assert_eq!(fake.ids(), ["rt-1", "rt-3"]);
    // The control plane can shorten it, too.
    peer.with(|script| script.sandbox_expires_at = Some(Timestamp::now()));
    until("the others are destroyed", || fake.ids().is_empty()).await;
    running.stop().await;
}

#[tokio::test]
async fn a_renewal_extends_the_time_to_live() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    let later = Timestamp::now().checked_add(Duration::from_secs(1800)).unwrap();
    peer.with(|script| script.sandbox_expires_at = Some(later));
    let soon = SpawnOrder { ttl: Duration::from_secs(60), ..order("sb-2") };
    running.node.spawn(lease("sb-2", 1), soon).await.unwrap();
    let destroyed_in = || fake.with(|inside| inside.deadlines["rt-2"].destroy_after.unwrap());
    until("it lives longer", || destroyed_in() > HOUR + Duration::from_secs(1000)).await;
    running.stop().await;
}

#[tokio::test]
async fn under_a_control_plane_without_renewals_no_deadline_counts() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    peer.with(|script| script.knows_no_renewal = true);
    let own = NodeSettings { lease_ttl: SHORT, lease_grace: SHORT, ttl_grace: SHORT, ..settings() };
    let running = with_sandbox(folder.path(), &fake, &peer, own).await;
    let brief =
        Lease { expires_at: Timestamp::now().checked_add(Duration::from_secs(30)).unwrap(), ..lease("sb-2", 1) };
    running.node.spawn(brief, SpawnOrder { ttl: Duration::from_millis(1), ..order("sb-2") }).await.unwrap();
    let seen = peer.with(|script| script.beats.len());
    until("many heartbeats", || peer.with(|script| script.beats.len()) > seen + 20).await;
    assert_eq!((peer.renewals_of("sb-1"), peer.renewals_of("sb-2")), (0, 0));
    assert_eq!(fake.ids(), ["rt-1", "rt-2"]);
    assert_eq!(fake.with(|inside| inside.deadlines["rt-2"]), Deadlines::default());
    assert!(!running.node.find(&target("sb-2")).await.unwrap().frozen);
    // It learns to renew: what looked lapsed gets the time for it.
    peer.with(|script| script.knows_no_renewal = false);
    until("leases are renewed", || peer.renewals_of("sb-1") > 0 && peer.renewals_of("sb-2") > 0).await;
    running.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_was_extended_before_renewals_were_known_lives_on() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    peer.with(|script| script.knows_no_renewal = true);
    let running = with_sandbox(folder.path(), &fake, &peer, NodeSettings { ttl_grace: SHORT, ..settings() }).await;
    let soon = SpawnOrder { ttl: Duration::from_millis(1), ..order("sb-2") };
    running.node.spawn(lease("sb-2", 1), soon).await.unwrap();
    peer.with(|script| {
        script.knows_no_renewal = false;
        script.sandbox_expires_at = Some(Timestamp::now().checked_add(HOUR).unwrap());
    });
    until("renewals say how long it lives", || {
        peer.renewals_of("sb-2") > 1 && fake.with(|inside| inside.deadlines["rt-2"].destroy_after) > Some(HOUR / 2)
    })
    .await;
    assert_eq!(fake.ids(), ["rt-1", "rt-2"]);
    running.stop().await;
}
