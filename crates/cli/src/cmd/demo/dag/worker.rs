//! The workers of the demo: this program again, as a process of its own.

use std::path::PathBuf;

use tenure_client::TaskError;
use tenure_client::dispatch::{Output, Task, Worker};
use tenure_config::Logging;

use super::plan::{self, Wanted};
use crate::cmd::worker::stop_at_end_of_input;
use crate::exit::Exit;
use crate::{logging, signals};

/// Tasks that a worker runs at a time.
const CONCURRENCY: usize = 4;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    server: String,
    #[arg(long)]
    token_file: PathBuf,
    #[arg(long)]
    name: String,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    logging::start(Logging { level: "info", access: false, format: None })?;
    let stop = signals::stop_on_signal()?;
    stop_at_end_of_input(stop.clone());
    let worker = Worker::new(args.server)
        .shared_token_file(args.token_file)
        .worker_id(args.name)
        .concurrency(CONCURRENCY)
        .operator("read", read)
        .operator("power", power)
        .operator("sum", sum);
    worker.run_until(stop.cancelled()).await?;
    Ok(Exit::Ok)
}

/// Writes the numbers of a range: the one that a manual source was fired with, or the minute of a cron slot.
async fn read(task: Task) -> Result<Output, TaskError> {
    let wanted: Wanted = task.trigger()?;
    let (start, end) = wanted.range().ok_or_else(|| TaskError::data_quality("the trigger has no range"))?;
    if wanted.holds() && task.attempt() == 1 {
        // Nobody hears of this attempt again: its worker is killed.
        let reason = task.cancelled().await;
        return Err(TaskError::cancelled(reason.to_string()));
    }
    let numbers: Vec<_> = (start..=end).map(|number| number.to_string()).collect();
    write(&task, "numbers.txt", numbers.join("\n")).await?;
    Ok(Output::new(0, (start, end)).rows(end - start + 1))
}

/// Raises each number to the power of the job's config.
async fn power(task: Task) -> Result<Output, TaskError> {
    let plan::Config { power } = task.config()?;
    let (key, text) = input(&task, "numbers.txt").await?;
    let numbers: Result<Vec<u64>, _> = text.lines().map(str::parse).collect();
    let raised: Vec<_> = numbers?.into_iter().map(|number| plan::raised(number, power).to_string()).collect();
    write(&task, "raised.txt", raised.join("\n")).await?;
    Ok(Output::new(0, key))
}

async fn sum(task: Task) -> Result<Output, TaskError> {
    let (key, text) = input(&task, "raised.txt").await?;
    let numbers: Result<Vec<u128>, _> = text.lines().map(str::parse).collect();
    write(&task, plan::SUM, numbers?.into_iter().sum::<u128>().to_string()).await?;
    Ok(Output::new(0, key))
}

/// The key of the partition that the task is for, and a file of it.
async fn input(task: &Task, name: &str) -> Result<(String, String), TaskError> {
    let input = task.inputs().iter().find(|input| input.partition.is_some());
    let input = input.ok_or_else(|| TaskError::data_quality("the task has no partition"))?;
    let key = task.partition(&input.alias)?.partition_key.clone();
    Ok((key, tokio::fs::read_to_string(task.input_folder(&input.alias)?.join(name)).await?))
}

async fn write(task: &Task, name: &str, text: String) -> Result<(), TaskError> {
    let staging = task.writer(0).await?;
    tokio::fs::write(staging.path().join(name), text).await?;
    staging.finish().await
}
