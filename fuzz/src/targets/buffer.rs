//! Rows of buffered datasets and messages of their queues, well meant or not.

use serde_json::{Map, Value};
use tenure_core::dag::buffer::{Content, read_message};
use tenure_core::dag::{Column, DatasetId, Schema};
use tenure_data::{Cells, Rows};
use uuid::Uuid;

const MESSAGE_BYTES: usize = 400;
const ORG: &str = "0190c0de-0000-7000-8000-000000000001";

fn schema() -> Schema {
    let kinds = [
        ("org_id", "uuid", false),
        ("key", "text", false),
        ("n", "int64", true),
        ("small", "int32", true),
        ("f", "float64", true),
        ("b", "bool", true),
        ("amount", "decimal(10,2)", true),
        ("day", "date", true),
        ("at", "timestamptz", true),
        ("payload", "jsonb", true),
        ("raw", "bytes", true),
    ];
    let column = |(name, kind, nullable): (&str, &str, bool)| Column {
        name: name.into(),
        kind: kind.parse().expect("a type"),
        nullable,
    };
    Schema { columns: kinds.map(column).into(), unique: vec!["org_id".into(), "key".into()], indexes: vec![] }
}

/// Lines. What is accepted has a value for each row and column, and the organisation is the trusted one.
pub fn rows(data: &[u8]) {
    let (schema, org) = (schema(), Uuid::try_parse(ORG).expect("an id"));
    match Rows::parse(&schema, org, data) {
        Ok(rows) => {
            let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
            let objects: Vec<Map<String, Value>> =
                lines.map(|line| serde_json::from_slice(line).expect("an accepted line is an object")).collect();
            assert_eq!(rows.len(), objects.len());
            let Cells::Uuid(orgs) = &rows.columns()[0] else { panic!("an organisation is a UUID") };
            assert!(orgs.len() == rows.len() && orgs.iter().all(|found| *found == Some(org)));
            let Cells::Text(keys) = &rows.columns()[1] else { panic!("a key is a text") };
            for (row, object) in objects.iter().enumerate() {
                assert_eq!(keys.get(row), object["key"].as_str());
                assert!(object.keys().all(|name| schema.column(name).is_some()));
            }
            let records = serde_json::to_string(&objects).expect("objects are JSON");
            assert_eq!(Rows::of_records(&schema, org, &records).expect("the same rows").len(), rows.len());
        }
        Err(fault) => {
            assert!(fault.message.len() < MESSAGE_BYTES && !fault.message.contains('\n'), "{}", fault.message);
            let lines = data.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            assert!((1..=lines).contains(&fault.line), "line {} of {lines}", fault.line);
        }
    }
}

/// A message of a queue. Whatever it is, it is kept: as a batch, or as what is wrong.
pub fn message(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let dataset = DatasetId::from_u128(7);
    let (id, batch) = read_message(ORG, dataset, text);
    assert!(batch.outside && batch.dataset == dataset && batch.version.is_none());
    if batch.fault.is_some() {
        assert_eq!(batch.content, Content::Records(text.into()));
    }
    let stored = serde_json::to_string(&batch).expect("a batch is JSON");
    assert_eq!(batch, serde_json::from_str(&stored).expect("what is stored is found"));
    assert_eq!(read_message(ORG, dataset, text).0, id);
}
