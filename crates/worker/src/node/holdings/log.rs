//! A file of records that survives a crash at any moment.
//!
//! Records are appended by one thread. Callers that need a record on the disk wait for it; those that arrive during a
//! sync share the next one. Each line has a checksum, so that a half-written last line is recognized and dropped.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

const NAME: &str = "holdings.log";
const NEW_NAME: &str = "holdings.log.new";
/// Bytes of records that are written with one call.
const WRITE_BYTES: usize = 4 << 20;

enum Job {
    Append {
        line: Vec<u8>,
        synced: Option<oneshot::Sender<io::Result<()>>>,
    },
    /// All that is known, in place of the file.
    Replace(Vec<u8>),
}

/// The end of the file. Dropping it waits until everything is written.
#[derive(Debug)]
pub(super) struct Log {
    jobs: Option<mpsc::Sender<Job>>,
    writer: Option<thread::JoinHandle<()>>,
}

/// Ends when a record is on the disk.
#[derive(Debug)]
#[must_use = "a record that must survive has to be waited for"]
pub(super) struct Synced(oneshot::Receiver<io::Result<()>>);

impl Synced {
    pub(super) async fn wait(self) -> io::Result<()> {
        self.0.await.unwrap_or_else(|_| Err(io::Error::other("the writer of the log ended")))
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("line {0} is damaged")]
    Damaged(usize),
}

/// Reads the records of the file in `folder`, if there is one.
pub(super) fn read(folder: &Path) -> Result<Vec<String>, ReadError> {
    let bytes = match std::fs::read(folder.join(NAME)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut records = Vec::new();
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        match opened(line) {
            Some(record) => records.push(record),
            // The process or the machine stopped in the middle of it, so nobody was told that it is there.
            None if lines.peek().is_none() => {}
            None => return Err(ReadError::Damaged(number + 1)),
        }
    }
    Ok(records)
}

/// A line with the checksum before the text.
pub(super) fn sealed(text: &str) -> Vec<u8> {
    format!("{} {text}\n", checksum(text)).into_bytes()
}

fn opened(line: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (sum, text) = line.split_once(' ')?;
    (sum == checksum(text)).then(|| text.to_owned())
}

fn checksum(text: &str) -> String {
    Sha256::digest(text)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Log {
    /// Writes a new file with `content` in place of the old one, and appends to it from then on.
    pub(super) fn create(folder: &Path, content: &[u8]) -> io::Result<Self> {
        let mut file = replace(folder, content)?;
        let (jobs, todo) = mpsc::channel();
        let folder = folder.to_owned();
        let writer = thread::Builder::new().name("holdings".to_owned()).spawn(move || {
            // After a failed write nobody knows what the disk has, so that nothing is promised any more.
            let mut broken = None;
            while let Ok(first) = todo.recv() {
                work(&mut file, &folder, first, &todo, &mut broken);
            }
        })?;
        Ok(Self { jobs: Some(jobs), writer: Some(writer) })
    }

    /// Appends a record that a crash of the machine may lose.
    pub(super) fn append(&self, line: Vec<u8>) {
        self.send(Job::Append { line, synced: None });
    }

    /// Appends a record that must be on the disk before the caller goes on.
    pub(super) fn append_synced(&self, line: Vec<u8>) -> Synced {
        let (synced, done) = oneshot::channel();
        self.send(Job::Append { line, synced: Some(synced) });
        Synced(done)
    }

    pub(super) fn replace(&self, content: Vec<u8>) {
        self.send(Job::Replace(content));
    }

    /// If the writer is gone, whoever waits is told; see `Synced`.
    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            drop(jobs.send(job));
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
    }
}

fn work(file: &mut File, folder: &Path, first: Job, todo: &mpsc::Receiver<Job>, broken: &mut Option<String>) {
    let (mut lines, mut waiting) = (Vec::new(), Vec::new());
    let mut next = Some(first);
    let mut replacement = None;
    while let Some(job) = next.take() {
        match job {
            Job::Append { line, synced } => {
                lines.extend_from_slice(&line);
                waiting.extend(synced);
            }
            Job::Replace(content) => {
                replacement = Some(content);
                break;
            }
        }
        if lines.len() < WRITE_BYTES {
            next = todo.try_recv().ok();
        }
    }
    if broken.is_none() {
        let mut written = file.write_all(&lines);
        if !waiting.is_empty() {
            written = written.and_then(|()| file.sync_data());
        }
        if let (Ok(()), Some(content)) = (&written, replacement) {
            written = replace(folder, &content).map(|new| *file = new);
        }
        if let Err(error) = written {
            tracing::error!("{} could not be written: {error}", folder.join(NAME).display());
            *broken = Some(error.to_string());
        }
    }
    for synced in waiting {
        // Whoever stopped waiting does not need to know.
        drop(synced.send(broken.clone().map_or(Ok(()), |reason| Err(io::Error::other(reason)))));
    }
}

fn replace(folder: &Path, content: &[u8]) -> io::Result<File> {
    let path: PathBuf = folder.join(NEW_NAME);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&path, folder.join(NAME))?;
    File::open(folder)?.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(folder: &Path) -> Vec<String> {
        read(folder).unwrap()
    }

    #[tokio::test]
    async fn what_was_appended_is_read_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::create(folder.path(), &sealed("a")).unwrap();
        log.append(sealed("b"));
        log.append_synced(sealed("c")).wait().await.unwrap();
        assert_eq!(texts(folder.path()), ["a", "b", "c"]);
        log.replace(sealed("all"));
        log.append_synced(sealed("d")).wait().await.unwrap();
        assert_eq!(texts(folder.path()), ["all", "d"]);
    }

    #[test]
    fn a_half_written_last_line_is_dropped_and_any_other_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        drop(Log::create(folder.path(), &[sealed("one"), sealed("two")].concat()).unwrap());
        let path = folder.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        let first = sealed("one").len();
        for end in first..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(texts(folder.path()), ["one"], "{end}");
        }
        let mut damaged = whole.clone();
        damaged[first - 2] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(matches!(read(folder.path()), Err(ReadError::Damaged(1))));
    }
}
