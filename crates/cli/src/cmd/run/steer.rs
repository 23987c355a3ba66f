//! Cancel and rerun.

use anyhow::Context;
use tenure_client::run::RerunRequest;
use tenure_client::{Client, RunState};
use tenure_contract::user::CancelRequest;

use super::{submit, watch};
use crate::cmd::ids;
use crate::exit::Exit;
use crate::output::{self, clean};

#[derive(Debug, clap::Args)]
pub struct CancelArgs {
    /// Id of the run: run_ULID, a bare ULID or a UUID
    #[arg(value_name = "RUN")]
    id: String,
    /// Reason, passed to the workers [default: user_requested]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Revoke the leases of running tasks instead of asking them to stop
    #[arg(long)]
    now: bool,
}

pub async fn cancel(client: &Client, args: CancelArgs, json: bool) -> anyhow::Result<Exit> {
    let request = CancelRequest { reason: args.reason, mode: args.now.then(|| "immediate".to_owned()) };
    let canceled =
        client.cancel_run(&ids::run(client, &args.id).await?, &request).await.context("the run was not canceled")?;
    if json {
        output::json(&canceled)?;
    } else if canceled.state == RunState::Canceling {
        output::line(format!(
            "Run {}: waiting tasks have ended, running tasks were asked to stop",
            clean(&canceled.run_id)
        ))?;
    } else {
        output::line(format!("Run {}: {}", clean(&canceled.run_id), canceled.state))?;
    }
    Ok(Exit::Ok)
}

#[derive(Debug, clap::Args)]
pub struct RerunArgs {
    /// Id of a run that is Failed or Canceled
    #[arg(value_name = "RUN")]
    id: String,
    /// Key of the new run: the same rerun again returns the existing one
    #[arg(long, value_name = "KEY")]
    run_key: Option<String>,
    /// Wait for the new run to end; the exit code reports the outcome
    #[arg(long)]
    wait: bool,
}

pub async fn rerun(client: &Client, args: RerunArgs, json: bool) -> anyhow::Result<Exit> {
    let request = RerunRequest { mode: Some("from_failure".to_owned()), run_key: args.run_key };
    let run = client.rerun(&ids::run(client, &args.id).await?, &request).await.context("the run was not rerun")?;
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
