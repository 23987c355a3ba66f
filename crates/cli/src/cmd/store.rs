//! `tenure backup`, `tenure restore` and `tenure store copy`

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Subcommand;
use tenure_config::StoreUrl;
use tenure_engine::store::{self, Copied, CopyError};

use super::control_plane::PlaceArgs;
use crate::exit::{Exit, Stop};
use crate::output;

/// More than any store grants while a backup is its newest one.
const RAISE: i64 = 1_000_000;

const BACKUP_DETAILS: &str = "\
The backup is one SQLite file, also that of a Postgres store. It holds the state of one moment, may be made while servers run,
and is compared with the store before it gets its name. It has payloads, results and lease tokens: keep it secret.
Not in it: keys and tokens in the data folder, outputs in the object store, and tables of buffered datasets.";

#[derive(Debug, clap::Args)]
#[command(after_help = BACKUP_DETAILS)]
pub struct BackupArgs {
    /// New file for the backup
    file: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
}

const RESTORE_DETAILS: &str = "\
Stop all servers and workers first. The store must not exist yet, or be an empty Postgres database; `--replace` moves the files
of an SQLite store away. What happened after the backup is forgotten: see docs/operations/backup.md.";

#[derive(Debug, clap::Args)]
#[command(after_help = RESTORE_DETAILS)]
pub struct RestoreArgs {
    /// Backup to restore
    file: PathBuf,
    /// Keep the files of the present SQLite store under another name
    #[arg(long)]
    replace: bool,
    /// Add this to all fences, so that none is granted again that a worker had after the backup
    #[arg(long, value_name = "N", default_value_t = RAISE, value_parser = clap::value_parser!(i64).range(0..=1_000_000_000_000))]
    raise_fences: i64,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

const COPY_DETAILS: &str = "\
An address is sqlite:PATH or postgres://USER@HOST/DATABASE; @FILE reads it from a file, so that others on the machine do not see
its password. The copy is of one moment. Stop all servers before you move to it: what they do later is not in it.

Examples:
  tenure store copy sqlite:/var/lib/tenure/tenure.db @postgres-address
  tenure store copy @postgres-address sqlite:laptop.db";

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Copy all of a store to another one, and compare the two
    #[command(after_help = COPY_DETAILS)]
    Copy {
        /// Store to copy
        #[arg(value_parser = address)]
        from: StoreUrl,
        /// New SQLite file, or empty Postgres database
        #[arg(value_parser = address)]
        to: StoreUrl,
        /// Add this to all fences of the copy
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..=1_000_000_000_000))]
        raise_fences: i64,
    },
}

/// The address of a store, or the name of a file that has it. The address is not part of any message.
fn address(text: &str) -> Result<StoreUrl, String> {
    match text.strip_prefix('@') {
        None => StoreUrl::parse(text),
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"))?;
            StoreUrl::parse(text.trim())
        }
    }
}

pub async fn backup(args: BackupArgs) -> anyhow::Result<Exit> {
    let from = args.place.load()?.store_url();
    let began = Instant::now();
    let copied = copy(&from, &StoreUrl::sqlite(&args.file), 0).await.map_err(|error| match error {
        CopyError::Exists(_) => explained(error, "choose another name: a backup is never overwritten"),
        CopyError::NoSource(_) => explained(error, "name the store with --store, --data or --config"),
        error => stopped(error),
    })?;
    let bytes = std::fs::metadata(&args.file).map(|file| file.len()).unwrap_or_default();
    done(&format!("Backed up {from} to {} ({bytes} bytes)", args.file.display()), copied, began)
}

pub async fn restore(args: RestoreArgs) -> anyhow::Result<Exit> {
    let RestoreArgs { file, replace, raise_fences, place } = args;
    let to = place.load()?.store_url();
    let from = StoreUrl::sqlite(&file);
    let began = Instant::now();
    let copied = match to.path().filter(|path| replace && path.exists()) {
        Some(path) => {
            refuse_in_use(&to, path).await?;
            let new = suffixed(path, ".restored");
            let copied = copy(&from, &StoreUrl::sqlite(&new), raise_fences).await.map_err(of_restore)?;
            // A server may have been started while the copy was made.
            refuse_in_use(&to, path).await.inspect_err(|_| drop(std::fs::remove_file(&new)))?;
            let kept = put_away(path)?;
            std::fs::rename(&new, path).with_context(|| format!("{} cannot be put in place", new.display()))?;
            eprintln!("The store from before is kept as {}", kept.display());
            copied
        }
        None => {
            let folder = to.path().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|_| file.exists()) {
                let mut builder = std::fs::DirBuilder::new();
                let made = builder.recursive(true).mode(0o700).create(folder);
                made.with_context(|| format!("{} cannot be created", folder.display()))?;
            }
            copy(&from, &to, raise_fences).await.map_err(of_restore)?
        }
    };
    done(&format!("Restored {} to {to}, fences raised by {raise_fences}", file.display()), copied, began)
}

pub async fn run(args: StoreArgs) -> anyhow::Result<Exit> {
    let StoreCommand::Copy { from, to, raise_fences } = args.command;
    let began = Instant::now();
    let copied = copy(&from, &to, raise_fences).await.map_err(stopped)?;
    done(&format!("Copied {from} to {to}"), copied, began)
}

fn done(what: &str, copied: Copied, began: Instant) -> anyhow::Result<Exit> {
    let Copied { tables, rows } = copied;
    let seconds = began.elapsed().as_secs_f64();
    output::line(format!("{what}: {rows} rows of {tables} tables, compared, in {seconds:.1} s."))?;
    Ok(Exit::Ok)
}

async fn copy(from: &StoreUrl, to: &StoreUrl, raise_fences: i64) -> Result<Copied, CopyError> {
    store::copy(from.reveal(), to.reveal(), raise_fences).await
}

fn of_restore(error: CopyError) -> anyhow::Error {
    match error {
        CopyError::NoSource(path) => {
            let message = format!("{}: there is no such backup", path.display());
            Stop::new(Exit::NotFound, message).hint("name the file that `tenure backup` wrote").into()
        }
        CopyError::Exists(path) => {
            let message = format!("{}: this store already exists", path.display());
            Stop::usage(message).hint("--replace moves it away first; --data and --store name another place").into()
        }
        error => stopped(error),
    }
}

fn stopped(error: CopyError) -> anyhow::Error {
    let hint = match &error {
        CopyError::NoSource(_) => "check the address of the store to copy",
        CopyError::Exists(_) => "choose another name, or move it away",
        CopyError::NotEmpty(_) => "create an empty database: createdb tenure_restored",
        CopyError::Schema { .. } => "use the binary that wrote it",
        CopyError::Same => "name two stores",
        CopyError::Differs { .. } => "try again; if it happens again, check the disk of both",
        CopyError::Store(error) if error.is_transient() => "check that the store can be reached and written",
        CopyError::Store(_) => "run `tenure doctor` on the store",
    };
    explained(error, hint)
}

fn explained(error: CopyError, hint: &str) -> anyhow::Error {
    let exit = match &error {
        CopyError::NoSource(_) => Exit::NotFound,
        CopyError::Exists(_) | CopyError::NotEmpty(_) | CopyError::Schema { .. } | CopyError::Same => Exit::Usage,
        CopyError::Store(error) if error.is_transient() => Exit::Unavailable,
        CopyError::Differs { .. } | CopyError::Store(_) => Exit::Failure,
    };
    let message = match &error {
        CopyError::Store(error) => error.chain(),
        other => other.to_string(),
    };
    Stop::new(exit, message).hint(hint).into()
}

async fn refuse_in_use(url: &StoreUrl, path: &Path) -> anyhow::Result<()> {
    match store::inspect(url.reveal()).await {
        Ok(Some(inspection)) if inspection.in_use => {
            let message = format!("{} is open in a server", path.display());
            Err(Stop::new(Exit::Refused, message).hint("stop it first; nothing was changed").into())
        }
        // A store that cannot be read is a reason to restore it.
        _ => Ok(()),
    }
}

/// Renames the files of an SQLite store. A log that stayed would be taken for that of the restored file.
fn put_away(path: &Path) -> anyhow::Result<PathBuf> {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    let kept = suffixed(path, &format!(".before-{now}"));
    for suffix in ["-wal", "-shm", ""] {
        let old = suffixed(path, suffix);
        if old.exists() {
            std::fs::rename(&old, suffixed(&kept, suffix))
                .with_context(|| format!("{} cannot be moved away", old.display()))?;
        }
    }
    Ok(kept)
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
