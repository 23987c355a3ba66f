//! `tenure dataset`

mod buffer;

use std::collections::{HashMap, HashSet};

use anyhow::Context;
use jiff::Timestamp;
use tenure_client::dags::{Dataset, DatasetSummary, InvalidateRequest, LineageEntry};
use tenure_client::user::Page;
use tenure_client::{Client, DatasetFilter, Json, PartitionFilter};

use super::connect::{ClientArgs, all_pages, pages, text_or_file};
use crate::exit::{CODES, Exit, Stop};
use crate::output::{self, Card, cell, cell_or_dash, clean, dim, number};
use crate::times;

/// Partitions of one answer.
const PAGE: u32 = 1_000;
/// Deeper than this a tree goes on at the same depth.
const DEPTH: usize = 12;

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
    /// List datasets
    List(ListArgs),
    /// Show a dataset with its versions, cursors and partitions
    Show(ShowArgs),
    /// Show what a dataset is made from, and what is made from it
    Lineage(One),
    /// Mark data as changed: jobs that read it run again
    Invalidate(InvalidateArgs),
    /// Publish rows to a buffered dataset
    Publish(buffer::PublishArgs),
    /// List batches of rows that were rejected for good
    DeadLetters(buffer::DeadLettersArgs),
    /// Try rejected batches again
    Replay(buffer::ReplayArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only datasets that this DAG produces
    #[arg(long, value_name = "DAG")]
    dag: Option<String>,
    /// Also outputs that have no name
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name or id of the dataset
    #[arg(value_name = "DATASET")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Name or id of the dataset
    #[arg(value_name = "DATASET")]
    name: String,
    /// Show the partitions of this version [default: the current one]
    #[arg(long, value_name = "ID")]
    version: Option<String>,
    /// Maximum number of partitions to show
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Show all partitions
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

const INVALIDATE_DETAILS: &str = "\
Every job that reads the data runs again for it, and what those jobs write is marked as changed in turn. To compute a \
dataset itself again, invalidate what it is made from: see `tenure dataset lineage`.

Examples:
  tenure dataset invalidate raw_logs --partition 1000000-1010000 --reason reorg
  tenure dataset invalidate raw_logs --rows '{\"block_number\":{\"gte\":995,\"lte\":1005}}'";

#[derive(Debug, clap::Args)]
#[command(after_help = INVALIDATE_DETAILS)]
struct InvalidateArgs {
    /// Name or id of the dataset
    #[arg(value_name = "DATASET")]
    name: String,
    /// Key of the partition that has changed
    #[arg(long, value_name = "KEY", required_unless_present = "rows", conflicts_with = "rows")]
    partition: Option<String>,
    /// Rows that have changed, by column and bound: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    rows: Option<String>,
    /// Why: reorg, correction, manual or schema_change [default: manual]
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Name of this request: the same one again invalidates nothing new
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let (client, json) = (args.client.client()?, args.client.json);
    match args.command {
        Command::List(args) => list(&client, args, json).await?,
        Command::Show(args) => show(&client, args, json).await?,
        Command::Lineage(one) => {
            let dataset = client.dataset(&one.name, &PartitionFilter { limit: Some(1), ..Default::default() }).await?;
            if json {
                output::json(&dataset.lineage)?;
            } else {
                output::line(lineage(&dataset))?;
            }
        }
        Command::Invalidate(args) => invalidate(&client, args, json).await?,
        Command::Publish(args) => buffer::publish(&client, args, json).await?,
        Command::DeadLetters(args) => buffer::dead_letters(&client, args, json).await?,
        Command::Replay(args) => buffer::replay(&client, args, json).await?,
    }
    Ok(Exit::Ok)
}

async fn list(client: &Client, args: ListArgs, json: bool) -> anyhow::Result<()> {
    let items = all_pages(async |cursor| {
        let published = (!args.all).then_some(true);
        client.datasets(&DatasetFilter { dag: args.dag.clone(), published, cursor, limit: None }).await
    })
    .await?;
    if json {
        output::json(&Page { items, next_cursor: None })
    } else if items.is_empty() {
        output::line("No datasets. A DAG names its outputs with `publish`; `--all` lists those without a name too.")
    } else {
        output::line(table(&items))
    }
}

fn table(datasets: &[DatasetSummary]) -> String {
    let rows = datasets.iter().map(|dataset| {
        let producer = &dataset.producer;
        vec![
            cell_or_dash(dataset.name.as_ref()),
            cell(format!("{}/{}:{}", producer.dag, producer.job, producer.output_index)),
            cell_or_dash(dataset.storage.as_ref()),
            cell(&dataset.write_mode),
            cell_or_dash(dataset.cursor.map(|cursor| cursor.to_string())),
            cell(&dataset.dataset_uuid),
        ]
    });
    output::table(&["DATASET", "PRODUCER", "STORAGE", "WRITES", "CURSOR", "ID"], rows)
}

async fn show(client: &Client, args: ShowArgs, json: bool) -> anyhow::Result<()> {
    let filter = |limit, cursor| PartitionFilter { version: args.version.clone(), limit: Some(limit), cursor };
    let limit = (!args.all).then_some(args.limit);
    let mut dataset = client.dataset(&args.name, &filter(args.limit.min(PAGE), None)).await?;
    if args.all || args.limit > PAGE {
        dataset.partitions = pages(limit, PAGE, async |size, cursor| {
            Ok(client.dataset(&args.name, &filter(size, cursor)).await?.partitions)
        })
        .await?;
    }
    if json {
        return output::json(&dataset);
    }
    output::line(card(&dataset, Timestamp::now()))?;
    if dataset.partitions.next_cursor.is_some() {
        eprintln!("There are more partitions: use --all or a larger --limit.");
    }
    Ok(())
}

fn card(dataset: &Dataset, now: Timestamp) -> String {
    let producer = &dataset.producer;
    let mut card = Card::default();
    card.row("id", clean(&dataset.dataset_uuid))
        .row("producer", clean(&format!("{}/{}, output {}", producer.dag, producer.job, producer.output_index)))
        .row_if("storage", dataset.storage.as_deref().map(clean))
        .row("writes", clean(&dataset.write_mode))
        .row_if("version", dataset.current_version.as_deref().map(clean))
        .row_if("cursor", dataset.cursor.produced.map(|cursor| cursor.to_string()))
        .row_if("schema", dataset.schema.as_ref().map(columns));
    let mut text = format!("Dataset {}\n{}", clean(dataset.name.as_deref().unwrap_or("without a name")), card.render());
    if !dataset.cursor.consumers.is_empty() {
        let rows = dataset.cursor.consumers.iter().map(|it| {
            let behind = dataset.cursor.produced.zip(it.value).map(|(produced, value)| (produced - value).to_string());
            vec![
                cell(format!("{}/{}", it.dag, it.job)),
                cell_or_dash(it.value.map(|value| value.to_string())),
                cell_or_dash(behind),
            ]
        });
        text = format!("{text}\n{}\n", output::table(&["READ BY CURSOR", "UP TO", "BEHIND"], rows));
    }
    let partitions = &dataset.partitions.items;
    if !partitions.is_empty() {
        let rows = partitions.iter().map(|it| {
            vec![
                cell(&it.partition_key),
                number(it.generation),
                cell_or_dash(it.row_count.map(|rows| rows.to_string())),
                cell_or_dash(it.bytes.map(|bytes| bytes.to_string())),
                cell_or_dash(it.materialized_at.as_ref().map(|at| times::distance(at, now))),
                cell_or_dash(it.location.as_ref()),
            ]
        });
        let table = output::table(&["PARTITION", "GENERATION", "ROWS", "BYTES", "WRITTEN", "LOCATION"], rows);
        text = format!("{text}\n{table}\n");
    }
    if dataset.versions.len() > 1 {
        let rows = dataset.versions.iter().map(|it| {
            vec![
                cell(&it.dataset_version),
                cell(if it.current { "current" } else { "" }),
                cell_or_dash(it.cursor.map(|cursor| cursor.to_string())),
                cell(times::distance(&it.created_at, now)),
            ]
        });
        text = format!("{text}\n{}\n", output::table(&["VERSION", "", "CURSOR", "DEPLOYED"], rows));
    }
    text
}

/// `name type` of each column.
fn columns(schema: &Json) -> String {
    let schema = schema.value();
    let columns = schema["columns"].as_array().into_iter().flatten().map(|column| {
        let text = |name: &str| column[name].as_str().unwrap_or_default().to_owned();
        let null = if column["nullable"] == false { " not null" } else { "" };
        format!("{} {}{null}", text("name"), text("type"))
    });
    clean(&columns.collect::<Vec<_>>().join(", "))
}

/// What it is made from above it, what is made from it below.
fn lineage(dataset: &Dataset) -> String {
    let own = dataset.name.clone().unwrap_or_else(|| {
        let producer = &dataset.producer;
        format!("{}/{}:{}", producer.dag, producer.job, producer.output_index)
    });
    let mut text = String::new();
    if dataset.lineage.upstream.is_empty() && dataset.lineage.downstream.is_empty() {
        return format!("{} is made from nothing, and nothing is made from it.", clean(&own));
    }
    if !dataset.lineage.upstream.is_empty() {
        text += &format!("{}\n", dim("made from"));
        let by_id: HashMap<&str, &LineageEntry> =
            dataset.lineage.upstream.iter().filter_map(|it| Some((it.dataset_uuid.as_deref()?, it))).collect();
        let first: Vec<&LineageEntry> = dataset.lineage.upstream.iter().filter(|it| it.distance == 1).collect();
        let reads = |it: &LineageEntry| it.reads.iter().filter_map(|id| by_id.get(id.as_str()).copied()).collect();
        text += &tree(&own, &first, reads);
    }
    if !dataset.lineage.downstream.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text += &format!("{gap}{}\n", dim("read by"));
        let all = &dataset.lineage.downstream;
        let readers = |id: &str| all.iter().filter(|it| it.reads.iter().any(|read| read == id)).collect::<Vec<_>>();
        let next = |it: &LineageEntry| it.dataset_uuid.as_deref().map(readers).unwrap_or_default();
        text += &tree(&own, &readers(&dataset.dataset_uuid), next);
    }
    text
}

/// Each entry once with what is beyond it; again only by name.
fn tree<'a>(root: &str, first: &[&'a LineageEntry], next: impl Fn(&LineageEntry) -> Vec<&'a LineageEntry>) -> String {
    let mut text = format!("{}\n", clean(root));
    let mut seen = HashSet::new();
    let mut open: Vec<(&LineageEntry, String, usize, bool)> = Vec::new();
    let push = |open: &mut Vec<_>, list: &[&'a LineageEntry], indent: &str, depth: usize| {
        for (index, entry) in list.iter().enumerate().rev() {
            open.push((*entry, indent.to_owned(), depth, index + 1 == list.len()));
        }
    };
    push(&mut open, first, "", 0);
    while let Some((entry, indent, depth, last)) = open.pop() {
        let (branch, stem) = match (depth < DEPTH, last) {
            (false, _) => ("· ", ""),
            (true, true) => ("└─ ", "   "),
            (true, false) => ("├─ ", "│  "),
        };
        let job = format!("{}/{}", entry.dag, entry.job);
        let name = entry.name.clone().or_else(|| entry.output_index.map(|output| format!("{job}:{output}")));
        let told = match &name {
            Some(name) if entry.name.is_some() => format!("{}  {}", clean(name), dim(clean(&job))),
            Some(name) => clean(name),
            None => format!("{}  {}", clean(&job), dim("without outputs")),
        };
        let is_new = seen.insert((entry.dag.as_str(), entry.job.as_str(), entry.output_index));
        text += &format!("{indent}{branch}{told}{}\n", if is_new { "" } else { " …" });
        if is_new {
            push(&mut open, &next(entry), &format!("{indent}{stem}"), depth + 1);
        }
    }
    text
}

async fn invalidate(client: &Client, args: InvalidateArgs, json: bool) -> anyhow::Result<()> {
    let row_filter = args.rows.as_deref().map(rows).transpose()?;
    let scope = if row_filter.is_some() { "row_range" } else { "partition" };
    let request =
        InvalidateRequest { scope: scope.to_owned(), partition_key: args.partition, row_filter, reason: args.reason };
    let made = client.invalidate_dataset(&args.name, &request, args.request_id.as_deref()).await;
    let made = made.context("nothing was invalidated")?;
    if json {
        return output::json(&made);
    }
    let jobs = if made.dependents == 1 { "1 job runs".to_owned() } else { format!("{} jobs run", made.dependents) };
    output::line(format!(
        "{jobs} again. Generation {}, invalidation {}.",
        made.generation,
        clean(&made.invalidation_id)
    ))
}

fn rows(argument: &str) -> anyhow::Result<Json> {
    let text = text_or_file(argument)?;
    Json::parse(text.trim()).map_err(|error| {
        let hint = "quote it for the shell: --rows '{\"block_number\":{\"gte\":995}}'";
        Stop::usage(format!("--rows is not JSON: {error}")).hint(hint).into()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dataset() -> Dataset {
        let entry = |dag: &str, job: &str, id: Option<&str>, name: Option<&str>, distance: u32, reads: &[&str]| {
            json!({"dag": dag, "job": job, "output_index": id.map(|_| 0), "dataset_uuid": id, "name": name,
                "distance": distance, "reads": reads})
        };
        let upstream = [entry("chain", "import", Some("raw"), None, 1, &[])];
        let downstream = [
            entry("chain", "count", None, None, 1, &["own"]),
            entry("reports", "report", Some("rep"), Some("reports"), 1, &["own"]),
            entry("reports", "mail", None, None, 2, &["rep"]),
        ];
        let value = json!({"dataset_uuid": "own", "name": "decoded", "storage": null, "write_mode": "direct",
            "current_version": "v-1", "producer": {"dag": "chain", "job": "decode", "output_index": 0},
            "schema": {"columns": [{"name": "org_id", "type": "uuid", "nullable": false}, {"name": "n", "type": "int64"}]},
            "versions": [], "cursor": {"produced": 90, "consumers": [{"dag": "reports", "job": "report", "value": 70}]},
            "partitions": {"items": [{"partition_key": "1-5", "start": 1, "end": 5, "generation": 2, "location": "s3://b/p/",
                "row_count": 20, "bytes": 4096, "materialized_at": "2025-01-15T10:00:00Z"}], "next_cursor": null},
            "lineage": {"upstream": upstream, "downstream": downstream}});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_card_shows_schema_readers_and_partitions() {
        console::set_colors_enabled(false);
        let text = card(&dataset(), "2025-01-15T10:01:00Z".parse().unwrap());
        for part in [
            "Dataset decoded",
            "chain/decode, output 0",
            "org_id uuid not null, n int64",
            "reports/report  70     20",
            "1-5                 2  20    4096   60s ago  s3://b/p/",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }

    #[test]
    fn lineage_is_a_tree_in_each_direction() {
        console::set_colors_enabled(false);
        let expected = "made from
decoded
└─ chain/import:0

read by
decoded
├─ chain/count  without outputs
└─ reports  reports/report
   └─ reports/mail  without outputs
";
        assert_eq!(lineage(&dataset()), expected);
        let mut alone = dataset();
        alone.lineage = Default::default();
        assert_eq!(lineage(&alone), "decoded is made from nothing, and nothing is made from it.");
    }
}
