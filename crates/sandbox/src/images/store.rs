use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::error::{Error, ErrorKind, Result};

use super::archive::for_each_member;
use super::compression::{decompressed, is_compressed};
use super::directory;
use super::layered::{ImageArchive, is_image_archive};
use super::limits::{Budget, ImageLimits};
use super::name::ImageName;
use super::record::{ImageRecord, ImageSource};
use super::section::{Hashing, Section};
use super::trash::Trash;
use super::tree::Tree;

/// The name of the image that is the host's own root.
const HOST: &str = "host";

/// What a sandbox starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// The host's root, read-only, without what may hold secrets.
    Host,
    /// An unpacked image. Sandboxes share it and must not write to it.
    Rootfs {
        path: PathBuf,
        /// `sha256:` and 64 hex digits.
        digest: String,
    },
}

/// The images of a data directory. Several processes may use it at once.
///
/// ```text
/// images/names/<name>.json   a record per name, with the digest
/// images/roots/<digest>/     the files; names with the same digest share them
/// images/holds/<holder>      who uses a digest: such an image is not removed
/// images/work/<id>/          images that are being unpacked; leftovers of a crash are removed by the next `add`
/// images/lock                taken for every change of names, roots and holds
/// ```
#[derive(Debug, Clone)]
pub struct ImageStore {
    dir: PathBuf,
    limits: ImageLimits,
}

impl ImageStore {
    /// Opens the store of a data directory and creates it if it does not exist.
    pub fn open(data_dir: &Path) -> Result<Self> {
        let dir = data_dir.join("images");
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for folder in ["names", "roots", "holds", "work"] {
            let folder = dir.join(folder);
            builder.create(&folder).map_err(|error| cannot("create", &folder, error))?;
        }
        Ok(Self { dir, limits: ImageLimits::default() })
    }

    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Registers the files of a directory, a tar file or an image archive under a name. A name that exists gets the new
    /// image; sandboxes of the old one keep it. Blocks while it unpacks; a failure leaves nothing.
    pub fn add(&self, name: &str, source: &Path) -> Result<ImageRecord> {
        let name = ImageName::parse(name)?;
        if name == ImageName::parse(HOST)? {
            return Err(Error::invalid("the image name `host` means the host's own root: use another name"));
        }
        let metadata = fs::metadata(source).map_err(|error| {
            Error::invalid(format!("cannot read the image source {}: {error}", source.display())).with_source(error)
        })?;
        self.remove_leftovers()?;
        let work = WorkFolder::create(&self.dir.join("work"))?;
        let mut tree = Tree::new(work.create_dir("root")?, work.trash()?, Budget::new(self.limits));
        let (source, hex) = if metadata.is_dir() {
            let own = rustix::fs::stat(&self.dir).map_err(|error| cannot("read", &self.dir, error.into()))?;
            (ImageSource::Directory, directory::copy(source, &own, &mut tree)?)
        } else {
            self.unpack(source, &work, &mut tree)?
        };
        tree.finish()?;
        let record = ImageRecord {
            name: name.to_string(),
            digest: format!("sha256:{hex}"),
            source,
            created_at: jiff::Timestamp::now().to_string(),
            entries: tree.budget.used_entries(),
            bytes: tree.budget.used_bytes(),
            skipped: tree.skipped,
        };
        self.commit(&name, &record, &hex, &work)?;
        Ok(record)
    }

    /// All images, by name.
    pub fn list(&self) -> Result<Vec<ImageRecord>> {
        let folder = self.dir.join("names");
        let mut records = Vec::new();
        for entry in fs::read_dir(&folder).map_err(|error| cannot("list", &folder, error))? {
            let path = entry.map_err(|error| cannot("list", &folder, error))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                records.extend(read_record(&path)?);
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    /// Removes an image. Refused while a sandbox uses it, unless its files stay under another name.
    pub fn remove(&self, name: &str) -> Result<()> {
        let name = ImageName::parse(name)?;
        let _lock = self.lock()?;
        let path = self.dir.join("names").join(name.file_name());
        let record = read_record(&path)?.ok_or_else(|| unknown(&name.to_string()))?;
        let shared = self.list()?.iter().filter(|other| other.digest == record.digest).count() > 1;
        let holders = self.holds()?.into_iter().filter(|(_, digest)| *digest == record.digest);
        let holders = holders.map(|(holder, _)| holder).collect::<Vec<_>>();
        if !shared && !holders.is_empty() {
            return Err(Error::invalid(format!(
                "the image {name} is in use by {} sandboxes ({}{}): destroy them first",
                holders.len(),
                holders[..holders.len().min(5)].join(", "),
                if holders.len() > 5 { ", …" } else { "" }
            )));
        }
        fs::remove_file(&path).map_err(|error| cannot("remove", &path, error))?;
        self.remove_unused()
    }

    /// Finds an image by the name in a request. A name that is not registered is looked up in `aliases`, whose values are
    /// `host` or names of registered images; the alias `*` is for every other name.
    pub fn resolve(&self, name: &str, aliases: &BTreeMap<String, String>) -> Result<Image> {
        let full = if name == HOST { HOST.to_owned() } else { ImageName::parse(name)?.to_string() };
        if let Some(image) = self.find(&full)? {
            return Ok(image);
        }
        let alias = aliases
            .iter()
            .find(|(alias, _)| ImageName::parse(alias).is_ok_and(|alias| alias.to_string() == full))
            .or_else(|| aliases.get_key_value("*"));
        match alias {
            Some((_, target)) => self.find(target)?.ok_or_else(|| {
                Error::invalid(format!("unknown image {target:?}, the alias of {name:?}: add it, or correct the alias"))
            }),
            None => Err(unknown(name)),
        }
    }

    /// Notes on disk that `holder`, a name for one sandbox, uses an image, until [`ImageStore::release`]. Fails if the
    /// image was removed since it was resolved.
    pub fn hold(&self, image: &Image, holder: &str) -> Result<()> {
        let Image::Rootfs { path, digest } = image else { return Ok(()) };
        let hold = self.hold_path(holder)?;
        let _lock = self.lock()?;
        if !path.is_dir() {
            return Err(Error::invalid(format!("unknown image {digest}: it was removed just now")));
        }
        fs::write(&hold, digest).map_err(|error| cannot("write", &hold, error))
    }

    /// Ends a hold. An absent one is not an error.
    pub fn release(&self, holder: &str) -> Result<()> {
        let hold = self.hold_path(holder)?;
        let _lock = self.lock()?;
        match fs::remove_file(&hold) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", &hold, error)),
            _ => Ok(()),
        }
    }

    /// Everybody who holds an image, for a provider that looks for holds of sandboxes that are gone.
    pub fn holders(&self) -> Result<Vec<String>> {
        Ok(self.holds()?.into_iter().map(|(holder, _)| holder).collect())
    }

    fn find(&self, name: &str) -> Result<Option<Image>> {
        if name == HOST {
            return Ok(Some(Image::Host));
        }
        let file = self.dir.join("names").join(ImageName::parse(name)?.file_name());
        let Some(record) = read_record(&file)? else { return Ok(None) };
        let hex = record.hex().ok_or_else(|| Error::internal(format!("{} has no valid digest", file.display())))?;
        Ok(Some(Image::Rootfs { path: self.dir.join("roots").join(hex), digest: record.digest }))
    }

    /// Unpacks a file and returns what it is and its digest in hex.
    fn unpack(&self, source: &Path, work: &WorkFolder, tree: &mut Tree) -> Result<(ImageSource, String)> {
        let unreadable =
            |error: io::Error| Error::invalid(format!("cannot read {}: {error}", source.display())).with_source(error);
        // Non-blocking, so that a FIFO is refused and not waited for.
        let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(source);
        let file = file.map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(Error::invalid(format!("{} is neither a directory nor a file", source.display())));
        }
        let max_bytes = tree.budget.max_stream_bytes();
        let stream = decompressed(Section::whole(&file), max_bytes).map_err(unreadable)?;
        if is_image_archive(stream, self.limits)? {
            let plain = if is_compressed(Section::whole(&file)).map_err(unreadable)? {
                let mut stream = decompressed(Section::whole(&file), max_bytes).map_err(unreadable)?;
                let mut plain = work.create_file("archive")?;
                io::copy(&mut stream, &mut plain).map_err(unreadable)?;
                plain.rewind().map_err(unreadable)?;
                plain
            } else {
                file
            };
            let hex = ImageArchive::open(&plain)?.unpack(self.limits, tree)?;
            return Ok((ImageSource::ImageArchive, hex));
        }
        let mut raw = Hashing::new(Section::whole(&file));
        let mut entries = 0_u64;
        for_each_member(decompressed(&mut raw, max_bytes).map_err(unreadable)?, |member, content| {
            entries += 1;
            tree.add(&member, content, false)
        })?;
        if entries == 0 {
            return Err(Error::invalid(format!("{} is not a tar file, or is empty", source.display())));
        }
        Ok((ImageSource::Tar, raw.finish().map_err(unreadable)?))
    }

    /// Makes an unpacked image visible under its name.
    fn commit(&self, name: &ImageName, record: &ImageRecord, hex: &str, work: &WorkFolder) -> Result<()> {
        let _lock = self.lock()?;
        let root = self.dir.join("roots").join(hex);
        if !root.is_dir() {
            let unpacked = work.path("root");
            fs::rename(&unpacked, &root).map_err(|error| cannot("move", &unpacked, error))?;
            sync_folder(&self.dir.join("roots"))?;
        }
        let file = self.dir.join("names").join(name.file_name());
        let mut new = work.create_file("record")?;
        let document = serde_json::to_vec_pretty(record)
            .map_err(|error| Error::internal("cannot write the image's record").with_source(error))?;
        new.write_all(&document).and_then(|()| new.sync_all()).map_err(|error| cannot("write", &file, error))?;
        fs::rename(work.path("record"), &file).map_err(|error| cannot("write", &file, error))?;
        sync_folder(&self.dir.join("names"))?;
        self.remove_unused()
    }

    /// Removes files of images that have neither a name nor a holder. The caller has the lock.
    fn remove_unused(&self) -> Result<()> {
        let mut used = self.list()?.into_iter().map(|record| record.digest).collect::<BTreeSet<_>>();
        used.extend(self.holds()?.into_iter().map(|(_, digest)| digest));
        let roots = self.dir.join("roots");
        let mut unused = Vec::new();
        for entry in fs::read_dir(&roots).map_err(|error| cannot("list", &roots, error))? {
            let name = entry.map_err(|error| cannot("list", &roots, error))?.file_name();
            if !name.to_str().is_some_and(|hex| used.contains(&format!("sha256:{hex}"))) {
                unused.push(name);
            }
        }
        if unused.is_empty() {
            return Ok(());
        }
        let work = WorkFolder::create(&self.dir.join("work"))?;
        let (mut trash, roots) = (work.trash()?, open_folder(&roots)?);
        for name in unused {
            trash.remove(&roots, &name).map_err(|error| cannot("remove", Path::new(&name), error.into()))?;
        }
        Ok(())
    }

    /// Removes what processes that ended in the middle of an `add` have left.
    fn remove_leftovers(&self) -> Result<()> {
        let folder = self.dir.join("work");
        for entry in fs::read_dir(&folder).map_err(|error| cannot("list", &folder, error))? {
            let path = entry.map_err(|error| cannot("list", &folder, error))?.path();
            // Locked: somebody works in it. Absent: somebody else removed it.
            if let Ok(lock) = File::open(&path)
                && rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                drop(WorkFolder { path, _lock: lock });
            }
        }
        Ok(())
    }

    fn holds(&self) -> Result<Vec<(String, String)>> {
        let folder = self.dir.join("holds");
        let mut holds = Vec::new();
        for entry in fs::read_dir(&folder).map_err(|error| cannot("list", &folder, error))? {
            let entry = entry.map_err(|error| cannot("list", &folder, error))?;
            match (entry.file_name().into_string(), fs::read_to_string(entry.path())) {
                (Ok(holder), Ok(digest)) => holds.push((holder, digest)),
                (_, Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(cannot("read", &entry.path(), error));
                }
                _ => {}
            }
        }
        holds.sort_unstable();
        Ok(holds)
    }

    fn hold_path(&self, holder: &str) -> Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if holder.is_empty() || holder.len() > 200 || !holder.chars().all(plain) {
            return Err(Error::internal(format!("invalid holder of an image: {holder:?}")));
        }
        Ok(self.dir.join("holds").join(holder))
    }

    fn lock(&self) -> Result<File> {
        let path = self.dir.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(|error| cannot("open", &path, error))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|error| cannot("lock", &path, error.into()))?;
        Ok(file)
    }
}

/// A folder that disappears with everything in it. Its lock shows others that it is in use.
#[derive(Debug)]
struct WorkFolder {
    path: PathBuf,
    _lock: File,
}

impl WorkFolder {
    fn create(parent: &Path) -> Result<Self> {
        // Another process may take a new folder for a leftover before it is locked.
        for _ in 0..100 {
            let path = parent.join(uuid::Uuid::new_v4().simple().to_string());
            fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| cannot("create", &path, error))?;
            let Ok(lock) = File::open(&path) else { continue };
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() && path.is_dir() {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(Error::unavailable(format!("cannot create a folder in {}", parent.display())))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn create_dir(&self, name: &str) -> Result<OwnedFd> {
        let path = self.path.join(name);
        fs::DirBuilder::new().mode(0o755).create(&path).map_err(|error| cannot("create", &path, error))?;
        open_folder(&path)
    }

    fn create_file(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        file.map_err(|error| cannot("create", &path, error))
    }

    fn trash(&self) -> Result<Trash> {
        Ok(Trash::new(self.create_dir("trash")?))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // What cannot be removed now is a leftover for the next `add`.
        let _ = (|| -> io::Result<()> {
            let folder = open_folder(&self.path).map_err(io::Error::other)?;
            let trash = self.path.join(format!("trash-{}", uuid::Uuid::new_v4().simple()));
            fs::create_dir(&trash)?;
            let mut trash_can = Trash::new(open_folder(&trash).map_err(io::Error::other)?);
            for entry in fs::read_dir(&self.path)? {
                let entry = entry?;
                if entry.path() != trash {
                    trash_can.remove(&folder, &entry.file_name())?;
                }
            }
            fs::remove_dir(&trash)?;
            fs::remove_dir(&self.path)
        })();
    }
}

fn read_record(path: &Path) -> Result<Option<ImageRecord>> {
    match fs::read(path) {
        Ok(document) => serde_json::from_slice(&document).map(Some).map_err(|error| {
            Error::internal(format!("{} is damaged: remove it and add the image again", path.display()))
                .with_source(error)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot("read", path, error)),
    }
}

fn open_folder(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| cannot("open", path, error.into()))
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| cannot("sync", path, error))
}

fn unknown(name: &str) -> Error {
    Error::invalid(format!("unknown image {name:?}: add it with `tenure sandbox image add`, or set an alias for it"))
}

fn cannot(action: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::ResourceLimit,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, format!("cannot {action} {}: {error}", path.display())).with_source(error)
}
