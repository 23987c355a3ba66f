//! The file of an SQLite store: other names of it, another file in its place, damage, and who may read it.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use tenure_store::{Clock, Store, StoreError, inspect};

use crate::common::Client;

async fn open(path: &Path) -> Result<Arc<dyn Store>, StoreError> {
    tenure_store::open(&format!("sqlite:{}", path.display()), Arc::new(Clock::default())).await
}

#[tokio::test]
async fn a_second_server_is_refused_by_every_name_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tenure.db");
    let first = open(&path).await.unwrap();
    let in_use = async |path: &Path| matches!(open(path).await, Err(StoreError::InUse { .. }));
    assert!(in_use(&path).await);
    let (soft, hard) = (folder.path().join("soft.db"), folder.path().join("hard.db"));
    symlink(&path, &soft).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    assert!(in_use(&soft).await, "a symbolic link");
    assert!(in_use(&hard).await, "a hard link");
    std::fs::remove_file(folder.path().join("tenure.db.lock")).unwrap();
    assert!(in_use(&path).await, "the lock file was removed");
    drop(first);
    open(&soft).await.unwrap();
}

#[tokio::test]
async fn an_empty_file_or_another_store_in_its_place_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, moved) = (folder.path().join("tenure.db"), folder.path().join("moved.db"));
    let store = Client { store: open(&path).await.unwrap() };
    let task = store.put_in("q").await;
    drop(store);
    let refused = async |what: &str| {
        let error = open(&path).await.err().unwrap();
        assert!(matches!(error, StoreError::Replaced { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(what) && text.contains("tenure.db.id"), "{text}");
    };

    std::fs::rename(&path, &moved).unwrap();
    refused("tenure.db is empty").await;
    refused("tenure.db is empty").await;
    let other = folder.path().join("other/tenure.db");
    std::fs::create_dir(folder.path().join("other")).unwrap();
    drop(open(&other).await.unwrap());
    std::fs::copy(&other, &path).unwrap();
    refused("tenure.db is another store").await;

    std::fs::rename(&moved, &path).unwrap();
    let store = Client { store: open(&path).await.unwrap() };
    store.state(task).await;
    drop(store);
    std::fs::copy(&other, &path).unwrap();
    std::fs::remove_file(folder.path().join("tenure.db.id")).unwrap();
    open(&path).await.unwrap();
}

#[tokio::test]
async fn a_damaged_file_is_said_at_the_start_and_by_an_inspection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tenure.db");
    let damaged = async |what: &str| {
        let started = open(&path).await.err();
        assert!(matches!(started, Some(StoreError::Damaged { .. })), "{what}: {started:?}");
        let inspected = inspect(&format!("sqlite:{}", path.display())).await.err();
        assert!(matches!(inspected, Some(StoreError::Damaged { .. })), "{what}: {inspected:?}");
    };
    std::fs::write(&path, "This is not a database, but it is as long as the header of one would be.".repeat(9))
        .unwrap();
    damaged("not a database").await;
    std::fs::remove_file(&path).unwrap();

    let store = Client { store: open(&path).await.unwrap() };
    store.put_many("q", 500).await;
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    damaged("half of it").await;

    // A page in the middle is found only by looking at all of it, which a start does after damage was met.
    std::fs::write(&path, &whole).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for page in 10..40 {
        file.write_all_at(&[0xff; 4096], page * 4096).unwrap();
    }
    std::fs::write(folder.path().join("tenure.db.suspect"), "").unwrap();
    damaged("pages in the middle").await;

    std::fs::write(&path, &whole).unwrap();
    open(&path).await.unwrap();
    assert!(!folder.path().join("tenure.db.suspect").exists(), "it was looked at, and is whole");
}

#[tokio::test]
async fn damage_that_is_met_is_remembered_for_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tenure.db");
    let store = Client { store: open(&path).await.unwrap() };
    store.put_many("q", 500).await;
    drop(store);
    let store = open(&path).await.unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for page in 10..std::fs::metadata(&path).unwrap().len() / 4096 {
        file.write_all_at(&[0xff; 4096], page * 4096).unwrap();
    }
    let mut met = false;
    for _ in 0..50 {
        let client = Client { store: Arc::clone(&store) };
        // It panics when the store fails.
        met |= tokio::spawn(async move { client.put_in("q").await }).await.is_err();
    }
    drop(store);
    assert!(met, "no write met the damage");
    assert!(matches!(open(&path).await, Err(StoreError::Damaged { .. })));
}

#[tokio::test]
async fn only_its_owner_can_read_it_and_an_orderly_end_leaves_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tenure.db");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let store = Client { store: open(&path).await.unwrap() };
    store.put_in("q").await;
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.file_name().into_string().unwrap());
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{names:?}");
    }
    names.sort();
    assert_eq!(names, ["tenure.db", "tenure.db-shm", "tenure.db-wal", "tenure.db.id", "tenure.db.lock"]);
    drop(store);
    assert!(!folder.path().join("tenure.db-wal").exists());
}
