//! `tenure dead-letter redrives`

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::Client;
use tenure_contract::user::{Page, Redrive};
use tenure_contract::words::RedriveState;

use super::sentence;
use crate::cmd::connect::all_pages;
use crate::exit::{Exit, Stop};
use crate::output::{self, cell, cell_or_dash, number};
use crate::times;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List redrives, newest first
    List,
    /// Show how far a redrive is
    Show(One),
    /// Pause a redrive; a step under way, up to 500 tasks, still ends
    Pause(One),
    /// Resume a paused redrive
    Resume(One),
    /// End a redrive; what was released stays released
    Cancel(One),
}

#[derive(Debug, clap::Args)]
pub struct One {
    /// Id of the redrive: rd_…
    #[arg(value_name = "REDRIVE")]
    id: String,
}

pub async fn run(client: &Client, command: Command, json: bool) -> anyhow::Result<Exit> {
    let (redrive, wanted) = match command {
        Command::List => {
            let items: Vec<Redrive> = all_pages(async |cursor| client.redrives(cursor).await).await?;
            let page = Page { items, next_cursor: None };
            output::page(&page, json, "No redrives.", |redrives| table(redrives, Timestamp::now()))?;
            return Ok(Exit::Ok);
        }
        Command::Show(one) => (client.get_redrive(&one.id).await?, None),
        Command::Pause(one) => {
            let paused = client.pause_redrive(&one.id).await.context("the redrive was not paused")?;
            (paused, Some((RedriveState::Paused, "paused")))
        }
        Command::Resume(one) => {
            let resumed = client.resume_redrive(&one.id).await.context("the redrive was not resumed")?;
            (resumed, Some((RedriveState::Running, "resumed")))
        }
        Command::Cancel(one) => {
            let canceled = client.cancel_redrive(&one.id).await.context("the redrive was not canceled")?;
            (canceled, Some((RedriveState::Canceled, "canceled")))
        }
    };
    // One that has ended stays as it is.
    if let Some((_, done)) = wanted.filter(|(state, _)| *state != redrive.state) {
        let message = format!("the redrive was not {done}: it is {}", redrive.state.as_str());
        return Err(Stop::new(Exit::Refused, message).details(sentence(&redrive)).into());
    }
    if json {
        output::json(&redrive)?
    } else {
        output::line(sentence(&redrive))?
    }
    Ok(Exit::Ok)
}

fn table(redrives: &[Redrive], now: Timestamp) -> String {
    let rows = redrives.iter().map(|redrive| {
        vec![
            cell_or_dash(redrive.redrive_id.as_ref()),
            cell(redrive.state.as_str()),
            number(redrive.released),
            number(redrive.matched),
            cell_or_dash(redrive.rate.map(|rate| format!("{rate}/s"))),
            cell_or_dash(redrive.started_at.as_ref().map(|at| times::age(at, now))),
            cell(selection(redrive)),
        ]
    });
    output::table(&["REDRIVE", "STATE", "RELEASED", "MATCHED", "RATE", "AGE", "SELECTION"], rows)
}

/// The filter as the flags of `redrive`.
fn selection(redrive: &Redrive) -> String {
    let filter = redrive.filter.clone().unwrap_or_default();
    let named = redrive.named_tasks.map(|count| format!("{count} tasks"));
    let flags = [
        ("queue", filter.queue),
        ("operator", filter.operator),
        ("reason", filter.reason),
        ("error-code", filter.error_code),
        ("tenant", filter.tenant),
        ("after", filter.after),
        ("before", filter.before),
    ];
    let flags = flags.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}")));
    named.into_iter().chain(flags).collect::<Vec<_>>().join(" ")
}
