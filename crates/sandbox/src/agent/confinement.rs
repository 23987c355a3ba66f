use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What the agent asks of the provider that started it.
pub(crate) trait Confinement: Send + Sync + 'static {
    type Command: CommandConfinement;

    /// Prepares the start of a command, for example makes a group for it.
    fn prepare(&self) -> io::Result<Self::Command>;

    /// Whether the agent puts a supervisor above each command that finds all its processes again. Otherwise
    /// [`CommandConfinement::kill`] does that, and the agent must be the first process of a PID namespace.
    fn supervised(&self) -> bool {
        false
    }

    /// Stops or continues all commands. The agent itself goes on.
    fn set_frozen(&self, frozen: bool) -> io::Result<()>;

    /// Called before the agent exits at its deadline.
    fn end(&self) {}
}

/// What confines one command. Dropped when its streams are closed, which can be long after its end.
pub(crate) trait CommandConfinement: Send + Sync + 'static {
    /// A group of the unified cgroup hierarchy to start the command in.
    fn start_group(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Runs in the new process before the program. `in_group` says that it was started in [`Self::start_group`]. It must be async-signal-safe: no allocation, no lock. The process is the
    /// leader of a session of its own, its signals have their defaults, and its streams and working directory are set. The
    /// descriptors from 3 on are closed by the exec that follows.
    fn enter(&self, in_group: bool) -> io::Result<()>;

    /// Kills every process of the command.
    fn kill(&self) -> io::Result<()>;

    fn usage(&self) -> CommandUsage;
}

/// What a command used; what is absent is taken from the process itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CommandUsage {
    pub(crate) cpu: Option<Duration>,
    pub(crate) peak_memory_bytes: Option<u64>,
    /// Whether the kernel killed a process of it for lack of memory.
    pub(crate) out_of_memory: bool,
}
