//! Random graphs and random ends in random order, against a reference that knows nothing of rows, edges and batches.

use proptest::prelude::*;
use tenure_core::command::Command;
use tenure_core::command::cancel::Mode;
use tenure_core::run::RunState;
use tenure_core::task::State;

use crate::runs::plane::{Plane, cancel, cancel_run, complete, fail, member};

#[derive(Debug, Clone, Copy)]
enum Step {
    Complete(usize),
    Fail(usize),
    /// The worker says that it stopped.
    Stop(usize),
    Cancel(usize),
    CancelRun,
}

/// The whole rule, as one would say it.
struct Reference {
    depends_on: Vec<Vec<usize>>,
    states: Vec<State>,
}

impl Reference {
    fn is_open(&self, task: usize) -> bool {
        matches!(self.states[task], State::Blocked | State::Ready | State::Running)
    }

    /// What each step does to the task that it names; then, in the same order, what that leads to.
    fn apply(&mut self, batch: &[Step]) {
        let mut ended = Vec::new();
        for step in batch {
            let (tasks, end) = match *step {
                Step::Complete(task) => (vec![task], State::Succeeded),
                Step::Fail(task) => (vec![task], State::Failed),
                Step::Stop(task) | Step::Cancel(task) => (vec![task], State::Canceled),
                Step::CancelRun => ((0..self.states.len()).collect(), State::Canceled),
            };
            let reported = matches!(step, Step::Complete(_) | Step::Fail(_) | Step::Stop(_));
            for task in tasks {
                if self.is_open(task) && (!reported || self.states[task] == State::Running) {
                    self.states[task] = end;
                    ended.push(task);
                }
            }
        }
        let mut next = 0;
        while let Some(task) = ended.get(next).copied() {
            next += 1;
            let behind: Vec<usize> =
                (0..self.states.len()).filter(|other| self.depends_on[*other].contains(&task)).collect();
            for other in behind {
                if self.states[other] != State::Blocked {
                    continue;
                }
                let after = match self.states[task] {
                    State::Canceled => State::Canceled,
                    State::Failed | State::Skipped => State::Skipped,
                    _ if self.depends_on[other].iter().all(|one| self.states[*one] == State::Succeeded) => State::Ready,
                    _ => continue,
                };
                self.states[other] = after;
                if after != State::Ready {
                    ended.push(other);
                }
            }
        }
    }

    fn run_state(&self, asked: bool) -> RunState {
        let any = |state| self.states.contains(&state);
        if (0..self.states.len()).any(|task| self.is_open(task)) {
            if asked { RunState::Canceling } else { RunState::Running }
        } else if any(State::Canceled) {
            RunState::Canceled
        } else if any(State::Failed) {
            RunState::Failed
        } else {
            RunState::Succeeded
        }
    }
}

/// Each task depends on some of those before it.
fn graph() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(any::<bool>(), 12), 1..12).prop_map(|rows| {
        let picks = rows.iter().enumerate();
        picks.map(|(task, row)| (0..task).filter(|other| row[*other]).collect()).collect()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let task = 0..12_usize;
    prop_oneof![
        12 => task.clone().prop_map(Step::Complete),
        2 => task.clone().prop_map(Step::Fail),
        1 => task.clone().prop_map(Step::Stop),
        1 => task.prop_map(Step::Cancel),
        1 => Just(Step::CancelRun),
    ]
}

fn command(step: Step) -> Command {
    match step {
        Step::Complete(task) => complete(task, "1"),
        Step::Fail(task) => fail(task, "X"),
        Step::Stop(task) => fail(task, "CANCELLED"),
        Step::Cancel(task) => cancel(task),
        Step::CancelRun => cancel_run(Mode::Immediate),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_ends_in_whatever_order_a_run_is_where_the_rule_says(
        graph in graph(),
        batches in prop::collection::vec(prop::collection::vec(step(), 1..5), 1..25),
    ) {
        let tasks = graph.iter().enumerate().map(|(task, depends_on)| member(task, depends_on)).collect();
        let mut plane = Plane::with(tasks);
        let states = graph.iter().map(|one| if one.is_empty() { State::Ready } else { State::Blocked }).collect();
        let mut reference = Reference { depends_on: graph.clone(), states };
        let mut asked = false;
        for batch in batches {
            plane.claim_all(1);
            for state in reference.states.iter_mut().filter(|state| **state == State::Ready) {
                *state = State::Running;
            }
            let batch: Vec<Step> = batch.into_iter().map(|step| match step {
                Step::Complete(task) => Step::Complete(task % graph.len()),
                Step::Fail(task) => Step::Fail(task % graph.len()),
                Step::Stop(task) => Step::Stop(task % graph.len()),
                Step::Cancel(task) => Step::Cancel(task % graph.len()),
                Step::CancelRun => Step::CancelRun,
            }).collect();
            let open = !plane.run_state().is_terminal();
            asked |= open && batch.iter().any(|step| matches!(step, Step::CancelRun));
            let commands: Vec<Command> = batch.iter().copied().map(command).collect();
            plane.execute(&commands, 2);
            reference.apply(&batch);
            prop_assert_eq!(plane.states(), &reference.states[..], "{:?}", batch);
            prop_assert_eq!(plane.run_state(), reference.run_state(asked));
            plane.check();
            // Whatever is sent again is answered, and changes nothing.
            let before = (plane.states(), plane.run().clone(), plane.edges.clone());
            let repeats = commands.into_iter().filter(|command| !matches!(command, Command::CancelRun(_)));
            plane.execute(&repeats.collect::<Vec<_>>(), 3);
            prop_assert_eq!((plane.states(), plane.run().clone(), plane.edges.clone()), before);
        }
    }

    #[test]
    fn successes_reach_the_same_end_in_every_order(graph in graph(), order in prop::collection::vec(any::<u32>(), 12)) {
        let tasks = graph.iter().enumerate().map(|(task, depends_on)| member(task, depends_on)).collect();
        let mut plane = Plane::with(tasks);
        while plane.run_state() == RunState::Running {
            plane.claim_all(1);
            let running = (0..graph.len()).filter(|task| plane.state(*task) == State::Running);
            let next = running.min_by_key(|task| order[*task]).expect("something runs as long as the run does");
            plane.execute(&[complete(next, "1"), complete(next, "1")], 2);
            plane.check();
        }
        prop_assert_eq!(plane.run_state(), RunState::Succeeded);
        prop_assert!(plane.edges.is_empty());
    }
}
