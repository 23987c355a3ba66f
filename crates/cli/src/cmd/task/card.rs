//! One task in full: what it is, what happened to it, why it stands where it stands.

use jiff::Timestamp;
use tenure_client::{Client, Json};
use tenure_contract::pull::{JobError, JobMetrics};
use tenure_contract::user::{Attempt, Page, Task, Why};
use tenure_contract::words::TaskState;
use tenure_core::queue::JOB_QUEUES;

use crate::cmd::connect::all_pages;
use crate::exit::Exit;
use crate::output::{self, Card, cell, cell_or_dash, clean, dim, number, shortened, state_cell, state_styled};
use crate::times;

const JSON_LENGTH: usize = 500;
const ERROR_LENGTH: usize = 60;

pub async fn show(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    let task = client.get(id).await?;
    if json {
        output::json(&task)?
    } else {
        output::line(card(&task, Timestamp::now()))?
    }
    Ok(Exit::Ok)
}

fn card(task: &Task, now: Timestamp) -> String {
    let when = |point: &String| {
        let distance = times::distance(point, now);
        format!("{} {}", clean(point), dim(format!("({distance})")))
    };
    let json = |json: &Json| shortened(json.as_str(), JSON_LENGTH);
    let dead = if task.dead_lettered_at.is_some() { ", in the dead letters" } else { "" };
    let cancel = if task.cancel_requested && task.state == TaskState::Running { ", cancel requested" } else { "" };
    let attempts = format!("attempt {} of {}, fence {}", task.attempt, task.max_attempts, task.fence);
    let tags: Vec<_> = task.tags.iter().map(|(name, value)| clean(&format!("{name}={value}"))).collect();
    let lease = task.lease_expires_at.as_ref().map(|until| format!(", lease until {}", when(until)));

    let mut card = Card::default();
    card.row("state", format!("{}{dead}{cancel}", state_styled(task.state.as_str())))
        .row("attempts", attempts)
        .row_if("progress", progress(task))
        .row_if("not started", task.not_started.as_deref().map(clean))
        .row_if("reason", task.reason.as_deref().or(task.cancel_reason.as_deref()).map(clean))
        .row_if("error", task.error.as_ref().map(error_text))
        .row("queue", format!("{}, priority {}", clean(&task.queue), task.priority))
        .row("operator", clean(&task.operator))
        .row_if("worker", task.worker_id.as_deref().map(|id| format!("{}{}", clean(id), lease.unwrap_or_default())))
        .row("scope", format!("tenant {}, workspace {}", clean(&task.tenant), clean(&task.workspace)))
        .row_if("submitted by", task.submitted_by.as_deref().map(clean))
        .row_if("tags", (!tags.is_empty()).then(|| tags.join(", ")))
        .row_if("key", task.idempotency_key.as_deref().map(clean))
        .row("created", when(&task.created_at))
        .row_if("due", matches!(task.state, TaskState::Scheduled | TaskState::Ready).then(|| when(&task.run_at)))
        .row_if("started", task.started_at.as_ref().map(when))
        .row_if("finished", task.finished_at.as_ref().map(when))
        .row_if("deadline", task.deadline.as_ref().map(when))
        .row("payload", json(&task.payload))
        .row_if("result", task.result.as_ref().map(json));
    format!("Task {}\n{}", console::style(clean(&task.task_id)).bold(), card.render())
}

/// How far it is. What has succeeded is done, whatever was said last.
pub fn progress(task: &Task) -> Option<String> {
    let message = task.progress_message.as_deref().map(clean);
    let Some(pct) = task.progress_pct else { return message };
    let bar = output::meter(if task.state == TaskState::Succeeded { 100 } else { pct });
    Some(message.map_or(bar.clone(), |message| format!("{bar}  {message}")))
}

pub fn error_text(error: &JobError) -> String {
    clean(&format!("{}: {}", error.code, error.message))
}

pub async fn attempts(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    let items: Vec<Attempt> = all_pages(async |cursor| client.attempts(id, cursor).await).await?;
    if json {
        output::json(&Page { items, next_cursor: None })?;
    } else if items.is_empty() {
        output::line("No attempt yet. `tenure task why` shows what it is waiting for.")?;
    } else {
        output::line(attempts_table(&items))?;
    }
    Ok(Exit::Ok)
}

fn attempts_table(attempts: &[Attempt]) -> String {
    let late = attempts.iter().any(|attempt| attempt.late_report.is_some());
    let measured = attempts.iter().any(|attempt| attempt.metrics.is_some());
    let rows = attempts.iter().map(|attempt| {
        let error = attempt.error.as_ref().map(|error| shortened(&error_text(error), ERROR_LENGTH));
        let took = attempt.ended_at.as_ref().and_then(|end| times::between(&attempt.granted_at, end));
        let mut row = vec![
            number(attempt.attempt),
            number(attempt.fence),
            cell(&attempt.worker_id),
            state_cell(attempt.state.as_str()),
            cell_or_dash(attempt.reason.as_ref()),
            cell(&attempt.granted_at),
            cell_or_dash(took),
            cell_or_dash(error),
        ];
        if measured {
            row.push(cell_or_dash(attempt.metrics.as_ref().map(used)));
        }
        if late {
            let report = attempt.late_report.as_ref().map(|report| {
                let more = report.more.map_or_else(String::new, |more| format!(", {more} more"));
                format!("{} at {}{more}: not applied", report.outcome, report.received_at)
            });
            row.push(cell_or_dash(report));
        }
        row
    });
    let mut header = vec!["ATTEMPT", "FENCE", "WORKER", "STATE", "REASON", "GRANTED", "TOOK", "ERROR"];
    if measured {
        header.push("USED");
    }
    if late {
        header.push("LATE REPORT");
    }
    output::table(&header, rows)
}

fn used(metrics: &JobMetrics) -> String {
    let cpu = metrics.cpu_time_ms.map(|ms| format!("{ms} ms CPU"));
    let memory = metrics.peak_memory_bytes.map(|bytes| format!("{:.1} MB", bytes as f64 / 1e6));
    [cpu, memory].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

pub async fn why(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    let why = client.why(id).await?;
    if json {
        output::json(&why)?;
        return Ok(Exit::Ok);
    }
    // Only for the advice: without the name of the queue there is none.
    let queue = client.get(id).await.ok().map(|task| clean(&task.queue));
    let width = output::width_of(&console::Term::stdout());
    output::line(reasons(&why, queue.as_deref(), Timestamp::now(), width))?;
    Ok(Exit::Ok)
}

/// Lines of messages are as long as `width`; those of commands are not broken, so that they can be copied.
pub(super) fn reasons(why: &Why, queue: Option<&str>, now: Timestamp, width: Option<usize>) -> String {
    let mut text = format!("Task {} is {}.\n", clean(&why.task_id), state_styled(why.state.as_str()));
    for reason in &why.why {
        let since = reason.since.as_deref().map(|since| format!(", since {}", times::age(since, now)));
        let code = dim(format!("({}{})", clean(&reason.code), since.unwrap_or_default()));
        text += &output::wrapped(&format!("  - {} {code}", clean(&reason.message)), 4, width);
        text.push('\n');
        let advice = match (reason.code.as_str(), queue) {
            ("queue_paused", Some(queue)) => format!("tenure queue resume {queue}"),
            // Workers of jobs are not `tenure worker`.
            ("no_worker" | "queue_limit" | "rate_limit", Some(queue)) if queue.starts_with(JOB_QUEUES) => continue,
            ("no_worker", Some(queue)) => format!("tenure worker --queue {queue}"),
            ("push_target_down", Some(queue)) => format!("tenure queue show {queue}, then tenure push test"),
            ("queue_limit" | "rate_limit", Some(queue)) => format!("tenure queue set {queue} --help"),
            ("workers_drained", _) => "tenure worker list, then tenure worker undrain".to_owned(),
            ("unknown_operator", Some(queue)) => format!("tenure worker --queue {queue} --operator NAME=COMMAND"),
            ("ended", _) if why.state == TaskState::Failed => {
                let id = clean(&why.task_id);
                format!("tenure task logs {id}\n    after a fix: tenure task retry {id}")
            }
            _ => continue,
        };
        text += &format!("    {} {advice}\n", console::style("try:").cyan());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = r#"{"task_id":"018c","queue":"etl","operator":"extract","state":"Running","priority":5,"attempt":2,
        "max_attempts":3,"fence":8,"payload":{"day":1},"tags":{"team":"etl"},"tenant":"default","workspace":"prod",
        "cancel_requested":true,"created_at":"2025-01-15T10:00:00Z","run_at":"2025-01-15T10:00:00Z",
        "started_at":"2025-01-15T10:00:30Z","worker_id":"w-1","lease_expires_at":"2025-01-15T10:01:30Z",
        "progress_pct":50,"progress_message":"half\u0007way"}"#;

    fn now() -> Timestamp {
        console::set_colors_enabled(false);
        "2025-01-15T10:01:00Z".parse().unwrap()
    }

    #[test]
    fn a_card_shows_what_is_known() {
        let text = card(&serde_json::from_str(TASK).unwrap(), now());
        let expected = "Task 018c
  state     Running, cancel requested
  attempts  attempt 2 of 3, fence 8
  progress  ━━━━━━━━━━━━──────────── 50 %  half\u{fffd}way
  queue     etl, priority 5
  operator  extract
  worker    w-1, lease until 2025-01-15T10:01:30Z (in 30s)
  scope     tenant default, workspace prod
  tags      team=etl
  created   2025-01-15T10:00:00Z (60s ago)
  started   2025-01-15T10:00:30Z (30s ago)
  payload   {\"day\":1}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn attempts_show_late_reports_only_where_there_are_some() {
        console::set_colors_enabled(false);
        let plain = r#"{"attempt":1,"attempt_id":"a","fence":7,"worker_id":"w-1","state":"Failed",
            "reason":"HEARTBEAT_TIMEOUT","granted_at":"2025-01-15T10:00:00Z","ended_at":"2025-01-15T10:00:02.5Z"}"#;
        let mut attempt: Attempt = serde_json::from_str(plain).unwrap();
        let text = attempts_table(std::slice::from_ref(&attempt));
        assert!(text.contains("HEARTBEAT_TIMEOUT") && text.contains("2.5s") && !text.contains("LATE"), "{text}");
        let late = r#"{"received_at":"2025-01-15T10:03:00Z","outcome":"Succeeded"}"#;
        attempt.late_report = Some(serde_json::from_str(late).unwrap());
        let text = attempts_table(&[attempt]);
        assert!(text.contains("Succeeded at 2025-01-15T10:03:00Z: not applied"), "{text}");
    }

    #[test]
    fn reasons_come_with_advice() {
        let why = r#"{"task_id":"018c","state":"Ready","why":[
            {"code":"no_worker","message":"no worker has ever asked for this queue","since":"2025-01-15T10:00:00Z"},
            {"code":"rate_limit","message":"slow"}]}"#;
        let text = reasons(&serde_json::from_str(why).unwrap(), Some("etl"), now(), None);
        let expected = "Task 018c is Ready.
  - no worker has ever asked for this queue (no_worker, since 60s)
    try: tenure worker --queue etl
  - slow (rate_limit)
    try: tenure queue set etl --help
";
        assert_eq!(text, expected);
    }
}
