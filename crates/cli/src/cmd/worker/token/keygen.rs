//! `tenure worker token keygen`

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::NamedTempFile;
use tenure_auth::worker::PrivateKey;

use crate::exit::{Exit, Stop};
use crate::output;

/// Makes an Ed25519 key pair and prints the public key. The private key is for the control plane alone; workers and
/// others that verify need the public one. A file that exists is never overwritten.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// New file for the private key, as PKCS#8 in PEM, readable for its owner only
    #[arg(long, value_name = "FILE")]
    private_key_file: PathBuf,
    /// New file for the public key, as base64url
    #[arg(long, value_name = "FILE")]
    public_key_file: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Exit> {
    let private = PrivateKey::random();
    let public = private.public().to_string();
    let pem = private.to_pem().context("the private key could not be written as PEM")?;
    let private_path = &args.private_key_file;
    // Both are written before either has its name, so that a full disk leaves none.
    let private_file = prepared(private_path, pem.reveal(), 0o600)?;
    let public_file = match &args.public_key_file {
        Some(path) => Some((prepared(path, &public, 0o644)?, path)),
        None => None,
    };
    place(private_file, private_path)?;
    if let Some((file, path)) = public_file
        && let Err(error) = place(file, path)
    {
        // A private key without its public half is of no use, and this one is ours.
        std::fs::remove_file(private_path).with_context(|| format!("{} remains", private_path.display()))?;
        return Err(error);
    }
    output::line(public)?;
    Ok(Exit::Ok)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A temporary file beside `path` with the text in it.
fn prepared(path: &Path, text: &str, mode: u32) -> anyhow::Result<NamedTempFile> {
    let write = || -> io::Result<NamedTempFile> {
        // Temporary files are made with mode 0600.
        let mut file = NamedTempFile::new_in(folder_of(path))?;
        writeln!(file, "{text}")?;
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    write().map_err(|error| Stop::usage(format!("{} could not be written: {error}", path.display())).into())
}

fn place(file: NamedTempFile, path: &Path) -> anyhow::Result<()> {
    match file.persist_noclobber(path) {
        Ok(_) => File::open(folder_of(path))
            .and_then(|folder| folder.sync_all())
            .with_context(|| format!("{} may not survive a crash", path.display())),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            let stop = Stop::usage(format!("{} exists, and keys are never overwritten", path.display()));
            Err(stop.hint("name another file, or move this one away").into())
        }
        Err(error) => Err(error.error).with_context(|| format!("{} could not be written", path.display())),
    }
}
