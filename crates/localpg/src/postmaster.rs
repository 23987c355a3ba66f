//! The process of a private server, and the ways in which it ends.

use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::cluster::Cluster;
use crate::pauses::Pauses;
use crate::programs::Programs;

/// How long a server may take to shut down.
const STOP: Duration = Duration::from_secs(30);

/// A running server: its first process, which has a process for each connection, and a few more.
#[derive(Debug)]
pub struct Postmaster {
    process: Child,
}

impl Postmaster {
    /// Starts a server and waits until it accepts connections.
    ///
    /// It stays in the test's process group: when a test runs out of time, nextest ends the group,
    /// and the server with it.
    pub async fn start(cluster: &Cluster, programs: &Programs, port: u16, settings: &[&str]) -> Result<Self> {
        let line = cluster.server(programs, port, settings);
        let (out, err) = cluster.log()?;
        let process = programs
            .command(&line[0], &std::env::temp_dir())
            .args(&line[1..])
            .stdout(out)
            .stderr(err)
            .spawn()
            .context("cannot start postgres")?;
        let mut server = Self { process };
        cluster.wait_until_ready(&mut server.process, port).await?;
        Ok(server)
    }

    /// The number of its first process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Shuts the server down in order, ending its connections.
    pub async fn stop(mut self) {
        // The "fast" shutdown of Postgres; SIGTERM would wait for the clients to leave.
        self.signal(Signal::SIGINT);
        let mut pauses = Pauses::until(STOP);
        while !self.has_ended() {
            if pauses.pause().await.is_break() {
                panic!("Postgres does not shut down within {STOP:?}");
            }
        }
    }

    /// Kills the server and all of its processes.
    ///
    /// Killing only the first would let a statement that another is working on run to its commit,
    /// after the test believes the server dead. The first one is halted meanwhile: so it starts no
    /// others, and the ids of those that were killed stay theirs.
    pub fn crash(mut self) {
        self.signal(Signal::SIGSTOP);
        waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).expect("own children can be waited for");
        for child in children(self.pid()) {
            // One that has just ended by itself is as dead as it should be.
            let _ = kill(child, Signal::SIGKILL);
        }
        self.kill();
    }

    /// Stops all of its processes where they are. Connections stay, the kernel still takes what is sent to them, and
    /// nothing is answered.
    pub fn freeze(&mut self) {
        self.signal(Signal::SIGSTOP);
        waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).expect("own children can be waited for");
        for child in children(self.pid()) {
            let _ = kill(child, Signal::SIGSTOP);
        }
    }

    /// Lets a frozen server go on.
    pub fn thaw(&mut self) {
        for child in children(self.pid()) {
            let _ = kill(child, Signal::SIGCONT);
        }
        self.signal(Signal::SIGCONT);
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).expect("process ids fit an i32"))
    }

    fn signal(&mut self, signal: Signal) {
        assert!(!self.has_ended(), "the server has ended by itself");
        kill(self.pid(), signal).expect("own children take signals");
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    fn kill(&mut self) {
        // Both fail only when it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Postmaster {
    /// With the "immediate" shutdown of Postgres: it writes nothing any more, but has ended all its
    /// processes when it ends, so that none of them is at work in a folder that is deleted next.
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let _ = kill(self.pid(), Signal::SIGQUIT);
        let mut pauses = Pauses::until(STOP);
        while !self.has_ended() {
            if pauses.pause_blocking().is_break() {
                self.kill();
            }
        }
    }
}

fn children(parent: Pid) -> Vec<Pid> {
    let output = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().expect("ps has to be installed");
    let parent = parent.to_string();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.trim().split_once(char::is_whitespace))
        .filter(|(_, its_parent)| its_parent.trim() == parent)
        .filter_map(|(child, _)| child.parse().ok())
        .map(Pid::from_raw)
        .collect()
}
