//! `tenure worker token`

mod keygen;
mod keys;
mod mint;
mod plan;
mod revoke;
mod show;

use std::io::Read;

use serde::Serialize;
use tenure_auth::worker::{Audience, Refusal, Scope, TOKEN_BYTES_MAX};

use crate::exit::{Exit, Stop};
use crate::output;

const DETAILS: &str = "\
The key is the first of --private-key-file (Ed25519), --signing-key-file, --signing-key, \
TENURE_AUTH__WORKER_SIGNING_KEY (HMAC), and the configuration. Put `--` before a worker id that equals the name of a \
subcommand.

Exit codes:
  0  done
  1  the token is refused or malformed
  2  wrong flags, values or configuration";

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = DETAILS)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    mint: mint::MintArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the contents of a token without verifying it
    Inspect(show::InspectArgs),
    /// Verify a token and print its contents
    Verify(show::VerifyArgs),
    /// Print the steps for rotating the signing key without refusing valid tokens
    RotationPlan(plan::Args),
    /// Create an Ed25519 key pair
    Keygen(keygen::Args),
    /// Revoke a token before it expires
    Revoke(revoke::RevokeArgs),
    /// List revoked tokens
    Revoked(revoke::RevokedArgs),
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        None => mint::run(args.mint),
        Some(Command::Inspect(args)) => show::inspect(args),
        Some(Command::Verify(args)) => show::verify(args),
        Some(Command::RotationPlan(args)) => plan::run(args),
        Some(Command::Keygen(args)) => keygen::run(args),
        Some(Command::Revoke(args)) => revoke::revoke(args).await,
        Some(Command::Revoked(args)) => revoke::revoked(args).await,
    }
}

fn audience(text: &str) -> Result<Audience, String> {
    Audience::parse(text).ok_or_else(|| format!("an audience is {}", Audience::ALL.map(Audience::as_str).join(" or ")))
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).ok_or_else(|| format!("the scopes are {}", Scope::ALL.map(Scope::as_str).join(", ")))
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// RFC 3339 in UTC.
fn time(seconds: i64) -> anyhow::Result<String> {
    let point = jiff::Timestamp::from_second(seconds)
        .map_err(|_| Stop::new(Exit::Failure, "the token contains a timestamp after year 9999"))?;
    Ok(point.to_string())
}

/// Two spaces per level. Control characters of others do not reach the terminal: the writer escapes all but these.
fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = String::new();
    for c in serde_json::to_string_pretty(value)?.chars() {
        match c {
            '\u{7f}'..='\u{9f}' => text += &format!("\\u{:04x}", u32::from(c)),
            c => text.push(c),
        }
    }
    output::line(text)
}

/// The token, from the command line or from standard input.
fn read_token(argument: &str) -> anyhow::Result<String> {
    if argument != "-" {
        return Ok(argument.trim().to_owned());
    }
    let mut bytes = Vec::new();
    // White space around it is not counted, but there has to be an end.
    let limit = 2 * TOKEN_BYTES_MAX as u64;
    std::io::stdin()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Stop::usage(format!("standard input could not be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| Stop::new(Exit::Failure, "standard input is not valid UTF-8"))?;
    match text.trim() {
        "" => Err(Stop::new(Exit::Failure, "standard input is empty").hint("pipe a token into it").into()),
        token => Ok(token.to_owned()),
    }
}

fn refused(refusal: Refusal) -> Stop {
    Stop::new(Exit::Failure, refusal.to_string())
}
