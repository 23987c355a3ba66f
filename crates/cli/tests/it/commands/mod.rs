//! The commands as people and scripts use them: the real binary, real servers, real workers.

mod bench;
mod bundles;
mod compat;
mod config;
mod dags;
mod demo;
mod deploy;
mod dev_certs;
mod doctor;
mod identity;
mod init;
mod kit;
mod login;
mod operate;
mod outbox;
mod push;
mod query;
mod runs;
mod sandbox;
mod sandboxed_tasks;
mod sandboxes;
mod serve;
mod store;
mod tasks;
mod worker;
mod worker_token;
