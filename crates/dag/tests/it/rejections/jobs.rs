//! Rules of what runs, where and when.

use tenure_dag::{Code, Settings};

use super::{B, Case, codes, refused, text, unmarked};
use crate::support::{settings, surroundings};

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
            "source:\nruntime: dispatcher\nactivation: @source\noperator: query\nconfig: { query: SELECT 1 FROM a_0 }",
            B,
            "activation",
            Code::InvalidValue,
            "make the job reactive",
        ),
        Case(
            "job:\nruntime: dispatcher\noperator: query\nconfig: @{ sql: SELECT 1 FROM a_0 }",
            B,
            "config.query",
            Code::InvalidValue,
            "is missing",
        ),
        Case(
            "job:\nruntime: dispatcher\noperator: query\nconfig: { query: @DROP TABLE a_0 }",
            B,
            "config.query",
            Code::InvalidValue,
            "'DROP' cannot be run: write a SELECT",
        ),
        Case(
            "job:\nruntime: dispatcher\noperator: query\nconfig: { query: @SELECT 1 FROM a_1 }",
            B,
            "config.query",
            Code::InvalidValue,
            "the query reads none of the inputs: a_0",
        ),
        Case(
            "job:\nruntime: dispatcher\noperator: query\noutputs: @2\nconfig: { query: SELECT 1 FROM a_0 }",
            B,
            "outputs",
            Code::InvalidValue,
            "has one output",
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
