//! A batch decides what its commands would decide one by one, whatever they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use tenure_core::attempt::{Category, ClosedAttempt, Failure, Report};
use tenure_core::batch::{Load, Outcome, Saved, Session, World};
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::claim::{ClaimTask, Claimer, Seed};
use tenure_core::command::report::AttemptReport;
use tenure_core::command::{Command, Numbers, Reach, Task, expire, heartbeat, promote, redrive, release, retry};
use tenure_core::id::Fence;
use tenure_core::lease::Grace;
use tenure_core::queue::{Queue, QueueId};
use tenure_core::retry::RetryPolicy;
use tenure_core::task::{Body, Carry, Place, Spec, Waiting};
use tenure_core::{AttemptId, LeaseToken, Seq, TaskId, Timestamp};

/// One task as a store keeps it.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    place: Place,
    history: BTreeMap<u32, ClosedAttempt>,
}

fn id() -> TaskId {
    TaskId::new(0, 0, Seq(1))
}

fn credentials(seed: u8) -> (AttemptId, LeaseToken) {
    Seed([seed; 32]).draw(0)
}

fn spec(backoff_ms: i64) -> Spec {
    let retry = RetryPolicy { initial_backoff_ms: backoff_ms, ..RetryPolicy::default() };
    Spec { max_attempts: Some(2), retry: Some(retry), deadline: Some(at(400)), ..Spec::default() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn submitted(backoff_ms: i64) -> Row {
    let waiting = Waiting {
        queue: QueueId(1),
        priority: 5,
        at: at(0),
        fair: None,
        message: 0,
        attempt: 0,
        fence: Fence(0),
        carry: Carry::fresh(spec(backoff_ms)),
    };
    Row { place: Place::Ready(waiting), history: BTreeMap::new() }
}

fn body(backoff_ms: i64) -> Arc<Body> {
    Arc::new(Body {
        id: id(),
        queue: QueueId(1),
        operator: "work".into(),
        tenant: "acme".into(),
        owner: None,
        workspace: "default".into(),
        priority: 5,
        payload: "{}".into(),
        spec: spec(backoff_ms),
        tags: BTreeMap::new(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
        created_at: at(0),
        run_at: at(0),
        run: None,
    })
}

impl Row {
    fn load(&self, load: &Load<'_>, world: &mut World, body: &Arc<Body>, (now, grace): (Timestamp, Grace)) {
        let row = id().seq();
        if load.begin {
            world.begin(now, grace);
            world.add_queue(Queue::new(QueueId(1), "q".into()), 0);
        }
        if load.tasks.rows.contains(&row) {
            world.add_task(Task { id: id(), place: self.place.clone(), body: None });
        }
        if load.tasks.bodies.contains(&row) {
            world.add_body(Arc::clone(body));
        }
        if load.tasks.attempts.contains(&row) {
            self.history.values().for_each(|closed| world.add_attempt(row, closed.clone()));
        }
    }

    /// One transaction: load, decide, write.
    fn execute(&mut self, commands: &[Command], body: &Arc<Body>, time: (Timestamp, Grace)) -> Vec<Outcome> {
        let numbers = commands.iter().map(|command| command.profile().numbers).sum::<usize>() as i64;
        let mut session = Session::new(commands, Numbers::new(1, 1 + numbers), false);
        while let Some((load, world)) = session.next_load() {
            self.load(load, world, body, time);
        }
        let write = session.write();
        let outcomes = session.done(&write, Saved::default()).outcomes;
        let writes = write.writes;
        let left = writes.tasks.unschedule.len()
            + writes.tasks.unready.len()
            + writes.tasks.unrun.len()
            + writes.tasks.unfinish.len();
        let schedule = writes.tasks.schedule.into_iter().map(|(_, row)| Place::Scheduled(row));
        let ready = writes.tasks.ready.into_iter().map(|(_, row)| Place::Ready(row));
        let run = writes.tasks.run.into_iter().map(|(_, row)| Place::Running(row));
        let finish = writes.tasks.finish.into_iter().map(|(_, row)| Place::Finished(row));
        let entered: Vec<Place> = schedule.chain(ready).chain(run).chain(finish).collect();
        assert_eq!(left, entered.len(), "what leaves a place enters one");
        let renewed = writes.tasks.renew.into_iter().map(|(_, row)| Place::Running(row));
        for place in entered.into_iter().chain(renewed) {
            self.place = place;
        }
        self.history.extend(writes.tasks.attempts.into_iter().map(|(_, closed)| (closed.number, closed)));
        for (_, number) in writes.tasks.drop_attempts {
            self.history.remove(&number);
        }
        // Which fresh number a message got depends on how many came before it, and nothing depends on that.
        match &mut self.place {
            Place::Scheduled(waiting) | Place::Ready(waiting) => waiting.message = 0,
            Place::Running(running) => running.message = 0,
            Place::Blocked(_) | Place::Finished(_) => {}
        }
        outcomes
    }
}

fn claimer(seed: u8) -> Claimer {
    Claimer::worker("w".into(), Seed([seed; 32]))
}

/// How much later, after which outage, and what then.
type Step = (i64, Outage, Vec<Command>);

#[derive(Debug, Clone, Copy)]
enum Outage {
    None,
    /// It ended so many seconds ago, and leases from before are held back for so many from now.
    Ended(i64, i64),
    Open,
}

impl Outage {
    fn grace(self, now: i64) -> Grace {
        match self {
            Self::None => Grace::NONE,
            Self::Ended(ago, left) => Grace::new(at(now - ago), at(now + left)),
            Self::Open => Grace::OPEN,
        }
    }
}

fn outage() -> impl Strategy<Value = Outage> {
    prop_oneof![
        4 => Just(Outage::None),
        2 => (0..100_i64, 0..100_i64).prop_map(|(ago, left)| Outage::Ended(ago, left)),
        1 => Just(Outage::Open),
    ]
}

/// No two claims draw the same secrets: the first draws those of seed 1, and so on.
fn with_fresh_seeds(mut batches: Vec<Step>) -> Vec<Step> {
    let mut seed = 0;
    for command in batches.iter_mut().flat_map(|(_, _, commands)| commands) {
        if let Command::ClaimTask(claim) = command {
            seed += 1;
            claim.claimer = claimer(seed);
        }
    }
    batches
}

fn command() -> impl Strategy<Value = Command> {
    let row = id().seq();
    let seed = 1..5_u8;
    prop_oneof![
        3 => Just(Command::ClaimTask(ClaimTask { claimer: claimer(0), task: id(), message: None })),
        2 => (seed.clone(), proptest::option::of(1..3_u32)).prop_map(|(seed, attempt)| Command::Heartbeat(heartbeat::Heartbeat {
            task: id(),
            attempt,
            token: credentials(seed).1,
            worker: None,
            progress: Default::default(),
            checkpoint: Some("c".into()),
        })),
        2 => (seed.clone(), 0..2_u8).prop_map(|(seed, result)| {
            let (attempt_id, token) = credentials(seed);
            let report = Report::succeeded(Some(result.to_string().into()));
            Command::Report(AttemptReport { task: id(), attempt_id, token, report, data: None })
        }),
        3 => (seed.clone(), select(vec![None, Some(Category::DataQuality), Some(Category::Canceled)])).prop_map(|(seed, category)| {
            let (attempt_id, token) = credentials(seed);
            let report = Report::failed(Failure::new("X", "", None, None).of_category(category));
            Command::Report(AttemptReport { task: id(), attempt_id, token, report, data: None })
        }),
        1 => prop_oneof![Just(Mode::Cooperative), Just(Mode::Immediate)].prop_map(|mode| {
            Command::Cancel(Cancel { task: id(), reason: "stop".into(), mode, reach: Reach::All })
        }),
        1 => Just(Command::Retry(retry::Retry { task: id(), reach: Reach::All })),
        1 => Just(Command::Expire(expire::Expire { row })),
        2 => Just(Command::Promote(promote::Promote { row })),
        1 => seed.prop_map(move |seed| {
            Command::Release(release::Release { row, attempt_id: credentials(seed).0, by_holder: false })
        }),
        1 => Just(Command::Redrive(redrive::Redrive {
            redrive_id: 1,
            rows: vec![row],
            cursor: row,
            finished: false,
            started_at: at(1_000),
        })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_decides_as_its_commands_would_one_by_one(
        backoff_ms in prop_oneof![Just(0), Just(5_000)],
        batches in prop::collection::vec((0..50_i64, outage(), prop::collection::vec(command(), 1..6)), 1..12)
            .prop_map(with_fresh_seeds),
    ) {
        let body = body(backoff_ms);
        let (mut together, mut alone) = (submitted(backoff_ms), submitted(backoff_ms));
        let mut now = 0;
        for (pause, outage, commands) in &batches {
            now += pause;
            let time = (at(now), outage.grace(now));
            let answers = together.execute(commands, &body, time);
            for (command, answer) in commands.iter().zip(answers) {
                let single = alone.execute(std::slice::from_ref(command), &body, time).remove(0);
                // The message that an answer carries is one of those numbers.
                prop_assert_eq!(without_message(single), without_message(answer), "{:?}", command);
            }
            prop_assert_eq!(&alone, &together);
        }
    }
}

fn without_message(mut outcome: Outcome) -> Outcome {
    if let Ok(tenure_core::command::Answer::Claimed(claimed)) = &mut outcome {
        claimed.grants.iter_mut().for_each(|grant| grant.message = 0);
    }
    if let Ok(tenure_core::command::Answer::NotGranted(not)) = &mut outcome {
        not.live = None;
    }
    outcome
}
