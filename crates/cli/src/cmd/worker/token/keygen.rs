//! `tenure worker token keygen`

use std::path::PathBuf;

use anyhow::Context;
use tenure_auth::worker::PrivateKey;

use crate::exit::Exit;
use crate::files::NewFiles;
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
    let mut files = NewFiles::default();
    files.add(&args.private_key_file, pem.reveal(), 0o600)?;
    if let Some(path) = &args.public_key_file {
        files.add(path, &public, 0o644)?;
    }
    files.place()?;
    output::line(public)?;
    Ok(Exit::Ok)
}
