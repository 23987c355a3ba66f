//! A bundle from a folder.

use std::io::Write as _;
use std::path::Path;

use rawzip::{CompressionMethod, ZipArchiveWriter};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use crate::error::{BundleError, PackError};
use crate::manifest::{FileEntry, Language, MANIFEST, Manifest, check_path, too_long, too_much};
use crate::{Archive, limits};

/// Folders that are never part of a bundle.
const LEFT_OUT: [&str; 3] = [".git", "__pycache__", ".venv"];
/// Entrypoints that are looked for, in this order.
const ENTRYPOINTS: [(&str, Language); 6] = [
    ("index.js", Language::Node),
    ("index.mjs", Language::Node),
    ("index.cjs", Language::Node),
    ("main.py", Language::Python),
    ("index.py", Language::Python),
    ("app.py", Language::Python),
];

/// What a folder does not say itself. A value that is set takes precedence over its `bundle_manifest.json`.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub runtime: Option<Language>,
    pub entrypoint: Option<String>,
    pub env_allowlist: Option<Vec<String>>,
}

/// The parts of a manifest that people write. `files` is made.
#[derive(Default, Deserialize)]
struct Written {
    runtime: Option<Language>,
    entrypoint: Option<String>,
    env_allowlist: Option<Vec<String>>,
}

/// Makes a bundle of all files of a folder. The same files make the same bytes.
pub fn pack(folder: &Path, options: &Options) -> Result<Vec<u8>, PackError> {
    let files = files(folder)?;
    let written = written(folder)?;
    let entrypoint = options.entrypoint.clone().or(written.entrypoint);
    let found = ENTRYPOINTS.iter().find(|(name, _)| files.iter().any(|(path, _)| path == name));
    let entrypoint = entrypoint.or_else(|| found.map(|(name, _)| (*name).to_owned())).ok_or_else(|| {
        let names: Vec<_> = ENTRYPOINTS.iter().map(|(name, _)| *name).collect();
        PackError::Folder(format!("no entrypoint: name one, or add one of {}", names.join(", ")))
    })?;
    let runtime = options.runtime.or(written.runtime).or_else(|| guess(&entrypoint)).ok_or_else(|| {
        PackError::Folder(format!("cannot tell whether '{entrypoint}' is for node or python: name the runtime"))
    })?;
    let env = options.env_allowlist.clone().or(written.env_allowlist).unwrap_or_default();
    let entries = files.iter().map(|(path, content)| FileEntry {
        path: path.clone(),
        sha256: crate::hex(Sha256::digest(content)),
        bytes: content.len() as u64,
    });
    let manifest = Manifest::new(runtime, entrypoint, entries.collect(), env);
    let bytes = zip(&manifest, &files).map_err(|error| PackError::Folder(format!("cannot write the zip: {error}")))?;
    // What is sent is what the server will accept.
    Archive::open(bytes.as_slice(), bytes.len() as u64)?;
    Ok(bytes)
}

fn guess(entrypoint: &str) -> Option<Language> {
    match Path::new(entrypoint).extension()?.to_str()? {
        "js" | "mjs" | "cjs" => Some(Language::Node),
        "py" => Some(Language::Python),
        _ => None,
    }
}

fn written(folder: &Path) -> Result<Written, PackError> {
    let path = folder.join(MANIFEST);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| PackError::Bundle(BundleError::invalid(format!("{MANIFEST}: {error}")))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Written::default()),
        Err(error) => Err(PackError::Read { path: path.display().to_string(), error }),
    }
}

/// Path and content of each file, sorted by path.
fn files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, PackError> {
    let mut files = Vec::new();
    let mut total = 0;
    let walk = WalkDir::new(folder).min_depth(1).follow_links(false).sort_by_file_name().into_iter();
    let kept = walk
        .filter_entry(|entry| !(entry.file_type().is_dir() && LEFT_OUT.iter().any(|name| entry.file_name() == *name)));
    for entry in kept {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(folder).display().to_string();
            PackError::Read { path, error: error.into() }
        })?;
        if entry.file_type().is_dir() {
            continue;
        }
        let shown = entry.path().display().to_string();
        if !entry.file_type().is_file() {
            return Err(PackError::Folder(format!("{shown} is a link or a special file: a bundle has regular files")));
        }
        let path = entry.path().strip_prefix(folder).ok().and_then(Path::to_str);
        let path = path.ok_or_else(|| PackError::Folder(format!("the name of {shown} is not UTF-8")))?.to_owned();
        if path == MANIFEST {
            continue;
        }
        check_path(&path).map_err(|why| PackError::Folder(format!("the name of {shown} {why}")))?;
        let content = std::fs::read(entry.path()).map_err(|error| PackError::Read { path: shown, error })?;
        total += content.len() as u64;
        if content.len() as u64 > limits::FILE_BYTES {
            return Err(too_long(&path).into());
        }
        if total > limits::TOTAL_BYTES {
            return Err(too_much().into());
        }
        files.push((path, content));
        if files.len() > limits::FILES {
            return Err(BundleError::too_large(format!("the folder has more than {} files", limits::FILES)).into());
        }
    }
    Ok(files)
}

fn zip(manifest: &Manifest, files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let text = serde_json::to_vec(manifest)?;
    let mut bytes = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut bytes);
    let own = (MANIFEST, text.as_slice());
    let all = std::iter::once(own).chain(files.iter().map(|(path, content)| (path.as_str(), content.as_slice())));
    for (path, content) in all {
        let options = archive.new_file(path).compression_method(CompressionMethod::DEFLATE).unix_permissions(0o644);
        let (mut entry, config) = options.start()?;
        let encoder = flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::default());
        let mut writer = config.wrap(encoder);
        writer.write_all(content)?;
        let (encoder, descriptor) = writer.finish()?;
        encoder.finish()?;
        entry.finish(descriptor)?;
    }
    archive.finish()?;
    Ok(bytes)
}
