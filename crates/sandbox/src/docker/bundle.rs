//! The agent with everything that it needs to run in any image: its loader and its libraries.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::CONTAINER_ARGUMENT;

/// Where the agent is in a container.
const TARGET: &str = "/.tenure/agent";

/// A folder with a program, its loader and its libraries, to be mounted into containers.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) folder: PathBuf,
    pub(super) target: &'static str,
    /// The command that starts the agent in a container.
    pub(super) entrypoint: Vec<String>,
}

impl Bundle {
    /// Makes the bundle of a program in `parent`, or finds the one that is there. Containers that were started with a
    /// bundle of another version of the program keep theirs.
    pub(super) fn open(parent: &Path, program: &Path) -> io::Result<Self> {
        let mut parts = vec![(program.to_owned(), "program".to_owned())];
        let mut entrypoint = vec![format!("{TARGET}/program"), CONTAINER_ARGUMENT.to_owned()];
        if let Some(loader) = interpreter(program)? {
            for library in libraries(&loader, program)? {
                let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
                parts.push((library, format!("lib/{name}")));
            }
            parts.push((loader, "loader".to_owned()));
            let by_loader = [format!("{TARGET}/loader"), "--library-path".to_owned(), format!("{TARGET}/lib")];
            entrypoint.splice(0..0, by_loader);
        }

        let mut identity = Sha256::new();
        for (source, _) in &parts {
            let metadata = fs::metadata(source)?;
            identity.update(source.as_os_str().as_bytes());
            identity.update(metadata.len().to_le_bytes());
            identity.update(format!("{:?}", metadata.modified()?));
        }
        let hex: String = identity.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let folder = parent.join(format!("agent-{hex}"));
        if !folder.is_dir() {
            let new = parent.join(format!("agent-{hex}.new"));
            match fs::remove_dir_all(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // Code in a container may have any user.
            fs::DirBuilder::new().recursive(true).mode(0o755).create(new.join("lib"))?;
            for (source, name) in &parts {
                fs::copy(source, new.join(name))?;
                fs::set_permissions(new.join(name), fs::Permissions::from_mode(0o755))?;
            }
            fs::rename(&new, &folder)?;
        }
        Ok(Self { folder, target: TARGET, entrypoint })
    }
}

/// The loader that an ELF program names; none for a static one.
fn interpreter(program: &Path) -> io::Result<Option<PathBuf>> {
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    let invalid =
        || io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a 64-bit program", program.display()));
    let mut file = fs::File::open(program)?;
    let mut header = [0_u8; 64];
    file.read_exact(&mut header).map_err(|_| invalid())?;
    if header[..6] != *b"\x7fELF\x02\x01" {
        return Err(invalid());
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let (table, size, count) = (number(&header[32..40]), number(&header[54..56]), number(&header[56..58]));
    for index in 0..count {
        let mut entry = [0_u8; 56];
        file.read_exact_at(&mut entry, table.saturating_add(index * size))?;
        const INTERPRETER: u64 = 3;
        if number(&entry[..4]) == INTERPRETER {
            let length =
                usize::try_from(number(&entry[32..40])).ok().filter(|length| *length <= 4096).ok_or_else(invalid)?;
            let mut path = vec![0_u8; length];
            file.read_exact_at(&mut path, number(&entry[8..16]))?;
            path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(length));
            return Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(&path))));
        }
    }
    Ok(None)
}

/// The libraries that the loader would load.
fn libraries(loader: &Path, program: &Path) -> io::Result<Vec<PathBuf>> {
    let output = Command::new(loader).arg("--list").arg(program).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("{} --list {}: {stderr}", loader.display(), program.display())));
    }
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`; the kernel's own library and the loader have no arrow.
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths =
        lines.lines().filter_map(|line| line.split_once("=> ")?.1.rsplit_once(" (").map(|(path, _)| path.trim()));
    Ok(paths.filter(|path| path.starts_with('/')).map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_runs_without_the_libraries_of_the_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = std::env::current_exe().expect("a program");
        let bundle = Bundle::open(folder.path(), &program).expect("a bundle");
        assert_eq!(bundle.entrypoint.last().map(String::as_str), Some(CONTAINER_ARGUMENT));
        let there = |word: &String| word.replace(TARGET, bundle.folder.to_str().expect("UTF-8"));
        let words: Vec<String> = bundle.entrypoint.iter().map(there).collect();
        // The last word is for the agent; this program can list its tests.
        let mut command = Command::new(&words[0]);
        command.args(&words[1..words.len() - 1]).arg("--list").env_clear().env("LD_DEBUG", "files");
        let output = command.output().expect("the program runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let loaded = String::from_utf8_lossy(&output.stderr);
        let foreign =
            |line: &&str| line.contains("calling init: /") && !line.contains(folder.path().to_str().expect("UTF-8"));
        assert_eq!(loaded.lines().find(foreign), None);
        assert!(loaded.contains("calling init"), "the loader reports nothing: {loaded}");
    }

    #[test]
    fn a_second_bundle_of_the_same_program_is_the_same_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = Path::new("/proc/self/exe").canonicalize().expect("a program");
        let first = Bundle::open(folder.path(), &program).expect("a bundle");
        assert_eq!(Bundle::open(folder.path(), &program).expect("a bundle").folder, first.folder);
        assert!(Bundle::open(folder.path(), Path::new("/etc/passwd")).is_err());
    }
}
