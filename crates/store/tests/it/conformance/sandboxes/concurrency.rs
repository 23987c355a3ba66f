//! Many at once, on Postgres from two control planes: caps are never exceeded, and of contenders one wins.

use std::collections::HashMap;

use tokio::task::JoinSet;

use super::*;

crate::on_both_stores!(
    sixteen_creates_fill_a_worker_and_no_more,
    sixteen_creates_respect_every_cap,
    sixteen_creates_with_one_key_make_one,
    sixteen_creates_with_one_id_make_one,
    of_sixteen_changes_one_is_made,
    a_confirmation_and_a_destroy_never_both_find_it_creating,
    creates_and_destroys_never_exceed_the_caps,
    a_row_that_waits_is_placed_once,
);

async fn sixteen(t: &Fixture, make: impl Fn(u32) -> NewSandbox, caps: Caps) -> Vec<Result<Placed, NotPlaced>> {
    let stores = stores(t, 16).await;
    let mut creates = JoinSet::new();
    for (number, store) in (1..).zip(stores) {
        let new = make(number);
        creates.spawn(async move { place(&*store, new, caps).await });
    }
    creates.join_all().await
}

fn on(outcomes: &[Result<Placed, NotPlaced>]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome, Ok(Placed::On(..)))).count()
}

async fn sixteen_creates_fill_a_worker_and_no_more(t: &Fixture) {
    worker(t, room_for(3, "worker-a")).await;
    let mut second = beat("worker-b");
    second.capacity.memory_mb = 2 * 512;
    worker(t, second).await;
    let outcomes = sixteen(t, new, NO_CAPS).await;
    assert_eq!(on(&outcomes), 5, "{outcomes:?}");
    let mut workers = HashMap::new();
    for row in all(t).await {
        *workers.entry(row.worker.unwrap().to_string()).or_insert(0) += 1;
    }
    assert_eq!(workers, HashMap::from([("worker-a".into(), 3), ("worker-b".into(), 2)]));
    check(t).await;
}

async fn sixteen_creates_respect_every_cap(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let of_owners = |number: u32| NewSandbox {
        owner: Some(format!("owner-{}", number % 4).into()),
        tenant: if number.is_multiple_of(2) { "acme".into() } else { "other".into() },
        ..new(number)
    };
    let per_owner = sixteen(t, of_owners, Caps { per_owner: 1, ..NO_CAPS }).await;
    assert_eq!(on(&per_owner), 4);
    let more = |number: u32| of_owners(number + 100);
    let per_tenant = sixteen(t, more, Caps { per_tenant: 3, ..NO_CAPS }).await;
    assert_eq!(on(&per_tenant), 2, "two of each tenant were there");
    let rest = |number: u32| of_owners(number + 200);
    let total = sixteen(t, rest, Caps { total: 9, ..NO_CAPS }).await;
    assert_eq!(on(&total), 3, "six were there");
    check(t).await;
}

async fn sixteen_creates_with_one_key_make_one(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let with_key = |number| NewSandbox { key: Some(("once".into(), [1; 32])), ..new(number) };
    let outcomes = sixteen(t, with_key, NO_CAPS).await;
    let known = outcomes.iter().filter_map(|outcome| match outcome {
        Ok(Placed::Known(row)) => Some(row.id.clone()),
        _ => None,
    });
    let known: Vec<_> = known.collect();
    assert_eq!((on(&outcomes), known.len()), (1, 15));
    let rows = all(t).await;
    assert!(rows.len() == 1 && known.iter().all(|id| *id == rows[0].id));
    check(t).await;
}

async fn sixteen_creates_with_one_id_make_one(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let same_id = |number: u32| NewSandbox { id: id(1), ..new(number) };
    let outcomes = sixteen(t, same_id, NO_CAPS).await;
    let taken = outcomes.iter().filter(|outcome| matches!(outcome, Err(NotPlaced::IdTaken))).count();
    assert_eq!((on(&outcomes), taken), (1, 15));
    check(t).await;
}

async fn of_sixteen_changes_one_is_made(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let stores = stores(t, 16).await;
    for number in 1..=5 {
        let (row, ..) = placed(t, new(number)).await;
        let mut changes = JoinSet::new();
        for (n, store) in stores.iter().cloned().enumerate() {
            let runtime_id = format!("rt-{n}").into();
            let confirm = Change::Confirm { worker: row.worker.clone().unwrap(), runtime_id };
            changes.spawn(async move { change(&*store, number, confirm).await });
        }
        let outcomes = changes.join_all().await;
        let made: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        assert_eq!(made.len(), 1, "{outcomes:?}");
        assert_eq!(self::row(t, number).await, made[0].after);
        assert!(
            outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).all(|e| *e == Refused::State(State::Running))
        );
    }
}

async fn a_confirmation_and_a_destroy_never_both_find_it_creating(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    let stores = stores(t, 2).await;
    for number in 1..=10 {
        let (row, ..) = placed(t, new(number)).await;
        let (first, second) = (Arc::clone(&stores[0]), Arc::clone(&stores[1]));
        let confirmed = tokio::spawn(async move { change(&*first, number, confirm(&row)).await });
        let destroyed = tokio::spawn(async move { change(&*second, number, destroy()).await });
        let (confirmed, destroyed) = (confirmed.await.unwrap(), destroyed.await.unwrap().unwrap());
        match confirmed {
            // Whoever destroys sees the runtime, and ends it.
            Ok(_) => assert!(destroyed.before.runtime_id.is_some()),
            Err(refused) => {
                assert_eq!((refused, destroyed.before.runtime_id), (Refused::State(State::Destroyed), None))
            }
        }
        assert_eq!(self::row(t, number).await.state, State::Destroyed);
    }
    check(t).await;
}

/// Owners create and destroy as fast as they can, and somebody counts.
async fn creates_and_destroys_never_exceed_the_caps(t: &Fixture) {
    worker(t, room_for(4, "worker-a")).await;
    let stores = stores(t, 6).await;
    let mut churn = JoinSet::new();
    for (n, store) in (0..6_u32).zip(stores) {
        churn.spawn(async move {
            let caps = Caps { total: 3, per_owner: 1, per_tenant: 0 };
            for round in 0..12 {
                let number = n * 100 + round + 1;
                let new = NewSandbox { owner: Some(format!("owner-{}", n % 4).into()), ..new(number) };
                if place(&*store, new, caps).await.is_ok() {
                    tokio::task::yield_now().await;
                    change(&*store, number, destroy()).await.unwrap();
                }
            }
        });
    }
    let counting = "SELECT count(*) FROM sandboxes WHERE worker_id IS NOT NULL AND state = 'creating'";
    let owners = "SELECT coalesce(max(n), 0) FROM
        (SELECT count(*) AS n FROM sandboxes WHERE worker_id IS NOT NULL AND state = 'creating' GROUP BY owner) AS c";
    let mut looks = 0;
    while !churn.is_empty() {
        assert!(t.raw.number(counting).await <= 3);
        assert!(t.raw.number(owners).await <= 1);
        looks += 1;
        while let Some(done) = churn.try_join_next() {
            done.unwrap();
        }
    }
    assert!(looks > 1);
    assert!(t.raw.number("SELECT count(*) FROM sandboxes").await > 0);
    check(t).await;
}

async fn a_row_that_waits_is_placed_once(t: &Fixture) {
    worker(t, room_for(1, "worker-a")).await;
    placed(t, new(100)).await;
    place(&*t.store, queued(1), NO_CAPS).await.unwrap();
    change(&*t.store, 100, destroy()).await.unwrap();
    let mut tries = JoinSet::new();
    for store in stores(t, 16).await {
        tries.spawn(async move { again(&*store, 1, NO_CAPS).await });
    }
    let outcomes = tries.join_all().await;
    let known = outcomes.iter().filter(|outcome| matches!(outcome, Ok(Placed::Known(_)))).count();
    assert_eq!((on(&outcomes), known), (1, 15), "{outcomes:?}");
    assert_eq!(t.store.sandbox_lease(&id(1)).await.unwrap().unwrap().lease.generation.0, 1);
    check(t).await;
}
