//! `tenure query` without SQL: a shell.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use anyhow::Context;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use tenure_client::Client;
use tenure_client::query::{QueryRequest, ROWS_MAX};

use super::complete::{Assistant, Catalog};
use super::{Cut, rows, show};
use crate::credentials;
use crate::exit::{self, Exit};
use crate::output::{self, cell};

const PROMPT: &str = "tenure> ";
const HISTORY_FILE: &str = "query_history";
const HISTORY_LINES: usize = 1_000;
const HELP: &str = "\
Statements end with a semicolon and may have several lines. Tab completes names, Ctrl-C cancels, Ctrl-D ends.
  \\d        list datasets
  \\d NAME   show the columns of a dataset
  \\limit N  show up to N rows
  \\?        show this help
  \\q        end";

/// What somebody entered.
enum Entered {
    Line(String),
    /// Given up while it was written.
    Nothing,
    End,
    Failed(ReadlineError),
}

pub async fn run(client: Client, mut base: QueryRequest) -> anyhow::Result<Exit> {
    let catalog = Arc::new(Catalog::new(client.clone(), tokio::runtime::Handle::current()));
    // Also says at once that there is no server, or no right to ask it.
    let datasets = catalog.refresh().await?;
    let count = if datasets.len() == 1 { "1 dataset".to_owned() } else { format!("{} datasets", datasets.len()) };
    eprintln!("{count}. \\? shows help, \\q ends.");
    let (entered, mut lines) = tokio::sync::mpsc::channel(1);
    let (ready, wanted) = mpsc::channel();
    let assistant = Assistant(Arc::clone(&catalog));
    std::thread::Builder::new()
        .name("line-editor".into())
        .spawn(move || edit(assistant, &entered, &wanted))
        .context("the line editor could not be started")?;
    while ready.send(()).is_ok() {
        let line = match lines.recv().await {
            Some(Entered::Line(line)) => line,
            Some(Entered::Nothing) => continue,
            Some(Entered::Failed(error)) => return Err(error).context("the terminal could not be read"),
            Some(Entered::End) | None => break,
        };
        if matches!(line.trim(), "\\q" | "exit" | "quit" | "exit;" | "quit;") {
            break;
        }
        let done = tokio::select! {
            done = answer(&client, &catalog, &mut base, line.trim()) => done,
            _ = tokio::signal::ctrl_c() => {
                eprintln!("Canceled.");
                continue;
            }
        };
        if let Err(error) = done {
            exit::report(&error);
        }
    }
    Ok(Exit::Ok)
}

/// Reads a line whenever one is wanted. A line editor blocks, so that it has a thread of its own.
fn edit(assistant: Assistant, entered: &tokio::sync::mpsc::Sender<Entered>, wanted: &mpsc::Receiver<()>) {
    let mut editor = match editor(assistant) {
        Ok(editor) => editor,
        Err(error) => return drop(entered.blocking_send(Entered::Failed(error))),
    };
    let history = history();
    if let Some(path) = &history {
        // There is none before the first line.
        let _ = editor.load_history(path);
    }
    while wanted.recv().is_ok() {
        let line = match editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    // A history that cannot be written is no reason to stop.
                    let _ = editor.add_history_entry(line.trim_end());
                    if let Some(path) = &history {
                        let _ = editor.append_history(path);
                    }
                }
                Entered::Line(line)
            }
            Err(ReadlineError::Interrupted) => Entered::Nothing,
            Err(ReadlineError::Eof) => Entered::End,
            Err(error) => Entered::Failed(error),
        };
        if entered.blocking_send(line).is_err() {
            return;
        }
    }
}

fn editor(assistant: Assistant) -> rustyline::Result<Editor<Assistant, FileHistory>> {
    let config = Config::builder()
        .max_history_size(HISTORY_LINES)?
        .history_ignore_space(true)
        .completion_type(CompletionType::List)
        .build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(assistant));
    Ok(editor)
}

/// Beside the stored API keys. The line editor makes it readable for its owner alone.
fn history() -> Option<PathBuf> {
    let folder = credentials::user_folder()?;
    folder.is_dir().then(|| folder.join(HISTORY_FILE))
}

async fn answer(client: &Client, catalog: &Catalog, base: &mut QueryRequest, line: &str) -> anyhow::Result<()> {
    let Some(command) = line.strip_prefix('\\') else {
        if line.is_empty() {
            return Ok(());
        }
        let request = QueryRequest { sql: line.to_owned(), ..base.clone() };
        return show(&rows(client, &request).await?, Cut::Shell);
    };
    let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (name, argument.trim().trim_end_matches(';').trim_matches('"')) {
        ("d", "") => list(&catalog.refresh().await?),
        ("d", dataset) => columns(catalog, dataset).await,
        ("limit", number) => match number.parse::<u64>() {
            Ok(number) if (1..=ROWS_MAX).contains(&number) => {
                base.limit = i64::try_from(number).ok();
                Ok(())
            }
            _ => Err(exit::Stop::usage(format!("a limit is a number from 1 to {ROWS_MAX}")).into()),
        },
        ("?" | "h" | "help", _) => output::line(HELP),
        _ => Err(exit::Stop::usage(format!("there is no command \\{name}")).hint("\\? lists the commands").into()),
    }
}

fn list(datasets: &[String]) -> anyhow::Result<()> {
    if datasets.is_empty() {
        return output::line("No datasets. A DAG names its outputs with `publish`.");
    }
    output::line(datasets.iter().map(|name| output::clean(name)).collect::<Vec<_>>().join("\n"))
}

async fn columns(catalog: &Catalog, dataset: &str) -> anyhow::Result<()> {
    let columns = catalog.columns(dataset).await?;
    let rows = columns.iter().map(|column| vec![cell(&column.name), cell(&column.kind)]);
    output::line(output::table(&["COLUMN", "TYPE"], rows))
}
