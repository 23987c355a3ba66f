//! `tenure dag`

mod apply;
mod graph;
mod problems;
pub mod rails;
mod show;
mod svg;
mod watch;

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::dags::{DagSummary, DagSwitched, DagVersion};
use tenure_client::user::Page;
use tenure_client::{Client, Json};

pub use graph::Graph;

use super::confirm;
use super::connect::{ClientArgs, all_pages, text_or_file};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, cell, cell_or_dash, clean, number};
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
    /// Deploy a DAG from a YAML file
    Apply(apply::ApplyArgs),
    /// Check a DAG and show what deploying it would change; nothing is written
    Plan(apply::PlanArgs),
    /// Show a DAG with its jobs, edges and tasks
    Show(show::Args),
    /// List DAGs
    List,
    /// List the versions of a DAG
    Versions(One),
    /// Make a version of a DAG active
    Cutover(CutoverArgs),
    /// Go back to the version that was active before
    Rollback(RollbackArgs),
    /// Fire a manual source
    Trigger(TriggerArgs),
    /// Follow a version until it is active or its rebuild has failed
    Watch(watch::Args),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the DAG
    #[arg(value_name = "DAG")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct CutoverArgs {
    /// Name of the DAG
    #[arg(value_name = "DAG")]
    name: String,
    /// Number of the version
    version: i64,
}

#[derive(Debug, clap::Args)]
struct RollbackArgs {
    /// Name of the DAG
    #[arg(value_name = "DAG")]
    name: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct TriggerArgs {
    /// Name of the DAG
    #[arg(value_name = "DAG")]
    name: String,
    /// A source of kind manual
    job: String,
    /// What the task gets beside the config of its job: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Name of this request: the same one again creates nothing new
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::Apply(args) => return apply::apply(&client, args, json).await,
        Command::Plan(args) => return apply::plan(&client, args, json).await,
        Command::Show(args) => show::run(&client, args, json).await?,
        Command::List => list(&client, json).await?,
        Command::Versions(one) => versions(&client, &one.name, json).await?,
        Command::Cutover(args) => {
            let switched = client.cut_over_dag(&args.name, args.version).await;
            say_switched(&args.name, &switched.context("the version was not made active")?, json)?;
        }
        Command::Rollback(args) => rollback(&client, args, json).await?,
        Command::Trigger(args) => trigger(&client, args, json).await?,
        Command::Watch(args) => return watch::run(&client, args, json).await,
    }
    Ok(Exit::Ok)
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let items = all_pages(async |cursor| client.dags(cursor).await).await?;
    if json {
        output::json(&Page { items, next_cursor: None })
    } else if items.is_empty() {
        output::line("No DAGs. Deploy one with `tenure dag apply`.")
    } else {
        output::line(table(&items, Timestamp::now()))
    }
}

fn table(dags: &[DagSummary], now: Timestamp) -> String {
    let rows = dags.iter().map(|dag| {
        vec![
            cell(&dag.name),
            cell_or_dash(dag.active_version.map(|version| version.to_string())),
            cell(dag.latest_version.to_string()),
            state_cell(&dag.state),
            cell(times::distance(&dag.updated_at, now)),
        ]
    });
    output::table(&["DAG", "ACTIVE", "LATEST", "STATE", "UPDATED"], rows)
}

fn state_cell(state: &str) -> comfy_table::Cell {
    use comfy_table::Color;
    let cell = cell(state);
    match state {
        "Active" => cell.fg(Color::Green),
        "Staging" => cell.fg(Color::Cyan),
        "Ready" | "RolledBack" | "Abandoned" => cell.fg(Color::Yellow),
        _ => cell,
    }
}

fn state_styled(state: &str) -> String {
    let style = match state {
        "Active" => console::Style::new().green(),
        "Staging" => console::Style::new().cyan(),
        "Ready" | "RolledBack" | "Abandoned" => console::Style::new().yellow(),
        _ => console::Style::new(),
    };
    style.bold().apply_to(clean(state)).to_string()
}

async fn versions(client: &Client, name: &str, json: bool) -> anyhow::Result<()> {
    let items = all_pages(async |cursor| client.dag_versions(name, cursor).await).await?;
    if json {
        return output::json(&Page { items, next_cursor: None });
    }
    output::line(version_table(&items, Timestamp::now()))
}

fn version_table(versions: &[DagVersion], now: Timestamp) -> String {
    let rows = versions.iter().map(|version| {
        vec![
            number(version.version),
            state_cell(&version.state),
            cell_or_dash(version.previous_version.map(|previous| previous.to_string())),
            cell(rebuild(version)),
            cell(times::distance(&version.created_at, now)),
            cell(&version.dag_version_id),
        ]
    });
    output::table(&["VERSION", "STATE", "BEFORE IT", "REBUILD", "DEPLOYED", "ID"], rows)
}

/// How far the rebuild of a version is.
fn rebuild(version: &DagVersion) -> String {
    let rebuild = version.rebuild;
    match (rebuild.total, rebuild.failed) {
        (0, _) => "-".to_owned(),
        (total, 0) => format!("{}/{total}", rebuild.done),
        (total, failed) => format!("{}/{total}, {failed} failed", rebuild.done),
    }
}

async fn rollback(client: &Client, args: RollbackArgs, json: bool) -> anyhow::Result<()> {
    if !args.yes {
        confirm::require_terminal("use --yes")?;
        let dag = client.dag(&args.name, None).await?;
        let active = dag.active_version.map_or_else(|| "nothing".to_owned(), |version| format!("version {version}"));
        confirm::ask(&format!("Roll back {} from {active}? Its running tasks are canceled.", clean(&dag.name)))?;
    }
    let switched = client.roll_back_dag(&args.name).await.context("the DAG was not rolled back")?;
    say_switched(&args.name, &switched, json)
}

fn say_switched(name: &str, switched: &DagSwitched, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(switched);
    }
    let active = switched.active_version.map_or_else(|| "none".to_owned(), |version| version.to_string());
    let mut text = format!("Version {active} of {} is active.", clean(name));
    for (count, what) in
        [(switched.datasets.len() as u64, "with another current version"), (switched.canceled_tasks, "canceled")]
    {
        let noun = if what == "canceled" { "task" } else { "dataset" };
        if count > 0 {
            text += &format!(" {count} {noun}{} {what}.", if count == 1 { "" } else { "s" });
        }
    }
    output::line(text)
}

async fn trigger(client: &Client, args: TriggerArgs, json: bool) -> anyhow::Result<()> {
    let input = args.input.as_deref().map(json_of).transpose()?;
    let made = client.trigger_job(&args.name, &args.job, args.request_id.as_deref(), input).await;
    let made = made.context("the job was not triggered")?;
    if json {
        return output::json(&made);
    }
    let verb = if made.created { "created" } else { "was created before by the same request" };
    output::line(format!("Task {} {verb}.", clean(&made.task_id)))
}

fn json_of(argument: &str) -> anyhow::Result<Json> {
    let text = text_or_file(argument)?;
    Json::parse(text.trim()).map_err(|error| {
        let hint = "quote it for the shell: --input '{\"from_block\":1000000}'";
        Stop::usage(format!("--input is not JSON: {error}")).hint(hint).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_versions_shows_how_far_each_rebuild_is() {
        console::set_colors_enabled(false);
        let now: Timestamp = "2025-01-15T10:01:00Z".parse().unwrap();
        let version = |version: i64, state: &str, rebuild: &str| -> DagVersion {
            let text = format!(
                r#"{{"version":{version},"dag_version_id":"id-{version}","yaml_hash":"sha256:0","state":"{state}",
                "previous_version":null,"created_at":"2025-01-15T10:00:00Z","rebuild":{rebuild}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let rows = [
            version(2, "Staging", r#"{"total":9,"done":4,"failed":1}"#),
            version(1, "Active", r#"{"total":0,"done":0,"failed":0}"#),
        ];
        let text = version_table(&rows, now);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("Staging") && lines[1].contains("4/9, 1 failed") && lines[1].contains("60s ago"),
            "{text}"
        );
        assert!(lines[2].contains("Active") && lines[2].contains("id-1"), "{text}");
    }
}
