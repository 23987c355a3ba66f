//! DAGs and datasets.

use std::time::Duration;

use reqwest::Method;
use tenure_contract::Json;
use tenure_contract::dags::{
    Bundle, CutoverRequest, Dag, DagDeployed, DagSummary, DagSwitched, DagVersion, Dataset, DatasetSummary, DeadBatch,
    InvalidateRequest, Invalidated, JobTriggered, ReplayRequest, Replayed, TriggerRequest,
};
use tenure_contract::dispatch::BufferPublished;
use tenure_contract::user::Page;

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::filter;

/// For a bundle of 64 MiB.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);

/// How [`Client::deploy_dag`] deploys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeployOptions {
    /// Check and plan, and write nothing.
    pub dry_run: bool,
    /// The version becomes active only by [`Client::cut_over_dag`].
    pub manual_cutover: bool,
}

/// Filter of [`Client::datasets`].
#[derive(Debug, Clone, Default)]
pub struct DatasetFilter {
    /// Only those that this DAG produces.
    pub dag: Option<String>,
    /// Only those that have a name.
    pub published: Option<bool>,
    /// Default 100, up to 1000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// Which partitions [`Client::dataset`] returns.
#[derive(Debug, Clone, Default)]
pub struct PartitionFilter {
    /// Default: the current version.
    pub version: Option<String>,
    /// Default 100, up to 1000.
    pub limit: Option<u32>,
    /// `partitions.next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Client {
    /// Deploys a DAG. The same text again is the same version, so that the call is repeated when no answer comes.
    pub async fn deploy_dag(&self, yaml: &str, options: DeployOptions) -> Result<DagDeployed, ClientError> {
        let mut url = self.url(&["dags"]);
        let dry_run = options.dry_run.then(|| "true".to_owned());
        let cutover = options.manual_cutover.then(|| "manual".to_owned());
        filter::write(&mut url, &[("dry_run", &dry_run), ("cutover", &cutover)]);
        self.call(Call::new(Method::POST, url).text("application/yaml", yaml).repeatable(true)).await
    }

    /// One page of DAGs, by name.
    pub async fn dags(&self, cursor: Option<String>) -> Result<Page<DagSummary>, ClientError> {
        let mut url = self.url(&["dags"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// The active version of a DAG, or the one with this number.
    pub async fn dag(&self, name: &str, version: Option<i64>) -> Result<Dag, ClientError> {
        let mut url = self.url(&["dags", name]);
        filter::write(&mut url, &[("version", &version.map(|version| version.to_string()))]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// One page of the versions of a DAG, newest first.
    pub async fn dag_versions(&self, name: &str, cursor: Option<String>) -> Result<Page<DagVersion>, ClientError> {
        let mut url = self.url(&["dags", name, "versions"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// Makes a version active. One that is active already stays so.
    pub async fn cut_over_dag(&self, name: &str, version: i64) -> Result<DagSwitched, ClientError> {
        let call = Call::new(Method::POST, self.url(&["dags", name, "cutover"])).json(&CutoverRequest { version })?;
        self.call(call.repeatable(true)).await
    }

    /// Goes back to the version that was active before. Not repeated: a second time would go back further.
    pub async fn roll_back_dag(&self, name: &str) -> Result<DagSwitched, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["dags", name, "rollback"]))).await
    }

    /// Fires a manual source. The same `request_id` again names the same task.
    pub async fn trigger_job(
        &self,
        dag: &str,
        job: &str,
        request_id: Option<&str>,
        input: Option<Json>,
    ) -> Result<JobTriggered, ClientError> {
        let body = TriggerRequest { request_id: request_id.map(ToOwned::to_owned), input };
        let call = Call::new(Method::POST, self.url(&["dags", dag, "jobs", job, "trigger"])).json(&body)?;
        self.call(call.repeatable(request_id.is_some())).await
    }

    /// One page of datasets, by DAG, job and output.
    pub async fn datasets(&self, filter: &DatasetFilter) -> Result<Page<DatasetSummary>, ClientError> {
        let mut url = self.url(&["datasets"]);
        let (published, limit) = (filter::text(&filter.published), filter::text(&filter.limit));
        filter::write(
            &mut url,
            &[("dag", &filter.dag), ("published", &published), ("limit", &limit), ("cursor", &filter.cursor)],
        );
        self.call(Call::new(Method::GET, url)).await
    }

    /// A dataset by name or id, with one page of its partitions.
    pub async fn dataset(&self, name: &str, partitions: &PartitionFilter) -> Result<Dataset, ClientError> {
        let mut url = self.url(&["datasets", name]);
        let limit = filter::text(&partitions.limit);
        filter::write(&mut url, &[("version", &partitions.version), ("limit", &limit), ("cursor", &partitions.cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// Says that data of a dataset has changed: jobs that read it run again. The same `request_id` again is the same
    /// invalidation.
    pub async fn invalidate_dataset(
        &self,
        name: &str,
        invalidation: &InvalidateRequest,
        request_id: Option<&str>,
    ) -> Result<Invalidated, ClientError> {
        let mut call = Call::new(Method::POST, self.url(&["datasets", name, "invalidate"])).json(invalidation)?;
        if let Some(request_id) = request_id {
            call = call.header("Idempotency-Key", request_id).repeatable(true);
        }
        self.call(call).await
    }

    /// Publishes rows to a buffered dataset, as JSON lines: objects with its columns. They are written soon, all or none.
    /// The same `key` again is the same batch.
    pub async fn publish_lines(
        &self,
        dataset: &str,
        lines: &str,
        key: Option<&str>,
    ) -> Result<BufferPublished, ClientError> {
        let url = self.url(&["buffers", dataset, "publish"]);
        let mut call = Call::new(Method::POST, url).text("application/jsonl", lines);
        if let Some(key) = key {
            call = call.header("Idempotency-Key", key).repeatable(true);
        }
        self.call(call).await
    }

    /// Uploads a bundle: a zip file with `bundle_manifest.json`. The same bytes again are the same bundle, so that the call
    /// is repeated when no answer comes.
    pub async fn upload_bundle(&self, zip: Vec<u8>) -> Result<Bundle, ClientError> {
        let call = Call::new(Method::POST, self.url(&["udf", "bundles"])).bytes("application/zip", zip);
        self.call(call.repeatable(true).timeout(UPLOAD_TIMEOUT)).await
    }

    /// Removes a bundle that no deployed job runs.
    pub async fn remove_bundle(&self, bundle_id: &str) -> Result<(), ClientError> {
        self.answer(&Call::new(Method::DELETE, self.url(&["udf", "bundles", bundle_id]))).await.map(drop)
    }

    pub async fn bundle(&self, bundle_id: &str) -> Result<Bundle, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["udf", "bundles", bundle_id]))).await
    }

    /// One page of batches of a dataset that were rejected for good.
    pub async fn dead_batches(&self, dataset: &str, cursor: Option<String>) -> Result<Page<DeadBatch>, ClientError> {
        let mut url = self.url(&["buffers", dataset, "dead"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// Tries rejected batches again: these, or all.
    pub async fn replay_batches(
        &self,
        dataset: &str,
        publish_ids: Option<Vec<String>>,
    ) -> Result<Replayed, ClientError> {
        let call = Call::new(Method::POST, self.url(&["buffers", dataset, "replay"]));
        self.call(call.json(&ReplayRequest { publish_ids })?.repeatable(true)).await
    }
}
