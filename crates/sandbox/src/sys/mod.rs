//! System calls that no safe wrapper exists for, and code that runs between fork and exec. Nothing else in this workspace
//! may be `unsafe`.
#![allow(unsafe_code, reason = "fork, and system calls without a safe wrapper; each block states why it is sound")]

pub(crate) mod supervisor;
mod watched;

pub(crate) use watched::watched;
