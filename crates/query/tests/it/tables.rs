//! Rows of both data stores: the same values, the same answers, and no more than was granted.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_contract::query::process::{DataStore as WireStore, Failure, Source};
use tenure_core::dag::Schema;

use crate::stores::{ORG, Stores};
use crate::support::{MIB, Stand, ask};

const OTHER: &str = "99999999-2222-3333-4444-555555555555";

fn schema() -> Arc<Schema> {
    let columns = json!([
        {"name": "org_id", "type": "uuid", "nullable": false}, {"name": "id", "type": "int64", "nullable": false},
        {"name": "t", "type": "text", "nullable": true}, {"name": "b", "type": "bool", "nullable": true},
        {"name": "small", "type": "int32", "nullable": true}, {"name": "f", "type": "float64", "nullable": true},
        {"name": "d", "type": "decimal(20,4)", "nullable": true}, {"name": "day", "type": "date", "nullable": true},
        {"name": "at", "type": "timestamptz", "nullable": true}, {"name": "j", "type": "jsonb", "nullable": true},
        {"name": "raw", "type": "bytes", "nullable": true}, {"name": "u", "type": "uuid", "nullable": true},
    ]);
    serde_json::from_value(json!({"columns": columns, "unique": ["org_id", "id"]})).unwrap()
}

fn full() -> Value {
    json!({"id": 1, "t": "ö 'quoted'", "b": true, "small": -7, "f": 0.1, "d": "-12.5", "day": "2024-02-29",
        "at": "2024-02-29T12:00:00.123456Z", "j": {"b": [1, 2.5, null], "a": "x"}, "raw": "AP8=", "u": OTHER})
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_every_type_are_the_same_in_both() {
    let (stand, stores) = (Stand::new(), Stores::new(schema()).await);
    stores.append(ORG, &[full(), json!({"id": 2})]).await;
    let all = stores.rows(&stand, ORG, "SELECT * FROM v ORDER BY id").await;
    let first = json!([
        ORG,
        1,
        "ö 'quoted'",
        true,
        -7,
        0.1,
        "-12.5000",
        "2024-02-29",
        "2024-02-29T12:00:00.123456Z",
        "{\"a\":\"x\",\"b\":[1,2.5,null]}",
        "AP8=",
        OTHER,
        1
    ]);
    let second = json!([ORG, 2, null, null, null, null, null, null, null, null, null, null, 2]);
    assert_eq!(all, json!([first, second]));
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_find_the_same_rows_in_both() {
    let (stand, stores) = (Stand::new(), Stores::new(schema()).await);
    let mut rows: Vec<Value> = (10..200_i64)
        .map(|n| {
            json!({"id": n, "t": format!("t{}", n % 7), "b": n % 2 == 0, "small": n % 5, "f": n as f64 / 4.0,
                "d": format!("{n}.5"), "day": format!("2024-01-{:02}", n % 28 + 1),
                "at": format!("2024-01-01T00:00:{:02}Z", n % 60)})
        })
        .collect();
    rows.push(full());
    rows.push(json!({"id": 2, "t": "Z"}));
    stores.append(ORG, &rows).await;
    for (condition, count) in [
        ("id BETWEEN 20 AND 29", 10),
        ("id = 20 OR id = 21", 2),
        ("id IN (20, 21, 1)", 3),
        ("_seq <= 5", 5),
        ("t = 't3'", 28),
        ("t > 'a' AND id < 20", 11),
        ("t IS NULL", 0),
        ("b", 96),
        ("b = false", 95),
        ("small IS NULL", 1),
        ("f >= 49.0", 4),
        ("d = 20.5", 1),
        ("day = '2024-01-05'", 6),
        ("day >= '2024-02-01'", 1),
        ("at >= '2024-01-01T00:00:50Z' AND at < '2024-01-01T00:00:55Z'", 15),
        ("at > '2024-02-29T12:00:00.123455Z'", 1),
        ("u = '99999999-2222-3333-4444-555555555555'", 1),
        ("u = 'no uuid'", 0),
        ("t LIKE 't%' AND NOT b", 95),
        ("id <> 20 AND id < 22", 13),
    ] {
        let found = stores.rows(&stand, ORG, &format!("SELECT count(*) FROM v WHERE {condition}")).await;
        // NULL decides neither way, and engine and data store agree on what is left.
        assert_eq!(found, json!([[count]]), "{condition}");
    }
    let grouped = stores.rows(&stand, ORG, "SELECT t, sum(id), min(d), max(at) FROM v GROUP BY t ORDER BY t").await;
    assert_eq!(grouped.as_array().unwrap().len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_others_and_later_rows_are_not_read() {
    let (stand, stores) = (Stand::new(), Stores::new(schema()).await);
    stores.append(ORG, &[json!({"id": 1}), json!({"id": 2})]).await;
    let before = stores.views(ORG).await;
    stores.append(OTHER, &[json!({"id": 1, "t": "secret"})]).await;
    stores.append(ORG, &[json!({"id": 3})]).await;
    for mut view in before {
        let ids = "SELECT id FROM v WHERE 1 = 1 OR org_id IS NOT NULL ORDER BY id";
        assert_eq!(stand.rows(ids, std::slice::from_ref(&view)).await, json!([[1], [2]]));
        let Source::Table(table) = &mut view.source else { unreachable!() };
        table.after = 1;
        assert_eq!(stand.rows(ids, &[view]).await, json!([[2]]));
    }
    assert_eq!(stores.rows(&stand, ORG, "SELECT count(*) FROM v").await, json!([[3]]));
    assert_eq!(stores.rows(&stand, OTHER, "SELECT t FROM v").await, json!([["secret"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_table_is_read_in_little_memory_and_may_be_left_early() {
    let (stand, stores) = (Stand::new(), Stores::new(schema()).await);
    let text = "x".repeat(1_000);
    for batch in 0..8 {
        let rows: Vec<Value> = (0..5_000).map(|n| json!({"id": batch * 5_000 + n, "t": text})).collect();
        stores.append(ORG, &rows).await;
    }
    for view in stores.views(ORG).await {
        // 40 MB of texts pass through 16 MiB.
        let mut asked = ask("SELECT count(*), sum(length(t)) FROM v", std::slice::from_ref(&view));
        asked.bounds.memory_bytes = 16 * MIB;
        assert_eq!(stand.run(asked).await.rows(), json!([[40_000, 40_000_000]]));
        assert_eq!(
            stand.rows("SELECT id FROM v LIMIT 1", std::slice::from_ref(&view)).await.as_array().unwrap().len(),
            1
        );
        let joins: String = (0..20).map(|n| format!(" JOIN v v{n} ON v{n}.id = v.id")).collect();
        let many = stand.run(ask(&format!("SELECT count(*) FROM v{joins}"), &[view])).await;
        assert_eq!(many.failed().error, Failure::QueryFailed, "{}", many.failed().message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_store_that_is_away_is_told_as_such_without_its_address() {
    let (stand, stores) = (Stand::new(), Stores::new(schema()).await);
    stores.append(ORG, &[json!({"id": 1})]).await;
    for mut view in stores.views(ORG).await {
        let Source::Table(table) = &mut view.source else { unreachable!() };
        table.store = match &table.store {
            WireStore::Sqlite { .. } => WireStore::Sqlite { path: "/nowhere/sesame.db".into() },
            WireStore::Postgres { schema, .. } => {
                WireStore::Postgres { url: "postgres://u:sesame@127.0.0.1:1/d".into(), schema: schema.clone() }
            }
        };
        let answer = stand.run(ask("SELECT count(*) FROM v", &[view])).await;
        let failed = answer.failed();
        assert_eq!(failed.error, Failure::DataStoreUnavailable);
        assert!(!failed.message.contains("sesame"), "{}", failed.message);
    }
}
