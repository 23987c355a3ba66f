//! What a run has to say at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::checker::{Ended, Violation};
use super::ending;
use super::history::{Answer, Call, History};
use crate::plan::Plan;
use crate::report::{TOLD, list};

/// Figures and findings of a run.
#[derive(Debug)]
pub struct Summary {
    faults: BTreeMap<&'static str, usize>,
    tasks: BTreeMap<String, usize>,
    /// Requests by kind: all, refused, without an answer.
    requests: BTreeMap<&'static str, [usize; 3]>,
    changed: usize,
    violations: Vec<Violation>,
    surprises: Vec<String>,
    /// Where histories and logs are kept, if they are.
    pub folder: Option<PathBuf>,
}

impl Summary {
    pub fn new(
        plan: &Plan,
        history: &History,
        ended: &Ended,
        violations: Vec<Violation>,
        surprises: Vec<String>,
    ) -> Self {
        let mut requests: BTreeMap<&'static str, [usize; 3]> = BTreeMap::new();
        for op in &history.ops {
            let counts = requests.entry(kind(&op.call)).or_default();
            counts[0] += 1;
            match &op.answer {
                Answer::Refused { .. } => counts[1] += 1,
                answer if answer.is_open() => counts[2] += 1,
                _ => {}
            }
        }
        let tasks = ending::by_job(ended).into_iter().map(|(job, count)| (job.to_owned(), count)).collect();
        let changed = ended.partitions.get("import:0").into_iter().flat_map(BTreeMap::values);
        let changed = changed.filter(|(generation, _)| *generation > 0).count();
        Self { faults: plan.counts(), tasks, requests, changed, violations, surprises, folder: None }
    }

    /// Without a task at the end of the DAG nothing was tried.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.surprises.is_empty() && self.tasks.contains_key("count")
    }
}

const fn kind(call: &Call) -> &'static str {
    match call {
        Call::Fire { .. } => "fire",
        Call::Invalidate { .. } => "invalidate",
        Call::Look => "look",
        Call::Claim { .. } => "claim",
        Call::Tell { .. } => "tell",
        Call::Complete { .. } => "complete",
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tasks          {}, {} ranges changed", list(&self.tasks), self.changed)?;
        writeln!(f, "faults         {}", list(&self.faults))?;
        for (kind, [all, refused, unknown]) in &self.requests {
            writeln!(f, "{kind:<14} {all}: {refused} refused, {unknown} without an answer")?;
        }
        if !self.tasks.contains_key("count") {
            writeln!(f, "NOTHING        came to the end of the DAG, so that nothing was tried")?;
        }
        for surprise in &self.surprises {
            writeln!(f, "SURPRISE       {surprise}, and nobody had asked it to")?;
        }
        writeln!(f, "violations     {}", self.violations.len())?;
        for violation in self.violations.iter().take(TOLD) {
            writeln!(f, "\nVIOLATION      {violation}")?;
        }
        if let Some(folder) = &self.folder {
            writeln!(f, "\nhistories and logs are in {}", folder.display())?;
        }
        Ok(())
    }
}
