//! The provider `docker`, with a real daemon.

pub mod daemon;

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tenure_sandbox::{Command, Deadlines, DockerProvider, DockerSettings, ErrorKind, Provider, RuntimeState, Spec};

use self::daemon::{Daemon, IMAGE};
use crate::kit::{read, run, sh, text, wait_until, write};

struct Bench {
    provider: DockerProvider,
    folder: TempDir,
    daemon: Daemon,
}

impl Bench {
    async fn start(test: &str, change: impl FnOnce(&mut DockerSettings)) -> Option<Self> {
        let daemon = match Daemon::start() {
            Ok(daemon) => daemon,
            Err(reason) => {
                tenure_testkit::skip(test, &reason);
                return None;
            }
        };
        let folder = TempDir::new().expect("a folder");
        let mut settings = settings(&daemon, folder.path());
        change(&mut settings);
        let provider = DockerProvider::open(settings).await.expect("a provider");
        Some(Self { provider, folder, daemon })
    }

    /// Forgets the provider, as a process that was killed does, and opens it again.
    async fn restarted(self) -> Self {
        let Self { provider, folder, daemon } = self;
        drop(provider);
        let provider = DockerProvider::open(settings(&daemon, folder.path())).await.expect("the provider again");
        Self { provider, folder, daemon }
    }
}

pub fn settings(daemon: &Daemon, folder: &Path) -> DockerSettings {
    let mut settings = DockerSettings::new(folder, env!("CARGO_BIN_EXE_tenure-sandbox-agent"));
    settings.socket = daemon.socket().to_str().expect("UTF-8").to_owned();
    settings.user = "1000:1000".to_owned();
    settings.default_image = IMAGE.to_owned();
    settings
}

fn spec() -> Spec {
    Spec::new("sb-1", IMAGE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_runs_commands_and_serves_files_and_leaves_nothing() {
    let test = "docker::a_container_runs_commands_and_serves_files_and_leaves_nothing";
    let Some(bench) = Bench::start(test, |_| ()).await else { return };
    let provider = &bench.provider;
    provider.healthy().await.expect("healthy");
    let runtime = provider.spawn(spec()).await.expect("a sandbox");
    let id = &runtime.id;
    assert_eq!(runtime.state, RuntimeState::Running);
    assert_eq!(bench.daemon.containers(), std::slice::from_ref(&id.0));

    // Files and commands see the same, as the user of the settings, without any right.
    write(provider, id, "/workspace/in", b"from outside").await.expect("written");
    assert_eq!(text(provider, id, "cat in; echo -n mine > out; id -u").await, "from outside1000\n");
    assert_eq!(read(provider, id, "out").await.expect("read"), b"mine");
    assert_eq!(read(provider, id, "../../etc/shadow").await.expect_err("refused").kind(), ErrorKind::Invalid);
    let status = text(provider, id, "cat /proc/self/status").await;
    for line in ["CapBnd:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} is missing in {status}");
    }
    assert_eq!(sh(provider, id, "exit 7").await.exit().code, 7);
    assert_eq!(text(provider, id, "pwd").await, "/workspace\n");

    let mut other = Spec::new("sb-2", IMAGE);
    other.user_id = Some(4321);
    let other = provider.spawn(other).await.expect("a sandbox").id;
    assert_eq!(text(provider, &other, "id -u; touch mine && echo yes").await, "4321\nyes\n");
    provider.destroy(&other).await.expect("destroyed");

    // The agent's socket is out of reach, and nothing of the host can be written.
    assert_eq!(
        text(provider, id, "find /.tenure/run; touch /.tenure/run/x /.tenure/agent/x 2>/dev/null || echo no").await,
        "/.tenure/run\nno\n"
    );
    assert_eq!(text(provider, id, "cat /proc/net/dev | grep -c :").await, "1\n");
    assert!(text(provider, id, "env").await.lines().all(|line| !line.starts_with("CARGO")));

    let stats = provider.stats(id).await.expect("statistics");
    assert!(stats.pids > 0 && stats.memory_bytes > 0 && stats.memory_limit_bytes == 512 << 20, "{stats:?}");

    provider.destroy(id).await.expect("destroyed");
    provider.destroy(id).await.expect("destroyed twice");
    assert_eq!(run(provider, id, Command::argv(["true"])).await.expect_err("gone").kind(), ErrorKind::Destroyed);
    assert!(bench.daemon.containers().is_empty());
    let left = std::fs::read_dir(bench.folder.path().join("docker")).expect("a folder");
    let left = left.filter(|entry| entry.as_ref().expect("an entry").file_name().to_string_lossy().starts_with("dkr-"));
    assert_eq!(left.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_container_hold() {
    let Some(bench) = Bench::start("docker::limits_of_a_container_hold", |_| ()).await else { return };
    let provider = &bench.provider;
    let mut small = spec();
    small.limits.memory_bytes = Some(64 << 20);
    small.limits.pids = Some(32);
    let id = provider.spawn(small).await.expect("a sandbox").id;
    // `tail` keeps what has no end of line.
    let hog = sh(provider, &id, "head -c 200000000 /dev/zero | tail > /dev/null; echo $?").await;
    assert!(String::from_utf8_lossy(&hog.stdout).contains("137") || hog.exit().code == 137, "{hog:?}");
    let bomb = sh(provider, &id, "for i in $(seq 100); do sleep 100 & done; wait").await;
    assert_ne!(bomb.exit().code, 0, "{bomb:?}");
    let mut refused = spec();
    refused.limits.disk_bytes = Some(1 << 20);
    assert_eq!(provider.spawn(refused).await.expect_err("not enforced").kind(), ErrorKind::Invalid);
    let mut refused = spec();
    refused.limits.memory_bytes = Some(1 << 50);
    assert_eq!(provider.spawn(refused).await.expect_err("above the maximum").kind(), ErrorKind::Invalid);
    assert_eq!(bench.daemon.containers(), std::slice::from_ref(&id.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_root_limits_the_disk() {
    let Some(bench) = Bench::start("docker::a_read_only_root_limits_the_disk", |_| ()).await else { return };
    let mut spec = spec();
    spec.read_only_root = true;
    spec.limits.disk_bytes = Some(4 << 20);
    let id = bench.provider.spawn(spec).await.expect("a sandbox").id;
    let full = sh(&bench.provider, &id, "head -c 8000000 /dev/zero > /workspace/big").await;
    assert_ne!(full.exit().code, 0, "{full:?}");
    let size = bench.provider.stat_file(&id, "big").await.expect("the file").size;
    assert_eq!(size, 4 << 20, "what fits was written");
    assert_ne!(sh(&bench.provider, &id, "touch /bin/x").await.exit().code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_kills_detached_processes_too() {
    let Some(bench) = Bench::start("docker::a_timeout_kills_detached_processes_too", |_| ()).await else { return };
    let id = bench.provider.spawn(spec()).await.expect("a sandbox").id;
    let command = Command::shell("setsid sleep 1000 & setsid sh -c 'sleep 1001 & sleep 1002' & wait", &[]);
    let error = run(&bench.provider, &id, command.timeout(Duration::from_secs(2))).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let left = || async { text(&bench.provider, &id, "ps -o args | grep -c '[s]leep 100' || true").await };
    wait_until("all processes are killed", async || left().await == "0\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_adopted_after_a_restart_and_others_are_left_alone() {
    let test = "docker::a_container_is_adopted_after_a_restart_and_others_are_left_alone";
    let Some(bench) = Bench::start(test, |_| ()).await else { return };
    let mut kept = spec();
    kept.metadata.insert("owner".to_owned(), "me".to_owned());
    kept.env.insert("COLOUR".to_owned(), "blue".to_owned());
    let id = bench.provider.spawn(kept).await.expect("a sandbox").id;
    let mut bound = Spec::new("sb-2", IMAGE);
    bound.die_with_parent = true;
    bench.provider.spawn(bound).await.expect("a sandbox");
    let other_folder = TempDir::new().expect("a folder");
    let other = DockerProvider::open(settings(&bench.daemon, other_folder.path())).await.expect("another worker");
    let other_id = other.spawn(Spec::new("sb-3", IMAGE)).await.expect("a sandbox").id;

    let bench = bench.restarted().await;
    let adopted = bench.provider.adopt().await.expect("adopted");
    assert_eq!(adopted.len(), 1, "{adopted:?}");
    assert_eq!((&adopted[0].id, adopted[0].sandbox_id.as_str()), (&id, "sb-1"));
    assert_eq!(adopted[0].metadata["owner"], "me");
    assert_eq!(text(&bench.provider, &id, "echo $COLOUR").await, "blue\n");
    let mut expected = [id.0.clone(), other_id.0.clone()];
    expected.sort();
    let mut containers = bench.daemon.containers();
    containers.sort();
    assert_eq!(containers, expected, "the one that ends with its parent is gone, the other worker's is not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_container_stands_still_and_keeps_its_deadline() {
    let test = "docker::a_frozen_container_stands_still_and_keeps_its_deadline";
    let Some(bench) = Bench::start(test, |_| ()).await else { return };
    let provider = &bench.provider;
    let id = provider.spawn(spec()).await.expect("a sandbox").id;
    let _running = provider
        .exec(&id, Command::shell("i=0; while true; do i=$((i+1)); echo $i > count; done", &[]))
        .await
        .expect("a command");
    wait_until("it counts", async || read(provider, &id, "count").await.is_ok()).await;
    provider.freeze(&id).await.expect("frozen");
    assert_eq!(provider.status(&id).await.expect("a status").state, RuntimeState::Frozen);
    assert_eq!(run(provider, &id, Command::argv(["true"])).await.expect_err("frozen").kind(), ErrorKind::Frozen);
    provider.thaw(&id).await.expect("thawed");
    assert_eq!(sh(provider, &id, "true").await.exit().code, 0);

    provider.freeze(&id).await.expect("frozen");
    let deadlines = Deadlines { freeze_after: None, destroy_after: Some(Duration::from_millis(100)) };
    provider.set_deadlines(&id, deadlines).await.expect("deadlines");
    wait_until("the container has ended", async || {
        provider.status(&id).await.expect("a status").state == RuntimeState::Stopped
    })
    .await;
    let bench = bench.restarted().await;
    assert!(bench.provider.adopt().await.expect("adopted").is_empty());
    assert!(bench.daemon.containers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_not_there_is_pulled_beside_the_request() {
    let test = "docker::an_image_that_is_not_there_is_pulled_beside_the_request";
    let Some(bench) = Bench::start(test, |_| ()).await else { return };
    // Nothing answers at that registry.
    let absent = || Spec::new("sb-1", "127.0.0.1:1/absent:latest");
    let error = bench.provider.spawn(absent()).await.expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    wait_until("the failure of the pull is known", async || {
        bench.provider.spawn(absent()).await.expect_err("not there").kind() == ErrorKind::Invalid
    })
    .await;
    assert!(bench.daemon.containers().is_empty());
}
