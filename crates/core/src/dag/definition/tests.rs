use super::*;
use crate::dag::filter::{Comparison, Literal};
use crate::dag::schema::{Column, ColumnType};

fn filter(field: &str) -> Filter {
    Filter::Compare { op: Comparison::Eq, field: field.into(), value: Literal::Int(1) }
}

fn job() -> JobDefinition {
    let from = Upstream::Job(Output { job: "fetch".into(), output: 1 });
    let condition = Where { written: json!("a = 1"), tree: filter("a") };
    JobDefinition {
        name: "decode".into(),
        activation: Activation::Reactive {
            inputs: vec![Input { from, alias: "raw".into(), filter: Some(condition) }],
            execution: ExecutionStrategy::PerPartition,
            idle_timeout: Some(IdleTimeout::Seconds(30)),
        },
        runtime: Runtime::Worker { name: "worker".into() },
        operator: "decode_logs".into(),
        outputs: 1,
        update_strategy: UpdateStrategy::Append,
        unique_key: vec!["b".into(), "a".into()],
        priority: Priority::Normal,
        scaling: Scaling { max_concurrency: Some(20), worker_pool: None },
        secrets: vec!["y".into(), "x".into()],
        timeout_seconds: Some(1_800),
        max_attempts: Some(3),
        heartbeat_timeout_seconds: 120,
        config: r#"{"abi":"erc20"}"#.into(),
        udf: None,
    }
}

fn publish() -> Publish {
    let columns = vec![Column { name: "org_id".into(), kind: ColumnType::Uuid, nullable: false }];
    Publish {
        dataset: "logs".into(),
        from: vec![Output { job: "decode".into(), output: 0 }],
        storage: Some(Storage::Postgres),
        write_mode: WriteMode::Buffered,
        schema: Some(Schema { columns, unique: vec!["org_id".into()], indexes: vec![] }),
        buffer: Some(Buffer { max_receives: 10 }),
    }
}

fn dag() -> DagDefinition {
    DagDefinition { name: "watch".into(), ranges: Ranges::Inclusive, jobs: vec![job()], publish: vec![publish()] }
}

fn digest(dag: &DagDefinition) -> [u8; 32] {
    definition_digest(dag, &dag.jobs[0])
}

fn inputs(job: &mut JobDefinition) -> &mut Vec<Input> {
    match &mut job.activation {
        Activation::Reactive { inputs, .. } => inputs,
        Activation::Source { .. } => unreachable!(),
    }
}

#[test]
fn definitions_are_stored_as_json() {
    let mut dag = dag();
    for (name, source) in [
        ("cron", Source::Cron { schedule: "0 * * * *".into(), timezone: "UTC".into(), catch_up: CatchUp::All }),
        ("hook", Source::Webhook { path: "a/b".into(), secret: "key".into(), signature: Signature::Github }),
        ("manual", Source::Manual),
        ("on", Source::AlwaysOn),
    ] {
        let activation = Activation::Source { source, reset_outputs: true };
        let udf = Udf { bundle_id: Uuid::nil(), entrypoint: None, env: [("A".into(), "1".into())].into() };
        dag.jobs.push(JobDefinition { name: name.into(), activation, udf: Some(udf), ..job() });
    }
    let text = serde_json::to_string(&dag).unwrap();
    assert_eq!(serde_json::from_str::<DagDefinition>(&text).unwrap(), dag);
}

#[test]
fn order_and_layout_do_not_change_the_digest() {
    let plain = digest(&dag());
    let mut other = dag();
    other.jobs[0].unique_key.reverse();
    other.jobs[0].secrets.reverse();
    inputs(&mut other.jobs[0])[0].filter.as_mut().unwrap().written = json!({"a": 1});
    other.publish[0].dataset = "renamed".into();
    other.publish[0].schema = None;
    other.publish[0].buffer = Some(Buffer { max_receives: 3 });
    other.jobs.push(JobDefinition { name: "another".into(), ..job() });
    assert_eq!(digest(&other), plain);
}

#[test]
fn every_change_of_meaning_changes_the_digest() {
    let changes: [fn(&mut DagDefinition); 23] = [
        |dag| dag.ranges = Ranges::HalfOpen,
        |dag| dag.publish[0].storage = Some(Storage::S3),
        |dag| dag.publish[0].write_mode = WriteMode::Direct,
        |dag| dag.jobs[0].name = "decode2".into(),
        |dag| dag.jobs[0].runtime = Runtime::Worker { name: "ecs_rust".into() },
        |dag| dag.jobs[0].runtime = Runtime::Lambda,
        |dag| dag.jobs[0].operator = "other".into(),
        |dag| dag.jobs[0].outputs = 2,
        |dag| dag.jobs[0].update_strategy = UpdateStrategy::Replace,
        |dag| dag.jobs[0].unique_key = vec!["a".into()],
        |dag| dag.jobs[0].priority = Priority::Backfill,
        |dag| dag.jobs[0].scaling.max_concurrency = Some(21),
        |dag| dag.jobs[0].scaling.worker_pool = Some("big".into()),
        |dag| dag.jobs[0].secrets = vec!["x".into()],
        |dag| dag.jobs[0].timeout_seconds = Some(1_801),
        |dag| dag.jobs[0].max_attempts = Some(4),
        |dag| dag.jobs[0].heartbeat_timeout_seconds = 60,
        |dag| dag.jobs[0].config = "{}".into(),
        |dag| dag.jobs[0].udf = Some(Udf { bundle_id: Uuid::nil(), entrypoint: None, env: BTreeMap::new() }),
        |dag| dag.jobs[0].activation = Activation::Source { source: Source::Manual, reset_outputs: false },
        |dag| inputs(&mut dag.jobs[0])[0].alias = "other".into(),
        |dag| inputs(&mut dag.jobs[0])[0].from = Upstream::Dataset("logs".into()),
        |dag| inputs(&mut dag.jobs[0])[0].filter.as_mut().unwrap().tree = filter("b"),
    ];
    let mut seen = BTreeSet::from([digest(&dag())]);
    for (index, change) in changes.iter().enumerate() {
        let mut dag = dag();
        change(&mut dag);
        assert!(seen.insert(digest(&dag)), "change {index}");
    }
}

#[test]
fn names_of_dags_jobs_and_datasets() {
    for name in ["a", "chain_watch", "chain-watch", "a1", &"x".repeat(NAME_CHARS)] {
        assert!(valid_name(name), "{name}");
    }
    for name in ["", "A", "1a", "_a", "-a", "a.b", "a b", "é", &"x".repeat(NAME_CHARS + 1)] {
        assert!(!valid_name(name), "{name}");
    }
}
