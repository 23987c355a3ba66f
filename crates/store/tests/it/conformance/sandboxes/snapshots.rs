//! Snapshots: an archive in pieces, recorded when it is whole.

use tenure_core::command::Reach;
use tenure_store::{PIECES_KEPT_MS, SNAPSHOT_PIECE, SnapshotRow, StoreError};

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    an_archive_is_stored_in_pieces,
    an_archive_that_is_not_whole_is_not_recorded,
    snapshots_are_listed_within_reach,
    a_deleted_snapshot_leaves_no_pieces,
    pieces_of_an_upload_that_was_given_up_are_pruned,
);

fn snapshot(number: u32, size_bytes: u64) -> SnapshotRow {
    SnapshotRow {
        id: format!("snap-{number:08x}").into(),
        tenant: "acme".into(),
        owner: Some("ann".into()),
        name: format!("name {number}"),
        sandbox: id(1),
        image: "alpine".into(),
        provider: "process".into(),
        size_bytes,
        sha256: "00".repeat(32),
        created_at: Timestamp::MIN,
    }
}

async fn store(t: &Fixture, number: u32, pieces: &[&[u8]]) -> SnapshotRow {
    let snapshot = snapshot(number, pieces.iter().map(|piece| piece.len() as u64).sum());
    for (index, piece) in (0..).zip(pieces) {
        t.store.put_snapshot_piece(&snapshot.id, index, piece.to_vec()).await.unwrap();
    }
    snapshot
}

async fn an_archive_is_stored_in_pieces(t: &Fixture) {
    let large = vec![0xA5; SNAPSHOT_PIECE];
    let sent = store(t, 1, &[&large, b"\0rest"]).await;
    assert_eq!(t.store.snapshot(&sent.id, &Reach::All).await.unwrap(), None, "not recorded yet");
    // A piece that is sent again replaces the first.
    t.store.put_snapshot_piece(&sent.id, 1, b"\0REST".to_vec()).await.unwrap();
    let recorded = t.store.record_snapshot(&sent).await.unwrap();
    assert_eq!(recorded, SnapshotRow { created_at: after_start(0), ..sent.clone() });
    assert_eq!(t.store.snapshot(&sent.id, &Reach::All).await.unwrap(), Some(recorded));
    assert_eq!(t.store.snapshot_piece(&sent.id, 0).await.unwrap(), Some(large.clone()));
    assert_eq!(t.store.snapshot_piece(&sent.id, 1).await.unwrap().unwrap(), b"\0REST");
    assert_eq!(t.store.snapshot_piece(&sent.id, 2).await.unwrap(), None);
    assert_eq!(t.store.snapshot_bytes("acme").await.unwrap(), sent.size_bytes);
    assert_eq!(t.store.snapshot_bytes("other").await.unwrap(), 0);
    let taken = t.store.record_snapshot(&sent).await;
    assert!(matches!(taken, Err(StoreError::Failed { .. })), "{taken:?}");
    let too_large = t.store.put_snapshot_piece("snap-x", 0, vec![0; SNAPSHOT_PIECE + 1]).await;
    assert!(matches!(too_large, Err(StoreError::Failed { .. })));
}

async fn an_archive_that_is_not_whole_is_not_recorded(t: &Fixture) {
    let sent = store(t, 1, &[b"one", b"two"]).await;
    let short = SnapshotRow { size_bytes: 7, ..sent.clone() };
    assert!(matches!(t.store.record_snapshot(&short).await, Err(StoreError::Failed { .. })));
    // As many bytes, but a piece in the middle is missing.
    t.store.put_snapshot_piece("snap-2", 0, b"one".to_vec()).await.unwrap();
    t.store.put_snapshot_piece("snap-2", 2, b"two".to_vec()).await.unwrap();
    let gap = SnapshotRow { id: "snap-2".into(), ..sent.clone() };
    assert!(matches!(t.store.record_snapshot(&gap).await, Err(StoreError::Failed { .. })));
    assert!(t.store.snapshots(&Reach::All, None, 10).await.unwrap().is_empty());
    t.store.record_snapshot(&sent).await.unwrap();
}

async fn snapshots_are_listed_within_reach(t: &Fixture) {
    for number in 1..=4 {
        let mut sent = store(t, number, &[b"x"]).await;
        match number {
            2 => sent.owner = Some("bob".into()),
            3 => sent.tenant = "other".into(),
            4 => sent.sandbox = id(9),
            _ => {}
        }
        t.store.record_snapshot(&sent).await.unwrap();
        t.clock.advance(1);
    }
    let names = async |reach: &Reach, sandbox, limit| {
        let found = t.store.snapshots(reach, sandbox, limit).await.unwrap();
        found.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    let acme = Reach::Tenant("acme".into());
    let ann = Reach::Owner { tenant: "acme".into(), owner: "ann".into() };
    assert_eq!(names(&Reach::All, None, 3).await, ["name 4", "name 3", "name 2"]);
    assert_eq!(names(&acme, None, 10).await, ["name 4", "name 2", "name 1"]);
    assert_eq!(names(&ann, None, 10).await, ["name 4", "name 1"]);
    assert_eq!(names(&ann, Some(&id(1)), 10).await, ["name 1"]);
    let id = snapshot(2, 1).id;
    assert_eq!(t.store.snapshot(&id, &ann).await.unwrap(), None);
    assert!(!t.store.delete_snapshot(&id, &ann).await.unwrap());
    assert!(t.store.snapshot(&id, &acme).await.unwrap().is_some());
}

async fn a_deleted_snapshot_leaves_no_pieces(t: &Fixture) {
    let sent = store(t, 1, &[b"one", b"two"]).await;
    t.store.record_snapshot(&sent).await.unwrap();
    assert!(t.store.delete_snapshot(&sent.id, &Reach::All).await.unwrap());
    assert!(!t.store.delete_snapshot(&sent.id, &Reach::All).await.unwrap());
    assert_eq!(t.raw.number("SELECT count(*) FROM snapshot_pieces").await, 0);
}

async fn pieces_of_an_upload_that_was_given_up_are_pruned(t: &Fixture) {
    let kept = store(t, 1, &[b"one", b"two"]).await;
    t.store.record_snapshot(&kept).await.unwrap();
    store(t, 2, &[b"one", b"two", b"three"]).await;
    t.clock.advance(PIECES_KEPT_MS);
    store(t, 3, &[b"new"]).await;
    assert_eq!(t.store.prune_snapshot_pieces().await.unwrap(), 0, "a day old, not older");
    t.clock.advance(1);
    assert_eq!(t.store.prune_snapshot_pieces().await.unwrap(), 3);
    assert_eq!(t.raw.number("SELECT count(*) FROM snapshot_pieces").await, 3);
    assert!(t.store.snapshot_piece(&kept.id, 1).await.unwrap().is_some());
}
