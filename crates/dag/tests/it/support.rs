use std::collections::BTreeSet;

use tenure_core::dag::DagDefinition;
use tenure_core::dag::definition::{Output, Storage, WriteMode};
use tenure_core::dag::{Column, Ranges, Schema};
use tenure_dag::{Bundle, Bundles, Dataset, Edge, Parsed, Problem, Reader, Settings, Surroundings, parse};

/// The example of the contract.
pub const EXAMPLE: &str = include_str!("chain_watch.yaml");

pub fn settings() -> Settings {
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    Settings {
        lambda_functions: set(&["alert_route", "udf.node", "score.python"]),
        runtimes: set(&["gpu_pool"]),
        ..Settings::default()
    }
}

pub fn columns(columns: &[(&str, &str)]) -> Schema {
    let column =
        |&(name, kind): &(&str, &str)| Column { name: name.into(), kind: kind.parse().unwrap(), nullable: true };
    Schema { columns: columns.iter().map(column).collect(), unique: Vec::new(), indexes: Vec::new() }
}

/// An organisation with two other DAGs: `labels` publishes `labels` and reads `blocks`; `wide` has half-open ranges.
pub fn surroundings() -> Surroundings {
    let dataset = |dag: &str, ranges| Dataset {
        dag: dag.into(),
        producers: vec![Output { job: "make".into(), output: 0 }],
        ranges,
        storage: Some(Storage::S3),
        write_mode: WriteMode::Direct,
        schema: Some(columns(&[("address", "text"), ("chain_id", "int64")])),
    };
    let bundle = Bundle {
        runtime: "node".into(),
        entrypoint: "index.js".into(),
        files: ["index.js", "other.js"].map(Into::into).into(),
        env_allowlist: ["THRESHOLD"].map(Into::into).into(),
    };
    Surroundings {
        datasets: [
            ("labels".into(), dataset("labels", Ranges::Inclusive)),
            ("wide".into(), dataset("wide", Ranges::HalfOpen)),
            ("mine".into(), dataset("d", Ranges::Inclusive)),
            ("gone".into(), dataset("d", Ranges::Inclusive)),
        ]
        .into(),
        edges: vec![
            Edge { dag: "labels".into(), from: "blocks".into(), to: "labels".into() },
            // Of an earlier version: it does not count.
            Edge { dag: "d".into(), from: "labels".into(), to: "blocks".into() },
        ],
        readers: ["blocks", "gone"]
            .map(|dataset| Reader { dag: "labels".into(), dataset: dataset.into(), ranges: Ranges::Inclusive })
            .into(),
        webhook_paths: [("hooks/taken".into(), "labels".into()), ("hooks/own".into(), "d".into())].into(),
        foreign_webhook_paths: ["hooks/foreign".into()].into(),
        secrets: None,
        bundles: Bundles::Known([("0190c0de-0000-7000-8000-000000000001".parse().unwrap(), bundle)].into()),
    }
}

pub fn read(text: &str) -> Result<Parsed, Vec<Problem>> {
    parse(text, &settings(), &surroundings())
}

#[track_caller]
pub fn accepted(text: &str) -> Parsed {
    read(text).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"))
}

#[track_caller]
pub fn definition(text: &str) -> DagDefinition {
    accepted(text).definition
}
