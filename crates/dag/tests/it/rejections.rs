//! One case for each rule. `@` marks where the error is expected.

use std::collections::BTreeSet;

use tenure_dag::{Code, PROBLEMS, Problem, Settings, TEXT_BYTES};

use super::support::{EXAMPLE, read, settings, surroundings};

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
fn where_and_how_jobs_run() {
    // The bundle is written for node; only its function for python is configured.
    let score = "source:\nruntime: lambda\noperator: @score\nudf: { bundle_id: 0190c0de-0000-7000-8000-000000000001 }";
    let without_node = Settings { lambda_functions: ["score.python".to_owned()].into(), ..settings() };
    let (text_of_score, ..) = unmarked(&text(score));
    let problems = tenure_dag::parse(&text_of_score, &without_node, &surroundings()).unwrap_err();
    assert_eq!(codes(&problems), [Code::UnknownOperator]);
    for Case(text, job, field, code, part) in [
        Case("source:\nruntime: @workr", B, "runtime", Code::UnknownRuntime, "did you mean 'worker'?"),
        Case("source:\nruntime: @ecs_udf", B, "runtime", Code::UnknownRuntime, "no runtime named 'ecs_udf'"),
        Case(
            "source:\nruntime: dispatcher\noperator: @tik",
            B,
            "operator",
            Code::UnknownOperator,
            "did you mean 'tick'?",
        ),
        Case(
            "source:\nruntime: dispatcher\noperator: tick\nsource: { kind: @always_on }",
            B,
            "source.kind",
            Code::InvalidValue,
            "ends at once",
        ),
        Case(
            "source:\nruntime: dispatcher\nactivation: @source\noperator: range_splitter",
            B,
            "activation",
            Code::InvalidValue,
            "make the job reactive",
        ),
        Case(
            "job:\nruntime: dispatcher\noperator: range_aggregator\nconfig: @{ start: 5 }",
            B,
            "config.size",
            Code::InvalidValue,
            "is missing",
        ),
        Case(
            "job:\nruntime: dispatcher\noperator: range_aggregator\nconfig: { size: @0 }",
            B,
            "config.size",
            Code::InvalidValue,
            "2^63-1",
        ),
        Case(
            "source:\nruntime: lambda\noperator: @alert_rout",
            B,
            "operator",
            Code::UnknownOperator,
            "did you mean 'alert_route'?",
        ),
        Case("source:\noperator: @\"a\\nb\"", B, "operator", Code::InvalidName, "control"),
        Case("source:\nsecrets: [@1x]", B, "secrets[0]", Code::InvalidName, "a letter"),
        Case("source:\nsecrets: [x, @x]", B, "secrets[1]", Code::InvalidValue, "twice"),
        Case("source:\nsecrets: @[x, X]", B, "secrets", Code::InvalidValue, "same environment variable"),
        Case("source:\nsecrets: @key", B, "secrets", Code::WrongType, "expected a list"),
        Case("source:\nruntime: sandbox\nsecrets: @[x]", B, "secrets", Code::SecretsNotAllowed, "untrusted"),
        Case(
            "source:\nruntime: lambda\noperator: udf\nudf: { bundle_id: 0190c0de-0000-7000-8000-000000000001 }\nsecrets: @[x]",
            B,
            "secrets",
            Code::SecretsNotAllowed,
            "untrusted",
        ),
        Case("source:\n@runtime: sandbox\noperator: udf", B, "udf", Code::UdfRequired, "bundle_id"),
        Case(
            "source:\nudf: @{ bundle_id: 0190c0de-0000-7000-8000-000000000001 }",
            B,
            "udf",
            Code::UdfNotAllowed,
            "sandbox and lambda",
        ),
        Case("source:\nruntime: sandbox\nudf: { bundle_id: @x }", B, "udf.bundle_id", Code::InvalidValue, "UUID"),
        Case(
            "source:\nruntime: sandbox\nudf: @{ entrypoint: index.js }",
            B,
            "udf.bundle_id",
            Code::MissingField,
            "required",
        ),
        Case(
            "source:\nruntime: sandbox\nudf: { bundle_id: @0190c0de-0000-7000-8000-000000000002 }",
            B,
            "udf.bundle_id",
            Code::UnknownBundle,
            "upload",
        ),
        Case(
            "source:\nruntime: sandbox\nudf: { bundle_id: 0190c0de-0000-7000-8000-000000000001, entrypoint: @other.js }",
            B,
            "udf.entrypoint",
            Code::EntrypointMismatch,
            "'index.js'",
        ),
        Case(
            "source:\nruntime: sandbox\nudf: { bundle_id: 0190c0de-0000-7000-8000-000000000001, env: @{ THRESHOLDS: 1 } }",
            B,
            "udf.env",
            Code::EnvNotAllowed,
            "did you mean 'THRESHOLD'?",
        ),
        Case(
            "source:\nruntime: sandbox\nudf: { bundle_id: 0190c0de-0000-7000-8000-000000000001, env: { THRESHOLD: @~ } }",
            B,
            "udf.env.THRESHOLD",
            Code::WrongType,
            "expected a text",
        ),
        Case("source:\nsource: { kind: @crn }", B, "source.kind", Code::InvalidValue, "did you mean 'cron'?"),
        Case("source:\nsource: @{ schedule: x }", B, "source.kind", Code::MissingField, "required"),
        Case("source:\nsource: @{ kind: cron }", B, "source.schedule", Code::MissingField, "required"),
        Case(
            "source:\nsource: { kind: cron, schedule: @\"61 * * * *\" }",
            B,
            "source.schedule",
            Code::InvalidSchedule,
            "minute",
        ),
        Case(
            "source:\nsource: { kind: cron, schedule: @\"* * * *\" }",
            B,
            "source.schedule",
            Code::InvalidSchedule,
            "",
        ),
        Case(
            "source:\nsource: { kind: cron, schedule: @rate(0 days) }",
            B,
            "source.schedule",
            Code::InvalidSchedule,
            "",
        ),
        Case(
            "source:\nsource: { kind: cron, schedule: \"0 * * * *\", timezone: @Mars/Base }",
            B,
            "source.timezone",
            Code::InvalidSchedule,
            "time zone",
        ),
        Case(
            "source:\nsource: { kind: cron, schedule: \"0 * * * *\", catch_up: @some }",
            B,
            "source.catch_up",
            Code::InvalidValue,
            "latest, none, all",
        ),
        Case(
            "source:\nsource: { kind: manual, @schedule: \"0 * * * *\" }",
            B,
            "source.schedule",
            Code::NotAllowed,
            "kind cron",
        ),
        Case(
            "source:\nsource: { kind: cron, schedule: \"0 * * * *\", @secret: x }",
            B,
            "source.secret",
            Code::NotAllowed,
            "kind webhook",
        ),
        Case(
            "source:\nsource: @{ kind: webhook, secret: x }",
            B,
            "source.webhook_path",
            Code::MissingField,
            "required",
        ),
        Case(
            "source:\nsource: @{ kind: webhook, webhook_path: x }",
            B,
            "source.secret",
            Code::MissingField,
            "required",
        ),
        Case(
            "source:\nsource: { kind: webhook, webhook_path: @/x, secret: x }",
            B,
            "source.webhook_path",
            Code::InvalidValue,
            "path",
        ),
        Case(
            "source:\nsource: { kind: webhook, webhook_path: @x/../y, secret: x }",
            B,
            "source.webhook_path",
            Code::InvalidValue,
            "path",
        ),
        Case(
            "source:\nsource: { kind: webhook, webhook_path: x, secret: @\"p w\" }",
            B,
            "source.secret",
            Code::InvalidName,
            "never write its value",
        ),
        Case(
            "source:\nsource: { kind: webhook, webhook_path: x, secret: x, signature: @none }",
            B,
            "source.signature",
            Code::InvalidValue,
            "tenure, github",
        ),
        Case(
            "source:\nsource: { kind: webhook, webhook_path: @hooks/taken, secret: x }",
            B,
            "source.webhook_path",
            Code::WebhookPathInUse,
            "the DAG 'labels'",
        ),
        Case(
            "source:\nsource: { kind: webhook, webhook_path: @hooks/foreign, secret: x }",
            B,
            "source.webhook_path",
            Code::WebhookPathInUse,
            "another organisation",
        ),
        Case("source:\n@inputs: []", B, "inputs", Code::NotAllowed, "reactive"),
        Case("source:\n@execution_strategy: PerUpdate", B, "execution_strategy", Code::NotAllowed, "reactive"),
        Case("source:\n@idle_timeout: 5m", B, "idle_timeout", Code::NotAllowed, "reactive"),
        Case(
            "source:\nbootstrap: { reset_outputs: @yes }",
            B,
            "bootstrap.reset_outputs",
            Code::WrongType,
            "true or false",
        ),
    ] {
        refused(text, job, field, code, part);
    }
    let two = "name: d\njobs:\n  - { name: a, activation: source, runtime: worker, operator: x, outputs: 0, source: { kind: webhook, webhook_path: p, secret: s } }\n  - { name: b, activation: source, runtime: worker, operator: x, outputs: 0, source: { kind: webhook, webhook_path: @p, secret: s } }\n";
    refused(two, B, "source.webhook_path", Code::WebhookPathInUse, "the job 'a'");
}

#[test]
fn reactive_jobs() {
    for Case(text, job, field, code, part) in [
        Case("job:\n@source: { kind: manual }", B, "source", Code::NotAllowed, "sources"),
        Case("job:\n@bootstrap: { reset_outputs: true }", B, "bootstrap", Code::NotAllowed, "sources"),
        Case("job:\ninputs: @[]", B, "inputs", Code::OutOfRange, "1 to 32"),
        Case("job:\n@name: b\ninputs: ABSENT", B, "inputs", Code::MissingField, "required"),
        Case("job:\ninputs: @{ from: { job: a, output: 0 } }", B, "inputs", Code::WrongType, "expected a list"),
        Case("job:\ninputs: [@{ alias: x }]", B, "inputs[0].from", Code::MissingField, "required"),
        Case("job:\ninputs: [{ from: @{} }]", B, "inputs[0].from", Code::MissingField, "{job, output} or {dataset}"),
        Case("job:\ninputs: [{ from: @{ job: a } }]", B, "inputs[0].from.output", Code::MissingField, "required"),
        Case(
            "job:\ninputs: [{ from: { dataset: labels, @job: a } }]",
            B,
            "inputs[0].from.job",
            Code::NotAllowed,
            "beside",
        ),
        Case(
            "job:\ninputs: [{ from: { @jobb: a, job: a, output: 0 } }]",
            B,
            "inputs[0].from.jobb",
            Code::UnknownKey,
            "did you mean 'job'?",
        ),
        Case(
            "job:\ninputs: [{ from: { job: a, output: 0 }, alias: @9x }]",
            B,
            "inputs[0].alias",
            Code::InvalidName,
            "not beginning with a digit",
        ),
        Case(
            "job:\ninputs: [{ from: { job: a, output: 0 } }, { from: { job: @a, output: 0 } }]",
            B,
            "inputs[1].from.job",
            Code::DuplicateAlias,
            "'a_0'",
        ),
        Case(
            "job:\nexecution_strategy: @Bulk",
            B,
            "execution_strategy",
            Code::BulkStrategy,
            "PerUpdate or PerPartition",
        ),
        Case(
            "job:\nexecution_strategy: @perUpdate",
            B,
            "execution_strategy",
            Code::InvalidValue,
            "did you mean 'PerUpdate'?",
        ),
        Case("job:\n@name: b\nupdate_strategy: ABSENT", B, "update_strategy", Code::MissingField, "append or replace"),
        Case("job:\nupdate_strategy: @upsert", B, "update_strategy", Code::InvalidValue, "append, replace"),
        Case("job:\n@update_strategy: append", B, "unique_key", Code::MissingUniqueKey, "follow from input data"),
        Case(
            "job:\nupdate_strategy: append\nunique_key: @[]",
            B,
            "unique_key",
            Code::MissingUniqueKey,
            "follow from input data",
        ),
        Case("job:\nupdate_strategy: append\nunique_key: [@a b]", B, "unique_key[0]", Code::InvalidName, "letters"),
        Case(
            "job:\nupdate_strategy: append\nunique_key: @[task_id]",
            B,
            "unique_key",
            Code::UnstableUniqueKey,
            "'task_id'",
        ),
        Case("job:\nidle_timeout: @5d", B, "idle_timeout", Code::InvalidValue, "30s, 5m or 2h"),
        Case("job:\nidle_timeout: @5", B, "idle_timeout", Code::InvalidValue, "30s, 5m or 2h"),
        Case("job:\nidle_timeout: @9999999h", B, "idle_timeout", Code::InvalidValue, "30s, 5m or 2h"),
    ] {
        refused(text, job, field, code, part);
    }
}

#[test]
fn references() {
    for Case(text, job, field, code, part) in [
        Case(
            "job:\ninputs: [{ from: { job: @aa, output: 0 } }]",
            B,
            "inputs[0].from.job",
            Code::UnknownJob,
            "no job named 'aa'",
        ),
        Case(
            "job:\ninputs: [{ from: { job: a, output: @2 } }]",
            B,
            "inputs[0].from.output",
            Code::UnknownOutput,
            "the outputs 0 to 1",
        ),
        Case(
            "job:\ninputs: [{ from: { job: a, output: @-1 } }]",
            B,
            "inputs[0].from.output",
            Code::OutOfRange,
            "from 0",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: @lables } }]",
            B,
            "inputs[0].from.dataset",
            Code::UnknownDataset,
            "did you mean 'labels'?",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: @mine } }]",
            B,
            "inputs[0].from.dataset",
            Code::UnknownDataset,
            "no dataset named 'mine'",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: @wide } }]",
            B,
            "inputs[0].from.dataset",
            Code::RangesMismatch,
            "half_open",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"adress = 'x'\" }]",
            B,
            "inputs[0].where",
            Code::WhereField,
            "did you mean 'address'?",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ adress: x } }]",
            B,
            "inputs[0].where",
            Code::WhereField,
            "did you mean 'address'?",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"chain_id = 'x'\" }]",
            B,
            "inputs[0].where",
            Code::WhereType,
            "int64",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ chain_id: [1, x] } }]",
            B,
            "inputs[0].where",
            Code::WhereType,
            "int64",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"chain_id = 1;\" }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "at character 13",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"chain_id IN (SELECT 1)\" }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "subqueries",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @\"lower(address) = 'x'\" }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "functions",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ chain_id: [] } }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "empty",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @{ chain_id: null } }]",
            B,
            "inputs[0].where",
            Code::InvalidWhere,
            "IS NULL",
        ),
        Case(
            "job:\ninputs: [{ from: { dataset: labels }, where: @[1] }]",
            B,
            "inputs[0].where",
            Code::WrongType,
            "expected a text",
        ),
    ] {
        refused(text, job, field, code, part);
    }
    let none = text("job:\ninputs: [{ from: { job: a, output: @0 } }]").replace("outputs: 2", "outputs: 0");
    refused(&none, B, "inputs[0].from.output", Code::UnknownOutput, "no outputs");
    let own = text("job:\ninputs: [{ from: { job: a, output: 0 }, where: @\"n = 1\" }]")
        + "publish:\n  x: { from: { job: a, output: 0 }, schema: { columns: [{ name: m, type: int64 }] } }\n";
    refused(&own, B, "inputs[0].where", Code::WhereField, "'n'");
    let key = text("job:\nupdate_strategy: append\nunique_key: @[n]")
        + "publish:\n  x: { from: { job: b, output: 0 }, schema: { columns: [{ name: m, type: int64 }] } }\n";
    refused(&key, B, "unique_key", Code::UnknownColumn, "the dataset 'x' has no column 'n'");
}

#[test]
fn published_datasets() {
    const FROM: &str = "from: { job: a, output: 0 }";
    for (text, field, code, part) in [
        ("  @X: { FROM }", "X", Code::InvalidName, "lower-case"),
        ("  x: @1", "x", Code::WrongType, "expected a map"),
        ("  x: { FROM, @retention: 1 }", "x.retention", Code::UnknownKey, ""),
        ("  x: @{ storage: s3 }", "x.from", Code::MissingField, "required"),
        ("  x: { from: { @dataset: y, job: a, output: 0 } }", "x.from.dataset", Code::UnknownKey, ""),
        ("  x: { from: @[] }", "x.from", Code::MissingField, "at least one"),
        ("  x: { from: { job: @c, output: 0 } }", "x.from.job", Code::UnknownJob, "no job named 'c'"),
        ("  x: { from: { job: a, output: @2 } }", "x.from.output", Code::UnknownOutput, "0 to 1"),
        (
            "  x: { from: @[{ job: a, output: 0 }, { job: a, output: 1 }] }",
            "x.from",
            Code::SeveralProducers,
            "buffered",
        ),
        (
            "  x: { FROM }\n  y: { from: { job: @a, output: 0 } }",
            "y.from.job",
            Code::PublishedTwice,
            "already published as 'x'",
        ),
        ("  x: { FROM, storage: @gcs }", "x.storage", Code::InvalidValue, "s3, postgres"),
        ("  x: { FROM, write_mode: @queued }", "x.write_mode", Code::InvalidValue, "direct, buffered"),
        ("  x: { FROM, @buffer: { kind: queue } }", "x.buffer", Code::NotAllowed, "buffered datasets"),
        ("  x: @{ FROM, write_mode: buffered }", "x.schema", Code::MissingSchema, "needs a 'schema'"),
        ("  x: { FROM, write_mode: buffered, storage: @s3, SCHEMA }", "x.storage", Code::BufferedStorage, "postgres"),
        (
            "  x: { FROM, write_mode: buffered, buffer: { kind: @kafka }, SCHEMA }",
            "x.buffer.kind",
            Code::InvalidValue,
            "queue, sqs",
        ),
        (
            "  x: { FROM, write_mode: buffered, buffer: { max_receives: @0 }, SCHEMA }",
            "x.buffer.max_receives",
            Code::OutOfRange,
            "1 to 1000",
        ),
        (
            "  x: { FROM, write_mode: buffered, schema: @{ columns: [{ name: n, type: text }] } }",
            "x.schema.unique",
            Code::MissingField,
            "unique",
        ),
        ("  x: { FROM, schema: @{ unique: [org_id] } }", "x.schema.columns", Code::MissingField, "required"),
        ("  x: { FROM, schema: { columns: @[] } }", "x.schema.columns", Code::OutOfRange, "1 to 256"),
        (
            "  x: { FROM, schema: { columns: [@{ type: text }] } }",
            "x.schema.columns[0].name",
            Code::MissingField,
            "required",
        ),
        (
            "  x: { FROM, schema: { columns: [@{ name: n }] } }",
            "x.schema.columns[0].type",
            Code::MissingField,
            "required",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: @txt }] } }",
            "x.schema.columns[0].type",
            Code::InvalidSchema,
            "did you mean 'text'?",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: @n-m, type: text }] } }",
            "x.schema.columns[0].name",
            Code::InvalidName,
            "letters",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: @_seq, type: int64 }] } }",
            "x.schema.columns[0].name",
            Code::InvalidSchema,
            "platform",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: org_id, type: @text }] } }",
            "x.schema.columns[0].type",
            Code::InvalidSchema,
            "uuid",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }, { name: @n, type: text }] } }",
            "x.schema.columns[1].name",
            Code::InvalidSchema,
            "twice",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text, nullable: @no }] } }",
            "x.schema.columns[0].nullable",
            Code::WrongType,
            "true or false",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }], unique: @[n] } }",
            "x.schema.unique",
            Code::InvalidSchema,
            "org_id",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: org_id, type: uuid }], unique: [org_id, @m] } }",
            "x.schema.unique[1]",
            Code::UnknownColumn,
            "'m'",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }], indexes: [@n] } }",
            "x.schema.indexes[0]",
            Code::WrongType,
            "list of columns",
        ),
        (
            "  x: { FROM, schema: { columns: [{ name: n, type: text }], indexes: [[@m]] } }",
            "x.schema.indexes[0][0]",
            Code::UnknownColumn,
            "'m'",
        ),
        ("  @labels: { FROM }", "labels", Code::DatasetInUse, "the DAG 'labels'"),
    ] {
        let schema = "schema: { columns: [{ name: org_id, type: uuid }], unique: [org_id] }";
        let case = format!("publish:\n{}", text.replace("FROM", FROM).replace("SCHEMA", schema));
        refused(&case, None, &format!("publish.{field}"), code, part);
    }
    let grown =
        "publish:\n  mine: { from: { job: make, output: 0 }, schema: @{ columns: [{ name: address, type: text }] } }";
    let grown = text(grown).replace("name: a,", "name: make,");
    refused(&grown, None, "publish.mine.schema", Code::IncompatibleSchema, "`chain_id` was removed");
    for runtime in ["sandbox", "lambda"] {
        let table = text("publish:\n  x: { from: { job: a, output: 0 }, storage: @postgres }");
        let table =
            table.replace("runtime: worker, operator: x", &format!("runtime: {runtime}, operator: alert_route"));
        refused(&table, None, "publish.x.storage", Code::DirectTable, "write_mode: buffered");
    }
    let ranges =
        text("publish:\n  @blocks: { from: { job: a, output: 0 } }").replace("name: d", "name: d\nranges: half_open");
    refused(&ranges, None, "publish.blocks", Code::RangesMismatch, "the DAG 'labels' reads 'blocks'");
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
