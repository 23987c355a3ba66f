//! The real `tenure` binary as a child process.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::child::{Child, Output};

/// What `tenure serve` writes to stdout once it accepts connections, before its URL.
const LISTENING: &str = "tenure listening on ";

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(90);

/// How long a command may take that is expected to end by itself.
const RUN: Duration = Duration::from_secs(120);

/// A running `tenure serve`. Everything a [`Child`] can do, it can do too; killed when dropped.
#[derive(Debug)]
pub struct Tenure {
    child: Child,
    url: String,
    data: PathBuf,
    /// Deletes the data folder on drop, unless the folder is the caller's.
    _temporary: Option<TempDir>,
}

impl Tenure {
    /// Starts a server with a data folder of its own and waits until it listens.
    ///
    /// It listens on a free port of 127.0.0.1, unless `args` has a `--listen`.
    ///
    /// # Panics
    ///
    /// When there is no binary, or the server does not come up; the message holds its output.
    pub async fn serve(args: &[&str]) -> Self {
        Self::serve_with(args, |_| {}).await
    }

    /// [`serve`](Self::serve), with a last word on the command: variables, most of all.
    pub async fn serve_with(args: &[&str], adjust: impl FnOnce(&mut Command)) -> Self {
        let folder = TempDir::with_prefix("tenure-").expect("no folder for the server's data");
        let mut command = Self::serve_command(folder.path(), args);
        adjust(&mut command);
        let mut server = Self::listening(command, folder.path()).await;
        server._temporary = Some(folder);
        server
    }

    /// [`serve`](Self::serve) with a data folder that the caller keeps, for a server that takes
    /// over where another one was killed.
    pub async fn serve_in(data: &Path, args: &[&str]) -> Self {
        Self::listening(Self::serve_command(data, args), data).await
    }

    fn serve_command(data: &Path, args: &[&str]) -> Command {
        let mut command = Self::command(&["serve"]);
        let listens = |arg: &&str| *arg == "--listen" || arg.starts_with("--listen=");
        if !args.iter().any(listens) {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.arg("--data").arg(data).args(args);
        command
    }

    async fn listening(command: Command, data: &Path) -> Self {
        let mut child = Child::spawn(command);
        let line = child.wait_for_stdout(LISTENING, START).await;
        let url = line
            .trim_end()
            .strip_prefix(LISTENING)
            .filter(|url| url.starts_with("http://") || url.starts_with("https://"))
            .unwrap_or_else(|| panic!("no URL in {line:?}"))
            .to_owned();
        Self { child, url, data: data.to_owned(), _temporary: None }
    }

    /// Starts any subcommand, like `["worker", …]`, and lets it run.
    pub fn run(args: &[&str]) -> Child {
        Child::spawn(Self::command(args))
    }

    /// Runs any subcommand until it ends by itself.
    ///
    /// # Panics
    ///
    /// When it has not ended after two minutes.
    pub async fn run_to_end(args: &[&str]) -> Output {
        let mut child = Self::run(args);
        child.wait(RUN).await;
        child.output()
    }

    /// The command behind [`run`](Self::run), for tests that set variables or stdin before they
    /// hand it to [`Child::spawn`].
    ///
    /// Without the `TENURE_…` variables of this process: settings of whoever runs the tests must
    /// not change what the tests see.
    pub fn command(args: &[&str]) -> Command {
        let mut command = Command::new(Self::binary());
        command.args(args).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TENURE_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Where the binary is: `TENURE_BIN`, else where cargo puts it for the profile of this test.
    ///
    /// # Panics
    ///
    /// When it is not there. Cargo does not build the binary for the tests of other crates.
    pub fn binary() -> PathBuf {
        let binary = match std::env::var_os("TENURE_BIN") {
            Some(path) => PathBuf::from(path),
            None => beside(&std::env::current_exe().expect("a test knows its own path")),
        };
        assert!(binary.is_file(), "there is no {}: build it with `cargo build -p tenure-cli`", binary.display());
        binary
    }

    /// Where the server listens, as `http://ADDRESS:PORT`, or with `https` when it has a certificate.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's data folder. One that [`serve`](Self::serve) made goes away with this value.
    pub fn data(&self) -> &Path {
        &self.data
    }
}

impl Deref for Tenure {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Tenure {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

/// The binary that belongs to a test at `target/<profile>/deps/<test>`.
fn beside(test: &Path) -> PathBuf {
    let folder = test.parent().expect("a test lies in a folder");
    let profile = match folder.file_name().and_then(OsStr::to_str) {
        Some("deps") => folder.parent().expect("deps lies in the profile's folder"),
        _ => folder,
    };
    profile.join("tenure")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_binary_lies_above_the_folder_of_the_tests() {
        let tenure = Path::new("/t/debug/tenure");
        assert_eq!(beside(Path::new("/t/debug/deps/api-0123")), tenure);
        assert_eq!(beside(Path::new("/t/debug/bench")), tenure);
    }

    #[tokio::test]
    async fn a_server_is_up_when_it_says_where_it_listens() {
        for url in ["http://127.0.0.1:4321", "https://127.0.0.1:4321"] {
            let script = format!("echo early; echo tenure listening on {url}; exec sleep 60");
            let mut server = Tenure::listening(shell(&script), Path::new("/data")).await;
            assert_eq!(server.url(), url);
            assert!(!server.terminate().await.success());
        }
    }

    #[tokio::test]
    #[should_panic(expected = "no such database")]
    async fn a_server_that_does_not_come_up_fails_with_its_output() {
        Tenure::listening(shell("echo no such database >&2; exit 1"), Path::new("/")).await;
    }
}
