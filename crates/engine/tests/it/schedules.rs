//! Schedules: once per slot, over replicas and crashes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tenure_core::TaskId;
use tenure_core::command::Reach;
use tenure_core::command::submit::Submit;
use tenure_core::schedule::{CatchUp, Definition, Outcome, Overlap, ScheduleState, Work};
use tenure_core::task::Idempotency;
use tenure_core::time::Timestamp;
use tenure_engine::store::{Clock, Fault, NewSchedule, ScheduleRow, ScheduleSetting, TaskFilter, TemplateKind};
use tenure_engine::{ClaimWait, Engine, EngineConfig, FiringKey, NotSubmitted, ScheduleChange, Submitter};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON, claim, complete, new_tasks};
use crate::on_both_stores;

on_both_stores!(
    a_crash_between_submit_and_record_makes_no_second_task,
    a_crash_between_decision_and_submit_loses_no_slot,
    work_that_cannot_be_submitted_now_is_submitted_later,
    a_schedule_that_fails_does_not_hold_up_others,
);

const START: &str = "2030-01-01T00:30:00Z";

/// Submits a task of queue `q` for each firing.
#[derive(Debug)]
struct Tasks {
    engine: Engine,
    /// What goes wrong in the store once the task is submitted.
    after: Option<Fault>,
    /// How many submissions fail before they are made.
    unavailable: AtomicUsize,
    calls: AtomicUsize,
}

impl Tasks {
    fn of(engine: &Engine) -> Self {
        Self { engine: engine.clone(), after: None, unavailable: AtomicUsize::new(0), calls: AtomicUsize::new(0) }
    }
}

#[async_trait]
impl Submitter for Tasks {
    async fn submit(&self, schedule: &ScheduleRow, template: &str, firing: &FiringKey) -> Result<Work, NotSubmitted> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let refuses = |left: usize| left.checked_sub(1);
        if self.unavailable.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuses).is_ok() {
            return Err(NotSubmitted::Unavailable("not now".to_owned()));
        }
        if schedule.name == "refused" {
            return Err(NotSubmitted::Refused("no such queue".to_owned()));
        }
        let mut submit: Submit = new_tasks(&self.engine, 1).await;
        submit.tasks[0].payload = template.into();
        submit.tasks[0].idempotency = Some(Idempotency { key: firing.key.as_str().into(), fingerprint: [1; 32] });
        let submitted = self.engine.submit(submit, 0).await.unwrap().unwrap();
        if let Some(fault) = self.after {
            self.engine.store().faults().fail_in("save a schedule", fault);
        }
        Ok(Work::Task(submitted[0].id))
    }
}

fn frozen() -> Arc<Clock> {
    let clock = Arc::new(Clock::default());
    clock.freeze(Timestamp::parse(START).unwrap());
    clock
}

/// A control plane that fires only when it is told to.
async fn engine(home: &Home, clock: &Arc<Clock>) -> Engine {
    let config = EngineConfig { clock: Arc::clone(clock), ..EngineConfig::default() };
    wait_until("the store is free", SOON, async || Engine::open_with(&home.url(), config.clone()).await.ok()).await
}

async fn hourly(engine: &Engine, n: usize, name: &str, overlap: Overlap) -> String {
    let new = NewSchedule {
        id: format!("00000000-0000-4000-8000-{n:012}"),
        tenant: "default".to_owned(),
        name: name.to_owned(),
        owner: None,
        maker: None,
        setting: ScheduleSetting {
            kind: TemplateKind::Task,
            definition: Definition {
                cron: Some("0 * * * *".to_owned()),
                timezone: "UTC".to_owned(),
                overlap,
                catch_up: CatchUp::All,
                ..Definition::default()
            },
            state: ScheduleState::default(),
            paused: false,
            due_at: None,
        },
        template: format!(r#"{{"schedule":"{name}"}}"#),
    };
    engine.create_schedule(new).await.unwrap().unwrap().id
}

async fn tasks(engine: &Engine) -> Vec<TaskId> {
    let filter = TaskFilter { reach: Reach::All, limit: 1_000, ..TaskFilter::default() };
    engine.tasks(&filter).await.unwrap().items.iter().map(|view| view.body.id).collect()
}

async fn state(engine: &Engine, id: &str) -> ScheduleState {
    engine.schedule(id).await.unwrap().unwrap().setting.state
}

async fn finish_all(engine: &Engine) {
    loop {
        let claimed = engine.claim(claim("w", 100), ClaimWait::NONE).await.unwrap();
        if claimed.grants.is_empty() {
            return;
        }
        for grant in &claimed.grants {
            engine.report(complete(grant), 0).await.unwrap().unwrap();
        }
    }
}

/// Four control planes fire at the same time, none of them asking who has the duty.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_that_fire_at_once_make_one_task_for_each_slot() {
    const SCHEDULES: usize = 12;
    const SLOTS: usize = 6;
    let home = Home::postgres().await;
    let clock = frozen();
    let mut replicas = Vec::new();
    for _ in 0..4 {
        let engine = engine(&home, &clock).await;
        replicas.push(Arc::new(Tasks::of(&engine)));
    }
    let first = replicas[0].engine.clone();
    let overlaps = [Overlap::Skip, Overlap::Queue, Overlap::CancelOld];
    for n in 0..SCHEDULES {
        hourly(&first, n, &format!("s{n}"), overlaps[n % 3]).await;
    }
    for round in 1..=SLOTS {
        clock.advance(3_600_000);
        let fire = replicas.iter().cloned().map(|replica| {
            tokio::spawn(async move {
                for _ in 0..4 {
                    replica.engine.fire_due_schedules(&*replica).await.unwrap();
                }
            })
        });
        for one in fire.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        assert_eq!(tasks(&first).await.len(), round * SCHEDULES, "round {round}");
        finish_all(&first).await;
    }
    for n in 0..SCHEDULES {
        let state = state(&first, &format!("00000000-0000-4000-8000-{n:012}")).await;
        let mut fired: HashMap<Timestamp, usize> = HashMap::new();
        for firing in &state.history {
            assert_eq!(firing.outcome, Outcome::Fired, "{state:?}");
            *fired.entry(firing.slot).or_default() += 1;
        }
        assert_eq!(fired.len(), SLOTS);
        assert!(fired.values().all(|times| *times == 1), "{fired:?}");
    }
    for replica in &replicas {
        replica.engine.shutdown().await;
    }
}

/// The process dies when the task is there and the schedule does not know of it.
async fn a_crash_between_submit_and_record_makes_no_second_task(home: Home) {
    let clock = frozen();
    let before = engine(&home, &clock).await;
    let id = hourly(&before, 1, "s", Overlap::Queue).await;
    clock.advance(3_600_000);
    let dying = Tasks { after: Some(Fault::Error), ..Tasks::of(&before) };
    before.fire_due_schedules(&dying).await.unwrap_err();
    assert!(!before.store().faults().clear(), "the fault was met");
    let submitted = tasks(&before).await;
    assert_eq!(submitted.len(), 1);
    assert!(state(&before, &id).await.firing.is_some(), "decided, and not recorded");
    before.shutdown().await;
    drop((before, dying));

    let after = engine(&home, &clock).await;
    after.fire_due_schedules(&Tasks::of(&after)).await.unwrap();
    let state = state(&after, &id).await;
    assert_eq!((state.firing, state.last), (None, Some(Work::Task(submitted[0]))));
    assert_eq!(state.history.len(), 1);
    assert_eq!(tasks(&after).await, submitted);
    after.shutdown().await;
}

/// The process dies when the slot is decided and nothing was submitted.
async fn a_crash_between_decision_and_submit_loses_no_slot(home: Home) {
    let clock = frozen();
    let before = engine(&home, &clock).await;
    let id = hourly(&before, 1, "s", Overlap::Skip).await;
    clock.advance(3_600_000);
    let dying = Tasks { unavailable: AtomicUsize::new(1), ..Tasks::of(&before) };
    before.fire_due_schedules(&dying).await.unwrap();
    assert_eq!(tasks(&before).await.len(), 0);
    before.shutdown().await;
    drop((before, dying));
    // Long after, and although the schedule was paused meanwhile: the slot was decided.
    clock.advance(40 * 60_000);
    let after = engine(&home, &clock).await;
    let row = after.schedule(&id).await.unwrap().unwrap();
    let pause = ScheduleChange { paused: Some(true), ..ScheduleChange::default() };
    after.change_schedule(&row, &pause).await.unwrap().unwrap();
    for _ in 0..2 {
        after.fire_due_schedules(&Tasks::of(&after)).await.unwrap();
        assert_eq!(tasks(&after).await.len(), 1);
        clock.advance(3_600_000);
    }
    assert_eq!(state(&after, &id).await.history[0].slot, Timestamp::parse("2030-01-01T01:00:00Z").unwrap());
    after.shutdown().await;
}

async fn work_that_cannot_be_submitted_now_is_submitted_later(home: Home) {
    let clock = frozen();
    let engine = engine(&home, &clock).await;
    let id = hourly(&engine, 1, "s", Overlap::Queue).await;
    clock.advance(3_600_000);
    let submitter = Tasks { unavailable: AtomicUsize::new(2), ..Tasks::of(&engine) };
    for _ in 0..3 {
        engine.fire_due_schedules(&submitter).await.unwrap();
        // Not at once again.
        engine.fire_due_schedules(&submitter).await.unwrap();
        clock.advance(5_000);
    }
    assert_eq!(submitter.calls.load(Ordering::SeqCst), 3);
    assert_eq!(tasks(&engine).await.len(), 1);
    assert_eq!(state(&engine, &id).await.history.len(), 1);
    engine.shutdown().await;
}

async fn a_schedule_that_fails_does_not_hold_up_others(home: Home) {
    let clock = frozen();
    let engine = engine(&home, &clock).await;
    let refused = hourly(&engine, 1, "refused", Overlap::Skip).await;
    let good = hourly(&engine, 2, "good", Overlap::Skip).await;
    clock.advance(3_600_000);
    let submitter = Tasks::of(&engine);
    engine.fire_due_schedules(&submitter).await.unwrap();
    let entry = state(&engine, &refused).await.history[0].clone();
    assert_eq!((entry.outcome, entry.reason.as_deref()), (Outcome::Refused, Some("no such queue")));
    assert_eq!(state(&engine, &good).await.history[0].outcome, Outcome::Fired);
    // The next slot is another try.
    clock.advance(3_600_000);
    engine.fire_due_schedules(&submitter).await.unwrap();
    assert_eq!(state(&engine, &refused).await.history.len(), 2);
    engine.shutdown().await;
}
