//! Zip files made by hand, so that each part can be wrong.

use std::io::Write;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub const MANIFEST: &str = "bundle_manifest.json";

/// An entry, as it is written.
#[derive(Clone)]
pub struct Entry {
    pub name: Vec<u8>,
    /// In the header before the entry.
    pub local_name: Option<Vec<u8>>,
    pub content: Vec<u8>,
    pub deflate: bool,
    pub method: Option<u16>,
    pub flags: u16,
    /// Type and permissions.
    pub mode: u32,
    /// Extra fields in the central directory.
    pub extra: Vec<u8>,
    /// The size that the headers say.
    pub said: Option<u32>,
    pub described_after: bool,
    /// Bytes between this entry and the one before.
    pub before: Vec<u8>,
    /// The header of another entry is said to be this one's.
    pub at: Option<u32>,
}

pub fn entry(name: &str, content: impl Into<Vec<u8>>) -> Entry {
    Entry {
        name: name.as_bytes().to_vec(),
        local_name: None,
        content: content.into(),
        deflate: true,
        method: None,
        flags: 0,
        mode: 0o100_644,
        extra: Vec::new(),
        said: None,
        described_after: false,
        before: Vec::new(),
        at: None,
    }
}

pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A bundle that can be spoiled before it is built.
#[derive(Clone)]
pub struct Bundle {
    pub manifest: Value,
    /// Written instead of the manifest.
    pub text: Option<Vec<u8>>,
    pub entries: Vec<Entry>,
}

impl Bundle {
    /// The first file is the entrypoint.
    pub fn new(runtime: &str, files: &[(&str, &[u8])]) -> Self {
        let listed: Vec<Value> = files
            .iter()
            .map(|(path, content)| json!({"path": path, "sha256": hex(content), "bytes": content.len()}))
            .collect();
        let entrypoint = files.first().map(|(path, _)| *path);
        let manifest = json!({"schema_version": 1, "runtime": runtime, "entrypoint": entrypoint, "files": listed});
        Self { manifest, text: None, entries: files.iter().map(|(path, content)| entry(path, *content)).collect() }
    }

    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.manifest[key] = value;
        self
    }

    pub fn change(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let text = self.text.clone().unwrap_or_else(|| serde_json::to_vec(&self.manifest).unwrap());
        let own = entry(MANIFEST, text);
        zip(&std::iter::once(own).chain(self.entries.iter().cloned()).collect::<Vec<_>>())
    }
}

fn put(out: &mut Vec<u8>, fields: &[(u32, usize)]) {
    for (value, bytes) in fields {
        out.extend_from_slice(&value.to_le_bytes()[..*bytes]);
    }
}

fn len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

pub fn zip(entries: &[Entry]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        out.extend_from_slice(&entry.before);
        let packed = if entry.deflate {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&entry.content).unwrap();
            encoder.finish().unwrap()
        } else {
            entry.content.clone()
        };
        let mut crc = flate2::Crc::new();
        crc.update(&entry.content);
        let method = entry.method.unwrap_or(if entry.deflate { 8 } else { 0 }).into();
        let flags = u32::from(entry.flags) | if entry.described_after { 8 } else { 0 };
        let size = entry.said.unwrap_or(len(&entry.content));
        let sizes = [(crc.sum(), 4), (len(&packed), 4), (size, 4)];
        let start = len(&out);
        let name = entry.local_name.as_ref().unwrap_or(&entry.name);
        put(&mut out, &[(0x0403_4b50, 4), (20, 2), (flags, 2), (method, 2), (0, 2), (0x21, 2)]);
        put(&mut out, if entry.described_after { &[(0, 4), (0, 4), (0, 4)] } else { &sizes });
        put(&mut out, &[(len(name), 2), (0, 2)]);
        out.extend_from_slice(name);
        out.extend_from_slice(&packed);
        if entry.described_after {
            put(&mut out, &[(0x0807_4b50, 4)]);
            put(&mut out, &sizes);
        }
        put(&mut directory, &[(0x0201_4b50, 4), (0x031e, 2), (20, 2), (flags, 2), (method, 2), (0, 2), (0x21, 2)]);
        put(&mut directory, &sizes);
        put(&mut directory, &[(len(&entry.name), 2), (len(&entry.extra), 2), (0, 2), (0, 2), (0, 2)]);
        put(&mut directory, &[(entry.mode << 16, 4), (entry.at.unwrap_or(start), 4)]);
        directory.extend_from_slice(&entry.name);
        directory.extend_from_slice(&entry.extra);
    }
    let (offset, count) = (len(&out), u32::try_from(entries.len()).unwrap());
    out.extend_from_slice(&directory);
    put(
        &mut out,
        &[(0x0605_4b50, 4), (0, 2), (0, 2), (count, 2), (count, 2), (len(&directory), 4), (offset, 4), (0, 2)],
    );
    out
}
