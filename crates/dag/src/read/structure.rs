//! Rules of the YAML itself that need to know where they are broken: duplicate keys, anchors, aliases and tags.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::problem::{Code, Place, Report, quoted};
use crate::yaml::{Content, Key, Mark, Node, Scalar};

pub(super) fn check(root: &Node, report: &Report) {
    let place = Place::default();
    let Content::Map(entries) = &root.content else { return walk(root, &place, report) };
    marks(root, &place, report);
    duplicates(entries, &place, report);
    for (key, value) in entries {
        match &value.content {
            Content::List(jobs) if key.text == "jobs" => {
                marks(value, &place.key("jobs"), report);
                jobs.iter().enumerate().for_each(|(index, job)| walk(job, &place_of_job(job, index), report));
            }
            _ => walk(value, &place.key(&key.text), report),
        }
    }
}

/// The place of a job: its name, or its number if it has none.
pub(super) fn place_of_job(job: &Node, index: usize) -> Place {
    match job.entry("name").and_then(Node::scalar) {
        Some(Scalar::Text(name)) => Place::job(&Arc::from(quoted(name))),
        _ => Place::default().key("jobs").index(index),
    }
}

/// The depth of the tree is bounded, hence that of the recursion.
fn walk(node: &Node, place: &Place, report: &Report) {
    marks(node, place, report);
    match &node.content {
        Content::Scalar { .. } | Content::Alias => {}
        Content::List(items) => {
            items.iter().enumerate().for_each(|(index, item)| walk(item, &place.index(index), report));
        }
        Content::Map(entries) => {
            duplicates(entries, place, report);
            entries.iter().for_each(|(key, value)| walk(value, &place.key(&key.text), report));
        }
    }
}

fn marks(node: &Node, place: &Place, report: &Report) {
    if let Some(mark) = node.mark {
        mark.refuse(node.at, place, report);
    }
    if matches!(node.content, Content::Alias) {
        Mark::Anchor.refuse(node.at, place, report);
    }
}

fn duplicates(entries: &[(Key, Node)], place: &Place, report: &Report) {
    let mut seen = BTreeSet::new();
    for (key, _) in entries {
        if !seen.insert(key.text.as_str()) {
            let message = format!("the key '{}' is set twice", quoted(&key.text));
            report.error(key.at, &place.key(&key.text), Code::DuplicateKey, message);
        }
    }
}
