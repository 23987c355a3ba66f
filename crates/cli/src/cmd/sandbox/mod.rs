//! `tenure sandbox`

mod check;
mod copy;
mod create;
#[cfg(feature = "docker")]
mod docker;
mod exec;
mod image;
mod list;
mod manage;
mod private;
mod providers;
mod run;
mod session;
mod terminal;

pub use private::Private;
pub use providers::{Callers, Name, Place};
pub use run::{OWN_FAILURE, size, variable};

use crate::exit::Exit;

/// Commands whose exit code is that of another command.
pub const TRANSPARENT: [&str; 3] = ["run", "exec", "shell"];

const DETAILS: &str = "\
Most commands are for sandboxes on the workers of a server. run, check and image need no server: they are for this machine.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a sandbox on a worker
    Create(Box<create::Args>),
    /// List sandboxes
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show a sandbox
    Show(list::ShowArgs),
    /// Run a command in a sandbox
    Exec(exec::Args),
    /// Open a shell in a sandbox
    Shell(exec::ShellArgs),
    /// Copy files to and from sandboxes
    Cp(copy::Args),
    /// Show what a sandbox printed
    Logs(manage::LogsArgs),
    /// Show what a sandbox uses
    Stats(manage::StatsArgs),
    /// Let a sandbox live longer
    Extend(manage::ExtendArgs),
    /// Keep the files of a sandbox
    Snapshot(manage::SnapshotArgs),
    /// List snapshots
    Snapshots(manage::SnapshotsArgs),
    /// Replace the files of a sandbox by those of a snapshot
    Restore(manage::RestoreArgs),
    /// Print the addresses of a port of a sandbox
    Port(manage::PortArgs),
    /// Destroy sandboxes, delete snapshots
    Rm(manage::RmArgs),
    /// Run one command in a new sandbox on this machine; no server is needed
    Run(Box<run::Args>),
    /// Show what this machine enforces, why, and what to do about the rest
    Check(check::Args),
    /// Add, list and remove images
    Image(image::Args),
    /// Remove what a process that was killed left
    #[command(hide = true)]
    Sweep(private::SweepArgs),
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        Command::Create(args) => create::run(*args).await,
        Command::List(args) => list::list(args).await,
        Command::Show(args) => list::show(args).await,
        Command::Exec(args) => Ok(exec::exec(args).await),
        Command::Shell(args) => Ok(exec::shell(args).await),
        Command::Cp(args) => copy::run(args).await,
        Command::Logs(args) => manage::logs(args).await,
        Command::Stats(args) => manage::stats(args).await,
        Command::Extend(args) => manage::extend(args).await,
        Command::Snapshot(args) => manage::snapshot(args).await,
        Command::Snapshots(args) => manage::snapshots(args).await,
        Command::Restore(args) => manage::restore(args).await,
        Command::Port(args) => manage::port(args).await,
        Command::Rm(args) => manage::rm(args).await,
        Command::Run(args) => Ok(run::run(*args).await),
        Command::Check(args) => check::run(args).await,
        Command::Image(args) => image::run(args).await,
        Command::Sweep(args) => private::sweep(args).await,
    }
}
