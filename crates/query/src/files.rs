//! Files of a view as an object store that has nothing else.
//!
//! The planner sees numbers for names, so no message that it makes tells a path. There is no way to write.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use rustix::fs::{Mode, OFlags};
use tenure_contract::query::process::{FileRef, Place};

const STORE: &str = "dataset";

const CONNECT: Duration = Duration::from_secs(5);
/// Without any byte.
const READ: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// What the planner calls a file.
const SUFFIX: &str = ".parquet";

/// The files of one view.
#[derive(Debug)]
pub struct Granted {
    /// Of the view. The engine keeps what it knows of a file and of a folder under its name alone, so that the files of each
    /// view are in a folder of their own.
    number: usize,
    backing: Backing,
    files: Vec<FileRef>,
}

#[derive(Debug)]
enum Backing {
    Folder(PathBuf),
    Signed(reqwest::Client),
}

impl Granted {
    pub fn new(number: usize, place: &Place, files: Vec<FileRef>) -> Result<Self, reqwest::Error> {
        let backing = match place {
            Place::Folder { path } => Backing::Folder(path.into()),
            // Every address comes with its own right; nothing of this process or its surroundings is added.
            Place::Signed => Backing::Signed(
                reqwest::Client::builder()
                    .redirect(reqwest::redirect::Policy::none())
                    .no_proxy()
                    .connect_timeout(CONNECT)
                    .read_timeout(READ)
                    .build()?,
            ),
        };
        Ok(Self { number, backing, files })
    }

    fn meta(&self, at: usize, file: &FileRef) -> ObjectMeta {
        ObjectMeta {
            location: Path::from(format!("{}/{at}{SUFFIX}", self.number)),
            last_modified: Default::default(),
            size: file.bytes,
            e_tag: None,
            version: None,
        }
    }

    fn find(&self, location: &Path) -> Result<(usize, &FileRef)> {
        let own = format!("{}/", self.number);
        let number = location.as_ref().strip_suffix(SUFFIX).and_then(|name| name.strip_prefix(&own)?.parse().ok());
        let found = number.and_then(|number: usize| Some((number, self.files.get(number)?)));
        found.ok_or_else(|| Error::NotFound { path: location.to_string(), source: "not a file of the view".into() })
    }

    async fn read(&self, file: &FileRef, range: Range<u64>) -> Result<Bytes> {
        match &self.backing {
            Backing::Folder(root) => {
                let (root, key) = (root.clone(), file.key.clone());
                let read = tokio::task::spawn_blocking(move || read_beneath(&root, &key, range));
                Ok(read.await.map_err(unavailable)?.map_err(unavailable)?.into())
            }
            Backing::Signed(client) => fetch(client, &file.key, range).await,
        }
    }
}

/// Reads a part of an object, again if that may help.
async fn fetch(client: &reqwest::Client, url: &str, range: Range<u64>) -> Result<Bytes> {
    let mut failed = 0;
    loop {
        match fetch_once(client, url, &range).await {
            Err(Trouble::Passing(_)) if failed < RETRIES => {
                failed += 1;
                tokio::time::sleep(PAUSE * 2_u32.pow(failed)).await;
            }
            Err(Trouble::Passing(error) | Trouble::Lasting(error)) => return Err(error),
            Ok(bytes) => return Ok(bytes),
        }
    }
}

enum Trouble {
    Passing(Error),
    Lasting(Error),
}

async fn fetch_once(client: &reqwest::Client, url: &str, range: &Range<u64>) -> Result<Bytes, Trouble> {
    let length = range.end - range.start;
    let bytes = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
    // The address holds a signature.
    let passing = |error: reqwest::Error| Trouble::Passing(unavailable(error.without_url()));
    let answer = client.get(url).header(reqwest::header::RANGE, bytes).send().await.map_err(passing)?;
    let status = answer.status();
    if status.as_u16() != 206 {
        let error = unavailable(format!("answered {status}"));
        let passes = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
        return Err(if passes { Trouble::Passing(error) } else { Trouble::Lasting(error) });
    }
    if answer.content_length().is_some_and(|sent| sent > length) {
        return Err(Trouble::Lasting(unavailable("answered more than was asked for")));
    }
    let bytes = answer.bytes().await.map_err(passing)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(Trouble::Passing(unavailable("a part is missing"))) }
}

fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: STORE, source: source.into() }
}

/// Reads a part of a file below a folder. Whoever may write to the folder must not lead this process elsewhere: no part
/// of the path is a link, and what is there is a plain file.
fn read_beneath(root: &std::path::Path, key: &str, range: Range<u64>) -> std::io::Result<Vec<u8>> {
    let open = |folder: Option<&OwnedFd>, name: &str, flags: OFlags| {
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        match folder {
            None => rustix::fs::open(root, flags, Mode::empty()),
            Some(folder) => rustix::fs::openat(folder, name, flags | OFlags::NOFOLLOW, Mode::empty()),
        }
    };
    let mut segments: Vec<&str> = key.split('/').collect();
    let odd = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "not the key of a file");
    if segments.iter().any(|segment| matches!(*segment, "" | "." | "..")) {
        return Err(odd());
    }
    let name = segments.pop().ok_or_else(odd)?;
    let mut folder = open(None, "", OFlags::DIRECTORY)?;
    for segment in segments {
        folder = open(Some(&folder), segment, OFlags::DIRECTORY)?;
    }
    // A pipe must not be waited for.
    let file = std::fs::File::from(open(Some(&folder), name, OFlags::NONBLOCK)?);
    if !file.metadata()?.is_file() {
        return Err(odd());
    }
    let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(|_| odd())?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

fn read_only<T>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented { operation: operation.into(), implementer: STORE.into() })
}

#[async_trait]
impl ObjectStore for Granted {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (at, file) = self.find(location)?;
        let meta = self.meta(at, file);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range.as_range(file.bytes).map_err(unavailable)?,
            None => 0..file.bytes,
        };
        let bytes = if options.head { Bytes::new() } else { self.read(file, range.clone()).await? };
        let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
        Ok(GetResult { payload, meta, range, attributes: Default::default() })
    }

    fn list(&self, _prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let all: Vec<_> = self.files.iter().enumerate().map(|(at, file)| Ok(self.meta(at, file))).collect();
        stream::iter(all).boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&Path>) -> Result<ListResult> {
        let objects = self.files.iter().enumerate().map(|(at, file)| self.meta(at, file)).collect();
        Ok(ListResult { common_prefixes: Vec::new(), objects })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        read_only("put")
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        read_only("put")
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        stream::once(async { read_only("delete") }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        read_only("copy")
    }
}
