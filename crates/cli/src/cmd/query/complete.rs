//! What the Tab key offers: datasets, columns, words of SQL. And where a statement ends.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};
use tenure_client::query::{QueryRequest, ResultColumn};
use tenure_client::{Client, DatasetFilter, PartitionFilter};
use tokio::runtime::Handle;

use crate::cmd::connect::all_pages;

/// For what is looked up while somebody waits for the Tab key.
const PATIENCE: Duration = Duration::from_secs(3);

const WORDS: &str = "SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET AS AND OR NOT IN IS NULL LIKE ILIKE BETWEEN CASE WHEN \
    THEN ELSE END JOIN LEFT RIGHT FULL INNER CROSS ON USING UNION ALL EXCEPT INTERSECT DISTINCT WITH OVER PARTITION ASC DESC \
    NULLS FIRST LAST EXISTS CAST INTERVAL TRUE FALSE count sum min max avg coalesce date_trunc lower upper length round";

/// What is known of datasets. Columns are looked up when they are first needed.
pub struct Catalog {
    client: Client,
    runtime: Handle,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    datasets: Vec<String>,
    columns: HashMap<String, Vec<ResultColumn>>,
}

impl Catalog {
    pub fn new(client: Client, runtime: Handle) -> Self {
        Self { client, runtime, known: Mutex::default() }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the names of all published datasets. What was known of their columns is forgotten.
    pub async fn refresh(&self) -> anyhow::Result<Vec<String>> {
        let filter = |cursor| DatasetFilter { published: Some(true), cursor, ..DatasetFilter::default() };
        let found = all_pages(async |cursor| self.client.datasets(&filter(cursor)).await).await?;
        let names: Vec<String> = found.into_iter().filter_map(|dataset| dataset.name).collect();
        *self.known() = Known { datasets: names.clone(), columns: HashMap::new() };
        Ok(names)
    }

    /// The columns of a dataset: those that its schema declares, or else those that a query of it has.
    pub async fn columns(&self, name: &str) -> anyhow::Result<Vec<ResultColumn>> {
        if let Some(columns) = self.known().columns.get(name) {
            return Ok(columns.clone());
        }
        let filter = PartitionFilter { limit: Some(1), ..PartitionFilter::default() };
        let dataset = self.client.dataset(name, &filter).await?;
        let columns = match dataset.schema {
            Some(schema) => declared(&schema.value()),
            None => {
                let sql = "SELECT * FROM dataset LIMIT 0".to_owned();
                let datasets = Some(vec![dataset.dataset_uuid]);
                self.client.query_rows(&QueryRequest { sql, datasets, ..QueryRequest::default() }).await?.columns
            }
        };
        self.known().columns.insert(name.to_owned(), columns.clone());
        Ok(columns)
    }

    /// For the Tab key: nothing rather than an error. A dataset that cannot be read is not asked for again.
    fn columns_now(&self, name: &str) -> Vec<String> {
        // The line editor has a thread of its own: also the time-out has to be made within the runtime.
        let found = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.columns(name)).await });
        let columns = found.ok().and_then(Result::ok).unwrap_or_else(|| {
            self.known().columns.insert(name.to_owned(), Vec::new());
            Vec::new()
        });
        columns.into_iter().map(|column| column.name).collect()
    }
}

fn declared(schema: &serde_json::Value) -> Vec<ResultColumn> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let columns = schema["columns"].as_array().into_iter().flatten();
    columns.map(|column| ResultColumn { name: text(&column["name"]), kind: text(&column["type"]) }).collect()
}

/// What the line editor asks.
pub struct Assistant(pub std::sync::Arc<Catalog>);

impl Helper for Assistant {}
impl Highlighter for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(context.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let datasets = self.0.known().datasets.clone();
        Ok(candidates(line, position, &datasets, |name| self.0.columns_now(name)))
    }
}

/// Where the word before the cursor begins, and what it may become.
fn candidates(
    line: &str,
    position: usize,
    datasets: &[String],
    columns: impl Fn(&str) -> Vec<String>,
) -> (usize, Vec<String>) {
    let before = &line[..position];
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '"';
    let start = before.trim_end_matches(is_part).len();
    let (context, prefix) = before.split_at(start);
    let mut found: Vec<String> = Vec::new();
    let mut offer = |name: &str| {
        let quoted = quoted(name);
        if name.to_lowercase().starts_with(&prefix.trim_start_matches('"').to_lowercase()) && !found.contains(&quoted) {
            found.push(quoted);
        }
    };
    let last = context.split_whitespace().next_back().unwrap_or_default().to_lowercase();
    if line.starts_with('\\') || matches!(last.as_str(), "from" | "join") {
        datasets.iter().for_each(|name| offer(name));
        return (start, found);
    }
    let mentioned = words(line).filter(|word| datasets.contains(word)).collect::<Vec<_>>();
    let qualifier = context.strip_suffix('.').map(|text| text.rsplit(|c: char| !is_part(c)).next().unwrap_or_default());
    match qualifier {
        Some(name) if datasets.iter().any(|dataset| dataset == name) => columns(name).iter().for_each(|it| offer(it)),
        // An alias of one of them.
        Some(_) => mentioned.iter().flat_map(|name| columns(name)).for_each(|it| offer(&it)),
        None if prefix.is_empty() => {
            mentioned.iter().flat_map(|name| columns(name)).for_each(|it| offer(&it));
        }
        None => {
            mentioned.iter().flat_map(|name| columns(name)).for_each(|it| offer(&it));
            datasets.iter().for_each(|name| offer(name));
            let lower = !prefix.chars().any(char::is_uppercase);
            for word in WORDS.split_whitespace().filter(|word| word.to_lowercase().starts_with(&prefix.to_lowercase()))
            {
                found.push(if lower { word.to_lowercase() } else { word.to_owned() });
            }
        }
    }
    (start, found)
}

/// The names in a text, without their quotes.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let parts = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'));
    parts.filter(|part| !part.is_empty()).map(ToOwned::to_owned)
}

/// A name as SQL has it.
pub fn quoted(name: &str) -> String {
    let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain && !name.starts_with(|c: char| c.is_ascii_digit()) {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

/// Whether a statement has its semicolon, outside of texts, names and comments. Commands of the shell are one line.
fn is_complete(text: &str) -> bool {
    let text = text.trim();
    if text.is_empty() || text.starts_with('\\') {
        return true;
    }
    let (mut rest, mut ended) = (text, false);
    while let Some(next) = rest.chars().next() {
        let (opening, closing) = match next {
            '\'' => (1, "'"),
            '"' => (1, "\""),
            _ if rest.starts_with("--") => (2, "\n"),
            _ if rest.starts_with("/*") => (2, "*/"),
            _ if rest.starts_with("$$") => (2, "$$"),
            _ => {
                ended = next == ';' || (ended && next.is_whitespace());
                rest = &rest[next.len_utf8()..];
                continue;
            }
        };
        let is_comment = matches!(closing, "\n" | "*/");
        ended &= is_comment;
        match rest[opening..].find(closing) {
            Some(end) => rest = &rest[opening + end + closing.len()..],
            None => return closing == "\n" && ended,
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(line: &str) -> Vec<String> {
        let datasets = ["alerts".to_owned(), "raw-logs".to_owned()];
        let columns = |name: &str| match name {
            "alerts" => vec!["severity".to_owned(), "seen_at".to_owned()],
            _ => vec!["Block".to_owned()],
        };
        let position = line.find('|').unwrap();
        candidates(&line.replace('|', ""), position, &datasets, columns).1
    }

    #[test]
    fn datasets_follow_from_and_columns_those_that_are_named() {
        assert_eq!(offered("SELECT * FROM |"), ["alerts", "\"raw-logs\""]);
        assert_eq!(offered("SELECT * FROM al|"), ["alerts"]);
        assert_eq!(offered("select * from a join \"ra|"), ["\"raw-logs\""]);
        assert_eq!(offered("SELECT se| FROM alerts"), ["severity", "seen_at", "select"]);
        assert_eq!(offered("SELECT a.sev| FROM alerts a"), ["severity"]);
        assert_eq!(offered("SELECT alerts.| FROM alerts"), ["severity", "seen_at"]);
        assert_eq!(offered("SELECT bl| FROM \"raw-logs\""), ["\"Block\""]);
        assert_eq!(offered("SEL|"), ["SELECT"]);
        assert_eq!(offered("\\d al|"), ["alerts"]);
        assert_eq!(offered("SELECT | FROM nothing"), [""; 0]);
    }

    #[test]
    fn a_statement_ends_with_a_semicolon_outside_of_texts_and_comments() {
        for text in [
            "SELECT 1;",
            "SELECT ';' ; ",
            "\\d alerts",
            "",
            "SELECT 1; -- done",
            "SELECT 1 /* ; */;",
            "SELECT 'it''s';",
        ] {
            assert!(is_complete(text), "{text}");
        }
        for text in [
            "SELECT 1",
            "SELECT ';'",
            "SELECT 'a;",
            "SELECT 1 -- ;",
            "SELECT \"a;",
            "SELECT 1 /* ;",
            "SELECT $$;$$",
            "SELECT 1; 2",
        ] {
            assert!(!is_complete(text), "{text}");
        }
    }
}
