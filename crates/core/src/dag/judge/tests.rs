use super::*;
use crate::dag::id::JobId;
use crate::dag::task::{InputAt, Invalidated, Trigger};

const OUT: DatasetId = DatasetId::from_u128(1);
const VERSION: VersionId = VersionId::from_u128(2);
const OLD: VersionId = VersionId::from_u128(3);

fn given() -> TaskInput {
    TaskInput {
        job: JobId(7),
        dag_version: 1,
        trigger: Trigger::Rebuild,
        inputs: Vec::new(),
        outputs: vec![JobOutput { dataset: OUT, version: VERSION }],
        invalidation: None,
        rebuild: None,
    }
}

fn judged(input: &TaskInput, said: &Said, replaces: bool) -> Result<DataReport, DataRefusal> {
    judged_at(input, said, replaces, true)
}

fn judged_at(input: &TaskInput, said: &Said, replaces: bool, ends: bool) -> Result<DataReport, DataRefusal> {
    let knows = |dataset, version| dataset == OUT && [VERSION, OLD].contains(&version);
    let cascade = |dataset: DatasetId, _: &Scope| InvalidationId::from_u128(100 + dataset.as_u128());
    judge(input, said, &Rules { org: "acme".into(), replaces, ends, knows: &knows, cascade: &cascade })
}

fn cursor(value: u64) -> Where {
    Where { cursor: Cursor::new(value), ..Where::default() }
}

fn part(key: &str) -> Where {
    Where { partition_key: Some(key.into()), ..Where::default() }
}

fn output(at: Where) -> SaidOutput {
    SaidOutput {
        dataset: OUT,
        version: SaidVersion::Generation(VERSION),
        at,
        location: "none:".into(),
        row_count: Some(5),
        bytes: None,
        schema_hash: None,
        manifest: None,
    }
}

fn event(at: Where) -> SaidEvent {
    SaidEvent { dataset: OUT, version: VERSION, at }
}

fn code(said: Said) -> &'static str {
    judged(&given(), &said, true).expect_err("it is refused").code
}

#[test]
fn every_output_makes_one_event_and_repeats_make_none() {
    let said = Said {
        outputs: vec![output(cursor(9)), output(part("1-5"))],
        events: vec![event(cursor(9)), event(part("1-5")), event(cursor(8)), event(cursor(8))],
        ..Said::default()
    };
    let report = judged(&given(), &said, true).unwrap();
    let positions: Vec<String> = report.events.iter().map(|event| event.position.text()).collect();
    assert_eq!(positions, ["cursor:9", "partition:1-5", "cursor:8"]);
    assert_eq!(report.outputs.len(), 2);
    let both = Where { cursor: Cursor::new(3), ..part("1-5") };
    let report = judged(&given(), &Said { outputs: vec![output(both)], ..Said::default() }, true).unwrap();
    assert_eq!(report.events[0].position.text(), "partition:1-5", "the partition counts");
}

#[test]
fn what_does_not_belong_to_the_task_is_refused() {
    let foreign = DatasetId::from_u128(9);
    let outputs = |output| Said { outputs: vec![output], ..Said::default() };
    let events = |event| Said { events: vec![event], ..Said::default() };
    assert_eq!(code(outputs(SaidOutput { dataset: foreign, ..output(cursor(1)) })), "dataset_not_granted");
    assert_eq!(code(events(SaidEvent { dataset: foreign, ..event(cursor(1)) })), "dataset_not_granted");
    let old = SaidOutput { version: SaidVersion::Generation(OLD), ..output(cursor(1)) };
    assert_eq!(code(outputs(old)), "dataset_version_conflict");
    let unknown = VersionId::from_u128(77);
    assert_eq!(code(events(SaidEvent { version: unknown, ..event(cursor(1)) })), "unknown_dataset_version");
    let invalidation = SaidInvalidation {
        id: InvalidationId::from_u128(1),
        dataset: foreign,
        scope: Scope::Partition { partition_key: "1-5".into() },
        reason: "reorg".into(),
    };
    let said = Said { invalidations: vec![invalidation], ..Said::default() };
    assert_eq!(code(said), "dataset_not_granted");
    // A version that is known and no longer current is on record all the same.
    let late = judged(&given(), &events(SaidEvent { version: OLD, ..event(cursor(1)) }), true).unwrap();
    assert_eq!(late.events[0].version, OLD);
    // The name of an artifact is no generation.
    let named = SaidOutput { version: SaidVersion::Artifact(Some(unknown)), ..output(cursor(1)) };
    let report = judged(&given(), &outputs(named), true).unwrap();
    assert_eq!((report.outputs[0].version, report.outputs[0].artifact), (VERSION, Some(unknown)));
}

#[test]
fn positions_are_read_as_the_contract_says() {
    let at = |start: Option<u64>, end: Option<u64>, key: &str| Where {
        start: start.and_then(Cursor::new),
        end: end.and_then(Cursor::new),
        ..part(key)
    };
    let events = |at| Said { events: vec![event(at)], ..Said::default() };
    for good in [at(None, None, "1-5"), at(Some(1), Some(5), "1-5"), at(Some(1), None, "1-5"), part("day=2026-11-17")] {
        assert!(judged(&given(), &events(good.clone()), true).is_ok(), "{good:?}");
    }
    for (bad, expected) in [
        (at(Some(2), Some(5), "1-5"), "partition_mismatch"),
        (at(Some(1), Some(6), "1-5"), "partition_mismatch"),
        (at(Some(1), Some(5), "a"), "partition_mismatch"),
        (part(""), "invalid_event"),
        (part("a b"), "invalid_event"),
        (Where::default(), "invalid_event"),
        (Where { start: Cursor::new(1), end: Cursor::new(5), ..Where::default() }, "invalid_event"),
    ] {
        assert_eq!(code(events(bad.clone())), expected, "{bad:?}");
    }
    let nowhere = Said { outputs: vec![output(Where::default())], ..Said::default() };
    assert_eq!(code(nowhere), "output_without_position");
}

#[test]
fn a_success_says_what_was_read() {
    let at = |index, position, generation| InputAt {
        input_index: index,
        dataset: DatasetId::from_u128(40),
        version: VersionId::from_u128(41),
        position,
        generation,
    };
    let partition = Position::Partition(Partition { key: "1-5".into(), ends: Some((1, 5)) });
    let inputs = vec![at(0, Some(partition), 2), at(1, Some(Position::Cursor(8)), 0), at(2, None, 0)];
    let report = judged(&TaskInput { inputs, ..given() }, &Said::default(), true).unwrap();
    let version = VersionId::from_u128(41);
    let expected = [Read::Partition { version, key: "1-5".into(), generation: 2 }, Read::UpTo { version, cursor: 8 }];
    assert_eq!(report.reads, expected);
}

#[test]
fn what_is_written_anew_after_an_invalidation_invalidates_what_was_made_from_it() {
    let invalidated = |scope| {
        let invalidation = Invalidated { id: InvalidationId::from_u128(5), scope, reason: "reorg".into() };
        TaskInput { invalidation: Some(invalidation), ..given() }
    };
    let wrote = Said { outputs: vec![output(part("6-9"))], ..Said::default() };
    let partition = invalidated(Scope::Partition { partition_key: "1-5".into() });
    let report = judged(&partition, &wrote, true).unwrap();
    assert_eq!(report.invalidation, Some(InvalidationId::from_u128(5)));
    let [cascade] = &report.invalidations[..] else { panic!("one: {report:?}") };
    assert_eq!((cascade.dataset, cascade.id), (OUT, InvalidationId::from_u128(100 + OUT.as_u128())));
    assert_eq!(cascade.scope, Scope::Partition { partition_key: "6-9".into() }, "that which it wrote");
    let both = Said { outputs: vec![output(part("6-7")), output(part("8-9")), output(part("6-7"))], ..Said::default() };
    let report = judged(&partition, &both, true).unwrap();
    let scopes: Vec<&Scope> = report.invalidations.iter().map(|new| &new.scope).collect();
    let each = ["6-7", "8-9"].map(|key| Scope::Partition { partition_key: key.into() });
    assert_eq!(scopes, each.iter().collect::<Vec<_>>(), "each of them once");
    let rows = Scope::RowRange { row_filter: "{\"block\":{\"gte\":1}}".into() };
    let report = judged(&invalidated(rows.clone()), &wrote, true).unwrap();
    assert_eq!(report.invalidations[0].scope, rows);
    // What is only added to deletes nothing.
    let report = judged(&partition, &wrote, false).unwrap();
    assert_eq!((report.invalidations.len(), report.invalidation.is_some()), (0, true));
    assert_eq!(judged(&given(), &wrote, true).unwrap().invalidations, []);
}

/// A job that becomes active after the invalidation is not told of it, and a worker may tell of its data by events alone.
#[test]
fn a_later_generation_shows_that_data_has_changed() {
    let at = |generation| {
        let position = Some(Position::Partition(Partition { key: "1-5".into(), ends: Some((1, 5)) }));
        let (dataset, version) = (DatasetId::from_u128(40), VersionId::from_u128(41));
        TaskInput { inputs: vec![InputAt { input_index: 0, dataset, version, position, generation }], ..given() }
    };
    let told = Said { events: vec![event(part("1-5")), event(cursor(9))], ..Said::default() };
    for (generation, replaces, expected) in [(0, true, 0), (1, true, 1), (2, true, 1), (1, false, 0)] {
        for ends in [true, false] {
            let report = judged_at(&at(generation), &told, replaces, ends).unwrap();
            assert_eq!(report.invalidations.len(), expected, "{generation} {replaces} {ends}");
        }
    }
    let old = Said { events: vec![SaidEvent { version: OLD, ..event(part("1-5")) }], ..Said::default() };
    assert_eq!(judged(&at(1), &old, true).unwrap().invalidations, [], "another version was written");
}

#[test]
fn before_the_end_nothing_is_read_and_no_rows_have_changed() {
    let rows = Scope::RowRange { row_filter: "{\"block\":{\"gte\":1}}".into() };
    let invalidation = Some(Invalidated { id: InvalidationId::from_u128(5), scope: rows, reason: "reorg".into() });
    let position = Some(Position::Cursor(8));
    let (dataset, version) = (DatasetId::from_u128(40), VersionId::from_u128(41));
    let inputs = vec![InputAt { input_index: 0, dataset, version, position, generation: 1 }];
    let given = TaskInput { inputs, invalidation, ..given() };
    let said = Said { events: vec![event(cursor(9))], operator_state: Some("{}".into()), ..Said::default() };
    for ends in [true, false] {
        let report = judged_at(&given, &said, true, ends).unwrap();
        assert_eq!((report.events.len(), report.invalidations.len()), (1, usize::from(ends)));
        assert_eq!((report.reads.len(), report.operator_state.is_some()), (usize::from(ends), ends));
        assert_eq!(report.invalidation.is_some(), ends);
    }
}

#[test]
fn a_task_input_is_read_as_it_is_written() {
    let input = TaskInput {
        trigger: Trigger::Manual { request_id: "r-1".into(), input: Some("{\"a\":1e400}".into()) },
        invalidation: Some(Invalidated {
            id: InvalidationId::from_u128(5),
            scope: Scope::Partition { partition_key: "1-5".into() },
            reason: "manual".into(),
        }),
        ..given()
    };
    let text = serde_json::to_string(&input).unwrap();
    assert_eq!(serde_json::from_str::<TaskInput>(&text).unwrap(), input);
    assert!(text.contains(r#""scope":"partition","partition_key":"1-5""#), "{text}");
}
