use std::fs;

use super::{Fixture, Tar, sha256};
use crate::images::ImageSource;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, bytes).expect("memory");
    gzip.finish().expect("memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    // Two frames, and one to skip between them.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let compress = |bytes| ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    [compress(first), b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(), compress(second)].concat()
}

/// An archive as `skopeo copy … oci-archive:` writes it. `layers` are pairs of the blob and the uncompressed layer.
fn oci_archive(layers: &[(Vec<u8>, Vec<u8>)]) -> Tar {
    let mut tar = Tar::default().file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let mut blob = |bytes: &[u8]| {
        let digest = sha256(bytes);
        let path = format!("blobs/sha256/{digest}");
        tar = std::mem::take(&mut tar).entry(&path, b'0', "", bytes, 0o644);
        format!("sha256:{digest}")
    };
    let descriptors = layers
        .iter()
        .map(|(bytes, _)| format!(r#"{{"mediaType":"layer","digest":"{}","size":{}}}"#, blob(bytes), bytes.len()))
        .collect::<Vec<_>>()
        .join(",");
    let ids = layers.iter().map(|(_, plain)| format!(r#""sha256:{}""#, sha256(plain))).collect::<Vec<_>>().join(",");
    let config = blob(format!(r#"{{"rootfs":{{"type":"layers","diff_ids":[{ids}]}}}}"#).as_bytes());
    let manifest = blob(
        format!(r#"{{"schemaVersion":2,"config":{{"digest":"{config}","size":1}},"layers":[{descriptors}]}}"#)
            .as_bytes(),
    );
    let index = format!(
        r#"{{"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{manifest}","size":1}}]}}"#
    );
    tar.file("index.json", &index)
}

/// An archive as an older `docker save` writes it.
fn saved(layers: &[Vec<u8>], config_name: Option<&str>) -> Tar {
    let ids = layers.iter().map(|layer| format!(r#""sha256:{}""#, sha256(layer))).collect::<Vec<_>>().join(",");
    let config = format!(r#"{{"rootfs":{{"diff_ids":[{ids}]}}}}"#);
    let config_name = config_name.map_or_else(|| format!("{}.json", sha256(config.as_bytes())), str::to_owned);
    let mut tar = Tar::default().file(&config_name, &config);
    let mut names = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        tar = tar.entry(&format!("layer{at}/layer.tar"), b'0', "", layer, 0o644);
        // The second reference goes through a link.
        tar = tar.symlink(&format!("again{at}/layer.tar"), &format!("../layer{at}/layer.tar"));
        names.push(format!(r#""again{at}/layer.tar""#));
    }
    let manifest = format!(r#"[{{"Config":"{config_name}","RepoTags":["x:1"],"Layers":[{}]}}]"#, names.join(","));
    tar.file("manifest.json", &manifest)
}

fn two_layers() -> [Vec<u8>; 2] {
    [
        Tar::default().dir("etc").file("etc/kept", "1").file("etc/gone", "1").file("opaque/old/file", "1").bytes(),
        Tar::default()
            .file("etc/.wh.gone", "")
            .file("etc/.wh.new", "")
            .file("etc/new", "2")
            .dir("opaque")
            .file("opaque/new", "2")
            .file("opaque/.wh..wh..opq", "")
            .bytes(),
    ]
}

fn assert_two_layers(fixture: &Fixture) {
    let root = fixture.root("x");
    let names = |folder: &str| {
        let mut names = fs::read_dir(root.join(folder))
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect::<Vec<_>>();
        names.sort();
        names
    };
    assert_eq!(names("etc"), ["kept", "new"]);
    assert_eq!(names("opaque"), ["new"]);
}

#[test]
fn layers_of_an_oci_archive_are_laid_over_each_other() {
    let [lower, upper] = two_layers();
    for (lower_blob, upper_blob) in [(lower.clone(), upper.clone()), (gzip(&lower), zstd(&upper))] {
        let fixture = Fixture::new();
        let tar = oci_archive(&[(lower_blob, lower.clone()), (upper_blob, upper.clone())]);
        let source = fixture.write("image.tar", &tar.bytes());
        let record = fixture.store.add("x", &source).expect("an image");
        assert_eq!(record.source, ImageSource::ImageArchive);
        assert_two_layers(&fixture);
    }
}

#[test]
fn a_compressed_image_archive_is_read_too() {
    let [lower, upper] = two_layers();
    let fixture = Fixture::new();
    let tar = oci_archive(&[(gzip(&lower), lower), (upper.clone(), upper)]);
    let source = fixture.write("image.tar.zst", &zstd(&tar.bytes()));
    fixture.store.add("x", &source).expect("an image");
    assert_two_layers(&fixture);
}

#[test]
fn the_output_of_an_older_docker_save_is_read() {
    let fixture = Fixture::new();
    let source = fixture.write("image.tar", &saved(&two_layers(), None).bytes());
    let record = fixture.store.add("x", &source).expect("an image");
    assert_eq!(record.source, ImageSource::ImageArchive);
    assert_two_layers(&fixture);
}

#[test]
fn a_layer_that_does_not_match_its_digest_is_refused() {
    let [lower, upper] = two_layers();
    let fixture = Fixture::new();
    // The blob is what the manifest names, but not what the configuration names.
    let error = fixture.refused(&oci_archive(&[(gzip(&upper), lower.clone())]));
    assert!(error.to_string().contains("does not match its digest"), "{error}");
    // One byte of the blob differs; the gzip header's time is not checked by gzip itself.
    let blob = gzip(&lower);
    let whole = oci_archive(&[(blob.clone(), lower)]).bytes();
    let at = whole.windows(blob.len()).position(|window| window == blob).expect("the blob");
    let mut damaged = whole;
    damaged[at + 4] ^= 1;
    let source = fixture.write("damaged.tar", &damaged);
    let error = fixture.refused_source(&source);
    assert!(error.to_string().contains("does not match its digest"), "{error}");
}

#[test]
fn a_configuration_that_does_not_match_its_digest_is_refused() {
    let fixture = Fixture::new();
    let name = format!("{}.json", "0".repeat(64));
    let error = fixture.refused(&saved(&two_layers(), Some(&name)));
    assert!(error.to_string().contains("does not match its digest"), "{error}");
    fixture.refused(&saved(&two_layers(), Some("config.json")));
}

#[test]
fn whiteouts_never_remove_anything_outside() {
    let fixture = Fixture::new();
    let lower = Tar::default().symlink("way", &fixture.outside()).file("kept", "x").bytes();
    for hostile in ["way/.wh.secret", "way/.wh..wh..opq"] {
        let upper = Tar::default().file(hostile, "").bytes();
        let source = fixture.write("image.tar", &saved(&[lower.clone(), upper], None).bytes());
        // The link leads nowhere in the image, so there is nothing to hide.
        fixture.store.add("x", &source).expect("an image");
        assert!(fixture.root("x").join("kept").is_file());
        fixture.assert_outside_untouched();
    }
    fixture.store.remove("x").expect("removed");
    for hostile in [".wh...", ".wh..", ".wh.", "../.wh.roots", "a/.wh..."] {
        let upper = Tar::default().dir("a").file(hostile, "").bytes();
        let lower = Tar::default().file("a/b", "x").bytes();
        fixture.refused(&saved(&[lower, upper], None));
    }
}

#[test]
fn a_whiteout_removes_a_link_and_not_what_it_leads_to() {
    let fixture = Fixture::new();
    let lower = Tar::default().symlink("way", &fixture.outside()).bytes();
    let upper = Tar::default().file(".wh.way", "").file("a", "x").bytes();
    let source = fixture.write("image.tar", &saved(&[lower, upper], None).bytes());
    fixture.store.add("x", &source).expect("an image");
    assert!(fixture.root("x").join("way").symlink_metadata().is_err());
    fixture.assert_outside_untouched();
}

#[test]
fn a_whiteout_in_a_plain_archive_is_a_file() {
    let fixture = Fixture::new();
    let root = fixture.unpacked(&Tar::default().file("a", "x").file(".wh.a", ""));
    assert!(root.join("a").is_file() && root.join(".wh.a").is_file());
}

#[test]
fn an_archive_with_several_images_is_refused() {
    let fixture = Fixture::new();
    let manifest = r#"[{"Config":"a.json","RepoTags":["a:1"],"Layers":[]},{"Config":"b.json","Layers":[]}]"#;
    let error = fixture.refused(&Tar::default().file("manifest.json", manifest));
    assert!(error.to_string().contains("one image"), "{error}");
}

#[test]
fn a_manifest_that_points_outside_of_the_archive_is_refused() {
    let fixture = Fixture::new();
    let digest = "a".repeat(64);
    for config in [format!("{}/{digest}.json", fixture.outside()), format!("../../{digest}.json"), digest] {
        let manifest = format!(r#"[{{"Config":"{config}","Layers":["/etc/passwd"]}}]"#);
        fixture.refused(&Tar::default().file("manifest.json", &manifest));
    }
    // Links among members do not end, or lead out.
    let tar = Tar::default().symlink("a/layer.tar", "../b/layer.tar").symlink("b/layer.tar", "../a/layer.tar");
    let config = format!(r#"{{"rootfs":{{"diff_ids":["sha256:{}"]}}}}"#, "0".repeat(64));
    let name = format!("{}.json", sha256(config.as_bytes()));
    let manifest = format!(r#"[{{"Config":"{name}","Layers":["a/layer.tar"]}}]"#);
    fixture.refused(&tar.file(&name, &config).file("manifest.json", &manifest));
}
