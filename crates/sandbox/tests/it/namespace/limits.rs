use std::time::{Duration, Instant};

use tenure_sandbox::{Command, ErrorKind, Limits, Provider, Spec};

use super::Machine;
use crate::kit::{run, sh, text, wait_until, write};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_memory_hog_is_killed_and_its_neighbours_are_not() {
    let Some(machine) = Machine::with_groups("a_memory_hog_is_killed") else { return };
    let provider = &machine.provider;
    let limits = Limits { memory_bytes: Some(64 * MIB), disk_bytes: Some(32 * MIB), ..Limits::default() };
    let hog = machine.spawn_with(|spec| spec.limits = limits).await.id;
    let neighbour = machine.spawn().await.id;
    let mut waiting = provider.exec(&neighbour, Command::shell("echo ready; cat", &[])).await.expect("a command");
    crate::kit::read_until(&mut waiting, "ready").await;
    let output = sh(provider, &hog, "exec tail /dev/zero").await;
    assert_eq!(output.exit().code, 137);
    assert!(output.exit().out_of_memory, "{:?}", output.exit());
    let peak = output.exit().usage.peak_memory_bytes.expect("a peak");
    assert!((32 * MIB..=64 * MIB).contains(&peak), "{peak}");
    // The sandbox itself goes on, and so does everybody else.
    let calm = sh(provider, &hog, "echo alive").await;
    assert_eq!((calm.stdout.as_slice(), calm.exit().out_of_memory), (&b"alive\n"[..], false));
    assert_eq!(text(provider, &neighbour, "echo alive").await, "alive\n");
    drop(waiting);
    for id in [hog, neighbour] {
        provider.destroy(&id).await.expect("an end");
    }
}

#[tokio::test]
async fn what_a_command_used_is_not_counted_for_the_next_one() {
    let Some(machine) = Machine::with_groups("what_a_command_used_is_not_counted") else { return };
    let provider = &machine.provider;
    let id = machine.spawn().await.id;
    for _ in 0..3 {
        let busy = "head -c 48000000 /dev/zero | tail -c 47000000 | sha256sum >/dev/null; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let busy = sh(provider, &id, busy).await.exit().usage;
        let calm = sh(provider, &id, "true").await.exit().usage;
        let (busy_peak, calm_peak) = (busy.peak_memory_bytes.expect("a peak"), calm.peak_memory_bytes.expect("a peak"));
        assert!(busy_peak > 40 * MIB && calm_peak < 20 * MIB, "{busy_peak} {calm_peak}");
        let (busy_cpu, calm_cpu) = (busy.cpu.expect("a time"), calm.cpu.expect("a time"));
        assert!(calm_cpu < busy_cpu / 2, "{busy_cpu:?} {calm_cpu:?}");
    }
    provider.destroy(&id).await.expect("an end");
}

#[tokio::test]
async fn a_fork_bomb_meets_its_limit_and_the_sandbox_can_be_used() {
    let Some(machine) = Machine::with_groups("a_fork_bomb_meets_its_limit") else { return };
    let provider = &machine.provider;
    let id = machine.spawn_with(|spec| spec.limits.pids = Some(20)).await.id;
    let bomb = Command::shell("b() { b | b & }; b; sleep 1000", &[]).timeout(Duration::from_secs(2));
    let error = run(provider, &id, bomb).await.expect_err("a timeout");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    wait_until("no process", async || provider.stats(&id).await.expect("stats").pids == 0).await;
    assert_eq!(text(provider, &id, "echo alive").await, "alive\n");
    let many = sh(provider, &id, "for i in $(seq 40); do sleep 1000 & done").await;
    assert!(String::from_utf8_lossy(&many.stderr).contains("annot fork"), "{many:?}");
    assert!(provider.stats(&id).await.expect("stats").pids <= 20);
    provider.destroy(&id).await.expect("an end");
}

#[tokio::test]
async fn a_timeout_kills_processes_that_left_their_parents_and_sessions() {
    let Some(machine) = Machine::with_groups("a_timeout_kills_processes_that_left") else { return };
    let provider = &machine.provider;
    let id = machine.spawn().await.id;
    let line = "(setsid setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000' >/dev/null 2>&1 &) ; (sleep 1000 & kill -STOP $!) ; sleep 1000";
    let error =
        run(provider, &id, Command::shell(line, &[]).timeout(Duration::from_secs(1))).await.expect_err("a timeout");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    wait_until("no process", async || provider.stats(&id).await.expect("stats").pids == 0).await;
    // A command that was given up does not take the processes of another one with it.
    let mut other = provider.exec(&id, Command::shell("echo ready; sleep 1000", &[])).await.expect("a command");
    crate::kit::read_until(&mut other, "ready").await;
    drop(provider.exec(&id, Command::argv(["sleep", "1000"])).await.expect("a command"));
    wait_until("one left", async || provider.stats(&id).await.expect("stats").pids == 2).await;
    drop(other);
    wait_until("none left", async || provider.stats(&id).await.expect("stats").pids == 0).await;
    provider.destroy(&id).await.expect("an end");
}

#[tokio::test]
async fn the_share_of_a_core_is_a_limit() {
    let Some(machine) = Machine::with_groups("the_share_of_a_core_is_a_limit") else { return };
    let provider = &machine.provider;
    let id = machine.spawn_with(|spec| spec.limits.cpus = Some(0.05)).await.id;
    let started = Instant::now();
    let line = "exec timeout -s KILL 2 sh -c 'while :; do :; done & while :; do :; done'";
    let exit = sh(provider, &id, line).await.exit();
    let used = exit.usage.cpu.expect("cpu time").as_secs_f64();
    let most = started.elapsed().as_secs_f64() * 0.05 + 0.1;
    assert!(used <= most, "{used} s of {most} s");
    provider.destroy(&id).await.expect("an end");
}

#[tokio::test]
async fn a_full_disk_is_an_error_of_the_writer() {
    let Some(machine) = Machine::with_groups("a_full_disk_is_an_error") else { return };
    let provider = &machine.provider;
    let limits = Limits { memory_bytes: Some(128 * MIB), disk_bytes: Some(16 * MIB), ..Limits::default() };
    let id = machine.spawn_with(|spec| spec.limits = limits).await.id;
    for target in ["/workspace/big", "/tmp/big", "/dev/shm/big"] {
        let output = sh(provider, &id, &format!("head -c 20000000 /dev/zero > {target}; echo $?; rm {target}")).await;
        assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{target}: {output:?}");
    }
    let error = write(provider, &id, "big", &vec![0; 20_000_000]).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::ResourceLimit);
    let files = sh(provider, &id, "i=0; while true > /tmp/f$i; do i=$((i+1)); done 2>/dev/null; echo $i").await;
    assert!(
        String::from_utf8_lossy(&files.stdout).trim().parse::<u32>().is_ok_and(|files| files < 10_000),
        "{files:?}"
    );
    sh(provider, &id, "rm -f /tmp/*").await;
    let stats = provider.stats(&id).await.expect("stats");
    assert!(stats.disk_bytes < 8 * MIB && stats.memory_limit_bytes == 128 * MIB, "{stats:?}");
    provider.destroy(&id).await.expect("an end");
}

#[tokio::test]
async fn a_disk_larger_than_memory_is_on_disk_and_leaves_no_loop_device() {
    let test = "a_disk_larger_than_memory_is_on_disk";
    let Some(machine) = Machine::with_groups(test) else { return };
    let provider = &machine.provider;
    let limits = Limits { memory_bytes: Some(64 * MIB), disk_bytes: Some(512 * MIB), ..Limits::default() };
    let spec = Spec { limits, ..Spec::new("sb", "host") };
    let runtime = match provider.spawn(spec).await {
        Ok(runtime) => runtime,
        Err(error) if error.kind() == ErrorKind::Invalid => return tenure_testkit::skip(test, &error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let id = runtime.id;
    let output = sh(
        provider,
        &id,
        "head -c 200000000 /dev/zero > big && stat -c %s big; echo x > /usr/local/x 2>/dev/null; true",
    )
    .await;
    assert_eq!(output.stdout, b"200000000\n", "{output:?}");
    let output = sh(provider, &id, "head -c 600000000 /dev/zero > big").await;
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{output:?}");
    provider.destroy(&id).await.expect("an end");
    let state = machine.dir.path().to_string_lossy().into_owned();
    wait_until("no loop device", async || !loop_files().iter().any(|file| file.contains(&state))).await;
}

/// The files that loop devices of this machine are made of.
fn loop_files() -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok()).collect()
}

#[tokio::test]
async fn a_request_above_the_maximum_or_without_a_way_to_enforce_it_is_refused() {
    let Some(machine) = Machine::new("a_request_above_the_maximum") else { return };
    let refused = async |limits: Limits| {
        let spec = Spec { limits, ..Spec::new("sb", "host") };
        machine.provider.spawn(spec).await.expect_err("refused").kind()
    };
    assert_eq!(refused(Limits { memory_bytes: Some(1), ..Limits::default() }).await, ErrorKind::Invalid);
    assert_eq!(refused(Limits { cpus: Some(f64::NAN), ..Limits::default() }).await, ErrorKind::Invalid);
    assert_eq!(refused(Limits { pids: Some(0), ..Limits::default() }).await, ErrorKind::Invalid);
    let dir = machine.data_only();
    let mut settings = super::settings(dir.path());
    settings.max_limits.memory_bytes = Some(64 * MIB);
    let provider = tenure_sandbox::NamespaceProvider::new(settings).expect("a provider");
    let limits = Limits { memory_bytes: Some(65 * MIB), ..Limits::default() };
    let error = provider.spawn(Spec { limits, ..Spec::new("sb", "host") }).await.expect_err("above the maximum");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
