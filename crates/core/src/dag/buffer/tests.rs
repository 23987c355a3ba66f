use serde_json::json;

use super::*;
use crate::dag::Deployment;
use crate::dag::task::Trigger;
use crate::dag::testing::{Counter, active_job, dag, deploy, source};

const ORG: &str = "acme";

fn buffered(name: &str, jobs: &[&str]) -> super::super::definition::Publish {
    let from: Vec<_> = jobs.iter().map(|job| json!({"job": job, "output": 0})).collect();
    let publish = json!({
        "dataset": name, "from": from, "write_mode": "buffered", "storage": "postgres", "buffer": {"max_receives": 4},
    });
    serde_json::from_value(publish).unwrap()
}

/// Two jobs write to `alerts`; the second one also writes to `notes`.
fn deployed() -> Deployment {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    let mut definition = dag("d", vec![source("one", 1), source("two", 1), source("none", 1)]);
    definition.jobs[1].outputs = 2;
    definition.publish = vec![buffered("alerts", &["one", "two"]), buffered("notes", &[])];
    definition.publish[1].from = vec![serde_json::from_value(json!({"job": "two", "output": 1})).unwrap()];
    deploy(&mut deployment, &definition, &mut fresh, false).unwrap();
    deployment
}

fn input(deployment: &Deployment, job: &str) -> TaskInput {
    let id = active_job(deployment, "d", job);
    let outputs = deployment.jobs[&id].outputs.clone();
    TaskInput {
        job: id,
        dag_version: 1,
        trigger: Trigger::AlwaysOn,
        inputs: vec![],
        outputs,
        invalidation: None,
        rebuild: None,
    }
}

#[test]
fn a_task_publishes_to_a_buffered_output_of_its_job() {
    let deployment = deployed();
    let (one, two, none) = (input(&deployment, "one"), input(&deployment, "two"), input(&deployment, "none"));
    let published = |name: &str| &deployment.active("d").unwrap().published[name];
    let alerts = published("alerts");
    assert_eq!((alerts.dataset, &*alerts.others), (one.outputs[0].dataset, &[two.outputs[0].dataset][..]));
    assert_eq!(alerts.max_receives, Some(4));
    let find = |input: &TaskInput, id: Option<DatasetId>, scope: Option<&str>| {
        target(&deployment, "d", input, id.map(|id| id.to_string()).as_deref(), scope).map_err(|refusal| refusal.code)
    };
    // The only one.
    let found = find(&one, None, None).unwrap();
    assert_eq!((found.dataset, found.version), (alerts.dataset, Some(one.outputs[0].version)));
    assert_eq!(find(&one, None, Some("unknown")), Ok(found));
    // By its own id of the output, or by that of the dataset; the generation is that of the first producer.
    let found = find(&two, Some(two.outputs[0].dataset), None).unwrap();
    assert_eq!((found.dataset, found.version), (alerts.dataset, None));
    assert_eq!(find(&two, Some(alerts.dataset), Some("notes")), Ok(found.clone()));
    assert_eq!(find(&two, None, Some("alerts")), Ok(found));
    assert_eq!(find(&two, None, Some("notes")).unwrap().dataset, two.outputs[1].dataset);
    assert_eq!(find(&two, None, None), Err("dataset_ambiguous"));
    assert_eq!(find(&two, None, Some("unknown")), Err("dataset_ambiguous"));
    assert_eq!(find(&one, Some(two.outputs[1].dataset), None), Err("dataset_not_granted"));
    assert_eq!(find(&none, Some(none.outputs[0].dataset), None), Err("dataset_not_granted"), "it is not buffered");
    assert_eq!(find(&none, None, None), Err("dataset_ambiguous"));
}

fn batch(content: Content) -> Batch {
    let producer = Producer { task: "t".into(), attempt: 2, job: "one".into() };
    Batch {
        dataset: DatasetId::from_u128(7),
        version: None,
        producer: Some(producer),
        schema_hash: Some("sha256:x".into()),
        content,
        outside: false,
        fault: None,
    }
}

#[test]
fn a_message_is_read_as_it_was_written() {
    let id = PublishId::from_u128(1 << 70);
    let contents = [
        Content::Records("[{\"n\":1.00000000000000000001}]".into()),
        Content::Artifact { uri: "s3://b/x.jsonl".into(), bytes: Some(9) },
    ];
    for content in contents {
        let batch = batch(content);
        let text = message(ORG, id, &batch);
        assert!(!text.contains("lease"), "{text}");
        assert_eq!(read_message(ORG, DatasetId::from_u128(7), &text), (id, Batch { outside: true, ..batch }));
    }
}

#[test]
fn a_bare_message_belongs_to_the_dataset_of_its_queue() {
    let dataset = DatasetId::from_u128(7);
    let text = r#"{"records":[{"a":1}],"unknown":true}"#;
    let (id, batch) = read_message(ORG, dataset, text);
    assert_eq!((batch.dataset, batch.content), (dataset, Content::Records("[{\"a\":1}]".into())));
    assert_eq!(id, PublishId::of_message(dataset, text.as_bytes()));
    let own = org_id(ORG);
    for (text, code) in [
        ("no json".to_owned(), "malformed_message"),
        ("[]".to_owned(), "malformed_message"),
        ("{}".to_owned(), "malformed_message"),
        (r#"{"records":[],"batch_uri":"s3://b/x"}"#.to_owned(), "malformed_message"),
        (r#"{"records":[],"org_id":"0190c0de-0000-7000-8000-000000000001"}"#.to_owned(), "foreign_org"),
        (
            format!(r#"{{"records":[],"org_id":"{own}","dataset_uuid":"{}"}}"#, DatasetId::from_u128(8)),
            "foreign_dataset",
        ),
        (r#"{"records":[],"content_type":"text/csv"}"#.to_owned(), "unsupported_content_type"),
    ] {
        let (_, batch) = read_message(ORG, dataset, &text);
        assert_eq!(&*batch.fault.unwrap().code, code, "{text}");
        assert_eq!(batch.content, Content::Records(text.into()), "it is kept");
    }
}

#[test]
fn ids_follow_from_what_they_name() {
    let (task, dataset) = (TaskId::from_u128(1), DatasetId::from_u128(2));
    let content = Content::Records("[]".into());
    let id = PublishId::of_task(task, 1, dataset, &content);
    assert_eq!(id, PublishId::of_task(task, 1, dataset, &content));
    for other in [
        PublishId::of_task(task, 2, dataset, &content),
        PublishId::of_task(TaskId::from_u128(2), 1, dataset, &content),
        PublishId::of_task(task, 1, DatasetId::from_u128(3), &content),
        PublishId::of_task(task, 1, dataset, &Content::Records("[{}]".into())),
    ] {
        assert_ne!(id, other);
    }
    assert!(id.outbox() < 0 && id.dead_outbox(10) < 0 && id.outbox() != id.dead_outbox(10));
}

#[test]
fn batches_are_tried_again_after_1_to_60_seconds() {
    assert_eq!([1, 2, 3, 6, 7, 10, 1_000].map(retry_ms), [1_000, 2_000, 4_000, 32_000, 60_000, 60_000, 60_000]);
}

#[test]
fn a_dead_letter_has_the_original_as_far_as_it_fits() {
    let error = BatchError { code: "wrong_type".into(), message: "no".into(), line: Some(3) };
    let letter = |content| {
        let text = dead_letter(ORG, PublishId::from_u128(1), &batch(content), 10, &error);
        assert!(text.len() <= INLINE_BYTES);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let small = letter(Content::Records("[{\"a\":1}]".into()));
    assert_eq!((&small["receives"], &small["error"]["line"]), (&json!(10), &json!(3)));
    assert_eq!(small["original"]["records"], json!([{"a": 1}]));
    let large = letter(Content::Records(format!("[{{\"a\":\"{}\"}}]", "x".repeat(INLINE_BYTES - 400)).into()));
    assert_eq!((&large["original"]["records"], &large["original"]["schema_hash"]), (&json!([]), &json!("sha256:x")));
}
