//! `tenure bundle`

use std::path::{Path, PathBuf};

use anyhow::Context;
use tenure_bundle::limits::BUNDLE_BYTES;
use tenure_bundle::{Archive, Language, Options, PackError};
use tenure_client::dags::Bundle;

use super::connect::ClientArgs;
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, Card, clean};

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Upload a folder or a zip file as a bundle
    Push(PushArgs),
    /// Show a bundle
    Show(ShowArgs),
    /// Remove a bundle that no deployed job runs
    Rm(ShowArgs),
}

const PUSH_DETAILS: &str = "\
A folder becomes a zip file with a manifest: all its files, but .git, .venv and __pycache__. The same files are the same \
bundle, whose id stays. A `bundle_manifest.json` in the folder may set runtime, entrypoint and env_allowlist; its list of \
files is made anew. A zip file is checked and sent as it is.

Examples:
  tenure bundle push ./detect
  tenure bundle push ./detect --entrypoint src/main.py --env THRESHOLD
  tenure bundle push detect.zip";

#[derive(Debug, clap::Args)]
#[command(after_help = PUSH_DETAILS)]
struct PushArgs {
    /// Folder or zip file
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// node or python [default: as the entrypoint is named]
    #[arg(long, value_name = "RUNTIME", value_parser = language)]
    runtime: Option<Language>,
    /// File that runs [default: index.js, index.mjs, index.cjs, main.py, index.py or app.py]
    #[arg(long, value_name = "FILE")]
    entrypoint: Option<String>,
    /// Variable that a job may set; repeatable
    #[arg(long = "env", value_name = "NAME")]
    env: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Id of the bundle
    #[arg(value_name = "BUNDLE_ID")]
    id: String,
}

fn language(text: &str) -> Result<Language, String> {
    Language::parse(text).ok_or_else(|| "use node or python".to_owned())
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    let bundle = match args.command {
        Command::Push(args) => {
            let zip = read(args)?;
            client.upload_bundle(zip).await.context("the bundle was not uploaded")?
        }
        Command::Show(args) => client.bundle(&args.id).await?,
        Command::Rm(args) => {
            client.remove_bundle(&args.id).await.context("the bundle was not removed")?;
            if json {
                output::json(&serde_json::json!({ "bundle_id": args.id, "removed": true }))?;
            } else {
                output::line(format!("removed bundle {}", clean(&args.id)))?;
            }
            return Ok(Exit::Ok);
        }
    };
    if json {
        output::json(&bundle)?;
    } else {
        output::line(card(&bundle))?;
    }
    Ok(Exit::Ok)
}

fn read(args: PushArgs) -> anyhow::Result<Vec<u8>> {
    let shown = args.path.display().to_string();
    if args.path.is_dir() {
        let env_allowlist = (!args.env.is_empty()).then_some(args.env);
        let options = Options { runtime: args.runtime, entrypoint: args.entrypoint, env_allowlist };
        return tenure_bundle::pack(&args.path, &options).map_err(|error| match error {
            PackError::Read { .. } => anyhow::Error::new(error),
            error => Stop::usage(format!("{shown} cannot be a bundle: {error}")).into(),
        });
    }
    if args.runtime.is_some() || args.entrypoint.is_some() || !args.env.is_empty() {
        let hint = "--runtime, --entrypoint and --env are for folders";
        return Err(Stop::usage(format!("{shown} is a file: its manifest says how it runs")).hint(hint).into());
    }
    checked(&args.path, &shown)
}

/// What the server would refuse is refused here, before it is sent.
fn checked(path: &Path, shown: &str) -> anyhow::Result<Vec<u8>> {
    let unreadable = || format!("{shown} cannot be read");
    let bytes = std::fs::metadata(path).with_context(unreadable)?.len();
    if bytes > BUNDLE_BYTES {
        return Err(Stop::usage(format!("{shown} has more than {BUNDLE_BYTES} bytes")).into());
    }
    let zip = std::fs::read(path).with_context(unreadable)?;
    let archive = Archive::open(zip.as_slice(), zip.len() as u64);
    let archive = archive.and_then(|archive| archive.check());
    archive.map_err(|error| Stop::usage(format!("{shown} is not a bundle: {error}")))?;
    Ok(zip)
}

fn card(bundle: &Bundle) -> String {
    let mut card = Card::default();
    card.row("bundle", clean(&bundle.bundle_id));
    card.row("runtime", clean(&bundle.runtime));
    card.row("entrypoint", clean(&bundle.entrypoint));
    card.row("files", bundle.files.to_string());
    card.row("bytes", bundle.bytes.to_string());
    card.row("sha256", clean(&bundle.sha256));
    card.render().trim_end().to_owned()
}
