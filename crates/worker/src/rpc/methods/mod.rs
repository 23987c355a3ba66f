//! What each method does, once the checks have passed.

mod exec;
mod files;
mod lifecycle;

use std::time::Duration;

use axum::http::StatusCode;
use serde::Serialize;
use tenure_contract::worker_rpc::LeaseToken;
use tenure_contract::worker_rpc::{Code, LogsResult, MAX_ANSWER_BYTES, RenewLeaseResult, StatsResult, StatusResult};
use tenure_sandbox::RuntimeState;

use super::answer::Answer;
use super::call::{Action, Call};
use super::refusal::Refusal;
use super::state::Rpc;
use crate::node::{Held, Lease, Target};

impl Rpc {
    /// Runs a call to its end.
    pub(super) async fn execute(&self, call: Call) -> Answer {
        let id = call.id.clone();
        match self.perform(call).await {
            Ok(answer) => answer,
            Err(refusal) => Answer::refused(&id, self.worker_id(), &refusal),
        }
    }

    async fn perform(&self, call: Call) -> Result<Answer, Refusal> {
        let Call { id, method, lease, target, action, .. } = call;
        let times = &self.settings.times;
        let named = |held: &Held| held.sandbox_id.clone();
        match action {
            Action::Spawn { params, ttl } => self.spawn(&id, lease, *params, ttl).await,
            Action::Destroy => self.destroy(&id, lease, target).await,
            Action::Snapshot { id: snapshot } => self.snapshot(&id, lease, &target, snapshot).await,
            Action::Restore { id: snapshot } => self.restore(&id, lease, &target, snapshot).await,
            Action::Drain => {
                self.node.drain();
                Ok(self.done(&id))
            }
            Action::Undrain => {
                self.node.undrain();
                Ok(self.done(&id))
            }
            Action::RenewLease { ttl } => {
                let lease = lease.ok_or_else(|| Refusal::invalid("lease is missing"))?;
                let renewed = within(times.renew, "the renewal", self.node.renew(&lease, ttl)).await??;
                Ok(self.ok(&id, RenewLeaseResult { lease: token(renewed) }))
            }
            Action::Status => {
                let held = self.node.find(&target).await?;
                let runtime = within(times.call, "the status", held.provider.status(&held.runtime_id)).await??;
                let (state, error) = match runtime.state {
                    RuntimeState::Running if held.frozen => ("unhealthy", Some("frozen: its lease lapsed")),
                    RuntimeState::Running => ("running", None),
                    RuntimeState::Frozen => ("unhealthy", Some("frozen")),
                    RuntimeState::Stopped => ("error", Some("its first process ended")),
                };
                let (state, error) = (state.to_owned(), error.map(ToOwned::to_owned));
                let provider = requested(&target, &held);
                let worker_id = self.worker_id().to_owned();
                let (sandbox_id, runtime_id) = (held.sandbox_id, Some(held.runtime_id.to_string()));
                self.bounded(&id, StatusResult { sandbox_id, state, provider, worker_id, error, runtime_id })
            }
            Action::Stats => {
                let held = self.node.find(&target).await?;
                let stats = within(times.call, "the statistics", held.provider.stats(&held.runtime_id)).await??;
                let result = StatsResult {
                    sandbox_id: named(&held),
                    cpu_pct: stats.cpu_percent,
                    mem_bytes: stats.memory_bytes,
                    mem_limit_bytes: stats.memory_limit_bytes,
                    pids: stats.pids,
                    disk_bytes: stats.disk_bytes,
                };
                self.bounded(&id, result)
            }
            Action::Logs { lines } => {
                let held = self.node.find(&target).await?;
                let log = held.provider.console_log(&held.runtime_id, lines);
                let lines = latest(within(times.call, "the log", log).await??);
                self.bounded(&id, LogsResult { sandbox_id: named(&held), lines })
            }
            Action::Exec(command) => {
                let held = self.held(lease.as_ref(), &target).await?;
                self.exec(&id, method, held, command).await
            }
            action => {
                let held = self.held(lease.as_ref(), &target).await?;
                self.file_call(&id, held, action).await
            }
        }
    }

    /// The sandbox of a command or file call. Its lease, if there is one, is recorded first.
    pub(super) async fn held(&self, lease: Option<&Lease>, target: &Target) -> Result<Held, Refusal> {
        let held = self.node.find(target).await?;
        if let Some(lease) = lease {
            self.node.holdings().admit(lease, &held.sandbox_id).await?;
        }
        held.check_not_frozen()?;
        Ok(held)
    }

    fn ok(&self, id: &str, result: impl Serialize) -> Answer {
        Answer::ok(id, self.worker_id(), Some(result))
    }

    /// An answer without a result.
    fn done(&self, id: &str) -> Answer {
        Answer::ok(id, self.worker_id(), None::<()>)
    }

    /// An answer of a method without a limit of its own.
    fn bounded(&self, id: &str, result: impl Serialize) -> Result<Answer, Refusal> {
        let answer = self.ok(id, result);
        if answer.body.len() <= MAX_ANSWER_BYTES {
            return Ok(answer);
        }
        let message = format!("the answer is larger than {} MiB: ask for less", MAX_ANSWER_BYTES >> 20);
        Err(Refusal::invalid(message).with_status(StatusCode::PAYLOAD_TOO_LARGE).executed())
    }
}

/// The provider as the caller calls it.
fn requested(target: &Target, held: &Held) -> String {
    if target.provider.is_empty() { held.provider_name.clone() } else { target.provider.clone() }
}

fn token(lease: Lease) -> LeaseToken {
    let Lease { resource_id, holder_id, generation, expires_at } = lease;
    LeaseToken { resource_id, holder_id, generation, expires_at }
}

/// Waits for something up to its deadline.
pub(super) async fn within<T>(wait: Duration, what: &str, work: impl Future<Output = T>) -> Result<T, Refusal> {
    tokio::time::timeout(wait, work).await.map_err(|_| {
        // Whether it happens after all is not known, so that a repeated request tries again.
        Refusal::call(Code::Timeout, format!("{what} took longer than {} s", wait.as_secs()))
    })
}

/// The last lines that fit into an answer. Escaped, a byte takes up to six.
fn latest(lines: Vec<String>) -> Vec<String> {
    let mut room = MAX_ANSWER_BYTES - (64 << 10);
    let mut kept: Vec<String> = lines
        .into_iter()
        .rev()
        .take_while(|line| {
            let escaped: usize =
                line.chars().map(|c| if c < ' ' || c == '"' || c == '\\' { 6 } else { c.len_utf8() }).sum();
            let size = escaped + 3;
            let fits = size <= room;
            room = room.saturating_sub(size);
            fits
        })
        .collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_at_its_beginning() {
        let lines: Vec<String> = (0..20).map(|n| format!("{n} {}", "x".repeat(1 << 20))).collect();
        let kept = latest(lines);
        assert_eq!(kept.len(), 15);
        assert!(kept[14].starts_with("19 ") && kept[0].starts_with("5 "));
    }
}
