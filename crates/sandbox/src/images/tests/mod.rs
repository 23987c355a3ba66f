//! Archives made by hand, because a library refuses to write what an attacker would.

mod hostile;
mod layers;
mod store;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::section::hex;
use super::{Image, ImageStore};
use crate::error::{Error, ErrorKind};

/// A tar file that is written entry by entry, without any check.
#[derive(Default, Clone)]
pub(super) struct Tar(Vec<u8>);

impl Tar {
    pub(super) fn file(self, path: &str, content: &str) -> Self {
        self.entry(path, b'0', "", content.as_bytes(), 0o644)
    }

    pub(super) fn dir(self, path: &str) -> Self {
        self.entry(path, b'5', "", b"", 0o755)
    }

    pub(super) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, b'2', target, b"", 0o777)
    }

    pub(super) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, b'1', target, b"", 0o644)
    }

    pub(super) fn entry(self, path: &str, kind: u8, link: &str, content: &[u8], mode: u32) -> Self {
        let size = content.len() as u64;
        self.header(path, kind, link, size, mode).raw(content)
    }

    /// A header that claims `size` bytes of content.
    pub(super) fn header(mut self, path: &str, kind: u8, link: &str, size: u64, mode: u32) -> Self {
        assert!(path.len() <= 100 && link.len() <= 100, "too long for a header");
        let mut header = [0_u8; 512];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[100..108].copy_from_slice(format!("{mode:07o}\0").as_bytes());
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        if size < 1 << 33 {
            header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        } else {
            header[124] = 0x80;
            header[128..136].copy_from_slice(&size.to_be_bytes());
        }
        header[136..148].copy_from_slice(b"00000000001\0");
        header[156] = kind;
        header[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self
    }

    /// Content, filled up to whole blocks.
    pub(super) fn raw(mut self, content: &[u8]) -> Self {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }
}

/// A store in a temporary folder, with a folder outside of it that nothing may touch.
pub(super) struct Fixture {
    pub(super) folder: TempDir,
    pub(super) store: ImageStore,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        fs::create_dir(folder.path().join("outside")).expect("a folder");
        fs::write(folder.path().join("outside/secret"), "untouched").expect("a file");
        let store = ImageStore::open(&folder.path().join("data")).expect("a store");
        Self { folder, store }
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("a file");
        path
    }

    /// Adds the archive as image `x` and returns the folder of its files.
    pub(super) fn unpacked(&self, tar: &Tar) -> PathBuf {
        let source = self.write("x.tar", &tar.bytes());
        self.store.add("x", &source).expect("an image");
        self.root("x")
    }

    pub(super) fn root(&self, name: &str) -> PathBuf {
        match self.store.resolve(name, &Default::default()).expect("the image") {
            Image::Rootfs { path, .. } => path,
            Image::Host => panic!("not the host"),
        }
    }

    /// Adds the archive, which must be refused as invalid and leave nothing.
    pub(super) fn refused(&self, tar: &Tar) -> Error {
        let source = self.write("x.tar", &tar.bytes());
        self.refused_source(&source)
    }

    pub(super) fn refused_source(&self, source: &Path) -> Error {
        let error = self.store.add("x", source).expect_err("a refusal");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        self.assert_empty();
        error
    }

    pub(super) fn assert_empty(&self) {
        for folder in ["names", "roots", "work"] {
            let left = fs::read_dir(self.folder.path().join("data/images").join(folder)).expect("a folder").count();
            assert_eq!(left, 0, "left in {folder}");
        }
        self.assert_outside_untouched();
    }

    pub(super) fn assert_outside_untouched(&self) {
        let outside = self.folder.path().join("outside");
        let names = fs::read_dir(&outside).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["secret"]);
        assert_eq!(fs::read_to_string(outside.join("secret")).expect("the secret"), "untouched");
    }

    pub(super) fn outside(&self) -> String {
        self.folder.path().join("outside").to_str().expect("UTF-8").to_owned()
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(bytes))
}
