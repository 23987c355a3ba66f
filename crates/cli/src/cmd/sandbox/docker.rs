//! The configuration of the provider `docker`.

use std::path::PathBuf;

use anyhow::Context;
use tenure_config::Config;
use tenure_sandbox::{DockerSettings, Limits};

pub fn settings(folder: PathBuf, config: &Config) -> anyhow::Result<DockerSettings> {
    let configured = config.providers.docker.clone();
    let program = std::env::current_exe().context("this program does not know its own path")?;
    let defaults = DockerSettings::new(folder, program);
    Ok(DockerSettings {
        socket: configured.socket.unwrap_or_default(),
        runtime: configured.runtime,
        default_image: configured.default_image,
        network_mode: configured.network_mode,
        seccomp_profile: configured.seccomp_profile,
        read_only_rootfs: configured.read_only_rootfs,
        default_limits: Limits {
            memory_bytes: Some(configured.memory_bytes),
            cpus: Some(configured.cpus),
            pids: u32::try_from(configured.pids_limit).ok(),
            ..defaults.default_limits
        },
        max_limits: Limits {
            memory_bytes: Some(configured.max_memory_mb << 20),
            cpus: Some(configured.max_vcpus as f64),
            ..defaults.max_limits
        },
        user: configured.user.unwrap_or_default(),
        dropped_caps: configured.dropped_caps,
        added_caps: configured.added_caps,
        tmpfs: configured.tmpfs,
        ..defaults
    })
}
