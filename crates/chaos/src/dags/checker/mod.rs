//! Whether what was seen of a DAG keeps the promises.
//!
//! Every rule accuses only on certainty: a request without an answer may have taken effect at any time after it was sent.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::history::{Answer, Call, Op, range};

/// What a task was made for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Range(String),
    Row(u64),
}

/// A task as it stands at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalTask {
    pub job: String,
    pub state: String,
    /// Place and generation; `None` for the source.
    pub cause: Option<(Place, u64)>,
    /// What the source was fired for.
    pub n: Option<u64>,
}

/// How everything stands after all has healed.
#[derive(Debug, Clone, Default)]
pub struct Ended {
    pub tasks: BTreeMap<String, FinalTask>,
    /// By job and output: the generation of each range, and whether it was written.
    pub partitions: BTreeMap<String, BTreeMap<String, (u64, bool)>>,
    /// Nothing was left to do in time.
    pub in_time: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// What was acknowledged exists.
    LostFire,
    /// One request fires once.
    FiredTwice,
    /// Every task ends, and succeeds.
    NotDone,
    /// A job has one task for a place and its generation.
    TwoTasks,
    /// Every range is written, and read by all that read it, at every generation.
    NotMade,
    /// A range changes as often as somebody said so, and what follows from it as often.
    Generations,
    /// No cursor moves back, and each reaches the last row.
    Cursors,
    /// Nothing is accepted from a holder that another one has followed.
    StaleWrite,
    /// One attempt of a task completes it.
    CompletedTwice,
    /// Fences grow with the attempts.
    Fence,
}

impl Rule {
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostFire => "an acknowledged request is lost",
            Self::FiredTwice => "one request, two tasks",
            Self::NotDone => "a task has not succeeded",
            Self::TwoTasks => "two tasks for one place and generation",
            Self::NotMade => "a range was not made",
            Self::Generations => "a range has changed more or less often than somebody said",
            Self::Cursors => "a cursor moved back or stays behind",
            Self::StaleWrite => "a write of a stale lease is accepted",
            Self::CompletedTwice => "a task is completed twice",
            Self::Fence => "a fence does not grow",
        }
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule.name(), self.what)
    }
}

/// Checks everything.
pub fn check(ops: &[Op], ended: &Ended) -> Vec<Violation> {
    let mut findings = Findings { ops, ended, found: Vec::new() };
    findings.fires();
    findings.tasks();
    findings.ranges();
    findings.cursors();
    findings.leases();
    findings.found
}

struct Findings<'a> {
    ops: &'a [Op],
    ended: &'a Ended,
    found: Vec<Violation>,
}

/// What is known of one attempt of a task.
#[derive(Debug, Default)]
struct Attempt {
    /// When its holder was first told, and the fence.
    granted: Option<(u64, u64)>,
    /// When each thing was first sent, and whether it was ever accepted.
    completed: Option<(u64, bool)>,
    told: Option<(u64, bool)>,
}

impl<'a> Findings<'a> {
    fn report(&mut self, rule: Rule, what: String) {
        self.found.push(Violation { rule, what });
    }

    /// The tasks of the source, by what they were fired for.
    fn fired(&self) -> BTreeMap<u64, Vec<&'a str>> {
        let mut fired: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for (id, task) in &self.ended.tasks {
            if let Some(n) = task.n {
                fired.entry(n).or_default().push(id);
            }
        }
        fired
    }

    fn fires(&mut self) {
        let fired = self.fired();
        for op in self.ops {
            let (Call::Fire { n }, Answer::Fired { task }) = (&op.call, &op.answer) else { continue };
            if !fired.get(n).is_some_and(|tasks| tasks.contains(&task.as_str())) {
                self.report(Rule::LostFire, format!("request {n} was answered with task {task}, which is not there"));
            }
        }
        for (n, tasks) in fired.into_iter().filter(|(_, tasks)| tasks.len() > 1) {
            self.report(Rule::FiredTwice, format!("request {n} became {tasks:?}"));
        }
    }

    fn tasks(&mut self) {
        if !self.ended.in_time {
            self.report(Rule::NotDone, "tasks were left when all time for them was over".to_owned());
        }
        let ended = self.ended;
        let mut seen: BTreeMap<(&str, &(Place, u64)), &str> = BTreeMap::new();
        for (id, task) in &ended.tasks {
            if task.state != "Succeeded" {
                self.report(Rule::NotDone, format!("task {id} of {} is {}", task.job, task.state));
            }
            if let Some(cause) = &task.cause
                && let Some(other) = seen.insert((&task.job, cause), id)
            {
                self.report(Rule::TwoTasks, format!("{id} and {other} of {} for {cause:?}", task.job));
            }
        }
    }

    /// The generations at which a job has run for a range.
    fn ran(&self, job: &str, key: &str) -> BTreeSet<u64> {
        let tasks = self.ended.tasks.values().filter(|task| task.job == job && task.state == "Succeeded");
        let of_range = tasks.filter_map(|task| task.cause.as_ref());
        of_range
            .filter(|(place, _)| *place == Place::Range(key.to_owned()))
            .map(|(_, generation)| *generation)
            .collect()
    }

    fn ranges(&mut self) {
        let none = BTreeMap::new();
        let ended = self.ended;
        let of = |output: &str| ended.partitions.get(output).unwrap_or(&none);
        let (imported, decoded) = (of("import:0"), of("decode:0"));
        for n in self.fired().into_keys() {
            let key = range(n);
            let (least, most) = self.invalidations(n);
            let Some((generation, true)) = imported.get(&key).copied() else {
                self.report(Rule::NotMade, format!("{key} of import"));
                continue;
            };
            if !(least..=most).contains(&generation) {
                let what =
                    format!("{key} of import is at {generation}, and was said to change {least} to {most} times");
                self.report(Rule::Generations, what);
            }
            let follows = decoded.get(&key).copied();
            if !follows.is_some_and(|(_, written)| written) {
                self.report(Rule::NotMade, format!("{key} of decode"));
            }
            // Somebody may have said that it changes before it was there.
            let ran = self.ran("decode", &key);
            if ran.iter().copied().filter(|ran| *ran > 0).collect::<Vec<_>>() != (1..=generation).collect::<Vec<_>>()
                || generation == 0 && ran.is_empty()
            {
                self.report(Rule::NotMade, format!("{key} is at {generation}, and decode has run for {ran:?}"));
            }
            let Some((again, _)) = follows else { continue };
            if again != generation {
                let what = format!("{key} of import has changed {generation} times, that of decode {again} times");
                self.report(Rule::Generations, what);
            }
            let ran = self.ran("count", &key);
            if ran.iter().copied().filter(|ran| *ran > 0).collect::<Vec<_>>() != (1..=again).collect::<Vec<_>>()
                || again == 0 && ran.is_empty()
            {
                self.report(Rule::NotMade, format!("{key} of decode is at {again}, and count has run for {ran:?}"));
            }
        }
    }

    /// How often a range was said to have changed: for certain, and at most.
    fn invalidations(&self, n: u64) -> (u64, u64) {
        let (mut certain, mut possible) = (BTreeSet::new(), BTreeSet::new());
        for op in self.ops {
            let Call::Invalidate { n: of, key } = &op.call else { continue };
            if *of == n && !matches!(op.answer, Answer::NotSent | Answer::Refused { .. }) {
                possible.insert(key);
                if matches!(op.answer, Answer::Invalidated { .. }) {
                    certain.insert(key);
                }
            }
        }
        (certain.len() as u64, possible.len() as u64)
    }

    fn cursors(&mut self) {
        let looks: Vec<(&Op, &BTreeMap<String, u64>)> =
            self.ops.iter().filter_map(|op| Some((op, values(&op.answer)?))).collect();
        let mut answered = looks.clone();
        answered.sort_by_key(|(op, _)| op.answered);
        let mut answered = answered.into_iter().peekable();
        // The highest value that was answered before the look, by name, and in which.
        let mut highest: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
        let mut back = BTreeSet::new();
        for (look, values) in &looks {
            while let Some((earlier, before)) =
                answered.next_if(|(op, _)| op.answered.is_some_and(|at| at < look.asked))
            {
                for (name, value) in before {
                    let known = highest.entry(name).or_insert((*value, &earlier.id));
                    *known = (*known).max((*value, &earlier.id));
                }
            }
            for (name, (was, from)) in &highest {
                let is = values.get(*name);
                if is.is_none_or(|is| is < was) && back.insert(*name) {
                    self.report(Rule::Cursors, format!("{name} was {was} in {from} and is {is:?} in {}", look.id));
                }
            }
        }
        let Some(last) = self.fired().into_keys().max() else { return };
        let at_the_end = looks.last().map(|(_, values)| *values);
        for name in ["import:1", "import:1 read by tail", "tail:0", "tail:0 read by sum"] {
            let value = at_the_end.and_then(|values| values.get(name));
            if value != Some(&last) {
                self.report(Rule::Cursors, format!("{name} ends at {value:?}, and the last row is {last}"));
            }
        }
    }

    fn leases(&mut self) {
        let mut tasks: BTreeMap<&str, BTreeMap<u64, Attempt>> = BTreeMap::new();
        for op in self.ops {
            match (&op.call, &op.answer) {
                (Call::Claim { task, .. }, Answer::Claimed { attempt, fence }) => {
                    let known = tasks.entry(task).or_default().entry(*attempt).or_default();
                    let at = op.answered.unwrap_or(u64::MAX);
                    if known.granted.is_none_or(|(earliest, _)| at < earliest) {
                        known.granted = Some((at, *fence));
                    }
                }
                (Call::Complete { task, attempt }, answer) => {
                    let known = tasks.entry(task).or_default().entry(*attempt).or_default();
                    note(&mut known.completed, op.asked, *answer == Answer::Completed);
                }
                (Call::Tell { task, attempt }, answer) => {
                    let known = tasks.entry(task).or_default().entry(*attempt).or_default();
                    note(&mut known.told, op.asked, *answer == Answer::Told);
                }
                _ => {}
            }
        }
        for (task, attempts) in tasks {
            self.attempts(task, &attempts);
        }
    }

    fn attempts(&mut self, task: &str, attempts: &BTreeMap<u64, Attempt>) {
        let completed: Vec<u64> = attempts
            .iter()
            .filter(|(_, it)| it.completed.is_some_and(|(_, accepted)| accepted))
            .map(|(n, _)| *n)
            .collect();
        if completed.len() > 1 {
            self.report(Rule::CompletedTwice, format!("{task} by attempts {completed:?}"));
        }
        let mut fence = None;
        for (number, attempt) in attempts {
            if let Some((_, own)) = attempt.granted {
                if fence.is_some_and(|before| own <= before) {
                    self.report(Rule::Fence, format!("attempt {number} of {task} has {own} after {fence:?}"));
                }
                fence = Some(own);
            }
            let later = attempts.range(number + 1..).filter_map(|(n, it)| Some((it.granted?.0, *n))).min();
            let Some((granted, next)) = later else { continue };
            for (what, said) in [("completion", attempt.completed), ("event", attempt.told)] {
                if let Some((first, true)) = said
                    && first > granted
                {
                    let what =
                        format!("{what} of attempt {number} of {task}, first sent after attempt {next} was granted");
                    self.report(Rule::StaleWrite, what);
                }
            }
        }
    }
}

fn values(answer: &Answer) -> Option<&BTreeMap<String, u64>> {
    match answer {
        Answer::Cursors { values } => Some(values),
        _ => None,
    }
}

/// Remembers when it was first sent, and whether it was ever accepted.
fn note(said: &mut Option<(u64, bool)>, asked: u64, accepted: bool) {
    let (first, before) = said.unwrap_or((asked, false));
    *said = Some((first.min(asked), before || accepted));
}
