//! A task from its submit to its end, without a server.

use std::time::Duration;

use tenure_core::attempt::{Reason, Receipt};
use tenure_core::command::Reach;
use tenure_core::task::State;
use tenure_engine::store::AttemptView;
use tenure_engine::{ClaimWait, Engine, EngineError};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON, claim, complete, heartbeat, new_tasks, submit};
use crate::on_both_stores;

on_both_stores!(
    a_task_runs_to_its_end,
    a_waiting_claim_is_woken,
    a_claim_that_is_given_up_takes_nothing,
    a_grant_that_reaches_nobody_is_taken_back,
    after_shutdown_nothing_is_taken,
);

async fn a_task_runs_to_its_end(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    submit(&engine, 1).await;
    let claimed = engine.claim(claim("w-1", 10), ClaimWait::NONE).await.unwrap();
    let [grant] = &claimed.grants[..] else { panic!("{claimed:?}") };
    assert_eq!((grant.attempt, grant.fence.0), (1, 1));
    assert_eq!(&*grant.body.as_ref().unwrap().payload, "{}");
    assert!(engine.heartbeat(heartbeat(grant), 0).await.unwrap().is_ok());
    assert_eq!(engine.report(complete(grant), 0).await.unwrap(), Ok(Receipt::Completed));
    engine.shutdown().await;
    // It is there for whoever opens the store next, and so is its receipt.
    drop(engine);
    let engine = reopen(&home).await;
    let task = engine.task(grant.task, &Reach::All).await.unwrap().unwrap();
    assert_eq!(task.place.state(), State::Succeeded);
    assert_eq!(engine.report(complete(grant), 0).await.unwrap(), Ok(Receipt::Completed));
    assert!(engine.claim(claim("w-1", 10), ClaimWait::NONE).await.unwrap().grants.is_empty());
    engine.shutdown().await;
}

/// A file is let go when its last handle is; that can be a moment later than the end of the engine.
async fn reopen(home: &Home) -> Engine {
    wait_until("the store is free", SOON, async || Engine::open(&home.url()).await.ok()).await
}

async fn a_waiting_claim_is_woken(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    let long = Duration::from_secs(600);
    let waits = async || wait_until("the claim waits", SOON, async || engine.claims_waiting() == 1).await;
    let waiting = tokio::time::timeout(SOON, engine.claim(claim("w-1", 1), ClaimWait(long)));
    let (claimed, ()) = tokio::join!(waiting, async {
        waits().await;
        submit(&engine, 1).await;
    });
    assert_eq!(claimed.expect("it is woken").unwrap().grants.len(), 1);
    // A shutdown ends a wait with nothing.
    let waiting = tokio::time::timeout(SOON, engine.claim(claim("w-1", 1), ClaimWait(long)));
    let (claimed, ()) = tokio::join!(waiting, async {
        waits().await;
        engine.shutdown().await;
    });
    assert!(claimed.expect("it ends").unwrap().grants.is_empty());
}

async fn a_claim_that_is_given_up_takes_nothing(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    submit(&engine, 1).await;
    for _ in 0..20 {
        let mut given_up = Box::pin(engine.claim(claim("gone", 1), ClaimWait(Duration::from_secs(60))));
        let _ = futures_util::poll!(&mut given_up);
    }
    let grant = wait_until("somebody else gets it", SOON, async || {
        engine.claim(claim("here", 1), ClaimWait::NONE).await.unwrap().grants.pop()
    })
    .await;
    for attempt in engine.attempts(grant.task, &Reach::All).await.unwrap().unwrap() {
        match attempt {
            AttemptView::Closed(closed) => assert_eq!(closed.reason, Reason::Undelivered),
            AttemptView::Open(running) => assert_eq!(running.lease.holder.as_deref(), Some("here")),
        }
    }
    assert!(matches!(engine.report(complete(&grant), 0).await, Ok(Ok(_))));
    engine.shutdown().await;
}

async fn a_grant_that_reaches_nobody_is_taken_back(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    submit(&engine, 1).await;
    let held = home.hold_grants().await;
    let mut claiming = Box::pin(engine.claim(claim("gone", 1), ClaimWait::NONE));
    assert!(futures_util::poll!(&mut claiming).is_pending());
    // By now the claim stands before the store; it is granted there when nobody waits for it any more.
    held.by_a_grant().await;
    wait_until("the lane has taken it", SOON, async || engine.waiting().0 == 0).await;
    drop(claiming);
    drop(held);
    let grant = wait_until("another gets it", SOON, async || {
        engine.claim(claim("here", 1), ClaimWait::NONE).await.unwrap().grants.pop()
    })
    .await;
    assert_eq!((grant.attempt, grant.fence.0), (2, 2));
    let attempts = engine.attempts(grant.task, &Reach::All).await.unwrap().unwrap();
    let AttemptView::Closed(first) = &attempts[0] else { panic!("{attempts:?}") };
    assert_eq!((first.reason, first.worker.as_deref()), (Reason::Undelivered, Some("gone")));
    // It costs nothing of the budget: three attempts are left, this one among them.
    let task = engine.task(grant.task, &Reach::All).await.unwrap().unwrap();
    let tenure_core::task::Place::Running(running) = task.place else { panic!("{:?}", task.place) };
    assert_eq!(running.carry.allowed_attempts(), 4);
    engine.shutdown().await;
}

async fn after_shutdown_nothing_is_taken(home: Home) {
    let engine = Engine::open(&home.url()).await.unwrap();
    let late = new_tasks(&engine, 1).await;
    engine.shutdown().await;
    assert_eq!(engine.submit(late, 0).await, Err(EngineError::Closed));
    // Shutting down twice is no harm.
    engine.shutdown().await;
}

#[tokio::test]
async fn an_address_of_no_store_is_refused_without_showing_it() {
    let error = Engine::open("mysql://user:secret@host/db").await.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_open_elsewhere_is_refused() {
    let home = Home::sqlite();
    let engine = Engine::open(&home.url()).await.unwrap();
    let error = Engine::open(&home.url()).await.unwrap_err();
    assert!(error.to_string().contains("open in another process"), "{error}");
    engine.shutdown().await;
}
