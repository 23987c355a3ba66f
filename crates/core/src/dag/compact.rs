//! What of old versions is kept.
//!
//! The document of an organisation would otherwise grow with every deployment. A version that nobody is likely to go back
//! to loses its jobs: it cannot become active again, but its number, its YAML and its state stay. Of very many versions
//! the oldest are forgotten altogether.

use std::collections::BTreeSet;

use super::deployment::{Dag, DagVersion, Deployment, VersionState};
use super::id::{DagVersionId, DatasetId, JobId, VersionId};

/// Versions before the active one to which a rollback can go, one after the other.
pub const PREVIOUS_KEPT: usize = 3;
/// The newest versions keep their jobs, whatever became of them.
pub const NEWEST_KEPT: usize = 2;
/// Versions of a DAG that are known by number and YAML.
pub const VERSIONS_KEPT: usize = 1_000;
/// DAGs of an organisation.
pub const DAGS: usize = 1_000;
/// Jobs of the active and staged versions of an organisation.
pub const LIVE_JOBS: usize = 10_000;
/// The document of an organisation.
pub const DOCUMENT_BYTES: usize = 16 << 20;

impl DagVersion {
    /// Its jobs are gone: it can be deployed again, but not become active as it is.
    pub fn is_retired(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl Dag {
    /// Versions that keep their jobs.
    fn detailed(&self) -> BTreeSet<i64> {
        let mut kept: BTreeSet<i64> = self.versions.keys().rev().take(NEWEST_KEPT).copied().collect();
        let staged = self.versions.iter().filter(|(_, version)| version.state.is_staged());
        kept.extend(staged.map(|(number, _)| *number));
        let previous = |number: &i64| self.versions.get(number)?.previous;
        kept.extend(std::iter::successors(self.active, previous).take(PREVIOUS_KEPT + 1));
        kept
    }
}

impl Deployment {
    /// Retires old versions of a DAG. Returns those that are forgotten.
    pub fn compact(&mut self, dag: &str) -> Vec<DagVersionId> {
        let Some(dag) = self.dags.get_mut(dag) else { return Vec::new() };
        let detailed = dag.detailed();
        for (number, version) in &mut dag.versions {
            if !detailed.contains(number) {
                version.jobs.clear();
                version.published.clear();
            }
        }
        let surplus = dag.versions.len().saturating_sub(VERSIONS_KEPT);
        let oldest: Vec<i64> =
            dag.versions.iter().filter(|(_, it)| it.is_retired()).map(|(number, _)| *number).take(surplus).collect();
        oldest.iter().filter_map(|number| dag.versions.remove(number)).map(|version| version.id).collect()
    }

    /// Jobs that no version names.
    pub fn unnamed_jobs(&self) -> Vec<JobId> {
        let versions = self.dags.values().flat_map(|dag| dag.versions.values());
        let named: BTreeSet<JobId> = versions.flat_map(|version| version.jobs.values().copied()).collect();
        self.jobs.keys().copied().filter(|job| !named.contains(job)).collect()
    }

    /// Removes jobs that no version names, the generations that they wrote, and datasets that nobody writes or reads.
    pub fn remove_jobs(&mut self, jobs: &[JobId]) {
        let gone: BTreeSet<JobId> = jobs.iter().copied().collect();
        let removed = jobs.iter().filter_map(|job| self.jobs.get(job));
        let written: BTreeSet<VersionId> =
            removed.flat_map(|job| job.outputs.iter().map(|output| output.version)).collect();
        self.jobs.retain(|id, _| !gone.contains(id));
        let read: BTreeSet<DatasetId> =
            self.jobs.values().flat_map(|job| job.inputs.iter().map(|input| input.dataset)).collect();
        self.datasets.retain(|id, dataset| {
            dataset.versions.retain(|version| !written.contains(version) || dataset.current == Some(*version));
            !dataset.versions.is_empty() || read.contains(id)
        });
    }

    /// Every generation that the document names.
    pub fn generations(&self) -> Vec<VersionId> {
        let generations: BTreeSet<VersionId> =
            self.datasets.values().flat_map(|dataset| dataset.versions.iter().copied()).collect();
        generations.into_iter().collect()
    }

    /// Jobs of versions that were rolled back. Nothing of them goes on, running tasks included.
    pub fn rolled_back_jobs(&self) -> BTreeSet<JobId> {
        let versions = self.dags.values().flat_map(|dag| dag.versions.values());
        let rolled_back = versions.filter(|version| version.state == VersionState::RolledBack);
        rolled_back.flat_map(|version| version.jobs.values().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::deployment::Refused;
    use crate::dag::testing::{Counter, dag, deploy, published, reader, source};

    fn chain(config: u32) -> crate::dag::DagDefinition {
        let jobs = vec![source("import", config), reader("count", &["import"], "PerPartition", 0)];
        dag("chain", jobs)
    }

    /// Deploys and makes active.
    fn go(deployment: &mut Deployment, fresh: &mut Counter, config: u32) -> Vec<DagVersionId> {
        let planned = deploy(deployment, &chain(config), fresh, false).unwrap();
        deployment.make_ready("chain", planned.number, 0);
        deployment.cut_over("chain", planned.number).unwrap();
        planned.forgotten
    }

    fn detailed(deployment: &Deployment) -> Vec<i64> {
        let versions = deployment.dags["chain"].versions.iter();
        versions.filter(|(_, version)| !version.is_retired()).map(|(number, _)| *number).collect()
    }

    #[test]
    fn old_versions_lose_their_jobs_and_keep_number_and_yaml() {
        let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
        for n in 0..10 {
            assert_eq!(go(&mut deployment, &mut fresh, n), []);
        }
        // Version 10 became active after the plan: until the next one, one more is kept.
        deployment.compact("chain");
        assert_eq!(detailed(&deployment), [7, 8, 9, 10]);
        assert_eq!(deployment.dags["chain"].versions.len(), 10);
        let unnamed = deployment.unnamed_jobs();
        assert_eq!(unnamed.len(), 12, "jobs of six versions");
        deployment.remove_jobs(&unnamed);
        assert_eq!((deployment.jobs.len(), deployment.generations().len()), (8, 8));
        assert_eq!(deployment.cut_over("chain", 3), Err(Refused::Retired));
        for expected in [9, 8, 7] {
            assert_eq!(deployment.roll_back("chain").unwrap().active, Some(expected));
        }
        assert_eq!(deployment.roll_back("chain"), Err(Refused::NoPrevious));
        // The YAML of a retired version gets its old number, with new jobs.
        let again = deploy(&mut deployment, &chain(2), &mut fresh, false).unwrap();
        assert_eq!((again.number, again.is_new, again.jobs.len()), (3, false, 2));
        assert!(!deployment.version("chain", 3).unwrap().is_retired());
    }

    #[test]
    fn of_very_many_versions_the_oldest_are_forgotten() {
        let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
        let first = deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap().id;
        let mut forgotten = Vec::new();
        for n in 1..VERSIONS_KEPT as u32 + 5 {
            forgotten.extend(go(&mut deployment, &mut fresh, n));
            let unnamed = deployment.unnamed_jobs();
            deployment.remove_jobs(&unnamed);
        }
        assert_eq!((forgotten.len(), forgotten[0]), (5, first));
        let versions = &deployment.dags["chain"].versions;
        assert_eq!((versions.len(), versions.keys().next()), (VERSIONS_KEPT, Some(&6)));
        assert!(deployment.jobs.len() <= 12, "{}", deployment.jobs.len());
        // Its YAML is as good as new.
        let again = deploy(&mut deployment, &chain(0), &mut fresh, false).unwrap();
        assert_eq!((again.number, again.is_new), (VERSIONS_KEPT as i64 + 6, true));
    }

    #[test]
    fn a_dataset_that_another_dag_reads_stays() {
        let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
        let publishing = published(dag("a", vec![source("s", 0)]), "s", "events");
        deploy(&mut deployment, &publishing, &mut fresh, false).unwrap();
        let dataset = deployment.dataset_named("events").unwrap();
        deploy(&mut deployment, &dag("b", vec![reader("r", &["@events"], "PerUpdate", 0)]), &mut fresh, false).unwrap();
        for n in 0..6 {
            deploy(&mut deployment, &dag("a", vec![source("other", n)]), &mut fresh, false).unwrap();
        }
        let unnamed = deployment.unnamed_jobs();
        deployment.remove_jobs(&unnamed);
        assert!(deployment.datasets[&dataset].versions.is_empty());
        assert_eq!(deployment.datasets.len(), 3, "that of `s`, `other` and `r`");
    }
}
