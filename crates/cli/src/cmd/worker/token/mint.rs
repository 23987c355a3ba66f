//! `tenure worker token WORKER_ID`

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tenure_auth::WorkerKeys;
use tenure_auth::worker::{Audience, Format as TokenFormat, MintError, MintRequest, Scope};

use super::{keys, now, print_json, time};
use crate::exit::{Exit, Stop};
use crate::{output, times};

#[derive(Debug, clap::Args)]
pub struct MintArgs {
    /// Worker that the token is for
    #[arg(value_name = "WORKER_ID", required = true)]
    worker_id: Option<String>,
    #[command(flatten)]
    signing: keys::SigningArgs,
    /// File with an Ed25519 private key; creates a tenure-worker-v1 token
    #[arg(long, value_name = "FILE", conflicts_with_all = ["signing_key", "signing_key_file"])]
    private_key_file: Option<PathBuf>,
    /// How long the token is valid, up to 15m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = times::wire)]
    ttl: Duration,
    /// Audience: worker:control-plane or worker:rpc
    #[arg(long, value_name = "NAME", default_value = "worker:control-plane", value_parser = super::audience)]
    audience: Audience,
    /// Id of the token, by which it can be revoked [default: random]
    #[arg(long, value_name = "ID")]
    token_id: Option<String>,
    /// Time from now until the token becomes valid
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = times::wire)]
    not_before: Duration,
    /// Scope that the token grants; repeatable [default: all]
    #[arg(long = "scope", value_name = "SCOPE", value_parser = super::scope)]
    scopes: Vec<Scope>,
    /// Print only the token, or JSON with its contents
    #[arg(long, value_enum, default_value_t = Format::Token)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Token,
    Json,
}

/// In the order in which it is printed.
#[derive(Serialize)]
struct Issued<'a> {
    token: &'a str,
    token_id: &'a str,
    worker_id: &'a str,
    audience: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<&'static str>,
    issued_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<String>,
    expires_at: String,
}

pub fn run(args: MintArgs) -> anyhow::Result<Exit> {
    let worker_id = args.worker_id.as_deref().unwrap_or_default();
    if TokenFormat::of(worker_id).is_some() {
        return Err(Stop::usage("the worker id looks like a token").hint("`inspect` and `verify` take a token").into());
    }
    let (keys, ed25519) = signing_keys(&args)?;
    let wanted = MintRequest {
        ttl: args.ttl,
        scopes: (!args.scopes.is_empty()).then(|| args.scopes.iter().copied().collect()),
        not_before: args.not_before,
        token_id: args.token_id.as_deref(),
        ed25519,
        ..MintRequest::new(worker_id, args.audience, now())
    };
    let minted = keys.mint(&wanted).map_err(explained)?;
    let token = minted.token.reveal();
    match args.format {
        Format::Token => output::line(token)?,
        Format::Json => print_json(&Issued {
            token,
            token_id: &minted.token_id,
            worker_id: &minted.worker_id,
            audience: minted.audience.as_str(),
            scopes: minted.scopes.into_iter().flat_map(|scopes| scopes.iter().map(Scope::as_str)).collect(),
            issued_at: time(minted.issued_at)?,
            not_before: minted.not_before.map(time).transpose()?,
            expires_at: time(minted.expires_at)?,
        })?,
    }
    Ok(Exit::Ok)
}

/// The keys, and whether the token is to be an Ed25519 one. Of two configured keys the HMAC key signs, because every
/// verifier of the contract knows that form.
fn signing_keys(args: &MintArgs) -> anyhow::Result<(WorkerKeys, bool)> {
    if let Some(path) = &args.private_key_file {
        let private = keys::private_key_in("--private-key-file", path)?;
        return Ok((WorkerKeys { private: Some(private), ..WorkerKeys::default() }, true));
    }
    if let Some(active) = args.signing.given()? {
        return Ok((WorkerKeys { active: Some(active), ..WorkerKeys::default() }, false));
    }
    let configured = keys::configured()?.keys;
    let ed25519 = configured.active.is_none();
    Ok((configured, ed25519))
}

fn explained(error: MintError) -> Stop {
    let stop = Stop::usage(error.to_string());
    match error {
        MintError::NoKey => stop.hint("give --signing-key-file or --private-key-file, or set auth.worker_signing_key"),
        MintError::NotBefore => stop.hint("--not-before must be shorter than --ttl"),
        _ => stop,
    }
}
