//! Warm sandboxes.

use std::collections::BTreeMap;

use tenure_core::sandbox::State;
use tenure_core::sandbox::template::{Request, Template};
use tenure_testkit::wait_until;

use super::farm::Call;
use super::{Plane, caller_of, plane, settings};
use crate::harness::{Home, SOON};

fn template(pool_size: u64) -> Template {
    Template { setup: vec!["one".to_owned()], pool_size, ..Template::default() }
}

fn request() -> Request {
    Request { template: Some("t".to_owned()), ..Request::default() }
}

async fn wait_for_warm(plane: &Plane, ready: u64) {
    wait_until("the pool to have its size", SOON, async || {
        let status = plane.sandboxes.pool_status(None).await.unwrap();
        status.warm.iter().map(|pool| pool.ready).sum::<u64>() == ready
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_sandbox_gets_one_owner_and_is_replaced() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    plane.sandboxes.create_template("default", "t", &template(2)).await.unwrap();
    wait_for_warm(&plane, 2).await;
    let warm: Vec<_> = plane.rows().await.into_iter().map(|row| row.id).collect();
    assert!(plane.sandboxes.list(Default::default()).await.unwrap().items.is_empty(), "hidden unless asked for");
    let claims = ["ann", "bob"].map(|owner| {
        let sandboxes = plane.sandboxes.clone();
        tokio::spawn(async move {
            let request = Request { metadata: BTreeMap::from([("a".to_owned(), "b".to_owned())]), ..request() };
            sandboxes.create(&request, &caller_of("default", Some(owner)), None, true).await.unwrap().row
        })
    });
    let mut claimed = Vec::new();
    for (claim, owner) in claims.into_iter().zip(["ann", "bob"]) {
        let row = claim.await.unwrap();
        assert!(warm.contains(&row.id), "a warm one");
        assert_eq!((row.state, row.owner.as_deref()), (State::Running, Some(owner)));
        assert_eq!(row.spec.metadata["a"], "b");
        let left = row.expires_at.since(plane.engine.now().await.unwrap());
        assert!((0..=300_000).contains(&left), "the time of the template: {left}");
        claimed.push(row.id);
    }
    assert_ne!(claimed[0], claimed[1]);
    wait_for_warm(&plane, 2).await;
    assert_eq!(plane.farm.made(), 4);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_changes_the_runtime_gets_a_cold_one() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    plane.sandboxes.create_template("default", "t", &template(1)).await.unwrap();
    wait_for_warm(&plane, 1).await;
    let warm = plane.rows().await.remove(0).id;
    let request = Request { memory_mb: Some(64), ..request() };
    let row = plane.sandboxes.create(&request, &caller_of("default", Some("ann")), None, true).await.unwrap().row;
    assert_ne!(row.id, warm);
    assert_eq!(row.spec.memory_mb, 64);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_sandboxes_of_an_old_version_are_removed() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    plane.sandboxes.create_template("default", "t", &template(1)).await.unwrap();
    wait_for_warm(&plane, 1).await;
    let old = plane.rows().await.remove(0).id;
    plane.sandboxes.update_template("default", "t", &Template { memory_mb: 64, ..template(1) }).await.unwrap();
    wait_for_warm(&plane, 1).await;
    plane.wait_for_state(&old, State::Destroyed).await;
    plane.sandboxes.delete_template("default", "t").await.unwrap();
    wait_until("no warm sandbox", SOON, async || plane.farm.runtimes().is_empty()).await;
    assert_eq!(plane.farm.calls(Call::Destroy).len(), 2);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_whose_sandboxes_fail_is_left_alone_for_a_while() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let failing = Template { setup: vec!["false".to_owned()], ..template(3) };
    plane.sandboxes.create_template("default", "t", &failing).await.unwrap();
    wait_until("all to fail", SOON, async || plane.farm.calls(Call::Destroy).len() == 3).await;
    wait_until("none to stay", SOON, async || plane.rows().await.is_empty()).await;
    // Another template is a reason to look at all pools.
    plane.sandboxes.create_template("default", "u", &template(1)).await.unwrap();
    wait_for_warm(&plane, 1).await;
    assert_eq!(plane.farm.made(), 4, "three that failed, and one of the other pool");
    plane.stop().await;
}
