//! `tenure sandbox image`

use std::path::PathBuf;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;
use tenure_sandbox::{ImageRecord, ImageSource, ImageStore};

use super::providers::Place;
use crate::exit::{Exit, Stop};
use crate::output::{self, cell, number};
use crate::times;

/// As much of a digest as tells images apart.
const DIGEST_LENGTH: usize = 19;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Register a folder, a tar file or an image archive under a name
    Add(AddArgs),
    /// List images
    List,
    /// Remove an image that no sandbox uses
    Rm(RmArgs),
}

const ADD_DETAILS: &str = "\
The files are copied. Devices, FIFOs and sockets are left out, links and paths that lead out of the image are refused. \
A name that exists gets the new image; sandboxes that run keep the old one.

Examples:
  tenure sandbox image add tools ./rootfs
  docker save python:3.13-slim -o python.tar && tenure sandbox image add python:3.13 python.tar
  skopeo copy docker://alpine:latest docker-archive:alpine.tar && tenure sandbox image add alpine alpine.tar";

#[derive(Debug, clap::Args)]
#[command(after_help = ADD_DETAILS)]
struct AddArgs {
    /// Name, with or without a tag
    #[arg(value_name = "NAME")]
    name: String,
    /// Folder with a root file system, its tar file, or the output of `docker save` or `skopeo copy`
    #[arg(value_name = "DIR|TAR")]
    source: PathBuf,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// Name of the image
    #[arg(value_name = "NAME")]
    name: String,
}

/// The answer to `rm --json`.
#[derive(Debug, Serialize)]
struct Removed {
    removed: String,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let config = args.place.load()?;
    let json = args.json;
    let act = move || -> anyhow::Result<()> {
        let store = ImageStore::open(&config.data)?;
        match args.command {
            Command::Add(args) => {
                let added =
                    store.add(&args.name, &args.source).map_err(explained).context("the image was not added")?;
                if json { output::json(&added) } else { output::line(description(&added)) }
            }
            Command::List => {
                let images = store.list()?;
                if json {
                    output::json(&images)
                } else if images.is_empty() {
                    output::line("No images. `host` works without one; add others with `tenure sandbox image add`.")
                } else {
                    output::line(table(&images, Timestamp::now()))
                }
            }
            Command::Rm(args) => {
                store.remove(&args.name).map_err(explained).context("the image was not removed")?;
                if json {
                    output::json(&Removed { removed: args.name })
                } else {
                    output::line(format!("Removed {}.", output::clean(&args.name)))
                }
            }
        }
    };
    tokio::task::spawn_blocking(act).await??;
    Ok(Exit::Ok)
}

/// A wrong name or archive is the caller's to mend.
fn explained(error: tenure_sandbox::Error) -> anyhow::Error {
    match error.kind() {
        tenure_sandbox::ErrorKind::Invalid | tenure_sandbox::ErrorKind::ResourceLimit => {
            Stop::usage(error.to_string()).into()
        }
        tenure_sandbox::ErrorKind::NotFound => Stop::new(Exit::NotFound, error.to_string()).into(),
        _ => error.into(),
    }
}

fn description(image: &ImageRecord) -> String {
    let left_out = match image.skipped {
        0 => String::new(),
        count => format!("; left out {count} devices, FIFOs or sockets"),
    };
    let (name, size) = (output::clean(&image.name), megabytes(image.bytes));
    format!("Added {name}: {} files, {size}, {}{left_out}", image.entries, image.digest)
}

fn table(images: &[ImageRecord], now: Timestamp) -> String {
    let rows = images.iter().map(|image| {
        let source = match image.source {
            ImageSource::Directory => "folder",
            ImageSource::Tar => "tar",
            ImageSource::ImageArchive => "image archive",
        };
        vec![
            cell(&image.name),
            cell(image.digest.chars().take(DIGEST_LENGTH).collect::<String>()),
            cell(source),
            number(image.entries),
            number(megabytes(image.bytes)),
            cell(times::age(&image.created_at, now)),
        ]
    });
    output::table(&["NAME", "DIGEST", "FROM", "FILES", "SIZE", "AGE"], rows)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
