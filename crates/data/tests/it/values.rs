use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tenure_data::{FaultCode, Rows};

use crate::stand::{ORG, column, postgres, read, sqlite, table};

fn all_types() -> tenure_data::Table {
    let kinds = [
        ("id", "uuid"),
        ("s", "text"),
        ("b", "bool"),
        ("small", "int32"),
        ("f", "float64"),
        ("amount", "decimal(20,4)"),
        ("day", "date"),
        ("at", "timestamptz"),
        ("payload", "jsonb"),
        ("raw", "bytes"),
    ];
    let columns: Vec<_> = kinds.map(|(name, kind)| column(name, kind, true)).into();
    table(3, &columns)
}

fn row() -> impl Strategy<Value = Value> {
    let text = "[^\\x00]{0,12}";
    let values = (
        prop::option::of(any::<u128>()),
        prop::option::of(text),
        prop::option::of(any::<bool>()),
        prop::option::of(any::<i32>()),
        prop::option::of(-1e15..1e15_f64),
        prop::option::of((any::<i32>(), 0..10_000_u32)),
        prop::option::of((1..9999_u32, 1..13_u32, 1..29_u32)),
        prop::option::of((0..9999_u32, 0..24_u32, 0..1_000_000_000_u32)),
        prop::option::of((text, any::<i64>())),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
    );
    values.prop_map(|(id, s, b, small, f, amount, day, at, payload, raw)| {
        use base64::Engine as _;
        json!({
            "id": id.map(|id| uuid::Uuid::from_u128(id).to_string().to_uppercase()), "s": s, "b": b, "small": small, "f": f,
            "amount": amount.map(|(whole, part)| format!("{whole}.{part:04}")),
            "day": day.map(|(y, m, d)| format!("{y:04}-{m:02}-{d:02}")),
            "at": at.map(|(y, h, ns)| format!("{y:04}-02-03T{h:02}:05:06.{ns:09}+01:00")),
            "payload": payload.map(|(text, n)| json!({"z": n, "a": [text, null, true]})),
            "raw": raw.map(|raw| base64::engine::general_purpose::STANDARD.encode(raw)),
        })
    })
}

/// Random rows of all types are the same in both stores.
#[tokio::test]
async fn both_stores_keep_the_same_values() {
    let table = all_types();
    let mut runner = TestRunner::deterministic();
    let lines: String = (0..500)
        .map(|n| {
            let mut row = row().new_tree(&mut runner).unwrap().current();
            row["key"] = json!(n.to_string());
            format!("{row}\n")
        })
        .collect();
    let mut found = Vec::new();
    for stand in [sqlite(), postgres().await] {
        stand.store.ensure(&table).await.unwrap();
        let rows = Rows::parse(&table.schema, ORG, lines.as_bytes()).unwrap();
        assert_eq!(stand.store.append(&table, vec![rows]).await.unwrap().rows, 500);
        found.push(read(&stand.store.reading(&table).await.unwrap(), 0).await);
    }
    assert_eq!(found[0].len(), 500);
    for (one, other) in found[0].iter().zip(&found[1]) {
        assert_eq!(one, other);
    }
}

#[test]
fn inline_records_and_lines_are_the_same_rows() {
    let table = all_types();
    let records = r#"[{"key":"a","n":1,"payload":{"b":1}},{"n":null,"key":"b"}]"#;
    let lines = "\n{\"key\":\"a\",\"n\":1,\"payload\":{\"b\":1}}\r\n   \n{\"n\":null,\"key\":\"b\"}\n\n";
    let rows = Rows::of_records(&table.schema, ORG, records).unwrap();
    assert_eq!((rows.len(), rows), (2, Rows::parse(&table.schema, ORG, lines.as_bytes()).unwrap()));
}

#[test]
fn the_first_fault_is_named_with_its_line_and_without_the_value() {
    let schema = all_types().schema;
    let good = "{\"key\":\"a\"}";
    let own = format!("{{\"key\":\"b\",\"org_id\":\"{ORG}\"}}");
    for (line, code, message) in [
        (
            "{\"key\":\"x\",\"org_id\":\"0190c0de-0000-7000-8000-000000000002\"}",
            FaultCode::ForeignOrg,
            "another organisation",
        ),
        ("{\"key\":null}", FaultCode::NullValue, "column `key` needs a value"),
        ("{\"n\":1}", FaultCode::NullValue, "column `key` needs a value"),
        ("{\"key\":\"x\",\"nn\":1}", FaultCode::UnknownField, "no column `nn`"),
        ("{\"key\":\"x\",\"_seq\":1}", FaultCode::UnknownField, "no column `_seq`"),
        ("{\"key\":\"x\",\"key\":\"y\"}", FaultCode::DuplicateField, "twice"),
        (
            "{\"key\":\"secret\",\"n\":\"secret\"}",
            FaultCode::WrongType,
            "column `n` is int64: expected an integer of 64 bits, found a text",
        ),
        ("{\"key\":\"x\",\"n\":9223372036854775808}", FaultCode::WrongType, "a larger integer"),
        ("{\"key\":\"x\",\"n\":1.5}", FaultCode::WrongType, "a number with a fraction"),
        ("{\"key\":\"x\",\"small\":2147483648}", FaultCode::WrongType, "a larger integer"),
        ("{\"key\":\"x\",\"b\":1}", FaultCode::WrongType, "true or false"),
        ("{\"key\":1}", FaultCode::WrongType, "expected a text"),
        ("{\"key\":\"x\\u0000\"}", FaultCode::WrongType, "without NUL"),
        ("{\"key\":\"x\",\"payload\":{\"a\":[\"\\u0000\"]}}", FaultCode::WrongType, "without NUL"),
        ("{\"key\":\"x\",\"amount\":\"1.00001\"}", FaultCode::WrongType, "decimal(20,4)"),
        ("{\"key\":\"x\",\"amount\":0.1234567890123456789}", FaultCode::WrongType, "as a text"),
        ("{\"key\":\"x\",\"day\":\"2025-02-30\"}", FaultCode::WrongType, "a date"),
        ("{\"key\":\"x\",\"at\":\"2025-02-03 04:05:06\"}", FaultCode::WrongType, "a time"),
        ("{\"key\":\"x\",\"id\":\"no\"}", FaultCode::WrongType, "a UUID"),
        ("{\"key\":\"x\",\"raw\":\"??\"}", FaultCode::WrongType, "base64"),
        ("{\"key\":\"x\",\"s\":{}}", FaultCode::WrongType, "an object"),
        ("{\"key\":\"x\",\"s\":[]}", FaultCode::WrongType, "an array"),
        ("[1]", FaultCode::InvalidJson, "not a JSON object"),
        ("{\"key\":\"x\"", FaultCode::InvalidJson, "too early"),
        ("{\"key\":\"x\"} {}", FaultCode::InvalidJson, "not a JSON object"),
    ] {
        let fault = Rows::parse(&schema, ORG, format!("{good}\n\n{own}\n{line}\n{{").as_bytes()).unwrap_err();
        assert_eq!((fault.line, fault.code), (4, code), "{line}: {fault}");
        assert!(fault.message.contains(message), "{line}: {fault}");
        assert!(!fault.message.contains("secret"), "{fault}");
        if code != FaultCode::InvalidJson {
            let fault = Rows::of_records(&schema, ORG, &format!("[{good},{own},{line}]")).unwrap_err();
            assert_eq!((fault.line, fault.code), (3, code), "{line}: {fault}");
        }
    }
    let fault = Rows::parse(&schema, ORG, b"{\"key\":\"a\"}\n{\"key\":\"\xff\"}").unwrap_err();
    assert_eq!((fault.line, fault.code), (2, FaultCode::InvalidUtf8));
}

#[test]
fn what_a_batch_takes_in_memory_is_bounded() {
    let schema = all_types().schema;
    let limit = tenure_data::CELLS / schema.columns.len();
    let line = "{\"key\":\"a\"}\n";
    assert_eq!(Rows::parse(&schema, ORG, line.repeat(limit).as_bytes()).unwrap().len(), limit);
    let fault = Rows::parse(&schema, ORG, line.repeat(limit + 1).as_bytes()).unwrap_err();
    assert_eq!((fault.code, fault.line), (FaultCode::TooManyRows, limit as u64 + 1));
    let fault = Rows::parse(&schema, ORG, &vec![b'\n'; tenure_data::BATCH_BYTES + 1]).unwrap_err();
    assert_eq!(fault.code, FaultCode::BatchTooLarge);
}

proptest! {
    /// Whatever the bytes are, reading them ends with rows or with a fault.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let schema = all_types().schema;
        let _ = Rows::parse(&schema, ORG, &bytes);
        let _ = Rows::of_records(&schema, ORG, &String::from_utf8_lossy(&bytes));
    }
}
