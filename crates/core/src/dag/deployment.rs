//! What is deployed in an organisation: versions of DAGs, their jobs, and the datasets that these write and read.
//!
//! It is one document, stored as JSON. A change is planned here, from the document as it stands, and written only if
//! nobody else has changed it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::definition::{ExecutionStrategy, Storage, WriteMode};
use super::id::{DagVersionId, DatasetId, JobId, VersionId};
use super::range::Ranges;
use crate::time::Timestamp;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    #[serde(default)]
    pub dags: BTreeMap<Arc<str>, Dag>,
    #[serde(default)]
    pub jobs: BTreeMap<JobId, Job>,
    #[serde(default)]
    pub datasets: BTreeMap<DatasetId, Dataset>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Dag {
    /// The number of the version that works.
    pub active: Option<i64>,
    pub versions: BTreeMap<i64, DagVersion>,
    /// When a version was deployed, became ready, or became active or ceased to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DagVersion {
    pub id: DagVersionId,
    /// `sha256:` and the digest of the YAML.
    pub yaml_hash: Arc<str>,
    pub state: VersionState,
    /// The version that was active before this one.
    pub previous: Option<i64>,
    /// It becomes active only when somebody says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// The tasks that rebuild its outputs were made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebuilding: bool,
    /// How many tasks have rebuilt its outputs. Set when all of them have succeeded.
    #[serde(default)]
    pub rebuilt: u64,
    #[serde(default)]
    pub ranges: Ranges,
    pub jobs: BTreeMap<Arc<str>, JobId>,
    /// The names under which outputs are published.
    #[serde(default)]
    pub published: BTreeMap<Arc<str>, Published>,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VersionState {
    /// Its outputs are being rebuilt.
    Staging,
    /// It can become active.
    Ready,
    Active,
    /// Another version took its place.
    Superseded,
    /// It was active and was taken back.
    RolledBack,
    /// Another version took its place before it was active.
    Abandoned,
}

impl VersionState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Staging => "Staging",
            Self::Ready => "Ready",
            Self::Active => "Active",
            Self::Superseded => "Superseded",
            Self::RolledBack => "RolledBack",
            Self::Abandoned => "Abandoned",
        }
    }

    /// Waits to become active.
    pub const fn is_staged(self) -> bool {
        matches!(self, Self::Staging | Self::Ready)
    }

    /// Can be made active by hand.
    pub const fn may_become_active(self) -> bool {
        matches!(self, Self::Ready | Self::Superseded | Self::RolledBack)
    }
}

/// A name for an output. The first output decides; a buffered dataset has several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    pub dataset: DatasetId,
    pub storage: Option<Storage>,
    pub write_mode: WriteMode,
    /// As JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Arc<str>>,
    /// Further outputs that write to it. Only a buffered dataset has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<DatasetId>,
    /// How often a batch is received before it goes to the dead letters. Set exactly if it is buffered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_receives: Option<u32>,
}

impl Published {
    pub fn is_written_by(&self, output: DatasetId) -> bool {
        self.dataset == output || self.others.contains(&output)
    }
}

/// A job, for as long as its definition and what it reads stay the same: over versions of its DAG.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub dag: Arc<str>,
    pub name: Arc<str>,
    /// Digest of its definition, in hexadecimal.
    pub digest: Arc<str>,
    #[serde(default)]
    pub inputs: Vec<JobInput>,
    #[serde(default)]
    pub outputs: Vec<JobOutput>,
    /// `None` for a source.
    pub execution: Option<ExecutionStrategy>,
    /// Its tasks wait, but for those that rebuild its outputs: no active version has it.
    pub held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInput {
    pub dataset: DatasetId,
    /// The generation that a job of the same DAG writes. A dataset of another DAG is read as it stands there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutput {
    pub dataset: DatasetId,
    pub version: VersionId,
}

/// An output of a job, whatever it is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    pub dag: Arc<str>,
    pub job: Arc<str>,
    pub output: u32,
    /// What the active version of its DAG writes; `None` if that has no such output.
    pub current: Option<VersionId>,
    /// All generations, oldest first.
    pub versions: Vec<VersionId>,
}

impl Deployment {
    pub fn version(&self, dag: &str, number: i64) -> Option<&DagVersion> {
        self.dags.get(dag)?.versions.get(&number)
    }

    pub fn active(&self, dag: &str) -> Option<&DagVersion> {
        let dag = self.dags.get(dag)?;
        dag.versions.get(&dag.active?)
    }

    /// The version that waits to become active. There is at most one.
    pub fn staged(&self, dag: &str) -> Option<(i64, &DagVersion)> {
        let versions = &self.dags.get(dag)?.versions;
        versions.iter().find(|(_, version)| version.state.is_staged()).map(|(number, version)| (*number, version))
    }

    /// A dataset that an active version publishes under this name.
    pub fn dataset_named(&self, name: &str) -> Option<DatasetId> {
        let active = self.dags.keys().filter_map(|dag| self.active(dag));
        active.filter_map(|version| version.published.get(name)).map(|published| published.dataset).next()
    }

    /// The name under which an active version publishes a dataset.
    pub fn name_of(&self, dataset: DatasetId) -> Option<&Arc<str>> {
        let dag = &self.datasets.get(&dataset)?.dag;
        let published = &self.active(dag)?.published;
        published.iter().find(|(_, published)| published.dataset == dataset).map(|(name, _)| name)
    }

    /// The generation that an input reads now.
    pub fn reads(&self, input: &JobInput) -> Option<VersionId> {
        input.version.or_else(|| self.datasets.get(&input.dataset)?.current)
    }

    /// Whether this is what the active version of its DAG writes.
    pub fn is_current(&self, dataset: DatasetId, version: VersionId) -> bool {
        self.datasets.get(&dataset).is_some_and(|dataset| dataset.current == Some(version))
    }

    pub fn knows(&self, dataset: DatasetId, version: VersionId) -> bool {
        self.datasets.get(&dataset).is_some_and(|dataset| dataset.versions.contains(&version))
    }

    /// Jobs of active versions, and of versions that wait to become active.
    pub fn live_jobs(&self) -> BTreeSet<JobId> {
        let versions = self.dags.values().flat_map(|dag| dag.versions.values());
        let live = versions.filter(|version| version.state == VersionState::Active || version.state.is_staged());
        live.flat_map(|version| version.jobs.values().copied()).collect()
    }

    /// The jobs that no other active or staged version contains.
    fn only_in(&self, dag: &str, number: i64) -> Vec<JobId> {
        let Some(version) = self.version(dag, number) else { return Vec::new() };
        let others = self.dags.get(dag).into_iter().flat_map(|dag| &dag.versions);
        let others = others.filter(|(other, version)| {
            **other != number && (version.state == VersionState::Active || version.state.is_staged())
        });
        let kept: BTreeSet<JobId> = others.flat_map(|(_, version)| version.jobs.values().copied()).collect();
        version.jobs.values().copied().filter(|job| !kept.contains(job)).collect()
    }
}

/// A version cannot become active.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("no such DAG")]
    UnknownDag,
    #[error("no such version")]
    UnknownVersion,
    #[error("the version is {}", .state.as_str())]
    NotReady { state: VersionState },
    #[error("the version is too old to become active as it is: deploy its YAML again")]
    Retired,
    #[error("there is no previous version")]
    NoPrevious,
}

/// What became of making a version active.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Switch {
    pub active: Option<i64>,
    pub previous: Option<i64>,
    pub datasets: Vec<Repointed>,
    /// Jobs that no active or staged version contains. Their queued tasks must be canceled.
    pub retired: Vec<JobId>,
    /// Jobs of a version that was rolled back. Their running tasks must be canceled as well.
    pub abandoned: Vec<JobId>,
    /// Jobs whose tasks are held from now on, or no longer.
    pub held: Vec<(JobId, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repointed {
    pub dataset: DatasetId,
    pub from: Option<VersionId>,
    pub to: Option<VersionId>,
}

impl Deployment {
    /// The tasks that rebuild the outputs of a version were made.
    pub fn note_rebuilding(&mut self, dag: &str, number: i64) {
        if let Some(version) = self.dags.get_mut(dag).and_then(|dag| dag.versions.get_mut(&number)) {
            version.rebuilding = true;
        }
    }

    /// Something about the versions of a DAG was changed.
    pub fn touch(&mut self, dag: &str, now: Timestamp) {
        if let Some(dag) = self.dags.get_mut(dag) {
            dag.updated_at = Some(now);
        }
    }

    /// Marks a version as ready after all its rebuild tasks have succeeded. `rebuilt` is the number of those tasks.
    pub fn make_ready(&mut self, dag: &str, number: i64, rebuilt: u64) -> bool {
        match self.dags.get_mut(dag).and_then(|dag| dag.versions.get_mut(&number)) {
            Some(version) if version.state == VersionState::Staging => {
                version.state = VersionState::Ready;
                version.rebuilt = rebuilt;
                true
            }
            _ => false,
        }
    }

    /// Makes a version active. The one that was active is superseded; what runs of it may finish.
    pub fn cut_over(&mut self, dag: &str, number: i64) -> Result<Switch, Refused> {
        let active = self.dags.get(dag).ok_or(Refused::UnknownDag)?.active;
        let state = self.version(dag, number).ok_or(Refused::UnknownVersion)?.state;
        if active == Some(number) {
            let previous = self.version(dag, number).and_then(|version| version.previous);
            return Ok(Switch { active, previous, ..Switch::default() });
        }
        if !state.may_become_active() {
            return Err(Refused::NotReady { state });
        }
        if self.version(dag, number).is_some_and(DagVersion::is_retired) {
            return Err(Refused::Retired);
        }
        let mut switch = self.switch(dag, number, VersionState::Superseded);
        if let Some(version) = self.dags.get_mut(dag).and_then(|dag| dag.versions.get_mut(&number)) {
            version.previous = active;
        }
        switch.previous = active;
        Ok(switch)
    }

    /// Goes back to the version before the active one. Nothing of the active one goes on.
    pub fn roll_back(&mut self, dag: &str) -> Result<Switch, Refused> {
        let active = self.dags.get(dag).ok_or(Refused::UnknownDag)?.active.ok_or(Refused::NoPrevious)?;
        let previous = self.version(dag, active).and_then(|version| version.previous).ok_or(Refused::NoPrevious)?;
        if self.version(dag, previous).is_none_or(DagVersion::is_retired) {
            return Err(Refused::NoPrevious);
        }
        let mut switch = self.switch(dag, previous, VersionState::RolledBack);
        switch.previous = self.version(dag, previous).and_then(|version| version.previous);
        switch.abandoned = std::mem::take(&mut switch.retired);
        Ok(switch)
    }

    /// Replaces a version that was never active.
    pub(super) fn abandon(&mut self, dag: &str, number: i64) -> Vec<JobId> {
        let retired = self.only_in(dag, number);
        if let Some(version) = self.dags.get_mut(dag).and_then(|dag| dag.versions.get_mut(&number)) {
            version.state = VersionState::Abandoned;
        }
        retired
    }

    fn switch(&mut self, dag: &str, to: i64, becomes: VersionState) -> Switch {
        let mut switch = Switch { active: Some(to), ..Switch::default() };
        let from = self.dags.get(dag).and_then(|dag| dag.active);
        // A version that waits has jobs of the active one. When another one becomes active, it waits in vain: what it has
        // rebuilt was made from other data.
        let staged = self.staged(dag).map(|(number, _)| number).filter(|number| *number != to);
        if let Some(number) = staged {
            switch.retired.extend(self.abandon(dag, number));
        }
        if let Some(all) = self.dags.get_mut(dag) {
            if let Some(old) = from.and_then(|from| all.versions.get_mut(&from)) {
                old.state = becomes;
            }
            if let Some(new) = all.versions.get_mut(&to) {
                new.state = VersionState::Active;
            }
            all.active = Some(to);
        }
        if let Some(from) = from {
            switch.retired.extend(self.only_in(dag, from));
        }
        let jobs: Vec<JobId> = self.version(dag, to).into_iter().flat_map(|it| it.jobs.values().copied()).collect();
        for job in &switch.retired {
            self.hold(*job, true, &mut switch.held);
        }
        for job in &jobs {
            self.hold(*job, false, &mut switch.held);
        }
        let outputs = jobs.iter().filter_map(|job| self.jobs.get(job)).flat_map(|job| job.outputs.iter().copied());
        let current: BTreeMap<DatasetId, VersionId> = outputs.map(|it| (it.dataset, it.version)).collect();
        for (id, dataset) in self.datasets.iter_mut().filter(|(_, dataset)| &*dataset.dag == dag) {
            let to = current.get(id).copied();
            if dataset.current != to {
                switch.datasets.push(Repointed { dataset: *id, from: dataset.current, to });
                dataset.current = to;
            }
        }
        switch
    }

    fn hold(&mut self, job: JobId, held: bool, changed: &mut Vec<(JobId, bool)>) {
        if let Some(job_row) = self.jobs.get_mut(&job)
            && job_row.held != held
        {
            job_row.held = held;
            changed.push((job, held));
        }
    }
}

#[cfg(test)]
mod tests;
