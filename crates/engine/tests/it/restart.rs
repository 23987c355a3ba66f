//! A restart in the middle of a lot of work.

use std::collections::HashSet;

use tenure_core::attempt::Receipt;
use tenure_core::command::claim::Grant;
use tenure_engine::{ClaimWait, Engine};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON, claim, complete, heartbeat, submit};
use crate::on_both_stores;

on_both_stores!(ten_thousand_running_leases_survive_a_restart);

const LEASES: usize = 10_000;

async fn running(engine: &Engine) -> i64 {
    engine.queues(None, None, 1).await.unwrap().items[0].counts.running
}

async fn ten_thousand_running_leases_survive_a_restart(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    submit(&engine, LEASES).await;
    let mut grants: Vec<Grant> = Vec::new();
    while grants.len() < LEASES {
        let claimed = engine.claim(claim("w-1", 1_000), ClaimWait::NONE).await.unwrap();
        assert!(!claimed.grants.is_empty());
        grants.extend(claimed.grants);
    }
    let distinct: HashSet<_> = grants.iter().map(|grant| grant.task).collect();
    assert_eq!(distinct.len(), LEASES);
    engine.shutdown().await;
    drop(engine);

    let engine = wait_until("the store is free", SOON, async || Engine::open(&home.url()).await.ok()).await;
    assert_eq!(running(&engine).await, LEASES as i64);
    // Nobody gets any of them a second time.
    assert!(engine.claim(claim("w-2", 1_000), ClaimWait::NONE).await.unwrap().grants.is_empty());
    // Their holders go on as if nothing had been.
    for held in grants.chunks(1_000) {
        let beats = engine.heartbeats(held.iter().map(heartbeat).collect(), 0).await.unwrap();
        assert!(beats.iter().all(|beat| matches!(beat, Ok(Ok(_)))));
        let (done, _) = engine.report_and_claim(held.iter().map(complete).collect(), None, 0).await.unwrap();
        assert!(done.iter().all(|done| matches!(done, Ok(Ok(Receipt::Completed)))));
    }
    let counts = engine.queues(None, None, 1).await.unwrap().items[0].counts;
    assert_eq!((counts.running, counts.ready, counts.finished), (0, 0, LEASES as i64));
    engine.shutdown().await;
}
