//! `tenure worker token revoke` and `tenure worker token revoked`

use anyhow::Context;
use tenure_contract::admin::Revocations;

use crate::cmd::connect::ClientArgs;
use crate::exit::{CODES, Exit};
use crate::output::{self, clean};

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct RevokeArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Id of the token: `tenure worker token inspect` shows it
    #[arg(value_name = "TOKEN-ID")]
    id: String,
}

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct RevokedArgs {
    #[command(flatten)]
    client: ClientArgs,
}

pub async fn revoke(args: RevokeArgs) -> anyhow::Result<Exit> {
    let client = args.client.client()?;
    client.revoke_worker_token(&args.id).await.context("the token was not revoked")?;
    // The answer of the API has no body.
    if !args.client.json {
        output::line(format!("Worker token {} is revoked.", clean(&args.id)))?;
    }
    Ok(Exit::Ok)
}

pub async fn revoked(args: RevokedArgs) -> anyhow::Result<Exit> {
    let items = args.client.client()?.revoked_worker_tokens().await?;
    if args.client.json {
        output::json(&Revocations { items })?;
    } else if items.is_empty() {
        output::line("No revoked worker tokens that would otherwise still be valid.")?;
    } else {
        for id in items {
            output::line(clean(&id))?;
        }
    }
    Ok(Exit::Ok)
}
