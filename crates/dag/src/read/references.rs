//! Rules that need the whole DAG, and those that need the other DAGs.

use std::collections::BTreeMap;

use tenure_core::dag::definition::{Output, Runtime, Source, Storage, Upstream, WriteMode};
use tenure_core::dag::operators::QUERY;
use tenure_core::dag::{Column, Schema};

use super::input::FromAt;
use super::job::JobDraft;
use super::publish::PublishDraft;
use super::{Context, Draft};
use crate::filter::{self, Fault};
use crate::graph;
use crate::problem::{Code, Place, quoted};
use crate::surroundings::Dataset;
use crate::yaml::At;

pub(super) fn check(draft: &Draft, context: Context<'_>) {
    let checker = Checker::new(draft, context);
    checker.jobs();
    checker.webhooks();
    checker.inputs();
    checker.publish();
    checker.readers();
    graph::check(draft, context);
}

struct Checker<'a> {
    draft: &'a Draft,
    context: Context<'a>,
    jobs: BTreeMap<&'a str, &'a JobDraft>,
    datasets: BTreeMap<&'a str, &'a PublishDraft>,
    /// The dataset as which each output is published.
    published: BTreeMap<&'a Output, &'a PublishDraft>,
}

impl<'a> Checker<'a> {
    fn new(draft: &'a Draft, context: Context<'a>) -> Self {
        let mut jobs = BTreeMap::new();
        for job in &draft.jobs {
            jobs.entry(&*job.definition.name).or_insert(job);
        }
        let datasets = draft.publish.iter().map(|publish| (&*publish.publish.dataset, publish)).collect();
        let mut published = BTreeMap::new();
        for publish in &draft.publish {
            for output in &publish.publish.from {
                published.entry(output).or_insert(publish);
            }
        }
        Self { draft, context, jobs, datasets, published }
    }

    /// Datasets of other DAGs. Those of an earlier version of this one do not count.
    fn foreign(&self, name: &str) -> Option<&'a Dataset> {
        self.context.surroundings.datasets.get(name).filter(|dataset| dataset.dag != self.draft.name)
    }

    fn jobs(&self) {
        for job in &self.draft.jobs {
            let name = &*job.definition.name;
            if self.jobs.get(name).is_some_and(|first| first.at != job.at) {
                let first = self.jobs.get(name).map_or(0, |first| first.name_at.line);
                let message = format!("a job named '{}' is already defined on line {first}", quoted(name));
                self.context.report.error(job.name_at, &job.place.key("name"), Code::DuplicateJob, message);
            }
            self.unique_key(job);
        }
    }

    /// Columns of `unique_key` exist where the schema of an output is known.
    fn unique_key(&self, job: &JobDraft) {
        for output in 0..job.definition.outputs {
            let output = Output { job: job.definition.name.clone(), output };
            let Some(publish) = self.published.get(&output) else { continue };
            let Some(schema) = &publish.publish.schema else { continue };
            for column in job.definition.unique_key.iter().filter(|column| schema.column(column).is_none()) {
                let meant = self.context.report.meant(column, names(schema));
                let dataset = &publish.publish.dataset;
                let message = format!("the dataset '{dataset}' has no column '{column}'{meant}");
                let place = job.place.key("unique_key");
                self.context.report.error(job.unique_key_at, &place, Code::UnknownColumn, message);
            }
        }
    }

    fn webhooks(&self) {
        let mut paths = BTreeMap::new();
        for job in &self.draft.jobs {
            let Some(Source::Webhook { path, secret, .. }) = job.definition.source() else { continue };
            self.secret(job, secret);
            let elsewhere = self.context.surroundings.webhook_paths.get(path).filter(|dag| **dag != self.draft.name);
            let foreign = self.context.surroundings.foreign_webhook_paths.contains(path);
            let owner = match (paths.insert(path, &job.definition.name), elsewhere) {
                (_, Some(dag)) => format!("the DAG '{dag}'"),
                (_, None) if foreign => "another organisation".to_owned(),
                (Some(other), None) => format!("the job '{other}'"),
                (None, None) => continue,
            };
            let message = format!("the path '{path}' is in use by {owner}");
            let place = job.place.key("source").key("webhook_path");
            self.context.report.error(job.webhook_at, &place, Code::WebhookPathInUse, message);
        }
    }

    /// A webhook without its secret refuses every delivery.
    fn secret(&self, job: &JobDraft, name: &str) {
        if self.context.surroundings.secrets.as_ref().is_some_and(|known| !known.contains(name)) {
            let message = format!(
                "no secret '{}' is configured: set `dispatch.secrets.{}`; until then every delivery is refused",
                quoted(name),
                quoted(name)
            );
            let place = job.place.key("source").key("secret");
            self.context.report.warning(job.webhook_at, &place, Code::SecretNotConfigured, message);
        }
    }

    fn inputs(&self) {
        for job in &self.draft.jobs {
            let places = job.froms.iter().zip(&job.conditions);
            for (input, (from, condition)) in job.definition.inputs().iter().zip(places) {
                let columns = match &input.from {
                    Upstream::Job(output) => {
                        self.output(output, from).and_then(|publish| publish.publish.schema.as_ref())
                    }
                    Upstream::Dataset(name) => self.dataset(name, from),
                };
                if let (Some(filter), Some((at, place)), Some(schema)) = (&input.filter, condition, columns) {
                    for misfit in filter::check(&filter.tree, &schema.columns) {
                        let message = self.misfit(&misfit, schema);
                        let code = if misfit.fault == Fault::UnknownField { Code::WhereField } else { Code::WhereType };
                        self.context.report.error(*at, place, code, message);
                    }
                }
            }
        }
    }

    fn misfit(&self, misfit: &filter::Misfit, schema: &Schema) -> String {
        let field = quoted(&misfit.field);
        match &misfit.fault {
            Fault::UnknownField => {
                format!(
                    "the dataset has no column '{field}'{}",
                    self.context.report.meant(&misfit.field, names(schema))
                )
            }
            fault => format!("'{field}': {fault}"),
        }
    }

    /// Reports an output that does not exist; returns what it is published as.
    fn output(&self, output: &Output, from: &FromAt) -> Option<&'a PublishDraft> {
        let report = self.context.report;
        match self.jobs.get(&*output.job) {
            None => {
                let meant = report.meant(&output.job, self.jobs.keys().copied());
                let message = format!("no job named '{}'{meant}", quoted(&output.job));
                report.error(from.job.0, &from.job.1, Code::UnknownJob, message);
            }
            Some(job) if job.outputs_known && output.output >= job.definition.outputs => {
                let message = match job.definition.outputs {
                    0 => format!("the job '{}' has no outputs", output.job),
                    1 => format!("the job '{}' has one output, number 0", output.job),
                    count => format!("the job '{}' has the outputs 0 to {}", output.job, count - 1),
                };
                report.error(from.output.0, &from.output.1, Code::UnknownOutput, message);
            }
            Some(_) => {}
        }
        self.published.get(output).copied()
    }

    /// Reports a dataset that does not exist or whose ranges are of another kind; returns its schema.
    fn dataset(&self, name: &str, from: &FromAt) -> Option<&'a Schema> {
        if let Some(own) = self.datasets.get(name) {
            return own.publish.schema.as_ref();
        }
        let report = self.context.report;
        let (at, place) = &from.job;
        let Some(dataset) = self.foreign(name) else {
            let others = self.context.surroundings.datasets.keys().map(|name| &**name);
            let meant = report.meant(name, self.datasets.keys().copied().chain(others));
            let message = format!("no dataset named '{}'{meant}", quoted(name));
            report.error(*at, place, Code::UnknownDataset, message);
            return None;
        };
        if dataset.ranges != self.draft.ranges {
            let message = format!(
                "the dataset '{name}' of the DAG '{}' has {} ranges, this DAG has {}: set `ranges: {}`",
                dataset.dag,
                dataset.ranges.as_str(),
                self.draft.ranges.as_str(),
                dataset.ranges.as_str(),
            );
            report.error(*at, place, Code::RangesMismatch, message);
        }
        dataset.schema.as_ref()
    }

    fn publish(&self) {
        for draft in &self.draft.publish {
            for (output, from) in draft.publish.from.iter().zip(&draft.froms) {
                let first = self.output(output, from);
                self.named_once(draft, first, output, from);
                self.direct_table(draft, output);
            }
            self.owner(draft);
        }
    }

    fn named_once(&self, draft: &PublishDraft, first: Option<&PublishDraft>, output: &Output, from: &FromAt) {
        let again = draft.publish.from.iter().filter(|other| *other == output).count() > 1;
        let elsewhere = first.filter(|first| first.publish.dataset != draft.publish.dataset);
        if !again && elsewhere.is_none() {
            return;
        }
        let other = elsewhere.map_or(&draft.publish.dataset, |first| &first.publish.dataset);
        let message =
            format!("output {} of the job '{}' is already published as '{other}'", output.output, quoted(&output.job));
        let (at, place) = &from.job;
        self.context.report.error(*at, place, Code::PublishedTwice, message);
    }

    /// Untrusted code never writes to a table itself, and results of queries are files.
    fn direct_table(&self, draft: &PublishDraft, output: &Output) {
        let table = draft.publish.storage == Some(Storage::Postgres);
        let query = |job: &&JobDraft| job.runtime_known && job.definition.runtime == Runtime::Dispatcher;
        if let Some(job) = self.jobs.get(&*output.job).filter(|job| table && query(job))
            && &*job.definition.operator == QUERY
        {
            let message = format!("the job '{}' runs a query, whose result is in files: use `storage: s3`", output.job);
            let place = draft.place.key("storage");
            return self.context.report.error(draft.storage_at, &place, Code::DirectTable, message);
        }
        let direct = draft.publish.write_mode == WriteMode::Direct && draft.publish.storage == Some(Storage::Postgres);
        let Some(job) = self.jobs.get(&*output.job).filter(|job| direct && job.runtime_known) else { return };
        if matches!(job.definition.runtime, Runtime::Sandbox | Runtime::Lambda) {
            let message = format!(
                "the job '{}' runs on {} and cannot write to a table: set `write_mode: buffered`, or `storage: s3`",
                output.job,
                job.definition.runtime.as_str()
            );
            let place = draft.place.key("storage");
            self.context.report.error(draft.storage_at, &place, Code::DirectTable, message);
        }
    }

    /// A name belongs to one DAG, and its schema only grows.
    fn owner(&self, draft: &PublishDraft) {
        let report = self.context.report;
        let name = &draft.publish.dataset;
        let Some(known) = self.context.surroundings.datasets.get(name) else { return };
        if known.dag != self.draft.name {
            let message = format!("the dataset '{name}' is published by the DAG '{}': choose another name", known.dag);
            return report.error(draft.at, &draft.place, Code::DatasetInUse, message);
        }
        let same = known.producers.iter().any(|producer| draft.publish.from.contains(producer));
        let (Some(old), Some(new)) = (&known.schema, &draft.publish.schema) else { return };
        if let Some(broken) = new.breaks(old).filter(|_| same) {
            let message = format!("{broken}: a schema may only gain nullable columns");
            report.error(draft.schema_at, &draft.place.key("schema"), Code::IncompatibleSchema, message);
        }
    }

    /// Other DAGs that read what this one publishes, or has published.
    fn readers(&self) {
        let report = self.context.report;
        for reader in self.context.surroundings.readers.iter().filter(|reader| reader.dag != self.draft.name) {
            let own = self.context.surroundings.datasets.get(&reader.dataset);
            match self.datasets.get(&*reader.dataset) {
                Some(draft) if reader.ranges != self.draft.ranges => {
                    let message = format!(
                        "the DAG '{}' reads '{}' and has {} ranges, this DAG has {}",
                        reader.dag,
                        reader.dataset,
                        reader.ranges.as_str(),
                        self.draft.ranges.as_str()
                    );
                    report.error(draft.at, &draft.place, Code::RangesMismatch, message);
                }
                None if own.is_some_and(|dataset| dataset.dag == self.draft.name) => {
                    let message = format!("the DAG '{}' still reads the dataset '{}'", reader.dag, reader.dataset);
                    let place = Place::default().key("publish");
                    report.warning(At::START, &place, Code::StillRead, message);
                }
                _ => {}
            }
        }
    }
}

fn names(schema: &Schema) -> impl Iterator<Item = &str> {
    schema.columns.iter().map(|column: &Column| &*column.name)
}
