//! The provider `process` when the process that uses it is killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};

use tempfile::TempDir;
use tenure_sandbox::{Command, Spec};

use crate::conformance::process;
use crate::kit::{read, read_until, runs, wait_until, write};

/// Names the folder in which this test binary, started by a test, holds a sandbox.
const FOLDER: &str = "TENURE_TEST_HOLDER";

const MARKER: &str = "81234.25";

/// Not a test by itself: what the killed process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let provider = process(PathBuf::from(folder), None).expect("a provider");
    let id = provider.spawn(Spec::new("sb-1", "host")).await.expect("a sandbox").id;
    write(provider.as_ref(), &id, "file", b"kept").await.expect("a write");
    let line = format!("(setsid sleep {MARKER} &); sleep {MARKER} & echo up; wait");
    let mut execution = provider.exec(&id, Command::shell(&line, &[])).await.expect("a command");
    read_until(&mut execution, "up").await;
    eprintln!("holds");
    std::future::pending::<()>().await;
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_end_with_a_killed_process_and_files_are_adopted() {
    let folder = TempDir::new().expect("a folder");
    let data = folder.path().join("data");
    let mut holder = Program::new(std::env::current_exe().expect("this program"))
        .args(["process::holder", "--exact", "--nocapture"])
        .env(FOLDER, &data)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map(KillOnDrop)
        .expect("a process");
    let lines = BufReader::new(holder.0.stderr.take().expect("a pipe")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holds"), "the process did not get that far");
    assert!(runs(MARKER));
    assert!(process(data.clone(), None).is_err(), "a folder that another process uses is refused");
    drop(holder);
    wait_until("no process is left", async || !runs(MARKER)).await;
    let provider = process(data, None).expect("a provider");
    let adopted = provider.adopt().await.expect("a list");
    assert_eq!(adopted.iter().map(|runtime| runtime.sandbox_id.as_str()).collect::<Vec<_>>(), ["sb-1"]);
    assert_eq!(read(provider.as_ref(), &adopted[0].id, "file").await.expect("content"), b"kept");
}
