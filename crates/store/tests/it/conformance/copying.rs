//! Copies of a whole store: what they hold, and where none is made.

use std::sync::Arc;

use tenure_core::command::cancel::Mode;
use tenure_core::command::{Answer, Command};
use tenure_core::queue::{FairnessKey, QueueSettings, Rate};
use tenure_core::task::State;
use tenure_store::{Clock, CopyError, copy};

use crate::common::{Client, Fixture, Home, Kind, START, invariants, make};

crate::on_both_stores!(
    a_copy_goes_on_where_its_source_was,
    a_copy_of_a_copy_is_the_same,
    raised_fences_are_above_all_that_were_granted,
    a_copy_is_made_of_one_moment_while_others_write,
    a_copy_is_never_made_over_another_store,
);

/// The other kind of store, and then this kind again.
fn ways(kind: Kind) -> [Kind; 2] {
    match kind {
        Kind::Sqlite => [Kind::Postgres, Kind::Sqlite],
        Kind::Postgres => [Kind::Sqlite, Kind::Postgres],
    }
}

async fn open(home: &Home) -> Client {
    let clock = Arc::new(Clock::default());
    clock.freeze(START);
    Client { store: home.open(&clock).await.unwrap() }
}

/// Tasks in every place, with everything that a row can carry.
async fn fill(t: &Fixture) {
    let rate = Some(Rate { per_second: 2.5, burst: 7.0 });
    let fairness_key = Some(FairnessKey::Tag("team".into()));
    t.set_queue("fair", QueueSettings { rate, max_running: Some(50), fairness_key, ..QueueSettings::default() }).await;
    let mut tagged = t.task("fair").await;
    tagged.tags = make::tags(&[("team", "naïve ☕"), ("empty", "")]);
    tagged.payload = "{\"text\":\"\\u0000 and ' and \\\\\"}".into();
    t.put(tagged).await;
    t.put_many("q", 20).await;
    t.put_in("paused").await;
    t.pause("paused", true).await;
    // Running, with a heartbeat; ended in every way; waiting for a retry.
    let held = t.claim_one("q").await;
    t.run(make::heartbeat(&held)).await.unwrap();
    let done = t.claim_one("q").await;
    t.complete(&done).await.unwrap();
    let failed = t.claim_one("q").await;
    t.bury(&failed, "BROKEN").await;
    let again = t.claim_one("q").await;
    t.run(make::fail(&again, "BUSY", Some(true))).await.unwrap();
    let canceled = t.put_in("q").await;
    t.run(make::cancel(canceled, Mode::Immediate)).await.unwrap();
    let members = make::members(t.tasks("runs", 3).await, &[&[], &[0], &[0, 1]]);
    let run = make::run(t.mint().await, Some("daily"), members);
    t.run(Command::SubmitRun(run)).await.unwrap();
}

async fn a_copy_goes_on_where_its_source_was(t: &Fixture) {
    fill(t).await;
    let keyed = tenure_core::command::submit::NewTask { idempotency: make::key("once", 7), ..t.task("q").await };
    let first = t.put(keyed.clone()).await;
    let held = t.claimed(make::claim("holder", &["q"], 1)).await.grants.remove(0);
    let done = t.claim_one("q").await;
    let answer = t.complete(&done).await;
    let batch = t.store.reserve_numbers(1).await.unwrap().take();
    for kind in ways(t.kind) {
        let home = Home::new(kind).await;
        copy(&t.home.url(), &home.url(), 0).await.unwrap();
        let copied = open(&home).await;
        for queue in ["q", "fair", "paused", "runs"] {
            let (ours, theirs) = (copied.queue(queue).await, t.queue(queue).await);
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{kind:?}");
        }
        let (ours, theirs) = (copied.view(held.task).await, t.view(held.task).await);
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{kind:?}");
        let (ours, theirs) = (copied.attempts(done.task).await, t.attempts(done.task).await);
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{kind:?}");
        // The lease is still its holder's, the receipt is still there, and keys still name their tasks.
        assert!(matches!(copied.complete(&held).await, Ok(Answer::Reported(_))), "{kind:?}");
        assert_eq!(copied.complete(&done).await, answer, "{kind:?}");
        let repeated = tenure_core::command::submit::NewTask { id: copied.mint().await, ..keyed.clone() };
        let repeated = copied.submit(vec![repeated]).await;
        assert_eq!((repeated[0].id, repeated[0].created), (first, false), "{kind:?}");
        // Numbers are not given out twice.
        assert!(copied.store.reserve_numbers(1).await.unwrap().take() > batch, "{kind:?}");
        let new = copied.put_in("new").await;
        assert_eq!(copied.state(new).await, State::Ready);
        assert_eq!(copied.claim_one("new").await.task, new, "{kind:?}");
        invariants::check(&*copied.store, &home.raw().await).await;
    }
}

/// Through the other kind of store and back, nothing changes: the copies are compared by what people see of all tasks.
async fn a_copy_of_a_copy_is_the_same(t: &Fixture) {
    fill(t).await;
    let [other, same] = ways(t.kind).map(Home::new);
    let (other, same) = (other.await, same.await);
    let there = copy(&t.home.url(), &other.url(), 0).await.unwrap();
    let back = copy(&other.url(), &same.url(), 0).await.unwrap();
    assert_eq!(there, back);
    assert!(there.rows > 60 && there.tables > 40, "{there:?}");
    let all = "SELECT * FROM tasks ORDER BY seq";
    assert_eq!(same.raw().await.rows(all).await, t.raw.rows(all).await);
    let all = "SELECT * FROM attempt_history ORDER BY seq, attempt";
    assert_eq!(same.raw().await.rows(all).await, t.raw.rows(all).await);
    let all = "SELECT * FROM queues ORDER BY queue_id";
    assert_eq!(same.raw().await.rows(all).await, t.raw.rows(all).await);
}

async fn raised_fences_are_above_all_that_were_granted(t: &Fixture) {
    fill(t).await;
    for kind in ways(t.kind) {
        let home = Home::new(kind).await;
        copy(&t.home.url(), &home.url(), 1_000_000).await.unwrap();
        let copied = open(&home).await;
        let grant = copied.claim_one("q").await;
        assert!(grant.fence.0 > 1_000_000, "{kind:?} {:?}", grant.fence);
        let raw = home.raw().await;
        assert_eq!(raw.number("SELECT count(*) FROM ready WHERE fence < 1000000").await, 0, "{kind:?}");
        assert_eq!(raw.number("SELECT count(*) FROM running WHERE fence < 1000000").await, 0, "{kind:?}");
    }
}

/// Of two tasks that are always submitted together, a copy has both or none.
async fn a_copy_is_made_of_one_moment_while_others_write(t: &Fixture) {
    fill(t).await;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = {
        let (client, stop) = (t.client(), Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut pair = client.tasks("left", 1).await;
                pair.extend(client.tasks("right", 1).await);
                client.submit(pair).await;
                let grants = client.claim(&["left", "right"], 1).await;
                for grant in grants {
                    client.complete(&grant).await.unwrap();
                }
            }
        })
    };
    for kind in ways(t.kind) {
        let home = Home::new(kind).await;
        copy(&t.home.url(), &home.url(), 0).await.unwrap();
        let raw = home.raw().await;
        let of = async |queue: &str| {
            let sql = format!("SELECT count(*) FROM bodies b JOIN queues q USING (queue_id) WHERE q.name = '{queue}'");
            raw.number(&sql).await
        };
        assert_eq!(of("left").await, of("right").await, "{kind:?}");
        let copied = open(&home).await;
        invariants::check(&*copied.store, &raw).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.await.unwrap();
}

async fn a_copy_is_never_made_over_another_store(t: &Fixture) {
    fill(t).await;
    let home = Home::new(t.kind).await;
    copy(&t.home.url(), &home.url(), 0).await.unwrap();
    let before = home.raw().await.number("SELECT count(*) FROM bodies").await;
    let refused = copy(&t.home.url(), &home.url(), 0).await.expect_err("the target has rows");
    assert!(matches!(refused, CopyError::Exists(_) | CopyError::NotEmpty(_)), "{refused:?}");
    assert_eq!(home.raw().await.number("SELECT count(*) FROM bodies").await, before);
    assert!(matches!(copy(&t.home.url(), &t.home.url(), 0).await, Err(CopyError::Same)));

    // Nothing is left of a copy that cannot be made.
    let folder = tempfile::TempDir::new().unwrap();
    let target = format!("sqlite:{}", folder.path().join("copy.db").display());
    let missing = format!("sqlite:{}", folder.path().join("missing.db").display());
    assert!(matches!(copy(&missing, &target, 0).await, Err(CopyError::NoSource(_))));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
