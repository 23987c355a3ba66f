//! The provider `namespace`: sandboxes made of the kernel's namespaces, groups and filters.

mod adopt;
mod calls;
mod cgroup;
mod confinement;
mod disk;
mod egress;
mod host;
mod landlock;
mod launch;
mod limits;
mod probe;
mod provider;
mod record;
mod restore;
mod sandbox;
mod seccomp;
mod settings;
mod setup;
mod snapshot;
mod spawn;
mod zygote;

pub use provider::NamespaceProvider;
pub use settings::NamespaceSettings;
pub use zygote::{AgentProgram, agent_main};
