use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::exec::{KILL_PATIENCE, ProcessControl};
use super::record::Record;
use super::tree::{self, TreeUsage};
use crate::console::Console;
use crate::error::{Error, ErrorKind, Result};
use crate::execution::Control;
use crate::files::{Root, SandboxPath};
use crate::provider::{Runtime, RuntimeState};
use crate::spec::{Command, WORKSPACE};
use crate::start;

/// Commands of a sandbox that run at a time, with those that left processes behind.
const MAX_COMMANDS: u32 = 256;

#[derive(Debug)]
pub(super) struct Sandbox {
    pub(super) record: Record,
    pub(super) console: Console,
    pub(super) root: Arc<Root>,
    home: PathBuf,
    frozen: AtomicBool,
    destroyed: AtomicBool,
    /// Held by the call that destroys it; another one waits for the first.
    pub(super) destroying: tokio::sync::Mutex<bool>,
    slots: Arc<Semaphore>,
    commands: Mutex<HashMap<u64, Arc<ProcessControl>>>,
    next_command: AtomicU64,
    deadlines: Mutex<Option<AbortHandle>>,
    /// The CPU time at the last look, for a percentage.
    measured: Mutex<(Instant, Duration)>,
}

impl Sandbox {
    pub(super) fn open(record: Record, root: PathBuf) -> Result<Self> {
        Ok(Self {
            record,
            console: Console::default(),
            root: Arc::new(Root::open(&root)?),
            home: root.join(WORKSPACE.trim_start_matches('/')),
            frozen: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
            destroying: tokio::sync::Mutex::new(false),
            slots: Arc::new(Semaphore::new(MAX_COMMANDS as usize)),
            commands: Mutex::default(),
            next_command: AtomicU64::new(0),
            deadlines: Mutex::new(None),
            measured: Mutex::new((Instant::now(), Duration::ZERO)),
        })
    }

    pub(super) fn runtime(&self) -> Runtime {
        Runtime {
            id: self.record.id.clone(),
            sandbox_id: self.record.sandbox_id.clone(),
            image: self.record.image.clone(),
            image_resolved: "host".to_owned(),
            state: if self.frozen.load(Ordering::SeqCst) { RuntimeState::Frozen } else { RuntimeState::Running },
            created: self.record.created(),
            metadata: self.record.metadata.clone(),
        }
    }

    /// Refuses calls on a sandbox that is frozen or being destroyed.
    pub(super) fn check(&self) -> Result<()> {
        let id = &self.record.id;
        if self.is_destroyed() {
            return Err(Error::new(ErrorKind::Destroyed, format!("sandbox {id} was destroyed")));
        }
        if self.frozen.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Frozen, format!("sandbox {id} is frozen: thaw it first")));
        }
        Ok(())
    }

    pub(super) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::SeqCst)
    }

    /// Room for a command. A sandbox that is being destroyed has none, so that none starts after everything was killed.
    pub(super) fn slot(&self) -> Result<OwnedSemaphorePermit> {
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        self.check()?;
        slot.map_err(|_| Error::unavailable(format!("the sandbox runs {MAX_COMMANDS} commands already")))
    }

    pub(super) fn directory(&self, workdir: Option<&str>) -> Result<OwnedFd> {
        let path = SandboxPath::parse(workdir.unwrap_or(WORKSPACE))?;
        self.root.directory(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::invalid(format!("the working directory {path} does not exist")),
            _ => error,
        })
    }

    pub(super) fn environment(&self, command: &Command) -> BTreeMap<String, String> {
        start::environment(&self.home.to_string_lossy(), &self.record.env, command)
    }

    /// Keeps a command until `release`, so that it is killed with the sandbox.
    pub(super) fn hold(&self, control: &Arc<ProcessControl>) -> u64 {
        let number = self.next_command.fetch_add(1, Ordering::SeqCst);
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(control));
        // A command that started while the sandbox was being destroyed or frozen is not missed.
        if self.is_destroyed() {
            control.kill();
        }
        number
    }

    pub(super) fn release(&self, number: u64) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    fn supervisors(&self) -> Vec<u32> {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.values().map(|control| control.supervisor).collect()
    }

    /// Kills every process. No command can start any more.
    pub(super) async fn kill(&self) -> Result<()> {
        self.destroyed.store(true, Ordering::SeqCst);
        for control in self.commands.lock().unwrap_or_else(PoisonError::into_inner).values() {
            control.kill();
        }
        match tokio::time::timeout(KILL_PATIENCE, self.slots.acquire_many(MAX_COMMANDS)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::internal(format!("processes of sandbox {} do not end", self.record.id))),
        }
    }

    /// Stops every process, or lets them go on.
    pub(super) fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::SeqCst);
        tree::signal(&self.supervisors(), if frozen { Signal::STOP } else { Signal::CONT });
    }

    pub(super) fn set_deadlines(&self, task: Option<AbortHandle>) {
        let former = std::mem::replace(&mut *self.deadlines.lock().unwrap_or_else(PoisonError::into_inner), task);
        if let Some(former) = former {
            former.abort();
        }
    }

    /// What the processes use, and the percentage of a core since the last call.
    pub(super) fn usage(&self) -> (TreeUsage, f64) {
        let usage = tree::usage(&self.supervisors());
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *measured, (Instant::now(), usage.cpu));
        let wall = since.elapsed().as_secs_f64().max(0.001);
        (usage, usage.cpu.saturating_sub(before).as_secs_f64() / wall * 100.0)
    }
}
