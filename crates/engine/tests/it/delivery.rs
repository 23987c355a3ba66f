//! Tasks that are delivered, by a courier that needs no network.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::command::Reach;
use tenure_core::command::queues::SetQueue;
use tenure_core::queue::{Push, QueueSettings};
use tenure_engine::delivery::{Courier, Handover, Outcome, Parcel};
use tenure_engine::{Engine, EngineConfig};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON, submit_to};

/// Hands nothing over that is addressed to `hangs`, and everything else at once.
#[derive(Debug, Default)]
struct Messenger {
    delivered: Mutex<HashMap<Arc<str>, usize>>,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Messenger {
    fn delivered(&self, queue: &str) -> usize {
        self.delivered.lock().unwrap().get(queue).copied().unwrap_or(0)
    }

    async fn hand_over(&self, parcel: Parcel) -> Handover {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let _leaving = Leaving(&self.under_way);
        *self.delivered.lock().unwrap().entry(Arc::clone(&parcel.queue)).or_default() += 1;
        if &*parcel.push.url == "hangs" {
            std::future::pending::<()>().await;
        }
        // Others get a turn, so that deliveries are under way beside each other.
        tokio::task::yield_now().await;
        Outcome::Accepted.into()
    }
}

struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Courier for Messenger {
    fn serves(&self, settings: &QueueSettings) -> bool {
        settings.push.is_some()
    }

    fn check(&self, push: &Push) -> Result<(), String> {
        if &*push.url == "nowhere" { Err("there is no such place".to_owned()) } else { Ok(()) }
    }

    fn deliver(&self, parcel: Parcel) -> BoxFuture<'_, Handover> {
        self.hand_over(parcel).boxed()
    }
}

async fn open(home: &Home, max_deliveries_in_flight: usize) -> Engine {
    let config = EngineConfig { max_deliveries_in_flight, ..EngineConfig::default() };
    Engine::open_with(&home.url(), config).await.unwrap()
}

async fn push_to(engine: &Engine, queue: &str, url: &str) {
    let push = Push { concurrency: 1_000, ack_timeout_ms: 60_000, ..Push::to(url.into()) };
    let settings = QueueSettings { push: Some(Arc::new(push)), ..QueueSettings::default() };
    let set = SetQueue { queue: queue.into(), settings, transport: None, keep_push: false, reach: Reach::All };
    engine.set_queue(set).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_never_answers_fills_its_share_and_others_are_served() {
    let (home, messenger) = (Home::sqlite(), Arc::new(Messenger::default()));
    let engine = open(&home, 12).await;
    engine.deliver(vec![Arc::clone(&messenger) as Arc<dyn Courier>]);
    push_to(&engine, "stuck", "hangs").await;
    push_to(&engine, "well", "answers").await;
    submit_to(&engine, "stuck", 100).await;
    wait_until("the share of the queue that hangs", SOON, async || messenger.delivered("stuck") == 6).await;
    submit_to(&engine, "well", 200).await;
    wait_until("all of the other queue", SOON, async || messenger.delivered("well") == 200).await;
    assert_eq!(messenger.delivered("stuck"), 6, "half of the places and no more");
    // A second queue that hangs takes half of the rest.
    push_to(&engine, "stuck too", "hangs").await;
    submit_to(&engine, "stuck too", 100).await;
    wait_until("the share of the second", SOON, async || messenger.delivered("stuck too") == 3).await;
    submit_to(&engine, "well", 200).await;
    wait_until("all of the other queue", SOON, async || messenger.delivered("well") == 400).await;
    let most = messenger.most.load(Ordering::SeqCst);
    assert!((9..=12).contains(&most), "{most}");
    engine.shutdown().await;
    assert_eq!(messenger.under_way.load(Ordering::SeqCst), 0, "deliveries end with the engine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_total_holds_when_every_target_hangs() {
    let (home, messenger) = (Home::sqlite(), Arc::new(Messenger::default()));
    let engine = open(&home, 5).await;
    engine.deliver(vec![Arc::clone(&messenger) as Arc<dyn Courier>]);
    let queues: Vec<_> = (0..8).map(|number| format!("stuck-{number}")).collect();
    for queue in &queues {
        push_to(&engine, queue, "hangs").await;
        submit_to(&engine, queue, 20).await;
    }
    wait_until("every place taken", SOON, async || messenger.under_way.load(Ordering::SeqCst) == 5).await;
    // Tasks without a place are not granted: they cost no attempt.
    let counts = engine.queues(None, None, 20).await.unwrap();
    let (running, ready) = counts
        .items
        .iter()
        .fold((0, 0), |(running, ready), queue| (running + queue.counts.running, ready + queue.counts.ready));
    assert_eq!((running, ready), (5, 155));
    assert_eq!(messenger.most.load(Ordering::SeqCst), 5);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_granted_from_a_queue_that_its_courier_cannot_serve() {
    let (home, messenger) = (Home::sqlite(), Arc::new(Messenger::default()));
    let engine = open(&home, 5).await;
    engine.deliver(vec![Arc::clone(&messenger) as Arc<dyn Courier>]);
    push_to(&engine, "lost", "nowhere").await;
    submit_to(&engine, "lost", 1).await;
    push_to(&engine, "well", "answers").await;
    submit_to(&engine, "well", 1).await;
    wait_until("the other queue", SOON, async || messenger.delivered("well") == 1).await;
    push_to(&engine, "lost", "answers").await;
    wait_until("the queue with its new target", SOON, async || messenger.delivered("lost") == 1).await;
    engine.shutdown().await;
}
