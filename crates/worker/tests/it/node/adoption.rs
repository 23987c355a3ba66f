use tenure_worker::node::{Adoption, NodeError};

use super::*;

#[tokio::test]
async fn what_a_killed_worker_left_is_adopted_completed_or_destroyed() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node_before = node(folder.path(), Arc::clone(&fake) as _, None, settings());
    for id in ["sb-1", "sb-2", "sb-3"] {
        node_before.spawn(lease(id, 2), order(id)).await.unwrap();
    }
    node_before.destroy(lease("sb-3", 2), target("sb-3")).await.unwrap();
    // Killed while the provider worked: the intent is there, and the record of the runtime is not.
    fake.with(|inside| inside.hold_spawns = true);
    let lost = tokio::spawn({
        let node = Arc::clone(&node_before);
        async move { node.spawn(lease("sb-4", 2), order("sb-4")).await }
    });
    let log = folder.path().join("holdings.log");
    until("the intent is on the disk", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().any(|line| line.contains("\"intent\"") && line.contains("sb-4"))
    })
    .await;
    let (copy, killed) = (tempfile::tempdir().unwrap(), node_before);
    std::fs::copy(&log, copy.path().join("holdings.log")).unwrap();
    fake.let_go.notify_one();
    lost.await.unwrap().unwrap();
    drop(killed);
    // sb-2 ended by itself, sb-3 was destroyed and came back, sb-9 was never asked for.
    fake.with(|inside| inside.runtimes.remove("rt-2"));
    fake.leave("rt-30", "sb-3");
    fake.leave("rt-90", "sb-9");

    let node = node(copy.path(), Arc::clone(&fake) as _, None, settings());
    let adoption = node.adopt().await.unwrap();
    assert_eq!(adoption, Adoption { adopted: 1, completed: 1, destroyed: 2, lost: 1 });
    assert_eq!(fake.ids(), ["rt-1", "rt-4"]);
    let held: Vec<_> = node.all().into_iter().map(|held| (held.sandbox_id, held.runtime_id.0)).collect();
    assert_eq!(held, [("sb-1".to_owned(), "rt-1".to_owned()), ("sb-4".to_owned(), "rt-4".to_owned())]);
    assert!(matches!(node.find(&target("sb-2")).await, Err(NodeError::Destroyed(_))));
    // The same lease is still good, an older one is not.
    node.destroy(lease("sb-1", 1), target("sb-1")).await.unwrap_err();
    node.destroy(lease("sb-1", 2), target("sb-1")).await.unwrap();
}

#[tokio::test]
async fn an_intent_without_a_runtime_is_given_up_and_the_spawn_can_be_repeated() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let before = node(folder.path(), Arc::clone(&fake) as _, None, settings());
    before.spawn(lease("sb-1", 1), order("sb-1")).await.unwrap();
    drop(before);
    let log = folder.path().join("holdings.log");
    let text = std::fs::read_to_string(&log).unwrap();
    let without: String = text.lines().filter(|line| !line.contains("rt-1")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&log, without).unwrap();
    fake.with(|inside| inside.runtimes.clear());
    let node = node(folder.path(), Arc::clone(&fake) as _, None, settings());
    assert_eq!(node.adopt().await.unwrap(), Adoption::default());
    assert!(matches!(node.find(&target("sb-1")).await, Err(NodeError::NotFound(_))));
    node.spawn(lease("sb-1", 1), order("sb-1")).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_that_its_supervisor_froze_thaws_with_the_next_renewal() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    with_sandbox(folder.path(), &fake, &peer, settings()).await.stop().await;
    fake.with(|inside| inside.runtimes.get_mut("rt-1").unwrap().state = tenure_sandbox::RuntimeState::Frozen);
    let node = node(folder.path(), Arc::clone(&fake) as _, Some(&peer), settings());
    node.adopt().await.unwrap();
    assert!(node.find(&target("sb-1")).await.unwrap().frozen);
    let running = Running::start(node);
    until("it is thawed", || fake.state_of("rt-1") == Some(tenure_sandbox::RuntimeState::Running)).await;
    running.stop().await;
}
