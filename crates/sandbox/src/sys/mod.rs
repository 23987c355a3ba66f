//! System calls that no safe wrapper exists for, and code that runs between fork and exec. Nothing else in this workspace
//! may be `unsafe`.
#![allow(unsafe_code, reason = "fork, and system calls without a safe wrapper; each block states why it is sound")]

mod clone;
#[cfg(feature = "docker")]
mod everyone;
mod loop_device;
mod mount;
mod process;
mod program;
mod socket;
mod spawn;
pub(crate) mod supervisor;
mod wait;
mod watched;

pub(crate) use clone::{Cloned, Namespaces, clone_process};
#[cfg(feature = "docker")]
pub(crate) use everyone::signal_all_others;
pub(crate) use loop_device::attach_loop_device;
pub(crate) use mount::{MountAttributes, set_mount_attributes};
pub(crate) use process::{
    exit_process, ignore_child_signals, landlock_restrict_self, new_cgroup_namespace, reset_signals,
};
pub(crate) use program::{Program, spawn_program};
pub(crate) use socket::bring_loopback_up;
pub(crate) use spawn::{become_leader, before_exec, in_child};
pub(crate) use wait::{ended_child, take_status};
pub(crate) use watched::watched;
