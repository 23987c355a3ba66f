//! Snapshot archives between the worker and the control plane.

use serde_json::json;
use sha2::{Digest, Sha256};

use super::kit::*;

#[tokio::test]
async fn an_archive_is_stored_with_its_checksum_and_returned() {
    let worker = Worker::start().await;
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let sha256: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let url = worker.url("/rpc/snapshots/snap-0a1b2c3d");
    let (status, body) = answer(worker.signed(worker.http.put(&url)).body(content.clone()).send().await.unwrap()).await;
    assert_eq!(status, 200);
    assert_eq!(body, json!({"snapshot_id": "snap-0a1b2c3d", "size_bytes": content.len(), "sha256": sha256}));
    let response = worker.signed(worker.http.get(&url)).send().await.unwrap();
    assert_eq!(response.headers()["x-snapshot-sha256"], sha256.as_str());
    assert!(response.bytes().await.unwrap() == content);
    let replaced = worker.signed(worker.http.put(&url)).body("other").send().await.unwrap();
    assert_eq!(replaced.status(), 200);
    let response = worker.signed(worker.http.get(&url)).send().await.unwrap();
    assert_eq!(response.bytes().await.unwrap(), "other");
}

#[tokio::test]
async fn ids_cannot_leave_the_folder_and_absent_archives_are_not_found() {
    let worker = Worker::start().await;
    for id in ["..%2f..%2fetc%2fpasswd", ".hidden", "a%00b", "a%20b", &"x".repeat(129), "a@b"] {
        let request = worker.signed(worker.http.put(worker.url(&format!("/rpc/snapshots/{id}"))));
        let (status, body) = answer(request.body("x").send().await.unwrap()).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (400, Some("invalid")), "{id}: {body}");
    }
    let (status, body) =
        answer(worker.signed(worker.http.get(worker.url("/rpc/snapshots/none"))).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("not_found")), "{body}");
    let mut spawn = worker.envelope("worker.spawn", spawn_params("sb-1"));
    (spawn["lease"], spawn["params"]["snapshot"]) = (lease("sb-1", 1), json!("none"));
    let (status, body) = worker.send(&spawn).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("not_found")), "{body}");
    assert_eq!(worker.call("worker.status", json!({"sandbox_id": "sb-1"})).await.0, 404, "nothing was created");
}

#[tokio::test]
async fn an_interrupted_upload_leaves_nothing_and_the_disk_is_bounded() {
    let worker = Worker::with(Options::settings(|settings| settings.snapshot_bytes = 1 << 20)).await;
    let files = || std::fs::read_dir(worker.folder().join("snapshots")).unwrap().count();
    let pieces = futures_util::stream::iter([Ok(bytes::Bytes::from(vec![1; 1000])), Err(std::io::Error::other("cut"))]);
    let url = worker.url("/rpc/snapshots/snap-1");
    let request = worker.signed(worker.http.put(&url)).body(reqwest::Body::wrap_stream(pieces));
    assert!(request.send().await.is_err());
    wait_until("the partial file is gone", || files() == 0).await;
    let (status, body) =
        answer(worker.signed(worker.http.put(&url)).body(vec![1; 2 << 20]).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (503, Some("provider_unavailable")), "{body}");
    assert_eq!(files(), 0);
}

#[tokio::test]
async fn a_sandbox_begins_with_the_snapshot_of_another() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    worker.exec("sb-1", "echo kept > file").await;
    let params = json!({"sandbox_id": "sb-1", "snapshot_id": "snap-1"});
    let (status, body) = worker.leased("worker.snapshot", params.clone(), 1).await;
    if worker.node.providers().get("process").unwrap().capabilities().snapshot.enforcement
        == tenure_sandbox::Enforcement::None
    {
        assert_eq!((status.as_u16(), body["code"].as_str()), (400, Some("invalid")), "{body}");
        return;
    }
    assert_eq!(status, 200, "{body}");
    let mut spawn = worker.envelope("worker.spawn", spawn_params("sb-2"));
    (spawn["lease"], spawn["params"]["snapshot"]) = (lease("sb-2", 1), json!("snap-1"));
    let (status, body) = worker.send(&spawn).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(worker.exec("sb-2", "cat file").await["stdout"], "kept\n");
    worker.exec("sb-1", "echo changed > file").await;
    let (status, body) = worker.leased("worker.restore", params, 1).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(worker.exec("sb-1", "cat file").await["stdout"], "kept\n");
}
