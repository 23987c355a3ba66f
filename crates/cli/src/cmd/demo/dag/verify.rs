//! Whether what the demo says is true, judged by what the API and the files show.

use std::collections::BTreeSet;

use console::style;
use tenure_client::{Client, TaskFilter};
use tenure_contract::user::{Attempt, Task};
use tenure_contract::words::{AttemptState, TaskState};

use super::plan::{self, POWERS};
use super::scene::{self, Scene};
use crate::cmd::demo::report::history;
use crate::cmd::demo::verify::LOST;
use crate::output::{self, cell, number};

/// Tasks of a job, more than the demo makes.
const TASKS: u32 = 500;
/// The jobs that read.
const JOBS: [&str; 2] = ["power", "sum"];

#[derive(Debug)]
pub struct Verdict {
    /// What the files say, which are gone when this is printed.
    sums: String,
    attempts: Vec<Attempt>,
    checks: Vec<(bool, String)>,
}

/// `held` is the task that `victim` held when it was killed, `again` the partition that was invalidated.
pub async fn verify(client: &Client, held: &str, victim: &str, again: &str) -> anyhow::Result<Verdict> {
    let attempts = client.attempts(held, None).await?.items;
    let (scene, tasks) = settled(client).await?;
    let ranges = scene.committed("sums").count();
    let mut checks = vec![sums(&scene), recovery(&attempts, victim)];
    checks.extend(JOBS.iter().zip(&tasks).map(|(job, tasks)| once_each(job, tasks, ranges, again)));
    checks.push(versions(&scene));
    Ok(Verdict { sums: table_of_sums(&scene), attempts, checks })
}

/// What the server says, and the tasks of the jobs that read, at a moment at which no cron slot changes it.
async fn settled(client: &Client) -> anyhow::Result<(Scene, Vec<Vec<Task>>)> {
    loop {
        let scene = Scene::look(client).await?;
        let mut tasks = Vec::new();
        for name in JOBS {
            let queue = scene.dag.jobs.iter().find(|job| job.name == name).map(|job| job.queue.clone());
            let filter = TaskFilter { queue, limit: Some(TASKS), ..TaskFilter::default() };
            tasks.push(client.list(&filter).await?.items);
        }
        if scene.is_quiet() && Scene::look(client).await?.data == scene.data {
            return Ok((scene, tasks));
        }
    }
}

/// Every range that a source wrote has its sum.
fn sums(scene: &Scene) -> (bool, String) {
    let keys =
        |dataset: &str| scene.committed(dataset).map(|found| found.partition_key.clone()).collect::<BTreeSet<_>>();
    let sources: BTreeSet<_> = keys("asked").union(&keys("due")).cloned().collect();
    let right = sources.iter().filter(|key| scene.is_right(key, POWERS[0])).count();
    let good = right == sources.len() && keys("sums") == sources && keys("due").first().is_some();
    (good, format!("{right} of {} ranges have the right sum, in the file that the server names", sources.len()))
}

/// The attempt of the killed worker was lost, and another worker's succeeded under a higher fence.
fn recovery(attempts: &[Attempt], victim: &str) -> (bool, String) {
    let good = match attempts {
        [lost, .., last] => {
            lost.worker_id == victim
                && lost.reason.as_deref() == Some(LOST)
                && last.worker_id != victim
                && last.state == AttemptState::Succeeded
                && lost.fence < last.fence
        }
        _ => false,
    };
    (good, format!("what {victim} held ran again on the other worker under a higher fence, after {LOST}"))
}

/// A job has one task for each range, and one more for the range that was invalidated.
fn once_each(job: &str, tasks: &[Task], ranges: usize, again: &str) -> (bool, String) {
    let succeeded = tasks.iter().filter(|task| task.state == TaskState::Succeeded).count();
    let good = succeeded == ranges + 1 && tasks.len() == succeeded;
    (good, format!("{job} has {succeeded} tasks for {ranges} ranges: {again} was made again, and no other"))
}

fn table_of_sums(scene: &Scene) -> String {
    let rows = scene.committed("sums").map(|sum| {
        let asked = scene.partition("asked", &sum.partition_key).is_some();
        vec![
            cell(&sum.partition_key),
            cell(if asked { "backfill" } else { "every-minute" }),
            scene::found(sum).map_or_else(|| cell("missing"), number),
            number(sum.generation),
        ]
    });
    output::table(&["RANGE", "FROM", "SUM OF SQUARES", "INVALIDATED"], rows)
}

fn versions(scene: &Scene) -> (bool, String) {
    let is = |state: &str, number: i64| scene.version_in(state) == Some(number);
    (is("Active", 1) && is("RolledBack", 2), "version 1 is active, version 2 was rolled back".to_owned())
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.checks.iter().all(|(good, _)| *good)
    }

    pub fn render(&self) -> String {
        let mut text = format!("\n{}\n\n", self.sums);
        text += &format!("The task that the killed worker held, {}:\n\n", plan::key(plan::HELD));
        text += &format!("{}\n\n", history(&self.attempts));
        for (good, check) in &self.checks {
            let mark = if *good { style("✓").green() } else { style("✗").red() };
            text += &format!("  {} {check}\n", mark.bold());
        }
        text + "\nGo on:\n  tenure dag plan examples/dags/ranges.yaml\n      see docs/DAGS.md\n"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::scene::tests::scene;
    use super::*;

    fn attempt(number: u32, worker: &str, state: &str, reason: &str) -> Attempt {
        serde_json::from_value(json!({
            "attempt": number, "attempt_id": "a", "fence": number, "worker_id": worker, "state": state, "reason": reason,
            "granted_at": "2025-01-15T10:00:00Z", "ended_at": "2025-01-15T10:00:01Z",
        }))
        .unwrap()
    }

    fn task(state: &str) -> Task {
        serde_json::from_value(json!({
            "task_id": "t", "queue": "q", "operator": "o", "state": state, "priority": 5, "attempt": 1, "max_attempts": 3,
            "fence": 1, "payload": {}, "tags": {}, "tenant": "default", "workspace": "default",
            "cancel_requested": false, "created_at": "2025-01-15T10:00:00Z", "run_at": "2025-01-15T10:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn a_recovery_needs_a_lost_attempt_and_another_worker() {
        let lost = || attempt(1, "b", "Failed", LOST);
        assert!(recovery(&[lost(), attempt(2, "a", "Succeeded", "COMPLETED")], "b").0);
        for wrong in [
            vec![],
            vec![lost()],
            vec![lost(), attempt(2, "b", "Succeeded", "COMPLETED")],
            vec![lost(), attempt(2, "a", "Failed", "FAILED")],
            vec![attempt(1, "b", "Failed", "FAILED"), attempt(2, "a", "Succeeded", "COMPLETED")],
            vec![attempt(1, "a", "Failed", LOST), attempt(2, "a", "Succeeded", "COMPLETED")],
        ] {
            assert!(!recovery(&wrong, "b").0, "{wrong:?}");
        }
    }

    #[test]
    fn a_range_too_many_or_too_few_is_noticed() {
        let done = || task("Succeeded");
        assert!(once_each("power", &[done(), done()], 1, "k").0);
        assert!(!once_each("power", &[done()], 1, "k").0);
        assert!(!once_each("power", &[done(), done(), done()], 1, "k").0);
        assert!(!once_each("power", &[done(), done(), task("Failed")], 1, "k").0);
    }

    #[test]
    fn files_that_are_not_there_and_versions_that_are_not_switched_are_noticed() {
        assert!(!sums(&scene()).0);
        assert!(!versions(&scene()).0);
    }
}
