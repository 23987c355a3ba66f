//! Routing, invalidation and versions of DAGs, checked in every reachable state of small systems.
//!
//! The model drives the real decisions of `dag`; see [`plane`] for the rows around them, [`system`] for what can happen,
//! and [`rules`] for what must hold. As in [`crate::model`], a run ends because there is no further state, and every rule
//! has a [`Mutant`] that breaks it.

mod mutant;
mod plane;
mod rules;
mod system;

use std::collections::BTreeSet;

use stateright::{Checker, Model};

use mutant::Mutant;
use rules::*;
use system::{Config, System};

/// One partition, one version, and a reconciler.
fn small() -> Config {
    Config {
        execution: "PerPartition",
        fires: &["a"],
        has_run: false,
        deploys: false,
        manual: false,
        switches: 0,
        invalidations: 0,
        losses: 0,
        tells: false,
        reconciles: true,
        crashes: true,
        stale: false,
        handover: false,
        examples: &[],
        mutant: Mutant::None,
    }
}

/// Visits every state, finds every rule kept and every example, and more states than `at_least`.
#[expect(clippy::print_stdout, reason = "the size of a model is of interest to whoever changes it")]
fn check(config: Config, at_least: usize) {
    let checker = System(config).checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps, depth {}", checker.state_count(), checker.max_depth());
    checker.assert_properties();
    assert!(checker.is_done());
    assert!(states >= at_least, "{states} states: the model has become trivial");
}

/// Visits every state of a broken system and finds that these rules are broken, and no others.
fn breaks(mutant: Mutant, config: Config, rules: &[&'static str]) {
    let checker = System(Config { mutant, ..config }).checker().spawn_bfs().join();
    let broken: BTreeSet<_> = checker.discoveries().into_keys().collect();
    assert_eq!(broken, rules.iter().copied().collect(), "in {} states", checker.unique_state_count());
}

#[test]
fn with_events_that_are_told_twice_and_holders_that_are_lost() {
    check(Config { tells: true, losses: 1, stale: true, examples: &[LATE], ..small() }, 1_000);
}

#[test]
fn with_two_partitions() {
    check(Config { fires: &["a", "b"], ..small() }, 800);
}

#[test]
fn with_data_that_changes() {
    check(Config { invalidations: 1, tells: true, examples: &[RAN_AGAIN, OVERTAKEN], ..small() }, 10_000);
}

#[test]
fn with_data_that_changes_twice() {
    check(Config { invalidations: 2, has_run: true, tells: true, examples: &[RAN_AGAIN], ..small() }, 800);
}

#[test]
fn with_cursors_that_come_in_any_order() {
    check(Config { execution: "PerUpdate", fires: &["1", "2"], losses: 1, ..small() }, 2_500);
}

#[test]
fn with_rows_that_change() {
    check(Config { execution: "PerUpdate", fires: &["1"], invalidations: 1, examples: &[RAN_AGAIN], ..small() }, 2_500);
}

#[test]
fn with_a_version_that_takes_over() {
    check(Config { deploys: true, stale: true, crashes: false, examples: &[TOOK_OVER, OLD_EVENT], ..small() }, 8_000);
}

#[test]
fn with_a_version_that_takes_over_and_nobody_who_looks_for_what_was_missed() {
    check(Config { deploys: true, stale: true, reconciles: false, examples: &[TOOK_OVER], ..small() }, 2_000);
}

#[test]
fn with_versions_that_go_and_return() {
    check(
        Config { deploys: true, manual: true, switches: 3, crashes: false, examples: &[RETURNED], ..small() },
        25_000,
    );
}

#[test]
fn with_data_that_changes_while_versions_do() {
    check(Config { invalidations: 1, has_run: true, examples: &[RETURNED], ..switching() }, 20_000);
}

/// Two versions, and switches by hand.
fn switching() -> Config {
    Config { deploys: true, manual: true, switches: 2, crashes: false, ..small() }
}

#[test]
fn a_second_task_for_the_same_change_is_found() {
    breaks(Mutant::KeyOfCause, Config { invalidations: 1, crashes: false, ..small() }, &[ONE_TASK]);
}

#[test]
fn a_key_without_its_generation_is_found() {
    breaks(Mutant::KeyWithoutGeneration, Config { invalidations: 1, crashes: false, ..small() }, &[COMPLETE]);
}

#[test]
fn an_invalidation_that_counts_twice_is_found() {
    breaks(Mutant::InvalidatedTwice, Config { invalidations: 1, crashes: false, ..small() }, &[COUNTED_ONCE]);
}

#[test]
fn a_cascade_that_does_not_happen_is_found() {
    breaks(Mutant::NoCascade, Config { invalidations: 1, crashes: false, ..small() }, &[CASCADES]);
}

#[test]
fn a_cascade_that_ends_with_a_switch_is_found() {
    let changing = Config { invalidations: 1, has_run: true, ..switching() };
    breaks(Mutant::CascadeOfInvalidationsOnly, changing, &[CASCADES]);
}

#[test]
fn cursors_that_are_set_are_found() {
    let cursors = Config { execution: "PerUpdate", fires: &["1", "2"], crashes: false, ..small() };
    breaks(Mutant::CursorsAreSet, cursors, &[FORWARD, COMPLETE]);
}

#[test]
fn a_late_task_that_overwrites_newer_data_is_found() {
    breaks(Mutant::StaleWrites, Config { invalidations: 1, crashes: false, ..small() }, &[NEWEST]);
}

#[test]
fn events_that_are_marked_before_their_tasks_are_made_are_found() {
    breaks(Mutant::MarkedFirst, Config { reconciles: false, ..small() }, &[COMPLETE]);
}

#[test]
fn a_reconciler_that_is_missing_is_found() {
    breaks(Mutant::NoReconciler, switching(), &[COMPLETE]);
}

#[test]
fn events_of_old_versions_that_are_routed_are_found() {
    breaks(Mutant::OldIsCurrent, Config { deploys: true, crashes: false, ..small() }, &[OLD_STAYS]);
}

#[test]
fn tasks_of_a_staged_version_that_are_not_held_are_found() {
    breaks(Mutant::NotHeld, Config { deploys: true, crashes: false, ..small() }, &[HELD]);
}

#[test]
fn tasks_that_stay_held_are_found() {
    breaks(Mutant::NotReleased, Config { deploys: true, crashes: false, ..small() }, &[DRAINED, COMPLETE]);
}

#[test]
fn a_version_that_is_ready_too_early_is_found() {
    breaks(Mutant::ReadyAtOnce, Config { deploys: true, crashes: false, ..small() }, &[REBUILT]);
}

#[test]
fn with_a_version_that_takes_over_while_routing_changes_hands() {
    check(Config { handover: true, ..taking_over() }, 2_000);
}

#[test]
fn a_version_whose_tasks_are_counted_while_others_route_is_found() {
    breaks(Mutant::CountedOnce, Config { handover: true, ..taking_over() }, &[REBUILT]);
}

/// A version that becomes active by itself.
fn taking_over() -> Config {
    Config { deploys: true, crashes: false, examples: &[], ..small() }
}

#[test]
fn data_from_before_a_version_that_is_not_rebuilt_is_found() {
    breaks(Mutant::EarlierDataWaits, Config { deploys: true, ..small() }, &[REBUILT]);
}

#[test]
fn tasks_that_a_rollback_leaves_are_found() {
    breaks(Mutant::RollbackForgets, switching(), &[GONE]);
}

#[test]
fn tasks_that_stay_canceled_when_their_version_returns_are_found() {
    breaks(Mutant::CanceledStays, switching(), &[COMPLETE]);
}
