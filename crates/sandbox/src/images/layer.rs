use std::io::Read;
use std::os::fd::OwnedFd;

use crate::error::Result;

use super::archive::Member;
use super::limits::{Budget, ImageLimits};
use super::path::names;
use super::trash::Trash;
use super::tree::Tree;

/// The writable layer of a sandbox that is filled from an archive, with the checks of images.
#[derive(Debug)]
pub(crate) struct LayerTree(Tree);

impl LayerTree {
    /// `trash` is an empty directory in `root`.
    pub(crate) fn new(root: OwnedFd, trash: OwnedFd, limits: ImageLimits) -> Self {
        Self(Tree::new(root, Trash::new(trash), Budget::new(limits)))
    }

    pub(crate) fn add(&mut self, member: &Member, content: &mut dyn Read) -> Result<()> {
        self.0.add(member, content, false)
    }

    /// Sets modes, owners and times of directories.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.0.finish()
    }

    /// Opens a directory of the layer, and makes it if it does not exist.
    pub(crate) fn directory(&mut self, path: &[u8]) -> Result<OwnedFd> {
        self.0.readable_directory(&names(path)?)
    }
}
