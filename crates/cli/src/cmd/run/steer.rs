//! Cancel and rerun.

use anyhow::Context;
use tenure_client::Client;
use tenure_client::run::RerunRequest;
use tenure_contract::user::CancelRequest;

use super::{submit, watch};
use crate::exit::Exit;
use crate::output::{self, clean};

#[derive(Debug, clap::Args)]
pub struct CancelArgs {
    /// Id of the run: run_ULID, a bare ULID or a UUID
    #[arg(value_name = "RUN")]
    id: String,
    /// Why; the workers are told [default: user_requested]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Take what runs away at once instead of asking for it
    #[arg(long)]
    now: bool,
}

pub async fn cancel(client: &Client, args: CancelArgs, json: bool) -> anyhow::Result<Exit> {
    let request = CancelRequest { reason: args.reason, mode: args.now.then(|| "immediate".to_owned()) };
    let cancelled = client.cancel_run(&args.id, &request).await.context("the run was not cancelled")?;
    if json {
        output::json(&cancelled)?;
    } else if cancelled.state == "CANCELLING" {
        output::line(format!(
            "Run {}: what has not started has ended, what runs was asked to stop",
            clean(&cancelled.run_id)
        ))?;
    } else {
        output::line(format!("Run {}: {}", clean(&cancelled.run_id), clean(&cancelled.state)))?;
    }
    Ok(Exit::Ok)
}

#[derive(Debug, clap::Args)]
pub struct RerunArgs {
    /// Id of a run that is FAILED or CANCELLED
    #[arg(value_name = "RUN")]
    id: String,
    /// Key of the new run: asking the same again gives the same run
    #[arg(long, value_name = "KEY")]
    run_key: Option<String>,
    /// Follow the new run to its end; the exit code says how it ended
    #[arg(long)]
    wait: bool,
}

pub async fn rerun(client: &Client, args: RerunArgs, json: bool) -> anyhow::Result<Exit> {
    let request = RerunRequest { mode: Some("from_failure".to_owned()), run_key: args.run_key };
    let run = client.rerun(&args.id, &request).await.context("the run was not repeated")?;
    let carried = run.counts.succeeded;
    let said = format!("{}; {carried} carried over", submit::sentence(&run));
    if args.wait {
        if !json {
            eprintln!("{said}");
        }
        return watch::until_end(client, &run.run_id, json).await;
    }
    if json {
        output::json(&run)?;
    } else {
        output::line(said)?;
    }
    Ok(Exit::Ok)
}
