use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use tenure_core::command::submit::{NewTask, Start, Submit};
use tenure_core::queue::Transport;
use tenure_core::task::Spec;
use tenure_core::time::Timestamp;
use tenure_store::{Clock, Fault, MAKERS_OWN_MS, OutboxFilter, OutboxState, OutboxView};

use super::*;
use crate::{Engine, EngineConfig};

const KIND: EffectKind = EffectKind::EnqueueTask;
const TRIES: u32 = 3;

/// Performs effects in memory. It refuses some, or is away.
#[derive(Debug, Default)]
struct Destination {
    refuses: Mutex<HashSet<i64>>,
    away: AtomicBool,
    got: Mutex<Vec<i64>>,
}

#[async_trait]
impl Handler for Destination {
    fn kind(&self) -> EffectKind {
        KIND
    }

    fn key(&self) -> &'static str {
        "redis"
    }

    async fn perform(&self, effects: &[DueEffect]) -> Result<Vec<Result<Arc<str>, Failure>>, String> {
        if self.away.load(Ordering::Relaxed) {
            return Err("nobody listens".to_owned());
        }
        let refuses = self.refuses.lock().unwrap();
        let answers = effects.iter().map(|effect| match refuses.contains(&effect.id) {
            true => Err(Failure::Refused("too large".to_owned())),
            false => {
                self.got.lock().unwrap().push(effect.id);
                Ok("receipt".into())
            }
        });
        Ok(answers.collect())
    }
}

/// Effects in a store whose engine performs none, and a line to perform them by hand.
struct Bench {
    engine: Engine,
    clock: Arc<Clock>,
    destination: Arc<Destination>,
    line: Line,
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn with_effects(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("tenure.db").display());
        let config = EngineConfig { default_transport: Transport::Redis, ..EngineConfig::default() };
        let clock = Arc::clone(&config.clock);
        clock.freeze(Timestamp::from_millis(1_750_000_000_000));
        let engine = Engine::open_with(&url, config).await.unwrap();
        let tasks = engine.mint(count).await.unwrap().into_iter().map(|id| NewTask {
            id,
            queue: "q".into(),
            operator: "op".into(),
            tenant: "default".into(),
            owner: None,
            workspace: "default".into(),
            priority: 5,
            payload: "{}".into(),
            spec: Spec::default(),
            start: Start::Now,
            tags: BTreeMap::new(),
            idempotency: None,
            traceparent: None,
            submitted_by: None,
            envelope: None,
        });
        let submit = Submit { tasks: tasks.collect(), maker: None };
        engine.submit(submit, 0).await.unwrap().unwrap();
        let destination = Arc::new(Destination::default());
        let handler: Arc<dyn Handler> = Arc::clone(&destination) as Arc<dyn Handler>;
        let fresh = mpsc::channel(FRESH).0;
        let line = Line { handler, fresh, due: Notify::new(), away: AtomicBool::new(false) };
        clock.advance(MAKERS_OWN_MS);
        Self { engine, clock, destination, line, _folder: folder }
    }

    fn store(&self) -> &dyn Store {
        &*self.engine.shared.store
    }

    async fn take(&self) -> Vec<DueEffect> {
        self.store().take_effects(KIND, "redis", 100, HOLD_MS).await.unwrap()
    }

    /// Performs what is due. Returns how many rows that were.
    async fn perform_due(&self) -> usize {
        let effects = self.take().await;
        let due = effects.len();
        self.line.perform(self.store(), TRIES, effects).await;
        due
    }

    async fn rows(&self) -> Vec<OutboxView> {
        self.store().outbox(&OutboxFilter { limit: 100, ..OutboxFilter::default() }).await.unwrap().items
    }

    fn got(&self) -> usize {
        self.destination.got.lock().unwrap().len()
    }
}

#[tokio::test]
async fn an_effect_that_always_fails_holds_up_no_other_and_fails_in_the_end() {
    let bench = Bench::with_effects(5).await;
    let bad = bench.rows().await[2].message;
    bench.destination.refuses.lock().unwrap().insert(bad);
    assert_eq!(bench.perform_due().await, 5);
    assert_eq!(bench.got(), 4, "the others are performed");
    let left = bench.rows().await;
    assert_eq!((left.len(), left[0].message, left[0].tries), (1, bad, 1), "and their rows are gone");
    assert_eq!(left[0].error.as_deref(), Some("too large"));
    for tries in 2..=TRIES {
        assert_eq!(bench.perform_due().await, 0, "it waits for its back-off");
        bench.clock.advance(BACKOFF_MS << (tries - 2));
        assert_eq!(bench.perform_due().await, 1);
        assert_eq!(bench.rows().await[0].tries, tries);
    }
    assert_eq!(bench.rows().await[0].state(), OutboxState::Failed);
    bench.clock.advance(BACKOFF_MAX_MS);
    assert_eq!(bench.perform_due().await, 0, "it is not tried any more");
}

#[tokio::test]
async fn a_destination_that_is_away_counts_against_no_effect() {
    let bench = Bench::with_effects(3).await;
    bench.destination.away.store(true, Ordering::Relaxed);
    for _ in 0..2 * TRIES {
        assert_eq!(bench.perform_due().await, 3);
        bench.clock.advance(AWAY_EVERY.as_millis() as i64);
    }
    assert!(bench.rows().await.iter().all(|row| row.tries == 0 && row.state() == OutboxState::Waiting));
    assert!(bench.line.away.load(Ordering::Relaxed));
    bench.destination.away.store(false, Ordering::Relaxed);
    assert_eq!(bench.perform_due().await, 3);
    assert_eq!((bench.got(), bench.rows().await.len()), (3, 0));
}

#[tokio::test]
async fn effects_that_a_crash_left_behind_are_taken_again() {
    let bench = Bench::with_effects(3).await;
    let taken = bench.take().await;
    assert_eq!(taken.len(), 3);
    drop(taken);
    bench.clock.advance(HOLD_MS - 1);
    assert_eq!(bench.perform_due().await, 0, "somebody may still be at it");
    bench.clock.advance(1);
    assert_eq!(bench.perform_due().await, 3);
    assert_eq!((bench.got(), bench.rows().await.len()), (3, 0));
}

/// Each step of the outbox fails once: every effect is performed all the same.
#[tokio::test]
async fn every_effect_is_performed_whichever_step_of_the_store_fails() {
    for operation in ["take effects", "remove effects", "put effects off"] {
        let bench = Bench::with_effects(3).await;
        let bad = bench.rows().await[0].message;
        bench.destination.refuses.lock().unwrap().insert(bad);
        bench.store().faults().fail_in(operation, Fault::Error);
        let effects = bench.store().take_effects(KIND, "redis", 100, HOLD_MS).await.unwrap_or_default();
        bench.line.perform(bench.store(), TRIES, effects).await;
        assert!(!bench.store().faults().clear(), "{operation} was never reached");
        bench.destination.refuses.lock().unwrap().clear();
        for _ in 0..3 {
            bench.clock.advance(HOLD_MS);
            bench.perform_due().await;
        }
        assert_eq!(bench.rows().await.len(), 0, "{operation}");
        assert!(bench.got() >= 3, "at least once: {operation}");
    }
}

#[tokio::test]
async fn a_destination_that_is_away_is_tried_with_one_effect_at_a_time() {
    let bench = Bench::with_effects(6).await;
    let effects = bench.take().await;
    let (fresh, mut end) = mpsc::channel(FRESH);
    let line = Line { fresh, away: AtomicBool::new(true), ..bench.line };
    let lines = HashMap::from([((KIND, "redis"), line)]);
    let all = Effects { lines, ..Effects::default() };
    all.perform(effects[..5].to_vec());
    assert_eq!(end.try_recv().unwrap().id, effects[0].id);
    assert!(end.try_recv().is_err());
    all.perform(effects[5..].to_vec());
    assert_eq!(end.try_recv().unwrap().id, effects[5].id);
}
