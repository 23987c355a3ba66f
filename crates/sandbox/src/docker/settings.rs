use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::spec::Limits;

/// Settings of the provider `docker`.
#[derive(Debug, Clone)]
pub struct DockerSettings {
    /// Has the sockets of the sandboxes and a copy of the agent. One process uses it at a time.
    pub data_dir: PathBuf,
    /// The program that sandboxes begin with. It must call [`crate::agent_main`] first thing in its `main`.
    pub program: PathBuf,
    /// The daemon's socket; empty means `DOCKER_HOST`, or `/var/run/docker.sock`.
    pub socket: String,
    /// The daemon's runtime, for example `runc` or `runsc`; empty means the daemon's default.
    pub runtime: String,
    /// For a spawn that names no image.
    pub default_image: String,
    /// `none`, or a network of the daemon. With another network than `none` sandboxes have its egress.
    pub network_mode: String,
    /// `default` for the daemon's profile, `unconfined`, or the path of a profile.
    pub seccomp_profile: String,
    /// Makes the root of every sandbox read-only; `/workspace` and `/tmp` are then in memory.
    pub read_only_rootfs: bool,
    /// Used where a request leaves a limit out. The disk is limited only with a read-only root.
    pub default_limits: Limits,
    /// A request above one of them is refused.
    pub max_limits: Limits,
    /// As the daemon reads it, for example `1000:1000`; empty means the image's user.
    pub user: String,
    pub dropped_caps: Vec<String>,
    pub added_caps: Vec<String>,
    /// Further file systems in memory: paths and mount options.
    pub tmpfs: BTreeMap<String, String>,
    pub max_sandboxes: usize,
}

impl DockerSettings {
    pub fn new(data_dir: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            program: program.into(),
            socket: String::new(),
            runtime: "runc".to_owned(),
            default_image: "alpine:latest".to_owned(),
            network_mode: "none".to_owned(),
            seccomp_profile: "default".to_owned(),
            read_only_rootfs: false,
            default_limits: Limits {
                memory_bytes: Some(512 << 20),
                cpus: Some(1.0),
                pids: Some(256),
                disk_bytes: Some(512 << 20),
            },
            max_limits: Limits { memory_bytes: Some(8 << 30), cpus: Some(8.0), pids: None, disk_bytes: None },
            user: String::new(),
            dropped_caps: vec!["ALL".to_owned()],
            added_caps: Vec::new(),
            tmpfs: BTreeMap::new(),
            max_sandboxes: 1000,
        }
    }
}
