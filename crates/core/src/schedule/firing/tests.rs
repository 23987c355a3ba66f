use super::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(&format!("2026-03-01T{text}Z")).unwrap()
}

fn hourly(overlap: Overlap, catch_up: CatchUp) -> Definition {
    let cron = Some("0 * * * *".to_owned());
    Definition { cron, timezone: "UTC".to_owned(), overlap, catch_up, ..Definition::default() }
}

fn timing(definition: &Definition) -> Timing {
    definition.timing(7).unwrap()
}

fn from_one() -> ScheduleState {
    ScheduleState { next: Some(at("01:00:00")), ..ScheduleState::default() }
}

fn task(n: u128) -> Work {
    Work::Task(TaskId::from_u128(n))
}

fn outcomes(state: &ScheduleState) -> Vec<(Outcome, Timestamp, Option<Timestamp>)> {
    state.history.iter().map(|firing| (firing.outcome, firing.slot, firing.through)).collect()
}

#[test]
fn a_slot_is_decided_before_it_is_submitted_and_stays_decided() {
    let (definition, mut state) = (hourly(Overlap::Skip, CatchUp::Latest), from_one());
    let timing = timing(&definition);
    assert_eq!(timing.step(&mut state, at("00:59:59"), false, true), Step::Nothing);
    assert_eq!(timing.look_at(&state, at("00:59:59"), false), Some(at("01:00:00")));
    let slot = at("01:00:00");
    assert_eq!(timing.step(&mut state, at("01:00:01"), false, true), Step::Fire(slot));
    // The process died here: whoever comes next submits the same slot, paused or not, and whatever runs.
    for (paused, ended) in [(false, true), (true, false)] {
        assert_eq!(timing.step(&mut state.clone(), at("05:00:00"), paused, ended), Step::Fire(slot));
    }
    assert_eq!(timing.look_at(&state, at("01:00:01"), true), Some(at("01:00:01")));
    state.fired(slot, at("01:00:02"), Ok(task(1)));
    assert_eq!((state.firing, state.last, state.next), (None, Some(task(1)), Some(at("02:00:00"))));
    assert_eq!(timing.step(&mut state, at("01:30:00"), false, true), Step::Nothing);
    assert_eq!(timing.look_at(&state, at("01:30:00"), true), None);
}

#[test]
fn skip_passes_over_a_slot_while_the_last_work_runs() {
    let (definition, mut state) = (hourly(Overlap::Skip, CatchUp::All), from_one());
    let timing = timing(&definition);
    assert_eq!(timing.step(&mut state, at("02:30:00"), false, true), Step::Fire(at("01:00:00")));
    state.fired(at("01:00:00"), at("02:30:00"), Ok(task(1)));
    assert_eq!(timing.step(&mut state, at("03:30:00"), false, false), Step::Nothing);
    let expected = [(Outcome::Skipped, at("02:00:00"), Some(at("03:00:00"))), (Outcome::Fired, at("01:00:00"), None)];
    assert_eq!(outcomes(&state), expected);
    assert_eq!(timing.step(&mut state, at("04:00:00"), false, true), Step::Fire(at("04:00:00")));
}

#[test]
fn queue_fires_the_slots_that_waited_one_after_the_other() {
    let (definition, mut state) = (hourly(Overlap::Queue, CatchUp::Latest), from_one());
    let timing = timing(&definition);
    assert_eq!(timing.step(&mut state, at("01:00:00"), false, true), Step::Fire(at("01:00:00")));
    state.fired(at("01:00:00"), at("01:00:00"), Ok(task(1)));
    for now in ["02:00:00", "03:00:00"] {
        assert_eq!(timing.step(&mut state, at(now), false, false), Step::Nothing);
    }
    assert_eq!(state.waiting, [at("02:00:00"), at("03:00:00")]);
    let recheck = at("03:00:00").plus(limits::SCHEDULE_RECHECK_MS);
    assert_eq!(timing.look_at(&state, at("03:00:00"), false), Some(recheck));
    assert_eq!(timing.step(&mut state, at("03:10:00"), false, true), Step::Fire(at("02:00:00")));
    state.fired(at("02:00:00"), at("03:10:00"), Ok(task(2)));
    assert_eq!(timing.step(&mut state, at("03:11:00"), false, false), Step::Nothing);
    assert_eq!(timing.step(&mut state, at("03:12:00"), false, true), Step::Fire(at("03:00:00")));
}

#[test]
fn the_slots_that_wait_are_bounded() {
    let definition = Definition {
        cron: None,
        interval_ms: Some(1_000),
        timezone: "UTC".to_owned(),
        overlap: Overlap::Queue,
        catch_up: CatchUp::All,
        ..Definition::default()
    };
    let timing = timing(&definition);
    let mut state = ScheduleState { next: Some(at("01:00:00")), last: Some(task(1)), ..ScheduleState::default() };
    for now in ["01:10:00", "01:20:00", "01:30:00"] {
        assert_eq!(timing.step(&mut state, at(now), false, false), Step::Nothing);
    }
    assert_eq!(state.waiting.len(), limits::SCHEDULE_CATCH_UP);
    assert!(state.waiting.is_sorted());
    assert_eq!(state.history[0].outcome, Outcome::Skipped);
}

#[test]
fn cancel_old_stops_the_last_work_once_and_waits_for_its_end() {
    let (definition, mut state) = (hourly(Overlap::CancelOld, CatchUp::Latest), from_one());
    let timing = timing(&definition);
    assert_eq!(timing.step(&mut state, at("01:00:00"), false, true), Step::Fire(at("01:00:00")));
    state.fired(at("01:00:00"), at("01:00:00"), Ok(task(1)));
    assert_eq!(timing.step(&mut state, at("02:00:00"), false, false), Step::CancelLast);
    state.canceled = true;
    assert_eq!(timing.step(&mut state, at("02:00:05"), false, false), Step::Nothing);
    // A newer slot takes the place of the one that waits.
    assert_eq!(timing.step(&mut state, at("03:00:00"), false, false), Step::Nothing);
    assert_eq!(state.waiting, [at("03:00:00")]);
    assert_eq!(timing.step(&mut state, at("03:00:05"), false, true), Step::Fire(at("03:00:00")));
    state.fired(at("03:00:00"), at("03:00:05"), Ok(task(2)));
    assert!(!state.canceled);
    let expected =
        [(Outcome::Fired, at("03:00:00")), (Outcome::Skipped, at("02:00:00")), (Outcome::Fired, at("01:00:00"))];
    assert_eq!(outcomes(&state).into_iter().map(|(outcome, slot, _)| (outcome, slot)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_paused_schedule_drops_what_waits_and_fires_nothing() {
    let (definition, mut state) = (hourly(Overlap::Queue, CatchUp::All), from_one());
    let timing = timing(&definition);
    state.last = Some(task(1));
    assert_eq!(timing.step(&mut state, at("02:00:00"), false, false), Step::Nothing);
    state.pause(at("02:10:00"));
    assert_eq!(outcomes(&state), [(Outcome::Skipped, at("01:00:00"), Some(at("02:00:00")))]);
    assert_eq!(timing.step(&mut state, at("09:00:00"), true, true), Step::Nothing);
    assert_eq!(timing.look_at(&state, at("09:00:00"), true), None);
}

#[test]
fn no_slot_lies_before_the_start_or_after_the_end() {
    for catch_up in CatchUp::ALL {
        let definition = Definition {
            starts_at: Some(at("03:00:00")),
            ends_at: Some(at("05:30:00")),
            ..hourly(Overlap::Queue, catch_up)
        };
        let timing = timing(&definition);
        let all = [at("03:00:00"), at("04:00:00"), at("05:00:00")];
        assert_eq!(timing.upcoming(at("00:00:00"), 9), all);
        let mut state = ScheduleState { next: Some(all[0]), ..ScheduleState::default() };
        let mut fired = Vec::new();
        while let Step::Fire(slot) = timing.step(&mut state, at("09:00:00"), false, true) {
            fired.push(slot);
            state.fired(slot, at("09:00:00"), Ok(task(1)));
        }
        let expected = match catch_up {
            CatchUp::Latest => &all[2..],
            CatchUp::None => &[],
            CatchUp::All => &all[..],
        };
        assert_eq!(fired, expected, "{catch_up:?}");
        assert_eq!((state.next, timing.look_at(&state, at("09:00:00"), false)), (None, None));
    }
}

#[test]
fn a_refused_slot_is_recorded_and_the_work_before_it_still_counts() {
    let mut state = ScheduleState { firing: Some(at("02:00:00")), last: Some(task(1)), ..ScheduleState::default() };
    state.fired(at("02:00:00"), at("02:00:01"), Err("tenant limit".to_owned()));
    assert_eq!((state.firing, state.last), (None, Some(task(1))));
    assert_eq!(state.history[0].reason.as_deref(), Some("tenant limit"));
    for n in 0..100 {
        state.triggered(at("03:00:00"), task(n + 2));
    }
    assert_eq!(state.history.len(), limits::SCHEDULE_HISTORY);
    assert_eq!(state.last, Some(task(101)));
}

#[test]
fn a_state_is_read_as_it_was_written() {
    let mut state = from_one();
    state.waiting = vec![at("00:30:00")];
    state.fired(at("00:00:00"), at("00:00:01"), Ok(task(9)));
    state.triggered(at("00:10:00"), Work::Run(RunId::from_u128(10)));
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<ScheduleState>(&text).unwrap(), state);
    let definition = Definition { interval_ms: Some(5_000), cron: None, ..hourly(Overlap::CancelOld, CatchUp::None) };
    let text = serde_json::to_string(&definition).unwrap();
    assert_eq!(serde_json::from_str::<Definition>(&text).unwrap(), definition);
    assert!(Definition { cron: None, ..definition.clone() }.schedule().is_ok());
    assert!(Definition { interval_ms: None, ..definition }.schedule().is_err());
}
