use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tenure_client::TaskError;
use tokio::process::Child;

/// The process group of a task, as long as it is certain that its number means this group.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    open: Mutex<bool>,
}

impl Group {
    /// Of a process that was started as the first of its group.
    pub(crate) fn of(leader: &Child) -> Result<Self, TaskError> {
        let id = leader.id().and_then(|id| i32::try_from(id).ok());
        let id = id.ok_or_else(|| TaskError::infrastructure("the process has no id"))?;
        Ok(Self { id: Pid::from_raw(id), open: Mutex::new(true) })
    }

    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    /// Sends a signal to every member; to nobody once the group is closed. Any thread may call it.
    pub(crate) fn signal(&self, signal: Signal) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if *open {
            // The only failure is that no member is left.
            let _ = killpg(self.id, signal);
        }
    }

    /// The leader was waited for and the rest was killed: from now on the number may name another group.
    pub(crate) fn close(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Ends the group when the future that runs the task is dropped.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Arc<Group>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.signal(Signal::SIGKILL);
        self.0.close();
    }
}
