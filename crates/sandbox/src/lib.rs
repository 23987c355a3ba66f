//! Sandboxes for untrusted code on one machine.
//!
//! A [`Provider`] creates sandboxes, runs commands and reads and writes files in them. It is usable without a control
//! plane or a worker. What a provider enforces is measured, not assumed: see [`Capabilities`]. A sandbox that would need
//! more than is enforced is refused.

mod agent;
mod capabilities;
mod console;
#[cfg(feature = "docker")]
mod docker;
mod error;
mod execution;
mod files;
mod images;
mod namespace;
mod process;
mod provider;
mod random;
mod spec;
mod start;
mod sys;
mod terminal;

pub use capabilities::{Capabilities, Enforcement, Feature, Support};
#[cfg(feature = "docker")]
pub use docker::{DockerProvider, DockerSettings};
pub use error::{Error, ErrorKind, Result};
pub use execution::{
    Chunk, Control, Event, Execution, Exit, MAX_CHUNK_BYTES, MAX_WAITING_CHUNKS, Output, OutputStream, Signal, Usage,
};
pub use files::{FileInfo, FileReader, FileWrite};
pub use images::{Image, ImageLimits, ImageRecord, ImageSource, ImageStore};
pub use namespace::{AgentProgram, NamespaceProvider, NamespaceSettings, agent_main};
pub use process::{ProcessProvider, ProcessSettings};
pub use provider::{Connection, Provider, Runtime, RuntimeId, RuntimeState, Stats, Stream};
pub use spec::{Command, Deadlines, Egress, GATEWAY_PORT, Limits, Mount, Spec, Terminal, WORKSPACE, parse_size};
