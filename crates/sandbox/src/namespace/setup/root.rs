use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, chmodat, mkdirat, openat, openat2, symlinkat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};

use super::{dev, proc, step};
use crate::namespace::launch::Launch;
use crate::sys::{MountAttributes, set_mount_attributes};

/// Bytes of disk per file that may exist.
const BYTES_PER_FILE: u64 = 8 * 1024;
const MIN_FILES: u64 = 8 * 1024;
const MAX_FILES: u64 = 2 * 1024 * 1024;

/// Builds the root of the sandbox and enters it; nothing of the host is left in this mount namespace. Returns the
/// directory of the writable layer, which has no path any more.
///
/// All sources are descriptors, and the overlays are built in a root of their own. So paths of the host do not occur
/// in `/proc/self/mountinfo`.
pub(super) fn build(
    launch: &Launch,
    trees: Vec<OwnedFd>,
    disk: Option<OwnedFd>,
    archive: Option<OwnedFd>,
) -> io::Result<OwnedFd> {
    // Nothing that is mounted here reaches the host, nor the other way round.
    let host = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    set_mount_attributes(host.as_fd(), MountAttributes { private: true, ..MountAttributes::default() }, None, true)?;
    drop(host);

    // A proc file system can be mounted only where one is visible, and devices only be taken from the host's.
    let proc_mount = new_mount(
        "proc",
        &[],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    let devices = dev::take_devices()?;
    let trees = if launch.id_mapped { trees } else { own_trees(launch)? };

    let on_disk = disk.is_some();
    let base = match disk {
        Some(disk) => disk,
        None => new_tmpfs(launch.disk_bytes)?,
    };
    attach_at(&base, CWD, "/proc")?;
    enter(base.as_fd())?;
    let base = openat(CWD, "/", OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    for name in ["r", "s"] {
        make_dir(&base, name, 0o755)?;
    }
    chmodat(&base, "s", Mode::from_raw_mode(0o1777), AtFlags::empty())?;
    for index in 0..launch.layers.len() {
        for kind in ["l", "u", "w"] {
            make_dir(&base, &format!("{kind}{index}"), 0o755)?;
        }
    }
    if let Some(archive) = archive {
        crate::namespace::snapshot::unpack(archive, &base)?;
    }

    let root = build_layers(launch, &base, &trees, on_disk)?;
    for (name, target) in &launch.links {
        replace_by_link(&root, name, target)?;
    }
    let workspace = ensure_dir(&root, "workspace")?;
    set_owner(&workspace, launch.user)?;
    let temporary = ensure_dir(&root, "tmp")?;
    rustix::fs::fchmod(&temporary, Mode::from_raw_mode(0o1777))?;
    if launch.read_only_root {
        writable_places(launch, &base, &root)?;
    }
    for (bind, tree) in launch.binds.iter().zip(trees.iter().skip(launch.layers.len())) {
        let target = ensure_path(&root, &bind.target)?;
        attach(tree, target.as_fd())?;
    }
    proc::mount(&root, &proc_mount)?;
    dev::mount(&root, &base, devices)?;
    if launch.read_only_root {
        set_mount_attributes(
            root.as_fd(),
            MountAttributes { read_only: true, ..MountAttributes::default() },
            None,
            false,
        )?;
    }
    enter(root.as_fd())?;
    Ok(base)
}

/// Mounts the layers, and returns the root that they make.
fn build_layers(launch: &Launch, base: &OwnedFd, trees: &[OwnedFd], on_disk: bool) -> io::Result<OwnedFd> {
    let root_place = open_beneath(base, "r")?;
    let whole = launch.layers.iter().any(|layer| layer.target.is_empty());
    if !whole {
        // A root of parts is a directory of the writable layer.
        let own = open_tree(base, "r", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        attach(&own, root_place.as_fd())?;
    }
    for (index, (layer, tree)) in launch.layers.iter().zip(trees).enumerate() {
        let lower_place = open_beneath(base, &format!("l{index}"))?;
        attach(tree, lower_place.as_fd())?;
        let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        // The root itself becomes read-only when everything is mounted in it.
        if launch.read_only_root && !layer.target.is_empty() {
            flags |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        }
        let (lower, upper, work) = (format!("/l{index}"), format!("/u{index}"), format!("/w{index}"));
        // Without mapped ids files of the image that belong to others cannot be changed: the kernel refuses to copy them.
        let mut options: Vec<(&str, Option<&str>)> =
            vec![("lowerdir", Some(&lower)), ("upperdir", Some(&upper)), ("workdir", Some(&work)), ("userxattr", None)];
        if on_disk {
            options.push(("volatile", None));
        }
        let mounted = new_mount("overlay", &options, flags)?;
        if layer.target.is_empty() {
            attach(&mounted, root_place.as_fd())?;
        } else {
            let root = open_beneath(base, "r")?;
            let place = ensure_dir(&root, &layer.target)?;
            attach(&mounted, place.as_fd())?;
        }
    }
    open_beneath(base, "r")
}

/// Places that can be written when the root cannot.
fn writable_places(launch: &Launch, base: &OwnedFd, root: &OwnedFd) -> io::Result<()> {
    for (name, target, mode) in [("pw", "workspace", 0o755), ("pt", "tmp", 0o1777)] {
        make_dir(base, name, mode)?;
        chmodat(base, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        let tree = open_tree(base, name, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        if target == "workspace" {
            set_owner(&openat(base, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?, launch.user)?;
        }
        attach(&tree, ensure_dir(root, target)?.as_fd())?;
    }
    Ok(())
}

/// Copies of the mounts of the image and the host directories, with the ids of this machine.
fn own_trees(launch: &Launch) -> io::Result<Vec<OwnedFd>> {
    let sources = launch.layers.iter().map(|layer| (&layer.source, true));
    let binds = launch.binds.iter().map(|bind| (&bind.source, bind.read_only));
    sources
        .chain(binds)
        .map(|(source, read_only)| {
            // Mounts of a less privileged namespace can only be copied with what is mounted below them.
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let tree = open_tree(CWD, source.as_path(), flags)
                .or_else(|_| open_tree(CWD, source.as_path(), flags | OpenTreeFlags::AT_RECURSIVE))
                .map_err(|errno| io::Error::other(format!("cannot mount {}: {errno}", source.display())))?;
            let attributes = MountAttributes { read_only, no_suid: true, no_dev: true, ..MountAttributes::default() };
            set_mount_attributes(tree.as_fd(), attributes, None, true)?;
            Ok(tree)
        })
        .collect()
}

fn new_tmpfs(bytes: u64) -> io::Result<OwnedFd> {
    let files = (bytes / BYTES_PER_FILE).clamp(MIN_FILES, MAX_FILES).to_string();
    let size = bytes.to_string();
    let options = [("size", Some(size.as_str())), ("nr_inodes", Some(files.as_str())), ("mode", Some("0755"))];
    new_mount("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// A new file system that is mounted nowhere yet.
pub(super) fn new_mount(kind: &str, options: &[(&str, Option<&str>)], flags: MountAttrFlags) -> io::Result<OwnedFd> {
    let what = format!("mount a {kind} file system");
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(step(&what))?;
    for (key, value) in options {
        let set = match value {
            Some(value) => fsconfig_set_string(&context, *key, *value),
            None => fsconfig_set_flag(&context, *key),
        };
        set.map_err(|errno| io::Error::other(format!("cannot set {key} of a {kind} file system: {errno}")))?;
    }
    fsconfig_create(&context).map_err(step(&what))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(step(&what))
}

/// Mounts `mount` on a directory or file.
pub(super) fn attach(mount: &OwnedFd, place: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags).map_err(step("attach a mount"))
}

fn attach_at(mount: &OwnedFd, dir: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    move_mount(mount, "", dir, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(step("attach a mount"))
}

/// Makes a mounted directory the root of this process, and detaches everything else.
fn enter(root: BorrowedFd<'_>) -> io::Result<()> {
    fchdir(root)?;
    pivot_root(".", ".").map_err(step("enter the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("detach the former root"))?;
    chdir("/")?;
    Ok(())
}

/// Opens a directory below another one. No link is followed: the image may be hostile.
pub(super) fn open_beneath(root: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), resolve)?)
}

/// Opens a directory in `root`, and makes it first if something else or nothing is there.
pub(super) fn ensure_dir(root: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match open_beneath(root, name) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {
            unlinkat(root, name, AtFlags::empty())?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    make_dir(root, name, 0o755)?;
    open_beneath(root, name)
}

/// Opens a directory by its absolute path inside, and makes what is missing.
fn ensure_path(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let mut dir = root.try_clone()?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        if matches!(name, "." | "..") {
            return Err(io::Error::other(format!("the mount target {path:?} contains {name:?}")));
        }
        dir = ensure_dir(&dir, name)?;
    }
    Ok(dir)
}

pub(super) fn make_dir(dir: &OwnedFd, name: &str, mode: u32) -> io::Result<()> {
    match mkdirat(dir, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(step("create a directory")(errno)),
    }
}

fn replace_by_link(root: &OwnedFd, name: &str, target: &str) -> io::Result<()> {
    match symlinkat(target, root, name) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(step("create a link")(errno)),
    }
}

/// Makes the user of commands the owner. Without a range of ids it is already.
fn set_owner(dir: &OwnedFd, user: u32) -> io::Result<()> {
    use rustix::fs::{Gid, Uid, fchown};
    if rustix::process::geteuid().as_raw() == user {
        return Ok(());
    }
    fchown(dir, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).map_err(step("give a directory to the user"))
}
