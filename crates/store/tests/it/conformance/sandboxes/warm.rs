//! Warm sandboxes: claimed by one owner each.

use tenure_core::sandbox::placement::NoPlace;
use tenure_store::RequestKey;
use tokio::task::JoinSet;

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    a_warm_sandbox_gets_its_owner,
    the_oldest_is_claimed_first,
    sixteen_claimers_of_five_get_five,
    only_workers_that_serve_are_claimed_from,
    the_caps_of_the_owner_apply,
    a_key_claims_once,
    warm_sandboxes_are_counted,
    one_that_is_over_is_not_claimed,
);

fn claim(owner: &str) -> Change {
    Change::Claim {
        tenant: "acme".into(),
        owner: Some(owner.into()),
        ttl_ms: 5_000,
        metadata: vec![("claimed".into(), "yes".into())],
    }
}

fn warm_new(number: u32) -> NewSandbox {
    NewSandbox { pool: Some("py".into()), owner: None, tenant: "pools".into(), ..new(number) }
}

async fn idle(t: &Fixture, number: u32) -> Sandbox {
    let (row, ..) = placed(t, warm_new(number)).await;
    let idle = change(&*t.store, number, confirm(&row)).await.unwrap().after;
    assert_eq!(idle.state, State::Idle);
    idle
}

async fn take(
    store: &dyn Store,
    owner: &str,
    key: Option<RequestKey>,
    caps: Caps,
) -> Option<Result<Changed, NotPlaced>> {
    store.claim_warm("py", &claim(owner), key, caps, &Rules::default(), |row| vec![told("claimed", row)]).await.unwrap()
}

async fn a_warm_sandbox_gets_its_owner(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    assert!(take(&*t.store, "ann", None, NO_CAPS).await.is_none());
    let warm = idle(t, 1).await;
    assert!(
        t.store
            .claim_warm("other", &claim("ann"), None, NO_CAPS, &Rules::default(), |_| Vec::new())
            .await
            .unwrap()
            .is_none()
    );
    t.clock.advance(1_000);
    let changed = take(&*t.store, "ann", None, NO_CAPS).await.unwrap().unwrap();
    assert_eq!(changed.before, warm);
    let row = changed.after;
    assert_eq!((row.state, &*row.tenant, row.owner.as_deref()), (State::Running, "acme", Some("ann")));
    assert_eq!((row.expires_at, row.changed_at, row.pool.clone()), (after_start(6_000), after_start(1_000), None));
    assert_eq!(row.spec.metadata["claimed"], "yes");
    assert_eq!(self::row(t, 1).await, row);
    change(&*t.store, 1, Change::Doubt { reason: "worker_stale".into() }).await.unwrap();
    assert_eq!(change(&*t.store, 1, Change::Recover).await.unwrap().after.state, State::Running, "never idle again");
    check(t).await;
}

async fn the_oldest_is_claimed_first(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    for number in [2, 1, 3] {
        idle(t, number).await;
        t.clock.advance(10);
    }
    let mut claimed = Vec::new();
    while let Some(changed) = take(&*t.store, "ann", None, NO_CAPS).await {
        claimed.push(changed.unwrap().after.id);
    }
    assert_eq!(claimed, [id(2), id(1), id(3)]);
}

async fn sixteen_claimers_of_five_get_five(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    for number in 1..=5 {
        idle(t, number).await;
    }
    let mut claims = JoinSet::new();
    for (n, store) in stores(t, 16).await.into_iter().enumerate() {
        claims.spawn(async move { take(&*store, &format!("owner-{n}"), None, NO_CAPS).await });
    }
    let mut claimed: Vec<_> =
        claims.join_all().await.into_iter().flatten().map(|changed| changed.unwrap().after).collect();
    claimed.sort_by(|one, other| one.id.cmp(&other.id));
    assert_eq!(claimed.iter().map(|row| row.id.clone()).collect::<Vec<_>>(), (1..=5).map(id).collect::<Vec<_>>());
    for row in claimed {
        assert_eq!(t.store.sandbox(&row.id, &Reach::All).await.unwrap(), Some(row));
    }
    check(t).await;
}

async fn only_workers_that_serve_are_claimed_from(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    idle(t, 1).await;
    t.store.desire_worker("worker-a", "draining", None).await.unwrap().unwrap();
    assert!(take(&*t.store, "ann", None, NO_CAPS).await.is_none(), "drained");
    t.store.desire_worker("worker-a", "online", None).await.unwrap().unwrap();
    t.clock.advance(Rules::default().freshness_ms + 1);
    assert!(take(&*t.store, "ann", None, NO_CAPS).await.is_none(), "stale");
    worker(t, beat("worker-a")).await;
    let rules = Rules { callable: Some(vec!["worker-b".into()]), ..Rules::default() };
    assert!(
        t.store.claim_warm("py", &claim("ann"), None, NO_CAPS, &rules, |_| Vec::new()).await.unwrap().is_none(),
        "not callable"
    );
    t.store.remove_worker("worker-a", true).await.unwrap();
    assert!(take(&*t.store, "ann", None, NO_CAPS).await.is_none(), "barred");
    worker(t, beat("worker-a")).await;
    take(&*t.store, "ann", None, NO_CAPS).await.unwrap().unwrap();
}

async fn the_caps_of_the_owner_apply(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    for number in 1..=4 {
        idle(t, number).await;
    }
    let caps = Caps { total: 1, per_owner: 1, per_tenant: 2 };
    take(&*t.store, "ann", None, caps).await.unwrap().unwrap();
    let refused = take(&*t.store, "ann", None, caps).await.unwrap().unwrap_err();
    assert_eq!(refused, NotPlaced::NoPlace(NoPlace::MaxSandboxesPerOwner));
    take(&*t.store, "bob", None, caps).await.unwrap().unwrap();
    let refused = take(&*t.store, "cid", None, caps).await.unwrap().unwrap_err();
    assert_eq!(refused, NotPlaced::NoPlace(NoPlace::MaxSandboxesPerTenant));
}

async fn a_key_claims_once(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    idle(t, 1).await;
    idle(t, 2).await;
    let key = |digest| Some(("once".into(), [digest; 32]));
    let first = take(&*t.store, "ann", key(1), NO_CAPS).await.unwrap().unwrap().after;
    let second = take(&*t.store, "ann", key(1), NO_CAPS).await.unwrap().unwrap();
    assert_eq!((&second.before, &second.after), (&first, &first));
    assert_eq!(take(&*t.store, "ann", key(2), NO_CAPS).await.unwrap().unwrap_err(), NotPlaced::KeyTaken);
    let create = NewSandbox { key: key(1), ..new(3) };
    assert!(matches!(place(&*t.store, create, NO_CAPS).await, Ok(Placed::Known(row)) if *row == first));
}

async fn warm_sandboxes_are_counted(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    idle(t, 1).await;
    idle(t, 2).await;
    placed(t, warm_new(3)).await;
    placed(t, NewSandbox { pool: Some("js".into()), ..warm_new(4) }).await;
    running(t, 5).await;
    assert_eq!(t.store.count_warm().await.unwrap(), [("js".into(), 0, 1), ("py".into(), 2, 1)]);
    take(&*t.store, "ann", None, NO_CAPS).await.unwrap().unwrap();
    assert_eq!(t.store.count_warm().await.unwrap(), [("js".into(), 0, 1), ("py".into(), 1, 1)]);
}

async fn one_that_is_over_is_not_claimed(t: &Fixture) {
    worker(t, beat("worker-a")).await;
    idle(t, 1).await;
    t.clock.advance(TTL);
    worker(t, beat("worker-a")).await;
    assert!(take(&*t.store, "ann", None, NO_CAPS).await.is_none());
}
