//! The tenure command: control plane, worker, and everything people do with them.

#![allow(clippy::print_stderr, reason = "a command talks to people; what scripts read goes through `output`")]

mod access;
mod cli;
mod cmd;
mod credentials;
mod dispatch;
mod exit;
mod files;
mod logging;
mod output;
mod query;
mod reload;
mod sandboxes;
mod signals;
mod store_id;
mod times;
mod token;
mod transports;
mod words;

use std::process::ExitCode;

use cmd::compat::program;
use exit::Exit;

/// Requests and batches allocate much that is small and lives short: see docs/PERFORMANCE.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A copy of this program is the first process of each sandbox.
    tenure_sandbox::agent_main();
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("MUTANT") {
        tenure_core::mutant::choose(name);
    }
    let ended = if tenure_config::started_as_stacyvm() {
        run(program::run(program::parse()))
    } else {
        run(cmd::run(cli::parse().command))
    };
    let exit = match ended {
        Ok(exit) => exit,
        Err(error) => {
            exit::report(&error);
            exit::code_of(&error)
        }
    };
    ExitCode::from(exit.code())
}

fn run(command: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(command);
    // Whatever still waits for something has no say in the end.
    runtime.shutdown_background();
    result
}
