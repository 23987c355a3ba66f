use std::time::Duration;

use tenure_sandbox::{Deadlines, ErrorKind, Provider, RuntimeState, Spec};

use super::Machine;
use crate::kit::{read, sh, text, wait_until, write};

#[tokio::test]
async fn a_sandbox_runs_commands_as_its_user_and_ends_without_a_trace() {
    let Some(machine) = Machine::new("a_sandbox_runs_commands") else { return };
    let provider = &machine.provider;
    let runtime = machine.spawn().await;
    assert_eq!(runtime.state, RuntimeState::Running);
    assert_eq!(runtime.image_resolved, "host");
    assert_eq!(
        text(provider, &runtime.id, "id -u; pwd; hostname; echo $HOME").await,
        "1000\n/workspace\nsandbox\n/workspace\n"
    );
    write(provider, &runtime.id, "a/b", b"content").await.expect("a file");
    assert_eq!(read(provider, &runtime.id, "/workspace/a/b").await.expect("a file"), b"content");
    assert_eq!(text(provider, &runtime.id, "cat a/b; echo more >> a/b; stat -c %u a a/b").await, "content1000\n1000\n");
    provider.destroy(&runtime.id).await.expect("an end");
    provider.destroy(&runtime.id).await.expect("the same end");
    assert_eq!(provider.status(&runtime.id).await.expect_err("gone").kind(), ErrorKind::NotFound);
    let left: Vec<_> = std::fs::read_dir(machine.dir.path().join("namespace/sandboxes")).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_frozen_sandbox_does_nothing_until_it_is_thawed() {
    let Some(machine) = Machine::with_groups("a_frozen_sandbox_does_nothing") else { return };
    let provider = &machine.provider;
    let id = machine.spawn().await.id;
    sh(provider, &id, "(while :; do date +%N > /workspace/tick; done) >/dev/null 2>&1 &").await;
    wait_until("a tick", async || read(provider, &id, "tick").await.is_ok()).await;
    provider.freeze(&id).await.expect("frozen");
    assert_eq!(provider.status(&id).await.expect("a status").state, RuntimeState::Frozen);
    let command = tenure_sandbox::Command::argv(["true"]);
    assert_eq!(provider.exec(&id, command).await.expect_err("frozen").kind(), ErrorKind::Frozen);
    assert_eq!(read(provider, &id, "tick").await.expect_err("frozen").kind(), ErrorKind::Frozen);
    // The kernel may count what was used before a moment later.
    wait_until("no use of the processor", async || provider.stats(&id).await.expect("stats").cpu_percent < 1.0).await;
    provider.thaw(&id).await.expect("thawed");
    let tick = read(provider, &id, "tick").await.expect("a tick");
    wait_until("another tick", async || read(provider, &id, "tick").await.is_ok_and(|now| now != tick)).await;
    provider.freeze(&id).await.expect("frozen");
    provider.destroy(&id).await.expect("a frozen sandbox can be destroyed");
}

#[tokio::test]
async fn a_sandbox_keeps_its_deadlines_itself() {
    let Some(machine) = Machine::with_groups("a_sandbox_keeps_its_deadlines_itself") else { return };
    let provider = &machine.provider;
    let id = machine.spawn().await.id;
    let state = async || provider.status(&id).await.expect("a status").state;
    let freeze = Deadlines { freeze_after: Some(Duration::from_millis(1)), destroy_after: None };
    provider.set_deadlines(&id, freeze).await.expect("deadlines");
    wait_until("frozen", async || state().await == RuntimeState::Frozen).await;
    provider.set_deadlines(&id, Deadlines::default()).await.expect("deadlines");
    provider.thaw(&id).await.expect("thawed");
    assert_eq!(text(provider, &id, "echo alive").await, "alive\n");
    let destroy = Deadlines { freeze_after: None, destroy_after: Some(Duration::from_millis(1)) };
    provider.set_deadlines(&id, destroy).await.expect("deadlines");
    wait_until("ended", async || state().await == RuntimeState::Stopped).await;
    let command = tenure_sandbox::Command::argv(["true"]);
    assert_eq!(provider.exec(&id, command).await.expect_err("ended").kind(), ErrorKind::Destroyed);
    provider.destroy(&id).await.expect("the rest is removed");
}

#[tokio::test]
async fn the_maximum_of_sandboxes_holds() {
    let Some(machine) = Machine::new("the_maximum_of_sandboxes_holds") else { return };
    let dir = machine.data_only();
    let mut settings = super::settings(dir.path());
    settings.max_sandboxes = 2;
    let provider = tenure_sandbox::NamespaceProvider::new(settings).expect("a provider");
    let first = provider.spawn(Spec::new("1", "host")).await.expect("a sandbox");
    provider.spawn(Spec::new("2", "host")).await.expect("a sandbox");
    assert_eq!(provider.spawn(Spec::new("3", "host")).await.expect_err("full").kind(), ErrorKind::Unavailable);
    provider.destroy(&first.id).await.expect("an end");
    let third = provider.spawn(Spec::new("3", "host")).await.expect("room again");
    for runtime in provider.list().await.expect("a list") {
        provider.destroy(&runtime.id).await.expect("an end");
    }
    assert_eq!(third.sandbox_id, "3");
}

#[tokio::test]
async fn an_image_is_a_private_copy_and_a_read_only_root_is_read_only() {
    let Some(machine) = Machine::new("an_image_is_a_private_copy") else { return };
    let provider = &machine.provider;
    let one = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    let two = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    assert_eq!(text(provider, &one, "id -u; echo x > /usr/mark; rm -r /usr/share/doc; cat /usr/mark").await, "0\nx\n");
    assert_eq!(sh(provider, &two, "cat /usr/mark").await.exit().code, 1, "another sandbox sees it");
    assert!(!std::path::Path::new("/usr/mark").exists(), "the host sees it");
    let fixed = machine
        .spawn_with(|spec| {
            spec.read_only_root = true;
            spec.user_id = Some(0);
        })
        .await
        .id;
    assert_ne!(sh(provider, &fixed, "echo x > /mark").await.exit().code, 0);
    assert_ne!(sh(provider, &fixed, "echo x > /etc/mark").await.exit().code, 0);
    assert_eq!(
        text(provider, &fixed, "echo x > /tmp/mark; echo y > /workspace/mark; cat /tmp/mark /workspace/mark").await,
        "x\ny\n"
    );
    for id in [one, two, fixed] {
        provider.destroy(&id).await.expect("an end");
    }
}

#[tokio::test]
async fn a_host_directory_is_mounted_for_the_user_and_not_writable_if_so_asked() {
    let Some(machine) = Machine::new("a_host_directory_is_mounted") else { return };
    let shared = tempfile::tempdir().expect("a directory");
    std::fs::write(shared.path().join("in"), "from outside").expect("a file");
    for read_only in [true, false] {
        let mount = tenure_sandbox::Mount {
            source: shared.path().to_owned(),
            target: "/workspace/shared".to_owned(),
            read_only,
        };
        let id = machine.spawn_with(|spec| spec.mounts.push(mount)).await.id;
        assert_eq!(text(&machine.provider, &id, "cat shared/in").await, "from outside");
        let wrote = sh(&machine.provider, &id, "echo from inside > shared/out").await.exit().code == 0;
        assert_eq!(wrote, !read_only);
        machine.provider.destroy(&id).await.expect("an end");
    }
    assert_eq!(std::fs::read_to_string(shared.path().join("out")).expect("a file"), "from inside\n");
}
