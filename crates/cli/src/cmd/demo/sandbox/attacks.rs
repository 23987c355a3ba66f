//! Hostile programs, and how each is known to have been refused.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use tenure_sandbox::{Command, Error, ErrorKind, Event, Limits, Output, Provider, Runtime, Spec};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

const MEMORY: u64 = 64 << 20;
const PIDS: u32 = 48;
const TIMEOUT: Duration = Duration::from_secs(4);
const OUTPUT_BYTES: usize = 64 * 1024;
/// How often a sandbox is looked at while it is attacked from inside.
const LOOK: Duration = Duration::from_millis(50);
/// By how much this process may grow while a command writes without end.
const GROWTH_MAX: u64 = 64 << 20;
/// What only this machine knows.
const SECRET: &str = "the-secret-of-the-host";
/// Told by its argument from every other `sleep` of this machine.
const DETACHED: &str = "86413.5";

#[derive(Debug, Clone, Copy)]
pub enum Attack {
    ForkBomb,
    MemoryHog,
    FileEscape,
    Metadata,
    EndlessOutput,
    Daemon,
}

pub const ALL: [Attack; 6] =
    [Attack::ForkBomb, Attack::MemoryHog, Attack::FileEscape, Attack::Metadata, Attack::EndlessOutput, Attack::Daemon];

/// How an attack ended.
#[derive(Debug)]
pub struct Verdict {
    pub name: &'static str,
    pub tried: &'static str,
    pub happened: String,
    pub refused: bool,
}

/// What the attacks aim at: a file and a port of this machine.
#[derive(Debug)]
pub struct Stage<'a> {
    provider: &'a Arc<dyn Provider>,
    folder: TempDir,
    port: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl<'a> Stage<'a> {
    pub async fn open(provider: &'a Arc<dyn Provider>) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("tenure-demo-")?;
        fs::write(folder.path().join("secret"), SECRET)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?;
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self { provider, folder, port, connections })
    }

    pub fn provider(&self) -> &'a Arc<dyn Provider> {
        self.provider
    }

    pub async fn run(&self, attack: Attack) -> anyhow::Result<Verdict> {
        let name = format!("attack-{attack:?}").to_lowercase();
        let limits = Limits { memory_bytes: Some(MEMORY), pids: Some(PIDS), ..Limits::default() };
        let spec = Spec { limits, die_with_parent: true, ..Spec::new(name, "host") };
        let runtime = self.provider.spawn(spec).await.context("a sandbox for an attack was not created")?;
        let verdict = match attack {
            Attack::ForkBomb => self.fork_bomb(&runtime).await,
            Attack::MemoryHog => self.memory_hog(&runtime).await,
            Attack::FileEscape => self.file_escape(&runtime).await,
            Attack::Metadata => self.metadata(&runtime).await,
            Attack::EndlessOutput => self.endless_output(&runtime).await,
            Attack::Daemon => return self.daemon(runtime).await,
        };
        self.provider.destroy(&runtime.id).await?;
        verdict
    }

    async fn shell(&self, runtime: &Runtime, line: &str) -> Result<Output, Error> {
        let command = Command::shell(line, &[]).timeout(TIMEOUT);
        self.provider.exec(&runtime.id, command).await?.output(OUTPUT_BYTES).await
    }

    async fn fork_bomb(&self, runtime: &Runtime) -> anyhow::Result<Verdict> {
        let bomb = self.shell(runtime, "bomb() { bomb | bomb & }; bomb; sleep 60");
        tokio::pin!(bomb);
        let mut most = 0;
        let ended = loop {
            tokio::select! {
                ended = &mut bomb => break ended,
                () = tokio::time::sleep(LOOK) => {
                    most = most.max(self.provider.stats(&runtime.id).await.map_or(0, |stats| stats.pids));
                }
            }
        };
        let how = match &ended {
            Err(error) if error.kind() == ErrorKind::Timeout => format!("killed after {} s", TIMEOUT.as_secs()),
            Err(error) => format!("ended: {error}"),
            Ok(output) => format!("failed with exit code {}", output.exit().code),
        };
        let failed = !ended.is_ok_and(|output| output.exit().code == 0);
        Ok(Verdict {
            name: "fork bomb",
            tried: "processes that start processes without end",
            happened: format!("never more than {most} of {PIDS} processes, {how}"),
            refused: failed && most > 0 && most <= u64::from(PIDS) + 1,
        })
    }

    async fn memory_hog(&self, runtime: &Runtime) -> anyhow::Result<Verdict> {
        // `tail` keeps a line that does not end.
        let output = self.shell(runtime, "head -c 1000000000 /dev/zero | tail -n 1 | wc -c").await;
        let (killed, happened) = match output {
            Ok(output) if output.exit().out_of_memory => {
                (true, format!("the kernel killed it at {} MiB; its neighbours go on", MEMORY >> 20))
            }
            Ok(output) => (false, format!("exit code {}", output.exit().code)),
            Err(error) => (false, error.to_string()),
        };
        Ok(Verdict { name: "memory hog", tried: "1 GB of memory in a sandbox of 64 MiB", happened, refused: killed })
    }

    async fn file_escape(&self, runtime: &Runtime) -> anyhow::Result<Verdict> {
        let secret = self.folder.path().join("secret");
        let path = secret.display();
        let line = format!(
            "for file in {path} ../../../../..{path} /proc/1/root{path} /proc/self/root{path} /etc/shadow; do \
             cat $file; echo gone > $file; done 2>/dev/null; ln -s {path} /workspace/link; cat /workspace/link 2>/dev/null; \
             echo root::0:0::/:/bin/sh >> /etc/passwd; mount --bind / /mnt 2>/dev/null; ls /root /home 2>/dev/null; true"
        );
        let before = fs::read("/etc/passwd")?;
        let said = self.shell(runtime, &line).await?;
        // The same by the file calls of the worker, which must not follow the planted link out of the sandbox.
        let mut read = Vec::new();
        if let Ok(file) = self.provider.read_file(&runtime.id, "/workspace/link").await {
            let _ = file.content.take(OUTPUT_BYTES as u64).read_to_end(&mut read).await;
        }
        let leaked = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(SECRET);
        let seen = leaked(&said.stdout) || leaked(&read);
        let hashes = String::from_utf8_lossy(&said.stdout).contains("root:");
        let changed = fs::read_to_string(&secret)? != SECRET || fs::read("/etc/passwd")? != before;
        let happened = match (seen || hashes, changed) {
            (false, false) => "no file of the host was read or changed",
            (true, _) => "A FILE OF THE HOST WAS READ",
            (_, true) => "A FILE OF THE HOST WAS CHANGED",
        };
        Ok(Verdict {
            name: "file escape",
            tried: "host files by path, link, /proc and mount; /etc/shadow; /etc/passwd",
            happened: happened.to_owned(),
            refused: !seen && !hashes && !changed,
        })
    }

    async fn metadata(&self, runtime: &Runtime) -> anyhow::Result<Verdict> {
        let connect = |address: &str, port: u16| format!("exec 3<>/dev/tcp/{address}/{port} && echo connected");
        let mut connected = 0;
        for (address, port) in [("169.254.169.254", 80), ("127.0.0.1", self.port.port()), ("1.1.1.1", 53)] {
            // `/dev/tcp` is bash's own.
            let command = Command::argv(["bash", "-c", &connect(address, port)]).timeout(TIMEOUT);
            let output = self.provider.exec(&runtime.id, command).await?.output(OUTPUT_BYTES).await;
            connected += usize::from(output.is_ok_and(|output| output.stdout.starts_with(b"connected")));
        }
        let reached = self.connections.load(Ordering::Relaxed);
        Ok(Verdict {
            name: "metadata address",
            tried: "169.254.169.254, a port of this machine, the internet",
            happened: match (connected, reached) {
                (0, 0) => "no connection left the sandbox".to_owned(),
                _ => format!("{connected} CONNECTIONS, {reached} of them to this machine"),
            },
            refused: connected == 0 && reached == 0,
        })
    }

    async fn endless_output(&self, runtime: &Runtime) -> anyhow::Result<Verdict> {
        let before = own_memory();
        let command = Command::argv(["yes", "all work and no play makes jack a dull boy"]).timeout(TIMEOUT);
        let mut execution = self.provider.exec(&runtime.id, command).await?;
        let (mut bytes, mut timed_out) = (0_u64, false);
        while let Some(event) = execution.next().await {
            match event {
                Event::Output(chunk) => bytes += chunk.bytes.len() as u64,
                Event::Failed(error) => timed_out = error.kind() == ErrorKind::Timeout,
                Event::Exited(_) => {}
            }
        }
        let grown = own_memory().saturating_sub(before);
        Ok(Verdict {
            name: "endless output",
            tried: "output as fast as it goes, for ever",
            happened: format!(
                "killed after {} s and {} MB; this process grew by {} MB",
                TIMEOUT.as_secs(),
                bytes / 1_000_000,
                grown / 1_000_000
            ),
            refused: timed_out && grown < GROWTH_MAX,
        })
    }

    async fn daemon(&self, runtime: Runtime) -> anyhow::Result<Verdict> {
        let line = format!("(setsid sleep {DETACHED} </dev/null >/dev/null 2>&1 &); sleep 0.2");
        self.shell(&runtime, &line).await?;
        let started = detached();
        self.provider.destroy(&runtime.id).await?;
        let left = detached();
        Ok(Verdict {
            name: "daemon",
            tried: "a process in a session of its own that outlives its command",
            happened: format!("{started} before the sandbox was removed, {left} after"),
            refused: left == 0,
        })
    }
}

/// Resident memory of this process.
fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().strip_suffix("kB").and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default() * 1024
}

/// Processes of the last attack on this machine.
fn detached() -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let commands = entries.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    commands.filter(|command| command.split(|byte| *byte == 0).any(|word| word == DETACHED.as_bytes())).count()
}
