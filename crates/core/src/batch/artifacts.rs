//! Artifacts that reports name: a name stands for one content.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Outcome, World};
use crate::attempt::Outcome as Ending;
use crate::command::Command;
use crate::command::report::{self, AttemptReport};
use crate::dag::data::{Artifact, ArtifactName, DataRefusal, DataReport};

/// Artifacts that the batch knows, and those that it makes known.
#[derive(Debug, Default)]
pub(super) struct Artifacts {
    known: BTreeMap<ArtifactName, [u8; 32]>,
    pub new: Vec<Artifact>,
}

impl Artifacts {
    /// One that is on record.
    pub fn add(&mut self, name: ArtifactName, digest: [u8; 32]) {
        self.known.insert(name, digest);
    }

    /// What is wrong with the names of a report.
    fn refusal(&self, report: &DataReport) -> Option<DataRefusal> {
        let mut own: BTreeMap<ArtifactName, [u8; 32]> = BTreeMap::new();
        report.outputs.iter().enumerate().find_map(|(index, output)| {
            let artifact = output.named_artifact()?;
            let first = self.known.get(&artifact.name).copied();
            let first = first.unwrap_or_else(|| *own.entry(artifact.name).or_insert(artifact.digest));
            (first != artifact.digest).then(|| DataRefusal {
                code: "dataset_version_conflict",
                message: format!(
                    "outputs[{index}]: version {} of dataset {} was published with other content",
                    artifact.name.1, artifact.name.0
                ),
            })
        })
    }

    /// Later commands of the batch see the names of accepted reports.
    pub fn accept(&mut self, report: &DataReport) {
        for artifact in report.outputs.iter().filter_map(|output| output.named_artifact()) {
            if self.known.insert(artifact.name, artifact.digest).is_none() {
                self.new.push(artifact);
            }
        }
    }
}

/// What a report can name artifacts with.
fn data(sent: &AttemptReport) -> Option<&Arc<DataReport>> {
    let succeeded = matches!(sent.report.outcome, Ending::Succeeded { .. });
    sent.data.as_ref().filter(|data| succeeded && data.refusal.is_none())
}

/// The names that a batch has to be judged with.
pub(super) fn names(commands: &[Command]) -> BTreeSet<ArtifactName> {
    let reports = commands.iter().filter_map(|command| match command {
        Command::Report(sent) => data(sent),
        _ => None,
    });
    reports.flat_map(|report| &report.outputs).filter_map(|it| Some((it.dataset, it.artifact?))).collect()
}

impl World {
    /// A report. What is wrong with the names in it counts after the fence, like everything that is wrong with its
    /// contents.
    pub(super) fn report(&mut self, sent: &AttemptReport) -> Outcome {
        let refusal = data(sent).and_then(|data| Some((data, self.artifacts.refusal(data)?)));
        let refused = refusal.map(|(data, refusal)| AttemptReport {
            data: Some(Arc::new(DataReport { refusal: Some(refusal), ..(**data).clone() })),
            ..sent.clone()
        });
        let sent = refused.as_ref().unwrap_or(sent);
        self.on_task(sent.task, |task, history, queue, ctx| report::decide(task, sent, history, queue, ctx))
    }
}
