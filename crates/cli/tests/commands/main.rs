//! The commands as people and scripts use them: the real binary, real servers, real workers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bench;
mod config;
mod demo;
mod dev_certs;
mod doctor;
mod identity;
mod kit;
mod login;
mod operate;
mod outbox;
mod push;
mod runs;
mod serve;
mod tasks;
mod worker;
mod worker_token;
