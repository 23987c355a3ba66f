//! Bundles from folders.

use std::fs;
use std::path::Path;

use tenure_bundle::{Archive, Language, Options, pack};

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

fn packed(folder: &Path, options: &Options) -> Archive<Vec<u8>> {
    let zip = pack(folder, options).unwrap();
    let bytes = zip.len() as u64;
    Archive::open(zip, bytes).unwrap()
}

#[test]
fn a_folder_becomes_a_bundle_and_the_same_files_the_same_bytes() {
    let files = [("index.js", "1"), ("lib/a.js", "2"), (".git/config", "x"), ("__pycache__/a.pyc", "y")];
    let (first, second) = (folder(&files), folder(&files));
    let archive = packed(first.path(), &Options::default());
    archive.check().unwrap();
    let manifest = archive.manifest();
    assert_eq!((manifest.runtime, manifest.entrypoint.as_str()), (Language::Node, "index.js"));
    let paths: Vec<_> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["index.js", "lib/a.js"]);
    let options = Options::default();
    assert_eq!(pack(first.path(), &options).unwrap(), pack(second.path(), &options).unwrap());
}

#[test]
fn a_manifest_of_the_folder_counts_and_an_option_more() {
    let written = r#"{"runtime": "python", "entrypoint": "src/run.py", "env_allowlist": ["A"]}"#;
    let place = folder(&[("src/run.py", "1"), ("index.js", "2"), ("bundle_manifest.json", written)]);
    let manifest = packed(place.path(), &Options::default()).into_manifest();
    assert_eq!((manifest.runtime, manifest.entrypoint.as_str()), (Language::Python, "src/run.py"));
    assert_eq!(manifest.env_allowlist, ["A"]);
    let options = Options {
        runtime: Some(Language::Node),
        entrypoint: Some("index.js".to_owned()),
        env_allowlist: Some(vec!["B".to_owned()]),
    };
    let manifest = packed(place.path(), &options).into_manifest();
    assert_eq!((manifest.runtime, manifest.entrypoint.as_str()), (Language::Node, "index.js"));
    assert_eq!(manifest.env_allowlist, ["B"]);
}

#[test]
fn a_folder_that_cannot_be_a_bundle_says_why() {
    let linked = folder(&[("index.js", "1")]);
    std::os::unix::fs::symlink("/etc/passwd", linked.path().join("p")).unwrap();
    let error = pack(linked.path(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("is a link"), "{error}");
    let error = pack(folder(&[("a.txt", "1")]).path(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("no entrypoint"), "{error}");
    let unknown = Options { entrypoint: Some("a.txt".to_owned()), ..Options::default() };
    let error = pack(folder(&[("a.txt", "1")]).path(), &unknown).unwrap_err().to_string();
    assert!(error.contains("node or python"), "{error}");
    assert!(pack(Path::new("/does/not/exist"), &Options::default()).is_err());
}
