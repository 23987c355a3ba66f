//! `tenure config`

use std::path::PathBuf;

use tenure_config::{Check, Config, Flags, Level, StoreUrl, example, lint, show};

use super::control_plane::StoreParser;
use crate::exit::Exit;
use crate::files::NewFiles;
use crate::output::{self, cell};

const LINT_DETAILS: &str = "\
Exits with 0 if no check fails, with 1 if one does, and with 2 if the configuration cannot be loaded. Warnings do not \
count. Secrets are not printed.";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print every key with its value and where it was set; secrets are masked
    Show {
        #[command(flatten)]
        place: FileArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check the configuration for problems
    #[command(after_help = LINT_DETAILS)]
    Lint {
        #[command(flatten)]
        place: FileArgs,
        /// Fail on settings that are unsafe in production
        #[arg(long)]
        production: bool,
    },
    /// Print a file with every key, its meaning and its default
    Example,
    /// Write a file with every key, its meaning and its default
    Init {
        /// New file; one that exists is not overwritten
        #[arg(value_name = "FILE", default_value = "tenure.yaml")]
        file: PathBuf,
    },
}

/// Which configuration is meant.
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// Configuration file [env: TENURE_CONFIG]
    #[arg(long = "config", visible_alias = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Folder for the store and the worker token [default: ~/.tenure]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Store, overriding the database section
    #[arg(long, value_name = "URL", env = "TENURE_STORE", hide_env_values = true, value_parser = StoreParser)]
    store: Option<StoreUrl>,
}

impl FileArgs {
    fn load(self) -> anyhow::Result<Config> {
        Ok(Config::load(Flags { config: self.file, data: self.data, store: self.store, listen: None })?)
    }
}

pub fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        Command::Show { place, json } => print(&place.load()?, json),
        Command::Lint { place, production } => check(&place.load()?, production),
        Command::Example => {
            output::line(example())?;
            Ok(Exit::Ok)
        }
        Command::Init { file } => {
            let mut files = NewFiles::default();
            files.add(&file, &example(), 0o600)?;
            files.place()?;
            output::line(format!(
                "Wrote {}. Every key has its default; remove the `#` from those that you set.",
                file.display()
            ))?;
            Ok(Exit::Ok)
        }
    }
}

fn print(config: &Config, json: bool) -> anyhow::Result<Exit> {
    let shown = show(config);
    if json {
        output::json(&shown)?;
    } else {
        let rows = shown.iter().map(|shown| vec![cell(shown.key), cell(shown.text()), cell(&shown.origin)]);
        output::line(output::table(&["KEY", "VALUE", "ORIGIN"], rows))?;
    }
    Ok(Exit::Ok)
}

fn check(config: &Config, production: bool) -> anyhow::Result<Exit> {
    let checks = lint(config, production);
    let lines: Vec<_> = checks.iter().map(ToString::to_string).collect();
    output::line(format!("{}\n\n{}", lines.join("\n"), summary(&checks)))?;
    match checks.iter().filter(|check| check.level == Level::Fail).count() {
        0 => Ok(Exit::Ok),
        failing => {
            eprintln!("config lint found {failing} failing check(s)");
            Ok(Exit::Failure)
        }
    }
}

/// How many checks found something, and what to change for each of these.
fn summary(checks: &[Check]) -> String {
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    let (failed, warned) = (count(Level::Fail), count(Level::Warn));
    if failed + warned == 0 {
        return format!("Summary: all {} checks passed", checks.len());
    }
    let mut text = format!("Summary: {failed} failed, {warned} warned, {} passed", count(Level::Pass));
    for (level, word) in [(Level::Fail, "FAIL"), (Level::Warn, "WARN")] {
        for check in checks.iter().filter(|check| check.level == level) {
            let keys = check.keys().join(", ");
            text += &match keys.as_str() {
                "" => format!("\n  {word}  {}", check.check),
                keys if keys == check.check => format!("\n  {word}  {keys}"),
                keys => format!("\n  {word}  {}: change {keys}", check.check),
            };
        }
    }
    text
}
