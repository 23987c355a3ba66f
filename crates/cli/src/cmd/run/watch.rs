//! Following one run, live.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use jiff::Timestamp;
use tenure_client::run::{Run, RunTask};
use tenure_client::{Client, RunState, TaskState};

use super::{counts, exit_of};
use crate::exit::Exit;
use crate::output::{self, clean, dim, shortened, state_styled};
use crate::times;

/// How long a server may be away before a watcher gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many changes at once are told one by one; more are told as a number.
const TOLD: usize = 20;
const ERROR_LENGTH: usize = 100;

pub async fn run(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    follow(client, id, json, true).await
}

/// As `watch`, but with `json` only the last word is printed.
pub async fn until_end(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    follow(client, id, json, false).await
}

async fn follow(client: &Client, id: &str, json: bool, every: bool) -> anyhow::Result<Exit> {
    let mut screen = Screen::new(json);
    let mut watch = client.watch_run(id);
    let mut seen: Option<Run> = None;
    let mut silent_since = None;
    while let Some(next) = watch.next().await {
        match next {
            Ok(run) => {
                silent_since = None;
                if !json {
                    screen.show(&run)?;
                } else if every || run.state.is_final() {
                    output::json(&run)?;
                }
                seen = Some(run);
            }
            // A server that was never there is not waited for.
            Err(error) if seen.is_some() && error.is_temporary() => {
                let since = *silent_since.get_or_insert_with(|| {
                    screen.say("the server does not answer; trying again");
                    Instant::now()
                });
                if since.elapsed() > PATIENCE {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    screen.clear();
    Ok(seen.as_ref().map_or(Exit::Failure, exit_of))
}

/// On stderr a line for each change, and below them a bar if somebody looks.
struct Screen {
    bar: Option<ProgressBar>,
    states: HashMap<String, (TaskState, u32)>,
    last: Option<RunState>,
}

impl Screen {
    fn new(quiet: bool) -> Self {
        let bar = if quiet { None } else { output::progress_bar(1, "{pos}/{len}  {wide_msg}") };
        Self { bar, states: HashMap::new(), last: None }
    }

    fn show(&mut self, run: &Run) -> anyhow::Result<()> {
        let first = self.states.is_empty();
        let mut changed = Vec::new();
        for task in &run.tasks {
            let now = (task.state.clone(), task.attempt);
            if self.states.get(&task.key) != Some(&now) {
                // Tasks that only wait are not reported.
                if !first || !matches!(task.state, TaskState::Blocked | TaskState::Ready) {
                    changed.push(task);
                }
                self.states.insert(task.key.clone(), now);
            }
        }
        if changed.len() > TOLD {
            self.print(&format!("{} tasks changed: {}", changed.len(), counts(run)));
        } else {
            for task in changed {
                self.print(&line(task));
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_length(u64::from(run.counts.total));
            bar.set_position(u64::from(run.counts.total - run.counts.open.min(run.counts.total)));
            bar.set_message(at_work(run));
        }
        let state = format!("run {}  {}", state_styled(run.state.as_str()), counts(run));
        if self.last.as_ref() != Some(&run.state) {
            if run.state.is_final() {
                self.clear();
                output::line(format!("{}  {state}", dim(times::clock(Timestamp::now()))))?;
            } else {
                self.print(&state);
            }
            self.last = Some(run.state.clone());
        }
        Ok(())
    }

    fn print(&self, text: &str) {
        self.say(&format!("{}  {text}", dim(times::clock(Timestamp::now()))));
    }

    fn say(&self, text: &str) {
        output::progress_line(self.bar.as_ref(), text);
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What runs now, and how far it is.
fn at_work(run: &Run) -> String {
    let running = run.tasks.iter().filter(|task| task.state == TaskState::Running);
    let named = running.map(|task| match task.progress_pct {
        Some(pct) => format!("{} {pct} %", clean(&task.key)),
        None => clean(&task.key),
    });
    named.collect::<Vec<_>>().join(", ")
}

fn line(task: &RunTask) -> String {
    let state = state_styled(task.state.as_str());
    let key = clean(&task.key);
    let took = task.started_at.as_deref().zip(task.finished_at.as_deref());
    let took = took.and_then(|(start, end)| times::between(start, end)).map(|took| format!(" after {took}"));
    let took = took.unwrap_or_default();
    match task.state {
        TaskState::Failed => {
            let error = task.error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
            format!("{key}  {state}{took}  {}", shortened(&error.unwrap_or_default(), ERROR_LENGTH))
        }
        TaskState::Canceled => format!("{key}  {state}  {}", clean(task.cancel_reason.as_deref().unwrap_or_default())),
        TaskState::Running if task.attempt > 1 => format!("{key}  {state}  attempt {}", task.attempt),
        TaskState::Scheduled if task.attempt > 0 => format!("{key}  {state}  attempt {} failed", task.attempt),
        _ => format!("{key}  {state}{took}"),
    }
}
