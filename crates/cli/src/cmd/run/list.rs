use jiff::Timestamp;
use tenure_client::run::Run;
use tenure_client::{Client, RunFilter, RunState};

use crate::cmd::connect::pages;
use crate::exit::Exit;
use crate::output::{self, cell, cell_or_dash, number, state_cell};
use crate::{times, words};

/// The largest page of the API.
const PAGE_MAX: u32 = 1000;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only runs in this state
    #[arg(long, value_name = "STATE", ignore_case = true, value_parser = words::run_state())]
    state: Option<RunState>,
    /// Only runs with this label
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Option<String>,
    /// Only the run with this key
    #[arg(long, value_name = "KEY")]
    run_key: Option<String>,
    /// Only runs created at or after this point in time
    #[arg(long, value_name = "WHEN", value_parser = times::point)]
    after: Option<String>,
    /// Only runs created before this point in time
    #[arg(long, value_name = "WHEN", value_parser = times::point)]
    before: Option<String>,
    /// Only runs of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only runs of this workspace
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Maximum number to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// List everything, without a limit
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// The API writes labels with a colon; here they look as in `submit`.
fn label(text: &str) -> Result<String, String> {
    let (name, value) = text.split_once(['=', ':']).ok_or("write it as team=etl")?;
    Ok(format!("{name}:{value}"))
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<Exit> {
    let filter = RunFilter {
        state: args.state,
        label: args.label,
        run_key: args.run_key,
        tenant: args.tenant,
        workspace: args.workspace,
        created_after: args.after,
        created_before: args.before,
        ..RunFilter::default()
    };
    let page = pages((!args.all).then_some(args.limit), PAGE_MAX, async |limit, cursor| {
        client.runs(&RunFilter { limit: Some(limit), cursor, ..filter.clone() }).await
    });
    output::page(&page.await?, json, "No runs.", |runs| table(runs, Timestamp::now()))?;
    Ok(Exit::Ok)
}

fn table(runs: &[Run], now: Timestamp) -> String {
    let rows = runs.iter().map(|run| {
        let counts = &run.counts;
        let took = run.finished_at.as_ref().and_then(|end| times::between(&run.created_at, end));
        vec![
            cell(&run.run_id),
            cell_or_dash(run.run_key.as_deref()),
            state_cell(run.state.as_str()),
            number(format!("{}/{}", counts.total - counts.open.min(counts.total), counts.total)),
            number(counts.failed),
            cell(times::age(&run.created_at, now)),
            cell_or_dash(took),
        ]
    });
    output::table(&["RUN", "KEY", "STATE", "ENDED", "FAILED", "AGE", "TOOK"], rows)
}
