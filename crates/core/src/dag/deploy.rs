//! Deploys a DAG: which jobs it keeps, which ones are new, and what has to be rebuilt.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use super::definition::{DagDefinition, JobDefinition, Output, Publish, Upstream, definition_digest};
use super::deployment::{
    Dag, DagVersion, Dataset, Deployment, Job, JobInput, JobOutput, Published, Switch, VersionState,
};
use super::id::{DagVersionId, DatasetId, JobId, VersionId};
use crate::time::Timestamp;

/// Ids that nobody has used.
pub trait Fresh {
    fn id(&mut self) -> u128;
    fn job(&mut self) -> JobId;
}

/// A DAG to deploy.
#[derive(Debug, Clone, Copy)]
pub struct Deploy<'a> {
    pub definition: &'a DagDefinition,
    pub yaml_hash: &'a str,
    /// It becomes active only when somebody says so.
    pub manual: bool,
    pub now: Timestamp,
}

/// What a deployment comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub deployment: Deployment,
    pub number: i64,
    pub id: DagVersionId,
    /// The version was known, under this number.
    pub is_known: bool,
    /// Its YAML is not stored yet.
    pub is_new: bool,
    /// Jobs whose definition is another one than that of the active version, or which it does not have.
    pub changed: Vec<Arc<str>>,
    /// Jobs whose outputs are made again, since they or what they read are others.
    pub rebuild: Vec<Arc<str>>,
    /// Jobs that stay as they are, with their tasks.
    pub kept: Vec<Arc<str>>,
    /// Jobs of the active version that the new one does not have.
    pub removed: Vec<Arc<str>>,
    /// Jobs that are new to the document.
    pub jobs: Vec<(JobId, Arc<str>)>,
    pub generations: Vec<(DatasetId, VersionId)>,
    /// Jobs of a version that was waiting and is abandoned.
    pub abandoned: Vec<JobId>,
    /// Set if the version became active at once.
    pub switch: Option<Switch>,
    /// Versions that the document does not name any more.
    pub forgotten: Vec<DagVersionId>,
}

/// A dataset that the DAG reads is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("job {job} reads dataset {dataset}, which no active DAG publishes")]
pub struct MissingDataset {
    pub job: Arc<str>,
    pub dataset: Arc<str>,
}

/// Plans to deploy a DAG that was checked: its jobs make no cycle and every edge leads somewhere.
pub fn plan(deployment: &Deployment, deploy: &Deploy<'_>, fresh: &mut impl Fresh) -> Result<Planned, MissingDataset> {
    let name = &deploy.definition.name;
    let known = deployment.dags.get(name).and_then(|dag| {
        let (number, version) = dag.versions.iter().find(|(_, version)| &*version.yaml_hash == deploy.yaml_hash)?;
        Some((*number, version))
    });
    if let Some((number, version)) = known
        && (version.state == VersionState::Active || version.state.is_staged())
    {
        return Ok(unchanged(deployment, number, version));
    }
    let dag = deployment.dags.get(name);
    let last = dag.and_then(|dag| dag.versions.keys().next_back().copied()).unwrap_or(0);
    let (number, id) = match known {
        // Deploying the text of a former version stages that version again, with its number.
        Some((number, version)) => (number, version.id),
        None => (last + 1, DagVersionId::from_u128(fresh.id())),
    };
    let mut next = deployment.clone();
    let abandoned = match next.staged(name).map(|(staged, _)| staged) {
        Some(staged) => next.abandon(name, staged),
        None => Vec::new(),
    };
    let mut planner = Planner::new(next, deploy.definition, fresh);
    planner.jobs()?;
    let Planner { mut next, made, out, .. } = planner;
    let published = publish(deploy.definition, &made, &next);
    let has_work = next.dags.get(name).is_some_and(|dag| dag.active.is_some()) && !out.rebuild.is_empty();
    let state = if has_work { VersionState::Staging } else { VersionState::Ready };
    let dag = next.dags.entry(Arc::clone(name)).or_insert_with(Dag::default);
    let removed = match dag.active.and_then(|active| dag.versions.get(&active)) {
        Some(active) => active.jobs.keys().filter(|job| !made.contains_key(*job)).cloned().collect(),
        None => Vec::new(),
    };
    let version = DagVersion {
        id,
        yaml_hash: deploy.yaml_hash.into(),
        state,
        previous: None,
        manual: deploy.manual,
        rebuilding: false,
        rebuilt: 0,
        ranges: deploy.definition.ranges,
        jobs: made,
        published,
        created_at: known.map_or(deploy.now, |(_, version)| version.created_at),
    };
    dag.versions.insert(number, version);
    dag.updated_at = Some(deploy.now);
    // Nothing to wait for, and nobody who wants to wait.
    let switch = (state == VersionState::Ready && !deploy.manual).then(|| next.cut_over(name, number).ok()).flatten();
    let forgotten = next.compact(name);
    Ok(Planned {
        deployment: next,
        number,
        id,
        is_known: false,
        is_new: known.is_none(),
        changed: out.changed,
        rebuild: out.rebuild,
        kept: out.kept,
        removed,
        jobs: out.jobs,
        generations: out.generations,
        abandoned,
        switch,
        forgotten,
    })
}

fn unchanged(deployment: &Deployment, number: i64, version: &DagVersion) -> Planned {
    Planned {
        deployment: deployment.clone(),
        number,
        id: version.id,
        is_known: true,
        is_new: false,
        changed: Vec::new(),
        rebuild: Vec::new(),
        kept: version.jobs.keys().cloned().collect(),
        removed: Vec::new(),
        jobs: Vec::new(),
        generations: Vec::new(),
        abandoned: Vec::new(),
        switch: None,
        forgotten: Vec::new(),
    }
}

#[derive(Default)]
struct Out {
    changed: Vec<Arc<str>>,
    rebuild: Vec<Arc<str>>,
    kept: Vec<Arc<str>>,
    jobs: Vec<(JobId, Arc<str>)>,
    generations: Vec<(DatasetId, VersionId)>,
}

struct Planner<'a, F> {
    next: Deployment,
    definition: &'a DagDefinition,
    fresh: &'a mut F,
    /// What the DAG itself publishes, by name.
    own: BTreeMap<&'a str, &'a Publish>,
    /// What active versions of all DAGs publish, by name.
    published: BTreeMap<Arc<str>, DatasetId>,
    /// The outputs that jobs of this DAG have ever had.
    outputs: BTreeMap<(Arc<str>, u32), DatasetId>,
    made: BTreeMap<Arc<str>, JobId>,
    out: Out,
}

impl<'a, F: Fresh> Planner<'a, F> {
    fn new(next: Deployment, definition: &'a DagDefinition, fresh: &'a mut F) -> Self {
        let active = next.dags.keys().filter_map(|dag| next.active(dag));
        let published = active.flat_map(|version| &version.published);
        let published = published.map(|(name, published)| (Arc::clone(name), published.dataset)).collect();
        let own = next.datasets.iter().filter(|(_, dataset)| dataset.dag == definition.name);
        let outputs = own.map(|(id, dataset)| ((Arc::clone(&dataset.job), dataset.output), *id)).collect();
        let own = definition.publish.iter().map(|publish| (&*publish.dataset, publish)).collect();
        Self { next, definition, fresh, own, published, outputs, made: BTreeMap::new(), out: Out::default() }
    }

    /// Jobs in an order in which what a job reads comes before it.
    fn jobs(&mut self) -> Result<(), MissingDataset> {
        let jobs = &self.definition.jobs;
        let place: BTreeMap<&str, usize> = jobs.iter().enumerate().map(|(n, job)| (&*job.name, n)).collect();
        let mut waits_for: Vec<BTreeSet<&str>> =
            jobs.iter().map(|job| self.upstream_jobs(job).map(|name| &**name).collect()).collect();
        let mut followers: Vec<Vec<usize>> = vec![Vec::new(); jobs.len()];
        for (n, upstream) in waits_for.iter().enumerate() {
            for name in upstream {
                if let Some(followers) = place.get(name).and_then(|from| followers.get_mut(*from)) {
                    followers.push(n);
                }
            }
        }
        let mut ready: VecDeque<usize> = (0..jobs.len()).filter(|n| waits_for[*n].is_empty()).collect();
        while let Some(n) = ready.pop_front() {
            self.job(&jobs[n])?;
            for follower in &followers[n] {
                let open = &mut waits_for[*follower];
                if open.remove(&*jobs[n].name) && open.is_empty() {
                    ready.push_back(*follower);
                }
            }
        }
        assert_eq!(self.made.len(), jobs.len(), "a checked DAG has no cycle and no edge to a missing job");
        for list in [&mut self.out.changed, &mut self.out.rebuild, &mut self.out.kept] {
            list.sort_unstable();
        }
        Ok(())
    }

    /// The jobs of the same DAG that a job reads from.
    fn upstream_jobs(&self, job: &'a JobDefinition) -> impl Iterator<Item = &'a Arc<str>> {
        job.inputs().iter().filter_map(|input| match &input.from {
            Upstream::Job(output) => Some(&output.job),
            Upstream::Dataset(name) => self.own.get(&**name)?.from.first().map(|output| &output.job),
        })
    }

    fn input(&self, job: &JobDefinition, from: &Upstream) -> Result<JobInput, MissingDataset> {
        let own = match from {
            Upstream::Job(output) => Some(output),
            Upstream::Dataset(name) => self.own.get(&**name).and_then(|publish| publish.from.first()),
        };
        let found = match (own, from) {
            (Some(output), _) => {
                self.made.get(&output.job).and_then(|id| self.next.jobs.get(id)).and_then(|upstream| {
                    let written = upstream.outputs.get(output.output as usize)?;
                    Some(JobInput { dataset: written.dataset, version: Some(written.version) })
                })
            }
            (None, Upstream::Dataset(name)) => {
                self.published.get(name).map(|dataset| JobInput { dataset: *dataset, version: None })
            }
            (None, Upstream::Job(_)) => None,
        };
        let name = match from {
            Upstream::Job(output) => Arc::clone(&output.job),
            Upstream::Dataset(name) => Arc::clone(name),
        };
        found.ok_or_else(|| MissingDataset { job: Arc::clone(&job.name), dataset: name })
    }

    fn job(&mut self, job: &JobDefinition) -> Result<(), MissingDataset> {
        let inputs = job.inputs().iter().map(|input| self.input(job, &input.from)).collect::<Result<Vec<_>, _>>()?;
        let digest = hex(&definition_digest(self.definition, job));
        let dag = &self.definition.name;
        let old = self.next.active(dag).and_then(|version| version.jobs.get(&job.name)).copied();
        let old = old.and_then(|id| Some((id, self.next.jobs.get(&id)?)));
        if let Some((id, row)) = old
            && *row.digest == *digest
            && row.inputs == inputs
            && !job.resets_outputs()
        {
            self.made.insert(Arc::clone(&job.name), id);
            self.out.kept.push(Arc::clone(&job.name));
            return Ok(());
        }
        if old.is_none_or(|(_, row)| *row.digest != *digest) {
            self.out.changed.push(Arc::clone(&job.name));
        }
        if job.execution().is_some() {
            self.out.rebuild.push(Arc::clone(&job.name));
        }
        let outputs = (0..job.outputs).map(|output| self.output(job, output)).collect();
        let id = self.fresh.job();
        let row = Job {
            dag: Arc::clone(dag),
            name: Arc::clone(&job.name),
            digest: digest.into(),
            inputs,
            outputs,
            execution: job.execution(),
            held: true,
        };
        self.next.jobs.insert(id, row);
        self.made.insert(Arc::clone(&job.name), id);
        self.out.jobs.push((id, Arc::clone(&job.name)));
        Ok(())
    }

    /// A new generation of an output. The dataset is the one that this output of the job has always been.
    fn output(&mut self, job: &JobDefinition, output: u32) -> JobOutput {
        let (dag, version) = (&self.definition.name, VersionId::from_u128(self.fresh.id()));
        let known = self.outputs.get(&(Arc::clone(&job.name), output)).copied();
        let known = known.and_then(|id| Some((id, self.next.datasets.get_mut(&id)?)));
        let id = match known {
            Some((id, dataset)) => {
                dataset.versions.push(version);
                id
            }
            None => {
                let id = DatasetId::from_u128(self.fresh.id());
                let (dag, job) = (Arc::clone(dag), Arc::clone(&job.name));
                let dataset = Dataset { dag, job, output, current: None, versions: vec![version] };
                self.next.datasets.insert(id, dataset);
                id
            }
        };
        self.out.generations.push((id, version));
        JobOutput { dataset: id, version }
    }
}

fn publish(
    definition: &DagDefinition,
    jobs: &BTreeMap<Arc<str>, JobId>,
    deployment: &Deployment,
) -> BTreeMap<Arc<str>, Published> {
    let published = definition.publish.iter().filter_map(|publish| {
        let written = |from: &Output| {
            let job = deployment.jobs.get(jobs.get(&from.job)?)?;
            job.outputs.get(from.output as usize).map(|output| output.dataset)
        };
        let dataset = written(publish.from.first()?)?;
        let others = publish.from.iter().skip(1).filter_map(written).collect();
        let max_receives = publish.buffer.map(|buffer| buffer.max_receives);
        let schema = publish.schema.as_ref().and_then(|schema| serde_json::to_string(schema).ok()).map(Into::into);
        let (storage, write_mode) = (publish.storage, publish.write_mode);
        let published = Published { dataset, storage, write_mode, schema, others, max_receives };
        Some((Arc::clone(&publish.dataset), published))
    });
    published.collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
