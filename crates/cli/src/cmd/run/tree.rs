//! A run as a tree of its tasks.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use tenure_client::run::{Run, RunTask};
use tenure_client::{Client, TaskState};

use super::counts;
use crate::cmd::ids;
use crate::exit::Exit;
use crate::output::{self, Card, clean, dim, shortened, state_styled};
use crate::times;

/// So many tasks are shown unless all are asked for.
const SHOWN: usize = 100;
/// Deeper than this a tree goes on at the same depth: it would leave the screen.
const DEPTH: usize = 12;
const NOTE_LENGTH: usize = 70;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Id of the run: run_ULID, a bare ULID or a UUID
    #[arg(value_name = "RUN")]
    id: String,
    /// Show all tasks, without a limit
    #[arg(long)]
    all: bool,
}

pub async fn run(client: &Client, args: Args, json: bool) -> anyhow::Result<Exit> {
    let run = client.run(&ids::run(client, &args.id).await?).await?;
    if json {
        output::json(&run)?;
    } else {
        output::line(page(&run, if args.all { usize::MAX } else { SHOWN }, Timestamp::now()))?;
    }
    Ok(Exit::Ok)
}

fn page(run: &Run, limit: usize, now: Timestamp) -> String {
    let mut card = Card::default();
    card.row_if("key", run.run_key.as_deref().map(clean));
    card.row("state", state_styled(run.state.as_str()).to_string());
    card.row("tasks", counts(run));
    let end = run.finished_at.clone().unwrap_or_else(|| now.to_string());
    let took = times::between(&run.created_at, &end).unwrap_or_default();
    let verb = if run.finished_at.is_some() { "took" } else { "for" };
    card.row(
        "created",
        format!("{}  ({}), {verb} {took}", clean(&run.created_at), times::distance(&run.created_at, now)),
    );
    card.row_if("deadline", run.deadline.as_deref().map(clean));
    card.row_if("cancel", run.cancel_reason.as_deref().map(clean));
    card.row_if("repeats", run.parent_run_id.as_deref().map(clean));
    if !run.labels.is_empty() {
        let labels: Vec<String> = run.labels.iter().map(|(name, value)| clean(&format!("{name}={value}"))).collect();
        card.row("labels", labels.join(", "));
    }
    format!("Run {}\n{}\n{}", clean(&run.run_id), card.render(), tree(run, limit, now))
}

/// A task that depends on several stands below the first of them; the others are named beside it.
fn tree(run: &Run, limit: usize, now: Timestamp) -> String {
    let mut below: HashMap<&str, Vec<&RunTask>> = HashMap::new();
    let mut roots = Vec::new();
    for task in &run.tasks {
        match task.depends_on.first() {
            Some(first) => below.entry(first).or_default().push(task),
            None => roots.push(task),
        }
    }
    // With a stack of its own: a chain can be ten thousand tasks deep.
    let mut line: Vec<(&RunTask, String, String, usize)> =
        roots.iter().rev().map(|task| (*task, String::new(), String::new(), 0)).collect();
    let mut rows = Vec::new();
    let mut seen = HashSet::new();
    while let Some((task, lead, indent, depth)) = line.pop() {
        if rows.len() == limit || !seen.insert(&task.key) {
            continue;
        }
        rows.push((format!("{lead}{}", clean(&task.key)), task));
        let children = below.get(task.key.as_str()).map_or(&[][..], Vec::as_slice);
        for (index, child) in children.iter().enumerate().rev() {
            let last = index + 1 == children.len();
            let (lead, indent) = if depth < DEPTH {
                let (branch, stem) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
                (format!("{indent}{branch}"), format!("{indent}{stem}"))
            } else {
                (format!("{indent}· "), indent.clone())
            };
            line.push((child, lead, indent, depth + 1));
        }
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text: String = rows.iter().map(|(name, task)| row(name, width, task, now)).collect();
    if rows.len() < run.tasks.len() {
        text += &format!("… and {} more: use --all to show them\n", run.tasks.len() - rows.len());
    }
    text
}

const STATE_WIDTH: usize = 10;
const TIME_WIDTH: usize = 6;

fn row(name: &str, width: usize, task: &RunTask, now: Timestamp) -> String {
    let pad = " ".repeat(width - name.chars().count().min(width));
    let state = format!(
        "{}{}",
        state_styled(task.state.as_str()),
        " ".repeat(STATE_WIDTH.saturating_sub(task.state.as_str().len()))
    );
    let took = took(task, now);
    let took = format!("{}{took}", " ".repeat(TIME_WIDTH.saturating_sub(took.chars().count())));
    let line = format!("{name}{pad}  {state}  {}  {}", dim(took), note(task, now));
    format!("{}\n", line.trim_end())
}

/// How long its attempt took, or has been running.
fn took(task: &RunTask, now: Timestamp) -> String {
    let now = now.to_string();
    let end = match (&task.state, &task.finished_at) {
        (TaskState::Running, _) => Some(now.as_str()),
        (_, Some(end)) => Some(end.as_str()),
        _ => None,
    };
    task.started_at.as_deref().zip(end).and_then(|(start, end)| times::between(start, end)).unwrap_or_default()
}

/// What is worth knowing about a task in this state, and what else it waits or waited for.
fn note(task: &RunTask, now: Timestamp) -> String {
    let mut parts = Vec::new();
    match task.state {
        TaskState::Running => {
            parts.extend(task.progress_pct.map(|pct| format!("{pct} %")));
            parts.extend(task.progress_message.clone());
        }
        TaskState::Scheduled if task.attempt > 0 => {
            let due = task.run_at.as_deref().map(|due| times::distance(due, now)).unwrap_or_default();
            parts.push(format!("attempt {} failed, next {due}", task.attempt));
        }
        TaskState::Failed => {
            parts.extend(task.error.as_ref().map(|error| format!("{}: {}", error.code, error.message)))
        }
        TaskState::Canceled => parts.extend(task.cancel_reason.clone()),
        TaskState::Blocked | TaskState::Scheduled => {
            parts.extend(task.run_at.as_deref().map(|due| format!("due {}", times::distance(due, now))))
        }
        _ => {}
    }
    if task.attempt > 1 && task.state != TaskState::Scheduled {
        parts.push(format!("attempt {}", task.attempt));
    }
    if let [_, others @ ..] = task.depends_on.as_slice()
        && !others.is_empty()
    {
        let more = if others.len() > 3 { format!(" and {} more", others.len() - 3) } else { String::new() };
        parts.push(format!("also after {}{more}", others[..others.len().min(3)].join(", ")));
    }
    shortened(&parts.join("; "), NOTE_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(key: &str, state: &str, depends_on: &[&str]) -> serde_json::Value {
        serde_json::json!({"key": key, "task_id": "task_x", "state": state, "attempt": 1, "depends_on": depends_on,
            "operator": "op", "queue": "q"})
    }

    fn run(tasks: Vec<serde_json::Value>) -> Run {
        serde_json::from_value(serde_json::json!({"run_id": "run_x", "state": "Running", "fingerprint": "sha256:00",
            "tenant": "default", "workspace": "default", "cancel_requested": false, "created_at": "2025-01-15T10:00:00Z",
            "counts": {"total": 5, "open": 2, "succeeded": 1, "failed": 1, "skipped": 1, "canceled": 0, "running": 1,
            "blocked": 1}, "tasks": tasks}))
        .unwrap()
    }

    fn now() -> Timestamp {
        "2025-01-15T10:01:00Z".parse().unwrap()
    }

    #[test]
    fn a_tree_stands_below_its_first_dependency_and_names_the_others() {
        console::set_colors_enabled(false);
        let mut first = task("extract", "Succeeded", &[]);
        first["started_at"] = "2025-01-15T10:00:01Z".into();
        first["finished_at"] = "2025-01-15T10:00:03Z".into();
        let mut running = task("load", "Running", &["extract"]);
        running["started_at"] = "2025-01-15T10:00:30Z".into();
        (running["progress_pct"], running["progress_message"]) = (40.into(), "writing\u{1b}[2J".into());
        let mut failed = task("check", "Failed", &["extract"]);
        failed["error"] = serde_json::json!({"code": "BAD", "message": "no rows"});
        let tasks =
            vec![first, running, task("report", "Blocked", &["load", "check"]), failed, task("other", "Ready", &[])];
        let lines: Vec<String> = tree(&run(tasks), 100, now()).lines().map(ToOwned::to_owned).collect();
        assert_eq!(
            lines,
            [
                "extract       Succeeded     2.0s",
                "├─ load       Running        30s  40 %; writing\u{fffd}[2J",
                "│  └─ report  Blocked             also after check",
                "└─ check      Failed              BAD: no rows",
                "other         Ready",
            ]
        );
    }

    #[test]
    fn a_long_run_is_cut_and_a_deep_one_stays_on_the_screen() {
        console::set_colors_enabled(false);
        let mut tasks = vec![task("t0", "Succeeded", &[])];
        for n in 1..10_000 {
            tasks.push(task(&format!("t{n}"), "Blocked", &[&format!("t{}", n - 1)]));
        }
        let run = run(tasks);
        let text = tree(&run, 100, now());
        assert_eq!(text.lines().count(), 101);
        assert!(text.ends_with("… and 9900 more: use --all to show them\n"), "{text}");
        let all = tree(&run, usize::MAX, now());
        assert_eq!(all.lines().count(), 10_000);
        assert!(all.lines().all(|line| line.chars().count() < 80));
    }

    #[test]
    fn a_page_says_how_the_run_stands() {
        console::set_colors_enabled(false);
        let page = page(&run(vec![task("a", "Running", &[])]), 100, now());
        for part in [
            "Run run_x",
            "state    Running",
            "5 tasks: 1 succeeded, 1 failed, 1 skipped, 1 running, 1 blocked",
            "(60s ago), for 60s",
        ] {
            assert!(page.contains(part), "{page}");
        }
    }
}
