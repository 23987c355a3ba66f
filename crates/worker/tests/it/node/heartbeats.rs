use serde_json::json;

use super::*;

#[tokio::test]
async fn a_heartbeat_says_what_the_worker_is_and_holds() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    until("the sandbox is in a heartbeat", || peer.last_beat()["inventory"][0]["runtime_id"] == "rt-1").await;
    let beat = peer.last_beat();
    assert_eq!((&beat["hostname"], &beat["status"]), (&json!("host-a"), &json!("online")));
    assert_eq!(beat["providers"], json!(["process"]));
    assert_eq!(beat["capabilities"], json!(["remote_worker", "heartbeat", "inventory"]));
    assert_eq!(beat["capacity"], json!({"vcpus": 2}));
    let item = &beat["inventory"][0];
    assert_eq!((&item["sandbox_id"], &item["provider"]), (&json!("sb-1"), &json!("mock")));
    assert_eq!(item["state"], "running");
    assert!(item["generation"].as_i64().unwrap() >= 1);
    let beats = peer.with(|script| script.beats.clone());
    assert!(
        beats
            .windows(2)
            .all(|pair| pair[0]["boot_id"] == pair[1]["boot_id"] && pair[0]["seq"].as_u64() < pair[1]["seq"].as_u64())
    );
    running.stop().await;
}

#[tokio::test]
async fn a_heartbeat_that_fails_is_repeated() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    peer.with(|script| script.failing_beats = 3);
    let node = node(folder.path(), Arc::clone(&fake) as _, Some(&peer), settings());
    node.beat_once(&face(), None).await.unwrap_err();
    let running = Running::start(node);
    until("one is answered", || running.node.holdings().lease_renewal()).await;
    running.stop().await;
}

#[tokio::test]
async fn orphans_are_destroyed_and_later_runtimes_of_the_same_sandbox_are_not() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    for id in ["sb-2", "sb-3"] {
        running.node.spawn(lease(id, 1), order(id)).await.unwrap();
    }
    let orphans = vec![
        json!({"sandbox_id": "sb-1", "runtime_id": "rt-1"}),
        json!({"sandbox_id": "sb-2", "runtime_id": "rt-0"}),
        json!("rt-3"),
    ];
    peer.with(|script| script.orphans = orphans);
    until("the orphans are gone", || fake.ids() == ["rt-2"]).await;
    running.stop().await;
    assert_eq!(fake.ids(), ["rt-2"]);
}

#[tokio::test]
async fn the_control_plane_drains_and_undrains_and_revokes() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    peer.with(|script| {
        script.desired_status = Some("draining");
        script.revoked = vec!["token-1"];
    });
    until("it drains", || running.node.is_draining() && running.node.is_revoked("token-1")).await;
    until("it says so", || peer.last_beat()["status"] == "draining").await;
    assert!(!running.node.is_revoked("token-2"));
    peer.with(|script| script.desired_status = Some("online"));
    until("it is back", || !running.node.is_draining() && peer.last_beat()["status"] == "online").await;
    peer.with(|script| script.desired_status = None);
    running.stop().await;
}

#[tokio::test]
async fn a_worker_that_stops_drains_says_so_and_leaves_its_sandboxes() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let running = with_sandbox(folder.path(), &fake, &peer, settings()).await;
    // An admin's wish does not bring it back.
    peer.with(|script| script.desired_status = Some("online"));
    running.stop().await;
    // One that was on its way when the worker was told may come late; a control plane goes by `seq`.
    let mut beats = peer.with(|script| script.beats.clone());
    beats.sort_by_key(|beat| beat["seq"].as_u64());
    let statuses: Vec<_> = beats.iter().map(|beat| beat["status"].clone()).collect();
    assert_eq!(statuses[statuses.len() - 2..], [json!("draining"), json!("offline")]);
    assert_eq!(fake.ids(), ["rt-1"]);
}

#[tokio::test]
async fn calls_in_progress_end_before_the_worker_is_offline() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let node = node(folder.path(), Arc::clone(&fake) as _, Some(&peer), settings());
    let stop = CancellationToken::new();
    let (told, ended) = (CancellationToken::new(), CancellationToken::new());
    let serve = |stop: CancellationToken| {
        let (told, ended) = (told.clone(), ended.clone());
        async move {
            stop.cancelled().await;
            told.cancel();
            ended.cancelled().await;
            Ok(())
        }
    };
    let face = face();
    let run = node.run(&face, serve, stop.clone());
    let watch = async {
        until("a heartbeat", || !peer.last_beat().is_null()).await;
        stop.cancel();
        told.cancelled().await;
        until("it says that it drains", || peer.last_beat()["status"] == "draining").await;
        ended.cancel();
    };
    let (result, ()) = tokio::join!(run, watch);
    result.unwrap();
    assert_eq!(peer.last_beat()["status"], "offline");
}

#[tokio::test]
async fn tokens_come_from_a_file_a_bootstrap_key_or_a_signing_key() {
    let (folder, fake, peer) = (tempfile::tempdir().unwrap(), Fake::new(), Peer::start().await);
    let (file, key) = (folder.path().join("token"), folder.path().join("key"));
    std::fs::write(&key, "the-key\n").unwrap();
    let made = std::sync::atomic::AtomicUsize::new(0);
    let sources = [
        ("file", WorkerToken::file(&file)),
        ("bootstrap", WorkerToken::bootstrap_key_file(&key, None)),
        (
            "made",
            WorkerToken::made(move || Ok(format!("made-{}", made.fetch_add(1, std::sync::atomic::Ordering::SeqCst)))),
        ),
    ];
    for (name, token) in sources {
        peer.with(|script| script.tokens.clear());
        std::fs::write(&file, "one\n").unwrap();
        let calls = WorkerCalls::new(&peer.url, WORKER, token, None).unwrap();
        let holdings = Holdings::open(&folder.path().join(name), WORKER).unwrap();
        let providers = Providers::new("process", [Arc::clone(&fake) as Arc<dyn Provider>]);
        let node = Node::new(holdings, providers, Some(Plane::new(calls, PATIENCE)), settings());
        let running = Running::start(node);
        let first = || peer.with(|script| script.tokens.first().cloned().unwrap_or_default());
        until("a heartbeat", || !first().is_empty()).await;
        match name {
            "file" => {
                std::fs::write(&file, "two\n").unwrap();
                until("the new token is used", || peer.with(|script| script.tokens.last().unwrap() == "two")).await;
                assert_eq!(first(), "one");
            }
            "bootstrap" => assert_eq!(first(), "issued-1"),
            _ => {
                until("each call has its own", || peer.with(|script| script.tokens.contains(&"made-1".to_owned())))
                    .await
            }
        }
        running.stop().await;
    }
}
