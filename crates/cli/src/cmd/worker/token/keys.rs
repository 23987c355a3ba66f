//! Where keys come from: flags, files, the environment, the configuration.

use std::path::{Path, PathBuf};

use tenure_auth::worker::{KeyError, PrivateKey, PublicKey, SigningKey};
use tenure_auth::{Secret, WorkerAuth};
use tenure_config::{Config, Flags};

use crate::exit::Stop;

const VARIABLE: &str = "TENURE_AUTH__WORKER_SIGNING_KEY";

#[derive(Debug, clap::Args)]
pub struct SigningArgs {
    /// Signing key; visible to other users of this machine, so prefer the file [env: TENURE_AUTH__WORKER_SIGNING_KEY]
    #[arg(long, value_name = "KEY", value_parser = secret, conflicts_with = "signing_key_file")]
    signing_key: Option<Secret>,
    /// File with the signing key
    #[arg(long, value_name = "FILE")]
    signing_key_file: Option<PathBuf>,
}

impl SigningArgs {
    /// A flag takes precedence over the environment.
    pub fn given(&self) -> anyhow::Result<Option<SigningKey>> {
        if let Some(path) = &self.signing_key_file {
            return signing_key_in("--signing-key-file", path).map(Some);
        }
        let variable = || std::env::var(VARIABLE).ok().and_then(|text| Secret::new(&text));
        let text = self.signing_key.clone().or_else(variable);
        Ok(text.and_then(|text| SigningKey::new(text.reveal())))
    }
}

/// Who the configuration lets in: its keys, and the ids that it revokes.
pub fn configured() -> anyhow::Result<WorkerAuth> {
    Ok(Config::load(Flags::default())?.auth()?.worker)
}

/// A secret on the command line. The message does not quote it.
pub fn secret(text: &str) -> Result<Secret, String> {
    Secret::new(text).ok_or_else(|| "it is blank".to_owned())
}

pub fn signing_key_in(flag: &str, path: &Path) -> anyhow::Result<SigningKey> {
    let text = read(flag, path)?;
    SigningKey::new(&text).ok_or_else(|| wrong(flag, path, KeyError::Empty).into())
}

pub fn private_key_in(flag: &str, path: &Path) -> anyhow::Result<PrivateKey> {
    PrivateKey::parse(&read(flag, path)?).map_err(|error| wrong(flag, path, error).into())
}

pub fn public_key_in(flag: &str, path: &Path) -> anyhow::Result<PublicKey> {
    PublicKey::parse(&read(flag, path)?).map_err(|error| wrong(flag, path, error).into())
}

fn read(flag: &str, path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Stop::usage(format!("{flag} names {}, which could not be read: {error}", path.display())).into()
    })
}

fn wrong(flag: &str, path: &Path, error: KeyError) -> Stop {
    Stop::usage(format!("{flag} names {}, which {error}", path.display()))
}
