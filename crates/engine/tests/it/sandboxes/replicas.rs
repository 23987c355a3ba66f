//! Several control planes on one Postgres.

use std::sync::Arc;

use tenure_core::sandbox::State;
use tenure_core::sandbox::template::Request;
use tenure_engine::Duty;
use tenure_engine::sandboxes::{ErrorClass, Overflow};
use tenure_testkit::wait_until;

use super::farm::{Call, Farm, Fault};
use super::{caller, settings, start};
use crate::harness::{Home, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_creates_on_two_control_planes_respect_the_cap() {
    let home = Home::postgres().await;
    let mut settings = settings();
    settings.max_sandboxes = 5;
    let farm = Farm::new();
    let (first, second) = (start(&home, &farm, settings.clone()).await, start(&home, &farm, settings).await);
    farm.beat("w1").await;
    farm.beat("w2").await;
    let creating: Vec<_> = (0..20).map(|n| if n % 2 == 0 { first.creating() } else { second.creating() }).collect();
    let (mut created, mut refused) = (0, 0);
    for create in creating {
        match create.await.unwrap() {
            Ok(_) => created += 1,
            Err(error) => {
                assert_eq!((error.class, &*error.reason), (ErrorClass::ResourceLimit, "max_sandboxes"));
                refused += 1;
            }
        }
    }
    assert_eq!((created, refused, farm.made()), (5, 15, 5));
    first.stop().await;
    farm.attach(&second.engine, &second.sandboxes);
    second.stop().await;
}

/// The spawn that one drives is left alone by the other, until the first is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawn_goes_on_where_its_control_plane_died() {
    let home = Home::postgres().await;
    let farm = Farm::new();
    let mut settings = settings();
    settings.spawn_timeout_ms = 600_000;
    // Who comes first has the duties.
    let second = start(&home, &farm, settings.clone()).await;
    let first = start(&home, &farm, settings).await;
    farm.beat("w1").await;
    for plane in [&first, &second] {
        wait_until("each to know of the other", SOON, async || plane.engine.others() == 1).await;
    }
    assert!(second.engine.has(Duty::Sandboxes));
    second.running().await;
    farm.fail("w1", Call::Spawn, [Fault::HangAfter]);
    let row = first.sandboxes.create(&Request::default(), &caller(), None, false).await.unwrap().row;
    first.wait_for_hanging(1).await;
    farm.seen.lock().unwrap().clear();
    farm.attach(&second.engine, &second.sandboxes);
    for (n, worker) in ["w2", "w3"].into_iter().enumerate() {
        // A worker that comes is a reason to look. The sandbox that runs is asked about, so the other was looked at too.
        farm.beat(worker).await;
        wait_until("a reconciliation", SOON, async || farm.calls(Call::Status).len() > n).await;
    }
    assert!(farm.calls(Call::Spawn).is_empty(), "it is not repeated while its driver lives");
    first.stop().await;
    farm.attach(&second.engine, &second.sandboxes);
    farm.beat("w4").await;
    second.wait_for_state(&row.id, State::Running).await;
    assert_eq!((farm.made(), farm.runtimes().len()), (2, 2));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_at_one_is_served_when_another_makes_room() {
    let home = Home::postgres().await;
    let mut settings = settings();
    (settings.max_sandboxes, settings.spawn_overflow) = (1, Overflow::Queue);
    let farm = Farm::new();
    let (first, second) = (start(&home, &farm, settings.clone()).await, start(&home, &farm, settings).await);
    farm.beat("w1").await;
    let held = first.running().await;
    let waiting = first.creating();
    let store = Arc::clone(second.engine.store());
    wait_until("one to wait", SOON, async || store.queued_spawns().await.unwrap().len() == 1).await;
    second.sandboxes.destroy(&held.id, &caller()).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().row.state, State::Running);
    first.stop().await;
    farm.attach(&second.engine, &second.sandboxes);
    second.stop().await;
}
