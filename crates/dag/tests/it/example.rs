//! The example of the contract.

use std::collections::BTreeSet;

use serde_json::json;
use tenure_core::dag::definition::{
    Activation, Buffer, ExecutionStrategy, Output, Priority, Runtime, Signature, Source, Storage, UpdateStrategy,
    Upstream, WriteMode,
};
use tenure_core::dag::{Ranges, definition_digest};
use tenure_core::schedule::CatchUp;
use tenure_dag::{Bundles, Code, Surroundings, parse};

use super::support::{EXAMPLE, definition, settings};

#[test]
fn the_example_is_read() {
    let dag = definition(EXAMPLE);
    assert_eq!((&*dag.name, dag.ranges, dag.jobs.len(), dag.publish.len()), ("chain_watch", Ranges::Inclusive, 7, 2));
    let job = |name: &str| dag.job(name).unwrap();
    assert_eq!(
        job("hourly").source(),
        Some(&Source::Cron { schedule: "0 * * * *".into(), timezone: "UTC".into(), catch_up: CatchUp::Latest })
    );
    assert_eq!(job("import_labels").source(), Some(&Source::Manual));
    let hook = job("new_range");
    assert_eq!(
        hook.source(),
        Some(&Source::Webhook {
            path: "chain/new-range".into(),
            secret: "hook_key".into(),
            signature: Signature::Tenure
        })
    );
    assert_eq!((hook.outputs, hook.timeout_seconds, &*hook.secrets), (2, Some(900), &["chain_rpc_key".into()][..]));
    let decode = job("decode");
    assert_eq!(decode.runtime, Runtime::Worker { name: "worker".into() });
    assert_eq!(decode.execution(), Some(ExecutionStrategy::PerPartition));
    assert_eq!(
        (decode.timeout_seconds, decode.max_attempts, decode.heartbeat_timeout_seconds),
        (Some(1_800), Some(3), 120)
    );
    assert_eq!(
        (decode.scaling.max_concurrency, &*decode.config, decode.priority),
        (Some(20), r#"{"abi":"erc20"}"#, Priority::Normal)
    );
    let input = &decode.inputs()[0];
    assert_eq!(
        (&input.from, &*input.alias),
        (&Upstream::Job(Output { job: "new_range".into(), output: 1 }), "raw_logs")
    );
    let detect = job("detect");
    assert_eq!((detect.update_strategy, &*detect.unique_key), (UpdateStrategy::Append, &["dedupe_key".into()][..]));
    let udf = detect.udf.as_ref().unwrap();
    assert_eq!(
        (udf.entrypoint.as_deref(), udf.env.get("THRESHOLD").map(|value| &**value)),
        (Some("index.js"), Some("1000"))
    );
    assert_eq!((&job("page").runtime, job("page").timeout_seconds), (&Runtime::Lambda, Some(60)));
    assert_eq!(
        json!(job("page").inputs()[0].filter.as_ref().unwrap()),
        json!({
            "written": "severity = 'critical' AND chain_id IN (1, 10143)",
            "tree": {"op": "and", "args": [
                {"op": "eq", "field": "severity", "value": "critical"}, {"op": "in", "field": "chain_id", "value": [1, 10143]},
            ]},
        })
    );
    assert_eq!(
        json!(job("digest").inputs()[0].filter.as_ref().unwrap().tree),
        json!({"op": "and", "args": [
            {"op": "eq", "field": "chain_id", "value": 10143},
            {"op": "in", "field": "severity", "value": ["info", "warning"]},
        ]})
    );
    assert_eq!(&*job("digest").inputs()[0].alias, "alert_events");
    let blocks = dag.dataset("blocks").unwrap();
    assert_eq!((blocks.storage, blocks.write_mode, &blocks.buffer), (None, WriteMode::Direct, &None));
    let alerts = dag.published("detect", 0).unwrap();
    assert_eq!(
        (&*alerts.dataset, alerts.storage, alerts.write_mode),
        ("alert_events", Some(Storage::Postgres), WriteMode::Buffered)
    );
    assert_eq!(alerts.buffer, Some(Buffer { max_receives: 10 }));
    let schema = alerts.schema.as_ref().unwrap();
    assert_eq!((schema.columns.len(), schema.unique.len(), schema.indexes.len()), (6, 2, 1));
    assert!(schema.column("severity").unwrap().nullable && !schema.column("org_id").unwrap().nullable);
}

#[test]
fn without_bundles_the_example_is_refused_for_its_bundle_alone() {
    let problems = parse(EXAMPLE, &settings(), &Surroundings::default()).unwrap_err();
    let found: Vec<_> = problems.iter().map(|problem| (problem.line, problem.job.as_deref(), problem.code)).collect();
    assert_eq!(found, [(21, Some("detect"), Code::BundlesUnavailable)]);
    let unchecked = Surroundings { bundles: Bundles::Unchecked, ..Surroundings::default() };
    assert!(parse(EXAMPLE, &settings(), &unchecked).is_ok());
}

#[test]
fn layout_does_not_change_the_digests() {
    let flow = definition(EXAMPLE);
    let digests = |dag: &tenure_core::dag::DagDefinition| -> BTreeSet<[u8; 32]> {
        dag.jobs.iter().map(|job| definition_digest(dag, job)).collect()
    };
    let mut turned = flow.clone();
    turned.jobs.reverse();
    turned.publish.reverse();
    assert_eq!(digests(&turned), digests(&flow));
    // Another spelling of the runtime, of the condition, of the defaults, of the configuration.
    let other = EXAMPLE
        .replace("runtime: ecs_platform ", "runtime: worker ")
        .replace(
            "{ severity: [info, warning], chain_id: 10143 }",
            "\"chain_id = 10143 AND severity IN ('info','warning')\"",
        )
        .replace("defaults: { max_attempts: 3, heartbeat_timeout_seconds: 120 }", "")
        .replace("config: { abi: erc20 }", "config:\n      abi: \"erc20\"");
    assert_ne!(other, EXAMPLE);
    assert_eq!(digests(&definition(&other)), digests(&flow));
    let changed = EXAMPLE.replace("abi: erc20", "abi: erc721");
    assert_eq!(digests(&definition(&changed)).symmetric_difference(&digests(&flow)).count(), 2);
}

#[test]
fn a_definition_survives_storage() {
    let dag = definition(EXAMPLE);
    let text = serde_json::to_string(&dag).unwrap();
    assert_eq!(serde_json::from_str::<tenure_core::dag::DagDefinition>(&text).unwrap(), dag);
    assert!(dag.jobs.iter().any(|job| matches!(job.activation, Activation::Reactive { .. })));
}
