use std::time::Duration;

use tenure_sandbox::{Command, Deadlines, ErrorKind, RuntimeId, RuntimeState};

use super::{Bench, cases, cases_of_docker};
use crate::kit::{read, run, sh, text, wait_until, write};

cases!(
    a_spawn_returns_a_running_sandbox,
    a_destroyed_sandbox_refuses_every_call,
    an_unknown_sandbox_is_not_found,
    the_maximum_is_kept_and_a_destroyed_sandbox_makes_room,
    sandboxes_do_not_share_files,
    a_frozen_sandbox_refuses_calls_until_it_is_thawed,
    a_sandbox_ends_at_its_deadline,
    a_deadline_is_replaced,
    a_sandbox_is_adopted_with_its_files,
);

cases_of_docker!(
    a_spawn_returns_a_running_sandbox,
    a_destroyed_sandbox_refuses_every_call,
    an_unknown_sandbox_is_not_found,
    the_maximum_is_kept_and_a_destroyed_sandbox_makes_room,
    sandboxes_do_not_share_files,
    a_frozen_sandbox_refuses_calls_until_it_is_thawed,
    a_sandbox_ends_at_its_deadline,
    a_deadline_is_replaced,
    a_sandbox_is_adopted_with_its_files,
);

async fn a_spawn_returns_a_running_sandbox(bench: &mut Bench) {
    let mut spec = bench.spec("sb-1");
    spec.metadata.insert("owner".to_owned(), "me".to_owned());
    let spec_image = spec.image.clone();
    let runtime = bench.provider().spawn(spec).await.expect("a sandbox");
    assert!(!runtime.id.0.is_empty());
    assert_eq!((&runtime.sandbox_id, &runtime.image), (&"sb-1".to_owned(), &spec_image));
    assert_eq!((runtime.state, runtime.metadata["owner"].as_str()), (RuntimeState::Running, "me"));
    assert_eq!(bench.provider().status(&runtime.id).await.expect("a status").state, RuntimeState::Running);
    let other = bench.spawn_as("sb-2").await;
    assert_ne!(other.id, runtime.id);
    let mut listed: Vec<_> =
        bench.provider().list().await.expect("a list").into_iter().map(|runtime| runtime.sandbox_id).collect();
    listed.sort();
    assert_eq!(listed, ["sb-1", "sb-2"]);
    bench.provider().healthy().await.expect("health");
}

async fn a_destroyed_sandbox_refuses_every_call(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    write(provider, &id, "file", b"x").await.expect("a write");
    provider.destroy(&id).await.expect("a destruction");
    provider.destroy(&id).await.expect("an absent sandbox is not an error");
    let kinds = [
        run(provider, &id, Command::argv(["true"])).await.err(),
        read(provider, &id, "file").await.err(),
        write(provider, &id, "file", b"x").await.err(),
        provider.list_files(&id, "/").await.err(),
        provider.stat_file(&id, "file").await.err(),
        provider.status(&id).await.err(),
        provider.console_log(&id, 0).await.err(),
        provider.stats(&id).await.err(),
    ];
    for error in kinds {
        let kind = error.expect("a refusal").kind();
        assert!(matches!(kind, ErrorKind::Destroyed | ErrorKind::NotFound), "{kind:?}");
    }
    assert!(provider.list().await.expect("a list").is_empty());
}

async fn an_unknown_sandbox_is_not_found(bench: &mut Bench) {
    let unknown = RuntimeId("../sb-1".to_owned());
    let error = run(bench.provider(), &unknown, Command::argv(["true"])).await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(bench.provider().status(&unknown).await.expect_err("a refusal").kind(), ErrorKind::NotFound);
    bench.provider().destroy(&unknown).await.expect("an absent sandbox is not an error");
}

async fn the_maximum_is_kept_and_a_destroyed_sandbox_makes_room(bench: &mut Bench) {
    bench.set_maximum(2).await;
    let first = bench.spawn().await;
    bench.spawn().await;
    let error = bench.provider().spawn(bench.spec("sb-3")).await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    bench.provider().destroy(&first).await.expect("a destruction");
    bench.spawn().await;
}

async fn sandboxes_do_not_share_files(bench: &mut Bench) {
    let (one, two) = (bench.spawn_as("sb-1").await.id, bench.spawn_as("sb-2").await.id);
    write(bench.provider(), &one, "file", b"one").await.expect("a write");
    assert_eq!(read(bench.provider(), &two, "file").await.expect_err("nothing").kind(), ErrorKind::NotFound);
    assert_eq!(sh(bench.provider(), &two, "cat file").await.exit().code, 1);
}

async fn a_frozen_sandbox_refuses_calls_until_it_is_thawed(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    if !provider.capabilities().freeze {
        return;
    }
    write(provider, &id, "file", b"x").await.expect("a write");
    provider.freeze(&id).await.expect("a freeze");
    assert_eq!(provider.status(&id).await.expect("a status").state, RuntimeState::Frozen);
    let error = run(provider, &id, Command::argv(["true"])).await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Frozen);
    assert_eq!(read(provider, &id, "file").await.expect_err("a refusal").kind(), ErrorKind::Frozen);
    provider.thaw(&id).await.expect("a thaw");
    assert_eq!(text(provider, &id, "cat file").await, "x");
    provider.freeze(&id).await.expect("a freeze");
    provider.destroy(&id).await.expect("a frozen sandbox can be destroyed");
}

async fn a_sandbox_ends_at_its_deadline(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let deadlines = Deadlines {
        freeze_after: provider.capabilities().freeze.then_some(Duration::from_millis(10)),
        destroy_after: Some(Duration::from_millis(200)),
    };
    provider.set_deadlines(&id, deadlines).await.expect("deadlines");
    wait_until("the sandbox has ended", async || {
        let status = provider.status(&id).await;
        status.map_or(true, |runtime| runtime.state == RuntimeState::Stopped)
    })
    .await;
    assert!(run(provider, &id, Command::argv(["true"])).await.is_err());
    provider.destroy(&id).await.expect("what is left is removed");
}

async fn a_deadline_is_replaced(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let soon = Deadlines { freeze_after: None, destroy_after: Some(Duration::from_secs(20)) };
    provider.set_deadlines(&id, soon).await.expect("deadlines");
    provider.set_deadlines(&id, Deadlines::default()).await.expect("no deadlines");
    let later = Deadlines { freeze_after: None, destroy_after: Some(Duration::from_secs(3600)) };
    provider.set_deadlines(&id, later).await.expect("deadlines");
    assert_eq!(text(provider, &id, "echo alive").await, "alive\n");
}

async fn a_sandbox_is_adopted_with_its_files(bench: &mut Bench) {
    if !bench.provider().capabilities().adopt {
        return;
    }
    let id = bench.spawn().await;
    let gone = bench.spawn().await;
    write(bench.provider(), &id, "file", b"kept").await.expect("a write");
    bench.provider().destroy(&gone).await.expect("a destruction");
    bench.restart().await;
    let adopted: Vec<_> = bench.provider().adopt().await.expect("a list").into_iter().map(|r| r.id).collect();
    assert_eq!(adopted, std::slice::from_ref(&id));
    assert_eq!(text(bench.provider(), &id, "cat file").await, "kept");
    assert!(bench.provider().status(&gone).await.is_err());
    bench.provider().destroy(&id).await.expect("a destruction");
    bench.restart().await;
    assert!(bench.provider().adopt().await.expect("a list").is_empty());
}
