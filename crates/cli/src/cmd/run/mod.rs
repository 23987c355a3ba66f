//! `tenure run`

pub mod file;
mod list;
mod steer;
mod submit;
mod tree;
mod watch;

use tenure_client::RunState;
use tenure_client::run::Run;

use super::connect::ClientArgs;
use super::ids;
use crate::exit::{CODES, Exit};

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Submit a run of dependent tasks from a file
    Submit(submit::Args),
    /// List runs, newest first
    List(list::Args),
    /// Show a run as a tree of its tasks
    Show(tree::Args),
    /// Follow a run until it ends
    #[command(after_help = CODES)]
    Watch(One),
    /// Cancel a run: waiting tasks end, running tasks are asked to stop
    Cancel(steer::CancelArgs),
    /// Rerun a failed or canceled run; succeeded tasks are carried over
    Rerun(steer::RerunArgs),
}

/// One run by its id.
#[derive(Debug, clap::Args)]
struct One {
    /// Id of the run: run_ULID, a bare ULID or a UUID
    #[arg(value_name = "RUN")]
    id: String,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::Submit(args) => submit::run(&client, args, json).await,
        Command::List(args) => list::run(&client, args, json).await,
        Command::Show(args) => tree::run(&client, args, json).await,
        Command::Watch(one) => watch::run(&client, &ids::run(&client, &one.id).await?, json).await,
        Command::Cancel(args) => steer::cancel(&client, args, json).await,
        Command::Rerun(args) => steer::rerun(&client, args, json).await,
    }
}

/// What the end of a run means for the caller.
fn exit_of(run: &Run) -> Exit {
    match run.state {
        RunState::Failed => Exit::TaskFailed,
        RunState::Canceled => Exit::TaskCanceled,
        _ => Exit::Ok,
    }
}

/// How its tasks stand, in words: what there is none of is left out.
fn counts(run: &Run) -> String {
    let counts = &run.counts;
    let some = |count: Option<u32>| count.unwrap_or(0);
    let parts = [
        (counts.succeeded, "succeeded"),
        (counts.failed, "failed"),
        (counts.skipped, "skipped"),
        (counts.canceled, "canceled"),
        (some(counts.running), "running"),
        (some(counts.ready), "ready"),
        (some(counts.scheduled), "scheduled"),
        (some(counts.blocked), "blocked"),
    ];
    let named: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    format!("{} tasks: {}", counts.total, named.join(", "))
}
