//! Snapshots: taken, kept in pieces, restored elsewhere.

use std::sync::atomic::Ordering;

use tenure_core::sandbox::template::Request;
use tenure_engine::sandboxes::ErrorClass;

use super::farm::{Call, archive};
use super::{caller, caller_of, plane, settings};
use crate::harness::Home;
use crate::on_both_stores;

on_both_stores!(a_snapshot_is_kept_in_pieces_and_begins_a_sandbox_on_another_worker);

/// More than two pieces.
fn content() -> Vec<u8> {
    (0..(2 << 20) + 12_345_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

async fn a_snapshot_is_kept_in_pieces_and_begins_a_sandbox_on_another_worker(home: Home) {
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.with("w1", |node| node.runtimes.get_mut(&*row.id).unwrap().files.insert("/data".to_owned(), content()));
    let snapshot = plane.sandboxes.create_snapshot(&row.id, "first", &caller()).await.unwrap();
    assert_eq!((snapshot.size_bytes, &snapshot.sha256), (content().len() as u64, &archive(&content()).sha256));
    assert_eq!(plane.sandboxes.snapshots(&caller().reach, Some(&row.id)).await.unwrap().len(), 1);
    // The first worker goes, with all that it had.
    plane.sandboxes.drain("w1", None).await.unwrap();
    plane.farm.with("w1", |node| node.archives.clear());
    plane.farm.beat("w2").await;
    let request = Request { snapshot: Some(snapshot.id.to_string()), ..Request::default() };
    let copy = plane.sandboxes.create(&request, &caller(), None, true).await.unwrap().row;
    assert_eq!(copy.worker.as_deref(), Some("w2"));
    let data = plane.farm.with("w2", |node| node.runtimes[&*copy.id].files["/data"].clone());
    assert!(data == content(), "the same bytes");
    // Into a sandbox that lives.
    let live = plane.running().await;
    plane.sandboxes.restore(&live.id, &snapshot.id, &caller()).await.unwrap();
    let data = plane.farm.with("w2", |node| node.runtimes[&*live.id].files["/data"].clone());
    assert!(data == content(), "the same bytes");
    let guard = plane.sandboxes.begin_exec(&live.id);
    let error = plane.sandboxes.restore(&live.id, &snapshot.id, &caller()).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::Conflict, "exec_running"));
    drop(guard);
    plane.sandboxes.restore(&live.id, &snapshot.id, &caller()).await.unwrap();
    let foreign = caller_of("other", None);
    assert_eq!(plane.sandboxes.create(&request, &foreign, None, true).await.unwrap_err().class, ErrorClass::NotFound);
    plane.sandboxes.delete_snapshot(&snapshot.id, &caller().reach).await.unwrap();
    assert!(plane.engine.store().snapshot_piece(&snapshot.id, 0).await.unwrap().is_none());
    assert_eq!(plane.sandboxes.create(&request, &caller(), None, true).await.unwrap_err().class, ErrorClass::NotFound);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_changed_on_its_way_is_refused() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    plane.farm.with("w1", |node| node.runtimes.get_mut(&*row.id).unwrap().files.insert("/data".to_owned(), content()));
    plane.farm.corrupts.store(true, Ordering::SeqCst);
    let error = plane.sandboxes.create_snapshot(&row.id, "", &caller()).await.unwrap_err();
    assert_eq!(&*error.reason, "checksum_mismatch");
    assert!(plane.sandboxes.snapshots(&caller().reach, None).await.unwrap().is_empty());
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_so_many_bytes() {
    let home = Home::sqlite();
    let mut settings = settings();
    settings.max_snapshot_bytes = 3 << 20;
    let plane = plane(&home, &["w1"], settings).await;
    let row = plane.running().await;
    plane.farm.with("w1", |node| node.runtimes.get_mut(&*row.id).unwrap().files.insert("/data".to_owned(), content()));
    plane.sandboxes.create_snapshot(&row.id, "", &caller()).await.unwrap();
    let error = plane.sandboxes.create_snapshot(&row.id, "", &caller()).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::ResourceLimit, "max_snapshot_bytes"));
    assert_eq!(plane.farm.calls(Call::GetSnapshot).len(), 1, "not even fetched");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_needs_its_image_and_a_worker_that_takes_them() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let row = plane.running().await;
    let snapshot = plane.sandboxes.create_snapshot(&row.id, "", &caller()).await.unwrap();
    let id = Some(snapshot.id.to_string());
    let request = Request { snapshot: id.clone(), image: Some("debian".to_owned()), ..Request::default() };
    let error = plane.sandboxes.create(&request, &caller(), None, true).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::BadRequest, "snapshot_mismatch"));
    plane.farm.with("w1", |node| node.capabilities.retain(|word| word != "snapshots"));
    plane.farm.beat("w1").await;
    let error = plane.sandboxes.create_snapshot(&row.id, "", &caller()).await.unwrap_err();
    assert_eq!(&*error.reason, "snapshots_unsupported");
    let request = Request { snapshot: id, ..Request::default() };
    assert_eq!(plane.sandboxes.create(&request, &caller(), None, true).await.unwrap_err().reason, "worker_unavailable");
    plane.stop().await;
}
