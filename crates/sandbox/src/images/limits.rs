use crate::error::{Error, Result};

/// Bounds on what one image may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// Files, directories and links, in all layers, with directories that are only implied by a path.
    pub entries: u64,
    /// Bytes of all files in all layers.
    pub bytes: u64,
    pub layers: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { entries: 1_000_000, bytes: 32 << 30, layers: 256 }
    }
}

/// The length of a path in an archive.
pub(super) const MAX_PATH_BYTES: usize = 4095;
/// Directories in a path of an archive.
pub(super) const MAX_DEPTH: usize = 128;
/// Extended headers of a tar entry: long names and PAX records.
pub(super) const MAX_EXTENDED_HEADER_BYTES: u64 = 1 << 20;
/// The manifest or the configuration of an image.
pub(super) const MAX_DOCUMENT_BYTES: u64 = 4 << 20;

/// What is left of the limits while an image is unpacked.
#[derive(Debug)]
pub(super) struct Budget {
    limits: ImageLimits,
    entries: u64,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(limits: ImageLimits) -> Self {
        Self { limits, entries: limits.entries, bytes: limits.bytes }
    }

    pub(super) fn take_entry(&mut self) -> Result<()> {
        self.entries = self.entries.checked_sub(1).ok_or_else(|| {
            Error::invalid(format!("the image has more than {} entries, the maximum", self.limits.entries))
        })?;
        Ok(())
    }

    pub(super) fn take_bytes(&mut self, bytes: u64) -> Result<()> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(|| {
            Error::invalid(format!("the image has more than {} bytes of files, the maximum", self.limits.bytes))
        })?;
        Ok(())
    }

    pub(super) fn used_entries(&self) -> u64 {
        self.limits.entries - self.entries
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.limits.bytes - self.bytes
    }

    /// The longest uncompressed archive that can hold as much as is allowed, with a header for every entry.
    pub(super) fn max_stream_bytes(&self) -> u64 {
        self.limits.bytes.saturating_add(self.limits.entries.saturating_mul(4096)).saturating_add(1 << 20)
    }
}
