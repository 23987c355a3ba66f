//! `publish`: names for outputs, and how their data is kept.

use std::collections::BTreeSet;

use tenure_core::dag::definition::{self, BUFFER_RECEIVES_DEFAULT, Buffer, Publish, Storage, Upstream, WriteMode};

use super::fields::{Fields, NAME_RULE};
use super::input::{self, FromAt};
use super::schema;
use crate::problem::{Code, Place, Report, quoted};
use crate::yaml::{At, Content, Key, Node};

/// Names that a DAG may publish: one for each of its outputs.
const DATASETS: usize = definition::JOBS * definition::PORTS;

/// Outputs that write to one buffered dataset.
const PRODUCERS: usize = 1_000;

/// A published dataset, as far as it could be read.
pub(crate) struct PublishDraft {
    pub publish: Publish,
    pub at: At,
    pub place: Place,
    pub froms: Vec<FromAt>,
    pub storage_at: At,
    pub schema_at: At,
}

pub(super) fn read(dag: &Fields<'_, '_>, report: &Report) -> Vec<PublishDraft> {
    let Some(node) = dag.get("publish") else { return Vec::new() };
    let Content::Map(entries) = &node.content else {
        dag.error("publish", Code::WrongType, format!("expected a map of datasets, found {}", node.kind()));
        return Vec::new();
    };
    if entries.len() > DATASETS {
        dag.error("publish", Code::OutOfRange, format!("at most {DATASETS} datasets are allowed"));
        return Vec::new();
    }
    // Duplicates are reported with the other rules of YAML.
    let mut seen = BTreeSet::new();
    let distinct = entries.iter().filter(|(key, _)| seen.insert(&key.text));
    let place = dag.place.key("publish");
    distinct.filter_map(|(key, node)| dataset(key, node, place.key(&key.text), report)).collect()
}

fn dataset(key: &Key, node: &Node, place: Place, report: &Report) -> Option<PublishDraft> {
    let name = key.text.as_str();
    if !definition::valid_name(name) {
        let message = format!("'{}' is not a valid name: {NAME_RULE}", quoted(name));
        report.error(key.at, &place, Code::InvalidName, message);
    }
    let known = ["from", "storage", "write_mode", "schema", "buffer"];
    let fields = Fields::of(node, place, report, &known)?;
    let write_modes = [("direct", WriteMode::Direct), ("buffered", WriteMode::Buffered)];
    let write_mode = fields.word("write_mode", &write_modes).unwrap_or_default();
    let buffered = write_mode == WriteMode::Buffered;
    let (from, froms) = producers(&fields, buffered).into_iter().unzip();
    let storage = storage(&fields, buffered);
    let schema = schema::read(&fields, buffered);
    if buffered && fields.get("schema").is_none() {
        fields.error("schema", Code::MissingSchema, "a buffered dataset needs a 'schema': its table is made from it");
    }
    let at_of = |key: &str| fields.get(key).map_or(node.at, |value| value.at);
    Some(PublishDraft {
        publish: Publish { dataset: name.into(), from, storage, write_mode, schema, buffer: buffer(&fields, buffered) },
        at: key.at,
        froms,
        storage_at: at_of("storage"),
        schema_at: at_of("schema"),
        place: fields.place,
    })
}

fn producers(fields: &Fields<'_, '_>, buffered: bool) -> Vec<(definition::Output, FromAt)> {
    let Some(node) = fields.required("from") else { return Vec::new() };
    let place = fields.place.key("from");
    let one = |node: &Node, place: Place| match input::from(node, place, fields, false) {
        Some((Upstream::Job(output), at)) => Some((output, at)),
        _ => None,
    };
    let Content::List(items) = &node.content else { return one(node, place).into_iter().collect() };
    if items.is_empty() {
        fields.error("from", Code::MissingField, "name at least one output: {job, output}");
    }
    if items.len() > PRODUCERS {
        fields.error("from", Code::OutOfRange, format!("a dataset has at most {PRODUCERS} producers"));
        return Vec::new();
    }
    if items.len() > 1 && !buffered {
        let message = "only a buffered dataset has several producers: set `write_mode: buffered`";
        fields.error("from", Code::SeveralProducers, message);
    }
    items.iter().enumerate().filter_map(|(index, item)| one(item, place.index(index))).collect()
}

fn storage(fields: &Fields<'_, '_>, buffered: bool) -> Option<Storage> {
    let storage = fields.word("storage", &[("s3", Storage::S3), ("postgres", Storage::Postgres)]);
    if buffered && storage == Some(Storage::S3) {
        let message = "a buffered dataset is a table: set `storage: postgres`";
        fields.error("storage", Code::BufferedStorage, message);
    }
    if buffered { Some(Storage::Postgres) } else { storage }
}

fn buffer(fields: &Fields<'_, '_>, buffered: bool) -> Option<Buffer> {
    if !buffered {
        fields.forbid(&["buffer"], "belongs to buffered datasets; this one is direct");
        return None;
    }
    let buffer = fields.map("buffer", &["kind", "max_receives"]);
    let max_receives = buffer.as_ref().and_then(|buffer| {
        buffer.word("kind", &[("queue", ()), ("sqs", ())]);
        buffer.number("max_receives", 1..=1_000)
    });
    Some(Buffer { max_receives: max_receives.unwrap_or(BUFFER_RECEIVES_DEFAULT) })
}
