use std::path::Path;

use tenure_sandbox::{Runtime, RuntimeState, Spec};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn lease(resource: &str, generation: i64) -> Lease {
    Lease {
        resource_id: resource.to_owned(),
        holder_id: "w".to_owned(),
        generation,
        expires_at: Timestamp::now().checked_add(HOUR).unwrap(),
    }
}

fn order() -> Order {
    let mut spec = Spec::new("sb-1", "host");
    spec.env.insert("TOKEN".to_owned(), "hunter2".to_owned());
    Order { provider: "mock".to_owned(), spec, owner_id: None, ttl: HOUR, accepted_at: Timestamp::now() }
}

fn runtime(id: &str) -> Runtime {
    Runtime {
        id: RuntimeId(id.to_owned()),
        sandbox_id: "sb-1".to_owned(),
        image: "host".to_owned(),
        image_resolved: "host".to_owned(),
        state: RuntimeState::Running,
        created: std::time::SystemTime::now(),
        metadata: BTreeMap::new(),
    }
}

fn open(folder: &Path) -> Holdings {
    Holdings::open(folder, "w").unwrap()
}

fn is_stale(result: Result<(), LeaseRefusal>) -> bool {
    matches!(result, Err(LeaseRefusal::Stale(_)))
}

#[tokio::test]
async fn a_lower_generation_is_refused_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    holdings.admit(&lease("sb-1", 4), "sb-1").await.unwrap();
    holdings.admit(&lease("sb-1", 4), "sb-1").await.unwrap();
    assert!(is_stale(holdings.check_lease(&lease("sb-1", 3), "sb-1")));
    drop(holdings);
    let holdings = open(folder.path());
    assert!(is_stale(holdings.check_lease(&lease("sb-1", 3), "sb-1")));
    holdings.check_lease(&lease("sb-1", 4), "sb-1").unwrap();
    holdings.check_lease(&lease("sb-2", 1), "sb-2").unwrap();
}

#[tokio::test]
async fn a_lease_of_others_or_of_the_past_permits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    let other = Lease { holder_id: "x".to_owned(), ..lease("sb-1", 1) };
    assert!(is_stale(holdings.check_lease(&other, "sb-1")));
    assert!(is_stale(holdings.check_lease(&lease("sb-2", 1), "sb-1")));
    assert!(is_stale(holdings.check_lease(&lease(" ", 1), " ")));
    let past = Lease { expires_at: Timestamp::now(), ..lease("sb-1", 1) };
    assert!(matches!(holdings.check_lease(&past, "sb-1"), Err(LeaseRefusal::Expired(_))));
    // A stale one that has also expired is stale.
    holdings.admit(&lease("sb-1", 2), "sb-1").await.unwrap();
    assert!(is_stale(holdings.check_lease(&past, "sb-1")));
}

#[tokio::test]
async fn intents_and_runtimes_survive_and_secrets_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    holdings.admit(&lease("sb-1", 1), "sb-1").await.unwrap();
    holdings.intend("sb-1", &lease("sb-1", 1), order(), 0).await.unwrap();
    drop(holdings);
    let holdings = open(folder.path());
    assert!(matches!(holdings.entry("sb-1").unwrap().stage, Stage::Intended { .. }));
    holdings.hold("sb-1", &runtime("rt-1"));
    let held_until = holdings.entry("sb-1").unwrap().held_until;
    drop(holdings);
    let text = std::fs::read_to_string(folder.path().join("holdings.log")).unwrap();
    assert!(text.contains("rt-1") && !text.contains("hunter2"), "{text}");
    let holdings = open(folder.path());
    let entry = holdings.entry("sb-1").unwrap();
    assert_eq!(entry.runtime_id(), Some(&RuntimeId("rt-1".to_owned())));
    assert_eq!(entry.held_until, held_until, "the deadline stays where it was");
    assert!(entry.expires.unwrap().left() > HOUR / 2);
    assert_eq!(holdings.sandbox_of("rt-1").as_deref(), Some("sb-1"));
}

#[tokio::test]
async fn a_destroy_before_the_spawn_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    holdings.admit(&lease("sb-1", 2), "sb-1").await.unwrap();
    holdings.gone("sb-1").await.unwrap();
    drop(holdings);
    let holdings = open(folder.path());
    let late = holdings.intend("sb-1", &lease("sb-1", 2), order(), 0).await;
    assert!(matches!(late, Err(NodeError::Destroyed(_))), "{late:?}");
    holdings.admit(&lease("sb-1", 3), "sb-1").await.unwrap();
    holdings.intend("sb-1", &lease("sb-1", 3), order(), 0).await.unwrap();
}

#[tokio::test]
async fn the_maximum_counts_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    holdings.intend("sb-1", &lease("sb-1", 1), order(), 1).await.unwrap();
    assert!(matches!(holdings.intend("sb-2", &lease("sb-2", 1), order(), 1).await, Err(NodeError::Full(_))));
    holdings.fail("sb-1");
    holdings.intend("sb-2", &lease("sb-2", 1), order(), 1).await.unwrap();
}

#[tokio::test]
async fn one_worker_per_folder() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    assert!(matches!(Holdings::open(folder.path(), "w"), Err(OpenError::Locked(_))));
    drop(holdings);
    assert!(matches!(Holdings::open(folder.path(), "other"), Err(OpenError::Foreign { .. })));
    open(folder.path());
}

#[tokio::test]
async fn a_damaged_file_is_not_taken_for_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    holdings.admit(&lease("sb-1", 4), "sb-1").await.unwrap();
    drop(holdings);
    let path = folder.path().join("holdings.log");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(Holdings::open(folder.path(), "w"), Err(OpenError::Damaged { .. })));
}

#[tokio::test]
async fn a_long_log_is_written_anew_and_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    holdings.intend("sb-1", &lease("sb-1", 1), order(), 0).await.unwrap();
    holdings.hold("sb-1", &runtime("rt-1"));
    holdings.admit(&lease("sb-1", 1), "sb-1").await.unwrap();
    let big = "x".repeat(1 << 20);
    let answer = |id: usize, age: Duration| Answer {
        request_id: format!("req-{id}"),
        body_sha256: String::new(),
        status: 200,
        body: big.clone(),
        answered_at: Timestamp::now().checked_sub(age).unwrap(),
    };
    for id in 0..12 {
        holdings.keep_answer(answer(id, HOUR));
    }
    holdings.keep_answer(answer(12, Duration::ZERO));
    holdings.admit(&lease("sb-1", 2), "sb-1").await.unwrap();
    drop(holdings);
    let length = std::fs::metadata(folder.path().join("holdings.log")).unwrap().len();
    assert!(length < 8 << 20, "{length}");
    let holdings = open(folder.path());
    assert_eq!(holdings.answers().iter().map(|answer| answer.request_id.as_str()).collect::<Vec<_>>(), ["req-12"]);
    assert_eq!(holdings.entry("sb-1").unwrap().runtime_id(), Some(&RuntimeId("rt-1".to_owned())));
    assert!(is_stale(holdings.check_lease(&lease("sb-1", 1), "sb-1")));
}

#[tokio::test]
async fn a_fence_goes_a_day_after_the_last_token() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    let day = Duration::from_secs(24 * 3600);
    let ago = |age: Duration| Timestamp::now().checked_sub(age).unwrap();
    for (id, expired, gone) in
        [("old", day + HOUR, day + HOUR), ("token", HOUR, day + HOUR), ("gone", day + HOUR, HOUR)]
    {
        holdings.admit(&lease(id, 1), id).await.unwrap();
        holdings.update(id, |entry| {
            entry.token_expires_at = ago(expired);
            entry.stage = Stage::Gone { generation: 1, runtime_id: None, at: ago(gone) };
        });
    }
    holdings.admit(&lease("held", 1), "held").await.unwrap();
    holdings.intend("held", &lease("held", 1), order(), 0).await.unwrap();
    holdings.update("held", |entry| entry.token_expires_at = ago(2 * day));
    holdings.forget_old();
    let left: Vec<_> = ["old", "token", "gone", "held"].into_iter().filter(|id| holdings.entry(id).is_some()).collect();
    assert_eq!(left, ["token", "gone", "held"]);
}

#[tokio::test]
async fn moments_of_a_former_start_of_the_machine_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let holdings = open(folder.path());
    holdings.admit(&lease("sb-1", 1), "sb-1").await.unwrap();
    holdings.intend("sb-1", &lease("sb-1", 1), order(), 0).await.unwrap();
    drop(holdings);
    let known = read(folder.path(), "w", "another start").unwrap();
    let entry = &known.entries["sb-1"];
    assert!(entry.held_until.has_passed(), "the lease has to be renewed");
    assert!(entry.held_until.after(HOUR).left() > HOUR / 2, "and its grace begins now");
    assert!(entry.expires.unwrap().left() > HOUR / 2);
}
