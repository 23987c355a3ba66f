//! `inputs`: what a reactive job reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_core::dag::definition::{Input, Output, PORTS, Upstream};

use super::fields::{Fields, number, text};
use crate::problem::{Code, Place, quoted};
use crate::yaml::{At, Node};

/// Where the parts of an input are, for the rules that need the whole DAG.
pub(crate) struct InputDraft {
    pub input: Input,
    pub from: FromAt,
    pub condition: Option<(At, Place)>,
}

/// Where an output or a dataset is named.
#[derive(Clone)]
pub(crate) struct FromAt {
    pub job: (At, Place),
    pub output: (At, Place),
}

pub(super) fn read(job: &Fields<'_, '_>) -> Vec<InputDraft> {
    if job.required("inputs").is_none() {
        return Vec::new();
    }
    let Some(items) = job.list("inputs") else { return Vec::new() };
    if !(1..=PORTS).contains(&items.len()) {
        job.error("inputs", Code::OutOfRange, format!("a reactive job has 1 to {PORTS} inputs"));
        return Vec::new();
    }
    let places = items.iter().enumerate().map(|(index, item)| (item, job.place.key("inputs").index(index)));
    let inputs: Vec<InputDraft> = places.filter_map(|(item, place)| input(item, place, job)).collect();
    let mut aliases = BTreeSet::new();
    for draft in inputs.iter().filter(|draft| !aliases.insert(draft.input.alias.clone())) {
        let (at, place) = &draft.from.job;
        let message = format!("two inputs have the alias '{}': give one of them another `alias`", draft.input.alias);
        job.report.error(*at, place, Code::DuplicateAlias, message);
    }
    inputs
}

fn input(node: &Node, place: Place, job: &Fields<'_, '_>) -> Option<InputDraft> {
    let fields = Fields::of(node, place, job.report, &["from", "alias", "where"])?;
    let upstream = fields.required("from").and_then(|node| from(node, fields.place.key("from"), job, true));
    let alias = fields.text("alias").filter(|alias| {
        let valid = is_alias(alias);
        if !valid {
            let message =
                format!("'{}' is not an alias: letters, digits, _ and -, not beginning with a digit", quoted(alias));
            fields.error("alias", Code::InvalidName, message);
        }
        valid
    });
    let written = fields.get("where").map(|node| (node, fields.place.key("where")));
    let filter = written.as_ref().and_then(|(node, place)| super::condition(node, place, job.report));
    let (upstream, from) = upstream?;
    let alias = alias.map_or_else(|| default_alias(&upstream), Arc::from);
    let condition = written.map(|(node, place)| (node.at, place));
    Some(InputDraft { input: Input { from: upstream, alias, filter }, from, condition })
}

fn default_alias(from: &Upstream) -> Arc<str> {
    match from {
        Upstream::Job(Output { job, output }) => format!("{job}_{output}").into(),
        Upstream::Dataset(name) => name.clone(),
    }
}

fn is_alias(alias: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let first = alias.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    alias.len() <= 128 && first && alias.bytes().all(part)
}

/// `{job, output}`, or `{dataset}` where that is allowed.
pub(super) fn from(node: &Node, place: Place, parent: &Fields<'_, '_>, datasets: bool) -> Option<(Upstream, FromAt)> {
    let known: &[&str] = if datasets { &["job", "output", "dataset"] } else { &["job", "output"] };
    let fields = Fields::of(node, place, parent.report, known)?;
    let here = |key: &str| (fields.get(key).map_or(node.at, |value| value.at), fields.place.key(key));
    if let Some(dataset) = fields.get("dataset").filter(|_| datasets) {
        fields.forbid(&["job", "output"], "cannot stand beside `dataset`");
        let name = text(dataset, &fields.place.key("dataset"), parent.report)?;
        let at = FromAt { job: here("dataset"), output: here("dataset") };
        return Some((Upstream::Dataset(name.into()), at));
    }
    if fields.get("job").is_none() && fields.get("output").is_none() {
        let forms = if datasets { "{job, output} or {dataset}" } else { "{job, output}" };
        parent.report.error(node.at, &fields.place, Code::MissingField, format!("write {forms}"));
        return None;
    }
    let job = fields.required_text("job");
    let place = fields.place.key("output");
    // Whether the job has this output is judged later.
    let output = fields.required("output").and_then(|node| number(node, &place, parent.report, 0..=u32::MAX));
    let at = FromAt { job: here("job"), output: here("output") };
    Some((Upstream::Job(Output { job: job?.into(), output: output? }), at))
}
