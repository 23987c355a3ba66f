//! The same behaviour of three workers: Rust that is pushed to, Rust that pulls, Python that is pushed to.
//!
//! Each is a process of its own. [`kit`] says what such a program is told and what it has to do. [`dags`] is about the
//! worker for jobs of DAGs.

#![allow(clippy::print_stdout, reason = "a worker program says when it is ready")]
#![allow(clippy::print_stderr, reason = "what is not there is shown")]

mod behaviours;
mod dags;
mod examples;
mod kit;
mod program;
mod proxy;
