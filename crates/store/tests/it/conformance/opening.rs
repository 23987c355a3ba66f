//! Opening a store: new, again, together, of a newer version, by a second process.

use std::process::Command;
use std::sync::Arc;

use tenure_core::TaskId;
use tenure_core::queue::{FairnessKey, QueueSettings, Rate};
use tenure_core::task::State;
use tenure_store::{Clock, StoreError};

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
        let expected = format!("has schema version {} and takes binaries that know version {}", known + 2, known + 1);
        assert!(message.contains(&expected), "{message}");
    }
}

async fn a_store_of_the_first_schema_is_brought_up_to_date(kind: Kind) {
    a_store_of_an_older_schema_is_brought_up_to_date(kind, 1).await;
}

async fn a_store_of_the_second_schema_is_brought_up_to_date(kind: Kind) {
    a_store_of_an_older_schema_is_brought_up_to_date(kind, 2).await;
}

/// A store that an older version left behind: an ended task and one that waits.
async fn a_store_of_an_older_schema_is_brought_up_to_date(kind: Kind, version: usize) {
    let home = Home::new(kind).await;
    let raw = home.raw().await;
    let (schemas, is_version, id, time) = match kind {
        Kind::Sqlite => (
            [
                include_str!("../../../src/sqlite/migrations/0001_tasks.sql"),
                include_str!("../../../src/sqlite/migrations/0002_speed.sql"),
            ],
            "PRAGMA user_version = {}",
            "X'01a1e20772bd7d6d800000000000000N'",
            "1700000000000",
        ),
        Kind::Postgres => (
            [
                include_str!("../../../src/postgres/migrations/0001_tasks.sql"),
                include_str!("../../../src/postgres/migrations/0002_speed.sql"),
            ],
            "CREATE TABLE schema_version (version bigint NOT NULL); INSERT INTO schema_version VALUES ({})",
            "'01a1e207-72bd-7d6d-8000-00000000000N'",
            "now()",
        ),
    };
    for schema in &schemas[..version] {
        match kind {
            Kind::Sqlite => rusqlite::Connection::open(home.path()).unwrap().execute_batch(schema).unwrap(),
            Kind::Postgres => raw.execute(schema).await,
        }
    }
    raw.execute(&is_version.replace("{}", &version.to_string())).await;
    raw.execute("INSERT INTO queues (name) VALUES ('q')").await;
    let shard = if kind == Kind::Postgres { "shard, " } else { "" };
    let of_shard = if kind == Kind::Postgres { "0, " } else { "" };
    raw.execute(&format!("INSERT INTO queue_counts (queue_id, {shard}ready, finished) VALUES (1, {of_shard}1, 1)"))
        .await;
    raw.execute("UPDATE meta SET next_number = 1000").await;
    for seq in ["1", "2"] {
        let id = id.replace('N', seq);
        raw.execute(&format!(
            "INSERT INTO bodies (seq, id, queue_id, operator, tenant, workspace, priority, payload, created_at, run_at)
             VALUES ({seq}, {id}, 1, 'op', 'default', 'default', 5, '{{}}', {time}, {time})"
        ))
        .await;
    }
    let (ended, waits) = (id.replace('N', "1"), id.replace('N', "2"));
    raw.execute(&format!(
        "INSERT INTO finished (seq, queue_id, ended, finished_at, result, attempt, fence, attempt_id, token, worker_id,
             granted_at, attempt_state, attempt_reason, receipt)
         VALUES (1, 1, 1, {time}, '42', 1, 1, {ended}, {ended}, 'w', {time}, 0, 0, 1)"
    ))
    .await;
    raw.execute(&format!(
        "INSERT INTO ready (seq, id, queue_id, priority, at, message, attempt, fence)
         VALUES (2, {waits}, 1, 5, {time}, 7, 0, 0)"
    ))
    .await;
    let client = open(&home).await;
    let id = |seq: u128| TaskId::from_u128(0x01a1_e207_72bd_7d6d_8000_0000_0000_0000 + seq);
    assert_eq!(client.state(id(1)).await, State::Succeeded);
    assert_eq!(client.attempts(id(1)).await.len(), 1);
    let limited = QueueSettings { max_running: Some(1), ..QueueSettings::default() };
    client.set_queue("q", limited).await;
    assert_eq!(client.claim_ids(&["q"], 9).await, [id(2)]);
    let counts = client.queue("q").await.counts;
    assert_eq!((counts.ready, counts.running, counts.finished), (0, 1, 1));
    // The views are as they were, and nobody owns what was there before owners were.
    assert_eq!(raw.number("SELECT count(*) FROM tasks WHERE owner IS NULL").await, 2);
    assert_eq!(raw.number("SELECT count(*) FROM attempt_history").await, 2);
    assert_eq!(raw.number("SELECT count(*) FROM queues WHERE tenant IS NULL").await, 1);
    client.store.register_task_key("kid", "{}").await.unwrap();
    assert_eq!(client.store.task_keys().await.unwrap().len(), 1);
    invariants::check_rows(&*client.store, &raw).await;
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
    async fn a_store_of_the_first_schema_is_brought_up_to_date() {
        super::a_store_of_the_first_schema_is_brought_up_to_date(Kind::Sqlite).await;
    }

    #[tokio::test]
    async fn a_store_of_the_second_schema_is_brought_up_to_date() {
        super::a_store_of_the_second_schema_is_brought_up_to_date(Kind::Sqlite).await;
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
    async fn a_store_of_the_first_schema_is_brought_up_to_date() {
        super::a_store_of_the_first_schema_is_brought_up_to_date(Kind::Postgres).await;
    }

    #[tokio::test]
    async fn a_store_of_the_second_schema_is_brought_up_to_date() {
        super::a_store_of_the_second_schema_is_brought_up_to_date(Kind::Postgres).await;
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
