//! What must hold, as the checker asks for it. It looks at rows and at what happened, and shares no code with routing.

use std::collections::{BTreeMap, BTreeSet};

use stateright::Property;
use tenure_core::dag::deployment::VersionState;
use tenure_core::dag::route::Unrouted;

use super::plane::{DAG, Rows, TaskState};
use super::system::{State, System};

type Condition = fn(&System, &State) -> bool;
pub type Example = (&'static str, Condition);

pub const ONE_TASK: &str = "a job has one task for a position and its generation";
pub const COUNTED_ONCE: &str = "the same invalidation counts once";
pub const COMPLETE: &str = "when all is quiet, the active version has read everything as it stands";
pub const CASCADES: &str = "what is made again changes what is made from it";
pub const FORWARD: &str = "no cursor moves back";
pub const NEWEST: &str = "a partition is made from the newest generation that its job has read";
pub const OLD_STAYS: &str = "events of old versions are stored and make no task";
pub const HELD: &str = "tasks of a version that is not active wait, but for its rebuild";
pub const DRAINED: &str = "when all is quiet, no task of the active version waits";
pub const REBUILT: &str = "a version becomes active with everything that was there when it was deployed";
pub const GONE: &str = "after a rollback no task of the version is left";

pub fn all(examples: &[Example]) -> Vec<Property<System>> {
    let mut properties = vec![
        always(ONE_TASK, |_, state| one_task(&state.inner.rows)),
        always(COUNTED_ONCE, |_, state| {
            let (_, version) = state.inner.rows.imported();
            let of_import = state.inner.rows.invalidations.values().filter(|row| row.new.version == version);
            of_import.map(|row| row.generation).max().unwrap_or(0) <= i64::from(state.inner.asked)
        }),
        always(COMPLETE, |system, state| complete(&state.inner.rows) || !system.is_quiet(state)),
        always(CASCADES, |_, state| cascades(&state.inner.rows)),
        always(FORWARD, |_, state| !state.inner.audit.back),
        always(NEWEST, |_, state| newest(&state.inner.rows)),
        always(OLD_STAYS, |system, state| old_stays(state) || !system.is_settled(state)),
        always(HELD, |_, state| !state.inner.audit.early),
        always(DRAINED, |system, state| {
            let rows = &state.inner.rows;
            let active = rows.doc.active();
            !rows.tasks.iter().any(|((job, _), task)| active.contains(job) && task.waits()) || !system.is_quiet(state)
        }),
        always(REBUILT, |_, state| !state.inner.audit.unready),
        // What a crash leaves is canceled by the reconciler.
        always(GONE, |system, state| gone(&state.inner.rows) || !system.0.reconciles || !system.is_settled(state)),
    ];
    properties.extend(examples.iter().map(|(name, condition)| Property::sometimes(name, *condition)));
    properties
}

fn always(name: &'static str, condition: Condition) -> Property<System> {
    Property::always(name, condition)
}

fn one_task(rows: &Rows) -> bool {
    let mut seen = BTreeSet::new();
    let caused = rows.tasks.iter().filter_map(|((job, _), task)| Some((job, task.cause()?)));
    caused.into_iter().all(|(job, at)| seen.insert((job, at.version, &at.position, at.generation)))
}

/// Every job of the active version has succeeded with everything that there is to read, at its present generation.
fn complete(rows: &Rows) -> bool {
    let done = |job, version, has: &dyn Fn(&tenure_core::dag::task::InputAt) -> bool| {
        let mut of_job = rows.tasks.iter().filter(|((id, _), task)| *id == job && task.state == TaskState::Done);
        of_job.any(|(_, task)| task.cause().is_some_and(|at| at.version == version && has(at)))
    };
    rows.doc.active().into_iter().all(|job| {
        rows.doc.deployment.jobs[&job].inputs.iter().filter_map(|input| rows.doc.deployment.reads(input)).all(
            |version| {
                let mut partitions =
                    rows.partitions.iter().filter(|((of, _), row)| *of == version && row.made_from.is_some());
                let (generation, produced) = rows.versions[&version];
                let read = produced.is_none_or(|produced| {
                    rows.read_cursors.get(&(job, version)) == Some(&produced)
                        && (generation == 0 || done(job, version, &|at| at.generation >= generation))
                });
                read && partitions.all(|((_, key), row)| {
                    done(job, version, &|at| {
                        let partition = at.position.as_ref().and_then(|position| position.partition());
                        partition.is_some_and(|partition| partition.key == *key) && at.generation >= row.generation
                    })
                })
            },
        )
    })
}

/// A partition that a job has made n times has changed n - 1 times at least.
fn cascades(rows: &Rows) -> bool {
    let mut made: BTreeMap<_, i64> = BTreeMap::new();
    for ((job, _), task) in rows.tasks.iter().filter(|(_, task)| task.state == TaskState::Done) {
        let partition = task.cause().and_then(|at| at.position.as_ref()).and_then(|at| at.partition());
        if let Some((output, partition)) = rows.doc.deployment.jobs[job].outputs.first().zip(partition) {
            *made.entry((output.version, partition.key.clone())).or_default() += 1;
        }
    }
    made.into_iter()
        .all(|(partition, times)| rows.partitions.get(&partition).is_some_and(|row| times <= 1 + row.generation))
}

fn newest(rows: &Rows) -> bool {
    rows.tasks.iter().filter(|(_, task)| task.state == TaskState::Done).all(|((job, _), task)| {
        let Some(at) = task.cause() else { return true };
        let Some(partition) = at.position.as_ref().and_then(|position| position.partition()) else { return true };
        rows.doc.deployment.jobs[job].outputs.iter().all(|output| {
            let row = rows.partitions.get(&(output.version, partition.key.clone()));
            row.and_then(|row| row.made_from) >= Some(at.generation)
        })
    })
}

fn old_stays(state: &State) -> bool {
    let rows = &state.inner.rows;
    state.inner.audit.old.iter().all(|key| {
        let (_, version, position, generation) = key;
        // One that was made by what had been deployed before is canceled.
        let made = rows.tasks.values().filter(|task| task.state != TaskState::Canceled).filter_map(|task| task.cause());
        let mut made = made.filter(|at| (at.version, at.generation) == (*version, *generation));
        rows.events.get(key) == Some(&Some(Some(Unrouted::OldVersion)))
            && !made.any(|at| at.position.as_ref() == Some(position))
    })
}

fn gone(rows: &Rows) -> bool {
    let live = rows.doc.deployment.live_jobs();
    let rolled_back = rows.doc.deployment.rolled_back_jobs();
    rows.tasks
        .iter()
        .filter(|((job, _), _)| !live.contains(job))
        .all(|((job, _), task)| !(task.waits() || rolled_back.contains(job) && task.state == TaskState::Running))
}

pub const RAN_AGAIN: Example = ("changed data runs through the whole DAG again", |system, state| {
    let rows = &state.inner.rows;
    let again =
        |task: &super::plane::Task| task.state == TaskState::Done && task.cause().is_some_and(|at| at.generation > 0);
    let jobs: BTreeSet<_> = rows.tasks.iter().filter(|(_, task)| again(task)).map(|((job, _), _)| job).collect();
    jobs.len() == 2 && system.is_quiet(state)
});

pub const OVERTAKEN: Example = ("a task ends after one of a later generation", |_, state| {
    let rows = &state.inner.rows;
    rows.partitions.values().any(|row| row.made_from == Some(1)) && {
        let done = rows.tasks.iter().filter(|(_, task)| task.state == TaskState::Running);
        done.into_iter().any(|((job, _), task)| {
            let first = task.cause().is_some_and(|at| at.generation == 0);
            let later = rows.tasks.iter().any(|((other, _), it)| {
                other == job && it.state == TaskState::Done && it.cause().is_some_and(|at| at.generation == 1)
            });
            first && later
        })
    }
});

pub const TOOK_OVER: Example = ("a second version is rebuilt, takes over and is complete", |system, state| {
    let version = state.inner.rows.doc.deployment.version(DAG, 2);
    version.is_some_and(|version| version.state == VersionState::Active && version.rebuilt > 0)
        && system.is_quiet(state)
        && complete(&state.inner.rows)
});

pub const RETURNED: Example = ("a version is active again and is complete", |system, state| {
    state.inner.audit.returned && system.is_quiet(state) && complete(&state.inner.rows)
});

pub const OLD_EVENT: Example = ("an event of an old version is not routed", |system, state| {
    let rows = &state.inner.rows;
    system.is_settled(state) && rows.events.values().any(|looked_at| *looked_at == Some(Some(Unrouted::OldVersion)))
});

pub const LATE: Example = ("the late report of a lost holder counts", |_, state| state.inner.audit.late);
