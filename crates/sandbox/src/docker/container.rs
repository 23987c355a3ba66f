//! What the daemon is asked for.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount as DaemonMount, MountType,
    ResourcesUlimits,
};
use rustix::process::{Resource, getrlimit};

use super::RUN_TARGET;
use super::bundle::Bundle;
use super::settings::DockerSettings;
use crate::error::{Error, Result};
use crate::spec::{Egress, Limits, Spec, WORKSPACE};

pub(super) const LABEL: &str = "tenure";
pub(super) const LABEL_SANDBOX: &str = "tenure.sandbox";
pub(super) const LABEL_PROVIDER: &str = "tenure.provider";
/// Tells the containers of several workers at one daemon apart.
pub(super) const LABEL_INSTANCE: &str = "tenure.instance";
/// The image as the caller wrote it, the id that it had, the metadata and the variables.
pub(super) const LABEL_RECORD: &str = "tenure.record";

/// The daemon refuses less.
const MIN_MEMORY_BYTES: u64 = 6 << 20;

/// The limits of a sandbox, or why it is refused.
pub(super) fn limits(settings: &DockerSettings, spec: &Spec) -> Result<Limits> {
    let read_only = settings.read_only_rootfs || spec.read_only_root;
    if spec.limits.disk_bytes.is_some() && !read_only {
        return Err(Error::invalid(
            "the provider docker limits the disk only with a read-only root: leave the limit out, or ask for \
             read_only_root",
        ));
    }
    if matches!(spec.egress, Egress::Allow(_)) || spec.gateway.is_some() {
        return Err(Error::invalid("the provider docker does not enforce a list of allowed hosts"));
    }
    let (asked, default, max) = (&spec.limits, &settings.default_limits, &settings.max_limits);
    let limits = Limits {
        memory_bytes: within("memory", asked.memory_bytes.or(default.memory_bytes), max.memory_bytes)?,
        cpus: within("cpus", asked.cpus.or(default.cpus), max.cpus)?,
        pids: within("pids", asked.pids.or(default.pids), max.pids)?,
        disk_bytes: within("disk", asked.disk_bytes.or(default.disk_bytes), max.disk_bytes)?,
    };
    if limits.memory_bytes.is_some_and(|bytes| bytes < MIN_MEMORY_BYTES) {
        return Err(Error::invalid("a memory limit below 6 MiB is too small for a container"));
    }
    if limits.cpus.is_some_and(|cpus| !cpus.is_finite() || cpus < 0.01) {
        return Err(Error::invalid("the cpu limit must be a number of at least 0.01"));
    }
    Ok(limits)
}

fn within<T: PartialOrd + std::fmt::Display>(what: &str, asked: Option<T>, max: Option<T>) -> Result<Option<T>> {
    match (&asked, &max) {
        (Some(asked), Some(max)) if asked > max => {
            Err(Error::invalid(format!("the limit {what}: {asked} is above the provider's maximum of {max}")))
        }
        _ => Ok(asked),
    }
}

/// Who commands run as, as the daemon reads it; empty means the image's user.
pub(super) fn user(settings: &DockerSettings, spec: &Spec) -> String {
    spec.user_id.map_or_else(|| settings.user.clone(), |id| format!("{id}:{id}"))
}

/// The container of a sandbox. `run_folder` has the socket that the agent asks for its own at.
pub(super) fn body(
    settings: &DockerSettings,
    spec: &Spec,
    limits: &Limits,
    bundle: &Bundle,
    run_folder: &Path,
    image: &str,
    labels: HashMap<String, String>,
) -> Result<ContainerCreateBody> {
    let read_only = settings.read_only_rootfs || spec.read_only_root;
    let mut mounts = vec![bind(&bundle.folder, bundle.target, true), bind(run_folder, RUN_TARGET, true)];
    mounts.extend(spec.mounts.iter().map(|mount| bind(&mount.source, &mount.target, mount.read_only)));
    let mut tmpfs: HashMap<String, String> = settings.tmpfs.clone().into_iter().collect();
    if read_only {
        let size = limits.disk_bytes.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
        for path in [WORKSPACE, "/tmp"] {
            tmpfs.entry(path.to_owned()).or_insert_with(|| format!("rw,nosuid,nodev,exec,mode=1777{size}"));
        }
    }
    let mut security = vec!["no-new-privileges".to_owned()];
    match settings.seccomp_profile.as_str() {
        "default" => {}
        "unconfined" => security.push("seccomp=unconfined".to_owned()),
        path => {
            let profile = std::fs::read_to_string(path).map_err(|error| {
                Error::invalid(format!("providers.docker.seccomp_profile: cannot read {path}: {error}"))
                    .with_source(error)
            })?;
            security.push(format!("seccomp={profile}"));
        }
    }
    let memory = limits.memory_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let host_config = HostConfig {
        memory,
        // The same as memory: no swap on top of it.
        memory_swap: memory,
        nano_cpus: limits.cpus.map(|cpus| (cpus * 1e9) as i64),
        pids_limit: limits.pids.map(i64::from),
        ulimits: Some(vec![ulimit("nofile", Resource::Nofile, 20_000), ulimit("nproc", Resource::Nproc, 32_768)]),
        mounts: Some(mounts),
        tmpfs: Some(tmpfs),
        network_mode: Some(settings.network_mode.clone()).filter(|mode| !mode.is_empty()),
        runtime: Some(settings.runtime.clone()).filter(|runtime| !runtime.is_empty()),
        cap_drop: Some(settings.dropped_caps.clone()),
        cap_add: Some(settings.added_caps.clone()),
        security_opt: Some(security),
        readonly_rootfs: Some(read_only),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        ipc_mode: Some("private".to_owned()),
        // The agent writes nothing, and commands write to the agent.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        init: Some(false),
        privileged: Some(false),
        ..HostConfig::default()
    };
    Ok(ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(bundle.entrypoint.clone()),
        cmd: Some(Vec::new()),
        env: Some(Vec::new()),
        user: Some(user(settings, spec)).filter(|user| !user.is_empty()),
        working_dir: Some("/".to_owned()),
        labels: Some(labels),
        hostname: Some("sandbox".to_owned()),
        network_disabled: Some(settings.network_mode == "none"),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    })
}

/// An archive with the directories that every sandbox has, for a container whose root can be written.
pub(super) fn directories(user: &str) -> std::io::Result<Vec<u8>> {
    let mut ids = user.split(':').map(str::parse::<u64>);
    // The user of an image or by name is not known here, so that everybody in the sandbox may write.
    let (uid, gid, mode) = match (ids.next(), ids.next()) {
        (Some(Ok(uid)), Some(Ok(gid))) => (uid, gid, 0o755),
        (Some(Ok(uid)), None) => (uid, 0, 0o755),
        _ => (0, 0, 0o777),
    };
    let mut archive = tar::Builder::new(Vec::new());
    for (name, uid, gid, mode) in [("workspace/", uid, gid, mode), ("tmp/", 0, 0, 0o1777)] {
        let mut header = tar::Header::new_ustar();
        header.set_path(name)?;
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(mode);
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_size(0);
        header.set_cksum();
        archive.append(&header, std::io::empty())?;
    }
    archive.into_inner()
}

fn bind(source: &Path, target: &str, read_only: bool) -> DaemonMount {
    DaemonMount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..DaemonMount::default()
    }
}

/// Some daemons have defaults above what their machine allows.
fn ulimit(name: &str, resource: Resource, most: u64) -> ResourcesUlimits {
    let limit = getrlimit(resource).maximum.unwrap_or(most).min(most);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(limit), hard: Some(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn settings() -> DockerSettings {
        DockerSettings::new("/data", "/program")
    }

    fn container(settings: &DockerSettings, spec: &Spec) -> ContainerCreateBody {
        let bundle =
            Bundle { folder: "/bundle".into(), target: "/.tenure/agent", entrypoint: vec!["/agent".to_owned()] };
        let limits = limits(settings, spec).expect("limits");
        body(settings, spec, &limits, &bundle, Path::new("/run/x"), "image", HashMap::new()).expect("a container")
    }

    #[test]
    fn a_container_is_confined_by_default() {
        let body = container(&settings(), &Spec::new("sb-1", "x"));
        let host = body.host_config.expect("a host configuration");
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges".to_owned()]));
        assert_eq!((host.memory, host.memory_swap), (Some(512 << 20), Some(512 << 20)));
        assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_000_000_000), Some(256)));
        assert!(host.mounts.expect("mounts").iter().all(|mount| mount.read_only == Some(true)));
        assert_eq!(host.privileged, Some(false));
    }

    #[test]
    fn more_than_is_enforced_or_allowed_is_refused() {
        let refused = |change: fn(&mut Spec)| {
            let mut spec = Spec::new("sb-1", "x");
            change(&mut spec);
            limits(&settings(), &spec).expect_err("a refusal").kind()
        };
        assert_eq!(refused(|spec| spec.limits.disk_bytes = Some(1)), ErrorKind::Invalid);
        assert_eq!(refused(|spec| spec.limits.memory_bytes = Some(9 << 30)), ErrorKind::Invalid);
        assert_eq!(refused(|spec| spec.limits.memory_bytes = Some(1)), ErrorKind::Invalid);
        assert_eq!(refused(|spec| spec.limits.cpus = Some(9.0)), ErrorKind::Invalid);
        assert_eq!(refused(|spec| spec.limits.cpus = Some(f64::NAN)), ErrorKind::Invalid);
        assert_eq!(refused(|spec| spec.egress = Egress::Allow(vec![])), ErrorKind::Invalid);
    }

    #[test]
    fn a_read_only_root_has_writable_directories_in_memory_of_limited_size() {
        let mut spec = Spec::new("sb-1", "x");
        spec.read_only_root = true;
        spec.limits.disk_bytes = Some(1 << 20);
        let host = container(&settings(), &spec).host_config.expect("a host configuration");
        assert_eq!(host.readonly_rootfs, Some(true));
        assert!(host.tmpfs.expect("tmpfs")[WORKSPACE].ends_with("size=1048576"));
    }
}
