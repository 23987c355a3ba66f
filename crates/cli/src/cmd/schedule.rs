//! `tenure schedule`

use std::collections::BTreeMap;

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::{Client, Json};
use tenure_contract::user::{Page, Schedule, ScheduleFiring, ScheduleSubmission, TaskSubmission};

use super::confirm;
use super::connect::{ClientArgs, all_pages, text_or_file};
use super::run::file;
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, Card, cell, cell_or_dash, clean, number};
use crate::times;

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
    /// Create a schedule that submits a task or a run
    Create(Box<CreateArgs>),
    /// List schedules
    List,
    /// Show a schedule with its next slots and its last firings
    Show(One),
    /// Pause a schedule: slots that pass meanwhile are not fired
    Pause(One),
    /// Resume a paused schedule; it continues with the next slot
    Resume(One),
    /// Delete a schedule; tasks that it has submitted continue
    Rm(RmArgs),
    /// Submit the task or run of a schedule now
    Trigger(TriggerArgs),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name or id of the schedule
    #[arg(value_name = "SCHEDULE")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// Name or id of the schedule
    #[arg(value_name = "SCHEDULE")]
    name: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct TriggerArgs {
    /// Name or id of the schedule
    #[arg(value_name = "SCHEDULE")]
    name: String,
    /// Name of this request: the same one again submits nothing new
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

const CREATE_DETAILS: &str = "\
Cron expressions have five fields: minute, hour, day of month, month, day of week. `rate(5 minutes)` and --every count \
elapsed time. A fixed time that a clock change leaves out fires right after the change; one that comes twice fires once.

Examples:
  tenure schedule create nightly --cron '0 2 * * *' --timezone Europe/Paris etl extract --payload '{\"full\":true}'
  tenure schedule create poll --every 30s --overlap skip etl poll
  tenure schedule create report --cron '0 6 * * MON-FRI' --run report.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = CREATE_DETAILS)]
struct CreateArgs {
    /// Name of the schedule, unique in the tenant
    #[arg(value_name = "NAME")]
    name: String,
    /// Queue to put the task into
    #[arg(required_unless_present_any = ["task", "run"])]
    queue: Option<String>,
    /// Operator that runs it
    #[arg(required_unless_present_any = ["task", "run"])]
    operator: Option<String>,
    /// When it fires: five cron fields, or rate(N minutes|hours|days)
    #[arg(long, value_name = "EXPR", required_unless_present = "every", conflicts_with = "every")]
    cron: Option<String>,
    /// Time between two firings
    #[arg(long, value_name = "TIME", value_parser = times::seconds)]
    every: Option<i64>,
    /// Time zone of the cron expression [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// What happens to slots that nothing could fire in time: latest, none or all [default: latest]
    #[arg(long, value_name = "MODE")]
    catch_up: Option<String>,
    /// What happens to a slot while the last task or run continues: skip, queue or cancel_old [default: skip]
    #[arg(long, value_name = "MODE")]
    overlap: Option<String>,
    /// Fire each slot up to this much later, to spread load
    #[arg(long, value_name = "TIME", value_parser = times::seconds)]
    jitter: Option<i64>,
    /// No firing before this point in time
    #[arg(long, value_name = "WHEN", value_parser = times::point)]
    starts_at: Option<String>,
    /// No firing after this point in time
    #[arg(long, value_name = "WHEN", value_parser = times::point)]
    ends_at: Option<String>,
    /// Create it paused
    #[arg(long)]
    paused: bool,
    /// Tenant; needs a key that may act for it
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Payload of the task: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", conflicts_with_all = ["task", "run"])]
    payload: Option<String>,
    /// Maximum number of attempts of the task [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..), conflicts_with_all = ["task", "run"])]
    max_attempts: Option<i64>,
    /// Tag of the task; repeatable
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = tag, conflicts_with_all = ["task", "run"])]
    tags: Vec<(String, String)>,
    /// The whole task as in the API: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", conflicts_with_all = ["queue", "operator", "run"])]
    task: Option<String>,
    /// Submit a run: a file as of `tenure run submit`, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["queue", "operator"])]
    run: Option<String>,
}

fn tag(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as team=etl")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::Create(args) => {
            let schedule = client.create_schedule(&submission(*args)?).await.context("the schedule was not created")?;
            say(&schedule, json)?;
        }
        Command::List => list(&client, json).await?,
        Command::Show(one) => say(&client.schedule(&one.name).await?, json)?,
        Command::Pause(one) => {
            let paused = client.pause_schedule(&one.name).await.context("the schedule was not paused")?;
            say_state(&paused, json)?;
        }
        Command::Resume(one) => {
            let resumed = client.resume_schedule(&one.name).await.context("the schedule was not resumed")?;
            say_state(&resumed, json)?;
        }
        Command::Rm(args) => remove(&client, args, json).await?,
        Command::Trigger(args) => trigger(&client, &args, json).await?,
    }
    Ok(Exit::Ok)
}

fn submission(args: CreateArgs) -> anyhow::Result<ScheduleSubmission> {
    let (task, run) = match (&args.task, &args.run) {
        (Some(text), _) => (Some(json("--task", text)?), None),
        (None, Some(path)) => (None, Some(run_of(path)?)),
        (None, None) => (Some(task_of(&args)?), None),
    };
    Ok(ScheduleSubmission {
        name: args.name,
        tenant: args.tenant,
        cron: args.cron,
        interval_seconds: args.every,
        timezone: args.timezone,
        catch_up: args.catch_up,
        overlap: args.overlap,
        jitter_seconds: args.jitter,
        paused: args.paused.then_some(true),
        starts_at: args.starts_at,
        ends_at: args.ends_at,
        task,
        run,
    })
}

fn task_of(args: &CreateArgs) -> anyhow::Result<Json> {
    let tags: BTreeMap<_, _> = args.tags.iter().cloned().collect();
    let task = TaskSubmission {
        queue: args.queue.clone().unwrap_or_default(),
        operator: args.operator.clone().unwrap_or_default(),
        payload: args.payload.as_deref().map(|text| json("--payload", text)).transpose()?,
        max_attempts: args.max_attempts,
        tags: (!tags.is_empty()).then_some(tags),
        ..TaskSubmission::default()
    };
    Ok(Json::of(&task)?)
}

fn run_of(path: &str) -> anyhow::Result<Json> {
    let text = if path == "-" { text_or_file("-")? } else { text_or_file(&format!("@{path}"))? };
    let run = file::parse(&text).map_err(|error| Stop::usage(format!("{path} is not a run: {error}")))?;
    Ok(Json::of(&run)?)
}

fn json(flag: &str, argument: &str) -> anyhow::Result<Json> {
    let text = text_or_file(argument)?;
    Json::parse(text.trim()).map_err(|error| {
        let hint = format!("quote it for the shell: {flag} '{{\"day\":\"2025-01-15\"}}'");
        Stop::usage(format!("{flag} is not JSON: {error}")).hint(hint).into()
    })
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let items = all_pages(async |cursor| client.schedules(cursor).await).await?;
    if json {
        output::json(&Page { items, next_cursor: None })
    } else if items.is_empty() {
        output::line("No schedules. Create one with `tenure schedule create`.")
    } else {
        output::line(table(&items, Timestamp::now()))
    }
}

async fn remove(client: &Client, args: RmArgs, json: bool) -> anyhow::Result<()> {
    if !args.yes {
        confirm::require_terminal("use --yes")?;
        let schedule = client.schedule(&args.name).await?;
        confirm::ask(&format!("Delete schedule {}?", clean(&schedule.name)))?;
    }
    let deleted = client.delete_schedule(&args.name).await.context("the schedule was not deleted")?;
    if json { output::json(&deleted) } else { output::line(format!("Schedule {} is deleted.", clean(&deleted.name))) }
}

async fn trigger(client: &Client, args: &TriggerArgs, json: bool) -> anyhow::Result<()> {
    let triggered = client.trigger_schedule(&args.name, args.request_id.as_deref()).await;
    let triggered = triggered.context("the schedule was not triggered")?;
    if json {
        return output::json(&triggered);
    }
    let work = match (&triggered.task_id, &triggered.run_id) {
        (Some(task), _) => format!("task {task}"),
        (None, Some(run)) => format!("run {run}"),
        (None, None) => "nothing".to_owned(),
    };
    output::line(format!("Schedule {} submitted {}.", clean(&triggered.name), clean(&work)))
}

fn say(schedule: &Schedule, json: bool) -> anyhow::Result<()> {
    if json { output::json(schedule) } else { output::line(card(schedule, Timestamp::now())) }
}

fn say_state(schedule: &Schedule, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(schedule);
    }
    let state = match (&schedule.next_at, schedule.paused) {
        (_, true) => "is paused".to_owned(),
        (Some(next), false) => format!("fires next at {}", clean(next)),
        (None, false) => "has no more slots".to_owned(),
    };
    output::line(format!("Schedule {} {state}.", clean(&schedule.name)))
}

/// The cron expression or the interval.
fn when(schedule: &Schedule) -> String {
    match (&schedule.cron, schedule.interval_seconds) {
        (Some(cron), _) => cron.clone(),
        (None, Some(seconds)) => {
            let length = std::time::Duration::from_secs(seconds.unsigned_abs());
            format!("every {}", humantime::format_duration(length))
        }
        (None, None) => String::new(),
    }
}

/// The slot of a firing; of several that were passed over, the first and the last.
fn slots(firing: &ScheduleFiring) -> String {
    match &firing.through {
        None => firing.slot.clone(),
        Some(last) => format!("{} to {last}", firing.slot),
    }
}

fn table(schedules: &[Schedule], now: Timestamp) -> String {
    let tenants = schedules.iter().any(|one| one.tenant != schedules[0].tenant);
    let rows = schedules.iter().map(|schedule| {
        let state = if schedule.paused { cell("paused").fg(comfy_table::Color::Yellow) } else { cell("active") };
        let name = if tenants { format!("{}/{}", schedule.tenant, schedule.name) } else { schedule.name.clone() };
        let last = schedule.last_firing.as_ref();
        vec![
            cell(name),
            state,
            cell(when(schedule)),
            cell(&schedule.timezone),
            cell(&schedule.kind),
            cell_or_dash(schedule.next_at.as_ref().map(|at| times::distance(at, now))),
            cell_or_dash(last.map(|firing| format!("{} {}", firing.outcome, times::distance(&firing.at, now)))),
            number(schedule.waiting),
        ]
    });
    output::table(&["SCHEDULE", "STATE", "WHEN", "ZONE", "KIND", "NEXT", "LAST", "WAITING"], rows)
}

fn card(schedule: &Schedule, now: Timestamp) -> String {
    let mut card = Card::default();
    card.row("schedule", clean(&schedule.name))
        .row("id", clean(&schedule.schedule_id))
        .row("tenant", clean(&schedule.tenant))
        .row_if("owner", schedule.owner.as_deref().map(clean))
        .row("state", if schedule.paused { "paused" } else { "active" })
        .row("when", clean(&when(schedule)))
        .row("time zone", clean(&schedule.timezone))
        .row("catch-up", clean(&schedule.catch_up))
        .row("overlap", clean(&schedule.overlap))
        .row_if("jitter", (schedule.jitter_seconds > 0).then(|| format!("up to {} s", schedule.jitter_seconds)))
        .row_if("starts", schedule.starts_at.as_deref().map(clean))
        .row_if("ends", schedule.ends_at.as_deref().map(clean))
        .row_if("waiting", (schedule.waiting > 0).then(|| format!("{} slots", schedule.waiting)));
    let template = schedule.task.as_ref().or(schedule.run.as_ref());
    if let (true, Some(template)) = (schedule.kind == "task" || schedule.kind == "run", template) {
        let name = if schedule.kind == "task" { "task" } else { "run" };
        card.row(name, clean(template.as_str()));
    }
    let mut text = card.render();
    let next = schedule.next_slots.as_deref().unwrap_or_default();
    if !next.is_empty() {
        let rows = next.iter().map(|slot| vec![cell(slot), cell(times::distance(slot, now))]);
        text = format!("{text}\n\n{}", output::table(&["NEXT SLOTS", "WHEN"], rows));
    }
    let firings = schedule.firings.as_deref().unwrap_or_default();
    if !firings.is_empty() {
        let rows = firings.iter().map(|firing| {
            let work = firing.task_id.as_ref().or(firing.run_id.as_ref()).or(firing.reason.as_ref());
            vec![cell(slots(firing)), cell(&firing.outcome), cell(times::distance(&firing.at, now)), cell_or_dash(work)]
        });
        text = format!("{text}\n\n{}", output::table(&["SLOT", "OUTCOME", "AT", "TASK, RUN OR REASON"], rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(extra: &str) -> Schedule {
        let text = format!(
            r#"{{"schedule_id":"0190c0de-0000-4000-8000-000000000001","name":"nightly","tenant":"acme","timezone":"Europe/Paris",
            "catch_up":"latest","overlap":"skip","jitter_seconds":0,"paused":false,"kind":"task","waiting":0,
            "created_at":"2025-01-15T10:00:00Z","updated_at":"2025-01-15T10:00:00Z"{extra}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_list_shows_when_each_fires_and_what_came_of_the_last_slot() {
        console::set_colors_enabled(false);
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let cron = schedule(
            r#","cron":"0 2 * * *","next_at":"2025-01-15T11:01:00Z","last_firing":{"slot":"2025-01-15T10:00:00Z",
            "outcome":"fired","at":"2025-01-15T10:00:30Z","task_id":"t"}"#,
        );
        let every = Schedule { name: "poll".to_owned(), paused: true, ..schedule(r#","interval_seconds":5400"#) };
        let text = table(&[cron, every], now);
        for part in ["nightly", "0 2 * * *", "in 60m", "fired 30s ago", "poll", "paused", "every 1h 30m"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }

    #[test]
    fn a_card_shows_slots_and_firings() {
        console::set_colors_enabled(false);
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let shown = schedule(
            r#","cron":"0 * * * *","next_slots":["2025-01-15T11:00:00Z"],"firings":[
            {"slot":"2025-01-15T08:00:00Z","through":"2025-01-15T09:00:00Z","outcome":"missed","at":"2025-01-15T10:00:00Z"},
            {"slot":"2025-01-15T07:00:00Z","outcome":"refused","at":"2025-01-15T07:00:00Z","reason":"no such queue"}],
            "task":{"queue":"q","operator":"op"}"#,
        );
        let text = card(&shown, now);
        for part in [
            "Europe/Paris",
            "NEXT SLOTS",
            "in 59m",
            "2025-01-15T08:00:00Z to 2025-01-15T09:00:00Z",
            "missed",
            "no such queue",
            r#"{"queue":"q","operator":"op"}"#,
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }
}
