//! `tenure sandbox run`

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use tenure_sandbox::{
    Chunk, Command, Control, Egress, ErrorKind, Event, Limits, Mount, OutputStream, Provider, Runtime, Signal, Spec,
};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::sync::mpsc;

use super::providers::{Chosen, Name, Place};
use super::terminal::{self, RawTerminal};
use crate::exit::{self, Exit};
use crate::times;

/// As `timeout` reports it.
pub const TIMED_OUT: u8 = 124;
/// As `docker run` and `podman run` report that they, and not the command, failed.
pub const OWN_FAILURE: u8 = 125;
/// As a shell reports a process that a signal ended.
const ENDED_BY_SIGNAL: i32 = 128;
/// What a closed pipe does to a process that writes to it.
pub const BROKEN_PIPE: u8 = 128 + 13;
/// Pieces of standard input that may wait for the command.
const WAITING_INPUT: usize = 4;
const INPUT_BYTES: usize = 64 * 1024;

const DETAILS: &str = "\
The sandbox starts empty: its own processes, files and loopback network, no variables of this shell. \
/workspace and /tmp are writable; with the image `host` the programs of this machine are there, read-only. Everything \
in it is removed when the command ends, and also if this process is killed.

If stdin and stdout are terminals, the command gets a terminal. Signals are passed on to it.

Exit codes:
  that of the command, or 128 plus the signal that killed it
  124  the command ran longer than --timeout and was killed
  125  the sandbox could not be created or was lost, or the flags are wrong
  126  the program cannot be executed
  127  the program does not exist
  137  with a message: the command used more memory than --memory

Examples:
  tenure sandbox run -- python3 -c 'print(6 * 7)'
  tenure sandbox run --memory 256m --cpus 1 --timeout 30s --mount .:/workspace:ro -- make test
  tenure sandbox run --allow pypi.org --allow '*.pythonhosted.org' -- pip download requests";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    chosen: Chosen,
    /// Image: `host` for the programs of this machine, or a name of `tenure sandbox image list`
    #[arg(long, value_name = "NAME", default_value = "host")]
    image: String,
    /// Maximum memory, such as 256m or 1g; includes files in memory [default: that of the provider]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    memory: Option<u64>,
    /// Maximum CPU time per second of wall time: 0.5 is half a core [default: that of the provider]
    #[arg(long, value_name = "N", value_parser = cpus, help_heading = "Limits")]
    cpus: Option<f64>,
    /// Maximum number of processes and threads [default: that of the provider]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pids: Option<u32>,
    /// Maximum size of the files that the command writes [default: that of the provider]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    disk: Option<u64>,
    /// Kill the command and everything that it started after this time
    #[arg(long, value_name = "TIME", value_parser = times::duration, help_heading = "Limits")]
    timeout: Option<Duration>,
    /// Set a variable; repeatable. K alone takes the value from this shell
    #[arg(long, short, value_name = "K=V", value_parser = variable, help_heading = "What the command sees")]
    env: Vec<(String, String)>,
    /// Allow connections to a host through a proxy (HTTP_PROXY, HTTPS_PROXY): example.com, *.example.com or
    /// example.com:8443; repeatable [default: no network]
    #[arg(long, value_name = "HOST", help_heading = "What the command sees")]
    allow: Vec<String>,
    /// Show a folder of this machine in the sandbox; `:ro` makes it read-only; repeatable
    #[arg(long, short = 'v', value_name = "DIR:PATH[:ro]", value_parser = mount, help_heading = "What the command sees")]
    mount: Vec<Mount>,
    /// Make everything read-only except /workspace and /tmp
    #[arg(long, help_heading = "What the command sees")]
    read_only: bool,
    /// Folder in which the command starts [default: /workspace]
    #[arg(long, short, value_name = "PATH", help_heading = "What the command sees")]
    workdir: Option<String>,
    /// Do not give the command a terminal, even if this process has one
    #[arg(long, help_heading = "What the command sees")]
    no_tty: bool,
    /// Program and arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<String>,
}

/// A size in bytes, with a unit of 1024: `512k`, `256m`, `1g`.
pub fn size(text: &str) -> Result<u64, String> {
    tenure_sandbox::parse_size(text).ok_or_else(|| "write it as 512k, 256m or 1g".to_owned())
}

fn cpus(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "a number above 0, such as 0.5 or 2".to_owned())
}

pub fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (text, std::env::var(text).map_err(|_| format!("{text} is not set here: write {text}=VALUE"))?),
    };
    if name.is_empty() { Err("the name is empty: write NAME=VALUE".to_owned()) } else { Ok((name.to_owned(), value)) }
}

fn mount(text: &str) -> Result<Mount, String> {
    let (text, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    let (source, target) = text
        .rsplit_once(':')
        .filter(|(source, target)| !source.is_empty() && target.starts_with('/'))
        .ok_or("write it as DIR:/PATH or DIR:/PATH:ro, for example .:/workspace:ro")?;
    let source = std::fs::canonicalize(source).map_err(|error| format!("{source}: {error}"))?;
    if !source.is_dir() {
        return Err(format!("{} is not a folder", source.display()));
    }
    Ok(Mount { source, target: target.to_owned(), read_only })
}

/// Says itself what went wrong: every end has a code of its own.
pub async fn run(args: Args) -> Exit {
    match attempt(args).await {
        Ok(code) => Exit::Command(code),
        Err(error) => {
            exit::report(&error);
            Exit::Command(OWN_FAILURE)
        }
    }
}

async fn attempt(args: Args) -> anyhow::Result<u8> {
    let mut signals = Signals::listen()?;
    let memory = args.memory;
    let timeout = args.timeout;
    let interactive = !args.no_tty && terminal::is_interactive();
    let private = args.chosen.provider.open(&args.place.load()?).await?;
    let provider = private.provider();
    if args.chosen.provider == Name::Process {
        exit::warn("the provider process isolates nothing: the command runs with your rights");
    }
    let (spec, command) = split(args, interactive);
    let name = spec.sandbox_id.clone();
    // A signal that arrives before there is a command ends this one.
    let runtime = tokio::select! {
        spawned = provider.spawn(spec) => spawned.with_context(|| format!("the sandbox {name} was not created"))?,
        signal = signals.next() => return Ok(by_signal(signal)),
    };
    let ended = in_sandbox(&**provider, &runtime, command, &mut signals, interactive).await;
    if let Err(error) = provider.destroy(&runtime.id).await {
        exit::warn(&format!("the sandbox {} was not removed: {error}", runtime.id));
    }
    Ok(match ended? {
        Ended::Exited { code, out_of_memory } => {
            if out_of_memory {
                let limit = memory.map_or_else(String::new, |bytes| format!(" of {}", human(bytes)));
                exit::warn(&format!("the command ran out of memory{limit}; --memory sets the limit"));
            }
            u8::try_from(code & 0xff).unwrap_or(u8::MAX)
        }
        Ended::TimedOut => {
            let limit = timeout.unwrap_or_default();
            exit::warn(&format!("the command ran longer than {} and was killed", humantime::format_duration(limit)));
            TIMED_OUT
        }
        Ended::ReaderGone => BROKEN_PIPE,
    })
}

fn human(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes => format!("{bytes} bytes"),
    }
}

fn split(args: Args, interactive: bool) -> (Spec, Command) {
    let name = format!("run-{:012x}", tenure_engine::random_bits() & 0xffff_ffff_ffff);
    let mut env: BTreeMap<_, _> = args.env.into_iter().collect();
    if interactive && let Ok(term) = std::env::var("TERM") {
        env.entry("TERM".to_owned()).or_insert(term);
    }
    let spec = Spec {
        limits: Limits { memory_bytes: args.memory, cpus: args.cpus, pids: args.pids, disk_bytes: args.disk },
        egress: if args.allow.is_empty() { Egress::None } else { Egress::Allow(args.allow) },
        mounts: args.mount,
        read_only_root: args.read_only,
        die_with_parent: true,
        ..Spec::new(name, args.image)
    };
    let command = Command {
        env,
        workdir: args.workdir,
        timeout: args.timeout,
        stdin: true,
        terminal: interactive.then(terminal::size),
        ..Command::argv(args.command)
    };
    (spec, command)
}

enum Ended {
    Exited {
        code: i32,
        out_of_memory: bool,
    },
    TimedOut,
    /// Nobody reads what the command writes.
    ReaderGone,
}

async fn in_sandbox(
    provider: &dyn Provider,
    runtime: &Runtime,
    command: Command,
    signals: &mut Signals,
    interactive: bool,
) -> anyhow::Result<Ended> {
    let mut execution = provider.exec(&runtime.id, command).await.context("the command was not started")?;
    let control = execution.control();
    let _raw = if interactive { Some(RawTerminal::enter().context("the terminal cannot be used")?) } else { None };
    let mut resized = signal(SignalKind::window_change())?;
    let input = tokio::spawn(pass_input(read_input()?, Arc::clone(&control)));
    let ended = loop {
        tokio::select! {
            event = execution.next() => match event {
                Some(Event::Output(chunk)) => {
                    if !write(&chunk)? {
                        break Ended::ReaderGone;
                    }
                }
                Some(Event::Exited(exit)) => {
                    break Ended::Exited { code: exit.code, out_of_memory: exit.out_of_memory };
                }
                Some(Event::Failed(error)) if error.kind() == ErrorKind::Timeout => break Ended::TimedOut,
                Some(Event::Failed(error)) => return Err(anyhow::Error::new(error).context("the sandbox was lost")),
                None => anyhow::bail!("the sandbox was lost"),
            },
            signal = signals.next() => {
                if let Err(error) = control.signal(signal).await {
                    exit::warn(&format!("the signal was not passed on: {error}"));
                }
            }
            _ = resized.recv(), if interactive => {
                // A terminal that is gone has no size, and its end arrives as a signal.
                let _ = control.resize(terminal::size()).await;
            }
        }
    };
    input.abort();
    Ok(ended)
}

/// Returns whether somebody still reads.
fn write(chunk: &Chunk) -> anyhow::Result<bool> {
    // A slow reader must not hold up signals.
    let written = tokio::task::block_in_place(|| match chunk.stream {
        OutputStream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&chunk.bytes).and_then(|()| stdout.flush())
        }
        OutputStream::Stderr => io::stderr().write_all(&chunk.bytes),
    });
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("the output could not be written"),
    }
}

/// A thread of its own: reading standard input cannot be called off.
pub fn read_input() -> anyhow::Result<mpsc::Receiver<Bytes>> {
    let (send, input) = mpsc::channel(WAITING_INPUT);
    std::thread::Builder::new().name("tenure-stdin".to_owned()).spawn(move || {
        let mut buffer = vec![0; INPUT_BYTES];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Input that cannot be read any further has ended.
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    if send.blocking_send(Bytes::copy_from_slice(&buffer[..count])).is_err() {
                        return;
                    }
                }
            }
        }
    })?;
    Ok(input)
}

async fn pass_input(mut input: mpsc::Receiver<Bytes>, control: Arc<dyn Control>) {
    while let Some(bytes) = input.recv().await {
        // A command that ended or closed its input reads no more of it, and that is its business.
        if control.write_stdin(bytes).await.is_err() {
            return;
        }
    }
    let _ = control.close_stdin().await;
}

pub fn by_signal(signal: Signal) -> u8 {
    u8::try_from(ENDED_BY_SIGNAL + signal as i32).unwrap_or(OWN_FAILURE)
}

/// The signals that are passed on.
#[derive(Debug)]
pub struct Signals([(Listener, Signal); 6]);

impl Signals {
    pub fn listen() -> io::Result<Self> {
        Ok(Self([
            (signal(SignalKind::interrupt())?, Signal::Int),
            (signal(SignalKind::terminate())?, Signal::Term),
            (signal(SignalKind::hangup())?, Signal::Hup),
            (signal(SignalKind::quit())?, Signal::Quit),
            (signal(SignalKind::user_defined1())?, Signal::Usr1),
            (signal(SignalKind::user_defined2())?, Signal::Usr2),
        ]))
    }

    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (listener, signal) in &mut self.0 {
                if listener.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_a_folder_a_path_and_perhaps_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().canonicalize().unwrap();
        let text = source.display();
        let expected = |read_only| Mount { source: source.clone(), target: "/data".to_owned(), read_only };
        assert_eq!(mount(&format!("{text}:/data")), Ok(expected(false)));
        assert_eq!(mount(&format!("{text}:/data:rw")), Ok(expected(false)));
        assert_eq!(mount(&format!("{text}:/data:ro")), Ok(expected(true)));
        for wrong in ["/data", ":/data", "/nowhere-at-all:/data", &format!("{text}:data"), "/etc/passwd:/data"] {
            assert!(mount(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_variable_has_a_name_and_a_value() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(variable("=b").is_err());
        assert!(variable("SURELY_NOT_SET_HERE").is_err());
    }
}
