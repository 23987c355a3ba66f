//! The image `host`: programs and libraries of this machine, without what may be private.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::launch::Layer;

/// Directories of the host that sandboxes see, if they exist. Everything else is left out.
const DIRECTORIES: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "opt"];

/// Settings that programs need. No other file of `/etc` is visible.
const SETTINGS: [&str; 29] = [
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "inputrc",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
];

/// The largest copy of `/etc`, and the most files in it.
const MAX_SETTINGS_BYTES: u64 = 16 << 20;
const MAX_SETTINGS_FILES: usize = 5000;

/// The layers of the image `host`, and links in its root.
#[derive(Debug, Clone)]
pub(crate) struct HostImage {
    pub layers: Vec<Layer>,
    pub links: Vec<(String, String)>,
}

impl HostImage {
    /// Looks at the host, and copies the settings that may be seen to `folder`, which is new: sandboxes that run see the
    /// copy that they were started with.
    pub fn prepare(folder: &Path) -> io::Result<Self> {
        let mut image = Self { layers: Vec::new(), links: Vec::new() };
        for name in DIRECTORIES {
            let path = Path::new("/").join(name);
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_symlink() {
                let target = fs::read_link(&path)?;
                image.links.push((name.to_owned(), target.to_string_lossy().into_owned()));
            } else if metadata.is_dir() {
                image.layers.push(Layer { source: path, target: name.to_owned() });
            }
        }
        let etc = folder.join("etc");
        copy_settings(&etc)?;
        image.layers.push(Layer { source: etc, target: "etc".to_owned() });
        Ok(image)
    }
}

fn copy_settings(etc: &Path) -> io::Result<()> {
    fs::create_dir_all(etc.join("ssl"))?;
    let mut budget = Budget { bytes: MAX_SETTINGS_BYTES, files: MAX_SETTINGS_FILES };
    for name in SETTINGS {
        copy(&Path::new("/etc").join(name), &etc.join(name), &mut budget)?;
    }
    for (name, text) in [
        (
            "passwd",
            "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/workspace:/bin/sh\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        ),
        ("group", "root:x:0:\ntty:x:5:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
        ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
        ("hostname", "sandbox\n"),
        ("resolv.conf", ""),
    ] {
        let mut file = fs::File::create(etc.join(name))?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
    }
    fs::set_permissions(etc, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

struct Budget {
    bytes: u64,
    files: usize,
}

/// Copies a file, link or directory that everybody may read. Others are left out.
fn copy(from: &Path, to: &PathBuf, budget: &mut Budget) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(from) else { return Ok(()) };
    budget.files = budget.files.saturating_sub(1);
    if budget.files == 0 {
        return Ok(());
    }
    if metadata.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    let mode = metadata.permissions().mode();
    if mode & 0o004 == 0 {
        return Ok(());
    }
    if metadata.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()), budget)?;
        }
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))
    } else if metadata.is_file() && metadata.len() <= budget.bytes {
        budget.bytes -= metadata.len();
        fs::copy(from, to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(if mode & 0o111 == 0 { 0o644 } else { 0o755 }))
    } else {
        Ok(())
    }
}
