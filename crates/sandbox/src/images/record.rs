use serde::{Deserialize, Serialize};

/// What an image was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageSource {
    Directory,
    Tar,
    /// Output of `docker save` or `skopeo copy`.
    ImageArchive,
}

/// A registered image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// With its tag.
    pub name: String,
    /// `sha256:` and 64 hex digits: of the tar file as it was given, of the configuration of an image archive, or of the
    /// names, attributes and contents of a directory.
    pub digest: String,
    pub source: ImageSource,
    /// RFC 3339.
    pub created_at: String,
    /// Files, directories and links that were read, in all layers.
    pub entries: u64,
    /// Bytes of the files that were read, in all layers.
    pub bytes: u64,
    /// Devices, FIFOs and sockets that were left out.
    pub skipped: u64,
}

impl ImageRecord {
    /// The digest without its algorithm: the name of the image's folder.
    pub(super) fn hex(&self) -> Option<&str> {
        let hex = self.digest.strip_prefix("sha256:")?;
        (hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))).then_some(hex)
    }
}
