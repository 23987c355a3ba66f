//! `bundle_manifest.json`

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::BundleError;
use crate::limits;

/// The name of the manifest in the zip file.
pub const MANIFEST: &str = "bundle_manifest.json";
const SCHEMA_VERSION: u32 = 1;

/// What runs the entrypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    Node,
    Python,
}

impl Language {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Python => "python",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Node, Self::Python].into_iter().find(|language| language.as_str() == text)
    }
}

/// A manifest that follows the rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    schema_version: u32,
    pub runtime: Language,
    pub entrypoint: String,
    pub files: Vec<FileEntry>,
    /// Variables that a job may set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_allowlist: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    pub path: String,
    /// 64 lower-case hex digits.
    pub sha256: String,
    pub bytes: u64,
}

impl Manifest {
    pub fn new(runtime: Language, entrypoint: String, files: Vec<FileEntry>, env_allowlist: Vec<String>) -> Self {
        Self { schema_version: SCHEMA_VERSION, runtime, entrypoint, files, env_allowlist }
    }

    /// Reads and judges a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, BundleError> {
        if bytes.len() as u64 > limits::MANIFEST_BYTES {
            return Err(BundleError::too_large(format!("{MANIFEST} has more than {} bytes", limits::MANIFEST_BYTES)));
        }
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::invalid(format!("{MANIFEST}: {}", shown(&error.to_string()))))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The size of all files, as it is declared.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    fn check(&self) -> Result<(), BundleError> {
        let invalid = |message: String| Err(BundleError::invalid(message));
        if self.schema_version != SCHEMA_VERSION {
            return invalid(format!("schema_version is {}: only {SCHEMA_VERSION} is known", self.schema_version));
        }
        if self.files.len() > limits::FILES {
            return Err(BundleError::too_large(format!("the bundle has more than {} files", limits::FILES)));
        }
        let mut paths = BTreeSet::new();
        for file in &self.files {
            let named = shown(&file.path);
            check_path(&file.path).map_err(|why| BundleError::invalid(format!("path '{named}' {why}")))?;
            if file.path == MANIFEST {
                return invalid(format!("{MANIFEST} must not list itself"));
            }
            if !paths.insert(file.path.as_str()) {
                return invalid(format!("path '{named}' is listed twice"));
            }
            let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            if file.sha256.len() != 64 || !file.sha256.bytes().all(hex) {
                return invalid(format!("sha256 of '{named}' must be 64 lower-case hex digits"));
            }
            if file.bytes > limits::FILE_BYTES {
                return Err(too_long(&file.path));
            }
        }
        for path in &paths {
            let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
            if let Some(file) = above.find(|folder| paths.contains(folder)) {
                return invalid(format!("path '{}' is a file and a folder", shown(file)));
            }
        }
        if self.total_bytes() > limits::TOTAL_BYTES {
            return Err(too_much());
        }
        if !paths.contains(self.entrypoint.as_str()) {
            return invalid(format!("the entrypoint '{}' is not among the files", shown(&self.entrypoint)));
        }
        self.check_env()
    }

    fn check_env(&self) -> Result<(), BundleError> {
        if self.env_allowlist.len() > limits::ENV_NAMES {
            let limit = limits::ENV_NAMES;
            return Err(BundleError::invalid(format!("env_allowlist has more than {limit} names")));
        }
        let mut names = BTreeSet::new();
        for name in &self.env_allowlist {
            if !is_variable(name) {
                let message = format!("env_allowlist: '{}' must match ^[A-Z_][A-Z0-9_]*$", shown(name));
                return Err(BundleError::invalid(message));
            }
            if !names.insert(name) {
                return Err(BundleError::invalid(format!("env_allowlist: '{name}' is listed twice")));
            }
        }
        Ok(())
    }
}

pub(crate) fn too_long(path: &str) -> BundleError {
    BundleError::too_large(format!("file '{}' has more than {} bytes", shown(path), limits::FILE_BYTES))
}

pub(crate) fn too_much() -> BundleError {
    BundleError::too_large(format!("the files have more than {} bytes in total", limits::TOTAL_BYTES))
}

fn is_variable(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=limits::ENV_NAME_BYTES).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(part)
}

/// What is wrong with the path of a file, if anything is.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("is empty");
    }
    if path.len() > limits::PATH_BYTES {
        return Err("is too long");
    }
    if path.starts_with('/') {
        return Err("is not relative");
    }
    if path.ends_with('/') {
        return Err("ends with '/': only files are listed");
    }
    if path.contains('\\') {
        return Err("contains a backslash");
    }
    if path.contains(char::is_control) {
        return Err("contains NUL or a control character");
    }
    for segment in path.split('/') {
        match segment {
            "" => return Err("contains an empty segment"),
            "." | ".." => return Err("contains '.' or '..'"),
            _ if segment.len() > limits::SEGMENT_BYTES => return Err("has a segment that is too long"),
            _ => {}
        }
    }
    Ok(())
}

/// Text of a stranger, short and without what could break a line.
pub(crate) fn shown(text: &str) -> String {
    const CHARS: usize = 80;
    let mut shown: String =
        text.chars().take(CHARS).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if text.chars().nth(CHARS).is_some() {
        shown.push('…');
    }
    shown
}
