//! What a run has to say at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::checker::{Story, Violation};
use super::history::{Answer, Call};
use crate::plan::Plan;

/// Violations that are told in full. The rest is counted.
const TOLD: usize = 10;

/// Figures and findings of a run.
#[derive(Debug)]
pub struct Summary {
    faults: BTreeMap<&'static str, usize>,
    /// Requests by kind: all, answered, refused, without an answer.
    requests: BTreeMap<&'static str, [usize; 4]>,
    sandboxes: usize,
    runtimes: usize,
    created_after_ms: Option<u64>,
    violations: Vec<Violation>,
    surprises: Vec<String>,
    /// Where histories and logs are kept, if they are.
    pub folder: Option<PathBuf>,
}

impl Summary {
    pub fn new(plan: &Plan, story: &Story, violations: Vec<Violation>, surprises: Vec<String>) -> Self {
        let mut requests: BTreeMap<&'static str, [usize; 4]> = BTreeMap::new();
        let mut sandboxes: Vec<&str> = Vec::new();
        for op in &story.ops {
            let counts = requests.entry(kind(&op.call)).or_default();
            counts[0] += 1;
            match &op.answer {
                Answer::Refused { .. } => counts[2] += 1,
                Answer::Unknown { .. } | Answer::NotSent => counts[3] += 1,
                _ => counts[1] += 1,
            }
            if let Answer::Created { row } = &op.answer {
                sandboxes.push(&row.sandbox);
            }
        }
        sandboxes.sort_unstable();
        sandboxes.dedup();
        Self {
            faults: plan.counts(),
            requests,
            sandboxes: sandboxes.len(),
            runtimes: story.sightings.len(),
            created_after_ms: story.ended.created_after_ms,
            violations,
            surprises,
            folder: None,
        }
    }

    /// Without a sandbox nothing was tried.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.surprises.is_empty() && self.sandboxes > 0
    }
}

const fn kind(call: &Call) -> &'static str {
    match call {
        Call::Create { .. } => "create",
        Call::Exec { .. } => "exec",
        Call::Write { .. } => "write",
        Call::Read { .. } => "read",
        Call::Extend { .. } => "extend",
        Call::Destroy { .. } => "destroy",
        Call::Show { .. } => "show",
        Call::List { .. } => "list",
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sandboxes      {} created, {} runtimes seen on workers", self.sandboxes, self.runtimes)?;
        let faults: Vec<String> = self.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "faults         {}", faults.join(", "))?;
        for (kind, [all, good, refused, unknown]) in &self.requests {
            writeln!(f, "{kind:<14} {all}: {good} answered, {refused} refused, {unknown} without an answer")?;
        }
        if let Some(ms) = self.created_after_ms {
            writeln!(f, "created again  {ms} ms after the last fault")?;
        }
        if self.sandboxes == 0 {
            writeln!(f, "NOTHING        was created, so that nothing was tried")?;
        }
        for surprise in &self.surprises {
            writeln!(f, "SURPRISE       {surprise}, and nobody had asked it to")?;
        }
        writeln!(f, "violations     {}", self.violations.len())?;
        for violation in self.violations.iter().take(TOLD) {
            writeln!(f, "\nVIOLATION      {violation}")?;
        }
        if let Some(more) = self.violations.len().checked_sub(TOLD).filter(|more| *more > 0) {
            writeln!(f, "\n… and {more} more")?;
        }
        if let Some(folder) = &self.folder {
            writeln!(f, "\nhistories and logs are in {}", folder.display())?;
        }
        Ok(())
    }
}
