//! `tenure task logs`

use console::style;
use tenure_client::{Client, TaskLogFilter};
use tenure_contract::user::TaskLogLine;

use crate::cmd::ids;
use crate::exit::{CODES, Exit};
use crate::output::{self, clean, dim};

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// Id of the task: a UUID, or a ULID with or without `task_`
    #[arg(value_name = "TASK")]
    id: String,
    /// Go on until the task ends
    #[arg(long, short = 'f')]
    follow: bool,
    /// Lines of this attempt only
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Show the time of each line
    #[arg(long, short = 't')]
    timestamps: bool,
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<Exit> {
    let id = ids::task(client, &args.id).await?;
    let mut filter = TaskLogFilter { attempt: args.attempt, cursor: None, follow: false };
    let (mut attempt, mut any) = (0, false);
    loop {
        let page = client.task_logs(&id, &filter).await?;
        for line in &page.items {
            if json {
                output::line(serde_json::to_string(line)?)?;
                continue;
            }
            if line.attempt != attempt && (attempt > 0 || line.attempt > 1) {
                eprintln!("{}", dim(format!("-- attempt {} --", line.attempt)));
            }
            attempt = line.attempt;
            print(line, args.timestamps)?;
        }
        any |= !page.items.is_empty();
        let is_last = page.next_cursor.is_none();
        filter.cursor = Some(page.follow_cursor);
        if is_last && (!args.follow || page.ended) {
            break;
        }
        filter.follow = is_last;
    }
    if !any && !json {
        eprintln!("{}", dim("No logs. Commands of `tenure worker` and `task.log(…)` of the SDKs write them."));
    }
    Ok(Exit::Ok)
}

fn print(line: &TaskLogLine, timestamps: bool) -> anyhow::Result<()> {
    let text = clean(&line.text);
    let text = if line.stream == "stderr" { style(text).yellow().to_string() } else { text };
    let at = if timestamps { format!("{}  ", dim(clean(&line.at))) } else { String::new() };
    output::line(format!("{at}{text}"))
}
