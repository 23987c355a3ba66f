//! Following one task, live.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use jiff::Timestamp;
use tenure_client::Client;
use tenure_contract::user::Task;
use tenure_contract::words::TaskState;

use super::card::error_text;
use super::exit_of;
use crate::exit::Exit;
use crate::output::{self, clean, dim, state_styled};
use crate::times;

/// How long a server may be away before a watcher gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks whether a task has moved.
const LOOK: Duration = Duration::from_secs(1);
/// After this long without a change, a reader is told why.
const STILL: Duration = Duration::from_secs(2);

pub async fn run(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    follow(client, id, |task, screen| if json { output::json(task) } else { screen.show(task) }, json).await
}

/// As `watch`, but with `json` only the last word is printed.
pub async fn until_end(client: &Client, id: &str, json: bool) -> anyhow::Result<Exit> {
    let show = |task: &Task, screen: &mut Screen| match json {
        true if task.state.is_final() => output::json(task),
        true => Ok(()),
        false => screen.show(task),
    };
    follow(client, id, show, json).await
}

async fn follow(
    client: &Client,
    id: &str,
    mut show: impl FnMut(&Task, &mut Screen) -> anyhow::Result<()>,
    quiet: bool,
) -> anyhow::Result<Exit> {
    let mut screen = Screen::new(quiet);
    let mut watch = client.watch(id).with_progress();
    let mut seen = None;
    let mut silent_since = None;
    loop {
        let next = tokio::select! {
            next = watch.next() => next,
            never = screen.wonder(client, id) => match never {},
        };
        let Some(next) = next else { break };
        match next {
            Ok(task) => {
                silent_since = None;
                show(&task, &mut screen)?;
                seen = Some(task);
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

/// A bar while the task runs, if somebody looks; lines otherwise. All of it is on stderr: the result alone is on stdout.
struct Screen {
    quiet: bool,
    bar: Option<ProgressBar>,
    last: Option<String>,
    progress: Option<String>,
    /// Since when nothing has moved.
    still_since: Instant,
    /// What was said about why nothing moves.
    told_why: Option<String>,
}

impl Screen {
    fn new(quiet: bool) -> Self {
        let bar = if quiet { None } else { output::progress_bar(100, "{pos:>3} %  {wide_msg}") };
        Self { quiet, bar, last: None, progress: None, still_since: Instant::now(), told_why: None }
    }

    fn show(&mut self, task: &Task) -> anyhow::Result<()> {
        let line = line(task);
        if self.last.as_ref() != Some(&line) {
            self.say(&format!("{}  {line}", dim(times::clock(Timestamp::now()))));
            self.last = Some(line);
            self.still_since = Instant::now();
        }
        if task.state == TaskState::Running {
            self.show_progress(task);
        }
        if task.state.is_final() {
            self.clear();
            if let Some(result) = &task.result {
                output::line(result.as_str())?;
            }
        }
        Ok(())
    }

    /// Says why a task that does not start does not. Does not end.
    async fn wonder(&mut self, client: &Client, id: &str) -> Infallible {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.quiet || self.still_since.elapsed() < STILL {
                continue;
            }
            // The watch itself deals with a server that is away.
            let Ok(task) = client.get(id).await else { continue };
            let is_running = task.state == TaskState::Running && task.not_started.is_none();
            if !is_running && !task.state.is_final() {
                self.tell_why(client, &task).await;
            }
        }
    }

    /// Once for each reason.
    async fn tell_why(&mut self, client: &Client, task: &Task) {
        let Ok(why) = client.why(&task.task_id).await else { return };
        let codes = why.why.iter().map(|reason| reason.code.as_str()).collect::<Vec<_>>().join(",");
        if self.told_why.as_ref() != Some(&codes) && !why.why.is_empty() {
            let width = output::width_of(&console::Term::stderr());
            self.say(super::card::reasons(&why, Some(&clean(&task.queue)), Timestamp::now(), width).trim_end());
            self.told_why = Some(codes);
        }
    }

    fn show_progress(&mut self, task: &Task) {
        let Some(progress) = super::card::progress(task) else { return };
        match &self.bar {
            Some(bar) => {
                bar.set_position(u64::from(task.progress_pct.unwrap_or(0)));
                bar.set_message(task.progress_message.as_deref().map(clean).unwrap_or_default());
            }
            None if self.progress.as_ref() != Some(&progress) => {
                self.say(&format!("{}  {progress}", dim(times::clock(Timestamp::now()))));
            }
            None => {}
        }
        self.progress = Some(progress);
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

/// What changed, in one line.
fn line(task: &Task) -> String {
    let state = state_styled(task.state.as_str());
    match task.state {
        TaskState::Running => {
            let on = match task.worker_id.as_deref().filter(|worker| !worker.is_empty()) {
                Some(worker) => format!(" on {}", clean(worker)),
                None => ", pushed and not started yet".to_owned(),
            };
            let cancel = if task.cancel_requested { ", cancel requested" } else { "" };
            format!("{state}  attempt {} of {}{on}{cancel}", task.attempt, task.max_attempts)
        }
        TaskState::Scheduled if task.attempt > 0 => {
            let error = task.error.as_ref().map_or_else(String::new, |error| format!(" ({})", error_text(error)));
            format!("{state}  attempt {} failed{error}; next try at {}", task.attempt, clean(&task.run_at))
        }
        TaskState::Scheduled => format!("{state}  due at {}", clean(&task.run_at)),
        TaskState::Failed => {
            let error = task.error.as_ref().map(error_text).unwrap_or_default();
            let dead = if task.dead_lettered_at.is_some() { "  (in the dead letters)" } else { "" };
            let attempts = if task.attempt == 1 { "attempt" } else { "attempts" };
            format!("{state}  after {} {attempts}: {error}{dead}", task.attempt)
        }
        TaskState::Canceled => format!("{state}  {}", task.cancel_reason.as_deref().map(clean).unwrap_or_default()),
        _ => state.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_has_the_task() {
        console::set_colors_enabled(false);
        let task = |more: &str| {
            let text = format!(
                r#"{{"task_id":"018c","queue":"q","operator":"o","priority":5,"attempt":1,"max_attempts":3,"fence":1,
                "payload":{{}},"tags":{{}},"tenant":"default","workspace":"default","cancel_requested":false,
                "created_at":"2025-01-15T10:00:00Z","run_at":"2025-01-15T10:00:00Z",{more}}}"#
            );
            serde_json::from_str::<Task>(&text).unwrap()
        };
        for (more, said) in [
            (r#""state":"Running","worker_id":"w-1""#, "Running  attempt 1 of 3 on w-1"),
            (r#""state":"Running","worker_id":"""#, "Running  attempt 1 of 3, pushed and not started yet"),
            (r#""state":"Running""#, "Running  attempt 1 of 3, pushed and not started yet"),
            (r#""state":"Failed""#, "Failed  after 1 attempt: "),
        ] {
            assert_eq!(line(&task(more)), said);
        }
    }
}
