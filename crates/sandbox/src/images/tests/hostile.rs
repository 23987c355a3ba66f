use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use super::{Fixture, Tar};
use crate::images::ImageLimits;

#[test]
fn absolute_paths_are_refused() {
    let fixture = Fixture::new();
    let error = fixture.refused(&Tar::default().file(&format!("{}/planted", fixture.outside()), "x"));
    assert!(error.to_string().contains("absolute"), "{error}");
}

#[test]
fn paths_with_two_dots_are_refused() {
    let fixture = Fixture::new();
    for path in ["../../../../outside/planted", "a/../../b", "a/..", ".."] {
        let error = fixture.refused(&Tar::default().dir("a").file(path, "x"));
        assert!(error.to_string().contains("`..`"), "{error}");
    }
}

#[test]
fn a_write_through_an_absolute_link_stays_in_the_image() {
    let fixture = Fixture::new();
    let outside = fixture.outside();
    // Nothing in the image is at the place that the link names.
    fixture.refused(&Tar::default().symlink("way", &outside).file("way/secret", "stolen"));
    fixture.refused(&Tar::default().symlink("way", &outside).dir("way/planted").file("way/planted/x", "stolen"));
    // The same path exists in the image: that is the one that is written.
    let inside = outside.trim_start_matches('/');
    let tar = Tar::default().dir(inside).symlink("way", &outside).file("way/secret", "in the image");
    let root = fixture.unpacked(&tar);
    assert_eq!(fs::read_to_string(root.join(inside).join("secret")).expect("the file"), "in the image");
    fixture.assert_outside_untouched();
}

#[test]
fn a_write_through_a_link_with_two_dots_stays_in_the_image() {
    let fixture = Fixture::new();
    let up = "../".repeat(15);
    fixture.refused(
        &Tar::default().dir("a").symlink("a/way", &format!("{up}{}", fixture.outside())).file("a/way/secret", "stolen"),
    );
    let root = fixture.unpacked(&Tar::default().dir("a").symlink("a/up", &up).file("a/up/at-the-root", "x"));
    assert!(root.join("at-the-root").is_file());
    fixture.assert_outside_untouched();
}

#[test]
fn an_entry_replaces_a_link_and_does_not_write_through_it() {
    let fixture = Fixture::new();
    let secret = format!("{}/secret", fixture.outside());
    let root = fixture.unpacked(&Tar::default().symlink("file", &secret).file("file", "mine"));
    assert!(root.join("file").symlink_metadata().expect("the file").is_file());
    fixture.assert_outside_untouched();
}

#[test]
fn magic_links_are_not_followed() {
    let fixture = Fixture::new();
    for target in ["/proc/self/cwd", "/proc/self/root", "/proc/self/fd/0"] {
        fixture.refused(&Tar::default().symlink("way", target).file("way/planted", "x"));
    }
}

#[test]
fn links_in_a_circle_are_refused() {
    let fixture = Fixture::new();
    fixture.refused(&Tar::default().symlink("a", "b").symlink("b", "a").file("a/x", "x"));
}

#[test]
fn hard_links_never_lead_outside() {
    let fixture = Fixture::new();
    let secret = format!("{}/secret", fixture.outside());
    fixture.refused(&Tar::default().hard_link("stolen", &secret));
    fixture.refused(&Tar::default().hard_link("stolen", "../../../../outside/secret"));
    fixture.refused(&Tar::default().symlink("way", &fixture.outside()).hard_link("stolen", "way/secret"));
    // A link to a link is a link, and not the file that it leads to.
    let root = fixture.unpacked(&Tar::default().symlink("link", &secret).hard_link("stolen", "link"));
    assert!(root.join("stolen").symlink_metadata().expect("the link").is_symlink());
    let outside = fs::metadata(&secret).expect("the secret");
    assert_eq!(outside.nlink(), 1);
}

#[test]
fn hard_links_inside_the_image_are_kept() {
    let fixture = Fixture::new();
    let root =
        fixture.unpacked(&Tar::default().file("a", "x").hard_link("b", "a").hard_link("b", "a").hard_link("a", "b"));
    let (a, b) = (fs::metadata(root.join("a")).expect("a"), fs::metadata(root.join("b")).expect("b"));
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
}

#[test]
fn devices_and_fifos_are_left_out_and_counted() {
    let fixture = Fixture::new();
    let tar = Tar::default()
        .entry("dev/sda", b'4', "", b"", 0o666)
        .entry("dev/mem", b'3', "", b"", 0o666)
        .entry("fifo", b'6', "", b"", 0o666)
        .file("file", "x");
    let source = fixture.write("x.tar", &tar.bytes());
    let record = fixture.store.add("x", &source).expect("an image");
    assert_eq!(record.skipped, 3);
    let root = fixture.root("x");
    assert!(root.join("file").is_file());
    for name in ["dev/sda", "dev/mem", "fifo"] {
        assert!(!root.join(name).exists(), "{name}");
    }
}

#[test]
fn setuid_and_setgid_bits_are_dropped() {
    let fixture = Fixture::new();
    let tar = Tar::default()
        .entry("su", b'0', "", b"x", 0o6755)
        .entry("shared", b'5', "", b"", 0o2775)
        .entry("tmp", b'5', "", b"", 0o1777)
        .entry("closed", b'5', "", b"", 0o000);
    let root = fixture.unpacked(&tar);
    let mode = |name: &str| fs::metadata(root.join(name)).expect("the file").permissions().mode() & 0o7777;
    assert_eq!([mode("su"), mode("shared"), mode("tmp"), mode("closed")], [0o755, 0o775, 0o1777, 0o700]);
}

#[test]
fn file_capabilities_are_dropped() {
    let fixture = Fixture::new();
    let value = "\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let record = |length: usize| format!("{length} SCHILY.xattr.security.capability={value}\n");
    let length = (1..200).find(|length| record(*length).len() == *length).expect("a length");
    let tar = Tar::default().entry("pax", b'x', "", record(length).as_bytes(), 0o644).file("ping", "x");
    let root = fixture.unpacked(&tar);
    let mut buffer = [0_u8; 64];
    let attribute = rustix::fs::lgetxattr(root.join("ping"), "security.capability", &mut buffer);
    assert!(attribute.is_err(), "{attribute:?}");
}

#[test]
fn claims_of_a_huge_size_are_refused_before_anything_is_written() {
    let fixture = Fixture::new();
    let error = fixture.refused(&Tar::default().header("huge", b'0', "", 1 << 50, 0o644));
    assert!(error.to_string().contains("bytes"), "{error}");
    fixture.refused(&Tar::default().header("huge", b'0', "", u64::MAX >> 1, 0o644));
    // A size in the extended header that the header does not have.
    let tar = Tar::default().entry("pax", b'x', "", b"22 size=1099511627776\n", 0o644).file("huge", "x");
    assert!(fixture.refused(&tar).to_string().contains("two sizes"));
}

#[test]
fn sparse_files_are_refused() {
    let fixture = Fixture::new();
    let error = fixture.refused(&Tar::default().entry("sparse", b'S', "", b"x", 0o644));
    assert!(error.to_string().contains("sparse"), "{error}");
    let record = "31 GNU.sparse.realsize=99999999\n";
    let record = record.replacen("31", &record.len().to_string(), 1);
    fixture.refused(&Tar::default().entry("pax", b'x', "", record.as_bytes(), 0o644).file("a", "x"));
}

#[test]
fn an_endless_extended_header_is_refused() {
    let fixture = Fixture::new();
    for kind in [b'x', b'g', b'L', b'K'] {
        let error = fixture.refused(&Tar::default().header("long", kind, "", 1 << 40, 0o644));
        assert!(error.to_string().contains("1 MiB"), "{error}");
    }
}

#[test]
fn a_compressed_bomb_is_stopped_at_the_limit() {
    let mut fixture = Fixture::new();
    fixture.store = fixture.store.clone().with_limits(ImageLimits { entries: 10, bytes: 1 << 20, layers: 3 });
    // A directory with 64 MiB of content, which nobody reads, but which must be decompressed to find the next entry.
    let tar = Tar::default().header("dir", b'5', "", 64 << 20, 0o755).raw(&vec![0; 64 << 20]).file("a", "x");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &tar.bytes()).expect("memory");
    let source = fixture.write("bomb.tar.gz", &gzip.finish().expect("memory"));
    let error = fixture.refused_source(&source);
    assert!(error.to_string().contains("larger than an image may be"), "{error}");
}

#[test]
fn the_number_of_entries_is_bounded_with_the_directories_that_paths_imply() {
    let mut fixture = Fixture::new();
    fixture.store = fixture.store.clone().with_limits(ImageLimits { entries: 10, bytes: 1 << 20, layers: 3 });
    let error = fixture.refused(&Tar::default().file("1/2/3/4/5/6/7/8/9/10/file", "x"));
    assert!(error.to_string().contains("10 entries"), "{error}");
    fixture.unpacked(&Tar::default().file("1/2/3/4/5/6/7/8/9/file", "x"));
}

#[test]
fn the_bytes_of_all_files_together_are_bounded() {
    let mut fixture = Fixture::new();
    fixture.store = fixture.store.clone().with_limits(ImageLimits { entries: 10, bytes: 10, layers: 3 });
    fixture.refused(&Tar::default().file("a", "123456").file("b", "12345"));
    // Also if a later entry replaces an earlier one.
    fixture.refused(&Tar::default().file("a", "123456").file("a", "12345"));
    fixture.unpacked(&Tar::default().file("a", "12345").file("b", "12345"));
}

#[test]
fn paths_are_bounded_in_length_and_depth() {
    let fixture = Fixture::new();
    let long =
        |path: &str| Tar::default().entry("name", b'L', "", format!("{path}\0").as_bytes(), 0o644).file("x", "x");
    fixture.refused(&long(&"d/".repeat(2000)));
    fixture.refused(&long(&"d/".repeat(200)));
    fixture.refused(&long(&"n".repeat(256)));
    // Long names as such are fine.
    let deep = format!("{}/file", ["directory"; 60].join("/"));
    assert!(fixture.unpacked(&long(&deep)).join(deep).is_file());
}

#[test]
fn a_tree_that_links_made_very_deep_is_removed_again() {
    let fixture = Fixture::new();
    // Each link leads to the end of the last 100 directories, so that paths get much longer than the kernel accepts.
    // Ten links only: the kernel follows 40, and counts each of them again when it repeats a lookup.
    let names = vec!["directory"; 100].join("/");
    let mut tar = Tar::default();
    let mut at = String::new();
    for link in 0..10 {
        let dir = format!("{at}{names}");
        tar = tar.entry("name", b'L', "", format!("{dir}\0").as_bytes(), 0o644).dir("x");
        let target = format!("/{dir}\0");
        tar = tar.entry("link", b'K', "", target.as_bytes(), 0o644).symlink(&format!("link{link}"), "x");
        at = format!("link{link}/");
    }
    fixture.unpacked(&tar);
    fixture.store.remove("x").expect("removed");
    fixture.assert_empty();
}

#[test]
fn the_last_of_duplicate_entries_counts() {
    let fixture = Fixture::new();
    let tar = Tar::default().file("a", "first").file("a", "second").file("b/c", "x").file("b", "now a file");
    let root = fixture.unpacked(&tar);
    assert_eq!(fs::read_to_string(root.join("a")).expect("a"), "second");
    assert_eq!(fs::read_to_string(root.join("b")).expect("b"), "now a file");
}

#[test]
fn the_root_can_only_be_a_directory() {
    let fixture = Fixture::new();
    for kind in [b'0', b'1', b'2'] {
        fixture.refused(&Tar::default().entry(".", kind, "/etc", b"", 0o644));
    }
    fixture.unpacked(&Tar::default().dir("./").file("./a", "x"));
}

#[test]
fn names_that_are_not_text_are_kept_and_nul_bytes_end_a_name() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::new();
    let raw = b"caf\xe9\nnew".as_slice();
    let tar = Tar::default().entry("name", b'L', "", raw, 0o644).file("x", "latin");
    let root = fixture.unpacked(&tar);
    assert!(root.join(std::ffi::OsStr::from_bytes(raw)).is_file());
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let fixture = Fixture::new();
    let mut bytes = Tar::default().file("a", "x").file("b", &"y".repeat(5000)).bytes();
    bytes.truncate(3000);
    let source = fixture.write("cut.tar", &bytes);
    fixture.refused_source(&source);
    let source = fixture.write("noise.tar", &[7; 4096]);
    fixture.refused_source(&source);
    let source = fixture.write("empty.tar", b"");
    fixture.refused_source(&source);
}

#[test]
fn a_source_that_is_a_device_or_a_fifo_is_refused_without_waiting() {
    let fixture = Fixture::new();
    let fifo = fixture.folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .expect("a FIFO");
    assert!(fs::metadata(&fifo).expect("a FIFO").file_type().is_fifo());
    fixture.refused_source(&fifo);
    fixture.refused_source(std::path::Path::new("/dev/zero"));
    fixture.refused_source(&fixture.folder.path().join("absent"));
}
