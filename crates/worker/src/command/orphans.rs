use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::unistd::Pid;
use tempfile::TempDir;

/// Reads `+ <group>` and `- <group>`; at the end of input, kills the groups that are left and removes the folder `$1`.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
held=
while read -r sign group; do
    case $sign in
        +) held="$held $group" ;;
        -) kept=
           for one in $held; do [ "$one" = "$group" ] || kept="$kept $one"; done
           held=$kept ;;
    esac
done
for one in $held; do kill -s KILL -- "-$one"; done
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

/// Ends the commands of a worker that dies without a chance to do it itself, and removes their folders.
///
/// A shell waits beside the worker and knows the groups that are running. Whatever ends the worker closes the pipe
/// between them, also SIGKILL, and the shell then clears up. A command started in the very moment of the worker's
/// death can be missed: for that one the fence of its lease has to do, as when the whole machine is cut off.
#[derive(Debug)]
pub(crate) struct OrphanGuard {
    input: Mutex<ChildStdin>,
    folders: TempDir,
}

impl OrphanGuard {
    pub(crate) fn start() -> io::Result<Self> {
        let private = Permissions::from_mode(0o700);
        let folders = tempfile::Builder::new().prefix("tenure-").permissions(private).tempdir()?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).arg("sh").arg(folders.path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A group of its own: a Ctrl-C at the terminal is not for it.
        let mut shell = command.process_group(0).spawn()?;
        let input = shell.stdin.take().ok_or_else(|| io::Error::other("the shell has no input"))?;
        // Ends soon after the input is closed; somebody has to ask for its exit status.
        std::thread::Builder::new().name("tenure-orphans".into()).spawn(move || shell.wait())?;
        Ok(Self { input: Mutex::new(input), folders })
    }

    /// A private folder in which tasks have theirs.
    pub(crate) fn folders(&self) -> &Path {
        self.folders.path()
    }

    /// Makes the group die with the worker until the answer is dropped.
    pub(crate) fn hold(&self, group: Pid) -> Hold<'_> {
        self.write('+', group);
        Hold { guard: self, group }
    }

    fn write(&self, sign: char, group: Pid) {
        let line = format!("{sign} {group}\n");
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = input.write_all(line.as_bytes()) {
            tracing::warn!(%error, "the process that ends orphaned commands is gone");
        }
    }
}

#[derive(Debug)]
pub(crate) struct Hold<'a> {
    guard: &'a OrphanGuard,
    group: Pid,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.guard.write('-', self.group);
    }
}
