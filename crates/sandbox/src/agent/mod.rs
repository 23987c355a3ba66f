//! The first process of a sandbox, and the client that talks to it from outside.
//!
//! The agent runs commands, serves files, connects to ports and keeps the deadlines of its sandbox. It is blocking code with
//! one thread of a small stack for each connection. It runs with the rights of the sandbox's user, so that a file call can do
//! what a command could do, and nothing else.
//!
//! Each connection to the agent's socket is one request. Only the host can connect: the socket is not visible in the
//! sandbox. The client trusts nothing that it receives, because code in the sandbox might have taken over the agent.

mod client;
mod confinement;
mod exec;
mod files;
mod launch;
mod protocol;
mod reaper;
mod server;
#[cfg(test)]
mod tests;
mod threads;

pub(crate) use client::Client;
pub(crate) use confinement::{CommandConfinement, CommandUsage, Confinement};
pub(crate) use server::{AgentSettings, serve};
