//! Files through which the kernel or the host can be seen or changed.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Attempt, Refusal};

pub const ATTEMPTS: &[(&str, Attempt)] = &[
    ("core-pattern", || writable("/proc/sys/kernel/core_pattern")),
    ("modprobe-path", || writable("/proc/sys/kernel/modprobe")),
    ("sysctl-vm", || writable("/proc/sys/vm/overcommit_memory")),
    ("sysctl-net", || writable("/proc/sys/net/ipv4/ip_forward")),
    ("sysrq", || writable("/proc/sysrq-trigger")),
    ("binfmt", || writable("/proc/sys/fs/binfmt_misc/register")),
    ("uevent-helper", || writable("/sys/kernel/uevent_helper")),
    ("kcore", || readable("/proc/kcore")),
    ("keys", || readable("/proc/keys")),
    ("key-users", || readable("/proc/key-users")),
    ("kallsyms", || readable("/proc/kallsyms")),
    ("timer-list", || readable("/proc/timer_list")),
    ("sched-debug", || readable("/proc/sched_debug")),
    ("kpagecount", || readable("/proc/kpagecount")),
    ("config", || readable("/proc/config.gz")),
    ("kernel-messages", || readable("/proc/kmsg")),
    ("scsi", || readable("/proc/scsi/scsi")),
    ("firmware", || listed("/sys/firmware")),
    ("kernel-debug", || listed("/sys/kernel/debug")),
    ("kernel-security", || listed("/sys/kernel/security")),
    ("block-devices", || listed("/sys/block")),
    ("cgroup-write", cgroup_write),
    ("first-memory", || writable("/proc/1/mem")),
    ("first-environment", || readable("/proc/1/environ")),
    ("first-maps", || readable("/proc/1/maps")),
    ("first-program-write", || writable("/proc/1/exe")),
    ("first-root", || listed("/proc/1/root/")),
    ("first-directory", || listed("/proc/1/cwd/")),
    ("first-descriptors", || listed("/proc/1/fd")),
    ("first-oom-score", || writable("/proc/1/oom_score_adj")),
    ("device-memory", || readable("/dev/mem")),
    ("device-kmsg", || readable("/dev/kmsg")),
    ("device-port", || readable("/dev/port")),
    ("device-kvm", || readable("/dev/kvm")),
    ("device-fuse", || readable("/dev/fuse")),
    ("device-loop", || readable("/dev/loop-control")),
    ("device-tun", || readable("/dev/net/tun")),
    ("device-disk", any_disk),
    ("make-character-device", || make_device(libc::S_IFCHR, 1, 1)),
    ("make-block-device", || make_device(libc::S_IFBLK, 8, 0)),
    ("host-paths", host_paths),
    ("host-mounts", host_mounts),
    ("leaked-descriptors", leaked_descriptors),
];

/// Opens for writing; nothing is written.
fn writable(path: &str) -> Result<String, Refusal> {
    // Without waiting for a device or a FIFO.
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Ok(format!("opened {path} for writing"))
}

fn readable(path: &str) -> Result<String, Refusal> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut start = [0_u8; 256];
    match file.read(&mut start)? {
        // Masked: there is a file, but nothing in it.
        0 => Err(Refusal::Absent(format!("{path} is empty"))),
        count => Ok(format!("{count} bytes of {path}")),
    }
}

fn listed(path: &str) -> Result<String, Refusal> {
    match fs::read_dir(path)?.count() {
        0 => Err(Refusal::Absent(format!("{path} is empty"))),
        count => Ok(format!("{count} entries of {path}")),
    }
}

fn cgroup_write() -> Result<String, Refusal> {
    for mount in fs::read_to_string("/proc/self/mountinfo")?.lines().filter(|line| line.contains(" - cgroup")) {
        let point = mount.split(' ').nth(4).unwrap_or_default();
        if fs::create_dir(Path::new(point).join("tenure-probe")).is_ok() {
            let _ = fs::remove_dir(Path::new(point).join("tenure-probe"));
            return Ok(format!("made a group in {point}"));
        }
        for file in ["cgroup.procs", "memory.limit_in_bytes", "memory.max", "release_agent"] {
            if OpenOptions::new().write(true).open(Path::new(point).join(file)).is_ok() {
                return Ok(format!("opened {point}/{file} for writing"));
            }
        }
    }
    Err(Refusal::Absent("a group that can be written".to_owned()))
}

fn any_disk() -> Result<String, Refusal> {
    let names = ["vda", "sda", "nvme0n1", "xvda", "loop0", "dm-0"];
    names.iter().find_map(|name| readable(&format!("/dev/{name}")).ok()).ok_or(Refusal::Absent("a disk".to_owned()))
}

fn make_device(kind: u32, major: u32, minor: u32) -> Result<String, Refusal> {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let path = Path::new("/tmp/tenure-probe-device");
    mknodat(CWD, path, FileType::from_raw_mode(kind), Mode::RUSR, makedev(major, minor))
        .map_err(std::io::Error::from)?;
    // A device that cannot be opened is a name and nothing else.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let _ = fs::remove_file(path);
    opened?;
    Ok("made and opened a device".to_owned())
}

fn host_paths() -> Result<String, Refusal> {
    let paths = std::env::var("HOST_PATHS").unwrap_or_default();
    match paths.split(':').find(|path| !path.is_empty() && fs::symlink_metadata(path).is_ok()) {
        Some(path) => Ok(format!("{path} is visible")),
        None => Err(Refusal::Absent("paths of the host".to_owned())),
    }
}

fn host_mounts() -> Result<String, Refusal> {
    let paths = std::env::var("HOST_PATHS").unwrap_or_default();
    for file in ["/proc/self/mountinfo", "/proc/self/mounts", "/proc/self/cgroup"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some(path) = paths.split(':').find(|path| !path.is_empty() && text.contains(path)) {
            return Ok(format!("{path} is in {file}"));
        }
    }
    Err(Refusal::Absent("paths of the host among the mounts".to_owned()))
}

fn leaked_descriptors() -> Result<String, Refusal> {
    let mut found = Vec::new();
    for fd in 3..1024 {
        let Ok(target) = fs::read_link(format!("/proc/self/fd/{fd}")) else { continue };
        // The pipe by which this attempt reports.
        if !(target.to_string_lossy().starts_with("pipe:") && fd <= 4) {
            found.push(format!("{fd} is {}", target.display()));
        }
    }
    if found.is_empty() { Err(Refusal::Absent("other descriptors".to_owned())) } else { Ok(found.join(", ")) }
}
