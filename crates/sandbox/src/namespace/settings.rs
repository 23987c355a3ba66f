use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::zygote::AgentProgram;
use crate::error::Result;
use crate::images::ImageStore;
use crate::spec::Limits;

/// How a provider `namespace` works on this machine.
#[derive(Debug, Clone)]
pub struct NamespaceSettings {
    /// Where the provider keeps what it knows about its sandboxes. One provider at a time uses it.
    pub state_dir: PathBuf,
    pub program: AgentProgram,
    pub images: ImageStore,
    /// Names of images that are not registered, and what is used for them.
    pub image_aliases: BTreeMap<String, String>,
    /// Used where a request leaves a limit out.
    pub default_limits: Limits,
    /// A request above one of them is refused.
    pub max_limits: Limits,
    /// Whether a sandbox may ask for hosts that it can reach. Without it every such request is refused.
    pub allow_lists: bool,
    /// Whether system calls are filtered. Off only to find out whether the filter causes a problem.
    pub seccomp: bool,
    /// Sandboxes that exist at once.
    pub max_sandboxes: usize,
    /// Sandboxes that are created at once. More than cores makes all of them slower.
    pub max_spawns: usize,
    /// The first id of this machine that sandboxes use, if the provider runs as root.
    pub first_id: u32,
}

impl NamespaceSettings {
    /// Settings with the state and the images in one data directory.
    pub fn new(data_dir: &Path, program: AgentProgram) -> Result<Self> {
        Ok(Self {
            state_dir: data_dir.join("namespace"),
            program,
            images: ImageStore::open(data_dir)?,
            image_aliases: BTreeMap::new(),
            default_limits: Limits {
                memory_bytes: Some(512 << 20),
                cpus: Some(1.0),
                pids: Some(256),
                disk_bytes: Some(256 << 20),
            },
            max_limits: Limits::default(),
            allow_lists: true,
            seccomp: true,
            max_sandboxes: 1000,
            max_spawns: std::thread::available_parallelism().map_or(2, usize::from),
            first_id: 0x2000_0000,
        })
    }
}
