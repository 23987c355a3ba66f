//! The jobs of a DAG and the edges between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_client::dags::{Dag, DagJob};

/// Jobs in an order in which what a job reads comes before it.
#[derive(Debug)]
pub struct Graph<'a> {
    pub jobs: Vec<&'a DagJob>,
    /// How many edges lead at most from a job that reads nothing of this DAG to each.
    pub layers: Vec<usize>,
    /// Readers of each job.
    pub readers: Vec<Vec<usize>>,
    /// Datasets of other DAGs, and who reads them.
    pub outside: Vec<(String, Vec<usize>)>,
}

impl<'a> Graph<'a> {
    pub fn of(dag: &'a Dag) -> Self {
        let writers: BTreeMap<&str, usize> = dag
            .jobs
            .iter()
            .enumerate()
            .flat_map(|(index, job)| job.outputs.iter().map(move |output| (output.dataset_uuid.as_str(), index)))
            .collect();
        let mut reads: Vec<BTreeSet<usize>> = Vec::new();
        let mut outside: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (index, job) in dag.jobs.iter().enumerate() {
            let mut own = BTreeSet::new();
            for input in &job.inputs {
                match writers.get(input.dataset_uuid.as_str()) {
                    Some(writer) => drop(own.insert(*writer)),
                    None => {
                        let name = input.dataset_name.clone().or_else(|| input.from.dataset.clone());
                        let name = name.unwrap_or_else(|| input.dataset_uuid.clone());
                        outside.entry(name).or_default().insert(index);
                    }
                }
            }
            reads.push(own);
        }
        let (order, layers) = sorted(&reads);
        let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(place, index)| (*index, place)).collect();
        let mut readers = vec![Vec::new(); order.len()];
        for (index, own) in reads.iter().enumerate() {
            for writer in own {
                readers[place[writer]].push(place[&index]);
            }
        }
        readers.iter_mut().for_each(|list| list.sort_unstable());
        let outside = outside.into_iter().map(|(name, list)| (name, list.iter().map(|index| place[index]).collect()));
        Self {
            jobs: order.iter().map(|index| &dag.jobs[*index]).collect(),
            layers: order.iter().map(|index| layers[*index]).collect(),
            readers,
            outside: outside.collect(),
        }
    }

    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.readers.iter().enumerate().flat_map(|(from, readers)| readers.iter().map(move |to| (from, *to)))
    }
}

/// An order of nodes by layer, and the layer of each.
fn sorted(reads: &[BTreeSet<usize>]) -> (Vec<usize>, Vec<usize>) {
    let mut layers = vec![0; reads.len()];
    let mut missing: Vec<usize> = reads.iter().map(BTreeSet::len).collect();
    let mut readers = vec![Vec::new(); reads.len()];
    for (index, own) in reads.iter().enumerate() {
        own.iter().for_each(|writer| readers[*writer].push(index));
    }
    let mut open: VecDeque<usize> = (0..reads.len()).filter(|index| missing[*index] == 0).collect();
    let mut seen = vec![false; reads.len()];
    while let Some(index) = open.pop_front() {
        seen[index] = true;
        for reader in &readers[index] {
            layers[*reader] = layers[*reader].max(layers[index] + 1);
            missing[*reader] -= 1;
            if missing[*reader] == 0 {
                open.push_back(*reader);
            }
        }
    }
    // No DAG has a cycle; an answer that shows one is drawn all the same.
    let mut order: Vec<usize> = (0..reads.len()).collect();
    order.sort_by_key(|index| (!seen[*index], layers[*index], *index));
    (order, layers)
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// Jobs with one output each, and what they read: jobs, or `@dataset` of another DAG.
    pub fn dag(jobs: &[(&str, &[&str])]) -> Dag {
        let jobs: Vec<_> = jobs
            .iter()
            .map(|(name, reads)| {
                let inputs: Vec<_> = reads
                    .iter()
                    .enumerate()
                    .map(|(index, from)| match from.strip_prefix('@') {
                        Some(dataset) => json!({"input_index": index, "alias": "a", "from": {"dataset": dataset},
                            "dataset_uuid": dataset, "dataset_name": dataset, "dataset_version": null}),
                        None => json!({"input_index": index, "alias": "a", "from": {"job": from, "output": 0},
                            "dataset_uuid": format!("of-{from}"), "dataset_name": null, "dataset_version": null}),
                    })
                    .collect();
                let activation = if reads.is_empty() { "source" } else { "reactive" };
                json!({"name": name, "activation": activation, "runtime": "worker", "operator": "op", "queue": "q",
                    "inputs": inputs, "tasks": {"queued": 0, "running": 0, "failed": 0},
                    "outputs": [{"output_index": 0, "dataset_uuid": format!("of-{name}"), "dataset_name": null, "dataset_version": "v"}]})
            })
            .collect();
        let dag = json!({"name": "d", "active_version": 1, "latest_version": 1, "version": 1, "state": "Active",
            "updated_at": "2025-01-15T10:00:00Z", "yaml": "name: d", "jobs": jobs});
        serde_json::from_value(dag).unwrap()
    }

    #[test]
    fn jobs_are_ordered_by_layer_whatever_their_names() {
        let dag = dag(&[("a", &["z"]), ("b", &["a", "z"]), ("c", &["@prices"]), ("z", &[])]);
        let graph = Graph::of(&dag);
        let names: Vec<_> = graph.jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!((names, &graph.layers[..]), (vec!["c", "z", "a", "b"], &[0, 0, 1, 2][..]));
        assert_eq!(graph.edges().collect::<Vec<_>>(), [(1, 2), (1, 3), (2, 3)]);
        assert_eq!(graph.outside, [("prices".to_owned(), vec![0])]);
    }

    #[test]
    fn an_answer_with_a_cycle_is_drawn_all_the_same() {
        let dag = dag(&[("a", &["b"]), ("b", &["a"]), ("c", &[])]);
        let graph = Graph::of(&dag);
        assert_eq!(graph.jobs.len(), 3);
        assert_eq!(graph.jobs[0].name, "c");
    }
}
