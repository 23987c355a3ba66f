//! What a run has to say at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::checker::{Ended, Verdict};
use super::history::{Answer, Call, History};
use super::ledger::Effects;
use super::plan::Plan;

/// Violations that are told in full. The rest is counted.
pub(crate) const TOLD: usize = 10;

/// Figures and findings of a run.
#[derive(Debug)]
pub struct Summary {
    pub tasks: usize,
    pub by_state: BTreeMap<String, usize>,
    pub faults: BTreeMap<&'static str, usize>,
    pub operations: usize,
    pub unknown: usize,
    pub not_sent: usize,
    pub refused: usize,
    pub grants: usize,
    /// Attempts by how they ended.
    pub attempts: BTreeMap<String, usize>,
    pub duplicates: u64,
    pub stale_refused: u64,
    pub verdict: Verdict,
    /// Processes that ended though nobody ended them.
    pub surprises: Vec<String>,
    /// Every task had ended when patience was over.
    pub in_time: bool,
    /// Where histories and logs are kept, if they are.
    pub folder: Option<PathBuf>,
}

impl Summary {
    pub fn new(
        plan: &Plan,
        history: &History,
        ended: &Ended,
        effects: &Effects,
        verdict: Verdict,
        surprises: Vec<String>,
    ) -> Self {
        let count = |matches: fn(&Answer) -> bool| history.ops.iter().filter(|op| matches(&op.answer)).count();
        let granted = |answer: &Answer| match answer {
            Answer::Granted { jobs } => jobs.len(),
            _ => 0,
        };
        let mut by_state = BTreeMap::new();
        let mut attempts = BTreeMap::new();
        for task in ended.tasks.values() {
            *by_state.entry(task.state.clone()).or_default() += 1;
            for attempt in &task.attempts {
                *attempts.entry(attempt.reason.clone()).or_default() += 1;
            }
        }
        let claims = history.ops.iter().filter(|op| matches!(op.call, Call::Claim { .. }));
        Self {
            tasks: ended.tasks.len(),
            by_state,
            faults: plan.counts(),
            operations: history.ops.len(),
            unknown: count(|answer| matches!(answer, Answer::Unknown { .. })),
            not_sent: count(|answer| matches!(answer, Answer::NotSent)),
            refused: count(|answer| matches!(answer, Answer::Refused { .. })),
            grants: claims.map(|op| granted(&op.answer)).sum(),
            attempts,
            duplicates: effects.executions.saturating_sub(effects.executed_tasks),
            stale_refused: effects.refused,
            verdict,
            surprises,
            in_time: true,
            folder: None,
        }
    }

    pub fn is_good(&self) -> bool {
        self.verdict.violations.is_empty() && self.verdict.undecided == 0 && self.surprises.is_empty() && self.in_time
    }
}

pub(crate) fn list<K: fmt::Display>(counts: &BTreeMap<K, usize>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// How often each rule was broken.
pub(crate) fn broken<'a>(f: &mut fmt::Formatter<'_>, rules: impl Iterator<Item = &'a str>) -> fmt::Result {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for rule in rules {
        *counts.entry(rule).or_default() += 1;
    }
    counts.iter().try_for_each(|(rule, count)| writeln!(f, "BROKEN         {rule}: {count}"))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tasks          {} ({})", self.tasks, list(&self.by_state))?;
        writeln!(f, "faults         {}", list(&self.faults))?;
        writeln!(
            f,
            "operations     {}, of which {} unknown, {} refused, {} never sent",
            self.operations, self.unknown, self.refused, self.not_sent
        )?;
        writeln!(f, "grants         {}", self.grants)?;
        writeln!(f, "attempts       {}", list(&self.attempts))?;
        writeln!(f, "effects        {} more than tasks where nothing guards them", self.duplicates)?;
        writeln!(f, "               {} of overtaken holders refused by the fence", self.stale_refused)?;
        writeln!(f, "latest grant   {:.1?} after the task could run, without a fault", self.verdict.latest_grant)?;
        if self.verdict.undecided > 0 {
            writeln!(f, "UNDECIDED      {} tasks with too many possible orders", self.verdict.undecided)?;
        }
        for surprise in &self.surprises {
            writeln!(f, "SURPRISE       {surprise}, and nobody had asked it to")?;
        }
        if !self.in_time {
            writeln!(f, "TOO LATE       tasks were left when all time for them was over")?;
        }
        writeln!(f, "violations     {}", self.verdict.violations.len())?;
        broken(f, self.verdict.violations.iter().map(|violation| violation.rule.name()))?;
        for violation in self.verdict.violations.iter().take(TOLD) {
            writeln!(f, "\nVIOLATION      {violation}")?;
        }
        if let Some(more) = self.verdict.violations.len().checked_sub(TOLD).filter(|more| *more > 0) {
            writeln!(f, "\n… and {more} more")?;
        }
        if let Some(folder) = &self.folder {
            writeln!(f, "\nhistories and logs are in {}", folder.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(verdict: Verdict) -> Summary {
        let plan = Plan { steps: Vec::new() };
        Summary::new(&plan, &History::default(), &Ended::default(), &Effects::default(), verdict, Vec::new())
    }

    #[test]
    fn a_run_with_undecided_tasks_is_not_good() {
        assert!(summary(Verdict::default()).is_good());
        let undecided = summary(Verdict { undecided: 1, ..Verdict::default() });
        assert!(!undecided.is_good() && undecided.to_string().contains("UNDECIDED      1 tasks"));
    }
}
