use std::time::Duration;

use tenure_sandbox::{Command, Enforcement, ErrorKind, Feature, Limits, RuntimeId};

use super::{Bench, cases};
use crate::kit::{read_until, run, sh, text, wait_until, write};

cases!(
    a_limit_that_is_not_enforced_is_refused,
    a_memory_hog_is_killed_and_its_neighbours_are_not,
    a_fork_bomb_stays_within_its_sandbox,
    a_full_disk_is_a_limit_of_its_sandbox,
);

const MIB: u64 = 1 << 20;

fn enforced(bench: &Bench, feature: Feature) -> bool {
    bench.provider().capabilities().support(feature).enforcement == Enforcement::Enforced
}

async fn limited(bench: &Bench, limits: Limits) -> RuntimeId {
    let mut spec = bench.spec("sb-limited");
    spec.limits = limits;
    bench.provider().spawn(spec).await.expect("a sandbox").id
}

async fn a_limit_that_is_not_enforced_is_refused(bench: &mut Bench) {
    let limits = [
        (Feature::Memory, Limits { memory_bytes: Some(64 * MIB), ..Limits::default() }),
        (Feature::Cpu, Limits { cpus: Some(0.5), ..Limits::default() }),
        (Feature::Pids, Limits { pids: Some(32), ..Limits::default() }),
        (Feature::Disk, Limits { disk_bytes: Some(64 * MIB), ..Limits::default() }),
    ];
    for (feature, limits) in limits {
        let mut spec = bench.spec("sb-limited");
        spec.limits = limits;
        let spawned = bench.provider().spawn(spec).await;
        match bench.provider().capabilities().support(feature).enforcement {
            Enforcement::Enforced => drop(spawned.expect("a sandbox")),
            Enforcement::BestEffort | Enforcement::None => {
                assert_eq!(spawned.expect_err("a refusal").kind(), ErrorKind::Invalid, "{feature:?}");
            }
        }
    }
}

async fn a_memory_hog_is_killed_and_its_neighbours_are_not(bench: &mut Bench) {
    if !enforced(bench, Feature::Memory) {
        return;
    }
    let neighbour = bench.spawn_as("sb-neighbour").await.id;
    let mut waiting = bench
        .provider()
        .exec(&neighbour, Command::shell("echo up; while [ ! -e go ]; do sleep 0.02; done", &[]))
        .await
        .expect("a command");
    read_until(&mut waiting, "up").await;
    let id = limited(bench, Limits { memory_bytes: Some(64 * MIB), ..Limits::default() }).await;
    // `tail` keeps everything that has no newline.
    let output =
        run(bench.provider(), &id, Command::argv(["tail", "/dev/zero"]).timeout(Duration::from_secs(120))).await;
    let exit = output.expect("an exit").exit();
    assert_eq!((exit.code, exit.out_of_memory), (137, true));
    assert_eq!(text(bench.provider(), &id, "echo alive").await, "alive\n");
    assert_eq!(text(bench.provider(), &neighbour, "echo alive").await, "alive\n");
    write(bench.provider(), &neighbour, "go", b"").await.expect("a write");
    assert_eq!(waiting.output(100).await.expect("an exit").exit().code, 0, "the neighbour's command was killed");
}

async fn a_fork_bomb_stays_within_its_sandbox(bench: &mut Bench) {
    if !enforced(bench, Feature::Pids) {
        return;
    }
    let neighbour = bench.spawn_as("sb-neighbour").await.id;
    let id = limited(bench, Limits { pids: Some(32), ..Limits::default() }).await;
    let bomb = Command::shell("bomb() { bomb | bomb & bomb; }; bomb", &[]).timeout(Duration::from_secs(2));
    // It ends when it cannot fork, or is killed.
    if let Err(error) = run(bench.provider(), &id, bomb).await {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
    assert_eq!(
        text(bench.provider(), &neighbour, "for i in 1 2 3 4 5 6 7 8; do sleep 0 & done; wait; echo alive").await,
        "alive\n"
    );
    wait_until("the sandbox runs commands again", async || {
        let output = run(bench.provider(), &id, Command::argv(["true"])).await;
        output.is_ok_and(|output| output.exit().code == 0)
    })
    .await;
    bench.provider().destroy(&id).await.expect("a destruction");
}

async fn a_full_disk_is_a_limit_of_its_sandbox(bench: &mut Bench) {
    if !enforced(bench, Feature::Disk) {
        return;
    }
    let id = limited(bench, Limits { disk_bytes: Some(32 * MIB), ..Limits::default() }).await;
    let output = sh(bench.provider(), &id, "head -c 200M /dev/zero > big").await;
    assert_ne!(output.exit().code, 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space"), "{:?}", output.stderr);
    let error = write(bench.provider(), &id, "more", &vec![1; 8 << 20]).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::ResourceLimit, "{error}");
    bench.provider().delete_file(&id, "big", false).await.expect("a deletion");
    write(bench.provider(), &id, "more", &vec![1; 8 << 20]).await.expect("room again");
}
