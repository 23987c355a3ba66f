use anyhow::Context;
use tenure_client::Client;
use tenure_contract::user::CancelRequest;
use tenure_contract::words::TaskState;

use crate::cmd::ids;
use crate::exit::Exit;
use crate::output;

const DETAILS: &str = "\
A waiting task ends at once. A worker that runs the task is told with its next heartbeat and has a grace \
period to stop.";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub struct CancelArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    id: String,
    /// Reason, recorded with the task [default: user_requested]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Revoke the worker's lease instead of asking it to stop
    #[arg(long)]
    immediate: bool,
}

pub async fn cancel(client: &Client, args: CancelArgs, json: bool) -> anyhow::Result<Exit> {
    let mode = args.immediate.then(|| "immediate".to_owned());
    let request = CancelRequest { reason: args.reason, mode };
    let canceled =
        client.cancel(&ids::task(client, &args.id).await?, &request).await.context("the task was not canceled")?;
    if json {
        output::json(&canceled)?;
    } else if canceled.state == TaskState::Canceled {
        output::line(format!("Task {} is canceled.", canceled.task_id))?;
    } else {
        output::line(format!(
            "Task {} is {}; its worker was asked to stop. Follow it with `tenure task watch`.",
            canceled.task_id, canceled.state
        ))?;
    }
    Ok(Exit::Ok)
}

pub async fn retry(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    let retried = client.retry(id).await.context("the task was not retried")?;
    if json {
        output::json(&retried)?;
    } else {
        output::line(format!(
            "Task {} is {} again: attempts so far: {} of {}.",
            retried.task_id, retried.state, retried.attempt, retried.max_attempts
        ))?;
    }
    Ok(Exit::Ok)
}
