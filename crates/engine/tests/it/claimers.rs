//! Many claimers at several control planes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::TaskId;
use tenure_core::attempt::Receipt;
use tenure_engine::{ClaimWait, Engine};

use crate::harness::{Home, claim, complete, submit};

const TASKS: usize = 5_000;
const CLAIMERS: usize = 64;

/// Claims and completes until all tasks are done. Gives what it was granted.
async fn work(engine: Engine, claimer: usize, done: Arc<AtomicUsize>) -> Vec<TaskId> {
    let mut granted = Vec::new();
    let worker = format!("w{claimer}");
    while done.load(Ordering::SeqCst) < TASKS {
        let claimed = engine.claim(claim(&worker, 1 + claimer % 5), ClaimWait(Duration::from_millis(200))).await;
        for grant in claimed.unwrap().grants {
            assert_eq!((grant.attempt, grant.fence.0), (1, 1), "granted for the first time");
            let outcome = engine.report(complete(&grant), 0).await.unwrap();
            assert_eq!(outcome, Ok(Receipt::Completed));
            granted.push(grant.task);
            done.fetch_add(1, Ordering::SeqCst);
        }
    }
    granted
}

/// Half of the tasks are there when the claimers come; the others are submitted under way, at both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_claimers_at_two_control_planes_never_share_a_task() {
    let home = Home::postgres().await;
    let engines = [Engine::open(&home.url()).await.unwrap(), Engine::open(&home.url()).await.unwrap()];
    submit(&engines[0], TASKS / 2).await;
    let done = Arc::new(AtomicUsize::new(0));
    let claimers: Vec<_> = (0..CLAIMERS)
        .map(|claimer| tokio::spawn(work(engines[claimer % 2].clone(), claimer, Arc::clone(&done))))
        .collect();
    for part in 0..50 {
        submit(&engines[part % 2], TASKS / 100).await;
    }
    let mut granted = Vec::new();
    for claimer in claimers {
        granted.extend(claimer.await.unwrap());
    }
    let unique: HashSet<TaskId> = granted.iter().copied().collect();
    assert_eq!((granted.len(), unique.len()), (TASKS, TASKS), "every task is granted once");
    let queue = &engines[0].queues(None, None, 10).await.unwrap().items[0];
    assert_eq!((queue.counts.finished, queue.counts.ready, queue.counts.running), (TASKS as i64, 0, 0));
    for engine in engines {
        engine.shutdown().await;
    }
}
