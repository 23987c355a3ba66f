//! `tenure sandbox`

mod check;
#[cfg(feature = "docker")]
mod docker;
mod image;
mod private;
mod providers;
mod run;
mod terminal;

pub use private::Private;
pub use providers::{Callers, Name, Place};
pub use run::OWN_FAILURE;

use crate::exit::Exit;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
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
        Command::Run(args) => Ok(run::run(*args).await),
        Command::Check(args) => check::run(args).await,
        Command::Image(args) => image::run(args).await,
        Command::Sweep(args) => private::sweep(args).await,
    }
}
