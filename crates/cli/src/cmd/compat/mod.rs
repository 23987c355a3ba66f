//! `tenure compat`: running as StacyVM.

pub mod program;
mod verbs;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tenure_config::{Config, STACYVM};

use crate::exit::{Exit, Stop};
use crate::output;

const DETAILS: &str = "\
A program that is started as `stacyvm` has the commands of StacyVM and reads its configuration, its variables and its \
defaults: see docs/CONFIGURATION.md, \"The profile stacyvm\".";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a link named stacyvm to this program
    Link {
        /// Folder for the link, such as one in PATH
        dir: PathBuf,
    },
}

pub fn run(args: &Args) -> anyhow::Result<Exit> {
    match &args.command {
        Command::Link { dir } => link(dir),
    }
}

/// Does nothing when the link is there already.
fn link(dir: &Path) -> anyhow::Result<Exit> {
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    let path = dir.join(STACYVM);
    if std::fs::read_link(&path).is_ok_and(|target| target == program) {
        output::line(format!("{} already links to {}", path.display(), program.display()))?;
        return Ok(Exit::Ok);
    }
    symlink(&program, &path).map_err(|error| {
        let stop = Stop::new(Exit::Failure, format!("{} could not be created: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => stop.hint("remove the file first, or choose another folder"),
            std::io::ErrorKind::NotFound => stop.hint(format!("create the folder first: mkdir -p {}", dir.display())),
            _ => stop,
        }
    })?;
    output::line(format!("{} links to {}", path.display(), program.display()))?;
    Ok(Exit::Ok)
}

/// Tells the log that the profile is on, and what is not available in it.
pub fn announce(config: &Config) {
    let Some(compat) = &config.compat else { return };
    tracing::info!("the profile {STACYVM} is on: {}", compat.reason);
    for notice in &compat.notices {
        tracing::warn!("{notice}");
    }
}
