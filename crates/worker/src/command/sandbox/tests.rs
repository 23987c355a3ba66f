//! Pools and settings, with sandboxes that are folders of this machine.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tenure_client::TestLease;
use tenure_sandbox::{Egress, ErrorKind, Mount, ProcessProvider, ProcessSettings};

use super::pool::{Pool, Pools};
use super::settings::{SandboxSettings, Sandboxes};

const GRACE: Duration = Duration::from_secs(10);

fn tools(kill_grace: Duration) -> crate::run::Tools {
    crate::run::Tools::new(tenure_outbound::Policy::default(), kill_grace, false).unwrap()
}

fn sandboxes(folder: &TempDir, warm: usize) -> Sandboxes {
    let settings = ProcessSettings { data_dir: folder.path().to_owned(), max_sandboxes: None, ignore_limits: false };
    Sandboxes { provider: Arc::new(ProcessProvider::open(settings).unwrap()), warm }
}

async fn until(what: &str, done: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn live(sandboxes: &Sandboxes) -> usize {
    sandboxes.provider.list().await.unwrap().len()
}

fn text(text: &str) -> SandboxSettings {
    SandboxSettings::default().with(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_keeps_a_bounded_number_ready_and_hands_each_out_once() {
    let folder = TempDir::new().unwrap();
    let sandboxes = sandboxes(&folder, 2);
    let mut pools = Pools::default();
    let pool = pools.pool(&SandboxSettings::default(), &sandboxes);
    pools.fill();
    until("two are ready", async || pool.ready() == 2).await;
    let mut seen = HashSet::new();
    for _ in 0..6 {
        let taken = pool.take().await.unwrap();
        assert!(seen.insert(taken.id().clone()), "{} was handed out twice", taken.id());
        until("one is made for it", async || pool.ready() == 2).await;
        assert_eq!(live(&sandboxes).await, 3);
        taken.destroy().await;
        assert_eq!(live(&sandboxes).await, 2);
    }
    pools.close().await;
    assert_eq!(live(&sandboxes).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_died_while_it_waited_is_not_handed_out() {
    let folder = TempDir::new().unwrap();
    let sandboxes = sandboxes(&folder, 1);
    let mut pools = Pools::default();
    let pool = pools.pool(&SandboxSettings::default(), &sandboxes);
    pools.fill();
    until("one is ready", async || pool.ready() == 1).await;
    let waiting = sandboxes.provider.list().await.unwrap().remove(0).id;
    sandboxes.provider.destroy(&waiting).await.unwrap();
    let taken = pool.take().await.unwrap();
    assert_ne!(*taken.id(), waiting);
    assert!(sandboxes.provider.status(taken.id()).await.is_ok());
    drop(taken);
    pools.close().await;
    assert_eq!(live(&sandboxes).await, 0, "a dropped one is removed");
}

#[test]
fn only_the_timeout_does_not_make_another_kind_of_sandbox() {
    let folder = TempDir::new().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _context = runtime.enter();
    let sandboxes = sandboxes(&folder, 0);
    let mut pools = Pools::default();
    let mut pool = |settings: &str| Arc::as_ptr(&pools.pool(&text(settings), &sandboxes));
    let plain: *const Pool = pool("");
    assert_eq!(plain, pool("timeout=5s"));
    for other in ["image=etl", "memory=1g", "cpus=1", "allow=example.com", "mount=/a:/b"] {
        assert_ne!(plain, pool(other), "{other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_reports_what_it_used_and_its_sandbox_is_gone() {
    let folder = TempDir::new().unwrap();
    let sandboxes = sandboxes(&folder, 0);
    let pool = Pools::default().pool(&SandboxSettings::default(), &sandboxes);
    let lease = TestLease::new("test", &json!({"day": 1}));
    let line = "cat; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
    let result = super::run(line, &SandboxSettings::default(), &pool, &tools(GRACE), &lease.context()).await;
    assert_eq!(result.unwrap().value(), json!({"day": 1}));
    assert!(lease.metrics().is_some());
    assert_eq!(live(&sandboxes).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_and_a_cancel_end_a_command() {
    let folder = TempDir::new().unwrap();
    let sandboxes = sandboxes(&folder, 0);
    let pool = Pools::default().pool(&SandboxSettings::default(), &sandboxes);
    let settings = SandboxSettings::default();
    // Only a cancel waits for the grace.
    for (lose, grace) in [(true, Duration::from_secs(3600)), (false, Duration::from_millis(100))] {
        let lease = TestLease::new("test", &());
        let task = lease.context();
        let tools = tools(grace);
        let run = super::run("trap '' TERM; sleep 1000", &settings, &pool, &tools, &task);
        let end = async {
            until("it runs", async || live(&sandboxes).await == 1).await;
            if lose { lease.lose() } else { lease.cancel("user") }
        };
        let both = async { tokio::join!(run, end) };
        let (ended, ()) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it ends at once");
        assert!(ended.is_err());
        assert_eq!(live(&sandboxes).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_not_enforced_is_a_failure_of_the_configuration() {
    let folder = TempDir::new().unwrap();
    let sandboxes = sandboxes(&folder, 0);
    let settings = text("memory=64m");
    let pool = Pools::default().pool(&settings, &sandboxes);
    assert_eq!(pool.take().await.unwrap_err().kind(), ErrorKind::Invalid);
    let error =
        super::run("true", &settings, &pool, &tools(GRACE), &TestLease::new("test", &()).context()).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), ("CONFIGURATION", false));
}

#[test]
fn settings_are_read_from_pairs() {
    let settings =
        text("image=etl memory=256m cpus=0.5 pids=64 disk=1g timeout=1m30s allow=a.com,*.b.com mount=/a:/b:ro");
    assert_eq!(settings.image, "etl");
    assert_eq!(settings.limits.memory_bytes, Some(256 << 20));
    assert_eq!(settings.limits.cpus, Some(0.5));
    assert_eq!(settings.limits.pids, Some(64));
    assert_eq!(settings.limits.disk_bytes, Some(1 << 30));
    assert_eq!(settings.timeout, Some(Duration::from_secs(90)));
    assert_eq!(settings.egress, Egress::Allow(vec!["a.com".to_owned(), "*.b.com".to_owned()]));
    assert_eq!(settings.mounts, [Mount { source: "/a".into(), target: "/b".to_owned(), read_only: true }]);
    assert_eq!(text("allow=").egress, Egress::None);
    for wrong in ["memory", "memory=x", "cpus=0", "pids=0", "timeout=0s", "mount=a:/b", "colour=red", "image="] {
        assert!(SandboxSettings::default().with(wrong).is_err(), "{wrong}");
    }
}
