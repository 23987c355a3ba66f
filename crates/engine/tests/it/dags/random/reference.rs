//! What must come of what happened, by the rules of the contract alone.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::TaskId;

use super::DagPlan;

/// A place in what a job writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    Part(String),
    Row(i64),
}

/// What a task was made for: a place in the output of a job, and how often it had changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    pub from: usize,
    pub at: At,
    pub generation: i64,
}

#[derive(Debug, Default)]
pub struct Reference {
    tasks: BTreeMap<usize, BTreeSet<Cause>>,
    /// How often each partition has changed.
    generations: BTreeMap<(usize, String), i64>,
    /// Whose outputs partitions point to.
    written: BTreeMap<(usize, String), TaskId>,
    /// The last generation of a partition that a job has read: by reader, by what it reads, and by partition.
    read: BTreeMap<(usize, usize, String), i64>,
    produced: BTreeMap<usize, i64>,
    /// By reader and what it reads.
    cursors: BTreeMap<(usize, usize), i64>,
    /// Partitions of which a task has said that they have changed.
    cascaded: BTreeSet<(TaskId, String)>,
}

impl Reference {
    /// Everybody who reads this output gets one task for the place as it is now.
    fn happened(&mut self, plan: &DagPlan, from: usize, at: &At) {
        let generation = match at {
            At::Part(key) => self.generations.get(&(from, key.clone())).copied().unwrap_or(0),
            At::Row(row) => {
                let produced = self.produced.entry(from).or_insert(*row);
                *produced = *row.max(produced);
                0
            }
        };
        for (job, reader) in plan.jobs.iter().enumerate().filter(|(_, reader)| reader.reads.contains(&from)) {
            if !reader.per_partition || matches!(at, At::Part(_)) {
                self.tasks.entry(job).or_default().insert(Cause { from, at: at.clone(), generation });
            }
        }
    }

    pub fn invalidated(&mut self, plan: &DagPlan, job: usize, key: &str) {
        *self.generations.entry((job, key.to_owned())).or_default() += 1;
        self.happened(plan, job, &At::Part(key.to_owned()));
    }

    /// A task says what it has written.
    pub fn told(&mut self, plan: &DagPlan, task: TaskId, job: usize, cause: Option<&Cause>, written: &[At]) {
        for at in written {
            // What is written anew from changed data has changed.
            if let At::Part(key) = at
                && plan.jobs[job].replaces
                && cause.is_some_and(|cause| cause.generation > 0)
                && self.cascaded.insert((task, key.clone()))
            {
                self.invalidated(plan, job, key);
            }
            self.happened(plan, job, at);
        }
    }

    pub fn completed(&mut self, plan: &DagPlan, task: TaskId, job: usize, cause: Option<Cause>, written: &[At]) {
        self.told(plan, task, job, cause.as_ref(), written);
        // What was made from older data than the job has read since does not take the place of what is there.
        let is_late = cause.as_ref().is_some_and(|Cause { from, at, generation }| match at {
            At::Part(key) => {
                let read = self.read.entry((job, *from, key.clone())).or_insert(*generation);
                let is_late = *read > *generation;
                *read = (*read).max(*generation);
                is_late
            }
            At::Row(_) => false,
        });
        for at in written {
            if let (At::Part(key), false) = (at, is_late) {
                self.written.insert((job, key.clone()), task);
            }
        }
        if let Some(Cause { from, at: At::Row(row), .. }) = cause {
            let cursor = self.cursors.entry((job, from)).or_insert(row);
            *cursor = row.max(*cursor);
        }
    }

    /// Partitions that somebody has written or said to have changed.
    pub fn partitions(&self) -> Vec<(usize, String)> {
        self.written.keys().chain(self.generations.keys()).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub fn tasks_of(&self, job: usize) -> Vec<Cause> {
        self.tasks.get(&job).into_iter().flatten().cloned().collect()
    }

    pub fn cursors_of(&self, job: usize) -> BTreeMap<usize, i64> {
        self.cursors.iter().filter(|((of, _), _)| *of == job).map(|((_, from), cursor)| (*from, *cursor)).collect()
    }

    pub fn produced_by(&self, job: usize) -> Option<i64> {
        self.produced.get(&job).copied()
    }

    pub fn makers_of(&self, job: usize) -> BTreeMap<String, TaskId> {
        self.written.iter().filter(|((of, _), _)| *of == job).map(|((_, key), task)| (key.clone(), *task)).collect()
    }

    /// How often each partition of an output has changed, and whether it was written.
    pub fn partitions_of(&self, job: usize) -> BTreeMap<String, (i64, bool)> {
        let own = self.partitions().into_iter().filter(|(of, _)| *of == job);
        own.map(|place| {
            (place.1.clone(), (self.generations.get(&place).copied().unwrap_or(0), self.written.contains_key(&place)))
        })
        .collect()
    }
}
