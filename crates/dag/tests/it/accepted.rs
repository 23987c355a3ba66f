//! What is read, with its defaults, and what is only warned about.

use std::fmt::Write;

use tenure_core::dag::Ranges;
use tenure_core::dag::definition::{
    Activation, Buffer, ExecutionStrategy, IdleTimeout, Priority, Runtime, Source, Storage, UpdateStrategy,
};
use tenure_dag::Code;

use super::support::{self, accepted, definition};

fn source(entries: &str) -> String {
    format!("name: d\njobs:\n  - {{ name: a, activation: source, operator: x, outputs: 1, {entries} }}\n")
}

fn reactive(entries: &str) -> String {
    let first = source("runtime: worker, source: { kind: manual }");
    format!("{first}  - {{ name: b, activation: reactive, runtime: worker, operator: x, {entries} }}\n")
}

/// Without the one that all DAGs here get: see `a_dataset_that_others_still_read`.
fn warnings(text: &str) -> Vec<(Option<String>, String, Code)> {
    let warnings = accepted(text).warnings.into_iter().filter(|warning| warning.code != Code::StillRead);
    warnings.map(|warning| (warning.job.map(|job| job.to_string()), warning.field, warning.code)).collect()
}

#[test]
fn runtimes_and_their_timeouts() {
    for (word, name, seconds) in [
        ("worker", "worker", 1_800),
        ("ecs_platform", "worker", 1_800),
        ("ecs_rust", "ecs_rust", 1_800),
        ("ecs_python", "ecs_python", 1_800),
        ("gpu_pool", "gpu_pool", 1_800),
        ("sandbox", "sandbox", 60),
    ] {
        let dag = definition(&source(&format!("runtime: {word}, source: {{ kind: manual }}")));
        assert_eq!((dag.jobs[0].runtime.as_str(), dag.jobs[0].timeout_seconds), (name, Some(seconds)), "{word}");
    }
    let lambda = source("runtime: lambda, source: { kind: manual }").replace("operator: x", "operator: alert_route");
    assert_eq!(definition(&lambda).jobs[0].timeout_seconds, Some(60));
    for operator in ["tick", "noop"] {
        let text = source("runtime: dispatcher, source: { kind: manual }")
            .replace("operator: x", &format!("operator: {operator}"));
        let job = &definition(&text).jobs[0];
        assert_eq!((&job.runtime, job.timeout_seconds), (&Runtime::Dispatcher, Some(300)));
    }
    for (operator, config) in [
        ("range_aggregator", "{ size: 10000, start: 5 }"),
        ("range_aggregator", "{ cursor_column: block_number, range_size: 10000 }"),
        ("range_splitter", "{ size: 1000 }"),
        ("range_splitter", "{ chunk_size: 1000 }"),
        ("query", "{ query: SELECT count(*) FROM a_0 }"),
    ] {
        let job = format!(
            "  - {{ name: b, activation: reactive, runtime: dispatcher, operator: {operator}, outputs: 1, inputs: [{{ from: {{ job: a, output: 0 }} }}], execution_strategy: PerPartition, update_strategy: replace, config: {config} }}\n"
        );
        let text = source("runtime: worker, source: { kind: manual }") + &job;
        assert_eq!(&*definition(&text).jobs[1].operator, operator, "{config}");
    }
}

#[test]
fn defaults_of_the_dag_and_of_its_jobs() {
    let text = source("runtime: worker, source: { kind: manual }").replace(
        "name: d\n",
        "name: d-1\nranges: half_open\ndefaults: { max_attempts: 7, heartbeat_timeout_seconds: 1, timeout_seconds: 5, priority: backfill }\npublish:\n",
    ) + "  - { name: b-2, activation: source, runtime: worker, operator: x, outputs: 0, source: { kind: manual }, max_attempts: 1, timeout_seconds: 6, priority: normal, heartbeat_timeout_seconds: 2 }\n";
    let dag = definition(&text);
    assert_eq!((&*dag.name, dag.ranges), ("d-1", Ranges::HalfOpen));
    let times = |index: usize| {
        let job = &dag.jobs[index];
        (job.max_attempts, job.heartbeat_timeout_seconds, job.timeout_seconds, job.priority)
    };
    assert_eq!(times(0), (Some(7), 1, Some(5), Priority::Backfill));
    assert_eq!(times(1), (Some(1), 2, Some(6), Priority::Normal));
}

#[test]
fn sources() {
    let read = |source_text: &str| match &definition(&source(&format!("runtime: worker, source: {source_text}"))).jobs
        [0]
    .activation
    {
        Activation::Source { source, reset_outputs: false } => source.clone(),
        other => panic!("{other:?}"),
    };
    assert!(
        matches!(read("{ kind: cron, schedule: rate(1 day) }"), Source::Cron { timezone, .. } if &*timezone == "UTC")
    );
    assert!(matches!(
        read("{ kind: webhook, webhook_path: hooks/own, secret: s, signature: github }"),
        Source::Webhook { .. }
    ));
    let always =
        definition(&source("runtime: worker, source: { kind: always_on }, bootstrap: { reset_outputs: true }"));
    let job = &always.jobs[0];
    assert_eq!((job.timeout_seconds, job.max_attempts, job.update_strategy), (None, None, UpdateStrategy::Replace));
    assert_eq!(job.activation, Activation::Source { source: Source::AlwaysOn, reset_outputs: true });
    let limited = source("runtime: worker, source: { kind: always_on }, timeout_seconds: 5");
    assert_eq!(warnings(&limited), [(Some("a".into()), "timeout_seconds".into(), Code::NoEffect)]);
}

#[test]
fn a_webhook_without_its_secret_is_warned_about() {
    let text = source("runtime: worker, source: { kind: webhook, webhook_path: x, secret: hook_key }");
    let warned = |secrets: Option<&[&str]>| {
        let secrets = secrets.map(|names| names.iter().map(|name| (*name).into()).collect());
        let surroundings = tenure_dag::Surroundings { secrets, ..support::surroundings() };
        let warnings = tenure_dag::parse(&text, &support::settings(), &surroundings).unwrap().warnings;
        warnings.into_iter().filter(|warning| warning.code == Code::SecretNotConfigured).collect::<Vec<_>>()
    };
    assert_eq!((warned(None).len(), warned(Some(&["hook_key"])).len()), (0, 0));
    let found = warned(Some(&["hook"]));
    assert_eq!((found.len(), found[0].job.as_deref(), &*found[0].field), (1, Some("a"), "source.secret"));
    assert!(found[0].message.contains("dispatch.secrets.hook_key"), "{}", found[0].message);
}

#[test]
fn an_absent_execution_strategy_is_per_update_with_a_warning() {
    let text = reactive("outputs: 0, inputs: [{ from: { job: a, output: 0 } }]");
    assert_eq!(definition(&text).jobs[1].execution(), Some(ExecutionStrategy::PerUpdate));
    assert_eq!(warnings(&text), [(Some("b".into()), "execution_strategy".into(), Code::DefaultStrategy)]);
}

#[test]
fn inputs_have_aliases() {
    let text = reactive(
        "outputs: 0, execution_strategy: PerUpdate, inputs: [{ from: { job: a, output: 0 } }, { from: { dataset: labels } }, { from: { job: a, output: 0 }, alias: again }]",
    );
    let dag = definition(&text);
    let aliases: Vec<&str> = dag.jobs[1].inputs().iter().map(|input| &*input.alias).collect();
    assert_eq!(aliases, ["a_0", "labels", "again"]);
}

#[test]
fn a_condition_without_a_schema_is_judged_at_read_time() {
    let text = reactive(
        "outputs: 0, execution_strategy: PerUpdate, inputs: [{ from: { job: a, output: 0 }, where: \"anything = 'x'\" }]",
    );
    assert!(definition(&text).jobs[1].inputs()[0].filter.is_some());
}

#[test]
fn idle_timeouts() {
    for (text, expected) in [
        ("never", IdleTimeout::Never),
        ("0", IdleTimeout::Seconds(0)),
        ("30s", IdleTimeout::Seconds(30)),
        ("5m", IdleTimeout::Seconds(300)),
        ("2h", IdleTimeout::Seconds(7_200)),
    ] {
        let text = reactive(&format!(
            "outputs: 0, execution_strategy: PerUpdate, inputs: [{{ from: {{ job: a, output: 0 }} }}], idle_timeout: {text}"
        ));
        let dag = definition(&text);
        assert!(
            matches!(dag.jobs[1].activation, Activation::Reactive { idle_timeout: Some(found), .. } if found == expected)
        );
    }
}

#[test]
fn published_datasets() {
    let schema = "schema: { columns: [{ name: org_id, type: uuid, nullable: false }], unique: [org_id] }";
    let job = source("runtime: worker, source: { kind: manual }").replace("outputs: 1", "outputs: 3");
    let text = format!(
        "{job}publish:\n  x: {{ from: [{{ job: a, output: 0 }}, {{ job: a, output: 1 }}], write_mode: buffered, buffer: {{ kind: sqs }}, {schema} }}\n  y: {{ from: [{{ job: a, output: 2 }}], storage: postgres }}\n"
    );
    let dag = definition(&text);
    let (x, y) = (dag.dataset("x").unwrap(), dag.dataset("y").unwrap());
    assert_eq!((x.from.len(), x.storage, &x.buffer), (2, Some(Storage::Postgres), &Some(Buffer { max_receives: 10 })));
    assert_eq!((y.from.len(), y.storage, &y.buffer), (1, Some(Storage::Postgres), &None));
}

#[test]
fn a_dataset_of_this_dag_may_gain_columns() {
    let job = source("runtime: worker, source: { kind: manual }").replace("name: a", "name: make");
    let columns = "{ name: address, type: text }, { name: chain_id, type: int64 }, { name: new, type: text }";
    definition(&format!(
        "{job}publish:\n  mine: {{ from: {{ job: make, output: 0 }}, schema: {{ columns: [{columns}] }} }}\n"
    ));
    // Another output under the old name is another table.
    let other = job.replace("outputs: 1", "outputs: 2");
    definition(&format!(
        "{other}publish:\n  mine: {{ from: {{ job: make, output: 1 }}, schema: {{ columns: [{{ name: n, type: text }}] }} }}\n"
    ));
}

#[test]
fn bundles_may_have_a_handler() {
    let text = source(
        "runtime: sandbox, source: { kind: manual }, udf: { bundle_id: 0190c0de-0000-7000-8000-000000000001, entrypoint: handle, env: { THRESHOLD: 5 } }",
    );
    assert_eq!(warnings(&text), [(Some("a".into()), "udf.entrypoint".into(), Code::EntrypointHandler)]);
    let udf = definition(&text).jobs[0].udf.clone().unwrap();
    assert_eq!(udf.env.get("THRESHOLD").map(|value| &**value), Some("5"));
    // `udf.node` of the configured functions runs bundles on Lambda.
    let lambda = text.replace("sandbox", "lambda").replace("operator: x", "operator: udf");
    assert_eq!(definition(&lambda).jobs[0].runtime, Runtime::Lambda);
}

#[test]
fn configurations_are_canonical_json() {
    let dag = definition(&source(
        "runtime: worker, source: { kind: manual }, config: { b: [1, 2.5, yes, true, ~, '1'], a: { n: 0x1F, 1: x } }",
    ));
    assert_eq!(&*dag.jobs[0].config, r#"{"a":{"1":"x","n":31},"b":[1,2.5,"yes",true,null,"1"]}"#);
    assert_eq!(&*definition(&source("runtime: worker, source: { kind: manual }, config:")).jobs[0].config, "{}");
}

/// A thousand jobs, each with a condition and an input, are the largest DAG there is.
#[test]
fn a_thousand_jobs_are_read() {
    let mut text = source("runtime: worker, source: { kind: manual }");
    for n in 1..1_000 {
        let before = if n == 1 { "a".to_owned() } else { format!("j{}", n - 1) };
        let _ = writeln!(
            text,
            "  - {{ name: j{n}, activation: reactive, runtime: worker, operator: x, outputs: 1, execution_strategy: PerPartition, update_strategy: replace, inputs: [{{ from: {{ job: {before}, output: 0 }}, where: \"n = {n}\" }}] }}"
        );
    }
    assert_eq!(definition(&text).jobs.len(), 1_000);
}

/// The DAG `labels` reads `gone`, which an earlier version of this DAG published.
#[test]
fn a_dataset_that_others_still_read() {
    let text = source("runtime: worker, source: { kind: manual }");
    let read = |text: &str| {
        accepted(text).warnings.into_iter().map(|warning| (warning.code, warning.message)).collect::<Vec<_>>()
    };
    assert_eq!(read(&text), [(Code::StillRead, "the DAG 'labels' still reads the dataset 'gone'".to_owned())]);
    assert_eq!(read(&format!("{text}publish:\n  gone: {{ from: {{ job: a, output: 0 }} }}\n")), []);
    assert_eq!(read(&text.replace("name: d\n", "name: other\n")), []);
}
