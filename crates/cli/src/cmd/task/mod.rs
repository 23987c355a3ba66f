//! `tenure task`

mod card;
mod list;
mod logs;
mod steer;
mod submit;
mod watch;

use tenure_contract::user::Task;
use tenure_contract::words::TaskState;

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
    /// Submit one task, or many from a file
    Submit(Box<submit::Args>),
    /// List tasks, newest first
    List(Box<list::Args>),
    /// Show one task
    Show(One),
    /// Follow a task until it ends
    #[command(after_help = CODES)]
    Watch(One),
    /// Show every attempt of a task, including late reports
    Attempts(One),
    /// Explain why a task is not running
    Why(One),
    /// Show what a task printed and logged
    Logs(logs::Args),
    /// Cancel a task
    Cancel(steer::CancelArgs),
    /// Retry a failed or canceled task
    Retry(One),
}

/// One task by its id.
#[derive(Debug, clap::Args)]
struct One {
    /// Id of the task: a UUID, or a ULID with or without `task_`
    #[arg(value_name = "TASK")]
    id: String,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::Submit(args) => submit::run(&client, *args, json).await,
        Command::List(args) => list::run(&client, *args, json).await,
        Command::Show(one) => card::show(&client, &ids::task(&client, &one.id).await?, json).await,
        Command::Watch(one) => watch::run(&client, &ids::task(&client, &one.id).await?, json).await,
        Command::Attempts(one) => card::attempts(&client, &ids::task(&client, &one.id).await?, json).await,
        Command::Why(one) => card::why(&client, &ids::task(&client, &one.id).await?, json).await,
        Command::Logs(args) => logs::run(&client, args, json).await,
        Command::Cancel(args) => steer::cancel(&client, args, json).await,
        Command::Retry(one) => steer::retry(&client, &ids::task(&client, &one.id).await?, json).await,
    }
}

/// What the end of a task means for the caller.
fn exit_of(task: &Task) -> Exit {
    match task.state {
        TaskState::Failed => Exit::TaskFailed,
        TaskState::Canceled | TaskState::Skipped => Exit::TaskCanceled,
        _ => Exit::Ok,
    }
}
