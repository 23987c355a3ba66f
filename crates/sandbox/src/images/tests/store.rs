use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use super::{Fixture, Tar, sha256};
use crate::error::ErrorKind;
use crate::images::{Image, ImageSource, ImageStore};

#[test]
fn a_tar_file_is_added_listed_resolved_and_removed() {
    let fixture = Fixture::new();
    let bytes = Tar::default().dir("etc").file("etc/os-release", "ID=x").symlink("bin", "usr/bin").bytes();
    let source = fixture.write("x.tar", &bytes);
    let record = fixture.store.add("team/x:1", &source).expect("an image");
    assert_eq!(record.digest, format!("sha256:{}", sha256(&bytes)));
    assert_eq!((record.source, record.entries, record.bytes), (ImageSource::Tar, 3, 4));
    assert_eq!(fixture.store.list().expect("a list"), [record]);
    assert!(fixture.root("team/x:1").join("etc/os-release").is_file());
    fixture.store.remove("team/x:1").expect("removed");
    fixture.assert_empty();
    assert_eq!(fixture.store.remove("team/x:1").expect_err("absent").kind(), ErrorKind::Invalid);
}

#[test]
fn names_are_resolved_before_aliases_and_a_missing_tag_is_latest() {
    let fixture = Fixture::new();
    let aliases: BTreeMap<String, String> =
        [("alpine:latest", "host"), ("own", "x"), ("x", "host"), ("lost", "absent")]
            .map(|(a, b)| (a.into(), b.into()))
            .into();
    let resolve = |name: &str| fixture.store.resolve(name, &aliases);
    assert_eq!(resolve("host").expect("the host"), Image::Host);
    assert_eq!(resolve("alpine").expect("an alias"), Image::Host);
    assert_eq!(resolve("x:latest").expect("an alias"), Image::Host);
    let root = fixture.unpacked(&Tar::default().file("a", "x"));
    for name in ["x", "x:latest", "own:latest"] {
        assert!(matches!(resolve(name).expect("an image"), Image::Rootfs { path, .. } if path == root), "{name}");
    }
    for name in ["alpine:3", "y", "lost", "../x", ""] {
        assert_eq!(resolve(name).expect_err("unknown").kind(), ErrorKind::Invalid, "{name}");
    }
    assert!(resolve("y").expect_err("unknown").to_string().starts_with("unknown image"));
    let any = BTreeMap::from([("*".to_owned(), "host".to_owned())]);
    assert_eq!(fixture.store.resolve("y", &any).expect("any"), Image::Host);
}

#[test]
fn the_name_host_cannot_be_taken() {
    let fixture = Fixture::new();
    let source = fixture.write("x.tar", &Tar::default().file("a", "x").bytes());
    for name in ["host", "host:latest"] {
        assert_eq!(fixture.store.add(name, &source).expect_err("reserved").kind(), ErrorKind::Invalid);
    }
}

#[test]
fn an_image_in_use_is_not_removed() {
    let fixture = Fixture::new();
    let root = fixture.unpacked(&Tar::default().file("a", "x"));
    let image = fixture.store.resolve("x", &BTreeMap::new()).expect("the image");
    fixture.store.hold(&image, "namespace-rt-1").expect("a hold");
    let error = fixture.store.remove("x").expect_err("in use");
    assert!(error.to_string().contains("in use by 1 sandboxes (namespace-rt-1)"), "{error}");

    // Another process, or the same after a restart, sees the hold.
    let again = ImageStore::open(&fixture.folder.path().join("data")).expect("a store");
    assert_eq!(again.holders().expect("holders"), ["namespace-rt-1"]);
    assert!(again.remove("x").is_err());

    // The name gets another image; the sandbox keeps the files that it has.
    let new_root = fixture.unpacked(&Tar::default().file("a", "y"));
    assert!(root.join("a").is_file() && new_root != root);

    again.release("namespace-rt-1").expect("released");
    again.release("namespace-rt-1").expect("released twice");
    again.remove("x").expect("removed");
    fixture.assert_empty();
    assert_eq!(fixture.store.hold(&image, "rt-2").expect_err("removed").kind(), ErrorKind::Invalid);
}

#[test]
fn names_with_the_same_files_share_them() {
    let fixture = Fixture::new();
    let source = fixture.write("x.tar", &Tar::default().file("a", "x").bytes());
    fixture.store.add("one", &source).expect("an image");
    fixture.store.add("two", &source).expect("an image");
    assert_eq!(fixture.root("one"), fixture.root("two"));
    let image = fixture.store.resolve("two", &BTreeMap::new()).expect("the image");
    fixture.store.hold(&image, "rt-1").expect("a hold");
    fixture.store.remove("one").expect("the files stay under the other name");
    assert!(fixture.root("two").join("a").is_file());
    assert!(fixture.store.remove("two").is_err());
}

#[test]
fn concurrent_adds_of_one_name_leave_one_whole_image() {
    let fixture = Fixture::new();
    let sources: Vec<_> = (0..8)
        .map(|n| {
            let tar = (0..20).fold(Tar::default(), |tar, file| tar.file(&format!("dir/{file}"), &(n % 4).to_string()));
            fixture.write(&format!("{n}.tar"), &tar.bytes())
        })
        .collect();
    std::thread::scope(|scope| {
        for source in &sources {
            scope.spawn(|| fixture.store.add("x", source).expect("an image"));
        }
    });
    assert_eq!(fixture.store.list().expect("a list").len(), 1);
    let root = fixture.root("x");
    let contents: Vec<_> = (0..20).map(|file| fs::read(root.join(format!("dir/{file}"))).expect("a file")).collect();
    assert!(contents.windows(2).all(|pair| pair[0] == pair[1]));
    let images = fixture.folder.path().join("data/images");
    assert_eq!(fs::read_dir(images.join("roots")).expect("a folder").count(), 1);
    assert_eq!(fs::read_dir(images.join("work")).expect("a folder").count(), 0);
}

#[test]
fn leftovers_of_a_process_that_was_killed_are_removed_by_the_next_add() {
    let fixture = Fixture::new();
    let leftover = fixture.folder.path().join("data/images/work/0123/root/deep");
    fs::create_dir_all(&leftover).expect("folders");
    fs::write(leftover.join("file"), "x").expect("a file");
    fixture.unpacked(&Tar::default().file("a", "x"));
    assert_eq!(fs::read_dir(fixture.folder.path().join("data/images/work")).expect("a folder").count(), 0);
}

#[test]
fn a_directory_is_copied_with_its_links_and_without_special_files() {
    let fixture = Fixture::new();
    let source = fixture.folder.path().join("source");
    fs::create_dir_all(source.join("usr/bin")).expect("folders");
    fs::write(source.join("usr/bin/tool"), "x").expect("a file");
    fs::hard_link(source.join("usr/bin/tool"), source.join("usr/bin/same")).expect("a link");
    symlink(fixture.outside(), source.join("way")).expect("a link");
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket")).expect("a socket");
    let record = fixture.store.add("x", &source).expect("an image");
    assert_eq!((record.source, record.bytes, record.skipped), (ImageSource::Directory, 1, 1));
    let root = fixture.root("x");
    assert_eq!(fs::read_to_string(root.join("usr/bin/same")).expect("a file"), "x");
    assert_eq!(fs::read_link(root.join("way")).expect("a link").to_str(), Some(fixture.outside().as_str()));
    assert!(root.join("socket").symlink_metadata().is_err());
    // The same files have the same digest; other content has another.
    assert_eq!(fixture.store.add("y", &source).expect("an image").digest, record.digest);
    fs::write(source.join("usr/bin/tool"), "y").expect("a file");
    assert_ne!(fixture.store.add("y", &source).expect("an image").digest, record.digest);
}

#[test]
fn the_store_is_not_copied_into_itself() {
    let fixture = Fixture::new();
    fixture.unpacked(&Tar::default().file("inner", "x"));
    fixture.store.add("all", fixture.folder.path()).expect("an image");
    let root = fixture.root("all");
    assert!(root.join("outside/secret").is_file());
    assert_eq!(fs::read_dir(root.join("data/images")).expect("a folder").count(), 0);
}

#[test]
fn a_directory_is_copied_without_crossing_into_other_mounts() {
    // `/dev` holds devices, which are left out, and on every usual Linux system the mount `/dev/shm`.
    let fixture = Fixture::new();
    let hidden = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in another mount");
    fixture.store.add("x", std::path::Path::new("/dev")).expect("an image");
    let root = fixture.root("x");
    assert!(hidden.path().is_file());
    assert_eq!(fs::read_dir(root.join("shm")).expect("an empty folder").count(), 0);
    assert!(root.join("null").symlink_metadata().is_err());
}
