//! A child process whose output is collected while it runs.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use tenure_localpg::Pauses;

/// How long a process may take to end after SIGTERM.
const TERMINATE: Duration = Duration::from_secs(90);

/// How long the rest of the output may take to arrive after the process has ended. Only a
/// grandchild that still holds the pipe open makes it late.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// A running process. Killed when dropped, so a failed test leaves nothing behind.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    stdout: Collected,
    stderr: Collected,
}

/// What a process has written, and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// `None` while the process runs.
    pub status: Option<ExitStatus>,
    /// With bytes that are no UTF-8 replaced.
    pub stdout: String,
    /// With bytes that are no UTF-8 replaced.
    pub stderr: String,
}

impl Child {
    /// Starts a command and collects what it writes.
    ///
    /// # Panics
    ///
    /// When the program cannot be started.
    pub fn spawn(mut command: Command) -> Self {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdout = process.stdout.take().expect("stdout is piped");
        let stderr = process.stderr.take().expect("stderr is piped");
        Self { process, stdout: Collected::from(stdout), stderr: Collected::from(stderr) }
    }

    /// The id of the process, also after it has ended.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// When the process has ended: its id may be another's by now.
    pub fn signal(&mut self, signal: Signal) {
        if let Some(status) = self.status() {
            self.fail(&format!("{signal} came too late, it ended with {status}"));
        }
        let pid = i32::try_from(self.pid()).expect("process ids fit an i32");
        signal::kill(Pid::from_raw(pid), signal).expect("own children take signals");
    }

    /// Ends the process at once with SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        // Both fail only when the process has ended and its status was fetched.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Asks the process to end with SIGTERM and waits until it has.
    ///
    /// # Panics
    ///
    /// When it has ended before, or does not end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait(TERMINATE).await
    }

    /// Waits until the process ends by itself. Its [`output`](Self::output) is complete then.
    ///
    /// # Panics
    ///
    /// When it still runs after `deadline`.
    pub async fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let mut pauses = Pauses::until(deadline);
        let status = loop {
            if let Some(status) = self.status() {
                break status;
            }
            if pauses.pause().await.is_break() {
                self.fail(&format!("still runs after {deadline:?}"));
            }
        };
        let mut pauses = Pauses::until(LAST_WORDS);
        while !self.is_drained() && pauses.pause().await.is_continue() {}
        status
    }

    /// Waits for a line on stdout that contains `text` and returns the line.
    ///
    /// # Panics
    ///
    /// When the process ends or `deadline` passes before.
    pub async fn wait_for_stdout(&mut self, text: &str, deadline: Duration) -> String {
        self.wait_for_line(|child| &child.stdout, text, deadline).await
    }

    /// Waits for a line on stderr that contains `text` and returns the line.
    ///
    /// # Panics
    ///
    /// When the process ends or `deadline` passes before.
    pub async fn wait_for_stderr(&mut self, text: &str, deadline: Duration) -> String {
        self.wait_for_line(|child| &child.stderr, text, deadline).await
    }

    async fn wait_for_line(&mut self, stream: impl Fn(&Self) -> &Collected, text: &str, deadline: Duration) -> String {
        let mut pauses = Pauses::until(deadline);
        loop {
            // Looked at first: what a process wrote before it ended is there after it has ended.
            let ended = self.status().is_some() && self.is_drained();
            if let Some(line) = stream(self).line_with(text) {
                return line;
            }
            if ended {
                self.fail(&format!("ended without a line with {text:?}"));
            }
            if pauses.pause().await.is_break() {
                self.fail(&format!("no line with {text:?} within {deadline:?}"));
            }
        }
    }

    /// What the process has written until now.
    pub fn output(&mut self) -> Output {
        Output { status: self.status(), stdout: self.stdout.text(), stderr: self.stderr.text() }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("own children can be waited for")
    }

    /// Whether everything the process wrote has been read.
    fn is_drained(&self) -> bool {
        self.stdout.reader.is_finished() && self.stderr.reader.is_finished()
    }

    /// A test that fails because of a process is only understood with the process's output.
    fn fail(&mut self, why: &str) -> ! {
        let pid = self.pid();
        let Output { stdout, stderr, .. } = self.output();
        panic!("process {pid}: {why}\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One stream of a process. A thread reads it all the time, so that the process never stands still
/// because a pipe is full.
#[derive(Debug)]
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn from(mut stream: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                sink.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&chunk[..length]);
            }
        });
        Self { bytes, reader }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Only whole lines count: half of an address would be a wrong address.
    fn line_with(&self, text: &str) -> Option<String> {
        self.text()
            .split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'))
            .find(|line| line.contains(text))
            .map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::spawn(command)
    }

    #[tokio::test]
    async fn collects_both_streams_until_the_end() {
        let mut child = shell("echo out; echo err >&2; exit 3");
        assert_eq!(child.wait(SOON).await.code(), Some(3));
        let output = child.output();
        assert_eq!(output.status.and_then(|status| status.code()), Some(3));
        assert_eq!((&*output.stdout, &*output.stderr), ("out\n", "err\n"));
    }

    #[tokio::test]
    async fn terminates_with_a_signal_the_process_can_handle() {
        let mut child = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        assert_eq!(child.wait_for_stdout("read", SOON).await, "ready");
        assert_eq!(child.output().status, None);
        assert_eq!(child.terminate().await.code(), Some(7));
    }

    #[tokio::test]
    async fn kills_at_once() {
        let mut child = shell("trap '' TERM; echo ready >&2; while :; do sleep 0.01; done");
        child.wait_for_stderr("ready", SOON).await;
        child.signal(Signal::SIGTERM);
        child.kill();
        let status = child.output().status.unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    }

    #[tokio::test]
    #[should_panic(expected = "last words")]
    async fn a_process_that_ends_early_fails_with_its_output() {
        let mut child = shell("echo last words >&2");
        child.wait_for_stdout("never written", SOON).await;
    }

    #[tokio::test]
    #[should_panic(expected = "still runs after 50ms")]
    async fn a_process_that_does_not_end_fails() {
        shell("exec sleep 60").wait(Duration::from_millis(50)).await;
    }
}
