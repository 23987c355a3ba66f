use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Attributes to set on a mount. An attribute that is false is left as it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MountAttributes {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    /// No later mount or unmount reaches this mount from elsewhere.
    pub private: bool,
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Changes the mount that `mount` refers to; with a user namespace, its files appear to belong to the ids that the
/// namespace maps them to.
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    attributes: MountAttributes,
    id_map: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    let mut attr = MountAttr { attr_set: 0, attr_clr: 0, propagation: 0, userns_fd: 0 };
    for (wanted, bit) in [
        (attributes.read_only, libc::MOUNT_ATTR_RDONLY),
        (attributes.no_suid, libc::MOUNT_ATTR_NOSUID),
        (attributes.no_dev, libc::MOUNT_ATTR_NODEV),
        (attributes.no_exec, libc::MOUNT_ATTR_NOEXEC),
    ] {
        if wanted {
            attr.attr_set |= bit;
        }
    }
    if attributes.private {
        attr.propagation = libc::MS_PRIVATE;
    }
    if let Some(namespace) = id_map {
        attr.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = namespace.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, `attr` is a valid mount_attr of the stated size that outlives the call,
    // and the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
