//! Loss of power: what a control plane on SQLite has written since its last sync is gone.
//!
//! A library (`power.c`) that is loaded into the process keeps what stood in the database files before. It is compiled when a run
//! needs it. Every file goes back to its last sync; that a part of what was not synced survives, or another order, is not tried.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

const SOURCE: &str = include_str!("power.c");

/// Bytes before what stood there: offset, length, length of the file.
const HEAD: usize = 24;

/// Whether the library can be made here.
pub fn is_possible() -> bool {
    let cc = Command::new("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    cfg!(target_os = "linux") && cc.is_ok_and(|status| status.success())
}

/// Makes the library in this folder.
pub fn library(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("power.c"), folder.join("libpower.so"));
    fs::write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).args(["-ldl", "-lpthread"]);
    let made = cc.output().context("cannot run cc")?;
    if !made.status.success() {
        bail!("cc cannot compile power.c: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(library)
}

/// The power is back: every database file in this folder is as it was when it was last synced. Gives how many writes were lost.
pub fn restore(folder: &Path) -> Result<usize> {
    let mut lost = 0;
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if let Some(kept) = name.strip_suffix(".unsynced") {
            lost += put_back(&path, &folder.join(kept)).with_context(|| path.display().to_string())?;
            fs::remove_file(&path)?;
        } else if name.ends_with("-shm") {
            // Memory that processes share. It is made anew from the others.
            fs::remove_file(&path)?;
        }
    }
    Ok(lost)
}

fn put_back(record: &Path, file: &Path) -> Result<usize> {
    let bytes = fs::read(record)?;
    let mut writes: Vec<(u64, &[u8], u64)> = Vec::new();
    let mut rest = &bytes[..];
    while rest.len() >= HEAD {
        let number = |at: usize| rest[at..at + 8].iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let (offset, length, size) = (number(0), usize::try_from(number(8))?, number(16));
        // The process was killed before it had kept the last one, and so before it wrote.
        let Some(before) = rest.get(HEAD..HEAD + length) else { break };
        writes.push((offset, before, size));
        rest = &rest[HEAD + length..];
    }
    if writes.is_empty() {
        return Ok(0);
    }
    let mut file = File::options().write(true).open(file)?;
    for (offset, before, size) in writes.iter().rev() {
        file.set_len(*size)?;
        file.seek(SeekFrom::Start(*offset))?;
        file.write_all(before)?;
    }
    file.sync_all()?;
    Ok(writes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell that writes to a database file under the library.
    fn write(folder: &Path, script: &str) {
        let library = library(folder).unwrap();
        let mut shell = Command::new("python3");
        shell.args(["-c", script]).current_dir(folder).env("LD_PRELOAD", library).env("POWER_DIR", folder);
        let done = shell.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn what_was_not_synced_is_gone_and_what_was_is_there() {
        if !is_possible() || Command::new("python3").arg("--version").output().is_err() {
            tenure_testkit::skip("what_was_not_synced_is_gone_and_what_was_is_there", "needs cc and python3");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let script = format!(
            "import os\n\
             f = os.open('{0}/a.db', os.O_RDWR | os.O_CREAT)\n\
             os.write(f, b'0123456789')\n\
             os.fsync(f)\n\
             os.pwrite(f, b'abc', 4)\n\
             os.pwrite(f, b'tail', 10)\n\
             os.ftruncate(f, 2)\n\
             os.pwrite(f, b'x', 20)\n\
             g = os.open('{0}/b.db', os.O_RDWR | os.O_CREAT)\n\
             os.write(g, b'whole')\n\
             os.fdatasync(g)\n\
             h = os.open('{0}/c.db-wal', os.O_RDWR | os.O_CREAT)\n\
             os.write(h, b'never')\n",
            path.display()
        );
        write(&path, &script);
        assert_eq!(restore(&path).unwrap(), 5);
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(
            (read("a.db"), read("b.db"), read("c.db-wal")),
            ("0123456789".into(), "whole".into(), String::new())
        );
        assert_eq!(restore(&path).unwrap(), 0, "nothing is lost twice");
    }
}
