use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

use super::archive::{MemberKind, for_each_member};
use super::compression::decompressed;
use super::limits::{Budget, ImageLimits, MAX_DOCUMENT_BYTES};
use super::path::{joined, names, shown};
use super::section::{Hashing, Section};
use super::tree::Tree;

/// Indexes may point to indexes: one per architecture below one per image.
const MAX_NESTED_INDEXES: usize = 3;
/// Blobs and folders of an image archive.
const MAX_MEMBERS: usize = 10_000;

/// An image archive: the layers of an image with documents that describe them.
pub(super) struct ImageArchive<'a> {
    file: &'a File,
    members: HashMap<Vec<u8>, Place>,
}

enum Place {
    At {
        offset: u64,
        size: u64,
    },
    /// Another member. Old versions of `docker save` link to layers that occur twice.
    Link(Vec<u8>),
}

/// Whether a tar stream is an image archive and not the files of an image.
pub(super) fn is_image_archive(stream: impl Read, limits: ImageLimits) -> Result<bool> {
    let mut budget = Budget::new(limits);
    let mut found = false;
    for_each_member(stream, |member, content| {
        budget.take_entry()?;
        if member.kind == MemberKind::File {
            budget.take_bytes(member.size)?;
        }
        match joined(&names(&member.path)?).as_slice() {
            b"oci-layout" => found |= member.kind == MemberKind::File,
            b"manifest.json" if member.size <= MAX_DOCUMENT_BYTES => {
                let mut document = Vec::new();
                found |= content.read_to_end(&mut document).is_ok()
                    && serde_json::from_slice::<Vec<SavedImage>>(&document).is_ok();
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

#[derive(Deserialize)]
struct SavedImage {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags", default)]
    tags: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Configuration {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// A layer's member, the digest of the member if it is known, and the digest of the uncompressed layer.
struct Layer {
    member: Vec<u8>,
    digest: Option<String>,
    diff_id: String,
}

impl<'a> ImageArchive<'a> {
    /// `file` is not compressed.
    pub(super) fn open(file: &'a File) -> Result<Self> {
        let mut members = HashMap::new();
        for_each_member(Section::whole(file), |member, _| {
            if members.len() >= MAX_MEMBERS {
                return Err(Error::invalid(format!("the image archive has more than {MAX_MEMBERS} members")));
            }
            let path = joined(&names(&member.path)?);
            match member.kind {
                MemberKind::File => {
                    members.insert(path, Place::At { offset: member.offset, size: member.size });
                }
                MemberKind::Symlink(target) => {
                    members.insert(path, Place::Link(target));
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(Self { file, members })
    }

    /// Unpacks the layers, lowest first, and returns the digest of the image's configuration in hex.
    pub(super) fn unpack(&self, limits: ImageLimits, tree: &mut Tree) -> Result<String> {
        let (config_hex, layers) =
            if self.members.contains_key(&b"index.json"[..]) { self.oci_image()? } else { self.saved_image()? };
        if layers.len() > limits.layers {
            return Err(Error::invalid(format!(
                "the image has {} layers; the maximum is {}",
                layers.len(),
                limits.layers
            )));
        }
        for layer in &layers {
            self.unpack_layer(layer, tree)?;
        }
        Ok(config_hex)
    }

    /// Reads a layer twice: whiteouts concern only the layers below, wherever they stand in the layer.
    fn unpack_layer(&self, layer: &Layer, tree: &mut Tree) -> Result<()> {
        let name = shown(&layer.member);
        let unreadable = |error: std::io::Error| {
            Error::invalid(format!("cannot read the layer {name:?}: {error}")).with_source(error)
        };
        let max_bytes = tree.budget.max_stream_bytes();

        let mut raw = Hashing::new(self.section(&layer.member)?);
        for_each_member(decompressed(&mut raw, max_bytes).map_err(unreadable)?, |member, _| {
            tree.apply_whiteout(&member)
        })?;
        let digest = raw.finish().map_err(unreadable)?;
        if layer.digest.as_ref().is_some_and(|expected| *expected != digest) {
            return Err(Error::invalid(format!(
                "the layer {name:?} does not match its digest: the archive is damaged"
            )));
        }

        let mut content = Hashing::new(decompressed(self.section(&layer.member)?, max_bytes).map_err(unreadable)?);
        for_each_member(&mut content, |member, content| tree.add(&member, content, true))?;
        if content.finish().map_err(unreadable)? != layer.diff_id {
            return Err(Error::invalid(format!(
                "the content of the layer {name:?} does not match its digest: the archive is damaged"
            )));
        }
        Ok(())
    }

    /// The layers of the one image in an OCI archive.
    fn oci_image(&self) -> Result<(String, Vec<Layer>)> {
        let mut index: Index = self.document(b"index.json", None)?;
        for _ in 0..MAX_NESTED_INDEXES {
            let descriptor = chosen(index)?;
            let hex = sha256_hex(&descriptor.digest)?;
            if descriptor.media_type.contains("index") || descriptor.media_type.contains("manifest.list") {
                index = self.document(&blob(hex), Some(hex))?;
                continue;
            }
            let manifest: Manifest = self.document(&blob(hex), Some(hex))?;
            let config_hex = sha256_hex(&manifest.config.digest)?;
            let configuration: Configuration = self.document(&blob(config_hex), Some(config_hex))?;
            let mut layers = Vec::new();
            for descriptor in &manifest.layers {
                let hex = sha256_hex(&descriptor.digest)?;
                layers.push((blob(hex), Some(hex.to_owned())));
            }
            return Ok((config_hex.to_owned(), with_diff_ids(layers, &configuration)?));
        }
        Err(Error::invalid("the indexes of the image archive are nested too deeply"))
    }

    /// The layers of the one image that an older `docker save` wrote.
    fn saved_image(&self) -> Result<(String, Vec<Layer>)> {
        let mut images: Vec<SavedImage> = self.document(b"manifest.json", None)?;
        let tags = images.iter().flat_map(|image| image.tags.iter().flatten()).take(10).cloned().collect::<Vec<_>>();
        let (Some(image), true) = (images.pop(), images.is_empty()) else {
            return Err(Error::invalid(format!(
                "the archive must have one image, and has {tags:?}: save the one that you need"
            )));
        };
        // The configuration is named by its digest, in two ways.
        let file_name = image.config.rsplit('/').next().unwrap_or_default();
        let config_hex = sha256_hex(&format!("sha256:{}", file_name.trim_end_matches(".json")))?.to_owned();
        let configuration: Configuration = self.document(image.config.as_bytes(), Some(&config_hex))?;
        let layers = image.layers.into_iter().map(|member| (member.into_bytes(), None)).collect();
        Ok((config_hex, with_diff_ids(layers, &configuration)?))
    }

    /// Reads a document, which must match its digest.
    fn document<T: DeserializeOwned>(&self, member: &[u8], hex: Option<&str>) -> Result<T> {
        let name = shown(member);
        let mut content = Hashing::new(self.section(member)?.take(MAX_DOCUMENT_BYTES + 1));
        let mut document = Vec::new();
        let read = content.read_to_end(&mut document).and_then(|_| content.finish());
        let digest =
            read.map_err(|error| Error::invalid(format!("cannot read {name:?}: {error}")).with_source(error))?;
        if document.len() as u64 > MAX_DOCUMENT_BYTES {
            return Err(Error::invalid(format!("{name:?} of the image archive is larger than 4 MiB")));
        }
        if hex.is_some_and(|hex| hex != digest) {
            return Err(Error::invalid(format!("{name:?} does not match its digest: the archive is damaged")));
        }
        serde_json::from_slice(&document).map_err(|error| {
            Error::invalid(format!("{name:?} of the image archive cannot be read: {error}")).with_source(error)
        })
    }

    fn section(&self, member: &[u8]) -> Result<Section<'a>> {
        let missing = || Error::invalid(format!("the image archive has no member {:?}", shown(member)));
        let mut path = joined(&names(member)?);
        for _ in 0..8 {
            match self.members.get(&path).ok_or_else(missing)? {
                Place::At { offset, size } => return Ok(Section::new(self.file, *offset, *size)),
                Place::Link(target) => path = beside(&path, target),
            }
        }
        Err(missing())
    }
}

/// The member that a link leads to. It is looked up among the members and never on disk.
fn beside(link: &[u8], target: &[u8]) -> Vec<u8> {
    let mut path: Vec<&[u8]> = link.split(|byte| *byte == b'/').collect();
    path.pop();
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                path.pop();
            }
            name => path.push(name),
        }
    }
    path.join(&b'/')
}

/// The manifest of this machine's architecture, or the only one.
fn chosen(index: Index) -> Result<Descriptor> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let (fitting, rest): (Vec<_>, Vec<_>) = index.manifests.into_iter().partition(|manifest| {
        manifest.platform.as_ref().is_none_or(|p| p.os == "linux" && p.architecture == architecture)
    });
    let (count, others) = (fitting.len(), rest.len());
    match <[Descriptor; 1]>::try_from(fitting) {
        Ok([manifest]) => Ok(manifest),
        Err(_) => Err(Error::invalid(format!(
            "the archive must have one image for linux/{architecture}, and has {count}, and {others} for other platforms"
        ))),
    }
}

fn with_diff_ids(layers: Vec<(Vec<u8>, Option<String>)>, configuration: &Configuration) -> Result<Vec<Layer>> {
    let diff_ids = &configuration.rootfs.diff_ids;
    if diff_ids.len() != layers.len() {
        return Err(Error::invalid(format!(
            "the image has {} layers, and its configuration names {}",
            layers.len(),
            diff_ids.len()
        )));
    }
    let pairs = layers.into_iter().zip(diff_ids);
    pairs.map(|((member, digest), id)| Ok(Layer { member, digest, diff_id: sha256_hex(id)?.to_owned() })).collect()
}

fn sha256_hex(digest: &str) -> Result<&str> {
    digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
        .ok_or_else(|| {
            Error::invalid(format!("the image archive has the digest {:?}: not SHA-256", shown(digest.as_bytes())))
        })
}

fn blob(hex: &str) -> Vec<u8> {
    format!("blobs/sha256/{hex}").into_bytes()
}
