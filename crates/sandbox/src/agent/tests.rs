use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::error::ErrorKind;
use crate::execution::{Event, Execution, Output, Signal};
use crate::files::FileWrite;
use crate::spec::{Command, Deadlines, Terminal};

const PATIENCE: Duration = Duration::from_secs(60);

/// Adds nothing to how the agent itself runs.
#[derive(Debug, Clone, Copy, Default)]
struct Supervised;

impl Confinement for Supervised {
    type Command = Self;

    fn prepare(&self) -> std::io::Result<Self> {
        Ok(Self)
    }

    fn supervised(&self) -> bool {
        true
    }

    fn set_frozen(&self, _frozen: bool) -> std::io::Result<()> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "the agent of this sandbox cannot freeze commands"))
    }
}

impl CommandConfinement for Supervised {
    fn enter(&self, _: bool) -> std::io::Result<()> {
        Ok(rustix::thread::set_no_new_privs(true)?)
    }

    /// The supervisor does it.
    fn kill(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn usage(&self) -> CommandUsage {
        CommandUsage::default()
    }
}

/// An agent in a thread of this process, over a folder.
struct Place {
    folder: TempDir,
    client: Arc<Client>,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        std::fs::create_dir_all(folder.path().join("root/workspace")).expect("a root");
        // Longer than the address of a socket can be.
        let deep = folder.path().join("d".repeat(120));
        std::fs::create_dir(&deep).expect("a folder");
        let name = folder.path().join("agent");
        let listener = UnixListener::bind(&name).expect("a socket");
        std::fs::rename(&name, deep.join("agent")).expect("a move");
        let settings = AgentSettings { root: folder.path().join("root"), parent: None };
        std::thread::spawn(move || serve(listener, Supervised, settings));
        let client = Arc::new(Client::new(&deep.join("agent")).expect("a client"));
        Self { folder, client }
    }

    async fn exec(&self, command: Command) -> Execution {
        self.try_exec(command).await.expect("a command")
    }

    async fn try_exec(&self, command: Command) -> crate::Result<Execution> {
        let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        self.client.exec(&command, env).await
    }

    async fn sh(&self, line: &str) -> Output {
        self.exec(Command::shell(line, &[])).await.output(1 << 20).await.expect("an exit")
    }

    async fn write(&self, path: &str, content: &[u8]) -> crate::Result<()> {
        let content = Box::pin(std::io::Cursor::new(content.to_vec()));
        self.client.write_file(FileWrite { path: path.to_owned(), mode: 0o600, content }).await
    }
}

async fn read_until(execution: &mut Execution, wanted: &str) {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        match tokio::time::timeout(PATIENCE, execution.next()).await.expect("an event in time") {
            Some(Event::Output(chunk)) => seen.push_str(&String::from_utf8_lossy(&chunk.bytes)),
            other => panic!("{wanted:?} did not come: {other:?} after {seen:?}"),
        }
    }
}

/// Whether a process with this argument runs on this machine.
fn runs(marker: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.into_iter().any(|process| {
        std::fs::read(process.path().join("cmdline"))
            .is_ok_and(|line| line.split(|b| *b == 0).any(|arg| arg == marker.as_bytes()))
    })
}

async fn wait_until(what: &str, condition: impl AsyncFnMut() -> bool) {
    tenure_testkit::wait_until(what, PATIENCE, condition).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_output_exit_code_and_variables() {
    let place = Place::new();
    let output = place.sh("echo out; echo err >&2; env; exit 7").await;
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    assert!(text.starts_with("out\n") && !text.contains("CARGO"), "{text}");
    assert_eq!((output.stderr.as_slice(), output.exit().code), (b"err\n".as_slice(), 7));
    assert!(output.exit().usage.cpu.is_some());
    assert_eq!(place.sh("kill -9 $$").await.exit().code, 137);
    assert_eq!(place.sh("ls /proc/self/fd").await.stdout, b"0\n1\n2\n3\n", "descriptors, and that of the list");
    let missing = place.exec(Command::argv(["no-such-program"])).await.output(1000).await.expect("an exit");
    assert_eq!(missing.exit().code, 127);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-program"));
    let mut elsewhere = Command::argv(["true"]);
    elsewhere.workdir = Some("missing".to_owned());
    assert_eq!(place.try_exec(elsewhere).await.expect_err("a refusal").kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_out_leaves_no_process() {
    let place = Place::new();
    let line = "sleep 7101.1 & setsid sleep 7101.1 & (setsid sh -c 'trap \"\" TERM HUP; sleep 7101.1 & wait' &) ; echo up; sleep 7101.1";
    let command = Command::shell(line, &[]).timeout(Duration::from_secs(5));
    let mut execution = place.exec(command).await;
    read_until(&mut execution, "up").await;
    let error = execution.output(100).await.expect_err("a time-out");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    wait_until("no process is left", async || !runs("7101.1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_execution_leaves_no_process() {
    let place = Place::new();
    let mut execution = place.exec(Command::shell("setsid sleep 7102.1 & echo up; sleep 7102.1", &[])).await;
    read_until(&mut execution, "up").await;
    wait_until("the process runs", async || runs("7102.1")).await;
    drop(execution);
    wait_until("no process is left", async || !runs("7102.1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_command_leaves_running_goes_on_and_is_logged() {
    let place = Place::new();
    let line = "(while [ ! -e stop ]; do sleep 0.02; done; echo late) & echo early";
    let output = tokio::time::timeout(PATIENCE, place.sh(line)).await.expect("an exit before the background process's");
    assert_eq!((output.stdout.as_slice(), output.exit().code), (b"early\n".as_slice(), 0));
    assert_eq!(place.client.console_log(0).await.expect("a log"), ["early"]);
    place.write("stop", b"").await.expect("a write");
    wait_until("the late line is logged", async || {
        place.client.console_log(0).await.expect("a log") == ["early", "late"]
    })
    .await;
    assert_eq!(place.client.console_log(1).await.expect("a log"), ["late"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_blocks_the_command_and_loses_nothing() {
    let place = Place::new();
    // Far more than fits into channels and sockets, so the command cannot end before it is read.
    // By its own length the command is found among those of other tests.
    let whole = 20_000_000 + std::process::id() as usize;
    let line = format!("head -c {whole} /dev/zero; touch done; echo end >&2");
    let mut execution = place.exec(Command::shell(&line, &[])).await;
    tenure_testkit::wait_until_blocked(&whole.to_string(), PATIENCE).await;
    assert!(!place.folder.path().join("root/workspace/done").exists());
    let mut length = 0;
    let mut last = None;
    while let Some(event) = execution.next().await {
        match event {
            Event::Output(chunk) => {
                length += chunk.bytes.len();
                last = Some(chunk.bytes);
            }
            Event::Exited(exit) => assert_eq!(exit.code, 0),
            Event::Failed(error) => panic!("{error}"),
        }
    }
    assert_eq!((length, last.as_deref()), (whole + 4, Some(b"end\n".as_slice())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdin_is_passed_on_with_back_pressure_and_ends() {
    let place = Place::new();
    let mut command = Command::shell("sleep 0.2; wc -c", &[]);
    command.stdin = true;
    let execution = place.exec(command).await;
    let control = execution.control();
    let feed = async {
        for _ in 0..50 {
            control.write_stdin(vec![0; 100_000].into()).await.expect("accepted");
        }
        control.close_stdin().await.expect("closed");
    };
    let (output, ()) = tokio::join!(execution.output(100), feed);
    assert_eq!(output.expect("an exit").stdout, b"5000000\n");
    let mut command = Command::argv(["true"]);
    command.stdin = true;
    let execution = place.exec(command).await;
    let control = execution.control();
    assert_eq!(execution.output(1).await.expect("an exit").exit().code, 0);
    for _ in 0..10 {
        control.write_stdin(vec![0; 100_000].into()).await.expect("an ended command is not an error");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_resized_and_signalled() {
    let place = Place::new();
    let mut command = Command::shell("trap 'echo int' INT; stty size; read a; stty size; read b; exit 4", &[]);
    command.terminal = Some(Terminal { rows: 10, columns: 20 });
    let mut execution = place.exec(command).await;
    read_until(&mut execution, "10 20").await;
    let control = execution.control();
    control.resize(Terminal { rows: 30, columns: 40 }).await.expect("resized");
    control.write_stdin("x\n".into()).await.expect("accepted");
    read_until(&mut execution, "30 40").await;
    control.signal(Signal::Int).await.expect("sent");
    read_until(&mut execution, "int").await;
    control.close_stdin().await.expect("closed");
    assert_eq!(execution.output(100).await.expect("an exit").exit().code, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_served() {
    let place = Place::new();
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    place.write("a/b", &content).await.expect("a write");
    let mut file = place.client.read_file("a/b").await.expect("a file");
    assert_eq!((file.info.size, file.info.mode), (3_000_000, 0o600));
    let mut read = Vec::new();
    file.content.read_to_end(&mut read).await.expect("content");
    assert!(read == content, "the content differs");
    place.client.chmod_file("a/b", 0o640).await.expect("a mode");
    place.client.move_file("a/b", "a/c").await.expect("a move");
    assert_eq!(place.client.stat_file("a/c").await.expect("a file").mode, 0o640);
    assert_eq!(place.client.list_files("a").await.expect("a list")[0].path, "/workspace/a/c");
    assert_eq!(place.client.glob_files("**/c").await.expect("a list"), ["/workspace/a/c"]);
    place.client.delete_file("a", true).await.expect("a deletion");
    assert_eq!(place.client.stat_file("a").await.expect_err("gone").kind(), ErrorKind::NotFound);
    let error = place.write("../../etc/passwd", b"x").await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_source_fails_leaves_nothing() {
    let place = Place::new();
    let (mut writer, reader) = tokio::io::duplex(1000);
    writer.write_all(b"half").await.expect("room");
    let failing = reader.chain(Failing);
    drop(writer);
    let file = FileWrite { path: "file".to_owned(), mode: 0o600, content: Box::pin(failing) };
    assert!(place.client.write_file(file).await.is_err());
    wait_until("no temporary file is left", async || {
        place.client.list_files("/workspace").await.expect("a list").is_empty()
    })
    .await;
}

struct Failing;

impl tokio::io::AsyncRead for Failing {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Err(std::io::Error::other("the source failed")))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_dialled() {
    let place = Place::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut connection = place.client.dial(port).await.expect("a connection");
    let (mut other, _) = listener.accept().await.expect("a connection");
    other.write_all(b"hello").await.expect("sent");
    let mut hello = [0; 5];
    connection.read_exact(&mut hello).await.expect("received");
    assert_eq!(&hello, b"hello");
    drop(listener);
    assert_eq!(place.client.dial(port).await.expect_err("closed").kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_refused_after_the_freeze_deadline() {
    let place = Place::new();
    assert!(!place.client.ping().await.expect("an answer"));
    let deadlines = Deadlines { freeze_after: Some(Duration::ZERO), destroy_after: None };
    place.client.set_deadlines(deadlines).await.expect("deadlines");
    let end = Instant::now() + PATIENCE;
    while !place.client.ping().await.expect("an answer") {
        assert!(Instant::now() < end, "not frozen");
    }
    assert_eq!(place.client.stat_file("/").await.expect_err("a refusal").kind(), ErrorKind::Frozen);
    assert_eq!(place.try_exec(Command::argv(["true"])).await.expect_err("a refusal").kind(), ErrorKind::Frozen);
}

/// An agent that was taken over cannot do more than fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_agent_is_an_error() {
    use std::io::{Read, Write};
    let answers: [&[u8]; 7] = [
        b"",
        b"\x02\xff\xff\xff\xff",
        b"\x02\x04\x00\x00\x00nul!",
        b"\x63\x00\x00\x00\x00",
        b"\x02\x14\x00\x00\x00{\"Texts\":[\"x\",\"y\"]}\x03\xff\xff\xff\x7f",
        b"\x02\x06\x00\x00\x00\"Done\"\x05\x02\x00\x00\x00{}",
        b"\x02\x06\x00\x00\x00\"Done\"\x03\x01\x00\x02\x00",
    ];
    for answer in answers {
        let folder = TempDir::new().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("agent")).expect("a socket");
        std::thread::spawn(move || {
            while let Ok((mut connection, _)) = listener.accept() {
                let _ = connection.read(&mut [0; 4096]);
                let _ = connection.write_all(answer);
            }
        });
        let client = Client::new(&folder.path().join("agent")).expect("a client");
        assert!(client.ping().await.is_err());
        assert!(client.stat_file("/").await.is_err());
        assert!(client.read_file("/").await.is_err());
        assert!(client.dial(1).await.is_err());
        if let Ok(execution) = client.exec(&Command::argv(["true"]), BTreeMap::new()).await {
            drop(execution.output(10).await.expect_err("not an exit"));
        }
    }
}
