//! What only a local folder has: links, and two names for the same object.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use async_trait::async_trait;
use tenure_core::Timestamp;
use tenure_core::objects::Prefix;
use tenure_objects::{Judge, LOCAL_BUCKET, Left, ObjectError, Place, Settings};

use crate::stand::{At, Kind, Stand, at, output};

struct Everything;

#[async_trait]
impl Judge for Everything {
    async fn removable(&self, left: &[Left]) -> Result<Vec<bool>, ObjectError> {
        Ok(vec![true; left.len()])
    }
}

/// The folder of a location, and one beside the store with a file in it.
fn folders(stand: &Stand, location: &Prefix) -> (PathBuf, PathBuf) {
    let At::Folder(folder) = &stand.place else { panic!("not a folder") };
    let beside = folder.path().join("beside");
    std::fs::create_dir_all(&beside).unwrap();
    std::fs::write(beside.join("secret.parquet"), "secret").unwrap();
    (PathBuf::from(format!("/{}", location.path().trim_end_matches('/'))), beside)
}

#[tokio::test]
async fn a_link_leads_nowhere() {
    let stand = Stand::new(Kind::Folder).await;
    for (task, name) in [(1, "a.parquet"), (2, "deeper")] {
        let output = output(task, 1);
        let location = stand.staging(&output);
        stand.put(&location, "_SUCCESS", "").await;
        let (inside, beside) = folders(&stand, &location);
        let target = if name == "deeper" { beside.clone() } else { beside.join("secret.parquet") };
        symlink(target, inside.join(name)).unwrap();
        let refused = stand.objects.finished(&at(&output, &location)).await.unwrap_err();
        assert!(matches!(refused, ObjectError::OddObject), "{refused:?}");
        let file = if name == "deeper" { "deeper/secret.parquet" } else { name };
        assert!(matches!(stand.objects.get(&location, file, 100).await, Err(ObjectError::OddObject)));
        assert!(stand.objects.put_new(&location, "deeper/new", "1".into()).await.is_err() == (name == "deeper"));

        let swept = stand.objects.sweep(Timestamp::MAX, u64::MAX, &Everything).await.unwrap();
        assert_eq!((swept.removed, swept.failed), (1, 0));
        assert_eq!(std::fs::read_to_string(beside.join("secret.parquet")).unwrap(), "secret");
    }
}

#[tokio::test]
async fn a_folder_that_is_a_link_is_none() {
    let stand = Stand::new(Kind::Folder).await;
    let output = output(1, 1);
    let location = stand.staging(&output);
    let (inside, beside) = folders(&stand, &location);
    std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
    std::fs::write(beside.join("_SUCCESS"), "").unwrap();
    symlink(&beside, &inside).unwrap();
    let refused = stand.objects.finished(&at(&output, &location)).await.unwrap_err();
    assert!(matches!(refused, ObjectError::OddObject), "{refused:?}");
    let swept = stand.objects.sweep(Timestamp::MAX, u64::MAX, &Everything).await.unwrap();
    assert_eq!((swept.seen, beside.join("_SUCCESS").exists()), (0, true));
}

#[tokio::test]
async fn without_files_a_folder_is_known_as_a_bucket() {
    let folder = tempfile::TempDir::new().unwrap();
    let open = |allow_file| Settings::new(Place::Folder { path: folder.path().into(), allow_file }).open().unwrap();
    let (files, bucket) = (open(true), open(false));
    let name = |objects: &tenure_objects::Objects| objects.layout().staging(&output(1, 1)).unwrap();
    assert!(name(&bucket).to_string().starts_with(&format!("s3://{LOCAL_BUCKET}/dataset/")));
    assert!(name(&files).to_string().starts_with("file:///"));
    bucket.put_new(&name(&bucket), "_SUCCESS", "".into()).await.unwrap();
    // The same object under both names; but `file:` only if it is allowed.
    assert!(files.finished(&at(&output(1, 1), &name(&files))).await.is_ok());
    assert!(files.finished(&at(&output(1, 1), &name(&bucket))).await.is_ok());
    assert!(matches!(bucket.finished(&at(&output(1, 1), &name(&files))).await, Err(ObjectError::NotGranted)));
    assert_eq!(bucket.location(&name(&files).to_string(), &output(1, 1), &[]).unwrap_err().code(), "invalid_prefix");
    let presigned = bucket.presigned_get(&name(&bucket), "_SUCCESS", std::time::Duration::from_secs(60)).await;
    assert_eq!(presigned.unwrap(), None);
}

#[tokio::test]
async fn a_folder_that_is_gone_is_a_store_that_is_away() {
    let stand = Stand::new(Kind::Folder).await;
    let At::Folder(folder) = &stand.place else { panic!("not a folder") };
    stand.objects.check().await.unwrap();
    std::fs::remove_dir_all(folder.path().join("objects")).unwrap();
    let location = stand.staging(&output(1, 1));
    let away = stand.objects.finished(&at(&output(1, 1), &location)).await.unwrap_err();
    assert_eq!((away.code(), away.to_string().contains('/')), ("object_store_unavailable", false));
    assert!(stand.objects.check().await.is_err());
}

#[tokio::test]
async fn nothing_beside_the_folder_is_reached() {
    let stand = Stand::new(Kind::Folder).await;
    let (_, beside) = folders(&stand, &stand.staging(&output(1, 1)));
    for outside in [format!("file://{}/", beside.display()), "file:///etc/".into(), "s3://other/x/".into()] {
        let prefix = Prefix::parse(&outside, true).unwrap();
        assert!(matches!(stand.objects.list(&prefix).await, Err(ObjectError::NotGranted)), "{outside}");
    }
}
