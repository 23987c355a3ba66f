use std::time::Duration;

use tenure_worker::node::{LeaseRefusal, NodeError};

use super::*;

fn alone(folder: &Path, fake: &Arc<Fake>) -> Arc<Node> {
    node(folder, Arc::clone(fake) as _, None, settings())
}

#[tokio::test]
async fn spawn_is_idempotent_per_sandbox() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    let spawns = (0..8).map(|_| {
        let node = Arc::clone(&node);
        tokio::spawn(async move { node.spawn(lease("sb-1", 1), order("sb-1")).await.unwrap().runtime_id })
    });
    for spawn in spawns.collect::<Vec<_>>() {
        assert_eq!(spawn.await.unwrap().0, "rt-1");
    }
    assert_eq!(fake.with(|inside| inside.spawned), 1);
    let held = node.spawn(lease("sb-1", 2), order("sb-1")).await.unwrap();
    assert_eq!((held.runtime_id.0.as_str(), held.provider_name.as_str(), held.generation), ("rt-1", "mock", 2));
}

#[tokio::test]
async fn a_spawn_goes_on_when_its_caller_is_gone() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    fake.with(|inside| inside.hold_spawns = true);
    let caller = tokio::spawn({
        let node = Arc::clone(&node);
        async move { node.spawn(lease("sb-1", 1), order("sb-1")).await }
    });
    until("the intent is there", || node.holdings().check_lease(&lease("sb-1", 0), "sb-1").is_err()).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    fake.let_go.notify_one();
    until("the sandbox is held", || !node.all().is_empty()).await;
}

#[tokio::test]
async fn a_question_about_a_sandbox_in_creation_waits_for_it() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    fake.with(|inside| inside.hold_spawns = true);
    let spawn = tokio::spawn({
        let node = Arc::clone(&node);
        async move { node.spawn(lease("sb-1", 1), order("sb-1")).await }
    });
    until("the fence is there", || node.holdings().check_lease(&lease("sb-1", 0), "sb-1").is_err()).await;
    let question = tokio::spawn({
        let node = Arc::clone(&node);
        async move {
            loop {
                match node.find(&target("sb-1")).await {
                    // The intent comes a moment after the fence.
                    Err(NodeError::NotFound(_)) => tokio::task::yield_now().await,
                    answer => return answer.map(|held| held.runtime_id.0),
                }
            }
        }
    });
    fake.let_go.notify_one();
    assert_eq!(question.await.unwrap().unwrap(), "rt-1");
    spawn.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_failed_spawn_leaves_nothing_and_can_be_repeated() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    fake.with(|inside| inside.fail_spawn = true);
    assert!(matches!(node.spawn(lease("sb-1", 1), order("sb-1")).await, Err(NodeError::Provider(_))));
    assert!(matches!(node.find(&target("sb-1")).await, Err(NodeError::NotFound(_))));
    fake.with(|inside| inside.fail_spawn = false);
    node.spawn(lease("sb-1", 1), order("sb-1")).await.unwrap();
    // What happens before it counts as running is part of the spawn.
    let fails = SpawnOrder {
        prepare: Some(Box::new(|_, _| Box::pin(async { Err(NodeError::Invalid("a damaged snapshot".to_owned())) }))),
        ..order("sb-2")
    };
    assert!(matches!(node.spawn(lease("sb-2", 1), fails).await, Err(NodeError::Invalid(_))));
    assert_eq!(fake.ids(), ["rt-1"]);
}

#[tokio::test]
async fn an_absent_sandbox_counts_as_destroyed_and_a_late_spawn_does_not_bring_it_back() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    node.destroy(lease("sb-1", 3), target("sb-1")).await.unwrap();
    for generation in [2, 3] {
        let late = node.spawn(lease("sb-1", generation), order("sb-1")).await.unwrap_err();
        assert!(matches!(late, NodeError::Destroyed(_) | NodeError::Lease(LeaseRefusal::Stale(_))), "{late:?}");
    }
    assert_eq!(fake.with(|inside| inside.spawned), 0);
    assert!(matches!(node.find(&target("sb-1")).await, Err(NodeError::NotFound(_))), "nothing was destroyed");
    node.spawn(lease("sb-1", 4), order("sb-1")).await.unwrap();
    node.destroy(lease("sb-1", 4), target("sb-1")).await.unwrap();
    node.destroy(lease("sb-1", 4), target("sb-1")).await.unwrap();
    assert!(matches!(node.find(&target("sb-1")).await, Err(NodeError::Destroyed(_))));
    assert!(fake.ids().is_empty());
}

#[tokio::test]
async fn a_lease_that_does_not_permit_it_destroys_nothing() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    node.spawn(lease("sb-1", 5), order("sb-1")).await.unwrap();
    let expired = Lease { expires_at: Timestamp::now(), ..lease("sb-1", 5) };
    let other = Lease { holder_id: "worker-b".to_owned(), ..lease("sb-1", 6) };
    for refused in [lease("sb-1", 4), lease("sb-2", 9), other, expired] {
        let error = node.destroy(refused, target("sb-1")).await.unwrap_err();
        assert!(matches!(error, NodeError::Lease(_)), "{error:?}");
    }
    assert_eq!(fake.ids(), ["rt-1"]);
}

#[tokio::test]
async fn sandboxes_are_found_by_either_name_and_not_by_those_of_others() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    for id in ["sb-1", "sb-2"] {
        node.spawn(lease(id, 1), order(id)).await.unwrap();
    }
    let named = |sandbox_id: &str, runtime_id: &str, provider: &str| {
        let node = Arc::clone(&node);
        let target = Target {
            sandbox_id: sandbox_id.to_owned(),
            runtime_id: runtime_id.to_owned(),
            provider: provider.to_owned(),
        };
        async move { node.find(&target).await.map(|held| held.runtime_id.0) }
    };
    assert_eq!(named("sb-1", "", "").await.unwrap(), "rt-1");
    assert_eq!(named("", "rt-2", "process").await.unwrap(), "rt-2");
    assert_eq!(named("sb-2", "rt-2", "mock").await.unwrap(), "rt-2");
    assert!(matches!(named("", "", "").await, Err(NodeError::Invalid(_))));
    assert!(matches!(named("sb-1", "rt-2", "").await, Err(NodeError::NotFound(_))));
    assert!(matches!(named("sb-1", "rt-9", "").await, Err(NodeError::NotFound(_))));
    assert!(matches!(named("sb-3", "", "").await, Err(NodeError::NotFound(_))));
    assert!(matches!(named("sb-1", "", "docker").await, Err(NodeError::UnknownProvider(_))));
    // A destroy that names another runtime of the sandbox finds that one absent.
    let wrong = Target { runtime_id: "rt-9".to_owned(), ..target("sb-1") };
    node.destroy(lease("sb-1", 1), wrong).await.unwrap();
    let foreign = Target { runtime_id: "rt-2".to_owned(), ..target("sb-1") };
    assert!(matches!(node.destroy(lease("sb-1", 1), foreign).await, Err(NodeError::NotFound(_))));
    assert_eq!(fake.ids(), ["rt-1", "rt-2"]);
}

#[tokio::test]
async fn a_draining_worker_keeps_what_it_has_and_takes_nothing_new() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    node.spawn(lease("sb-1", 1), order("sb-1")).await.unwrap();
    node.drain();
    assert!(matches!(node.spawn(lease("sb-2", 1), order("sb-2")).await, Err(NodeError::Draining)));
    node.find(&target("sb-1")).await.unwrap();
    node.undrain();
    node.spawn(lease("sb-2", 1), order("sb-2")).await.unwrap();
    node.begin_stop();
    node.undrain();
    assert!(node.is_draining(), "who stops does not come back");
}

#[tokio::test]
async fn a_worker_holds_no_more_than_its_maximum() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let limited = NodeSettings { max_sandboxes: 2, ..settings() };
    let node = node(folder.path(), Arc::clone(&fake) as _, None, limited);
    let spawns = (0..6).map(|id| {
        let (node, id) = (Arc::clone(&node), format!("sb-{id}"));
        tokio::spawn(async move { node.spawn(lease(&id, 1), order(&id)).await.is_ok() })
    });
    let mut taken = 0;
    for spawn in spawns.collect::<Vec<_>>() {
        taken += usize::from(spawn.await.unwrap());
    }
    assert_eq!((taken, fake.ids().len()), (2, 2));
    let held = node.all().remove(0).sandbox_id;
    node.destroy(lease(&held, 1), target(&held)).await.unwrap();
    node.spawn(lease("sb-9", 1), order("sb-9")).await.unwrap();
}

#[tokio::test]
async fn a_renewal_needs_a_control_plane() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::new());
    let node = alone(folder.path(), &fake);
    let refused = node.renew(&lease("sb-1", 1), Duration::from_secs(60)).await;
    assert!(matches!(refused, Err(NodeError::Unreachable(_))), "{refused:?}");
}
