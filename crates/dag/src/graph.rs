//! Cycles: inside a DAG, through the names of its datasets, and through other DAGs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::dag::definition::Upstream;

use crate::problem::{Code, quoted};
use crate::read::{Context, Draft};

/// Nodes that a message names.
const SHOWN: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node<'a> {
    Job(&'a str),
    Dataset(&'a str),
}

/// From each node to those that follow from it.
#[derive(Default)]
struct Graph<'a> {
    numbers: BTreeMap<Node<'a>, usize>,
    nodes: Vec<Node<'a>>,
    next: Vec<BTreeSet<usize>>,
}

impl<'a> Graph<'a> {
    fn number(&mut self, node: Node<'a>) -> usize {
        *self.numbers.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            self.next.push(BTreeSet::new());
            self.nodes.len() - 1
        })
    }

    fn edge(&mut self, from: Node<'a>, to: Node<'a>) {
        let (from, to) = (self.number(from), self.number(to));
        self.next[from].insert(to);
    }
}

/// Reports one cycle for each group of nodes that reach each other, at the input of its first job.
pub(crate) fn check(draft: &Draft, context: Context<'_>) {
    let graph = build(draft, context);
    for group in groups(&graph.next) {
        let own = |node: &&usize| matches!(graph.nodes[**node], Node::Job(_));
        // Cycles among other DAGs are not the fault of this one.
        let Some(first) = group.iter().filter(own).min() else { continue };
        if let Some(cycle) = cycle(&graph.next, *first, &group) {
            report(draft, context, &graph, &cycle);
        }
    }
}

fn build<'a>(draft: &'a Draft, context: Context<'a>) -> Graph<'a> {
    let mut graph = Graph::default();
    for job in &draft.jobs {
        // In the order of the text.
        graph.number(Node::Job(&job.definition.name));
    }
    for job in &draft.jobs {
        let node = Node::Job(&job.definition.name);
        for input in job.definition.inputs() {
            match &input.from {
                Upstream::Job(output) => graph.edge(Node::Job(&output.job), node),
                Upstream::Dataset(name) => graph.edge(Node::Dataset(name), node),
            }
        }
    }
    for publish in &draft.publish {
        for output in &publish.publish.from {
            graph.edge(Node::Job(&output.job), Node::Dataset(&publish.publish.dataset));
        }
    }
    for edge in context.surroundings.edges.iter().filter(|edge| edge.dag != draft.name) {
        graph.edge(Node::Dataset(&edge.from), Node::Dataset(&edge.to));
    }
    graph
}

fn report(draft: &Draft, context: Context<'_>, graph: &Graph<'_>, cycle: &[usize]) {
    let (Some(first), Some(last)) = (cycle.first(), cycle.last()) else { return };
    let Node::Job(name) = graph.nodes[*first] else { return };
    let before = graph.nodes[*last];
    let Some(job) = draft.jobs.iter().find(|job| &*job.definition.name == name) else { return };
    let closes = |from: &Upstream| match from {
        Upstream::Job(output) => before == Node::Job(&output.job),
        Upstream::Dataset(dataset) => before == Node::Dataset(dataset),
    };
    let index = job.definition.inputs().iter().position(|input| closes(&input.from));
    let Some(from) = index.and_then(|index| job.froms.get(index)) else { return };
    let shown = |node: &usize| match graph.nodes[*node] {
        Node::Job(name) => quoted(name),
        Node::Dataset(name) => format!("dataset {}", quoted(name)),
    };
    let mut path: Vec<String> = cycle.iter().take(SHOWN).map(shown).collect();
    if cycle.len() > SHOWN {
        path.push(format!("{} more", cycle.len() - SHOWN));
    }
    let message = format!("cycle: {} -> {}", path.join(" -> "), quoted(name));
    let (at, place) = &from.job;
    context.report.error(*at, place, Code::Cycle, message);
}

/// The strongly connected groups that have a cycle, by Tarjan's algorithm without recursion.
fn groups(next: &[BTreeSet<usize>]) -> Vec<BTreeSet<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut index = vec![UNSEEN; next.len()];
    let mut low = vec![0; next.len()];
    let mut on_stack = vec![false; next.len()];
    let (mut stack, mut found, mut count) = (Vec::new(), Vec::new(), 0);
    for root in 0..next.len() {
        if index[root] != UNSEEN {
            continue;
        }
        let mut calls = vec![(root, next[root].iter())];
        (index[root], low[root], on_stack[root]) = (count, count, true);
        stack.push(root);
        count += 1;
        while let Some((node, rest)) = calls.last_mut() {
            let node = *node;
            match rest.next() {
                Some(&to) if index[to] == UNSEEN => {
                    (index[to], low[to], on_stack[to]) = (count, count, true);
                    stack.push(to);
                    count += 1;
                    calls.push((to, next[to].iter()));
                }
                Some(&to) => {
                    if on_stack[to] {
                        low[node] = low[node].min(index[to]);
                    }
                }
                None => {
                    calls.pop();
                    if let Some((parent, _)) = calls.last() {
                        low[*parent] = low[*parent].min(low[node]);
                    }
                    if low[node] == index[node] {
                        let mut group = BTreeSet::new();
                        while let Some(member) = stack.pop() {
                            on_stack[member] = false;
                            group.insert(member);
                            if member == node {
                                break;
                            }
                        }
                        if group.len() > 1 || next[node].contains(&node) {
                            found.push(group);
                        }
                    }
                }
            }
        }
    }
    found
}

/// A shortest way from a node back to it, within a group.
fn cycle(next: &[BTreeSet<usize>], start: usize, group: &BTreeSet<usize>) -> Option<Vec<usize>> {
    let mut before: BTreeMap<usize, usize> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(node) = waiting.pop_front() {
        for &to in next[node].iter().filter(|to| group.contains(to)) {
            if to == start {
                let mut path = vec![node];
                let mut at = node;
                while at != start {
                    at = *before.get(&at)?;
                    path.push(at);
                }
                path.reverse();
                return Some(path);
            }
            if to != start && !before.contains_key(&to) {
                before.insert(to, node);
                waiting.push_back(to);
            }
        }
    }
    None
}
