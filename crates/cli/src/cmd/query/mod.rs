//! `tenure query`

mod complete;
mod file;
mod place;
mod shell;
mod table;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use tenure_client::query::{QueryAnswer, QueryRequest, QueryRows, ROWS_MAX};
use tenure_client::{Client, ExportFormat};

use super::connect::CallerArgs;
use crate::exit::{CODES, Exit, Stop};
use crate::output;
use crate::times;

const DETAILS: &str = "\
SQL is one SELECT. Its tables are the published datasets, by name; a dataset that is the only one is also called `dataset`. \
Without SQL, on a terminal, this is a shell: statements end with a semicolon, \\d lists datasets, \\? shows the rest.

Examples:
  tenure query \"SELECT severity, count(*) FROM alerts GROUP BY 1 ORDER BY 2 DESC\"
  tenure query --file report.sql --csv report.csv
  echo 'SELECT * FROM alerts' | tenure query --json - | jq .
  tenure query --dataset alerts 'SELECT max(_seq) FROM dataset'";

#[derive(Debug, clap::Args)]
#[command(after_help = format!("{DETAILS}\n\n{CODES}"))]
pub struct Args {
    #[command(flatten)]
    client: CallerArgs,
    /// One SELECT, or - for standard input [default: standard input, or a shell on a terminal]
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// File with the SQL
    #[arg(long, value_name = "FILE", conflicts_with = "sql")]
    file: Option<PathBuf>,
    /// Name or id of a dataset that the query can read; repeat it for more [default: all that are published]
    #[arg(long = "dataset", value_name = "DATASET")]
    datasets: Vec<String>,
    /// Maximum number of rows to show, up to 10000 [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=ROWS_MAX as i64), conflicts_with = "to_file")]
    limit: Option<u32>,
    /// How long the query may take, such as 30s [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = times::seconds)]
    timeout: Option<i64>,
    #[command(flatten)]
    to: To,
}

/// The whole result goes to a file.
#[derive(Debug, clap::Args)]
#[group(id = "to_file", multiple = false)]
struct To {
    /// Write all rows to a CSV file, or - for standard output
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write all rows as JSON lines, or - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write all rows to a Parquet file, or - for standard output
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
}

impl To {
    fn file(self) -> Option<(ExportFormat, PathBuf)> {
        let csv = self.csv.map(|file| (ExportFormat::Csv, file));
        let json = self.json.map(|file| (ExportFormat::JsonLines, file));
        csv.or(json).or(self.parquet.map(|file| (ExportFormat::Parquet, file)))
    }
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let client = args.client.client()?;
    let base = QueryRequest {
        datasets: (!args.datasets.is_empty()).then_some(args.datasets),
        limit: args.limit.map(i64::from),
        timeout_seconds: args.timeout.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
        ..QueryRequest::default()
    };
    let to = args.to.file();
    let Some(sql) = sql(args.sql.as_deref(), args.file)? else {
        if to.is_some() || !output::is_terminal() {
            return Err(no_sql("no SQL, and no terminal for a shell").into());
        }
        return shell::run(client, base).await;
    };
    let request = QueryRequest { sql, ..base };
    let work = async {
        match to {
            Some((format, path)) => file::export(&client, &request, format, &path).await,
            None => {
                let rows = rows(&client, &request).await?;
                show(&rows, Cut::Flags)
            }
        }
    };
    tokio::select! {
        done = work => done.map(|()| Exit::Ok),
        _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
    }
}

fn no_sql(message: &str) -> Stop {
    Stop::usage(message).hint("give a SELECT as an argument, with --file FILE, or on standard input")
}

/// The SQL of the command line. None: nothing was said, and nothing is piped in.
fn sql(argument: Option<&str>, file: Option<PathBuf>) -> anyhow::Result<Option<String>> {
    let piped = || io::read_to_string(io::stdin()).context("standard input could not be read");
    let text = match (argument, file) {
        (Some("-"), _) => piped()?,
        (Some(text), _) => text.to_owned(),
        (None, Some(path)) => std::fs::read_to_string(&path)
            .map_err(|error| Stop::usage(format!("{} could not be read: {error}", path.display())))?,
        (None, None) if io::stdin().is_terminal() => return Ok(None),
        (None, None) => piped()?,
    };
    if text.trim().is_empty() {
        return Err(no_sql("there is no SQL").into());
    }
    Ok(Some(text))
}

/// Runs a query for its rows. An error shows the place in the SQL.
async fn rows(client: &Client, request: &QueryRequest) -> anyhow::Result<QueryRows> {
    let _spinner = Spinner::start("running the query");
    match client.query(request).await.map_err(|error| place::pointed(error, &request.sql))? {
        QueryAnswer::Inline(rows) => Ok(rows),
        _ => anyhow::bail!("the server answered with something else than rows"),
    }
}

/// Who can do something about rows that are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Flags of this command.
    Flags,
    /// A shell, which has none.
    Shell,
}

fn show(rows: &QueryRows, cut: Cut) -> anyhow::Result<()> {
    let on_terminal = output::is_terminal();
    let width = on_terminal.then(|| usize::from(console::Term::stdout().size().1));
    let drawn = table::draw(rows, width)?;
    output::line(drawn.text)?;
    if on_terminal {
        let count = if rows.row_count == 1 { "1 row".to_owned() } else { format!("{} rows", rows.row_count) };
        eprintln!("{}", output::dim(format!("{count}, {} ms", rows.duration_ms)).for_stderr());
    }
    if rows.truncated {
        let more = match cut {
            Cut::Flags => format!("--limit shows up to {ROWS_MAX} rows, and --csv FILE writes all"),
            Cut::Shell => format!("\\limit {ROWS_MAX} shows more, and `tenure query --csv FILE` writes all"),
        };
        eprintln!("There are more rows than these {}: {more}.", rows.row_count);
    }
    if drawn.cut {
        eprintln!("Some values are cut to fit the terminal: --csv - shows them whole.");
    }
    Ok(())
}

/// Shown on stderr while something goes on, if somebody looks.
struct Spinner(ProgressBar);

impl Spinner {
    fn start(message: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(message);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
