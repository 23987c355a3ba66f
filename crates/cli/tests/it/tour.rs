//! The tour of the README can be followed word for word.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tenure_testkit::{Child, Port, Tenure, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// A command, and the output that the README shows for it.
struct Step {
    command: String,
    shown: Vec<String>,
}

impl Step {
    fn is_server(&self) -> bool {
        ["tenure up", "tenure serve"].contains(&&*self.command)
    }

    fn is_sandboxed(&self) -> bool {
        self.command.starts_with("tenure sandbox")
    }

    fn is_background(&self) -> bool {
        self.is_server() || self.command.ends_with('&')
    }

    /// The output of a command in the foreground includes what it writes to stderr, as on a terminal.
    fn script(&self) -> String {
        match self.command.strip_suffix('&') {
            // The shell is replaced by the command, so that signals reach it.
            Some(command) => format!("exec {command}"),
            None if self.is_server() => format!("exec {}", self.command),
            None => format!("exec 2>&1\n{}", self.command),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_of_the_readme_works_word_for_word() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let tour = readme.split("## A five-minute tour").nth(1).unwrap().split("\n## ").next().unwrap();
    let port = Port::reserve();
    let folder = TempDir::with_prefix("tenure-tour-").unwrap();
    let (mut background, mut ids) = (Vec::<Child>::new(), HashMap::new());
    let steps = steps(&tour.replace("7423", &port.number().to_string()));
    assert!(steps.len() > 15, "the tour has only {} commands", steps.len());
    let has_sandboxes = tenure_sandbox_works(folder.path(), port.number()).await;
    for mut step in steps {
        if step.is_sandboxed() && !has_sandboxes {
            tenure_testkit::skip(&step.command, "this machine has no sandboxes");
            continue;
        }
        step.command =
            ids.iter().fold(step.command, |text, (shown, real): (&String, &String)| text.replace(shown, real));
        if step.is_server() {
            // The reader stops what runs before the next server starts.
            for mut child in background.drain(..) {
                child.terminate().await;
            }
        }
        let mut child = Child::spawn(shell(&step.script(), folder.path(), port.number()));
        if step.is_background() {
            wait_until("the output that the README shows", PATIENCE, async || {
                difference(&step.shown, &child.output().stdout, &mut ids).is_none()
            })
            .await;
            background.push(child);
            continue;
        }
        child.wait(PATIENCE).await;
        let printed = child.output().stdout;
        if let Some(missing) = difference(&step.shown, &printed, &mut ids) {
            panic!("$ {}\nthe README shows: {missing}\nit printed:\n{printed}", step.command);
        }
    }
    for mut child in background {
        child.terminate().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_dag_of_the_docs_works_word_for_word() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let docs = std::fs::read_to_string(root.join("docs/DAGS.md")).unwrap();
    let tutorial = docs.split("## A first DAG").nth(1).unwrap().split("\n## ").next().unwrap();
    let port = Port::reserve();
    let folder = TempDir::with_prefix("tenure-dag-").unwrap();
    std::fs::create_dir_all(folder.path().join("examples/dags")).unwrap();
    let example = "examples/dags/ranges.yaml";
    std::fs::copy(root.join(example), folder.path().join(example)).unwrap();
    let mut server = Child::spawn(shell("exec tenure serve", folder.path(), port.number()));
    wait_until("the server", PATIENCE, async || {
        let mut list = Child::spawn(shell("exec tenure dag list", folder.path(), port.number()));
        list.wait(PATIENCE).await.success()
    })
    .await;
    let (steps, mut ids) = (steps(tutorial), HashMap::new());
    assert!(steps.len() > 12, "the tutorial has only {} commands", steps.len());
    for step in steps {
        let mut child = Child::spawn(shell(&step.script(), folder.path(), port.number()));
        child.wait(PATIENCE).await;
        let printed = child.output().stdout;
        if let Some(missing) = difference(&step.shown, &printed, &mut ids) {
            panic!("$ {}\nthe docs show: {missing}\nit printed:\n{printed}", step.command);
        }
    }
    server.terminate().await;
}

async fn tenure_sandbox_works(folder: &Path, port: u16) -> bool {
    let mut check = Child::spawn(shell("exec tenure sandbox check", folder, port));
    check.wait(PATIENCE).await.success()
}

/// Commands follow `$ `; a here-document belongs to its command.
fn steps(tour: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let blocks = tour.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap());
    let mut lines = blocks.flat_map(str::lines);
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ ") else {
            steps.last_mut().unwrap().shown.push(line.to_owned());
            continue;
        };
        let mut command = command.to_owned();
        if command.contains("<<") {
            for line in lines.by_ref() {
                command = format!("{command}\n{line}");
                if line == "EOF" {
                    break;
                }
            }
        }
        steps.push(Step { command, shown: Vec::new() });
    }
    steps
}

fn shell(script: &str, folder: &Path, port: u16) -> Command {
    let binaries = Tenure::binary().parent().unwrap().to_owned();
    let folders = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths([binaries].into_iter().chain(std::env::split_paths(&folders))).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::null()).current_dir(folder);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TENURE_")) {
        shell.env_remove(name);
    }
    shell.env("HOME", folder).env("PATH", path).env("NO_COLOR", "1").env_remove("RUST_LOG");
    // The defaults of the reader, at a port that nobody else uses.
    shell.env("TENURE_SERVER__PORT", port.to_string()).env("TENURE_SERVER", format!("http://127.0.0.1:{port}"));
    shell
}

/// The first line that is shown and was not printed. Lines may be left out with `…`, and steps on the way to a result
/// (`03:12:25  Running …`) depend on timing. Ids that are shown are noted with those that were printed.
fn difference(shown: &[String], printed: &str, ids: &mut HashMap<String, String>) -> Option<String> {
    let mut printed = printed.lines();
    for line in shown.iter().filter(|line| !line.is_empty() && *line != "…" && !is_passing(line)) {
        let Some(found) = printed.find(|printed| plain(printed) == plain(line)) else { return Some(line.clone()) };
        let names = line.split_whitespace().zip(found.split_whitespace()).filter(|(word, _)| is_id(word));
        ids.extend(names.map(|(shown, real)| (trimmed(shown).to_owned(), trimmed(real).to_owned())));
    }
    None
}

fn is_passing(line: &str) -> bool {
    is_time(line.split(' ').next().unwrap()) && (line.contains("  Running") || line.contains("  Ready"))
}

/// A line without what differs from run to run: ids, times, paths, white space.
fn plain(line: &str) -> String {
    let words = line.split_whitespace().map(|word| match word {
        _ if is_time(word) => "TIME",
        _ if is_id(word) => "ID",
        _ if word.starts_with("sqlite:") => "PATH",
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

fn trimmed(word: &str) -> &str {
    word.trim_start_matches("key:").trim_end_matches([':', '.', ','])
}

/// Such as `03:12:25`, `2026-12-17T03:12:26Z.`, `0s`, `0.0s` or `(1s`.
fn is_time(word: &str) -> bool {
    let word = word.trim_start_matches('(').trim_end_matches([')', ',', '.']);
    let is_clock = word.matches(':').count() == 2 && word.chars().all(|c| c.is_ascii_digit() || ":-TZ.".contains(c));
    is_clock || word.strip_suffix('s').is_some_and(|number| number.parse::<f64>().is_ok())
}

/// UUIDs, ids such as `run_…` and `sb-…`, ids of API keys, and public keys.
fn is_id(word: &str) -> bool {
    let word = trimmed(word);
    let is_hex = word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let is_public_key = word.len() == 43 && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let is_prefixed = ["run_", "rd_"].iter().any(|prefix| word.starts_with(prefix) && word.len() > 20)
        || word.strip_prefix("sb-").is_some_and(|digits| digits.len() == 8);
    is_prefixed || is_public_key || is_hex && [16, 36].contains(&word.len())
}
