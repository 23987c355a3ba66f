//! A Redis of the run's own, which keeps nothing over a restart: what only Redis holds is not promised to last.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::process::Process;
use crate::ports::Port;

#[derive(Debug)]
pub struct RedisServer {
    port: Port,
    folder: PathBuf,
    running: Mutex<Option<Process>>,
}

impl RedisServer {
    pub fn start(folder: &Path) -> Result<Self> {
        let server = Self { port: Port::try_reserve()?, folder: folder.to_owned(), running: Mutex::new(None) };
        server.start_again()?;
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port())
    }

    pub fn kill(&self) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn start_again(&self) -> Result<()> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &self.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(&self.folder);
        let process = Process::start(command, &self.folder.join("redis.log"))?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }
}
