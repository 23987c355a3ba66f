//! A command from its start to its end: how long it may take, and what watchers are told about it.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_contract::sandboxes::ExecRequest;
use tenure_core::sandbox::Sandbox;
use tenure_engine::sandboxes::{Caller as Asker, ExecGuard, Found, Route, SandboxError, Sandboxes};

use super::calls::{self, Reached, known};
use super::duration_ms;
use crate::access::caller::Caller;
use crate::audit::plain;
use crate::error::{Fault, SandboxFaultKind};
use crate::state::App;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A worker of the contract alone does not tell the code.
    Exited(Option<i32>),
    TimedOut,
    Failed,
    Canceled,
}

impl Outcome {
    pub fn of_fault(fault: &Fault) -> Self {
        match fault {
            Fault::Sandbox(fault) if fault.kind == SandboxFaultKind::Timeout => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

/// Who runs it, for the manager.
fn asker(caller: &Caller) -> Asker {
    Asker {
        tenant: caller.home(),
        owner: caller.subject.clone(),
        reach: caller.reach(),
        actor: std::sync::Arc::clone(&caller.actor),
        request_id: None,
    }
}

/// Tells watchers that a file was written or read. Nobody waits for it.
pub fn tell_of_file(app: &App, caller: &Caller, sandbox: &str, kind: &'static str, path: &str) {
    let (app, asker, sandbox, path) = (app.clone(), asker(caller), sandbox.to_owned(), plain(path));
    tokio::spawn(async move {
        let Ok(part) = app.sandboxes() else { return };
        if let Ok(Some(row)) = part.manager.stored(&sandbox, &asker).await {
            part.manager.tell(kind, &row, json!({"path": path}));
        }
    });
}

/// A command that runs. Dropped without an end, its client has left.
#[derive(Debug)]
pub struct Exec {
    manager: Sandboxes,
    row: Sandbox,
    began: Instant,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// While it lives, the sandbox is not restored.
    guard: Option<ExecGuard>,
    /// Until the first call.
    route: Option<Result<Route, SandboxError>>,
}

impl Exec {
    pub async fn begin(app: &App, caller: &Caller, sandbox: &str, asked: &ExecRequest) -> Result<Self, Fault> {
        let manager = app.sandboxes()?.manager.clone();
        known(sandbox)?;
        let asked_ms = asked.timeout.as_deref().map(|timeout| duration_ms(timeout, "timeout")).transpose()?;
        let Found { row, max_exec_timeout_ms, route } = manager.find(sandbox, &caller.reach()).await?;
        let default_ms = manager.settings().default_exec_timeout_ms;
        let timeout = effective(asked_ms, default_ms, max_exec_timeout_ms);
        let guard = Some(manager.begin_exec(&row.id));
        manager.tell("exec.started", &row, json!({}));
        Ok(Self { manager, row, began: Instant::now(), timeout, guard, route: Some(route) })
    }

    /// Calls the worker of the sandbox, by the way that was found at the beginning.
    pub async fn call<T, F, R>(&mut self, app: &App, caller: &Caller, calling: F) -> Result<T, Fault>
    where
        F: Fn(Reached) -> R + Send + Sync,
        R: Future<Output = Result<T, tenure_rpc::Error>> + Send,
        T: Send,
    {
        match self.route.take() {
            Some(route) => calls::call_by(app, caller, route?, calling).await,
            None => calls::call(app, caller, &self.row.id, calling).await,
        }
    }

    pub fn end(mut self, outcome: &Outcome) {
        self.ended(outcome);
    }

    fn ended(&mut self, outcome: &Outcome) {
        if self.guard.take().is_none() {
            return;
        }
        let took_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (kind, data) = match outcome {
            Outcome::Exited(code) => ("exec.completed", json!({"exit_code": code, "duration_ms": took_ms})),
            Outcome::TimedOut => ("exec.timeout", json!({"duration_ms": took_ms})),
            Outcome::Failed => ("exec.failed", json!({"duration_ms": took_ms})),
            Outcome::Canceled => ("exec.failed", json!({"duration_ms": took_ms, "reason": "canceled"})),
        };
        let name = match outcome {
            Outcome::Exited(_) => "tenure_operation_success_total",
            _ => "tenure_operation_failure_total",
        };
        let provider = self.row.spec.provider.clone();
        metrics::counter!(name, "operation" => "exec", "provider" => provider.clone()).increment(1);
        metrics::histogram!("tenure_operation_latency_milliseconds", "operation" => "exec", "provider" => provider)
            .record(took_ms as f64);
        self.manager.tell(kind, &self.row, data);
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.ended(&Outcome::Canceled);
    }
}

/// What was asked for or the default, and never more than the maximum. 0 is without a bound.
fn effective(asked_ms: Option<i64>, default_ms: i64, max_ms: i64) -> Option<Duration> {
    let wanted = asked_ms.filter(|ms| *ms > 0).unwrap_or(default_ms);
    let ms = match (wanted > 0, max_ms > 0) {
        (true, true) => wanted.min(max_ms),
        (true, false) => wanted,
        (false, _) => max_ms,
    };
    (ms > 0).then(|| Duration::from_millis(ms.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_what_was_asked_for_up_to_the_maximum() {
        for (asked, default, max, expected) in [
            (None, 0, 0, None),
            (None, 0, 600, Some(600)),
            (None, 30, 600, Some(30)),
            (Some(0), 30, 600, Some(30)),
            (Some(50), 30, 600, Some(50)),
            (Some(900), 30, 600, Some(600)),
            (Some(900), 0, 0, Some(900)),
        ] {
            assert_eq!(
                effective(asked, default, max),
                expected.map(Duration::from_millis),
                "{asked:?} {default} {max}"
            );
        }
    }
}
