use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat, symlinkat};
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use super::root::{attach, ensure_dir, make_dir, new_mount};
use crate::sys::{MountAttributes, set_mount_attributes};

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Copies of the harmless devices of the host. A user namespace cannot make devices.
pub(super) fn take_devices() -> io::Result<Vec<(&'static str, OwnedFd)>> {
    DEVICES
        .iter()
        .map(|name| {
            let path = format!("/dev/{name}");
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let device = open_tree(CWD, path.as_str(), flags)
                .map_err(|errno| io::Error::other(format!("cannot take the device {path}: {errno}")))?;
            Ok((*name, device))
        })
        .collect()
}

/// Mounts a small `/dev` with its own terminals. `shm` counts as disk.
pub(super) fn mount(root: &OwnedFd, base: &OwnedFd, devices: Vec<(&'static str, OwnedFd)>) -> io::Result<()> {
    let place = ensure_dir(root, "dev")?;
    let restrict = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let options = [("size", Some("64k")), ("nr_inodes", Some("32")), ("mode", Some("0755"))];
    let dev = new_mount("tmpfs", &options, restrict)?;
    attach(&dev, place.as_fd())?;
    for (name, device) in devices {
        let target = openat(&dev, name, OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o444))?;
        attach(&device, target.as_fd())?;
    }
    for (name, target) in LINKS {
        symlinkat(target, &dev, name)?;
    }
    for name in ["pts", "shm"] {
        make_dir(&dev, name, 0o755)?;
    }
    let terminals = new_mount("devpts", &[("ptmxmode", Some("0666")), ("mode", Some("0620"))], restrict)?;
    attach(&terminals, super::root::open_beneath(&dev, "pts")?.as_fd())?;
    let shared = open_tree(base, "s", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    attach(&shared, super::root::open_beneath(&dev, "shm")?.as_fd())?;
    set_mount_attributes(dev.as_fd(), MountAttributes { read_only: true, ..MountAttributes::default() }, None, false)
}
