//! Commands in short.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::attempt::{Category, Failure, Report};
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::claim::{Claim, ClaimTask, Claimer, Grant, Seed};
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::hello::Hello;
use tenure_core::command::queues::DeleteQueue;
use tenure_core::command::release::Release;
use tenure_core::command::report::AttemptReport;
use tenure_core::command::retry::Retry;
use tenure_core::command::run::{NewMember, NewRun, SubmitRun};
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Command, Reach};
use tenure_core::dag::DataReport;
use tenure_core::retry::{Jitter, RetryPolicy};
use tenure_core::task::{Idempotency, Spec};
use tenure_core::{RunId, Seq, TaskId};

pub fn task_id(seq: Seq) -> TaskId {
    TaskId::new(1_800_000_000_000, 7, seq)
}

pub fn task(id: TaskId, queue: &str) -> NewTask {
    NewTask {
        id,
        queue: queue.into(),
        operator: "extract".into(),
        tenant: "acme".into(),
        owner: None,
        workspace: "default".into(),
        priority: 5,
        payload: r#"{"day":1}"#.into(),
        spec: Spec::default(),
        start: Start::Now,
        tags: BTreeMap::new(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
    }
}

/// So many attempts, and no wait between them.
pub fn attempts(max_attempts: u32) -> Spec {
    Spec { max_attempts: Some(max_attempts), retry: Some(backoff(0)), ..Spec::default() }
}

/// The same wait after every attempt.
pub fn backoff(ms: i64) -> RetryPolicy {
    RetryPolicy { initial_backoff_ms: ms, factor: 1.0, max_backoff_ms: ms.max(1), jitter: Jitter::None }
}

pub fn key(key: &str, content: u8) -> Option<Idempotency> {
    Some(Idempotency { key: key.into(), fingerprint: [content; 32] })
}

pub fn tags(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A seed that no other claim of this process has.
pub fn seed() -> Seed {
    static COUNTER: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&COUNTER.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Seed(bytes)
}

pub fn claimer(worker: &str) -> Claimer {
    Claimer::worker(worker.into(), seed())
}

pub fn claim(worker: &str, queues: &[&str], max_jobs: usize) -> Claim {
    Claim { claimer: claimer(worker), queues: queues.iter().map(|name| (*name).into()).collect(), max_jobs }
}

pub fn claim_task(worker: &str, task: TaskId) -> Command {
    Command::ClaimTask(ClaimTask { claimer: claimer(worker), task, message: None })
}

pub fn heartbeat(grant: &Grant) -> Command {
    Command::Heartbeat(Heartbeat {
        task: grant.task,
        attempt: None,
        token: grant.token,
        worker: None,
        progress: Default::default(),
        checkpoint: None,
    })
}

pub fn complete(grant: &Grant, result: &str) -> Command {
    let report = Report::succeeded(Some(result.into()));
    Command::Report(AttemptReport {
        task: grant.task,
        attempt_id: grant.attempt_id,
        token: grant.token,
        report,
        data: None,
    })
}

/// As [`complete`], with what the attempt says about datasets.
pub fn complete_with(grant: &Grant, result: &str, data: &Arc<DataReport>) -> Command {
    match complete(grant, result) {
        Command::Report(report) => Command::Report(AttemptReport { data: Some(Arc::clone(data)), ..report }),
        other => other,
    }
}

pub fn fail(grant: &Grant, code: &str, retryable: Option<bool>) -> Command {
    let category = (code == "CANCELLED").then_some(Category::Canceled);
    let report = Report::failed(Failure::new(code, "it broke", None, retryable).of_category(category));
    Command::Report(AttemptReport {
        task: grant.task,
        attempt_id: grant.attempt_id,
        token: grant.token,
        report,
        data: None,
    })
}

pub fn cancel(task: TaskId, mode: Mode) -> Command {
    Command::Cancel(Cancel { task, reason: "stop".into(), mode, reach: Reach::All })
}

pub fn delete_queue(queue: &str, force: bool) -> Command {
    Command::DeleteQueue(DeleteQueue { queue: queue.into(), force, reach: Reach::All })
}

pub fn retry(task: TaskId) -> Command {
    Command::Retry(Retry { task, reach: Reach::All })
}

pub fn release(grant: &Grant) -> Command {
    Command::Release(Release { row: grant.seq(), attempt_id: grant.attempt_id, by_holder: false })
}

pub fn hello(worker: &str, incarnation: &str) -> Command {
    Command::Hello(Hello { worker: worker.into(), incarnation: incarnation.into() })
}

/// Tasks of a run, named `t0` and so on: each entry of the graph lists what its task depends on. One attempt each, so that
/// every failure is final.
pub fn members(tasks: Vec<NewTask>, graph: &[&[usize]]) -> Vec<NewMember> {
    let spec = Spec { max_attempts: Some(1), ..Spec::default() };
    let members = tasks.into_iter().zip(graph).enumerate().map(|(index, (task, depends_on))| NewMember {
        key: format!("t{index}").into(),
        task: NewTask { spec, ..task },
        depends_on: depends_on.to_vec(),
        refs: Vec::new(),
        carried: None,
    });
    members.collect()
}

pub fn run(id: TaskId, key: Option<&str>, tasks: Vec<NewMember>) -> SubmitRun {
    let run = NewRun {
        id: RunId::from_u128(id.as_u128()),
        key: key.map(Into::into),
        tenant: "acme".into(),
        workspace: "default".into(),
        owner: None,
        fingerprint: [7; 32],
        labels: BTreeMap::new(),
        deadline: None,
        parent: None,
    };
    SubmitRun { run, tasks, maker: None }
}
