//! Writable layers on disk, for sandboxes whose disk is larger than their memory: an ext4 file system of fixed size in a
//! sparse file, mounted through a loop device. The file has no name once it is mounted, and the device lasts as long as
//! the mount, so that nothing is left when the sandbox ends, however it ends.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::fs::{Gid, SeekFrom as Seek, Uid, fchown, openat, seek};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use crate::sys;

/// Empty file systems that are kept to be copied, one per size.
const MAX_TEMPLATES: usize = 8;

const SIZE_STEP: u64 = 16 << 20;

/// Makes disks for sandboxes.
#[derive(Debug)]
pub(super) struct Disks {
    folder: PathBuf,
    mkfs: PathBuf,
    /// Sizes of the templates, the one used last at the end.
    templates: Mutex<Vec<u64>>,
}

impl Disks {
    /// None if this machine or this process cannot make them.
    pub fn find(state_dir: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            return None;
        }
        let mkfs = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
            .iter()
            .map(|dir| Path::new(dir).join("mkfs.ext4"))
            .find(|path| path.exists())?;
        let folder = state_dir.join("disks");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).ok()?;
        Some(Self { folder, mkfs, templates: Mutex::default() })
    }

    /// A new file system, mounted nowhere yet, whose root belongs to `owner`.
    pub fn make(&self, bytes: u64, id: &str, owner: u32) -> io::Result<OwnedFd> {
        let size = bytes.div_ceil(SIZE_STEP) * SIZE_STEP;
        let path = self.folder.join(id);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        self.fill(size, &file)?;
        let (device, device_path) = sys::attach_loop_device(&file)?;
        let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", device_path.as_str())?;
        fsconfig_create(&context)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        drop(device);
        let root = openat(
            &mount,
            ".",
            rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        fchown(&root, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
        Ok(mount)
    }

    /// Copies an empty file system of this size, which is made first if there is none.
    fn fill(&self, size: u64, to: &File) -> io::Result<()> {
        let mut templates = self.templates.lock().map_err(|_| io::Error::other("the disks are lost"))?;
        let path = |size: u64| self.folder.join(format!("template-{size}"));
        if let Some(at) = templates.iter().position(|known| *known == size) {
            templates.remove(at);
        } else {
            self.make_template(size, &path(size))?;
        }
        templates.push(size);
        let from = File::open(path(size))?;
        if templates.len() > MAX_TEMPLATES {
            let oldest = templates.remove(0);
            std::fs::remove_file(path(oldest))?;
        }
        drop(templates);
        copy_sparse(from, to, size)
    }

    fn make_template(&self, size: u64, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        File::create(&new)?.set_len(size)?;
        // No journal: nobody mounts it again after a crash.
        let made = Command::new(&self.mkfs)
            .args(["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"])
            .arg(&new)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !made.success() {
            let _ = std::fs::remove_file(&new);
            return Err(io::Error::other(format!("mkfs.ext4 ended with {made}")));
        }
        std::fs::rename(new, path)
    }
}

/// Copies what was written to a sparse file.
fn copy_sparse(mut from: File, mut to: &File, size: u64) -> io::Result<()> {
    to.set_len(size)?;
    let mut at = 0;
    loop {
        let start = match seek(&from, Seek::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(&from, Seek::Hole(start))?;
        from.seek(SeekFrom::Start(start))?;
        to.seek(SeekFrom::Start(start))?;
        io::copy(&mut (&from).take(end - start), &mut to)?;
        at = end;
        to.flush()?;
    }
}
