//! Small tasks for the tests of the commands.

use super::{Context, Numbers, Task};
use crate::attempt::{AttemptState, Reason};
use crate::command::{claim, expire};
use crate::id::{Fence, LeaseToken, TaskId};
use crate::lease::Grace;
use crate::queue::{Queue, QueueId};
use crate::task::{Carry, Place, Running, Spec, Waiting};
use crate::time::Timestamp;

pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

pub fn id() -> TaskId {
    TaskId::parse("task_01HGW5N7XHJM4GX29KZRXQP6N9").unwrap()
}

pub fn queue() -> Queue {
    Queue::new(QueueId(1), "q".into())
}

pub fn ready() -> Waiting {
    Waiting {
        queue: QueueId(1),
        priority: 5,
        at: at(0),
        fair: None,
        message: 1,
        attempt: 0,
        fence: Fence(0),
        carry: Carry::default(),
    }
}

/// Granted at 0 with a lease of 60 s, by a claim of seed 1.
pub fn running() -> Running {
    running_with(Spec::default())
}

pub fn running_with(spec: Spec) -> Running {
    let waiting = Waiting { carry: Carry::fresh(spec), ..ready() };
    let mut numbers = Numbers::new(100, 200);
    let ctx = Context { now: at(0), grace: Grace::NONE, numbers: &mut numbers };
    let (change, _) = claim::grant(id(), &waiting, &claimer(1), 0, &queue(), &ctx);
    match change.place {
        Place::Running(running) => running,
        other => panic!("granted means running: {other:?}"),
    }
}

pub fn claimer(seed: u8) -> claim::Claimer {
    claim::Claimer { worker: "w".into(), incarnation: None, claim_id: None, seed: claim::Seed([seed; 32]) }
}

pub fn token(seed: u8) -> LeaseToken {
    claim::Seed([seed; 32]).draw(0).1
}

pub fn scheduled_retry() -> Waiting {
    let closed = expire::close(&running(), AttemptState::Failed, Reason::HeartbeatTimeout, None, at(60_000));
    Waiting {
        attempt: 1,
        fence: Fence(1),
        carry: Carry { last: Some(Box::new(closed)), ..Carry::default() },
        ..ready()
    }
}

pub fn task(place: Place) -> Task {
    Task { id: id(), place, body: None }
}

/// Runs `f` at `now` with no outage.
pub fn with_ctx<T>(now: i64, f: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let mut numbers = Numbers::new(1_000, 2_000);
    f(&mut Context { now: at(now), grace: Grace::NONE, numbers: &mut numbers })
}
