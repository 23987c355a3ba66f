//! One case for each rule. `@` marks where the error is expected.

mod data;
mod jobs;

use std::collections::BTreeSet;

use tenure_dag::{Code, PROBLEMS, Problem, TEXT_BYTES};

use super::support::{EXAMPLE, read};

/// Whole texts, or the part of a text that says what it is about:
///
/// - `job:` the entries of a job `b` that is otherwise reactive, complete and correct;
/// - `source:` the same of a source `b`;
/// - `publish:` the value of `publish`;
/// - anything else is the whole text.
fn text(case: &str) -> String {
    let source =
        "  - { name: a, activation: source, runtime: worker, operator: x, outputs: 2, source: { kind: manual } }\n";
    let entries = |rest: &str, given: &[(&str, &str)]| -> String {
        let written = |key: &str| rest.lines().any(|line| line.trim_start_matches('@').starts_with(&format!("{key}:")));
        let missing = given.iter().filter(|(key, _)| !written(key)).map(|(key, value)| format!("    {key}: {value}\n"));
        let own = rest.lines().filter(|line| !line.ends_with(": ABSENT")).map(|line| format!("    {line}\n"));
        let body: String = own.chain(missing).collect();
        // The first entry follows the dash.
        format!("  - {}", body.trim_start())
    };
    if let Some(rest) = case.strip_prefix("job:") {
        let given = [
            ("name", "b"),
            ("activation", "reactive"),
            ("runtime", "worker"),
            ("operator", "x"),
            ("outputs", "1"),
            ("inputs", "[{ from: { job: a, output: 0 } }]"),
            ("execution_strategy", "PerUpdate"),
            ("update_strategy", "replace"),
        ];
        return format!("name: d\njobs:\n{source}{}", entries(rest.trim_start_matches('\n'), &given));
    }
    if let Some(rest) = case.strip_prefix("source:") {
        let given = [
            ("name", "b"),
            ("activation", "source"),
            ("runtime", "worker"),
            ("operator", "x"),
            ("outputs", "1"),
            ("source", "{ kind: manual }"),
        ];
        return format!("name: d\njobs:\n{source}{}", entries(rest.trim_start_matches('\n'), &given));
    }
    if let Some(rest) = case.strip_prefix("publish:") {
        return format!("name: d\njobs:\n{source}publish:\n{}\n", rest.trim_start_matches('\n'));
    }
    case.to_owned()
}

/// The text without the mark, and the line and column of the mark.
fn unmarked(text: &str) -> (String, u32, u32) {
    let at = text.find('@').unwrap_or_else(|| panic!("no mark in {text}"));
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
    (text.replacen('@', "", 1), u32::try_from(line).unwrap(), u32::try_from(column).unwrap())
}

#[track_caller]
fn refused(case: &str, job: Option<&str>, field: &str, code: Code, part: &str) {
    let (text, line, column) = unmarked(&text(case));
    let problems = match read(&text) {
        Ok(parsed) => panic!("accepted: {:?}\n{text}", parsed.definition),
        Err(problems) => problems,
    };
    let [problem] = &problems[..] else { panic!("{problems:#?}\n{text}") };
    let found = (problem.line, problem.column, problem.job.as_deref(), problem.field.as_str(), problem.code);
    assert_eq!(found, (line, column, job, field, code), "{}\n{text}", problem.message);
    assert!(problem.message.contains(part), "{}\n{text}", problem.message);
}

struct Case(&'static str, Option<&'static str>, &'static str, Code, &'static str);

const B: Option<&str> = Some("b");

#[test]
fn documents_that_are_not_dags() {
    refused("@", None, "", Code::MissingField, "empty");
    refused("name: d\njobs: @[\n", None, "", Code::Syntax, "");
    refused("@[1]", None, "", Code::WrongType, "expected a map, found a list");
    refused("@text", None, "", Code::WrongType, "expected a map, found a text");
    refused("name: d\n? @[a]\n: 1\n", None, "", Code::WrongType, "a key is a single word");
    let two = text("source:\nname: b") + "--- \nname: e\n";
    let problems = read(&two).unwrap_err();
    assert_eq!((problems.len(), problems[0].code, problems[0].line), (1, Code::SeveralDocuments, 10));
}

#[test]
fn bounds() {
    let deep = format!("name: d\njobs: {}", "[".repeat(100));
    assert_eq!(codes(&read(&deep).unwrap_err()), [Code::TooDeep]);
    let large = format!("name: d # {}", "x".repeat(TEXT_BYTES));
    assert_eq!(codes(&read(&large).unwrap_err()), [Code::BodyTooLarge]);
    let many = format!("name: d\njobs: [{}]", "1,".repeat(400_000));
    assert_eq!(codes(&read(&many).unwrap_err()), [Code::TooManyValues]);
    let wrong = format!("name: d\njobs: [{}]", "1,".repeat(1_000));
    assert_eq!(read(&wrong).unwrap_err().len(), 1_000);
    let unknown: String = (0..5_000).map(|n| format!("key_{n}: 1\n")).collect();
    let problems = read(&format!("name: d\n{unknown}")).unwrap_err();
    assert_eq!(problems.len(), PROBLEMS);
    let last = problems.last().unwrap();
    assert_eq!((last.code, &*last.message), (Code::TooManyErrors, "4002 more errors are not listed"));
    let jobs = "{},".repeat(1_001);
    assert_eq!(codes(&read(&format!("name: d\njobs: [{jobs}]")).unwrap_err()), [Code::OutOfRange]);
    assert_eq!(codes(&read("name: d\njobs: []").unwrap_err()), [Code::OutOfRange]);
}

fn codes(problems: &[Problem]) -> Vec<Code> {
    problems.iter().map(|problem| problem.code).collect()
}

#[test]
fn keys_and_shapes() {
    for Case(text, job, field, code, part) in [
        Case("source:\nname: b\n@name: c", B, "name", Code::DuplicateKey, "twice"),
        Case("source:\nconfig: { x: 1, @x: 2 }", B, "config.x", Code::DuplicateKey, "twice"),
        Case(
            "publish:\n  x: { from: { job: a, output: 0 } }\n  @x: { from: { job: a, output: 1 } }",
            None,
            "publish.x",
            Code::DuplicateKey,
            "twice",
        ),
        Case("source:\nconfig: &here @{ x: 1 }", B, "config", Code::Anchor, "anchors"),
        Case("source:\nconfig: { x: @*there }", B, "config.x", Code::Anchor, "aliases"),
        Case("source:\nconfig: { x: !!str @1 }", B, "config.x", Code::Tag, "tags"),
        Case("source:\n@operatr: y", B, "operatr", Code::UnknownKey, "did you mean 'operator'?"),
        Case("source:\nscaling: { @max_queue_depth: 5 }", B, "scaling.max_queue_depth", Code::ReservedKey, "reserved"),
        Case("source:\n@max_queue_age: 5", B, "max_queue_age", Code::ReservedKey, "reserved"),
        Case("source:\n@backpressure_mode: drop", B, "backpressure_mode", Code::ReservedKey, "reserved"),
        Case("source:\nactivation: @manual", B, "activation", Code::ReservedKey, "kind: manual"),
        Case("source:\nactivation: @reactiv", B, "activation", Code::InvalidValue, "did you mean 'reactive'?"),
        Case("source:\n@operator: x\nname: ABSENT", None, "jobs[1].name", Code::MissingField, "required"),
        Case("source:\nname: @B", Some("B"), "name", Code::InvalidName, "lower-case"),
        Case("source:\nname: @12", None, "jobs[1].name", Code::WrongType, "put it in quotes"),
        Case("source:\nname: @a", Some("a"), "name", Code::DuplicateJob, "line 3"),
        Case("source:\noutputs: @33", B, "outputs", Code::OutOfRange, "0 to 32"),
        Case("source:\noutputs: @one", B, "outputs", Code::WrongType, "whole number"),
        Case("source:\ntimeout_seconds: @86101", B, "timeout_seconds", Code::OutOfRange, "1 to 86100"),
        Case("source:\nheartbeat_timeout_seconds: @0", B, "heartbeat_timeout_seconds", Code::OutOfRange, "1 to 3600"),
        Case("source:\nmax_attempts: @0", B, "max_attempts", Code::OutOfRange, "1 to 1000"),
        Case("source:\npriority: @high", B, "priority", Code::InvalidValue, "normal, backfill"),
        Case("source:\nscaling: @5", B, "scaling", Code::WrongType, "expected a map"),
        Case("source:\nscaling: { max_concurrency: @0 }", B, "scaling.max_concurrency", Code::OutOfRange, "1 to"),
        Case("source:\nscaling: { worker_pool: @a.b }", B, "scaling.worker_pool", Code::InvalidName, "64 letters"),
        Case("source:\nconfig: @[1]", B, "config", Code::WrongType, "a map"),
        Case("source:\nconfig: { x: @.inf }", B, "config.x", Code::OutOfRange, "quotes"),
        Case("source:\nconfig: { x: @99999999999999999999 }", B, "config.x", Code::OutOfRange, "quotes"),
    ] {
        refused(text, job, field, code, part);
    }
    refused(
        "@jobs: [{ name: a, activation: source, runtime: worker, operator: x, outputs: 0, source: { kind: manual } }]",
        None,
        "name",
        Code::MissingField,
        "required",
    );
    refused("@name: d", None, "jobs", Code::MissingField, "required");
    let valid = text("source:\nname: b");
    refused(&valid.replace("name: d", "name: @D"), None, "name", Code::InvalidName, "lower-case");
    refused(
        &valid.replace("name: d", "name: d\nranges: @open"),
        None,
        "ranges",
        Code::InvalidValue,
        "inclusive, half_open",
    );
    refused(
        &valid.replace("name: d", "name: d\ndefaults: { @retries: 1 }"),
        None,
        "defaults.retries",
        Code::UnknownKey,
        "",
    );
    refused(
        &valid.replace("name: d", "name: d\ndefaults: { max_attempts: @x }"),
        None,
        "defaults.max_attempts",
        Code::WrongType,
        "",
    );
    refused(&valid.replace("name: d", "name: d\n@max_queue_age: 1"), None, "max_queue_age", Code::ReservedKey, "");
    refused(&valid.replace("name: d", "name: d\ndefaults: !t @{}"), None, "defaults", Code::Tag, "");
    let config = format!("source:\nconfig: @{{ x: \"{}\" }}", "x".repeat(64 << 10));
    refused(&config, B, "config", Code::ConfigTooLarge, "65536");
    for key in ["activation", "runtime", "operator", "outputs", "source"] {
        let case = text(&format!("source:\nname: b\n{key}: ABSENT")).replace("- name: b", "- @name: b");
        refused(&case, B, key, Code::MissingField, "required");
    }
}

#[test]
fn all_errors_are_listed_in_order() {
    let text = "name: D\njobs:\n  - { name: a, activation: source, runtime: workr, outputs: 99, source: { kind: cron }, extra: 1 }\n  - { activation: reactive, runtime: worker, operator: x, outputs: 1, inputs: [{ from: { job: c, output: 0 } }], config: 5 }\npublish:\n  x: { from: { job: c, output: 0 }, write_mode: buffered }\n";
    let problems = read(text).unwrap_err();
    let found: Vec<(u32, &str)> = problems.iter().map(|problem| (problem.line, problem.field.as_str())).collect();
    assert!(found.is_sorted_by_key(|(line, _)| *line), "{found:?}");
    let fields: BTreeSet<&str> = found.iter().map(|(_, field)| *field).collect();
    let expected = [
        "name",
        "runtime",
        "operator",
        "outputs",
        "source.schedule",
        "extra",
        "jobs[1].name",
        "jobs[1].update_strategy",
        "jobs[1].config",
        "publish.x.from.job",
        "publish.x.schema",
    ];
    assert_eq!(fields, BTreeSet::from(expected), "{problems:#?}");
}

#[test]
fn every_problem_is_one_short_line() {
    let long = "x".repeat(100_000);
    let text = format!(
        "name: \"a\\n{long}\"\njobs:\n  - {{ name: \"{long}\", \"{long}\": 1, runtime: {long}, inputs: [{{ from: {{ dataset: \"{long}\" }}, where: \"{long}\" }}], activation: reactive }}\n"
    );
    for problem in read(&text).unwrap_err() {
        assert!(problem.message.len() < 600 && !problem.message.contains('\n'), "{problem:?}");
        assert!(problem.field.len() < 600, "{problem:?}");
    }
}

/// The message that the contract shows.
#[test]
fn a_near_job_is_suggested() {
    let text = EXAMPLE.replace("{ job: new_range, output: 1 }", "{ job: @new_rnge, output: 1 }");
    let message = "no job named 'new_rnge'; did you mean 'new_range'?";
    refused(&text, Some("decode"), "inputs[0].from.job", Code::UnknownJob, message);
}
