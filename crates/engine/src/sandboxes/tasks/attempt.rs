//! One attempt in its sandbox, from the spawn to the report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::attempt::{AttemptState, Category, Completion, Failure};
use tenure_core::command::callback::{Proof, Refusal, RefusalReason, SentAttemptId};
use tenure_core::command::push::{PushOutcome, Pushed};
use tenure_core::command::release::Release;
use tenure_core::command::{Command, Reach, Rejection};
use tenure_core::sandbox::{Change, Sandbox, SandboxId};
use tenure_core::task::SandboxRun;
use tenure_core::time::DurationMs;
use tenure_store::Lane;

use super::super::workers::{NewFile, SetupCommand, SetupOutcome};
use super::super::{Caller, ErrorClass, SandboxError, Sandboxes};
use super::{InPlace, NO_ROOM_MS, script};
use crate::commands::{CallbackSender, variant};
use crate::delivery::Parcel;
use crate::engine::Engine;

/// A cancel is noticed within this time, however rare the heartbeats of the attempt are.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// A store that does not answer is asked again after this time, and so is a worker.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How long a report is repeated that gets no answer, and a start.
const REPORT_WITHIN: Duration = Duration::from_secs(60);
/// How long the report of a failure waits for the end of the sandbox, so that the next attempt does not run beside it.
const DESTROY_FIRST: Duration = Duration::from_secs(5);
const FILE_WITHIN: Duration = Duration::from_secs(60);
const TERMINATE_WITHIN: Duration = Duration::from_secs(10);
/// A call may take this much longer than the command.
const CALL_MARGIN: Duration = Duration::from_secs(10);
const FILE_MODE: u32 = 0o600;

/// How an attempt ended.
enum End {
    Succeeded(String),
    Failed(Failure),
    /// The command may use the rest of the lease to end.
    Canceled {
        reason: Arc<str>,
        lease_end: Instant,
    },
    /// This control plane stops.
    Stopped,
    /// Another one has the task, or nobody.
    Lost,
}

/// What an attempt in a sandbox needs to be driven.
pub struct Attempt {
    engine: Engine,
    sandboxes: Sandboxes,
    parcel: Parcel,
    run: SandboxRun,
    caller: Caller,
    sandbox: SandboxId,
    sender: CallbackSender,
}

impl Attempt {
    pub fn new(
        engine: Engine,
        sandboxes: Sandboxes,
        parcel: Parcel,
        run: SandboxRun,
        caller: Caller,
        row: &Sandbox,
    ) -> Self {
        let (grant, body) = (&parcel.grant, &parcel.body);
        let plane = engine.shared.duties.name();
        let plane = plane.get(..8).unwrap_or(plane);
        let sender = CallbackSender {
            task: grant.task,
            tenant: Arc::clone(&body.tenant),
            workspace: Arc::clone(&body.workspace),
            proof: Proof { attempt: grant.attempt, attempt_id: grant.attempt_id },
            attempt: grant.attempt,
            attempt_id: Some(SentAttemptId::Id(grant.attempt_id)),
            // Two control planes that drive the same sandbox are two holders: the store lets one of them start.
            worker: format!("{}@{plane}", row.id).into(),
        };
        Self { sandbox: Arc::clone(&row.id), engine, sandboxes, parcel, run, caller, sender }
    }

    pub async fn drive(&self, in_place: InPlace) {
        let is_mine = in_place.is_mine;
        let row = match self.spawned(in_place).await {
            Ok(row) => row,
            Err(error) => return self.not_spawned(&error, is_mine).await,
        };
        // From here on the sandbox does not outlive the lease, whatever happens to this control plane.
        match self.prolong(self.parcel.grant.lease_ttl_ms).await {
            Ok(true) => {}
            Ok(false) => return self.report(End::Failed(infrastructure("the sandbox of the task ended"))).await,
            Err(error) => {
                tracing::warn!(sandbox.id = &*self.sandbox, "cannot tie a sandbox to the lease of its task: {error}");
                return self.destroy().await;
            }
        }
        match self.start().await {
            Start::Here => {}
            // It is the other's sandbox now.
            Start::Elsewhere => return,
            Start::Over => return self.destroy().await,
        }
        tracing::debug!(task.id = %self.sender.task, attempt.number = self.sender.attempt, sandbox.id = &*self.sandbox,
            worker.id = row.worker.as_deref(), "a task runs in a sandbox");
        let stopping = self.engine.shared.stopping.clone();
        let executing = self.execute();
        tokio::pin!(executing);
        let end = tokio::select! {
            end = self.keep_alive() => end,
            end = &mut executing => end,
            () = stopping.cancelled() => End::Stopped,
        };
        let end = match end {
            End::Canceled { reason, lease_end } => self.wind_down(reason, lease_end, executing).await,
            end => end,
        };
        self.finish(end).await;
    }

    /// Asks the command to end, and gives it the time until shortly before the end of the lease. One that succeeds by then has
    /// succeeded.
    async fn wind_down(&self, reason: Arc<str>, lease_end: Instant, executing: impl Future<Output = End>) -> End {
        let left = lease_end.saturating_duration_since(Instant::now());
        let until = lease_end - DESTROY_FIRST.min(left / 4);
        let asking = async {
            self.terminate().await;
            std::future::pending::<()>().await;
        };
        let end = tokio::select! {
            end = executing => Some(end),
            () = asking => None,
            () = tokio::time::sleep_until(until.into()) => None,
            () = self.engine.shared.stopping.cancelled() => None,
        };
        match end {
            Some(succeeded @ End::Succeeded(_)) => succeeded,
            _ => End::Canceled { reason, lease_end },
        }
    }

    /// SIGTERM for the command. The sandbox is destroyed afterwards, so one that cannot be sent is of no consequence.
    async fn terminate(&self) {
        let command =
            SetupCommand { command: script::TERMINATE.to_owned(), timeout: TERMINATE_WITHIN, env: BTreeMap::new() };
        let called = self.sandboxes.call(&self.sandbox, &Reach::All, |route| {
            let command = &command;
            async move {
                let terms = route.terms(command.timeout + CALL_MARGIN);
                self.sandboxes.workers().exec(&route.target, &terms, &route.runtime(), command).await
            }
        });
        if let Err(error) = called.await {
            tracing::debug!(task.id = %self.sender.task, sandbox.id = &*self.sandbox, "cannot ask a task to end: {error}");
        }
    }

    async fn spawned(&self, in_place: InPlace) -> Result<Sandbox, SandboxError> {
        let InPlace { row, spawn, .. } = in_place;
        match spawn {
            None => Ok(row),
            spawn => Ok(self.sandboxes.await_outcome(row, spawn, &self.caller).await?.row),
        }
    }

    /// There is no sandbox. The attempt goes on waiting for one if room is all that it lacks.
    async fn not_spawned(&self, error: &SandboxError, is_mine: bool) {
        let is_stopping = self.engine.shared.stopping.is_cancelled();
        if is_stopping && !is_mine {
            // The control plane that made it goes on.
            return;
        }
        self.destroy().await;
        let outcome = match error.class {
            ErrorClass::ResourceLimit => {
                Some(PushOutcome::NoRoom { why: error.message.as_str().into(), after_ms: NO_ROOM_MS })
            }
            // Another control plane can have it at once.
            _ if is_stopping => Some(PushOutcome::Again { after_ms: Some(1) }),
            _ => None,
        };
        let Some(outcome) = outcome else {
            return self.report(End::Failed(infrastructure(&format!("the sandbox was not created: {error}")))).await;
        };
        let (row, attempt_id) = (self.parcel.grant.seq(), self.parcel.grant.attempt_id);
        let pushed = Pushed { row, attempt_id, delivery: self.parcel.number(), outcome };
        if let Err(error) = self.engine.ask(Lane::Work, Command::Pushed(pushed), 0, variant!(Done)).await {
            // It is delivered again when its time has come.
            tracing::debug!(task.id = %self.sender.task, %error, "cannot record that a task waits for a sandbox");
        }
    }

    /// Takes the attempt up. Nothing of the task is in the sandbox before.
    async fn start(&self) -> Start {
        let began = Instant::now();
        loop {
            match self.engine.started(self.sender.clone(), None).await {
                Ok(Ok(_)) => return Start::Here,
                Ok(Err(Rejection::Callback(Refusal { why: RefusalReason::AlreadyStarted, .. }))) => {
                    return Start::Elsewhere;
                }
                Ok(Err(_)) => return Start::Over,
                Err(error) if began.elapsed() > REPORT_WITHIN || self.engine.shared.stopping.is_cancelled() => {
                    tracing::warn!(task.id = %self.sender.task, %error, "cannot start a task in its sandbox");
                    return Start::Over;
                }
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Renews the lease and moves the end of the sandbox with it. Returns when the command has to end.
    async fn keep_alive(&self) -> End {
        let heartbeat = millis(self.parcel.grant.heartbeat_ms);
        let mut lease_end = Instant::now() + millis(self.parcel.grant.lease_ttl_ms);
        let mut moved: Option<Instant> = None;
        loop {
            let sent = Instant::now();
            let beat = self.engine.beat(self.sender.clone(), None, Default::default(), None, 0).await;
            match beat {
                Ok(Ok((renewed, at))) => {
                    if let Some(reason) = renewed.cancel {
                        return End::Canceled { reason, lease_end: sent + millis(renewed.expires_at.since(at)) };
                    }
                    let left = renewed.expires_at.since(at);
                    lease_end = sent + millis(left);
                    if moved.is_none_or(|moved| moved.elapsed() >= heartbeat) {
                        match self.prolong(left).await {
                            Ok(true) => moved = Some(sent),
                            Ok(false) => return End::Failed(infrastructure("the sandbox of the task ended")),
                            Err(error) => tracing::debug!(
                                sandbox.id = &*self.sandbox,
                                "cannot move the end of a sandbox: {error}"
                            ),
                        }
                    }
                }
                Ok(Err(_)) => return End::Lost,
                Err(error) => {
                    tracing::debug!(task.id = %self.sender.task, %error, "cannot renew the lease of a task");
                    if Instant::now() >= lease_end {
                        return End::Lost;
                    }
                }
            }
            tokio::time::sleep(heartbeat.min(LOOK_EVERY)).await;
        }
    }

    /// The sandbox ends with the lease. `false`: it has ended already.
    async fn prolong(&self, ttl_ms: DurationMs) -> Result<bool, SandboxError> {
        if ttl_ms <= 0 {
            return Ok(true);
        }
        match self.sandboxes.change(&self.sandbox, &Change::Extend { ttl_ms }, Vec::new()).await? {
            Some(Ok(changed)) => {
                self.sandboxes.push_end(&changed.after).await;
                Ok(true)
            }
            Some(Err(_)) | None => Ok(false),
        }
    }

    /// Runs the command.
    async fn execute(&self) -> End {
        match self.run_command().await {
            Ok(outcome) if outcome.exit_code == 0 => match script::result(&outcome.stdout) {
                Ok(result) => End::Succeeded(result),
                Err(failure) => End::Failed(failure),
            },
            Ok(outcome) => End::Failed(script::failure(outcome.exit_code, &outcome.stderr)),
            Err(failure) => End::Failed(failure),
        }
    }

    async fn run_command(&self) -> Result<SetupOutcome, Failure> {
        let lost = |error: SandboxError| infrastructure(&format!("the sandbox of the task was lost: {error}"));
        let limit_ms = self.limit_ms().await.map_err(lost)?;
        let route = self.sandboxes.route(&self.sandbox, &Reach::All).await.map_err(lost)?;
        let mut variables = BTreeMap::new();
        self.tell(&mut variables);
        let script = script::script(&self.run.command, &variables);
        self.write(script::PAYLOAD, self.parcel.body.payload.as_bytes()).await.map_err(lost)?;
        self.write(script::SCRIPT, script.as_bytes()).await.map_err(lost)?;
        let command = SetupCommand { command: script::RUN.to_owned(), timeout: millis(limit_ms), env: route.env };
        let _running = self.sandboxes.begin_exec(&self.sandbox);
        let called = self.sandboxes.call(&self.sandbox, &Reach::All, |route| {
            let command = &command;
            async move {
                let terms = route.terms(command.timeout + CALL_MARGIN);
                self.sandboxes.workers().exec(&route.target, &terms, &route.runtime(), command).await
            }
        });
        called.await.map_err(|error| match error.class {
            ErrorClass::Timeout => {
                let message =
                    format!("the command ran longer than {} s in its sandbox and was killed", limit_ms / 1_000);
                Failure::new("TIMEOUT", &message, None, None).of_category(Some(Category::Timeout))
            }
            _ => lost(error),
        })
    }

    /// How long the command may run: the shortest of what the task, its sandbox and the quota of its owner say.
    async fn limit_ms(&self) -> Result<DurationMs, SandboxError> {
        let body = &self.parcel.body;
        let max = self.sandboxes.max_exec_timeout_ms(&body.tenant, body.owner.as_deref()).await?;
        let own = self.run.timeout_ms.unwrap_or(DurationMs::MAX).min(body.spec.timeout_ms());
        Ok(if max > 0 { own.min(max) } else { own })
    }

    fn tell(&self, variables: &mut BTreeMap<String, String>) {
        let (grant, body) = (&self.parcel.grant, &self.parcel.body);
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        set("TENURE_TASK_ID", grant.task.to_string());
        set("TENURE_ATTEMPT", grant.attempt.to_string());
        set("TENURE_FENCE", grant.fence.0.to_string());
        set("TENURE_OPERATOR", body.operator.to_string());
        set("TENURE_SANDBOX_ID", self.sandbox.to_string());
        if let Some(checkpoint) = &grant.checkpoint {
            set("TENURE_CHECKPOINT", checkpoint.to_string());
        }
    }

    async fn write(&self, path: &str, content: &[u8]) -> Result<(), SandboxError> {
        let file = NewFile { path: path.to_owned(), mode: FILE_MODE, content: content.to_vec() };
        let called = self.sandboxes.call(&self.sandbox, &Reach::All, |route| {
            let file = &file;
            async move {
                let terms = route.terms(FILE_WITHIN);
                self.sandboxes.workers().write_file(&route.target, &terms, &route.runtime(), file).await
            }
        });
        called.await
    }

    /// A success is reported at once. Before any other end is, the sandbox is destroyed, if its worker answers: the next
    /// attempt should not run beside this one.
    async fn finish(&self, end: End) {
        if let End::Succeeded(_) = end {
            self.report(end).await;
            return self.destroy().await;
        }
        let destroying = self.destroy();
        tokio::pin!(destroying);
        let is_gone = tokio::time::timeout(DESTROY_FIRST, &mut destroying).await.is_ok();
        match end {
            End::Stopped => self.give_back().await,
            end => self.report(end).await,
        }
        if !is_gone {
            destroying.await;
        }
    }

    /// Another control plane can have the task at once, and it costs no attempt. A task that is to be canceled is not given
    /// back.
    async fn give_back(&self) {
        let (row, attempt_id) = (self.parcel.grant.seq(), self.parcel.grant.attempt_id);
        let release = Command::Release(Release { row, attempt_id, by_holder: true });
        if !matches!(self.engine.ask(Lane::Work, release, 0, variant!(Done)).await, Ok(Ok(true))) {
            self.report(End::Stopped).await;
        }
    }

    /// Whoever comes later finds what was not destroyed here: its end is near, and its lease is not renewed beyond it.
    async fn destroy(&self) {
        if let Err(error) = self.sandboxes.destroy(&self.sandbox, &self.caller).await {
            tracing::warn!(task.id = %self.sender.task, sandbox.id = &*self.sandbox,
                "cannot destroy the sandbox of a task; it ends by itself: {error}");
        }
    }

    async fn report(&self, end: End) {
        let (outcome, output, error) = match end {
            End::Lost => return,
            End::Succeeded(result) => (AttemptState::Succeeded, Some(Arc::from(result)), None),
            End::Failed(failure) => (AttemptState::Failed, None, Some(failure)),
            End::Stopped => {
                let message = "the control plane that ran the task was stopped";
                let failure = Failure::new("WORKER_SHUTDOWN", message, None, Some(true));
                (AttemptState::Failed, None, Some(failure.of_category(Some(Category::Infrastructure))))
            }
            End::Canceled { reason, .. } => {
                let failure = Failure::new("CANCELLED", &reason, None, Some(false));
                (AttemptState::Canceled, None, Some(failure.of_category(Some(Category::Canceled))))
            }
        };
        let bytes = output.as_ref().map_or(0, |output: &Arc<str>| output.len());
        let completion = Completion {
            outcome,
            output,
            error,
            phase: None,
            partial_progress: None,
            metrics: None,
            told_completed_at: None,
        };
        let began = Instant::now();
        loop {
            match self.engine.completed(self.sender.clone(), completion.clone(), bytes).await {
                Ok(Ok(_)) => return,
                Ok(Err(refused)) => {
                    return tracing::debug!(task.id = %self.sender.task, attempt.number = self.sender.attempt, reason = ?refused,
                        "the report of a task in a sandbox does not count");
                }
                Err(error) if began.elapsed() > REPORT_WITHIN || self.engine.shared.stopping.is_cancelled() => {
                    return tracing::warn!(task.id = %self.sender.task, %error, "cannot report a task in a sandbox");
                }
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }
}

/// Who has the attempt.
enum Start {
    Here,
    Elsewhere,
    /// Nobody: it has ended, or its store does not answer.
    Over,
}

fn infrastructure(message: &str) -> Failure {
    Failure::new("INFRASTRUCTURE", message, None, None).of_category(Some(Category::Infrastructure))
}

fn millis(ms: DurationMs) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
