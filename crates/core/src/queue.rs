//! Queues and what limits their grants.
//!
//! Slots of `max_running` are not handed out and returned: open attempts are counted, so no slot can leak.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::command::claim::Claimer;
use crate::limits;
use crate::mutant;
use crate::task::Spec;
use crate::time::{DurationMs, Timestamp};

/// The store's short name of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub i32);

#[derive(Debug, Clone, PartialEq, Default)]
pub struct QueueSettings {
    pub max_running: Option<u32>,
    pub rate: Option<Rate>,
    pub fairness_key: Option<FairnessKey>,
    pub lease_ttl_ms: Option<DurationMs>,
    pub heartbeat_ms: Option<DurationMs>,
    /// Failed tasks are kept out of the dead letters.
    pub no_dead_letter: bool,
    /// A lost attempt is dead before another one is granted. Only workers that kill an attempt when its lease expires
    /// are granted its tasks.
    pub strict: bool,
    /// Its tasks are pushed to a worker's address instead of being claimed.
    pub push: Option<Arc<Push>>,
    /// It belongs to a job of a DAG: its tasks are claimed by id, under the dispatch contract.
    pub dispatch: Option<Arc<Dispatch>>,
}

/// Queues with names that begin like this belong to jobs.
pub const JOB_QUEUES: &str = "dag:";

/// Where the wake-ups of jobs go has a name that begins like this and is that of no queue.
pub const JOB_WAKES: &str = "dag::";

/// The name under which everybody who waits for tasks with this wake-up queue is known.
pub fn job_wakes(wake: &str) -> Arc<str> {
    format!("{JOB_WAKES}{wake}").into()
}

/// What the queue of a job says about its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The queue that wake-ups of its tasks are sent to: one for all jobs of a runtime or of a worker pool.
    pub wake: Arc<str>,
    /// The version of the job's DAG is not active: only what rebuilds its outputs is granted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// Where and how the tasks of a queue are pushed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Push {
    pub url: Arc<str>,
    /// Names of a secret and of a client certificate in the configuration; never the secrets themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<Arc<str>>,
    /// Headers that carry the secret. Empty: [`SECRET_HEADER`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_header: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls_ref: Option<Arc<str>>,
    /// How many attempts may be open at once.
    pub concurrency: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    /// How long one push may go without an answer.
    pub ack_timeout_ms: DurationMs,
    /// How long an accepted push may go without a start before it is repeated.
    pub start_timeout_ms: DurationMs,
    /// How long an attempt may go without a start before it is closed.
    pub dispatch_timeout_ms: DurationMs,
}

/// What carries the secret of a push, unless its queue says otherwise.
pub const SECRET_HEADER: &str = "X-Tenure-Dispatch-Secret";

impl Push {
    /// To this address, with the defaults.
    pub fn to(url: Arc<str>) -> Self {
        Self {
            url,
            secret_ref: None,
            secret_header: Vec::new(),
            mtls_ref: None,
            concurrency: limits::PUSH_CONCURRENCY_DEFAULT,
            rate_per_second: None,
            ack_timeout_ms: limits::PUSH_ACK_MS_DEFAULT,
            start_timeout_ms: limits::PUSH_START_MS_DEFAULT,
            dispatch_timeout_ms: limits::PUSH_DISPATCH_MS_DEFAULT,
        }
    }

    /// The headers that carry its secret.
    pub fn secret_headers(&self) -> impl Iterator<Item = &str> {
        let usual = self.secret_header.is_empty().then_some(SECRET_HEADER);
        self.secret_header.iter().map(|name| &**name).chain(usual)
    }

    fn rate(&self) -> Option<Rate> {
        self.rate_per_second.map(|per_second| Rate { per_second, burst: per_second.max(1.0) })
    }
}

/// The scheme of a push URL whose queue runs its tasks in sandboxes: `sandbox:`, or `sandbox:` and a template.
const SANDBOX_SCHEME: &str = "sandbox:";

impl Push {
    /// The template that tasks get which name none, if the queue runs its tasks in sandboxes. May be empty.
    pub fn sandbox_template(&self) -> Option<&str> {
        self.url.strip_prefix(SANDBOX_SCHEME)
    }
}

impl QueueSettings {
    /// Whether the control plane runs its tasks in sandboxes.
    pub fn runs_sandboxes(&self) -> bool {
        self.push.as_ref().is_some_and(|push| push.sandbox_template().is_some())
    }

    /// Whether tasks of this kind may be granted. A task that asks for a sandbox must never reach a worker that would run
    /// it without one, and a task that names no command has nothing to run in one.
    pub fn runs(&self, spec: &Spec) -> bool {
        spec.sandbox == self.runs_sandboxes()
    }

    /// Whether a task of this kind has to wait because the version of its DAG is not active.
    pub fn holds(&self, spec: &Spec) -> bool {
        self.dispatch.as_ref().is_some_and(|dispatch| dispatch.held) && !spec.rebuild
    }

    /// Whether workers are told of a task of this kind when it is ready: not if the control plane pushes it, and not
    /// while it is held.
    pub fn announces(&self, spec: &Spec) -> bool {
        self.dispatch.is_none() || (self.push.is_none() && !self.holds(spec))
    }

    /// How many attempts may be open at once: the smaller of the limits of the queue and of its worker.
    pub fn slots(&self) -> Option<u32> {
        match (self.max_running, self.push.as_ref().map(|push| push.concurrency)) {
            (Some(own), Some(push)) => Some(own.min(push)),
            (own, push) => own.or(push),
        }
    }

    /// When everything that a lost attempt started is dead: its lease is over, and its worker, or the supervisor of its
    /// sandbox, has had time to kill it. `None` if the queue does not wait for that.
    pub fn dead_at(&self, lease_expires_at: Timestamp) -> Option<Timestamp> {
        self.strict.then(|| lease_expires_at.plus(limits::STRICT_KILL_MS))
    }

    /// How fast tasks may be granted: the slower of the rates of the queue and of its worker.
    pub fn pace(&self) -> Option<Rate> {
        match (self.rate, self.push.as_ref().and_then(|push| push.rate())) {
            (Some(own), Some(push)) => Some(if push.per_second < own.per_second { push } else { own }),
            (own, push) => own.or(push),
        }
    }
}

/// How the wake-ups of a queue travel. Claims are granted from the store whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Transport {
    /// Inside the control plane, and between control planes by the store.
    #[default]
    Embedded,
    /// A Redis stream with the name of the queue.
    Redis,
    /// An SQS queue with the name of the queue.
    Sqs,
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Embedded, Self::Redis, Self::Sqs];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Redis => "redis",
            Self::Sqs => "sqs",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.as_str() == text)
    }

    /// Whether wake-ups leave the control plane.
    pub const fn is_external(self) -> bool {
        !matches!(self, Self::Embedded)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub burst: f64,
}

/// What grants of a queue rotate over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FairnessKey {
    Tenant,
    Workspace,
    Tag(String),
}

impl FairnessKey {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "tenant" => Some(Self::Tenant),
            "workspace" => Some(Self::Workspace),
            _ => text
                .strip_prefix("tag:")
                .filter(|name| !name.is_empty() && name.len() <= limits::TAG_BYTES)
                .map(|name| Self::Tag(name.to_owned())),
        }
    }
}

impl std::fmt::Display for FairnessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tenant => f.write_str("tenant"),
            Self::Workspace => f.write_str("workspace"),
            Self::Tag(name) => write!(f, "tag:{name}"),
        }
    }
}

/// A queue and what its limits have seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    pub id: QueueId,
    pub name: Arc<str>,
    /// The tenant that owns it; `None` is shared by all tenants.
    pub tenant: Option<Arc<str>>,
    pub paused: bool,
    pub transport: Transport,
    pub settings: QueueSettings,
    pub bucket: Bucket,
    /// The fairness value that was granted last; the next grant starts after it.
    pub fair_cursor: Option<Arc<str>>,
}

impl Queue {
    pub fn new(id: QueueId, name: Arc<str>) -> Self {
        Self {
            id,
            name,
            tenant: None,
            paused: false,
            transport: Transport::default(),
            settings: QueueSettings::default(),
            bucket: Bucket::default(),
            fair_cursor: None,
        }
    }

    /// Whether this claimer may be granted its tasks: a queue that pushes cannot be claimed from, that of a job only by
    /// workers of its contract, and a strict one only by a worker that kills what it loses.
    pub fn serves(&self, claimer: &Claimer) -> bool {
        self.settings.push.is_some() == claimer.is_delivery()
            && claimer.worker.as_ref().is_none_or(|worker| worker.dispatch == self.settings.dispatch.is_some())
            && (!self.settings.strict || claimer.worker.as_ref().is_some_and(|worker| worker.kills_on_expiry))
    }

    /// Where its wake-ups go: to those who wait for this queue, or for any job of the same wake-up queue.
    pub fn wakes(&self) -> Arc<str> {
        match &self.settings.dispatch {
            Some(dispatch) if self.settings.push.is_none() => job_wakes(&dispatch.wake),
            _ => Arc::clone(&self.name),
        }
    }

    /// Whether workers have to be told when it has room again: those of its wake-ups that came while it was full are gone.
    pub fn tells_of_room(&self) -> bool {
        self.settings.dispatch.is_some() && self.settings.max_running.is_some() && self.transport.is_external()
    }

    /// Whether it accepts tasks of this tenant.
    pub fn takes(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant)
    }

    /// Whether grants of this queue depend on more than a ready task: such grants are made one batch at a time.
    pub fn is_limited(&self) -> bool {
        self.settings.slots().is_some() || self.settings.pace().is_some() || self.settings.fairness_key.is_some()
    }

    /// How many grants the limits leave at `now` with `running` open attempts.
    pub fn room(&self, running: u32, now: Timestamp) -> Room {
        if self.paused {
            return Room { grants: 0, held_by: Some(Limit::Paused) };
        }
        let slots = self.settings.slots().filter(|_| !mutant!("limit-ignored"));
        let slots = slots.map_or(u32::MAX, |max| max.saturating_sub(running));
        let pace = self.settings.pace().filter(|_| !mutant!("rate-ignored"));
        let tokens = pace.map_or(u32::MAX, |rate| self.bucket.whole_tokens(rate, now));
        let held_by = if slots == 0 {
            Some(Limit::Slots)
        } else if tokens == 0 {
            Some(Limit::Rate)
        } else {
            None
        };
        Room { grants: slots.min(tokens), held_by }
    }

    /// Takes a token for a grant that [`Self::room`] allowed.
    pub fn spend(&mut self, now: Timestamp) {
        if let Some(rate) = self.settings.pace() {
            self.bucket.spend(rate, now);
        }
    }

    /// When the rate allows the next grant.
    pub fn next_token_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.settings.pace().map(|rate| self.bucket.next_token_at(rate, now))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub grants: u32,
    pub held_by: Option<Limit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Paused,
    Slots,
    Rate,
}

/// A token bucket. Full when it was never used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bucket {
    /// Tokens at the time beside them.
    pub level: Option<(f64, Timestamp)>,
}

impl Bucket {
    fn tokens(self, rate: Rate, now: Timestamp) -> f64 {
        match self.level {
            None => rate.burst,
            Some((tokens, at)) => {
                let refill = now.since(at).max(0) as f64 / 1000.0 * rate.per_second;
                (tokens + refill).min(rate.burst)
            }
        }
    }

    fn whole_tokens(self, rate: Rate, now: Timestamp) -> u32 {
        // A hair of tolerance: 0.1 ten times is a little less than 1.
        (self.tokens(rate, now) + 1e-6).max(0.0) as u32
    }

    fn spend(&mut self, rate: Rate, now: Timestamp) {
        // A transaction may have read its time before another one committed with a later time. What was refilled up to
        // the later time must not be refilled again.
        let at = self.level.map_or(now, |(_, at)| at.max(now));
        self.level = Some((self.tokens(rate, now) - 1.0, at));
    }

    fn next_token_at(self, rate: Rate, now: Timestamp) -> Timestamp {
        let missing = (1.0 - self.tokens(rate, now)).max(0.0);
        now.plus((missing / rate.per_second * 1000.0).ceil() as DurationMs)
    }
}

/// The order in which grants rotate over fairness values: each value once, starting after `cursor`, then again.
/// Items of one value keep their order.
pub fn rotate<T>(items: Vec<T>, cursor: Option<&str>, value: impl Fn(&T) -> Arc<str>) -> Vec<T> {
    let mut lanes: std::collections::BTreeMap<Arc<str>, std::collections::VecDeque<T>> = Default::default();
    for item in items {
        lanes.entry(value(&item)).or_default().push_back(item);
    }
    let mut order: Vec<Arc<str>> = lanes.keys().cloned().collect();
    if let Some(cursor) = cursor {
        let behind = order.partition_point(|value| &**value <= cursor);
        order.rotate_left(behind);
    }
    let mut picked = Vec::new();
    while !lanes.is_empty() {
        for value in &order {
            let Some(lane) = lanes.get_mut(value) else { continue };
            picked.extend(lane.pop_front());
            if lane.is_empty() {
                lanes.remove(value);
            }
        }
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn queue(settings: QueueSettings) -> Queue {
        Queue { settings, ..Queue::new(QueueId(1), "q".into()) }
    }

    #[test]
    fn slots_are_what_the_open_attempts_leave() {
        let queue = queue(QueueSettings { max_running: Some(3), ..Default::default() });
        assert_eq!(queue.room(1, at(0)).grants, 2);
        assert_eq!(queue.room(3, at(0)), Room { grants: 0, held_by: Some(Limit::Slots) });
        assert_eq!(queue.room(9, at(0)).grants, 0);
    }

    #[test]
    fn a_grant_that_looks_back_in_time_refills_nothing_twice() {
        let rate = Rate { per_second: 1.0, burst: 2.0 };
        let mut queue = queue(QueueSettings { rate: Some(rate), ..Default::default() });
        queue.spend(at(10_000));
        queue.spend(at(9_000));
        assert_eq!(queue.room(0, at(10_000)).grants, 0);
        assert_eq!(queue.room(0, at(11_000)).grants, 1);
    }

    #[test]
    fn a_queue_that_pushes_serves_its_dispatcher_alone_and_others_everybody_else() {
        let seed = crate::command::claim::Seed([1; 32]);
        let worker = Claimer::worker("w".into(), seed);
        let push = Push { concurrency: 2, rate_per_second: Some(0.5), ..Push::to("https://w.example".into()) };
        let settings = QueueSettings { push: Some(Arc::new(push)), ..Default::default() };
        let (pushed, pulled) = (queue(settings.clone()), queue(QueueSettings::default()));
        assert!(pushed.serves(&Claimer::delivery(seed)) && !pushed.serves(&worker));
        assert!(!pulled.serves(&Claimer::delivery(seed)) && pulled.serves(&worker));

        let strict = Queue { settings: QueueSettings { strict: true, ..QueueSettings::default() }, ..pulled };
        assert!(!strict.serves(&worker), "it promised nothing");
        let mut killer = worker;
        killer.worker.as_mut().unwrap().kills_on_expiry = true;
        assert!(strict.serves(&killer));
        // The tighter limit of queue and push holds.
        assert_eq!((settings.slots(), settings.pace()), (Some(2), Some(Rate { per_second: 0.5, burst: 1.0 })));
        let own = QueueSettings { max_running: Some(1), rate: Some(Rate { per_second: 0.1, burst: 3.0 }), ..settings };
        assert_eq!((own.slots(), own.pace()), (Some(1), Some(Rate { per_second: 0.1, burst: 3.0 })));
        assert!(pushed.is_limited());
    }

    #[test]
    fn a_burst_then_the_rate() {
        let rate = Rate { per_second: 2.0, burst: 3.0 };
        let mut queue = queue(QueueSettings { rate: Some(rate), ..Default::default() });
        for left in [3, 2, 1] {
            assert_eq!(queue.room(0, at(1000)).grants, left);
            queue.spend(at(1000));
        }
        assert_eq!(queue.room(0, at(1000)), Room { grants: 0, held_by: Some(Limit::Rate) });
        assert_eq!(queue.next_token_at(at(1000)), Some(at(1500)));
        assert_eq!(queue.room(0, at(1499)).grants, 0);
        assert_eq!(queue.room(0, at(1500)).grants, 1);
        assert_eq!(queue.room(0, at(1_000_000)).grants, 3);
    }

    #[test]
    fn a_paused_queue_grants_nothing() {
        let mut queue = queue(QueueSettings::default());
        queue.paused = true;
        assert_eq!(queue.room(0, at(0)), Room { grants: 0, held_by: Some(Limit::Paused) });
    }

    #[test]
    fn grants_rotate_over_the_values_behind_the_last_one() {
        let items = vec![("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("c", 2)];
        let value = |item: &(&str, i32)| Arc::from(item.0);
        let picked = rotate(items.clone(), Some("a"), value);
        assert_eq!(picked, [("b", 1), ("c", 1), ("a", 1), ("c", 2), ("a", 2), ("a", 3)]);
        let picked = rotate(items, None, value);
        assert_eq!(picked[..3], [("a", 1), ("b", 1), ("c", 1)]);
    }
}
