use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{MountAttrFlags, OpenTreeFlags, UnmountFlags, open_tree, unmount};

use super::root::{attach, ensure_dir, new_mount};
use crate::sys::{MountAttributes, set_mount_attributes};

/// Files that tell about the kernel or other users of the machine, or act on them.
const MASKED_FILES: [&str; 19] = [
    "config.gz",
    "cmdline",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "modules",
    "sched_debug",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
];

/// Directories of the same kind.
const MASKED_DIRS: [&str; 8] = ["acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "scsi"];

/// Where the covers are while they are copied: `/sys` of the sandbox that is being built, which stays empty.
const SHELF: &str = "/r/sys";

/// Mounts the sandbox's own `/proc`, without what does not concern it.
pub(super) fn mount(root: &OwnedFd, proc_mount: &OwnedFd) -> io::Result<()> {
    let place = ensure_dir(root, "proc")?;
    attach(proc_mount, place.as_fd())?;
    let proc_dir = openat(proc_mount, ".", OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;

    // One empty file and one empty directory cover all.
    let restrict =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let empty =
        new_mount("tmpfs", &[("size", Some("4k")), ("nr_inodes", Some("4")), ("mode", Some("0555"))], restrict)?;
    openat(&empty, "f", OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o444))?;
    rustix::fs::mkdirat(&empty, "d", Mode::from_raw_mode(0o555))?;
    // Copies can be made of attached mounts only.
    let shelf = ensure_dir(root, "sys")?;
    attach(&empty, shelf.as_fd())?;
    let read_only = MountAttributes { read_only: true, ..MountAttributes::default() };
    set_mount_attributes(empty.as_fd(), read_only, None, false)?;
    for (name, cover) in MASKED_FILES.iter().map(|name| (name, "f")).chain(MASKED_DIRS.iter().map(|name| (name, "d"))) {
        let target = match openat(&proc_dir, *name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(target) => target,
            // Not every kernel has each of them.
            Err(rustix::io::Errno::NOENT) => continue,
            Err(errno) => return Err(io::Error::other(format!("cannot mask /proc/{name}: {errno}"))),
        };
        let copy = open_tree(&empty, cover, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        attach(&copy, target.as_fd())?;
    }
    // Settings of the kernel can be read, as programs expect, and not be changed.
    let settings = open_tree(&proc_dir, "sys", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    set_mount_attributes(settings.as_fd(), read_only, None, false)?;
    let place = openat(&proc_dir, "sys", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    attach(&settings, place.as_fd())?;
    // The covers stay where they are; the shelf goes.
    unmount(SHELF, UnmountFlags::DETACH)?;
    Ok(())
}
