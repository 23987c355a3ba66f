//! Waiting for room: in order within a provider, and never past somebody who could have the place.

use tenure_core::sandbox::placement::NoPlace;

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    without_room_a_sandbox_waits,
    a_full_queue_refuses,
    rows_are_placed_in_their_order,
    a_new_sandbox_does_not_overtake_one_that_waits,
    an_owner_at_its_cap_does_not_hold_up_others,
    a_small_one_behind_a_large_one_gets_what_is_left,
    providers_have_queues_of_their_own,
    whoever_waits_too_long_holds_up_nobody,
    a_raised_cap_lets_a_row_go,
    times_count_from_the_place,
    a_row_that_is_given_up_leaves_the_queue,
    rows_that_wait_reserve_nothing,
);

async fn wait(t: &Fixture, new: NewSandbox, caps: Caps) -> Sandbox {
    match place(&*t.store, new, caps).await {
        Ok(Placed::Queued(row)) => *row,
        other => panic!("{other:?}"),
    }
}

async fn waiting(t: &Fixture) -> Vec<Arc<str>> {
    t.store.queued_spawns().await.unwrap().into_iter().map(|entry| entry.sandbox).collect()
}

async fn goes(t: &Fixture, number: u32) -> bool {
    match again(&*t.store, number, NO_CAPS).await {
        Ok(Placed::On(row, _, lease)) => {
            assert_eq!(lease.lease.holder, row.worker.unwrap());
            true
        }
        Err(NotPlaced::NoPlace(_)) => false,
        other => panic!("{other:?}"),
    }
}

async fn free(t: &Fixture, number: u32) {
    change(&*t.store, number, destroy()).await.unwrap();
}

async fn without_room_a_sandbox_waits(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(1)).await;
    t.clock.advance(10);
    let row = wait(t, queued(2), NO_CAPS).await;
    assert!(row.is_queued() && row.worker.is_none());
    assert_eq!(self::row(t, 2).await, row);
    let entry = &t.store.queued_spawns().await.unwrap()[0];
    assert_eq!((&entry.sandbox, &*entry.provider), (&id(2), "process"));
    assert_eq!(entry.deadline, after_start(10 + WAIT.timeout_ms));
    assert_eq!(t.store.sandbox_lease(&id(2)).await.unwrap(), None);
    assert!(!goes(t, 2).await, "there is still no room");
    free(t, 1).await;
    assert!(goes(t, 2).await);
    assert!(waiting(t).await.is_empty());
    check(t).await;
}

async fn a_full_queue_refuses(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(1)).await;
    let short = |number| NewSandbox { queue: Some(Queueing { places: 1, ..WAIT }), ..new(number) };
    wait(t, short(2), NO_CAPS).await;
    let refused = place(&*t.store, short(3), NO_CAPS).await.unwrap_err();
    assert_eq!(refused, NotPlaced::QueueFull(NoPlace::WorkerUnavailable { why: "capacity" }));
    let refused = place(&*t.store, new(4), NO_CAPS).await.unwrap_err();
    assert_eq!(refused, NotPlaced::NoPlace(NoPlace::WorkerUnavailable { why: "capacity" }), "it does not wait");
    assert_eq!(all(t).await.len(), 2);
}

async fn rows_are_placed_in_their_order(t: &Fixture) {
    worker(t, room_for(2, "worker-a")).await;
    placed(t, new(1)).await;
    placed(t, new(2)).await;
    for number in 3..=6 {
        wait(t, queued(number), NO_CAPS).await;
    }
    assert_eq!(waiting(t).await, [id(3), id(4), id(5), id(6)]);
    free(t, 1).await;
    assert!(!goes(t, 5).await && !goes(t, 4).await, "the first is before them");
    assert!(goes(t, 3).await);
    free(t, 2).await;
    free(t, 3).await;
    assert!(goes(t, 5).await, "there is room for the fourth and the fifth");
    assert!(!goes(t, 6).await);
    assert!(goes(t, 4).await, "and it was kept");
    check(t).await;
}

async fn a_new_sandbox_does_not_overtake_one_that_waits(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(1)).await;
    wait(t, queued(2), NO_CAPS).await;
    free(t, 1).await;
    wait(t, queued(3), NO_CAPS).await;
    assert!(place(&*t.store, new(4), NO_CAPS).await.is_err());
    assert!(goes(t, 2).await);
}

async fn an_owner_at_its_cap_does_not_hold_up_others(t: &Fixture) {
    worker(t, room_for(2, "worker-a")).await;
    let caps = Caps { per_owner: 1, ..NO_CAPS };
    place(&*t.store, queued(1), caps).await.unwrap();
    wait(t, queued(2), caps).await;
    let bob = NewSandbox { owner: Some("bob".into()), ..queued(3) };
    assert!(matches!(place(&*t.store, bob, caps).await, Ok(Placed::On(..))));
    free(t, 1).await;
    let cid = NewSandbox { owner: Some("cid".into()), ..queued(4) };
    wait(t, cid, caps).await;
    assert!(matches!(again(&*t.store, 2, caps).await, Ok(Placed::On(..))), "now it is the owner's turn");
}

async fn a_small_one_behind_a_large_one_gets_what_is_left(t: &Fixture) {
    let mut worker = beat("worker-a");
    worker.capacity.memory_mb = 1_024;
    self::worker(t, worker).await;
    placed(t, new(1)).await;
    let large = NewSandbox { spec: Arc::new(Spec { memory_mb: 1_024, ..spec() }), ..queued(2) };
    wait(t, large, NO_CAPS).await;
    // The large one could not have the place: it does not keep others from it.
    assert!(matches!(place(&*t.store, queued(3), NO_CAPS).await, Ok(Placed::On(..))));
}

async fn providers_have_queues_of_their_own(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    let mut docker = room_for(1, "worker-b");
    docker.providers = vec!["docker".into()];
    worker(t, docker).await;
    let of = |number, provider: &str| NewSandbox {
        spec: Arc::new(Spec { provider: provider.into(), ..spec() }),
        ..queued(number)
    };
    placed(t, of(1, "mock")).await;
    placed(t, of(2, "docker")).await;
    wait(t, of(3, "process"), NO_CAPS).await;
    wait(t, of(4, "docker"), NO_CAPS).await;
    wait(t, of(5, "mock"), NO_CAPS).await;
    free(t, 2).await;
    assert!(goes(t, 4).await, "the other queue does not matter");
    free(t, 1).await;
    assert!(!goes(t, 5).await, "mock is process");
    assert!(goes(t, 3).await);
}

async fn whoever_waits_too_long_holds_up_nobody(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(1)).await;
    wait(t, queued(2), NO_CAPS).await;
    t.clock.advance(1_000);
    wait(t, queued(3), NO_CAPS).await;
    free(t, 1).await;
    assert!(!goes(t, 3).await);
    t.clock.advance(WAIT.timeout_ms - 1_000);
    assert!(goes(t, 3).await);
}

async fn a_raised_cap_lets_a_row_go(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let one = Caps { per_owner: 1, ..NO_CAPS };
    place(&*t.store, queued(1), one).await.unwrap();
    wait(t, queued(2), one).await;
    wait(t, queued(3), one).await;
    let two = Caps { per_owner: 2, ..NO_CAPS };
    let refused = again(&*t.store, 3, two).await;
    assert!(matches!(refused, Ok(Placed::On(..))), "the second waits under the cap that it was refused with");
    assert_eq!(again(&*t.store, 2, two).await.unwrap_err(), NotPlaced::NoPlace(NoPlace::MaxSandboxesPerOwner));
    free(t, 1).await;
    let ann = NewSandbox { owner: Some("ann".into()), ..queued(4) };
    wait(t, ann, two).await;
    assert!(matches!(again(&*t.store, 2, two).await, Ok(Placed::On(..))));
}

async fn times_count_from_the_place(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(1)).await;
    let waits = wait(t, queued(2), NO_CAPS).await;
    assert_eq!(waits.spawn_deadline, after_start(WAIT.timeout_ms + SPAWN), "no spawn fails that has not begun");
    assert_eq!(waits.expires_at, after_start(WAIT.timeout_ms + TTL));
    t.clock.advance(7_000);
    free(t, 1).await;
    assert!(goes(t, 2).await);
    let row = row(t, 2).await;
    assert_eq!((row.expires_at, row.spawn_deadline), (after_start(7_000 + TTL), after_start(7_000 + SPAWN)));
    assert_eq!(row.created_at, after_start(0));
}

async fn a_row_that_is_given_up_leaves_the_queue(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(1)).await;
    for number in 2..=4 {
        wait(t, queued(number), NO_CAPS).await;
    }
    change(&*t.store, 2, Change::Fail { reason: "queue_timeout".into() }).await.unwrap();
    change(&*t.store, 3, destroy()).await.unwrap();
    assert_eq!(waiting(t).await, [id(4)]);
    assert!(t.store.leave_queue(&id(4)).await.unwrap());
    assert!(!t.store.leave_queue(&id(4)).await.unwrap());
    assert!(waiting(t).await.is_empty());
    check(t).await;
}

async fn rows_that_wait_reserve_nothing(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let one = Caps { total: 1, ..NO_CAPS };
    place(&*t.store, new(1), one).await.unwrap();
    wait(t, queued(2), one).await;
    assert_eq!(t.store.count_active("acme", Some("ann")).await.unwrap().total, 1);
    free(t, 1).await;
    assert!(matches!(again(&*t.store, 2, one).await, Ok(Placed::On(..))), "it does not stand in its own way");
}
