//! Opening a store: new, again, together, of a newer version, by a second process.

use std::process::Command;
use std::sync::Arc;

use tenure_core::queue::{FairnessKey, QueueSettings, Rate};
use tenure_core::task::State;
use tenure_store::{Clock, SCHEMA, StoreError, inspect};

use crate::common::{Client, Home, Kind, START, after_start, invariants, make};

fn clock() -> Arc<Clock> {
    let clock = Arc::new(Clock::default());
    clock.freeze(START);
    clock
}

async fn open(home: &Home) -> Client {
    Client { store: home.open(&clock()).await.unwrap() }
}

/// Everything is still there, to the token of the rate.
async fn a_store_opened_again_goes_on(kind: Kind) {
    let home = Home::new(kind).await;
    let first = open(&home).await;
    let rate = Some(Rate { per_second: 1.0, burst: 3.0 });
    first.set_queue("q", QueueSettings { rate, max_running: Some(2), ..QueueSettings::default() }).await;
    let ids = first.put_many("q", 4).await;
    let grant = first.claim_one("q").await;
    let number = first.store.reserve_numbers(1).await.unwrap().take();
    drop(first);

    let second = open(&home).await;
    assert_eq!(second.state(ids[0]).await, State::Running);
    second.complete(&grant).await.unwrap();
    let held = second.claim(&["q"], 9).await;
    assert_eq!(held.len(), 2);
    assert!(second.store.reserve_numbers(1).await.unwrap().take() > number);
    let raw = home.raw().await;
    invariants::check(&*second.store, &raw).await;
    drop(second);

    let third = open(&home).await;
    let claimed = third.claimed(make::claim("w", &["q"], 9)).await;
    assert_eq!((claimed.grants.len(), claimed.full), (0, vec!["q".into()]), "both slots are held");
    third.complete(&held[0]).await.unwrap();
    let claimed = third.claimed(make::claim("w", &["q"], 9)).await;
    assert_eq!((claimed.grants.len(), claimed.retry_at), (0, Some(after_start(1_000))), "all tokens are spent");
    invariants::check(&*third.store, &raw).await;
}

async fn a_newer_schema_is_refused(kind: Kind) {
    let home = Home::new(kind).await;
    drop(open(&home).await);
    let newer = match kind {
        Kind::Sqlite => "PRAGMA user_version = 99",
        Kind::Postgres => "INSERT INTO schema_version VALUES (99)",
    };
    home.raw().await.execute(newer).await;
    let error = home.open(&clock()).await.expect_err("a newer schema");
    assert!(matches!(error, StoreError::NewerSchema { found: 99, .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("schema version 99") && message.contains("start a newer tenure"), "{message}");
    assert!(!error.is_transient());
}

/// A schema that only adds to what this binary knows says so. One that says nothing, or names a later one, is refused.
#[tokio::test]
async fn a_newer_schema_that_takes_this_binary_is_no_obstacle() {
    let home = Home::new(Kind::Postgres).await;
    let first = open(&home).await;
    let raw = home.raw().await;
    let known = raw.number("SELECT max(version) FROM schema_version").await;
    raw.execute(&format!("INSERT INTO schema_version (version, oldest) VALUES ({known} + 1, {known})")).await;
    first.store.check_schema().await.unwrap();
    let second = open(&home).await;
    second.put_in("q").await;
    assert_eq!(raw.number("SELECT max(version) FROM schema_version").await, known + 1, "it stays as it is");

    raw.execute(&format!("INSERT INTO schema_version (version, oldest) VALUES ({known} + 2, {known} + 1)")).await;
    for refused in [first.store.check_schema().await, home.open(&clock()).await.map(|_| ())] {
        let error = refused.unwrap_err();
        assert!(matches!(error, StoreError::NewerSchema { .. }), "{error:?}");
        let message = error.to_string();
        let expected = format!("has schema version {} and needs a binary that knows version {}", known + 2, known + 1);
        assert!(message.contains(&expected), "{message}");
    }
}

/// Schemas before the first release cannot be upgraded. What is there stays as it is.
async fn an_older_schema_is_refused(kind: Kind) {
    let home = Home::new(kind).await;
    let raw = home.raw().await;
    let (older, version) = match kind {
        Kind::Sqlite => ("PRAGMA user_version = 7", "SELECT user_version FROM pragma_user_version"),
        Kind::Postgres => (
            "CREATE TABLE schema_version (version bigint NOT NULL, oldest bigint); INSERT INTO schema_version VALUES (7, 6)",
            "SELECT max(version) FROM schema_version",
        ),
    };
    raw.execute(older).await;
    let error = home.open(&clock()).await.expect_err("an older schema");
    assert!(matches!(error, StoreError::OlderSchema { found: 7, known: SCHEMA }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("schema version 7, from before the first release"), "{message}");
    assert!(message.contains("start with an empty store") && !error.is_transient(), "{message}");
    assert_eq!(raw.number(version).await, 7);
}

/// Looking changes nothing, and sees what `open` made.
async fn a_store_is_inspected_without_being_opened(kind: Kind) {
    let home = Home::new(kind).await;
    let before = inspect(&home.url()).await.unwrap();
    assert_eq!(before.map(|found| found.schema).unwrap_or_default(), 0);
    let client = open(&home).await;
    client.put_in("q").await;
    let found = inspect(&home.url()).await.unwrap().unwrap();
    assert_eq!((found.schema, found.queues.len()), (SCHEMA, 1));
    assert_eq!(found.in_use, kind == Kind::Sqlite);
    assert_eq!(found.server.is_some(), kind == Kind::Postgres);
    drop(client);
    assert!(!inspect(&home.url()).await.unwrap().unwrap().in_use);
}

/// A key that only a newer version knows, or that something has damaged.
async fn a_queue_with_an_unknown_fairness_key_is_served_in_order(kind: Kind) {
    let home = Home::new(kind).await;
    let first = open(&home).await;
    let fairness_key = Some(FairnessKey::Tenant);
    first.set_queue("q", QueueSettings { fairness_key, ..QueueSettings::default() }).await;
    let ids = first.put_many("q", 2).await;
    drop(first);
    home.raw().await.execute("UPDATE queues SET fairness_key = 'phase of the moon'").await;
    assert_eq!(open(&home).await.claim_ids(&["q"], 9).await, ids);
}

mod sqlite {
    use super::*;

    #[tokio::test]
    async fn a_queue_with_an_unknown_fairness_key_is_served_in_order() {
        super::a_queue_with_an_unknown_fairness_key_is_served_in_order(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn a_store_opened_again_goes_on() {
        super::a_store_opened_again_goes_on(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn a_newer_schema_is_refused() {
        super::a_newer_schema_is_refused(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn an_older_schema_is_refused() {
        super::an_older_schema_is_refused(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn a_store_is_inspected_without_being_opened() {
        super::a_store_is_inspected_without_being_opened(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn a_second_opening_is_refused_until_the_first_is_closed() {
        let home = Home::new(Kind::Sqlite).await;
        let first = open(&home).await;
        let error = home.open(&clock()).await.expect_err("the file is in use");
        assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("tenure.db") && message.contains("open in another process"), "{message}");
        // What was refused has left the first one alone.
        first.put_in("q").await;
        drop(first);
        assert_eq!(open(&home).await.queue("q").await.counts.ready, 1);
    }

    /// `flock` takes the same lock from a process of its own, or is refused it.
    #[tokio::test]
    async fn the_lock_holds_between_processes() {
        let home = Home::new(Kind::Sqlite).await;
        let lock = home.path().with_extension("db.lock");
        let taken = || !Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap().success();
        let store = open(&home).await;
        assert!(lock.exists() && taken());
        drop(store);
        assert!(!taken());
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_named_in_the_log_only() {
        let home = Home::new(Kind::Sqlite).await;
        let path = home.path().join("missing").join("tenure.db");
        let error = tenure_store::sqlite::Sqlite::open(&path, clock()).await.expect_err("no such folder");
        assert_eq!(error.to_string(), "the store cannot open now");
    }
}

mod postgres {
    use super::*;

    #[tokio::test]
    async fn a_queue_with_an_unknown_fairness_key_is_served_in_order() {
        super::a_queue_with_an_unknown_fairness_key_is_served_in_order(Kind::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_store_opened_again_goes_on() {
        super::a_store_opened_again_goes_on(Kind::Postgres).await;
    }

    #[tokio::test]
    async fn a_newer_schema_is_refused() {
        super::a_newer_schema_is_refused(Kind::Postgres).await;
    }

    #[tokio::test]
    async fn an_older_schema_is_refused() {
        super::an_older_schema_is_refused(Kind::Postgres).await;
    }

    #[tokio::test]
    async fn a_store_is_inspected_without_being_opened() {
        super::a_store_is_inspected_without_being_opened(Kind::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn control_planes_that_start_together_make_one_schema() {
        let home = Arc::new(Home::new(Kind::Postgres).await);
        let openings: Vec<_> = (0..6)
            .map(|_| {
                let home = Arc::clone(&home);
                tokio::spawn(async move { home.open(&clock()).await.unwrap() })
            })
            .collect();
        let mut stores = Vec::new();
        for opening in openings {
            stores.push(Client { store: opening.await.unwrap() });
        }
        assert_eq!(home.raw().await.number("SELECT count(*) FROM schema_version").await, 1);
        let id = stores[0].put_in("q").await;
        assert_eq!(stores[5].state(id).await, State::Ready);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_may_come_later() {
        // Nobody listens on port 1.
        let error = tenure_store::open("postgres://tenure:s3cret@127.0.0.1:1/tenure", clock()).await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        assert!(!error.chain().contains("s3cret"), "{}", error.chain());
    }
}

#[tokio::test]
async fn an_address_opens_its_store_and_an_unknown_one_keeps_its_password() {
    let home = Home::new(Kind::Sqlite).await;
    assert_eq!(tenure_store::open(&home.url(), clock()).await.unwrap().kind(), "sqlite");
    let home = Home::new(Kind::Postgres).await;
    assert_eq!(tenure_store::open(&home.url(), clock()).await.unwrap().kind(), "postgres");
    let error = tenure_store::open("mysql://root:s3cret@db/tenure", clock()).await.unwrap_err();
    assert!(error.to_string().contains("'mysql:…'") && !error.chain().contains("s3cret"), "{error}");
}

/// The process's clock and the server's: neither stands still, and a store says so.
#[tokio::test]
async fn without_a_frozen_clock_time_passes() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let home = Home::new(kind).await;
        let store = home.open(&Arc::new(Clock::default())).await.unwrap();
        let before = store.now().await.unwrap();
        tenure_testkit::wait_until("time passes", std::time::Duration::from_secs(10), async || {
            store.now().await.unwrap() > before
        })
        .await;
    }
}
