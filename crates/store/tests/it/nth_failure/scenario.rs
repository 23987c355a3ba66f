//! One command of each kind, what it is about, and what must have come of it.

use tenure_core::attempt::Receipt;
use tenure_core::batch::Outcome;
use tenure_core::command::cancel::Mode;
use tenure_core::command::claim::Grant;
use tenure_core::command::expire::Expire;
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::promote::Promote;
use tenure_core::command::queues::{PauseQueue, SetQueue};
use tenure_core::command::redrive::Redrive;
use tenure_core::command::run::{CancelRun, RunSubmitted};
use tenure_core::command::submit::{NewTask, Start, Submit};
use tenure_core::command::{Answer, Command, Reach, Rejection};
use tenure_core::event::FactKind;
use tenure_core::queue::{FairnessKey, QueueSettings, Rate};
use tenure_core::task::{Place, State};
use tenure_core::{Fence, RunId, TaskId};
use tenure_store::{NewRedrive, RedriveFilter};

use super::data;
use crate::common::{Fixture, make};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    Submit,
    SubmitKey,
    Claim,
    ClaimLimited,
    ClaimTask,
    Heartbeat,
    Complete,
    CompleteData,
    FailRetry,
    FailDead,
    CancelReady,
    CancelRunning,
    Retry,
    Expire,
    Promote,
    Release,
    Redrive,
    Hello,
    SetQueue,
    PauseQueue,
    DeleteQueue,
    Mixed,
    SubmitRun,
    CompleteInRun,
    FailInRun,
    CancelRun,
}

pub struct Prepared {
    pub commands: Vec<Command>,
    queue: String,
    ids: Vec<TaskId>,
}

impl Scenario {
    pub fn makes_queues(self) -> bool {
        matches!(self, Self::Submit | Self::SubmitKey | Self::SubmitRun | Self::SetQueue)
    }

    /// A queue of its own with what the command is about.
    pub async fn prepare(self, t: &Fixture) -> Prepared {
        // A mark of life now and then, or the clock that some of these turn would look like an outage.
        t.store.mark_alive().await.unwrap();
        let queue = format!("q{}", t.mint().await.seq().0);
        let task = NewTask { spec: make::attempts(2), ..t.task(&queue).await };
        let (commands, ids) = match self {
            Self::Submit => {
                let tasks = t.tasks(&queue, 2).await;
                let ids = tasks.iter().map(|task| task.id).collect();
                (vec![Command::Submit(Submit { tasks, maker: None })], ids)
            }
            Self::SubmitKey => {
                let ids = vec![task.id];
                let tasks = vec![NewTask { idempotency: make::key(&queue, 1), ..task }];
                (vec![Command::Submit(Submit { tasks, maker: None })], ids)
            }
            Self::Claim => {
                let ids = t.put_many(&queue, 3).await;
                (vec![Command::Claim(make::claim("w", &[&queue], 2))], ids)
            }
            Self::ClaimLimited => {
                let settings = QueueSettings {
                    max_running: Some(3),
                    rate: Some(Rate { per_second: 0.001, burst: 2.0 }),
                    fairness_key: Some(FairnessKey::Tenant),
                    ..QueueSettings::default()
                };
                t.set_queue(&queue, settings).await;
                let ids = t.put_many(&queue, 3).await;
                (vec![Command::Claim(make::claim("w", &[&queue], 1))], ids)
            }
            Self::Mixed => return self.prepare_mixed(t, queue).await,
            Self::SubmitRun | Self::CompleteInRun | Self::FailInRun | Self::CancelRun => {
                return self.prepare_run(t, queue).await;
            }
            Self::Promote => {
                let id = t.put(NewTask { start: Start::After(10), ..task }).await;
                t.clock.advance(10);
                (vec![Command::Promote(Promote { row: id.seq() })], vec![id])
            }
            Self::ClaimTask | Self::CancelReady => {
                let id = t.put(task).await;
                let command = match self {
                    Self::ClaimTask => make::claim_task("w", id),
                    _ => make::cancel(id, Mode::Cooperative),
                };
                (vec![command], vec![id])
            }
            Self::SetQueue | Self::PauseQueue => {
                let id = t.put(task).await;
                (vec![self.setting(&queue)], vec![id])
            }
            Self::DeleteQueue => {
                let id = t.put(task).await;
                t.complete(&t.claim_one(&queue).await).await.unwrap();
                (vec![make::delete_queue(&queue, false)], vec![id])
            }
            Self::Hello => {
                let id = t.put(task).await;
                let mut claim = make::claim(&queue, &[&queue], 1);
                claim.claimer.worker.as_mut().unwrap().incarnation = Some("1".into());
                t.claimed(claim).await;
                (vec![make::hello(&queue, "2")], vec![id])
            }
            _ => {
                let id = t.put(task).await;
                let grant = t.claim_one(&queue).await;
                (vec![self.about(t, &grant).await], vec![id])
            }
        };
        Prepared { commands, queue, ids }
    }

    fn setting(self, queue: &str) -> Command {
        let queue = queue.into();
        match self {
            Self::PauseQueue => Command::PauseQueue(PauseQueue { queue, paused: true, reach: Reach::All }),
            _ => {
                let fairness_key = Some(FairnessKey::Tenant);
                let settings = QueueSettings { max_running: Some(1), fairness_key, ..QueueSettings::default() };
                Command::SetQueue(SetQueue { queue, settings, transport: None, keep_push: false, reach: Reach::All })
            }
        }
    }

    /// The command about a task that runs, or ran.
    async fn about(self, t: &Fixture, grant: &Grant) -> Command {
        match self {
            Self::Heartbeat => Command::Heartbeat(Heartbeat {
                task: grant.task,
                attempt: None,
                token: grant.token,
                worker: None,
                progress: tenure_core::attempt::Progress { pct: Some(50), message: Some("half way".into()) },
                checkpoint: Some("here".into()),
            }),
            Self::Complete => make::complete(grant, "[1]"),
            Self::CompleteData => make::complete_with(grant, "[1]", &data::report(t, grant).await),
            Self::FailRetry => make::fail(grant, "X", None),
            Self::FailDead => make::fail(grant, "X", Some(false)),
            Self::CancelRunning => make::cancel(grant.task, Mode::Immediate),
            Self::Release => make::release(grant),
            Self::Expire => {
                t.clock.advance(60_000);
                Command::Expire(Expire { row: grant.seq() })
            }
            Self::Retry => {
                t.bury(grant, "X").await;
                make::retry(grant.task)
            }
            Self::Redrive => {
                t.bury(grant, "X").await;
                let filter = RedriveFilter { rows: Some(vec![grant.seq()]), ..RedriveFilter::default() };
                let redrive_id = grant.seq().0.unsigned_abs().into();
                let new = NewRedrive { redrive_id, key: None, filter, rate: None };
                let started_at = t.store.start_redrive(&new).await.unwrap().started_at;
                let rows = vec![grant.seq()];
                Command::Redrive(Redrive { redrive_id, rows, cursor: grant.seq(), finished: true, started_at })
            }
            other => unreachable!("{other:?} is about something else"),
        }
    }

    async fn prepare_mixed(self, t: &Fixture, queue: String) -> Prepared {
        let mut ids = t.put_many(&queue, 4).await;
        let held = t.claim(&[&queue], 3).await;
        let new = t.task(&queue).await;
        ids.push(new.id);
        let commands = vec![
            make::complete(&held[0], "1"),
            make::fail(&held[1], "X", Some(false)),
            make::heartbeat(&held[2]),
            Command::Submit(Submit { tasks: vec![new], maker: None }),
            Command::Claim(make::claim("w", &[&queue], 1)),
            make::hello(&queue, "1"),
        ];
        Prepared { commands, queue, ids }
    }

    /// One task before two, of which one asks for its output, and these before a last one.
    async fn prepare_run(self, t: &Fixture, queue: String) -> Prepared {
        let mut tasks = make::members(t.tasks(&queue, 4).await, &[&[], &[0], &[0], &[1, 2]]);
        tasks[1].task.payload = r#"{"$from":"t0"}"#.into();
        tasks[1].refs = vec![0];
        let mut ids: Vec<TaskId> = tasks.iter().map(|member| member.task.id).collect();
        let run = t.mint().await;
        ids.push(run);
        let submit = Command::SubmitRun(make::run(run, Some(&queue), tasks));
        if self == Self::SubmitRun {
            return Prepared { commands: vec![submit], queue, ids };
        }
        t.run(submit).await.unwrap();
        let held = t.claim_one(&queue).await;
        let command = match self {
            Self::CompleteInRun => make::complete(&held, "[7]"),
            Self::FailInRun => make::fail(&held, "X", Some(false)),
            _ => {
                let (run, reason) = (RunId::from_u128(run.as_u128()), "enough".into());
                Command::CancelRun(CancelRun { run, reason, mode: Mode::Immediate, reach: Reach::All })
            }
        };
        Prepared { commands: vec![command], queue, ids }
    }

    async fn verify_run(self, t: &Fixture, ids: &[TaskId], outcome: &Outcome) {
        use State::{Blocked, Canceled, Failed, Ready, Skipped, Succeeded};
        let id = RunId::from_u128(ids[4].as_u128());
        let (states, kind) = match self {
            Self::SubmitRun => ([Ready, Blocked, Blocked, Blocked], FactKind::RunCreated),
            Self::CompleteInRun => ([Succeeded, Ready, Ready, Blocked], FactKind::RunCreated),
            Self::FailInRun => ([Failed, Skipped, Skipped, Skipped], FactKind::RunFailed),
            _ => ([Canceled, Canceled, Canceled, Canceled], FactKind::RunCanceled),
        };
        assert!(outcome.is_ok(), "{outcome:?}");
        if self == Self::SubmitRun {
            assert_eq!(*outcome, Ok(Answer::RunSubmitted(RunSubmitted { id, created: true })));
        }
        let view = t.store.run(id, &Reach::All).await.unwrap().unwrap();
        assert_eq!(view.tasks.iter().map(|task| task.state).collect::<Vec<_>>(), states);
        let payload = if self == Self::CompleteInRun { "[7]" } else { r#"{"$from":"t0"}"# };
        assert_eq!(&*t.view(ids[1]).await.body.payload, payload);
        self.assert_told(t, ids[4], kind).await;
    }

    /// `found`: a failed run had committed, and the answers are those of the run that found it.
    pub async fn verify(self, t: &Fixture, prepared: &Prepared, outcomes: &[Outcome], found: bool) {
        let (queue, ids) = (&*prepared.queue, &prepared.ids);
        if self == Self::DeleteQueue {
            assert_eq!(outcomes[0], Ok(Answer::Done(true)));
            let listed = t.store.queues(None, None, 1_000).await.unwrap().items;
            assert!(listed.iter().all(|stats| &*stats.queue.name != queue));
            assert_eq!((&*t.view(ids[0]).await.queue, t.state(ids[0]).await), (queue, State::Succeeded));
            return;
        }
        let counts = t.queue(queue).await.counts;
        let outcome = &outcomes[0];
        match self {
            Self::SubmitRun | Self::CompleteInRun | Self::FailInRun | Self::CancelRun => {
                self.verify_run(t, ids, outcome).await;
            }
            Self::Submit | Self::SubmitKey => {
                let Ok(Answer::Submitted(submitted)) = outcome else { panic!("{outcome:?}") };
                assert!(submitted.iter().all(|task| task.created && task.state == State::Ready), "{submitted:?}");
                assert_eq!(submitted.iter().map(|task| task.id).collect::<Vec<_>>(), *ids);
                assert_eq!(counts.ready, ids.len() as i64);
                self.assert_told(t, ids[0], FactKind::Submitted).await;
            }
            Self::Claim => {
                let grants = granted(outcome);
                assert_eq!(grants.iter().map(|grant| grant.task).collect::<Vec<_>>(), ids[..2]);
                assert!(
                    grants.iter().all(|grant| (grant.attempt, grant.fence) == (1, Fence(1)) && grant.body.is_some())
                );
                assert_eq!((counts.running, counts.ready), (2, 1));
                self.assert_told(t, ids[0], FactKind::Started).await;
            }
            Self::ClaimLimited => {
                assert_eq!(granted(outcome)[0].task, ids[0]);
                assert_eq!(counts.running, 1);
                assert_eq!(t.claim(&[queue], 9).await.len(), 1, "one token was taken, one is left");
            }
            Self::ClaimTask => {
                assert_eq!((granted(outcome)[0].task, granted(outcome)[0].attempt), (ids[0], 1));
                assert_eq!(counts.running, 1);
            }
            Self::Heartbeat => {
                assert!(matches!(outcome, Ok(Answer::Renewed(_))), "{outcome:?}");
                let Place::Running(running) = t.view(ids[0]).await.place else { panic!("it runs") };
                assert_eq!((running.progress.pct, running.carry.checkpoint.as_deref()), (Some(50), Some("here")));
            }
            Self::Complete => {
                assert_eq!(*outcome, Ok(Answer::Reported(Receipt::Completed)));
                let Place::Finished(finished) = t.view(ids[0]).await.place else { panic!("it has ended") };
                assert_eq!(finished.result.as_deref(), Some("[1]"));
                self.assert_told(t, ids[0], FactKind::Succeeded).await;
            }
            Self::CompleteData => {
                assert_eq!(*outcome, Ok(Answer::Reported(Receipt::Completed)));
                data::verify(t, ids[0]).await;
                self.assert_told(t, ids[0], FactKind::Succeeded).await;
            }
            Self::FailRetry => {
                assert_eq!(*outcome, Ok(Answer::Reported(Receipt::Failed { requeued: true, dlq: false })));
                assert_eq!((counts.ready, t.attempts(ids[0]).await.len()), (1, 1));
                self.assert_told(t, ids[0], FactKind::Retrying).await;
            }
            Self::FailDead => {
                assert_eq!(*outcome, Ok(Answer::Reported(Receipt::Failed { requeued: false, dlq: true })));
                assert_eq!((counts.finished, counts.dead_lettered), (1, 1));
                self.assert_told(t, ids[0], FactKind::DeadLettered).await;
            }
            Self::CancelReady | Self::CancelRunning => {
                let Ok(Answer::Canceled(canceled)) = outcome else { panic!("{outcome:?}") };
                assert_eq!((canceled.state, &*canceled.reason), (State::Canceled, "stop"));
                assert_eq!(counts.finished, 1);
                self.assert_told(t, ids[0], FactKind::Canceled).await;
            }
            Self::Retry => {
                match outcome {
                    Ok(Answer::Retried(retried)) if !found => {
                        assert_eq!((retried.attempt, retried.max_attempts), (1, 4))
                    }
                    // Nothing in the row says who asked for it.
                    Err(Rejection::NotRetryable { state: State::Ready, .. }) if found => {}
                    other => panic!("{other:?}"),
                }
                let Place::Ready(waiting) = t.view(ids[0]).await.place else { panic!("it waits") };
                assert_eq!(waiting.carry.extra_attempts, 2, "the budget grew once");
                self.assert_told(t, ids[0], FactKind::Retried).await;
            }
            Self::Expire | Self::Promote | Self::Release => {
                assert_eq!(*outcome, Ok(Answer::Done(!found)));
                assert_eq!((counts.ready, counts.running, counts.scheduled), (1, 0, 0));
                let closed = usize::from(self != Self::Promote);
                assert_eq!(t.attempts(ids[0]).await.len(), closed);
                let told = [FactKind::Retrying, FactKind::Ready, FactKind::Released];
                let kind = told[[Self::Expire, Self::Promote, Self::Release].iter().position(|s| *s == self).unwrap()];
                self.assert_told(t, ids[0], kind).await;
            }
            Self::Redrive => {
                assert_eq!(*outcome, Ok(Answer::Redriven { released: u64::from(!found) }));
                assert_eq!((counts.ready, counts.dead_lettered), (1, 0));
                assert_eq!(t.store.open_redrives().await.unwrap(), []);
                let released =
                    format!("SELECT sum(released), count(*) FROM redrives WHERE cursor = {}", ids[0].seq().0);
                let text = |text: &str| Some(text.to_owned());
                assert_eq!(t.raw.rows(&released).await, [[text("1"), text("1")]], "counted once");
                self.assert_told(t, ids[0], FactKind::Redriven).await;
            }
            Self::Hello => {
                assert_eq!(*outcome, Ok(Answer::Done(!found)));
                assert_eq!((counts.ready, counts.running), (1, 0));
                let known = format!("SELECT count(*) FROM workers WHERE worker_id = '{queue}' AND incarnation = '2'");
                assert_eq!(t.raw.number(&known).await, 1);
            }
            Self::SetQueue => {
                let Ok(Answer::Queue(set)) = outcome else { panic!("{outcome:?}") };
                assert_eq!(set.settings.max_running, Some(1));
                assert_eq!(t.queue(queue).await.queue.settings, set.settings);
                assert_eq!(t.claim_ids(&[queue], 9).await, *ids);
            }
            Self::PauseQueue => {
                assert!(matches!(outcome, Ok(Answer::Queue(queue)) if queue.paused), "{outcome:?}");
                assert_eq!(t.claim_ids(&[queue], 9).await, []);
            }
            Self::DeleteQueue => unreachable!("there is no queue to count"),
            Self::Mixed => {
                assert_eq!(*outcome, Ok(Answer::Reported(Receipt::Completed)));
                assert_eq!(outcomes[1], Ok(Answer::Reported(Receipt::Failed { requeued: false, dlq: true })));
                assert!(matches!(outcomes[2], Ok(Answer::Renewed(_))), "{:?}", outcomes[2]);
                assert!(matches!(&outcomes[3], Ok(Answer::Submitted(tasks)) if tasks[0].created));
                assert_eq!(granted(&outcomes[4])[0].task, ids[3]);
                assert_eq!(outcomes[5], Ok(Answer::Done(!found)));
                assert_eq!((counts.running, counts.ready, counts.finished, counts.dead_lettered), (2, 1, 2, 1));
            }
        }
    }

    /// The fact was recorded, and once.
    async fn assert_told(self, t: &Fixture, id: TaskId, kind: FactKind) {
        let batches = t.store.events(0, 100_000).await.unwrap();
        let told = batches.iter().flat_map(|batch| &batch.facts).filter(|fact| (fact.task, fact.kind) == (id, kind));
        assert_eq!(told.count(), 1, "{self:?}: {kind:?} is told once");
    }
}

fn granted(outcome: &Outcome) -> &[Grant] {
    match outcome {
        Ok(Answer::Claimed(claimed)) => &claimed.grants,
        other => panic!("not granted: {other:?}"),
    }
}
