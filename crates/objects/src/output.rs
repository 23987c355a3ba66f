//! Whether an output is finished, and what it consists of.

use tenure_core::objects::{
    MANIFEST, MANIFEST_BYTES, Manifest, ManifestError, OutputRef, Prefix, SUCCESS, is_data_file,
};
use uuid::Uuid;

use crate::error::ObjectError;
use crate::store::{Entry, Objects};

/// What an attempt says that it has written.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    pub location: &'a Prefix,
    pub dataset: Uuid,
    /// Absent: the manifest may name any.
    pub version: Option<Uuid>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// As it follows the location.
    pub name: String,
    pub bytes: u64,
}

/// A finished output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// In the order of the manifest, or of their names.
    pub files: Vec<File>,
    /// Whether `_manifest.json` fixes the list.
    pub has_manifest: bool,
}

impl Finished {
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

impl Objects {
    /// Reads the location of an output. It must be the staging prefix of exactly this output of this attempt, or lie
    /// below one of the prefixes that were granted beside it.
    pub fn location(&self, text: &str, output: &OutputRef, granted: &[Prefix]) -> Result<Prefix, ObjectError> {
        let location = self.parse(text)?;
        let own = self.layout.staging(output)?;
        // Code that does not see files knows it by the name of its bucket. It is recorded under one name.
        if self.covers(&own, &location) && self.covers(&location, &own) {
            return Ok(own);
        }
        if granted.iter().any(|prefix| self.covers(prefix, &location)) {
            return Ok(location);
        }
        Err(ObjectError::NotGranted)
    }

    /// Checks that an output is finished: it has `_SUCCESS` or a `_manifest.json`, which must be valid if it is there, and
    /// all files that it names exist.
    pub async fn finished(&self, output: &Output<'_>) -> Result<Finished, ObjectError> {
        let entries = self.list(output.location).await?;
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        if has(MANIFEST) {
            return self.of_manifest(output, &entries).await;
        }
        if !has(SUCCESS) {
            return Err(ObjectError::NotFinished);
        }
        let data = entries.into_iter().filter(|entry| is_data_file(&entry.name));
        let mut files: Vec<File> = data.map(|entry| File { name: entry.name, bytes: entry.bytes }).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Finished { files, has_manifest: false })
    }

    /// The same, and fixes the list of files for readers: a manifest is written if there is none and the list fits into
    /// one. Done before the commit that points to the output, so that a crash leaves no output without it; one that is
    /// never committed is removed with its manifest.
    pub async fn seal(&self, output: &Output<'_>) -> Result<Finished, ObjectError> {
        let finished = self.finished(output).await?;
        let Some(version) = output.version.filter(|_| !finished.has_manifest) else { return Ok(finished) };
        let files = finished.files.iter().map(|file| file.name.clone()).collect();
        let manifest = Manifest { dataset: output.dataset, version, files };
        let Some(text) = manifest.to_json(output.location) else { return Ok(finished) };
        if self.put_new(output.location, MANIFEST, text.into()).await? {
            return Ok(Finished { has_manifest: true, ..finished });
        }
        // Somebody was faster: what is there counts.
        self.finished(output).await
    }

    async fn of_manifest(&self, output: &Output<'_>, entries: &[Entry]) -> Result<Finished, ObjectError> {
        let read = self.get(output.location, MANIFEST, MANIFEST_BYTES as u64).await;
        let text = match read {
            Err(ObjectError::TooLarge(_)) => return Err(ManifestError::TooLarge.into()),
            other => other?,
        };
        let manifest = Manifest::parse(&text, output.location, output.dataset, output.version)?;
        manifest.check_files(entries.iter().map(|entry| &*entry.name))?;
        let bytes_of = |name: &str| entries.iter().find(|entry| entry.name == name).map_or(0, |entry| entry.bytes);
        let files = manifest.files.into_iter().map(|name| File { bytes: bytes_of(&name), name }).collect();
        Ok(Finished { files, has_manifest: true })
    }
}
