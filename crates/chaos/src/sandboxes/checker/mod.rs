//! Whether what was seen of sandboxes keeps the promises.
//!
//! Every rule accuses only on certainty. A request without an answer may have taken effect at any time after it was sent. A
//! sandbox whose end was answered is over for good, so that a sign of life shows that it lived at every moment before.

mod caps;
mod life;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use super::history::{Answer, Call, Down, Op, Row, Sighting};
use life::Life;

pub const MS: u64 = 1_000_000;

/// What the system was set up with. 0 is without a cap.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    pub total: u64,
    pub per_owner: u64,
    /// Of each worker.
    pub worker_sandboxes: u64,
    pub worker_memory_mb: u64,
    pub worker_vcpus: u64,
    /// How long a worker waits after the end of a sandbox's time before it destroys it by itself.
    pub ttl_grace_ms: u64,
    /// How late a healthy worker may be with that on a busy machine.
    pub slack_ms: u64,
    /// How long a request that was not answered may still take effect.
    pub request_ms: u64,
}

/// How everything stands after all has healed.
#[derive(Debug, Clone, Default)]
pub struct Ended {
    /// Every sandbox that is still shown, in any state.
    pub rows: Vec<Row>,
    /// Commands that run in the folder of a sandbox.
    pub processes: Vec<String>,
    /// How long after the last fault a create succeeded. `None`: it did not in time.
    pub created_after_ms: Option<u64>,
}

/// Everything that a run has shown.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// In the order in which they were asked.
    pub ops: Vec<Op>,
    pub sightings: Vec<Sighting>,
    pub downs: Vec<Down>,
    pub limits: Limits,
    pub ended: Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A sandbox never has two live runtimes.
    TwoRuntimes,
    /// All answers about a sandbox come from one runtime.
    OtherRuntime,
    /// No runtime outlives its time and the grace.
    Outlived,
    /// No acknowledged write is lost while its sandbox lives.
    LostWrite,
    /// No sandbox ends before its time unless somebody asks for it.
    LostSandbox,
    /// A worker never has more than it has room for.
    OverCapacity,
    /// There are never more sandboxes than the caps allow.
    OverCap,
    /// What was destroyed stays destroyed.
    CameBack,
    /// The same idempotency key is the same sandbox.
    KeySplit,
    /// One create makes one sandbox.
    DoubleCreate,
    /// Only what was asked for exists.
    Invented,
    /// At the end no worker has a runtime or a process.
    Leaked,
    /// At the end every sandbox has ended.
    NotEnded,
    /// A healed system creates sandboxes.
    NotLive,
}

impl Rule {
    pub const fn name(self) -> &'static str {
        match self {
            Self::TwoRuntimes => "a sandbox has two live runtimes",
            Self::OtherRuntime => "a sandbox answers from two runtimes",
            Self::Outlived => "a runtime outlives its time",
            Self::LostWrite => "an acknowledged write is lost",
            Self::LostSandbox => "a sandbox is lost before its time",
            Self::OverCapacity => "a worker has more than it has room for",
            Self::OverCap => "there are more sandboxes than a cap allows",
            Self::CameBack => "a destroyed sandbox is back",
            Self::KeySplit => "one idempotency key, two sandboxes",
            Self::DoubleCreate => "one create, two sandboxes",
            Self::Invented => "a sandbox that nobody asked for",
            Self::Leaked => "something is left on a worker",
            Self::NotEnded => "a sandbox has not ended",
            Self::NotLive => "no sandbox can be created after all has healed",
        }
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub sandbox: Option<String>,
    pub what: String,
    /// What happened to the sandbox.
    pub story: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule.name(), self.what)?;
        if let Some(sandbox) = &self.sandbox {
            write!(f, "\n  sandbox {sandbox}")?;
        }
        self.story.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Checks everything.
pub fn check(story: &Story) -> Vec<Violation> {
    let lives = life::lives(story);
    let mut findings = Findings { story, lives: &lives, found: Vec::new() };
    findings.creates();
    for life in lives.values() {
        findings.runtimes(life);
        findings.deadline(life);
        findings.writes(life);
        findings.end(life);
    }
    findings.capacity();
    findings.caps();
    findings.ending();
    findings.found
}

struct Findings<'a> {
    story: &'a Story,
    lives: &'a BTreeMap<&'a str, Life<'a>>,
    found: Vec<Violation>,
}

impl Findings<'_> {
    fn report(&mut self, rule: Rule, sandbox: Option<&str>, what: String) {
        let story = sandbox.and_then(|sandbox| self.lives.get(sandbox)).map(|life| self.told(life));
        self.found.push(Violation {
            rule,
            sandbox: sandbox.map(ToOwned::to_owned),
            what,
            story: story.unwrap_or_default(),
        });
    }

    /// What happened to a sandbox, for people, in milliseconds from the first request of the run.
    fn told(&self, life: &Life<'_>) -> Vec<String> {
        let start = self.story.ops.first().map_or(0, |op| op.asked);
        let ms = |at: u64| at.saturating_sub(start) / MS;
        let mut lines: Vec<(u64, String)> = Vec::new();
        for op in life.creates.iter().chain(&life.ops) {
            let until = op.answered.map_or("?".to_owned(), |at| ms(at).to_string());
            lines.push((op.asked, format!("{:>7}..{until:<7} ms {:?} -> {:?}", ms(op.asked), op.call, op.answer)));
        }
        for seen in &life.sightings {
            let gone = seen.gone.map_or("there at the end".to_owned(), |at| format!("gone at {} ms", ms(at)));
            let what = format!("runtime {} on worker {}, {gone}", seen.runtime, seen.worker);
            lines.push((seen.first, format!("{:>7}..{:<7} ms {what}", ms(seen.first), ms(seen.last))));
        }
        for down in self.story.downs.iter().filter(|down| life.sightings.iter().any(|seen| seen.worker == down.worker))
        {
            lines.push((
                down.from,
                format!("{:>7}..{:<7} ms worker {} is down", ms(down.from), ms(down.to), down.worker),
            ));
        }
        lines.sort();
        lines.into_iter().map(|(_, line)| line).collect()
    }
}
