//! From YAML to a definition.

mod defaults;
mod fields;
mod input;
mod job;
mod publish;
mod references;
mod runtime;
mod schema;
mod source;
mod structure;

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_core::dag::definition::{self, DagDefinition};
use tenure_core::dag::{Filter, Ranges};
use uuid::Uuid;

use self::defaults::Defaults;
use self::fields::Fields;
use self::job::JobDraft;
use self::publish::PublishDraft;
use crate::TEXT_BYTES;
use crate::problem::{Code, Place, Problem, Report, quoted};
use crate::surroundings::{Settings, Surroundings};
use crate::yaml::{self, At, Content, Node, Scalar};

/// A DAG that may be deployed.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    pub definition: DagDefinition,
    pub warnings: Vec<Problem>,
}

/// Reads a DAG, or lists everything that is wrong with it in the order of the text.
pub fn parse(text: &str, settings: &Settings, surroundings: &Surroundings) -> Result<Parsed, Vec<Problem>> {
    let report = Report::default();
    let definition = read(text, settings, surroundings, &report);
    let (errors, warnings) = report.finish();
    match definition {
        Some(definition) if errors.is_empty() => Ok(Parsed { definition, warnings }),
        _ => Err(errors),
    }
}

/// The bundles that the jobs of a DAG name, as far as the text can be read.
pub fn bundle_ids(text: &str) -> BTreeSet<Uuid> {
    if text.len() > TEXT_BYTES {
        return BTreeSet::new();
    }
    let root = yaml::read(text, &Report::default());
    let Some(Content::List(jobs)) = root.as_ref().and_then(|root| root.entry("jobs")).map(|jobs| &jobs.content) else {
        return BTreeSet::new();
    };
    let named = jobs.iter().filter_map(|job| job.entry("udf")?.entry("bundle_id")?.scalar());
    let ids = named.filter_map(|id| match id {
        Scalar::Text(text) => Uuid::try_parse(text).ok(),
        _ => None,
    });
    ids.take(definition::JOBS).collect()
}

/// What the parts of a DAG are read with.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub settings: &'a Settings,
    pub surroundings: &'a Surroundings,
    pub report: &'a Report,
}

/// A DAG as far as it could be read.
pub(crate) struct Draft {
    pub name: Arc<str>,
    pub ranges: Ranges,
    pub jobs: Vec<JobDraft>,
    pub publish: Vec<PublishDraft>,
}

fn read(text: &str, settings: &Settings, surroundings: &Surroundings, report: &Report) -> Option<DagDefinition> {
    if text.len() > TEXT_BYTES {
        let message = format!("a DAG has at most {TEXT_BYTES} bytes, this one has {}", text.len());
        report.error(At::START, &Place::default(), Code::BodyTooLarge, message);
        return None;
    }
    let context = Context { settings, surroundings, report };
    let Some(root) = yaml::read(text, report) else {
        if report.is_empty() {
            report.error(
                At::START,
                &Place::default(),
                Code::MissingField,
                "the text is empty: a DAG has a name and jobs",
            );
        }
        return None;
    };
    structure::check(&root, report);
    let draft = draft(&root, context)?;
    references::check(&draft, context);
    Some(draft.definition())
}

fn draft(root: &Node, context: Context<'_>) -> Option<Draft> {
    let known = ["name", "ranges", "defaults", "jobs", "publish"];
    let fields = Fields::of(root, Place::default(), context.report, &known)?;
    let name = fields.required_text("name").unwrap_or_default();
    if !name.is_empty() && !definition::valid_name(name) {
        let message = format!("'{}' is not a valid name: {}", quoted(name), fields::NAME_RULE);
        fields.error("name", Code::InvalidName, message);
    }
    let ranges = fields.word("ranges", &[("inclusive", Ranges::Inclusive), ("half_open", Ranges::HalfOpen)]);
    let defaults = Defaults::read(&fields);
    Some(Draft {
        name: name.into(),
        ranges: ranges.unwrap_or_default(),
        jobs: jobs(&fields, &defaults, context),
        publish: publish::read(&fields, context.report),
    })
}

fn jobs(fields: &Fields<'_, '_>, defaults: &Defaults, context: Context<'_>) -> Vec<JobDraft> {
    if fields.required("jobs").is_none() {
        return Vec::new();
    }
    let Some(items) = fields.list("jobs") else { return Vec::new() };
    if !(1..=definition::JOBS).contains(&items.len()) {
        let message = format!("a DAG has 1 to {} jobs, this one has {}", definition::JOBS, items.len());
        fields.error("jobs", Code::OutOfRange, message);
        return Vec::new();
    }
    items.iter().enumerate().filter_map(|(index, item)| job::read(item, index, defaults, context)).collect()
}

impl Draft {
    fn definition(self) -> DagDefinition {
        DagDefinition {
            name: self.name,
            ranges: self.ranges,
            jobs: self.jobs.into_iter().map(|job| job.definition).collect(),
            publish: self.publish.into_iter().map(|publish| publish.publish).collect(),
        }
    }
}

/// The condition of an input, with what it was written as.
fn condition(node: &Node, place: &Place, report: &Report) -> Option<definition::Where> {
    let written = match &node.content {
        Content::Map(_) => node.json(place, report),
        _ => fields::text(node, place, report)?.into(),
    };
    let tree: Result<Filter, _> = match &written {
        serde_json::Value::Object(map) => crate::filter::from_map(map),
        text => crate::filter::parse(text.as_str().unwrap_or_default()),
    };
    match tree {
        Ok(tree) => Some(definition::Where { written, tree }),
        Err(error) => {
            report.error(node.at, place, Code::InvalidWhere, error.to_string());
            None
        }
    }
}
