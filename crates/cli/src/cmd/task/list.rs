use jiff::Timestamp;
use tenure_client::{Client, TaskFilter};
use tenure_contract::user::Task;
use tenure_contract::words::TaskState;

use crate::cmd::connect::pages;
use crate::cmd::ids;
use crate::exit::Exit;
use crate::output::{self, cell, cell_or_dash, state_cell};
use crate::{times, words};

/// The largest page of the API.
const PAGE_MAX: u32 = 1000;
const NOTE_LENGTH: usize = 60;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only tasks of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only tasks in this state
    #[arg(long, value_name = "STATE", ignore_case = true, value_parser = words::task_state())]
    state: Option<TaskState>,
    /// Only tasks of this operator
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// Only tasks with this tag
    #[arg(long, value_name = "NAME=VALUE", value_parser = tag)]
    tag: Option<String>,
    /// Only tasks of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only tasks of this workspace
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Only tasks of this run
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only tasks whose newest attempt this worker runs or ran
    #[arg(long, value_name = "ID")]
    worker: Option<String>,
    /// Only tasks that failed with this code
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// Only tasks submitted with this credential, as audits name it: key:ID, oidc:SUBJECT, schedule:NAME
    #[arg(long, value_name = "CREDENTIAL")]
    submitted_by: Option<String>,
    /// Only tasks with this idempotency key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only tasks created at or after this point in time, or less than this time ago
    #[arg(long, value_name = "WHEN", value_parser = times::point_or_ago)]
    after: Option<String>,
    /// Only tasks created before this point in time, or longer than this time ago
    #[arg(long, value_name = "WHEN", value_parser = times::point_or_ago)]
    before: Option<String>,
    /// Maximum number to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// List everything, without a limit
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// The API writes tags with a colon; here they look as in `submit`.
fn tag(text: &str) -> Result<String, String> {
    let (name, value) = text.split_once(['=', ':']).ok_or("write it as team=etl")?;
    Ok(format!("{name}:{value}"))
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<Exit> {
    let run = match &args.run {
        Some(run) => Some(ids::run(client, run).await?),
        None => None,
    };
    let filter = TaskFilter {
        queue: args.queue,
        state: args.state,
        operator: args.operator,
        tenant: args.tenant,
        workspace: args.workspace,
        tag: args.tag,
        run,
        idempotency_key: args.key,
        worker: args.worker,
        error_code: args.error_code,
        submitted_by: args.submitted_by,
        created_after: args.after,
        created_before: args.before,
        ..TaskFilter::default()
    };
    let page = pages((!args.all).then_some(args.limit), PAGE_MAX, async |limit, cursor| {
        client.list(&TaskFilter { limit: Some(limit), cursor, ..filter.clone() }).await
    });
    output::page(&page.await?, json, "No tasks.", |tasks| table(tasks, Timestamp::now()))?;
    Ok(Exit::Ok)
}

fn table(tasks: &[Task], now: Timestamp) -> String {
    let rows = tasks.iter().map(|task| {
        vec![
            cell(&task.task_id),
            cell(&task.queue),
            cell(&task.operator),
            state_cell(task.state.as_str()),
            cell(format!("{}/{}", task.attempt, task.max_attempts)),
            cell(times::age(&task.created_at, now)),
            cell_or_dash(note(task, now)),
        ]
    });
    output::table(&["TASK", "QUEUE", "OPERATOR", "STATE", "ATTEMPT", "AGE", "NOTE"], rows)
}

/// The one thing that is worth knowing about a task in this state.
fn note(task: &Task, now: Timestamp) -> Option<String> {
    let note = match task.state {
        TaskState::Scheduled => format!("due {}", times::distance(&task.run_at, now)),
        TaskState::Running if task.not_started.is_some() => task.not_started.clone()?,
        TaskState::Running => {
            let worker = task.worker_id.as_deref().unwrap_or("?");
            let progress = task.progress_pct.map_or_else(String::new, |pct| format!(" {pct} %"));
            let cancel = if task.cancel_requested { " (cancel requested)" } else { "" };
            format!("{worker}{progress}{cancel}")
        }
        TaskState::Failed => {
            let error = task.error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
            error.or_else(|| task.reason.clone())?
        }
        TaskState::Canceled => task.cancel_reason.clone()?,
        _ => return None,
    };
    Some(output::shortened(&note, NOTE_LENGTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(state: &str) -> Task {
        let json = format!(
            r#"{{"task_id":"018c","queue":"etl","operator":"extract","state":"{state}","priority":5,"attempt":2,
                "max_attempts":3,"fence":8,"payload":{{}},"tags":{{}},"tenant":"default","workspace":"default",
                "cancel_requested":false,"created_at":"2025-01-15T10:00:00Z","run_at":"2025-01-15T10:05:00Z",
                "error":{{"code":"HTTP_503","message":"busy\u001b[2J"}},"worker_id":"w-1","progress_pct":40}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn a_row_says_what_matters_in_its_state() {
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let note = |state| note(&task(state), now);
        assert_eq!(note("Scheduled").unwrap(), "due in 4m");
        assert_eq!(note("Running").unwrap(), "w-1 40 %");
        assert_eq!(note("Failed").unwrap(), "HTTP_503: busy\u{fffd}[2J");
        assert_eq!(note("Succeeded"), None);
    }

    #[test]
    fn the_table_is_plain_off_a_terminal() {
        console::set_colors_enabled(false);
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let text = table(&[task("Running")], now);
        assert_eq!(
            text,
            "TASK  QUEUE  OPERATOR  STATE    ATTEMPT  AGE  NOTE\n018c  etl    extract   Running  2/3      60s  w-1 40 %"
        );
    }

    #[test]
    fn tags_are_written_as_the_api_wants_them() {
        assert_eq!(tag("team=etl").unwrap(), "team:etl");
        assert!(tag("team").is_err());
    }
}
