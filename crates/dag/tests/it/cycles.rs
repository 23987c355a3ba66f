//! Cycles inside a DAG, through published names, and through other DAGs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use proptest::prelude::*;
use tenure_dag::{Code, Problem};

use super::support::{accepted, read};

/// A DAG whose jobs read these inputs.
fn dag(jobs: &[(&str, &[&str])], publish: &str) -> String {
    let mut text = "name: d\njobs:\n".to_owned();
    for (name, inputs) in jobs {
        let from = |input: &&str| match input.strip_prefix('$') {
            Some(dataset) => format!("{{ from: {{ dataset: {dataset} }} }}"),
            None => format!("{{ from: {{ job: {input}, output: 0 }} }}"),
        };
        let inputs: Vec<String> = inputs.iter().map(from).collect();
        let activation = if inputs.is_empty() {
            "activation: source, source: { kind: manual }".to_owned()
        } else {
            format!(
                "activation: reactive, execution_strategy: PerUpdate, update_strategy: replace, inputs: [{}]",
                inputs.join(", ")
            )
        };
        let _ = writeln!(text, "  - {{ name: {name}, runtime: worker, operator: x, outputs: 1, {activation} }}");
    }
    format!("{text}{publish}")
}

fn cycles(text: &str) -> Vec<(Option<String>, String, String)> {
    let problems: Vec<Problem> = read(text).err().unwrap_or_default();
    assert!(problems.iter().all(|problem| problem.code == Code::Cycle), "{problems:?}");
    let parts = |problem: Problem| (problem.job.map(|job| job.to_string()), problem.field, problem.message);
    problems.into_iter().map(parts).collect()
}

fn found(job: &str, field: &str, message: &str) -> (Option<String>, String, String) {
    (Some(job.to_owned()), field.to_owned(), message.to_owned())
}

#[test]
fn inside_a_dag() {
    let text = dag(&[("s", &[]), ("a", &["s", "c"]), ("b", &["a"]), ("c", &["b"])], "");
    assert_eq!(cycles(&text), [found("a", "inputs[1].from.job", "cycle: a -> b -> c -> a")]);
    let own = dag(&[("s", &[]), ("a", &["s", "a"])], "");
    assert_eq!(cycles(&own), [found("a", "inputs[1].from.job", "cycle: a -> a")]);
    let two = dag(&[("a", &["b"]), ("b", &["a"]), ("c", &["e"]), ("e", &["c"])], "");
    assert_eq!(cycles(&two).len(), 2);
}

#[test]
fn through_published_names() {
    let publish = "publish:\n  loop: { from: { job: b, output: 0 } }\n";
    let text = dag(&[("s", &[]), ("a", &["s", "$loop"]), ("b", &["a"])], publish);
    assert_eq!(cycles(&text), [found("a", "inputs[1].from.dataset", "cycle: a -> b -> dataset loop -> a")]);
    accepted(&dag(&[("s", &[]), ("a", &["s"]), ("b", &["a"]), ("c", &["$loop"])], publish));
}

/// The DAG `labels` makes `labels` from `blocks`.
#[test]
fn through_other_dags() {
    let publish = "publish:\n  blocks: { from: { job: b, output: 0 } }\n";
    let text = dag(&[("s", &[]), ("a", &["s", "$labels"]), ("b", &["a"])], publish);
    assert_eq!(
        cycles(&text),
        [found("a", "inputs[1].from.dataset", "cycle: a -> b -> dataset blocks -> dataset labels -> a")]
    );
    accepted(&dag(&[("a", &["$labels"])], ""));
    accepted(&dag(&[("a", &[])], "publish:\n  blocks: { from: { job: a, output: 0 } }\n"));
}

#[test]
fn a_long_cycle_is_shortened() {
    let names: Vec<String> = (0..1_000).map(|n| format!("j{n}")).collect();
    let inputs: Vec<[&str; 1]> = (0..1_000).map(|n| [names[(n + 999) % 1_000].as_str()]).collect();
    let jobs: Vec<(&str, &[&str])> =
        names.iter().zip(&inputs).map(|(name, inputs)| (name.as_str(), &inputs[..])).collect();
    let found = cycles(&dag(&jobs, ""));
    assert_eq!(found.len(), 1);
    assert!(found[0].2.ends_with("-> j11 -> 988 more -> j0"), "{}", found[0].2);
}

/// Whether a graph has a cycle, by taking away nodes that nothing leads to.
fn has_cycle(edges: &BTreeMap<usize, BTreeSet<usize>>, nodes: usize) -> bool {
    let mut left: BTreeSet<usize> = (0..nodes).collect();
    loop {
        let free = left
            .iter()
            .copied()
            .find(|node| edges.get(node).is_none_or(|from| from.intersection(&left).next().is_none()));
        match free {
            Some(node) => left.remove(&node),
            None => return !left.is_empty(),
        };
    }
}

proptest! {
    #[test]
    fn cycles_of_random_graphs_are_found(pairs in prop::collection::btree_set((0..8_usize, 0..8_usize), 0..14)) {
        let mut edges: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (from, to) in pairs {
            edges.entry(to).or_default().insert(from);
        }
        let names: Vec<String> = (0..8).map(|n| format!("j{n}")).collect();
        let inputs: Vec<Vec<&str>> = (0..8)
            .map(|n| edges.get(&n).into_iter().flatten().map(|from| names[*from].as_str()).collect())
            .collect();
        let jobs: Vec<(&str, &[&str])> = names.iter().zip(&inputs).map(|(name, inputs)| (name.as_str(), &inputs[..])).collect();
        prop_assert_eq!(!cycles(&dag(&jobs, "")).is_empty(), has_cycle(&edges, 8));
    }
}
