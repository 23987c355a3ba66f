//! Commands, each with the type of its answer.
//!
//! A command is judged by itself, and durable before its method returns. `bytes` is about how much memory it holds while
//! it waits for its turn.

use std::sync::Arc;

use tenure_core::TaskId;
use tenure_core::attempt::{Completion, Progress, Receipt};
use tenure_core::command::callback::{Call, Callback, CallbackAnswer, CompletionRecord, Proof, SentAttemptId};
use tenure_core::command::cancel::{Cancel, Canceled};
use tenure_core::command::emit::Emit;
use tenure_core::command::heartbeat::{Heartbeat, Renewed};
use tenure_core::command::queues::{DeleteQueue, PatchQueue, PauseQueue, SetQueue};
use tenure_core::command::report::AttemptReport;
use tenure_core::command::retry::{Retried, Retry};
use tenure_core::command::run::{CancelRun, RunCanceled, RunSubmitted, SubmitRun};
use tenure_core::command::submit::{Submit, Submitted};
use tenure_core::command::{Answer, Command, Rejection};
use tenure_core::id::WorkerId;
use tenure_core::queue::Queue;
use tenure_core::time::Timestamp;
use tenure_store::{Lane, Notice};

use crate::engine::Engine;
use crate::error::EngineError;

/// The answer to one command: its result, a refusal by the rules, or no answer at all.
pub type Reply<T> = Result<Result<T, Rejection>, EngineError>;

/// Makes the reply of a command typed. `pick` takes the value out of the answer that the command is known to have.
pub(crate) fn typed<T>(reply: Reply<Answer>, pick: impl FnOnce(Answer) -> Option<T>) -> Reply<T> {
    match reply? {
        Err(rejection) => Ok(Err(rejection)),
        Ok(answer) => pick(answer).map(Ok).ok_or_else(|| {
            tracing::error!("a command has the answer of another one");
            EngineError::Internal
        }),
    }
}

/// Takes the value out of one variant of [`Answer`].
macro_rules! variant {
    ($variant:ident) => {
        |answer| match answer {
            tenure_core::command::Answer::$variant(value) => Some(value),
            _ => None,
        }
    };
}
pub(crate) use variant;

impl Engine {
    /// Sends one command. Heartbeats have a lane of their own, past everything else that waits.
    pub(crate) async fn ask<T>(
        &self,
        lane: Lane,
        command: Command,
        bytes: usize,
        pick: impl FnOnce(Answer) -> Option<T>,
    ) -> Reply<T> {
        let mut replies = self.shared.lane(lane).send(vec![command], bytes).await?;
        typed(replies.pop().unwrap_or(Err(EngineError::Internal)), pick)
    }

    pub async fn submit(&self, submit: Submit, bytes: usize) -> Reply<Vec<Submitted>> {
        self.ask(Lane::Work, Command::Submit(submit), bytes, variant!(Submitted)).await
    }

    pub async fn submit_run(&self, submit: SubmitRun, bytes: usize) -> Reply<RunSubmitted> {
        self.ask(Lane::Work, Command::SubmitRun(submit), bytes, variant!(RunSubmitted)).await
    }

    pub async fn cancel(&self, cancel: Cancel) -> Reply<Canceled> {
        self.ask(Lane::Work, Command::Cancel(cancel), 0, variant!(Canceled)).await
    }

    pub async fn cancel_run(&self, cancel: CancelRun) -> Reply<RunCanceled> {
        self.ask(Lane::Work, Command::CancelRun(cancel), 0, variant!(RunCanceled)).await
    }

    pub async fn retry(&self, retry: Retry) -> Reply<Retried> {
        self.ask(Lane::Work, Command::Retry(retry), 0, variant!(Retried)).await
    }

    pub async fn report(&self, report: AttemptReport, bytes: usize) -> Reply<Receipt> {
        self.ask(Lane::Work, Command::Report(report), bytes, variant!(Reported)).await
    }

    /// Records what a holder says about datasets before its task has ended.
    pub async fn emit(&self, emit: Emit, bytes: usize) -> Reply<bool> {
        self.ask(Lane::Work, Command::Emit(emit), bytes, variant!(Done)).await
    }

    pub async fn heartbeat(&self, heartbeat: Heartbeat, bytes: usize) -> Reply<Renewed> {
        self.ask(Lane::Heartbeat, Command::Heartbeat(heartbeat), bytes, variant!(Renewed)).await
    }

    /// Heartbeats of one caller. Each is judged by itself.
    pub async fn heartbeats(
        &self,
        heartbeats: Vec<Heartbeat>,
        bytes: usize,
    ) -> Result<Vec<Reply<Renewed>>, EngineError> {
        let commands = heartbeats.into_iter().map(Command::Heartbeat).collect();
        let replies = self.shared.heartbeat.send(commands, bytes).await?;
        Ok(replies.into_iter().map(|reply| typed(reply, variant!(Renewed))).collect())
    }

    pub async fn set_queue(&self, set: SetQueue) -> Reply<Queue> {
        let changes_transport = set.transport.is_some() || !set.keep_push;
        self.change_queue(Arc::clone(&set.queue), Command::SetQueue(set), changes_transport).await
    }

    pub async fn patch_queue(&self, patch: PatchQueue) -> Reply<Queue> {
        let changes_transport = patch.change.transport.is_some() || patch.change.push.is_some();
        self.change_queue(Arc::clone(&patch.queue), Command::PatchQueue(patch), changes_transport).await
    }

    async fn change_queue(&self, queue: Arc<str>, command: Command, changes_transport: bool) -> Reply<Queue> {
        let reply = self.ask(Lane::Work, command, 0, variant!(Queue)).await?;
        if changes_transport && reply.is_ok() {
            self.shared.sweep.send_replace(());
            self.shared.tell(|| Notice::Transports);
        }
        self.shared.queues_set.notify_waiters();
        self.may_have_opened(queue, &reply);
        Ok(reply)
    }

    pub async fn pause_queue(&self, pause: PauseQueue) -> Reply<Queue> {
        let queue = Arc::clone(&pause.queue);
        let reply = self.ask(Lane::Work, Command::PauseQueue(pause), 0, variant!(Queue)).await?;
        self.may_have_opened(queue, &reply);
        Ok(reply)
    }

    /// Those who could not claim from a queue may be able to now.
    fn may_have_opened(&self, name: Arc<str>, set: &Result<Queue, Rejection>) {
        self.wake_queue(name);
        let Ok(queue) = set else { return };
        if queue.settings.dispatch.is_some() && !queue.paused {
            self.wake_queue(queue.wakes());
            // Wake-ups that came meanwhile are gone, however short it was.
            self.shared.room.made(&[queue.id]);
        }
    }

    /// Whether the queue was there.
    pub async fn delete_queue(&self, delete: DeleteQueue) -> Reply<bool> {
        let reply = self.ask(Lane::Work, Command::DeleteQueue(delete), 0, variant!(Done)).await?;
        if reply.is_ok() {
            self.shared.sweep.send_replace(());
            self.shared.tell(|| Notice::Transports);
            self.shared.queues_set.notify_waiters();
        }
        Ok(reply)
    }

    /// Every claim that waits for this queue may be granted something now.
    fn wake_queue(&self, queue: Arc<str>) {
        self.shared.waiters.wake_all(&queue);
        self.shared.tell(|| Notice::Ready { queue, tasks: usize::MAX });
    }
}

/// The sender of a callback: what its token and the body of every call say.
#[derive(Debug, Clone)]
pub struct CallbackSender {
    pub task: TaskId,
    /// The scope that the token names.
    pub tenant: Arc<str>,
    pub workspace: Arc<str>,
    /// The attempt that the token is for.
    pub proof: Proof,
    /// The attempt that the body names.
    pub attempt: u32,
    pub attempt_id: Option<SentAttemptId>,
    pub worker: WorkerId,
}

impl CallbackSender {
    fn says(self, call: Call) -> Command {
        let Self { task, tenant, workspace, proof, attempt, attempt_id, worker } = self;
        Command::Callback(Callback { task, tenant, workspace, proof, attempt, attempt_id, worker, call })
    }
}

/// Callbacks. Times that they carry are of the worker's clock: recorded, and never judged by.
impl Engine {
    /// Returns when the start was recorded.
    pub async fn started(&self, sender: CallbackSender, told_at: Option<Timestamp>) -> Reply<Timestamp> {
        let command = sender.says(Call::Started { told_at });
        let at = |answer| match answer {
            Answer::Callback(CallbackAnswer::Started { at }) => Some(at),
            _ => None,
        };
        self.ask(Lane::Work, command, 0, at).await
    }

    /// Returns the renewed lease, and the time.
    pub async fn beat(
        &self,
        sender: CallbackSender,
        told_at: Option<Timestamp>,
        progress: Progress,
        checkpoint: Option<Arc<str>>,
        bytes: usize,
    ) -> Reply<(Renewed, Timestamp)> {
        let command = sender.says(Call::Heartbeat { told_at, progress, checkpoint });
        let renewed = |answer| match answer {
            Answer::Callback(CallbackAnswer::Renewed { renewed, at }) => Some((renewed, at)),
            _ => None,
        };
        self.ask(Lane::Heartbeat, command, bytes, renewed).await
    }

    pub async fn completed(
        &self,
        sender: CallbackSender,
        completion: Completion,
        bytes: usize,
    ) -> Reply<CompletionRecord> {
        let command = sender.says(Call::completed(completion));
        let told = |answer| match answer {
            Answer::Callback(CallbackAnswer::Reported(told)) => Some(told),
            _ => None,
        };
        self.ask(Lane::Work, command, bytes, told).await
    }
}
