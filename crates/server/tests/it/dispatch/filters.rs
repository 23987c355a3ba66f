//! Conditions on inputs: both spellings, what is refused at deploy, and that they are not applied in routing.

use serde_json::{Value, json};

use super::kit::{self, Plane};
use crate::cases;

cases!(
    kit,
    on_sqlite: [what_is_not_a_condition_is_refused_at_deploy],
    on_both_stores: [both_spellings_are_one_condition],
);

/// Alerts with a schema, and two jobs that read them with a condition each.
fn alerts(first: &str, second: &str) -> String {
    format!(
        "name: chain
jobs:
  - {{ name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: {{ kind: manual }} }}
  - {{ name: first, activation: reactive, runtime: worker, operator: first, outputs: 0, execution_strategy: PerUpdate,
      inputs: [{{ from: {{ dataset: alerts }}, where: {first} }}] }}
  - {{ name: second, activation: reactive, runtime: worker, operator: second, outputs: 0, execution_strategy: PerUpdate,
      inputs: [{{ from: {{ dataset: alerts }}, where: {second} }}] }}
publish:
  alerts:
    from: {{ job: import, output: 0 }}
    storage: postgres
    schema:
      columns: [{{ name: org_id, type: uuid, nullable: false }}, {{ name: severity, type: text }},
        {{ name: chain_id, type: int64 }}, {{ name: seen_at, type: timestamptz }}]
      unique: [org_id]
"
    )
}

const TEXT: &str = "\"chain_id IN (1, 10143) AND severity = 'critical'\"";
const MAP: &str = "{ chain_id: [1, 10143], severity: critical }";

async fn both_spellings_are_one_condition(plane: Plane) {
    plane.deploy(&alerts(TEXT, MAP)).await;
    for (round, cursor) in [(1, 7), (2, 20)] {
        let import = plane.claim(&plane.fire(&format!("r-{round}")).await).await;
        let output = &import["task"]["outputs"][0];
        let table = format!("postgres_table:dataset_{}", output["dataset_uuid"].as_str().unwrap());
        let wrote = import.output(0, json!({"cursor": cursor, "location": table, "row_count": 0}));
        plane.complete(&import, json!({"status": "Completed", "outputs": [wrote]})).await.ok();
        let mut told: Vec<Value> = Vec::new();
        for (operator, written) in [("first", json!(TEXT.trim_matches('"'))), ("second", json!(null))] {
            let claim = plane.claim(&plane.nth(operator, round).await).await;
            let mut input = claim["task"]["inputs"][0].clone();
            let sent = input.as_object_mut().unwrap().remove("where").unwrap();
            if written.is_null() {
                assert_eq!(sent, json!({"severity": "critical", "chain_id": [1, 10143]}), "as it was written");
            } else {
                assert_eq!(sent, written);
            }
            // Not one row matched. What was looked through is not looked through again.
            plane.complete(&claim, json!({"status": "Completed"})).await.ok();
            told.push(input);
        }
        assert_eq!(told[0], told[1], "the same rows, whichever way it is written");
        let after = if round == 1 { 0 } else { 7 };
        assert_eq!(told[0]["cursor"], json!({"column": "_seq", "after": after, "upto": cursor}));
        assert_eq!(
            told[0]["where_tree"],
            json!({"op": "and", "args": [
                {"op": "in", "field": "chain_id", "value": [1, 10143]},
                {"op": "eq", "field": "severity", "value": "critical"},
            ]})
        );
    }
}

async fn what_is_not_a_condition_is_refused_at_deploy(plane: Plane) {
    let deep = format!("\"{}severity = 'x'{}\"", "(".repeat(17), ")".repeat(17));
    let long = format!("\"severity = '{}'\"", "x".repeat(4 << 10));
    for condition in [
        "\"chain_id IN (SELECT chain_id FROM secrets)\"",
        "\"severity = (SELECT 1)\"",
        "\"lower(severity) = 'critical'\"",
        "\"severity = 'critical'; DROP TABLE bodies\"",
        "\"severity = 'critical' -- and\"",
        "\"severity = 'critical' /* and */\"",
        "\"severity = chain_id\"",
        "\"severity = 'critical' UNION SELECT 1\"",
        "\"severity\"",
        "\"1 = 1\"",
        "\"severty = 'critical'\"",
        "\"chain_id = 'one'\"",
        "\"severity = 1\"",
        "\"severity = $1\"",
        "\"severity BETWEEN 'a' AND 'b'\"",
        "\"\"",
        "{ severty: critical }",
        "{ chain_id: one }",
        "{ chain_id: [1, one] }",
        "{ severity: { eq: critical } }",
        "{ severity: [] }",
        "[severity]",
        &deep,
        &long,
    ] {
        let yaml = alerts(TEXT, condition);
        let refused = plane.send("/api/v1/dags", &[("Content-Type", "application/yaml")], yaml).await;
        let refused = refused.refused(422);
        assert_eq!(refused["error"], "invalid_dag", "{condition}");
        let errors = refused["errors"].as_array().unwrap();
        let named = errors.iter().all(|error| {
            error["job"] == "second"
                && error["field"].as_str().unwrap().starts_with("inputs[0].where")
                && error["line"] == 7
        });
        assert!(named && !errors.is_empty(), "{condition}: {refused}");
    }
    assert_eq!(plane.get("/api/v1/dags").await.ok()["items"], json!([]));
}
