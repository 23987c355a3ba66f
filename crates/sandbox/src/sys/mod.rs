//! System calls that no safe wrapper exists for, and code that runs between fork and exec. Nothing else in this workspace
//! may be `unsafe`.
#![allow(unsafe_code, reason = "fork, and system calls without a safe wrapper; each block states why it is sound")]

mod spawn;
pub(crate) mod supervisor;
mod wait;
mod watched;

pub(crate) use spawn::{before_exec, in_child, lead_session};
pub(crate) use wait::{ended_child, take_status};
pub(crate) use watched::watched;
