//! The zip file of a bundle.
//!
//! Programs disagree about zip files whose parts contradict each other: one believes the central directory, another the
//! headers before each entry. A bundle is one only if all of them would find the same files: each entry is described once,
//! the two descriptions agree, and entries lie one after the other from the first byte to the central directory.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};

use flate2::bufread::DeflateDecoder;
use rawzip::extra_fields::ExtraFieldId;
use rawzip::{
    CompressionMethod, FileReader, RECOMMENDED_BUFFER_SIZE, ReaderAt, ZipArchive, ZipArchiveEntryWayfinder,
    ZipFileHeaderRecord, ZipLocator,
};
use sha2::{Digest, Sha256};

use crate::error::BundleError;
use crate::limits;
use crate::manifest::{FileEntry, MANIFEST, Manifest, check_path, shown, too_long, too_much};

/// File types in a Unix mode.
const TYPE_MASK: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
/// The record before the end of the directory that makes an archive one of zip64.
const ZIP64_LOCATOR: (u64, [u8; 4]) = (20, *b"PK\x06\x07");
/// The shortest and the longest data descriptor.
const DESCRIPTOR: std::ops::RangeInclusive<u64> = 12..=24;
/// A name and extra fields have 64 KiB each.
const HEADER_BYTES: usize = 2 << 16;
const CHUNK: usize = 64 << 10;

/// A bundle whose structure and manifest were checked. The contents of its files were not.
#[derive(Debug)]
pub struct Archive<R> {
    zip: ZipArchive<R>,
    manifest: Manifest,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    at: ZipArchiveEntryWayfinder,
    deflated: bool,
    executable: bool,
    bytes: u64,
}

/// A file of a bundle, whose content is what the manifest says.
#[derive(Debug)]
pub struct File {
    pub path: String,
    pub executable: bool,
    pub content: Vec<u8>,
}

impl Archive<FileReader> {
    /// A bundle in a file.
    pub fn open_file(file: std::fs::File) -> Result<Self, BundleError> {
        let bytes = file.metadata()?.len();
        Self::open(FileReader::from(file), bytes)
    }
}

impl<R: ReaderAt> Archive<R> {
    /// `bytes` is the length of what is read.
    pub fn open(reader: R, bytes: u64) -> Result<Self, BundleError> {
        if bytes > limits::BUNDLE_BYTES {
            return Err(BundleError::too_large(format!("the bundle has more than {} bytes", limits::BUNDLE_BYTES)));
        }
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let zip = ZipLocator::new().locate_in_reader(reader, &mut buffer, bytes).map_err(|(_, error)| odd(&error))?;
        if zip.entries_hint() > (limits::FILES + 1) as u64 {
            return Err(too_many());
        }
        if zip.end_offset() != bytes {
            return Err(BundleError::invalid("bytes follow the end of the zip file"));
        }
        if is_zip64(&zip)? {
            return Err(BundleError::invalid("zip64 is not supported: a bundle is too small to need it"));
        }
        let mut entries = entries(&zip, &mut buffer)?;
        let Some(own) = entries.remove(MANIFEST) else {
            return Err(BundleError::invalid(format!("the zip file has no {MANIFEST}")));
        };
        let text = read(&zip, &own, limits::MANIFEST_BYTES)?.ok_or_else(|| {
            BundleError::too_large(format!("{MANIFEST} has more than {} bytes", limits::MANIFEST_BYTES))
        })?;
        let manifest = Manifest::parse(&text)?;
        for file in &manifest.files {
            let entry = entries.get(&file.path).ok_or_else(|| {
                BundleError::invalid(format!("file '{}' of the manifest is not in the zip file", shown(&file.path)))
            })?;
            if entry.bytes != file.bytes {
                return Err(other_size(file));
            }
        }
        if let Some(path) = entries.keys().find(|path| manifest.files.iter().all(|file| file.path != **path)) {
            return Err(BundleError::invalid(format!("the manifest does not list '{}'", shown(path))));
        }
        Ok(Self { zip, manifest, entries })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn into_manifest(self) -> Manifest {
        self.manifest
    }

    /// Reads every file and compares it with the manifest.
    pub fn check(&self) -> Result<(), BundleError> {
        let mut total = 0;
        for file in &self.manifest.files {
            total += self.verify(file, &mut io::sink())?;
            if total > limits::TOTAL_BYTES {
                return Err(too_much());
            }
        }
        Ok(())
    }

    /// A file, compared with the manifest. `None` after the last one.
    pub fn file(&self, index: usize) -> Result<Option<File>, BundleError> {
        let Some(file) = self.manifest.files.get(index) else { return Ok(None) };
        let mut content = Vec::new();
        self.verify(file, &mut content)?;
        let executable = self.entries.get(&file.path).is_some_and(|entry| entry.executable);
        Ok(Some(File { path: file.path.clone(), executable, content }))
    }

    /// Writes a file to `into` while it is hashed and counted. Returns its size.
    fn verify(&self, file: &FileEntry, into: &mut dyn io::Write) -> Result<u64, BundleError> {
        let Some(entry) = self.entries.get(&file.path) else { return Err(other_size(file)) };
        let mut reader = content(&self.zip, entry)?;
        let (mut hash, mut bytes, mut chunk) = (Sha256::new(), 0, vec![0; CHUNK]);
        loop {
            let length = reader.read(&mut chunk).map_err(|error| undecodable(&file.path, &error))?;
            if length == 0 {
                break;
            }
            bytes += length as u64;
            if bytes > limits::FILE_BYTES {
                return Err(too_long(&file.path));
            }
            if bytes > file.bytes {
                return Err(other_size(file));
            }
            hash.update(&chunk[..length]);
            into.write_all(&chunk[..length])?;
        }
        if bytes != file.bytes {
            return Err(other_size(file));
        }
        if crate::hex(hash.finalize()) != file.sha256 {
            let named = shown(&file.path);
            return Err(BundleError::invalid(format!("file '{named}' does not have the sha256 of the manifest")));
        }
        Ok(bytes)
    }
}

/// All entries by name. What follows is about them as they lie in the file.
fn entries<R: ReaderAt>(zip: &ZipArchive<R>, buffer: &mut [u8]) -> Result<BTreeMap<String, Entry>, BundleError> {
    let mut found = BTreeMap::new();
    let mut spans = Vec::new();
    let mut header = vec![0; HEADER_BYTES];
    let mut records = zip.entries(buffer);
    while let Some(record) = records.next_entry().map_err(|error| odd(&error))? {
        if found.len() > limits::FILES {
            return Err(too_many());
        }
        let (name, entry) = entry(&record)?;
        spans.push(span(zip, &record, &name, &mut header)?);
        if found.insert(name.clone(), entry).is_some() {
            return Err(BundleError::invalid(format!("the zip file has '{}' twice", shown(&name))));
        }
    }
    if found.len() as u64 != zip.entries_hint() {
        return Err(BundleError::invalid("the zip file does not have as many entries as it says"));
    }
    in_a_row(spans, zip.directory_offset())?;
    Ok(found)
}

/// An entry as the central directory describes it.
fn entry(record: &ZipFileHeaderRecord<'_>) -> Result<(String, Entry), BundleError> {
    let path = record.file_path();
    let name = std::str::from_utf8(path.as_bytes())
        .map_err(|_| BundleError::invalid("the name of an entry is not UTF-8"))?
        .to_owned();
    let named = shown(&name);
    let invalid = |why: &str| BundleError::invalid(format!("entry '{named}' {why}"));
    check_path(&name).map_err(&invalid)?;
    let flags = record.flags();
    if flags.is_encrypted() || flags.has_strong_encryption() || flags.is_masked() {
        return Err(invalid("is encrypted"));
    }
    let mode = record.mode();
    if mode.is_symlink() {
        return Err(invalid("is a symbolic link"));
    }
    if mode.value() & TYPE_MASK != REGULAR {
        return Err(invalid("is not a regular file"));
    }
    if record.extra_fields().any(|(id, _)| id == ExtraFieldId::ZIP64) {
        return Err(invalid("uses zip64, which is not supported"));
    }
    let deflated = match record.compression_method() {
        CompressionMethod::STORE => false,
        CompressionMethod::DEFLATE => true,
        _ => return Err(invalid("has a compression method other than stored and deflated")),
    };
    let (bytes, packed) = (record.uncompressed_size_hint(), record.compressed_size_hint());
    if !deflated && bytes != packed {
        return Err(invalid("is stored with two different sizes"));
    }
    let executable = mode.permissions() & 0o111 != 0;
    Ok((name, Entry { at: record.wayfinder(), deflated, executable, bytes }))
}

/// Where an entry lies. `true`: a data descriptor follows it.
type Span = (u64, u64, bool);

/// Compares the header before an entry with the central directory.
fn span<R: ReaderAt>(
    zip: &ZipArchive<R>,
    record: &ZipFileHeaderRecord<'_>,
    name: &str,
    buffer: &mut [u8],
) -> Result<Span, BundleError> {
    let differs = || BundleError::invalid(format!("the two headers of entry '{}' differ", shown(name)));
    let entry = zip.get_entry(record.wayfinder()).map_err(|error| odd(&error))?;
    let local = entry.local_header(buffer).map_err(|error| odd(&error))?;
    let flags = (record.flags(), local.flags());
    if local.file_path().as_bytes() != name.as_bytes()
        || local.compression_method() != record.compression_method()
        || flags.0.bits() != flags.1.bits()
    {
        return Err(differs());
    }
    let sizes = (record.crc32(), record.compressed_size_hint(), record.uncompressed_size_hint());
    let descriptor = entry.reader().data_descriptor().map_err(|error| odd(&error))?;
    let described = match &descriptor {
        Some(after) => (after.crc32(), after.compressed_size(), after.uncompressed_size()),
        None => (local.crc32(), local.compressed_size_hint(), local.uncompressed_size_hint()),
    };
    if described != sizes {
        return Err(differs());
    }
    Ok((record.local_header_offset(), entry.compressed_data_range().1, descriptor.is_some()))
}

/// No entry overlaps another, and nothing is hidden between them.
fn in_a_row(mut spans: Vec<Span>, directory: u64) -> Result<(), BundleError> {
    spans.sort_unstable();
    let mut expected = 0..=0;
    for (start, end, described) in spans {
        if start < *expected.start() {
            return Err(BundleError::invalid("entries of the zip file overlap"));
        }
        if start > *expected.end() {
            return Err(BundleError::invalid("the zip file has bytes that belong to no entry"));
        }
        expected = if described { end + DESCRIPTOR.start()..=end + DESCRIPTOR.end() } else { end..=end };
    }
    if expected.contains(&directory) {
        return Ok(());
    }
    let overlap = directory < *expected.start();
    let why =
        if overlap { "entries of the zip file overlap" } else { "the zip file has bytes that belong to no entry" };
    Err(BundleError::invalid(why))
}

fn is_zip64<R: ReaderAt>(zip: &ZipArchive<R>) -> Result<bool, BundleError> {
    let (length, signature) = ZIP64_LOCATOR;
    let Some(at) = zip.eocd_offset().checked_sub(length) else { return Ok(false) };
    let mut found = [0; 4];
    let mut read = 0;
    while read < found.len() {
        match zip.get_ref().read_at(&mut found[read..], at + read as u64)? {
            0 => return Ok(false),
            length => read += length,
        }
    }
    Ok(found == signature)
}

fn content<'a, R: ReaderAt>(zip: &'a ZipArchive<R>, entry: &Entry) -> Result<Box<dyn Read + 'a>, BundleError> {
    let reader = zip.get_entry(entry.at).map_err(|error| odd(&error))?.reader();
    Ok(if entry.deflated { Box::new(DeflateDecoder::new(BufReader::new(reader))) } else { Box::new(reader) })
}

/// The whole content; `None` if there is more than `limit`.
fn read<R: ReaderAt>(zip: &ZipArchive<R>, entry: &Entry, limit: u64) -> Result<Option<Vec<u8>>, BundleError> {
    let mut bytes = Vec::new();
    let mut reader = content(zip, entry)?.take(limit + 1);
    reader.read_to_end(&mut bytes).map_err(|error| undecodable(MANIFEST, &error))?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
}

fn odd(error: &rawzip::Error) -> BundleError {
    match error.kind() {
        rawzip::ErrorKind::IO(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            BundleError::Io(io::Error::new(error.kind(), error.to_string()))
        }
        _ => BundleError::invalid(format!("not a zip file that can be read: {error}")),
    }
}

fn undecodable(path: &str, error: &io::Error) -> BundleError {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            BundleError::invalid(format!("file '{}' cannot be decompressed", shown(path)))
        }
        kind => BundleError::Io(io::Error::new(kind, error.to_string())),
    }
}

fn too_many() -> BundleError {
    BundleError::too_large(format!("the bundle has more than {} files", limits::FILES))
}

fn other_size(file: &FileEntry) -> BundleError {
    BundleError::invalid(format!("file '{}' does not have the {} bytes of the manifest", shown(&file.path), file.bytes))
}
