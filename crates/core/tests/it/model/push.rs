//! A queue that pushes: control planes that grant and post, workers that call back, a network and a clock.
//!
//! What was posted once can arrive any number of times, at any worker, at any time, or never. So there is no list of
//! envelopes: any worker may call back for any attempt that was granted, whenever it likes. A control plane that posts may
//! tell what came of it late, or never. The observer knows who was granted, took and told what, and shares no code with
//! the decisions.

use std::sync::Arc;

use stateright::{Checker, Model, Property};
use tenure_core::attempt::{AttemptState, Completion, Failure, Progress, Reason};
use tenure_core::batch::Outcome;
use tenure_core::command::callback::{Call, Callback, Proof};
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::claim::{Claim, Claimer};
use tenure_core::command::push::{PushOutcome, Pushed, TakePush};
use tenure_core::command::{Answer, Command, Reach, expire, promote};
use tenure_core::queue::Push;
use tenure_core::task::{End, Place};

use crate::model::audit::history_is_whole;
use crate::model::mutant::Mutant;
use crate::model::plane::Store;
use crate::model::properties::{
    CANCEL_IS_FINAL, COMPLETION_STANDS, ENDED_STAYS_ENDED, HISTORY_IS_WHOLE, NO_STALE_WRITE, SLOTS_HOLD,
};
use crate::model::system::{Config, TICK_MS, body, credentials, result_text, seed, submitted, task_id, worker_name};

const ONE_WORKER: &str = "an attempt has at most one worker";
const ONE_SENDER: &str = "a push is under way once at a time";
const START_ENDS_PUSHING: &str = "what a worker has started is not pushed again";
const REJECTED_BY_ITS_PUSH: &str = "an attempt is rejected by what came of its own last push only";

/// How long a push may go without an answer before others repeat it, and how long after an accepted one, in ticks.
const UNDER_WAY: u8 = 1;
const START: u8 = 1;
/// How long an attempt may go without a start, in ticks.
const DISPATCH: u8 = 2;

pub fn settings(concurrency: u32) -> Push {
    Push {
        concurrency,
        ack_timeout_ms: i64::from(UNDER_WAY) * TICK_MS - tenure_core::limits::PUSH_SLACK_MS,
        start_timeout_ms: i64::from(START) * TICK_MS,
        dispatch_timeout_ms: i64::from(DISPATCH) * TICK_MS,
        ..Push::to("https://worker.example/d".into())
    }
}

/// The bounds of one model, beside those that both kinds have.
#[derive(Debug, Clone)]
struct Bounds {
    config: Config,
    /// Control planes.
    senders: u8,
    /// Pushes of one attempt.
    pushes: u8,
    told: &'static [Told],
    calls: &'static [Said],
    examples: &'static [Example],
}

type Example = (&'static str, fn(&Pushing, &State) -> bool);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Told {
    Accepted,
    /// Push again at once.
    Again,
    Rejected,
    /// The process stopped before it could tell.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Said {
    Started,
    Alive,
    Succeeded,
    Failed,
}

/// An attempt, in the order of grants. Its place in the list is its name everywhere in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attempt {
    task: u8,
    number: u32,
    worker: Option<u8>,
    pushes: u8,
    /// Nobody may push it before, in ticks.
    under_way_until: u8,
    rejected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Ledger {
    cancel_asked: bool,
    /// The attempt and the worker whose success was accepted.
    completed: Option<(u8, u8)>,
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct State {
    now: u8,
    store: Store,
    /// For each control plane: the attempt that it has posted, and the how manieth push of it that was.
    sending: Vec<Option<(u8, u8)>>,
    attempts: Vec<Attempt>,
    tasks: Vec<Ledger>,
    broken: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    /// A control plane grants an attempt and posts it.
    Deliver(u8),
    /// A control plane repeats a push that is due.
    Take(u8, u8),
    Tell(u8, Told),
    Call {
        attempt: u8,
        worker: u8,
        said: Said,
    },
    Reap(u8),
    Promote(u8),
    Cancel(u8, Mode),
}

#[derive(Debug, Clone, Copy)]
enum Rule {
    OneWorker,
    OneSender,
    StartEndsPushing,
    RejectedByItsPush,
    NoStaleWrite,
    CancelIsFinal,
    EndedStaysEnded,
}

#[derive(Debug, Clone)]
struct Pushing(Bounds);

impl Pushing {
    fn new(mut bounds: Bounds) -> Self {
        let config = &mut bounds.config;
        config.bodies = (0..config.tasks).map(|task| Arc::new(body(config, task))).collect();
        Self(bounds)
    }
}

impl Model for Pushing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = &self.0.config;
        let rows = (0..config.tasks).map(|task| Arc::new(submitted(config, task))).collect();
        vec![State {
            now: 0,
            store: Store { rows, boots: Vec::new(), alive_at: 0, grace_until: 0, gap_ended_at: 0 },
            sending: vec![None; self.0.senders.into()],
            attempts: Vec::new(),
            tasks: vec![Ledger::default(); config.tasks.into()],
            broken: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let Bounds { config, senders, pushes, told, calls, .. } = &self.0;
        if state.now < config.ticks {
            actions.push(Action::Tick);
        }
        for sender in 0..*senders {
            // Control planes are alike: of those that have nothing to do it is enough to look at the first.
            let first = state.sending.iter().position(Option::is_none) == Some(usize::from(sender));
            match state.sending[usize::from(sender)] {
                Some(_) => actions.extend(told.iter().map(|told| Action::Tell(sender, *told))),
                None if first => {
                    actions.push(Action::Deliver(sender));
                    let last = (0..config.tasks).filter_map(|task| state.last_of(task));
                    let open = last.map(|last| state.attempts[usize::from(last)]);
                    let open = open.filter(|attempt| (1..*pushes).contains(&attempt.pushes));
                    actions.extend(open.map(|attempt| Action::Take(sender, attempt.task)));
                }
                None => {}
            }
        }
        for attempt in 0..state.attempts.len() as u8 {
            for worker in 0..config.workers {
                // Workers are alike, too: the first one to be heard of is the first.
                if worker == 0 || state.attempts.iter().any(|attempt| attempt.worker.is_some()) {
                    actions.extend(calls.iter().map(|said| Action::Call { attempt, worker, said: *said }));
                }
            }
        }
        for (task, row) in state.store.rows.iter().enumerate() {
            let task = task as u8;
            match &row.place {
                Place::Running(_) => actions.push(Action::Reap(task)),
                Place::Scheduled(_) => actions.push(Action::Promote(task)),
                Place::Blocked(_) | Place::Ready(_) | Place::Finished(_) => {}
            }
            if !state.tasks[usize::from(task)].cancel_asked && !matches!(row.place, Place::Finished(_)) {
                actions.extend(config.cancel.iter().map(|mode| Action::Cancel(task, *mode)));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let config = &self.0.config;
        let mut state = last.clone();
        let row = |task: u8| task_id(task).seq();
        match action {
            Action::Tick => {
                state.now += 1;
                state.store.alive_at = state.now;
            }
            Action::Deliver(sender) => {
                let claimer = Claimer::delivery(seed(state.attempts.len() as u8));
                let command = Command::Claim(Claim { claimer, queues: vec!["q".into()], max_jobs: 1 });
                let outcome = state.execute(&command, config);
                state.observe_grant(sender, &outcome);
            }
            Action::Take(sender, task) => {
                let outcome = state.execute(&Command::TakePush(TakePush { row: row(task) }), config);
                state.observe_take(sender, &outcome);
            }
            Action::Tell(sender, told) => state.tell(sender, told, config),
            Action::Call { attempt, worker, said } => {
                let outcome = state.execute(&last.command_of(attempt, worker, said), config);
                state.observe_call(attempt, worker, said, &outcome);
            }
            Action::Reap(task) => drop(state.execute(&Command::Expire(expire::Expire { row: row(task) }), config)),
            Action::Promote(task) => {
                drop(state.execute(&Command::Promote(promote::Promote { row: row(task) }), config))
            }
            Action::Cancel(task, mode) => {
                let cancel = Cancel { task: task_id(task), reason: "stop".into(), mode, reach: Reach::All };
                let outcome = state.execute(&Command::Cancel(cancel), config);
                state.tasks[usize::from(task)].cancel_asked |= outcome.is_ok();
            }
        }
        state.observe_rejections();
        state.forget();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(ONE_WORKER, |_, state| state.holds(Rule::OneWorker)),
            Property::<Self>::always(ONE_SENDER, |_, state| state.holds(Rule::OneSender)),
            Property::<Self>::always(START_ENDS_PUSHING, |_, state| state.holds(Rule::StartEndsPushing)),
            Property::<Self>::always(REJECTED_BY_ITS_PUSH, |_, state| state.holds(Rule::RejectedByItsPush)),
            Property::<Self>::always(NO_STALE_WRITE, |_, state| state.holds(Rule::NoStaleWrite)),
            Property::<Self>::always(CANCEL_IS_FINAL, |_, state| state.holds(Rule::CancelIsFinal)),
            Property::<Self>::always(ENDED_STAYS_ENDED, |_, state| state.holds(Rule::EndedStaysEnded)),
            Property::<Self>::always(SLOTS_HOLD, |Pushing(bounds), state| {
                let open = state.store.rows.iter().filter(|row| matches!(row.place, Place::Running(_))).count();
                bounds.config.concurrency.is_none_or(|concurrency| open <= concurrency as usize)
            }),
            Property::<Self>::always(HISTORY_IS_WHOLE, |_, state| {
                state.store.rows.iter().all(|row| history_is_whole(row))
            }),
            Property::<Self>::always(COMPLETION_STANDS, |_, state| {
                let stands = |(place, ledger): (&Place, &Ledger)| match (place, ledger.completed) {
                    (_, None) => true,
                    (Place::Finished(end), Some((attempt, worker))) => {
                        end.end == End::Succeeded && end.result.as_deref() == Some(&*result_text(attempt, worker))
                    }
                    _ => false,
                };
                state.store.rows.iter().map(|row| &row.place).zip(&state.tasks).all(stands)
            }),
        ];
        properties.extend(self.0.examples.iter().map(|(name, seen)| Property::sometimes(name, *seen)));
        properties
    }

    /// A broken system may go on for ever; one that keeps the rules needs no such bound.
    fn within_boundary(&self, state: &State) -> bool {
        self.0.config.mutant == Mutant::None || state.attempts.len() <= 4
    }
}

impl State {
    fn holds(&self, rule: Rule) -> bool {
        self.broken & (1 << rule as u16) == 0
    }

    fn insist(&mut self, rule: Rule, holds: bool) {
        self.broken |= u16::from(!holds) << rule as u16;
    }

    fn execute(&mut self, command: &Command, config: &Config) -> Outcome {
        let outcome = self.store.execute(command, self.now, config);
        self.store.seal(config);
        outcome
    }

    fn last_of(&self, task: u8) -> Option<u8> {
        self.attempts.iter().rposition(|attempt| attempt.task == task).map(|index| index as u8)
    }

    fn granted(outcome: &Outcome) -> Option<&tenure_core::command::claim::Grant> {
        match outcome {
            Ok(Answer::Claimed(claimed)) => claimed.grants.first(),
            _ => None,
        }
    }

    fn observe_grant(&mut self, sender: u8, outcome: &Outcome) {
        let Some(grant) = Self::granted(outcome) else { return };
        let task = self.store.index(grant.seq());
        self.insist(Rule::CancelIsFinal, !self.tasks[task].cancel_asked);
        self.insist(Rule::EndedStaysEnded, self.tasks[task].completed.is_none());
        let under_way_until = self.now + UNDER_WAY;
        let task = task as u8;
        let new = Attempt { task, number: grant.attempt, worker: None, pushes: 1, under_way_until, rejected: false };
        self.attempts.push(new);
        self.sending[usize::from(sender)] = Some((self.attempts.len() as u8 - 1, 1));
    }

    fn observe_take(&mut self, sender: u8, outcome: &Outcome) {
        let Some(grant) = Self::granted(outcome) else { return };
        let attempt = (0..self.attempts.len() as u8).find(|attempt| credentials(*attempt).0 == grant.attempt_id);
        let Some(attempt) = attempt else { return };
        let known = self.attempts[usize::from(attempt)];
        self.insist(Rule::NoStaleWrite, self.last_of(known.task) == Some(attempt));
        self.insist(Rule::OneSender, self.now >= known.under_way_until);
        self.insist(Rule::StartEndsPushing, known.worker.is_none());
        let pushes = known.pushes + 1;
        let under_way_until = self.now + UNDER_WAY;
        self.attempts[usize::from(attempt)] = Attempt { pushes, under_way_until, ..known };
        self.sending[usize::from(sender)] = Some((attempt, pushes));
    }

    fn tell(&mut self, sender: u8, told: Told, config: &Config) {
        let Some((attempt, push)) = self.sending[usize::from(sender)].take() else { return };
        let known = &mut self.attempts[usize::from(attempt)];
        // Only the last push is under way: what comes of one before ends nothing.
        let is_last = known.pushes == push && push > 0;
        let outcome = match told {
            Told::Nothing => return,
            Told::Accepted => PushOutcome::Accepted,
            Told::Again => PushOutcome::Again { after_ms: Some(0) },
            Told::Rejected => PushOutcome::Rejected { message: "404".to_owned() },
        };
        if is_last {
            known.under_way_until = match told {
                Told::Accepted => self.now + START,
                _ => self.now,
            };
            known.rejected |= told == Told::Rejected;
        }
        let (row, attempt_id, delivery) = (task_id(known.task).seq(), credentials(attempt).0, u32::from(push));
        drop(self.execute(&Command::Pushed(Pushed { row, attempt_id, delivery, outcome }), config));
    }

    fn command_of(&self, attempt: u8, worker: u8, said: Said) -> Command {
        let known = self.attempts[usize::from(attempt)];
        let completed = |outcome, output: Option<Arc<str>>, error| {
            let parts = Completion {
                outcome,
                output,
                error,
                phase: None,
                partial_progress: None,
                metrics: None,
                told_completed_at: None,
            };
            Call::completed(parts)
        };
        let call = match said {
            Said::Started => Call::Started { told_at: None },
            Said::Alive => Call::Heartbeat { told_at: None, progress: Progress::default(), checkpoint: None },
            Said::Succeeded => completed(AttemptState::Succeeded, Some(result_text(attempt, worker).into()), None),
            Said::Failed => {
                completed(AttemptState::Failed, None, Some(Failure::new("BUSY", &worker.to_string(), None, None)))
            }
        };
        Command::Callback(Callback {
            task: task_id(known.task),
            tenant: "acme".into(),
            workspace: "default".into(),
            proof: Proof { attempt: known.number, attempt_id: credentials(attempt).0 },
            attempt: known.number,
            attempt_id: None,
            worker: worker_name(worker),
            call,
        })
    }

    fn observe_call(&mut self, attempt: u8, worker: u8, said: Said, outcome: &Outcome) {
        if outcome.is_err() {
            return;
        }
        let known = self.attempts[usize::from(attempt)];
        self.insist(Rule::OneWorker, known.worker.is_none_or(|had| had == worker));
        // The answer to an end that was told before is given again, whatever has followed since.
        let repeats = matches!(said, Said::Succeeded | Said::Failed) && known.worker == Some(worker);
        self.insist(Rule::NoStaleWrite, repeats || self.last_of(known.task) == Some(attempt));
        self.attempts[usize::from(attempt)].worker.get_or_insert(worker);
        if said == Said::Succeeded {
            self.tasks[usize::from(known.task)].completed.get_or_insert((attempt, worker));
        }
    }

    /// Makes the same in all states what makes no difference any more: how an attempt was pushed that is over, and which of
    /// the control planes, which are alike, posts what.
    fn forget(&mut self) {
        for index in 0..self.attempts.len() {
            let attempt = self.attempts[index];
            let row = &self.store.rows[usize::from(attempt.task)];
            let is_open = matches!(&row.place, Place::Running(held) if held.attempt_id == credentials(index as u8).0);
            if !is_open {
                (self.attempts[index].pushes, self.attempts[index].under_way_until) = (0, 0);
                let stale = self.sending.iter_mut().flatten().filter(|(sent, _)| usize::from(*sent) == index);
                stale.for_each(|(_, push)| *push = 0);
            }
        }
        self.sending.sort_unstable();
    }

    fn observe_rejections(&mut self) {
        for attempt in 0..self.attempts.len() as u8 {
            let known = self.attempts[usize::from(attempt)];
            let row = Arc::clone(&self.store.rows[usize::from(known.task)]);
            let rejected = row.records(credentials(attempt).0).any(|ended| ended.reason == Reason::DispatchRejected);
            self.insist(Rule::RejectedByItsPush, !rejected || known.rejected);
        }
    }
}

const ALL_TOLD: &[Told] = &[Told::Accepted, Told::Again, Told::Rejected, Told::Nothing];
const ALL_SAID: &[Said] = &[Said::Started, Said::Alive, Said::Succeeded, Said::Failed];

/// Two control planes, two workers, one task and one attempt at it.
fn small() -> Bounds {
    let config = Config { ticks: 3, max_attempts: 1, concurrency: Some(1), ..crate::model::small() };
    Bounds { config, senders: 2, pushes: 3, told: ALL_TOLD, calls: ALL_SAID, examples: &[] }
}

/// A second attempt, as soon as the first one has failed.
fn again(ticks: u8) -> Bounds {
    let config = Config { ticks, max_attempts: 2, backoff: 0, ..small().config };
    Bounds { config, pushes: 2, ..small() }
}

/// Two tasks, and room for one.
fn one_slot() -> Bounds {
    let config = Config { tasks: 2, ticks: 1, ..small().config };
    Bounds {
        config,
        pushes: 2,
        told: &[Told::Again, Told::Nothing],
        calls: &[Said::Started, Said::Succeeded],
        ..small()
    }
}

/// Whether some ended attempt has this reason.
fn ended_by(state: &State, reason: Reason) -> bool {
    let rows = state.store.rows.iter();
    rows.flat_map(|row| row.history.iter().chain(row.place.last_attempt())).any(|ended| ended.reason == reason)
}

const REPEATED: Example = ("a worker has an attempt that was pushed again", |_, state| {
    state.attempts.iter().any(|attempt| attempt.worker.is_some() && attempt.pushes > 1)
});
const TWO_SENDING: Example = ("two control planes post the same attempt", |_, state| {
    let sent: Vec<u8> = state.sending.iter().flatten().map(|(attempt, _)| *attempt).collect();
    sent.iter().enumerate().any(|(index, attempt)| sent[..index].contains(attempt))
});
const SECOND_ATTEMPT: Example = ("a second attempt is completed by another worker", |_, state| {
    let first = state.attempts.first().and_then(|first| first.worker);
    first.is_some_and(|first| state.tasks[0].completed.is_some_and(|(attempt, worker)| attempt > 0 && worker != first))
});
const NOT_ACCEPTED: Example = ("nobody accepts an attempt in time", |_, state| ended_by(state, Reason::DispatchFailed));
const NOT_STARTED: Example =
    ("nobody starts an accepted attempt in time", |_, state| ended_by(state, Reason::StartTimeout));
const SILENT: Example = ("a worker falls silent", |_, state| ended_by(state, Reason::HeartbeatTimeout));
const REJECTED: Example = ("a worker rejects an attempt", |_, state| ended_by(state, Reason::DispatchRejected));
const STOPPED: Example = ("a worker does not stop in time", |_, state| ended_by(state, Reason::CancelTimeout));
const REVOKED: Example = ("an attempt is taken away", |_, state| ended_by(state, Reason::Revoked));
const ALL_DONE: Example = ("all tasks succeed", |_, state| state.tasks.iter().all(|ledger| ledger.completed.is_some()));

/// Visits every state, finds every rule kept and every example, and more states than `at_least`.
#[expect(clippy::print_stdout, reason = "the size of a model is of interest to whoever changes it")]
fn check(bounds: Bounds, at_least: usize) {
    let checker = Pushing::new(bounds).checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps, depth {}", checker.state_count(), checker.max_depth());
    checker.assert_properties();
    assert!(checker.is_done());
    assert!(states >= at_least, "{states} states: the model has become trivial");
}

/// Visits every state of a broken system and finds that these rules are broken, and no others.
fn breaks(mutant: Mutant, mut bounds: Bounds, rules: &[&'static str]) {
    bounds.config.mutant = mutant;
    let checker = Pushing::new(bounds).checker().spawn_bfs().join();
    let broken: std::collections::BTreeSet<_> = checker.discoveries().into_keys().collect();
    assert_eq!(broken, rules.iter().copied().collect(), "in {} states", checker.unique_state_count());
}

#[test]
fn pushes_that_are_lost_repeated_and_answered_late() {
    let examples = &[REPEATED, TWO_SENDING, NOT_ACCEPTED, NOT_STARTED, SILENT, REJECTED, ALL_DONE];
    check(Bounds { examples, ..small() }, 700);
}

#[test]
fn pushes_of_two_attempts() {
    let examples = &[REPEATED, TWO_SENDING, REJECTED, SECOND_ATTEMPT];
    check(Bounds { examples, ..again(1) }, 3_000);
}

#[test]
fn pushes_of_two_tasks_in_one_slot() {
    let examples = &[ALL_DONE, REPEATED, TWO_SENDING];
    check(Bounds { examples, ..one_slot() }, 100);
}

#[test]
fn pushes_that_are_canceled() {
    let examples = &[STOPPED, REVOKED, REPEATED, REJECTED];
    let config = Config { cancel: &[Mode::Cooperative, Mode::Immediate], ..small().config };
    check(Bounds { config, examples, pushes: 2, ..small() }, 700);
}

/// More of all: for an optimised build.
#[cfg(feature = "wide-model")]
#[test]
fn wide_pushes_of_two_attempts_by_three_control_planes() {
    let examples = &[REPEATED, TWO_SENDING, NOT_ACCEPTED, NOT_STARTED, SILENT, REJECTED, SECOND_ATTEMPT];
    check(Bounds { examples, senders: 3, pushes: 3, ..again(3) }, 25_000);
}

#[cfg(feature = "wide-model")]
#[test]
fn wide_pushes_of_two_tasks_that_are_canceled() {
    let examples = &[ALL_DONE, REPEATED, NOT_ACCEPTED, NOT_STARTED, REVOKED];
    let config = Config { ticks: 2, cancel: &[Mode::Cooperative, Mode::Immediate], ..one_slot().config };
    check(Bounds { config, examples, told: ALL_TOLD, ..one_slot() }, 25_000);
}

#[test]
fn a_push_that_is_repeated_before_its_time_is_found() {
    breaks(Mutant::PushNotDue, small(), &[ONE_SENDER]);
}

#[test]
fn what_came_of_an_earlier_push_that_counts_is_found() {
    breaks(Mutant::DeliveryIgnored, small(), &[ONE_SENDER, REJECTED_BY_ITS_PUSH]);
}

#[test]
fn what_came_of_the_push_of_another_attempt_that_counts_is_found() {
    breaks(Mutant::PushOfAnyAttempt, again(0), &[ONE_SENDER, REJECTED_BY_ITS_PUSH]);
}

#[test]
fn a_start_that_is_forgotten_is_found() {
    breaks(Mutant::StartForgotten, small(), &[ONE_WORKER]);
}

#[test]
fn a_start_that_does_not_end_the_pushing_is_found() {
    breaks(Mutant::StartKeepsPushing, small(), &[ONE_SENDER, START_ENDS_PUSHING]);
}

#[test]
fn a_callback_whose_attempt_is_not_compared_is_found() {
    breaks(Mutant::TokenIgnored, again(0), &[NO_STALE_WRITE, ONE_WORKER]);
}

#[test]
fn a_push_beyond_the_slots_is_found() {
    breaks(Mutant::SlotsForgotten, one_slot(), &[SLOTS_HOLD]);
}

#[test]
fn a_success_of_a_callback_that_is_written_as_a_failure_is_found() {
    breaks(Mutant::EndMiswritten, small(), &[COMPLETION_STANDS]);
}

#[test]
fn a_cancel_of_a_pushed_task_that_is_forgotten_is_found() {
    let config = Config { cancel: &[Mode::Cooperative], ..again(1).config };
    breaks(Mutant::CancelForgotten, Bounds { config, told: &[Told::Nothing], ..again(1) }, &[CANCEL_IS_FINAL]);
}
