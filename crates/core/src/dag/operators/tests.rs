use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::dag::deployment::JobOutput;
use crate::dag::id::{DatasetId, JobId, VersionId};
use crate::time::Timestamp;

fn job(operator: &str, activation: &Value, outputs: u32, config: &Value) -> JobDefinition {
    let job = json!({
        "name": "j", "activation": activation, "runtime": "dispatcher", "operator": operator, "outputs": outputs,
        "timeout_seconds": 300, "max_attempts": 3, "heartbeat_timeout_seconds": 120, "config": config.to_string(),
    });
    serde_json::from_value(job).unwrap()
}

fn source(kind: &str) -> Value {
    json!({"source": {"source": {"kind": kind}}})
}

fn reactive(execution: &str) -> Value {
    let input = json!({"from": {"job": {"job": "up", "output": 0}}, "alias": "up"});
    json!({"reactive": {"inputs": [input], "execution": execution}})
}

fn given(trigger: Trigger, inputs: Vec<InputAt>) -> TaskInput {
    let output = JobOutput { dataset: DatasetId::from_u128(1), version: VersionId::from_u128(2) };
    TaskInput {
        job: JobId(1),
        dag_version: 1,
        trigger,
        inputs,
        outputs: vec![output],
        invalidation: None,
        rebuild: None,
    }
}

/// Inputs whose first one has new data here.
fn at(place: Position, inputs: u128) -> Vec<InputAt> {
    let one = |index: u128| InputAt {
        input_index: usize::try_from(index).unwrap(),
        dataset: DatasetId::from_u128(10 + index),
        version: VersionId::from_u128(20 + index),
        position: (index == 0).then(|| place.clone()),
        generation: 0,
    };
    (0..inputs).map(one).collect()
}

fn part(key: &str) -> Position {
    Position::Partition(Partition { key: key.into(), ends: None })
}

fn event(inputs: Vec<InputAt>) -> TaskInput {
    given(Trigger::Event { input_index: 0, event_id: "e".into() }, inputs)
}

fn run(builtin: Builtin, input: &TaskInput, ranges: Ranges, state: Option<&str>) -> Result<Done, Fault> {
    builtin.run(&Turn { input, number: 77, ranges, state })
}

fn keys(done: &Done) -> Vec<String> {
    done.positions.iter().map(|position| position.partition().unwrap().key.to_string()).collect()
}

/// A job that has run some tasks.
struct Kept {
    builtin: Builtin,
    ranges: Ranges,
    state: Option<Arc<str>>,
}

impl Kept {
    fn new(size: u64, start: u64, ranges: Ranges) -> Self {
        Self { builtin: Builtin::RangeAggregator(Aggregator { size, start }), ranges, state: None }
    }

    fn sees(&mut self, input: &TaskInput) -> Vec<String> {
        let done = run(self.builtin, input, self.ranges, self.state.as_deref()).unwrap();
        self.state.clone_from(&done.state);
        keys(&done)
    }

    fn gets(&mut self, place: Position) -> Vec<String> {
        self.sees(&event(at(place, 1)))
    }
}

#[test]
fn a_tick_is_one_cursor_per_firing() {
    let slot = Timestamp::from_millis(1_700_000_000_000);
    for (trigger, cursor) in [
        (Trigger::Cron { scheduled_at: slot }, 1_700_000_000_000),
        (Trigger::Manual { request_id: "r".into(), input: None }, 77),
        (Trigger::Webhook { delivery_id: "d".into(), body: "".into() }, 77),
    ] {
        let done = run(Builtin::Tick, &given(trigger, vec![]), Ranges::Inclusive, None).unwrap();
        assert_eq!((done.positions, done.state), (vec![Position::Cursor(cursor)], None));
    }
    let input = given(Trigger::Manual { request_id: "r".into(), input: None }, vec![]);
    assert_eq!(run(Builtin::Noop, &input, Ranges::Inclusive, None), Ok(Done::default()));
}

#[test]
fn a_range_is_split_from_its_first_value_on() {
    let split = |key: &str, size, ranges| {
        run(Builtin::RangeSplitter(Splitter { size }), &event(at(part(key), 1)), ranges, None).map(|done| keys(&done))
    };
    assert_eq!(split("5-14", 4, Ranges::Inclusive).unwrap(), ["5-8", "9-12", "13-14"]);
    assert_eq!(split("5-15", 4, Ranges::HalfOpen).unwrap(), ["5-9", "9-13", "13-15"]);
    assert_eq!(split("5-5", 4, Ranges::Inclusive).unwrap(), ["5-5"]);
    assert_eq!(split("5-5", 4, Ranges::HalfOpen).unwrap(), [""; 0], "an empty range has no parts");
    let max = Cursor::MAX;
    assert_eq!(split(&format!("{max}-{max}"), u64::MAX >> 1, Ranges::Inclusive).unwrap(), [format!("{max}-{max}")]);
    assert_eq!(split("0-99999", 1, Ranges::Inclusive).unwrap().len(), 100_000);
    let too_many = split("0-100000", 1, Ranges::Inclusive).unwrap_err();
    assert_eq!(too_many.category, Category::Configuration);
    assert!(too_many.message.contains("100001 ranges") && !too_many.failure().is_retryable(), "{too_many:?}");
    assert_eq!(split("today", 4, Ranges::Inclusive).unwrap_err().category, Category::DataQuality);
    let cursor = event(at(Position::Cursor(5), 1));
    let refused = run(Builtin::RangeSplitter(Splitter { size: 4 }), &cursor, Ranges::Inclusive, None).unwrap_err();
    assert_eq!(refused.category, Category::DataQuality);
}

#[test]
fn small_ranges_in_any_order_become_a_large_one_when_it_is_complete() {
    let mut kept = Kept::new(10, 0, Ranges::Inclusive);
    assert_eq!(kept.gets(part("5-9")), [""; 0]);
    assert_eq!(kept.gets(part("10-14")), [""; 0]);
    assert_eq!(kept.gets(part("0-3")), [""; 0]);
    assert_eq!(kept.gets(part("4-4")), ["0-9"]);
    assert_eq!(kept.gets(part("15-32")), ["10-19", "20-29"]);
    // A changed part says again that the whole has changed, once the whole was complete.
    assert_eq!(kept.gets(part("10-14")), ["10-19"]);
    assert_eq!(kept.gets(part("31-32")), [""; 0]);
    assert_eq!(kept.state.as_deref(), Some(r#"{"covered":{"00000000-0000-0000-0000-000000000014":[[0,33]]}}"#));
    let mut kept = Kept::new(10, 5, Ranges::HalfOpen);
    assert_eq!(kept.gets(part("0-15")), ["5-15"], "nothing before `start` counts");
    assert_eq!(kept.gets(part("15-15")), [""; 0]);
    assert_eq!(kept.gets(part("15-25")), ["15-25"]);
}

#[test]
fn a_cursor_covers_everything_before_it() {
    let mut kept = Kept::new(10, 0, Ranges::Inclusive);
    assert_eq!(kept.gets(Position::Cursor(8)), [""; 0]);
    assert_eq!(kept.gets(Position::Cursor(9)), ["0-9"]);
    assert_eq!(kept.gets(Position::Cursor(9)), [""; 0], "it is on record");
    assert_eq!(kept.gets(Position::Cursor(35)), ["10-19", "20-29"]);
    assert_eq!(kept.gets(Position::Cursor(20)), [""; 0], "an older one moves nothing back");
    assert_eq!(kept.gets(Position::Cursor(39)), ["30-39"]);
    let mut late = Kept::new(10, 1_000_000, Ranges::Inclusive);
    assert_eq!(late.gets(Position::Cursor(5)), [""; 0]);
    assert_eq!(late.gets(Position::Cursor(1_000_009)), ["1000000-1000009"]);
    let input = event(at(Position::Cursor(i64::MAX), 1));
    let fault = run(kept.builtin, &input, Ranges::Inclusive, None).unwrap_err();
    assert_eq!(fault.category, Category::Configuration, "{fault:?}");
    let mut whole = Kept::new(1 << 62, 0, Ranges::Inclusive);
    assert_eq!(whole.gets(Position::Cursor(i64::MAX)).len(), 2);
}

#[test]
fn a_range_waits_for_every_input() {
    let mut kept = Kept::new(10, 0, Ranges::Inclusive);
    let of = |index: usize, place: Position| {
        let mut inputs = at(Position::Cursor(0), 2);
        inputs[0].position = None;
        inputs[index].position = Some(place);
        event(inputs)
    };
    assert_eq!(kept.sees(&of(0, part("0-19"))), [""; 0]);
    assert_eq!(kept.sees(&of(1, Position::Cursor(12))), ["0-9"]);
    assert_eq!(kept.sees(&of(1, Position::Cursor(25))), ["10-19"]);
    assert_eq!(kept.sees(&of(0, part("20-29"))), [""; 0]);
    // A new generation of an input starts over.
    let mut other = of(0, part("0-19"));
    other.inputs[0].version = VersionId::from_u128(99);
    assert_eq!(kept.sees(&other), ["0-9", "10-19"]);
}

#[test]
fn the_state_is_bounded_and_checked() {
    let mut kept = Kept::new(1 << 40, 0, Ranges::Inclusive);
    let pairs: Vec<(u64, u64)> = (0..SPANS as u64).map(|n| (3 * n, 3 * n + 1)).collect();
    let version = VersionId::from_u128(20);
    kept.state = Some(json!({"covered": {version.to_string(): pairs}}).to_string().into());
    assert_eq!(kept.gets(part("1-2")), [""; 0], "it closes a gap");
    assert_eq!(kept.gets(part("50000-50000")), [""; 0]);
    let gap = event(at(part("60000-60000"), 1));
    let full = run(kept.builtin, &gap, Ranges::Inclusive, kept.state.as_deref()).unwrap_err();
    assert!(full.category == Category::DataQuality && full.message.contains("10000 gaps"), "{full:?}");
    for wrong in
        ["", "[]", r#"{"covered":{"x":[]}}"#, r#"{"covered":{"00000000-0000-0000-0000-000000000014":[[5,5]]}}"#]
    {
        let fault = run(kept.builtin, &gap, Ranges::Inclusive, Some(wrong)).unwrap_err();
        assert_eq!(fault.category, Category::Configuration, "{wrong}");
    }
    // Generations that nobody reads any more are forgotten some day.
    let mut kept = Kept::new(10, 0, Ranges::Inclusive);
    for n in 0..200 {
        let mut input = event(at(part("0-9"), 1));
        input.inputs[0].version = VersionId::from_u128(1_000 + n);
        assert_eq!(kept.sees(&input), ["0-9"]);
    }
    assert!(kept.state.unwrap().len() < 66 * 50);
}

#[test]
fn which_jobs_an_operator_runs() {
    let none = json!({});
    let size = |key: &str, size: Value| json!({ key: size });
    for (operator, activation, outputs, config, expected) in [
        ("tick", source("manual"), 1, none.clone(), Ok(Builtin::Tick)),
        ("noop", reactive("PerUpdate"), 0, none.clone(), Ok(Builtin::Noop)),
        ("tick", source("always_on"), 1, none.clone(), Err("source.kind")),
        ("query", reactive("PerUpdate"), 1, none.clone(), Err("operator")),
        ("cook", reactive("PerUpdate"), 1, none.clone(), Err("operator")),
        (
            "range_aggregator",
            reactive("PerUpdate"),
            1,
            json!({"cursor_column": "n", "range_size": 10_000, "start": 7}),
            Ok(Builtin::RangeAggregator(Aggregator { size: 10_000, start: 7 })),
        ),
        ("range_aggregator", source("manual"), 1, size("size", json!(5)), Err("activation")),
        ("range_aggregator", reactive("PerPartition"), 2, size("size", json!(5)), Err("outputs")),
        ("range_aggregator", reactive("PerPartition"), 1, none.clone(), Err("config.size")),
        ("range_aggregator", reactive("PerPartition"), 1, size("size", json!(0)), Err("config.size")),
        ("range_aggregator", reactive("PerPartition"), 1, size("size", json!("5")), Err("config.size")),
        ("range_aggregator", reactive("PerPartition"), 1, json!({"size": 5, "start": -1}), Err("config.start")),
        (
            "range_splitter",
            reactive("PerPartition"),
            1,
            json!({"size": 5, "chunk_size": 5}),
            Ok(Builtin::RangeSplitter(Splitter { size: 5 })),
        ),
        ("range_splitter", reactive("PerPartition"), 1, json!({"size": 5, "chunk_size": 6}), Err("config.size")),
        ("range_splitter", reactive("PerUpdate"), 1, size("size", json!(5)), Err("execution_strategy")),
    ] {
        let found = Builtin::of(&job(operator, &activation, outputs, &config));
        assert_eq!(found.clone().map_err(|fault| fault.field), expected, "{found:?}");
        assert_eq!(found.is_ok_and(|builtin| builtin.runs_alone()), operator == "range_aggregator" && expected.is_ok());
    }
}

proptest! {
    /// Whatever the order, every range is told of when its last value has come, and never before.
    #[test]
    fn each_complete_range_is_told_of(
        parts in proptest::collection::vec((0_u64..80, 1_u64..15), 1..30), size in 1_u64..20, start in 0_u64..20,
        ranges in prop_oneof![Just(Ranges::Inclusive), Just(Ranges::HalfOpen)],
    ) {
        let mut kept = Kept::new(size, start, ranges);
        let (mut seen, mut told) = (BTreeSet::new(), BTreeSet::new());
        for (first, len) in parts {
            let span = Span::new(first, first + len).unwrap();
            seen.extend(first..first + len);
            told.extend(kept.gets(position(span, ranges).unwrap()));
            let whole = (0..).map(|n| start + n * size).take_while(|from| *from < 120);
            let complete = whole.filter(|from| (*from..from + size).all(|value| seen.contains(&value)));
            let expected: BTreeSet<String> =
                complete.map(|from| PartitionKey::of(Span::new(from, from + size).unwrap(), ranges).unwrap().as_str().to_owned()).collect();
            prop_assert_eq!(&told, &expected);
        }
    }

    /// The parts of a range are the range, and joining them makes it again.
    #[test]
    fn parts_make_the_whole(first in 0_u64..1_000, count in 1_u64..20, size in 1_u64..50, joined in 1_u64..20) {
        let whole = Span::new(first, first + count * size).unwrap();
        let input = event(at(position(whole, Ranges::Inclusive).unwrap(), 1));
        let done = run(Builtin::RangeSplitter(Splitter { size }), &input, Ranges::Inclusive, None).unwrap();
        prop_assert_eq!(done.positions.len() as u64, count);
        let mut kept = Kept::new(size * joined, first, Ranges::Inclusive);
        let told: Vec<String> = done.positions.into_iter().flat_map(|part| kept.gets(part)).collect();
        prop_assert_eq!(told.len() as u64, count / joined);
    }
}

fn query_job(execution: &str, update: &str, config: &Value) -> JobDefinition {
    let mut job = job("query", &reactive(execution), 1, config);
    job.update_strategy = serde_json::from_value(json!(update)).unwrap();
    job
}

#[test]
fn which_jobs_run_a_query() {
    let sql = |sql: &str| json!({ "query": sql });
    for (activation, outputs, config, expected) in [
        (reactive("PerUpdate"), 1, sql(" SELECT 1 FROM up "), None),
        (reactive("PerPartition"), 1, sql("WITH x AS (SELECT n FROM UP) SELECT * FROM x"), None),
        (reactive("PerUpdate"), 1, sql("-- all\nSELECT n FROM dataset"), None),
        (source("manual"), 1, sql("SELECT 1 FROM up"), Some("activation")),
        (reactive("PerUpdate"), 0, sql("SELECT 1 FROM up"), Some("outputs")),
        (reactive("PerUpdate"), 2, sql("SELECT 1 FROM up"), Some("outputs")),
        (reactive("PerUpdate"), 1, json!({}), Some("config.query")),
        (reactive("PerUpdate"), 1, json!({"query": 7}), Some("config.query")),
        (reactive("PerUpdate"), 1, sql("  "), Some("config.query")),
        (reactive("PerUpdate"), 1, sql("DELETE FROM up"), Some("config.query")),
        (reactive("PerUpdate"), 1, sql("SELECT * FROM other"), Some("config.query")),
    ] {
        let job = job("query", &activation, outputs, &config);
        assert_eq!(check(&job).map_err(|fault| fault.field).err(), expected, "{config}");
        assert!(Builtin::of(&job).is_err(), "the control plane does not run it itself");
    }
    assert_eq!(
        Query::of(&query_job("PerUpdate", "append", &sql(" SELECT 1 FROM up;"))).unwrap().sql.as_ref(),
        "SELECT 1 FROM up;"
    );
    for (execution, alone) in [("PerUpdate", true), ("PerPartition", false)] {
        assert_eq!(runs_alone(&query_job(execution, "append", &sql("SELECT 1 FROM up"))), alone);
    }
}

#[test]
fn what_a_query_reads_and_writes() {
    let plan = |execution, update, input: &TaskInput, read: i64, table: bool, ranges| {
        let query = Query::of(&query_job(execution, update, &json!({"query": "SELECT 1 FROM up"}))).unwrap();
        query.plan(input, &Circumstances { ranges, read: &|_| read, is_table: &|_| table })
    };
    let part_of_two = event(at(part("10-19"), 2));
    let narrowed = |extent: Extent, key: &str| {
        let plan = Plan { extents: vec![extent, Extent::Whole], key: key.into(), is_whole: false };
        Ok(Some(plan))
    };
    for (execution, update) in [("PerPartition", "replace"), ("PerPartition", "append"), ("PerUpdate", "append")] {
        let expected = narrowed(Extent::Partition("10-19".into()), "10-19");
        assert_eq!(plan(execution, update, &part_of_two, 0, false, Ranges::Inclusive), expected);
    }
    let rows = event(at(Position::Cursor(9), 2));
    for (ranges, key) in [(Ranges::Inclusive, "5-9"), (Ranges::HalfOpen, "5-10")] {
        let expected = narrowed(Extent::Rows { after: 4, upto: 9 }, key);
        assert_eq!(plan("PerUpdate", "append", &rows, 4, true, ranges), expected);
    }
    for read in [9, 12] {
        assert_eq!(plan("PerUpdate", "append", &rows, read, true, Ranges::Inclusive), Ok(None), "all was read");
    }
    let fault = plan("PerUpdate", "append", &rows, 0, false, Ranges::Inclusive).unwrap_err();
    assert!(!fault.failure().is_retryable() && fault.message.contains("PerPartition"), "{fault:?}");
    let whole = Plan { extents: vec![Extent::Whole; 2], key: "all".into(), is_whole: true };
    for input in [&rows, &part_of_two] {
        let found = plan("PerUpdate", "replace", input, 99, false, Ranges::Inclusive);
        assert_eq!(found, Ok(Some(whole.clone())));
    }
    let nothing = given(Trigger::Invalidation, vec![]);
    assert_eq!(plan("PerUpdate", "append", &nothing, 0, true, Ranges::Inclusive), Ok(None));
}
