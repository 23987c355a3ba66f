//! The rules of leased work, checked in every reachable state of small systems.
//!
//! The model drives the real decisions through `batch::Session`; see [`system`] for what can go wrong around them and
//! [`audit`] for what must not follow. Every bound is part of the model, so that a run ends because there is no further
//! state; no run has a time limit. [`push`] is the same for queues that push. Every rule has a [`Mutant`] that breaks it,
//! to show that the checker would notice.
//!
//! The tests behind the feature `wide-model` visit many more states and want an optimised build:
//! `cargo test --release -p tenure-core --features wide-model --test it wide`.

mod audit;
mod mutant;
mod plane;
mod properties;
mod push;
mod system;

use std::collections::BTreeSet;

use stateright::{Checker, Model};
use tenure_core::command::cancel::Mode;

use crate::model::mutant::Mutant;
use crate::model::properties::*;
use crate::model::system::{Config, Failing, System, TTL};

/// Two workers and one task; nothing goes wrong but the network and the clock.
fn small() -> Config {
    Config {
        workers: 2,
        tasks: 1,
        ticks: 5,
        max_attempts: 2,
        backoff: 1,
        timeout: u8::MAX,
        claims: 1,
        named: false,
        heartbeats: true,
        contradicts: false,
        failing: &[],
        forgery: false,
        crashes: 0,
        hello: false,
        releases: 0,
        cancel: &[],
        outages: 0,
        longest_lease: TTL,
        max_running: None,
        concurrency: None,
        examples: &[],
        mutant: Mutant::None,
        bodies: Vec::new(),
    }
}

const ANY_FAILURE: &[Failing] = &[Failing::Retryable, Failing::Fatal];
const STOPPING: &[Failing] = &[Failing::Retryable, Failing::Canceled];

/// Visits every state, finds every rule kept and every example, and more states than `at_least`.
#[expect(clippy::print_stdout, reason = "the size of a model is of interest to whoever changes it")]
fn check(config: Config, at_least: usize) {
    let checker = System::new(config).checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps, depth {}", checker.state_count(), checker.max_depth());
    // The checker ends early only when it has found something for every property. It finds nothing for a rule that is
    // kept, and it was given no other limit: so it has seen every state.
    checker.assert_properties();
    assert!(checker.is_done());
    assert!(states >= at_least, "{states} states: the model has become trivial");
}

/// Visits every state of a broken system and finds that these rules are broken, and no others.
fn breaks(mutant: Mutant, config: Config, rules: &[&'static str]) {
    let checker = System::new(Config { mutant, ..config }).checker().spawn_bfs().join();
    let broken: BTreeSet<_> = checker.discoveries().into_keys().collect();
    assert_eq!(broken, rules.iter().copied().collect(), "in {} states", checker.unique_state_count());
}

#[test]
fn over_a_network_that_loses_repeats_and_reorders() {
    let examples = &[LATE_ACCEPTED, OFF_THE_DEAD_LETTERS, STALE_REFUSED, DEAD, ALL_DONE];
    check(Config { claims: 2, failing: ANY_FAILURE, forgery: true, examples, ..small() }, 15_000);
}

#[test]
fn with_workers_that_contradict_themselves() {
    let examples = &[CONTRADICTION_KEPT, LATE_ACCEPTED, STALE_REFUSED, DEAD];
    check(Config { contradicts: true, failing: ANY_FAILURE, examples, ..small() }, 6_000);
}

#[test]
fn with_workers_that_crash_and_start_again() {
    let examples = &[SUCCEEDS_AFTER_CRASH, LATE_ACCEPTED, STALE_REFUSED];
    check(Config { crashes: 1, claims: 2, ticks: 4, examples, ..small() }, 10_000);
}

#[test]
fn with_processes_that_take_over_the_name_of_another() {
    let examples = &[SUCCEEDS_AFTER_CRASH, VOIDED, STALE_REFUSED];
    check(Config { crashes: 1, claims: 2, hello: true, ticks: 2, heartbeats: false, examples, ..small() }, 6_000);
}

#[test]
fn with_grants_that_reach_nobody() {
    let examples = &[SUCCEEDS_AFTER_CRASH, RELEASED, LATE_ACCEPTED];
    check(Config { crashes: 1, claims: 2, releases: 1, ticks: 3, heartbeats: false, examples, ..small() }, 15_000);
}

#[test]
fn with_three_workers_that_crash_and_fail() {
    let examples = &[SUCCEEDS_AFTER_CRASH, LATE_ACCEPTED, OFF_THE_DEAD_LETTERS, STALE_REFUSED, DEAD];
    check(Config { workers: 3, crashes: 1, failing: ANY_FAILURE, examples, ..small() }, 20_000);
}

#[test]
fn with_three_workers_and_three_attempts_without_back_off() {
    let examples = &[LATE_ACCEPTED, STALE_REFUSED, DEAD];
    let failing = &[Failing::Retryable];
    check(Config { workers: 3, failing, max_attempts: 3, backoff: 0, ticks: 4, examples, ..small() }, 6_000);
}

#[test]
fn with_two_tasks_and_one_slot() {
    let examples = &[ALL_DONE, LATE_ACCEPTED, STALE_REFUSED];
    let slots = Config { tasks: 2, max_running: Some(1), heartbeats: false, ..small() };
    check(Config { claims: 2, ticks: 3, backoff: 0, examples, ..slots }, 7_000);
}

#[test]
fn with_three_workers_two_tasks_and_two_slots() {
    let examples = &[ALL_DONE, LATE_ACCEPTED, STALE_REFUSED];
    let slots = Config { workers: 3, tasks: 2, max_running: Some(2), heartbeats: false, ..small() };
    check(Config { ticks: 3, backoff: 0, examples, ..slots }, 15_000);
}

#[test]
fn with_a_cancel_that_asks() {
    let examples = &[STOPPED, NOT_STOPPED, SUCCEEDS_THOUGH_ASKED, STALE_REFUSED];
    check(Config { cancel: &[Mode::Cooperative], failing: STOPPING, examples, ..small() }, 3_500);
}

#[test]
fn with_a_cancel_that_takes_away() {
    let examples = &[REVOKED_REFUSED, STALE_REFUSED, STOPPED];
    let cancel = &[Mode::Cooperative, Mode::Immediate];
    check(Config { cancel, failing: STOPPING, examples, ..small() }, 4_000);
}

#[test]
fn through_an_outage_of_the_control_plane() {
    let examples = &[SPARED, LATE_ACCEPTED, STALE_REFUSED, ALL_DONE];
    check(Config { outages: 1, ticks: 6, examples, ..small() }, 8_000);
}

/// Other queues have longer leases, so the grace is longer than a lease.
#[test]
fn through_an_outage_with_leases_from_before_and_after() {
    let examples = &[SPARED, NOT_SPARED, LATE_ACCEPTED, STALE_REFUSED, ALL_DONE];
    check(Config { outages: 1, longest_lease: 2 * TTL, ticks: 6, examples, ..small() }, 8_000);
}

#[test]
fn through_two_outages() {
    let examples = &[SPARED, NOT_SPARED, ALL_DONE];
    check(Config { outages: 2, longest_lease: 2 * TTL, ticks: 6, examples, ..small() }, 8_000);
}

#[test]
fn through_an_outage_with_crashes_and_cancels() {
    let examples = &[SPARED, NOT_STOPPED, REVOKED_REFUSED];
    let cancel = &[Mode::Cooperative, Mode::Immediate];
    check(Config { outages: 1, crashes: 1, cancel, ticks: 3, backoff: 0, examples, ..small() }, 20_000);
}

#[test]
fn with_claims_that_name_their_task() {
    let examples = &[LATE_ACCEPTED, STALE_REFUSED, DEAD];
    let failing = &[Failing::Retryable];
    check(Config { named: true, backoff: 0, failing, claims: 2, ticks: 4, examples, ..small() }, 8_000);
}

#[test]
fn with_attempts_that_run_too_long() {
    let examples = &[TIMED_OUT, LATE_ACCEPTED, OFF_THE_DEAD_LETTERS, STALE_REFUSED];
    check(Config { timeout: 3, backoff: 0, ticks: 6, failing: ANY_FAILURE, examples, ..small() }, 3_500);
}

/// All at once, and for longer: hundreds of thousands of states, for an optimised build.
#[cfg(feature = "wide-model")]
#[test]
fn wide_through_outages_crashes_and_cancels() {
    let examples = &[SPARED, SUCCEEDS_AFTER_CRASH, NOT_STOPPED, REVOKED_REFUSED, OFF_THE_DEAD_LETTERS];
    let cancel = &[Mode::Cooperative, Mode::Immediate];
    check(Config { outages: 1, crashes: 1, cancel, ticks: 6, backoff: 0, examples, ..small() }, 180_000);
}

#[cfg(feature = "wide-model")]
#[test]
fn wide_with_processes_that_take_over_the_name_of_another() {
    let examples = &[SUCCEEDS_AFTER_CRASH, VOIDED, RELEASED, STALE_REFUSED];
    let crashing = Config { crashes: 1, claims: 2, hello: true, releases: 1, ..small() };
    check(Config { ticks: 3, examples, ..crashing }, 120_000);
}

#[cfg(feature = "wide-model")]
#[test]
fn wide_with_three_workers_two_tasks_and_one_slot() {
    let examples = &[ALL_DONE, LATE_ACCEPTED, STALE_REFUSED, DEAD];
    let slots = Config { workers: 3, tasks: 2, max_running: Some(1), ..small() };
    check(Config { backoff: 0, failing: ANY_FAILURE, examples, ..slots }, 120_000);
}

#[test]
fn a_lease_that_is_reaped_too_early_is_found() {
    breaks(Mutant::EagerReaper, Config { backoff: 0, ..small() }, &[ONE_LEASE]);
}

#[test]
fn a_grant_that_closes_nothing_is_found() {
    breaks(Mutant::GrantWithoutClosing, Config { ticks: 2, ..small() }, &[ONE_LEASE, HISTORY_IS_WHOLE]);
}

#[test]
fn a_fence_that_starts_again_is_found() {
    breaks(Mutant::FenceReset, small(), &[FENCE_GROWS]);
}

#[test]
fn a_completion_that_is_not_compared_is_found() {
    breaks(Mutant::CompletionNotCompared, Config { contradicts: true, ..small() }, &[ONE_COMPLETION]);
}

#[test]
fn a_receipt_that_is_written_over_is_found() {
    let broken = &[ONE_COMPLETION, COMPLETION_STANDS];
    breaks(Mutant::ReceiptRewritten, Config { contradicts: true, ..small() }, broken);
}

#[test]
fn a_receipt_that_is_forgotten_is_found() {
    breaks(Mutant::ReceiptForgotten, Config { failing: ANY_FAILURE, ..small() }, &[SAME_ANSWER]);
}

#[test]
fn a_token_that_is_not_compared_is_found() {
    breaks(Mutant::TokenIgnored, small(), &[NO_STALE_WRITE]);
}

#[test]
fn a_forged_token_that_is_not_compared_is_found() {
    breaks(Mutant::TokenIgnored, Config { heartbeats: false, forgery: true, ticks: 2, ..small() }, &[NO_STALE_WRITE]);
}

#[test]
fn a_failure_that_is_not_final_is_found() {
    breaks(Mutant::FailureNotFinal, Config { failing: &[Failing::Fatal], ..small() }, &[ENDED_STAYS_ENDED]);
}

#[test]
fn an_outage_that_is_not_noticed_is_found() {
    breaks(Mutant::NoGrace, Config { outages: 1, ..small() }, &[GRACE_HOLDS]);
}

#[test]
fn a_grace_for_leases_from_after_the_outage_is_found() {
    let outage = Config { outages: 1, longest_lease: 2 * TTL, ..small() };
    breaks(Mutant::GraceForAll, outage, &[OWN_TIME, EXPIRED_STAYS_EXPIRED]);
}

#[test]
fn an_outage_whose_end_is_forgotten_is_found() {
    breaks(Mutant::GapEndForgotten, Config { outages: 1, ..small() }, &[GRACE_HOLDS]);
}

#[test]
fn a_cancel_that_is_forgotten_is_found() {
    breaks(Mutant::CancelForgotten, Config { cancel: &[Mode::Cooperative], ..small() }, &[CANCEL_IS_FINAL]);
}

#[test]
fn an_end_without_its_time_is_found() {
    breaks(Mutant::EndTimeLost, small(), &[HISTORY_IS_WHOLE]);
}

#[test]
fn an_attempt_number_that_is_used_again_is_found() {
    breaks(Mutant::NumberReused, small(), &[HISTORY_IS_WHOLE]);
}

#[test]
fn slots_that_are_not_counted_are_found() {
    let slots = Config { tasks: 2, max_running: Some(1), heartbeats: false, ticks: 3, ..small() };
    breaks(Mutant::SlotsForgotten, slots, &[SLOTS_HOLD]);
}

#[test]
fn an_expired_lease_that_is_extended_is_found() {
    breaks(Mutant::ExpiryNotSeen, small(), &[EXPIRED_STAYS_EXPIRED]);
}

#[test]
fn a_revoked_lease_that_counts_again_is_found() {
    breaks(Mutant::RevocationForgotten, Config { cancel: &[Mode::Immediate], ..small() }, &[REVOKED_STAYS_REVOKED]);
}

#[test]
fn an_answer_without_a_commit_is_found() {
    let broken = &[ONE_COMPLETION, SAME_ANSWER, COMPLETION_STANDS, ENDED_STAYS_ENDED];
    breaks(Mutant::AnswerWithoutCommit, small(), broken);
}

#[test]
fn a_success_that_is_written_as_a_failure_is_found() {
    breaks(Mutant::EndMiswritten, small(), &[COMPLETION_STANDS]);
}
