//! Queries over Parquet files in a folder: values, conditions, formats, and what cannot be reached.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array,
    Int64Array, ListArray, StringArray, StructArray, TimestampMicrosecondArray, UInt64Array,
};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, Int64Type};
use serde_json::json;
use tenure_contract::Json;
use tenure_contract::query::process::{Column, Failure, FileRef, Format, Place, Source, View};

use crate::support::{Stand, ask};

fn numbers(from: i64, to: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(from..to))
}

#[tokio::test]
async fn all_files_of_a_view_are_read_and_no_others() {
    let stand = Stand::new();
    let (a, b) = (
        stand.write("p/a.parquet", vec![("n", numbers(0, 3))]),
        stand.write("p/b.parquet", vec![("n", numbers(3, 5))]),
    );
    stand.write("p/c.parquet", vec![("n", numbers(100, 200))]);
    stand.write("p-evil/a.parquet", vec![("n", numbers(100, 200))]);
    let view = stand.view(&["logs", "dataset"], vec![a, b]);
    let rows = stand.rows("SELECT count(*), sum(n), min(n) FROM logs", std::slice::from_ref(&view)).await;
    assert_eq!(rows, json!([[5, 10, 0]]));
    let joined = stand.run(ask("SELECT l.n FROM dataset d JOIN logs l ON l.n = d.n + 3 ORDER BY 1", &[view])).await;
    assert_eq!(joined.rows(), json!([[3], [4]]));
    assert_eq!(joined.reads, ["dataset", "logs"]);
}

#[tokio::test]
async fn values_are_json_that_keeps_them() {
    let stand = Stand::new();
    let dictionary: DictionaryArray<Int32Type> = ["x", "y"].into_iter().collect();
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    let structure = StructArray::from(vec![
        (Arc::new(Field::new("a", DataType::Int32, true)), Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef),
        (Arc::new(Field::new("b", DataType::Utf8, true)), Arc::new(StringArray::from(vec!["p", "q\"\n"])) as ArrayRef),
    ]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("u", Arc::new(UInt64Array::from(vec![u64::MAX, 0]))),
        ("i", Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX]))),
        ("d", Arc::new(Decimal128Array::from(vec![-12_345, 5]).with_precision_and_scale(20, 3).unwrap())),
        ("f", Arc::new(Float64Array::from(vec![f64::NAN, f64::NEG_INFINITY]))),
        ("t", Arc::new(TimestampMicrosecondArray::from(vec![0, 1_735_689_600_000_001]).with_timezone("UTC"))),
        ("day", Arc::new(Date32Array::from(vec![0, 20_089]))),
        ("b", Arc::new(BinaryArray::from(vec![&b"\x00\xff"[..], b""]))),
        ("ok", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("k", Arc::new(dictionary)),
        ("l", Arc::new(list)),
        ("s", Arc::new(structure)),
    ];
    let file = stand.write("v.parquet", columns);
    let view = stand.view(&["v"], vec![file]);
    let answer = stand.run(ask("SELECT * FROM v", &[view])).await;
    assert_eq!(
        answer.rows(),
        json!([
            [
                "18446744073709551615", i64::MIN, "-12.345", "NaN", "1970-01-01T00:00:00Z", "1970-01-01", "AP8=", true,
                "x", [1, null], {"a": 1, "b": "p"}
            ],
            [
                "0", i64::MAX, "0.005", "-Infinity", "2025-01-01T00:00:00.000001Z", "2025-01-01", "", null,
                "y", null, {"a": 2, "b": "q\"\n"}
            ],
        ])
    );
    let kinds: Vec<&str> = answer.columns.iter().map(|column| &*column.kind).collect();
    assert_eq!(
        kinds,
        [
            "uint64",
            "int64",
            "decimal(20,3)",
            "float64",
            "timestamptz",
            "date",
            "bytes",
            "bool",
            "text",
            "list<int64>",
            "struct"
        ]
    );
}

#[tokio::test]
async fn a_condition_hides_the_other_rows() {
    let stand = Stand::new();
    let severity: ArrayRef = Arc::new(StringArray::from(vec![Some("info"), Some("critical"), None, Some("warning")]));
    let file = stand.write("a.parquet", vec![("n", numbers(0, 4)), ("severity", severity)]);
    let view = |tree: serde_json::Value| View {
        condition: Some(Json::of(&tree).unwrap()),
        ..stand.view(&["alerts"], vec![file.clone()])
    };
    let both = json!({"op": "or", "args": [
        {"op": "in", "field": "severity", "value": ["info", "warning"]}, {"op": "is_null", "field": "severity"}]});
    let rows = stand.rows("SELECT n FROM alerts ORDER BY n", &[view(both)]).await;
    assert_eq!(rows, json!([[0], [2], [3]]));
    let none = json!({"op": "ne", "field": "severity", "value": "info"});
    let rows = stand.rows("SELECT count(*) FROM alerts WHERE severity = 'info'", &[view(none)]).await;
    assert_eq!(rows, json!([[0]]));
    let unknown = view(json!({"op": "eq", "field": "sverity", "value": "info"}));
    let answer = stand.run(ask("SELECT n FROM alerts", &[unknown])).await;
    assert_eq!(answer.failed().error, Failure::QueryFailed);
    assert!(answer.failed().message.contains("`where` of an input"), "{}", answer.failed().message);
}

/// What the engine remembers of a file of one dataset is not taken for one of another.
#[tokio::test]
async fn datasets_are_joined_file_by_file() {
    let stand = Stand::new();
    let texts = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text; 4])) };
    let one = stand.write("one/a.parquet", vec![("n", numbers(0, 4)), ("x", texts("one"))]);
    // The same size, other columns and rows.
    let two = stand.write("two/a.parquet", vec![("m", numbers(2, 6)), ("y", texts("two"))]);
    let views = [stand.view(&["one"], vec![one]), stand.view(&["two"], vec![two])];
    let rows = stand.rows("SELECT n, x, m, y FROM one LEFT JOIN two ON n = m ORDER BY n", &views).await;
    assert_eq!(
        rows,
        json!([[0, "one", null, null], [1, "one", null, null], [2, "one", 2, "two"], [3, "one", 3, "two"]])
    );
}

#[tokio::test]
async fn a_dataset_without_files_has_no_rows() {
    let stand = Stand::new();
    let column = |name: &str, kind: &str| Column { name: name.into(), kind: kind.into(), nullable: true };
    let columns = vec![column("n", "int64"), column("d", "decimal(10,2)"), column("t", "timestamptz")];
    let source = Source::Files { place: Place::Folder { path: "/nowhere".into() }, files: Vec::new(), columns };
    let view = View { names: vec!["empty".into()], source, condition: None };
    let rows = stand.rows("SELECT count(*), sum(n), max(d), min(t) FROM empty", &[view]).await;
    assert_eq!(rows, json!([[0, null, null, null]]));
}

#[tokio::test]
async fn each_format_has_the_same_rows() {
    let stand = Stand::new();
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("plain"), None, Some(""), Some("a,\"b\"\r\n")]));
    let file = stand.write("a.parquet", vec![("n", numbers(0, 4)), ("x", texts)]);
    let view = stand.view(&["v"], vec![file]);
    let mut asked = ask("SELECT n, x FROM v ORDER BY n", &[view]);
    asked.format = Format::Csv;
    asked.bounds.rows = None;
    let csv = stand.run(asked.clone()).await;
    assert_eq!(csv.text(), "n,x\r\n0,plain\r\n1,\r\n2,\"\"\r\n3,\"a,\"\"b\"\"\r\n\"\r\n");
    assert_eq!(csv.done().bytes, csv.data.len() as u64);
    asked.format = Format::JsonLines;
    let lines = stand.run(asked.clone()).await;
    let first = lines.text().lines().next().unwrap().to_owned();
    assert_eq!((first.as_str(), lines.text().lines().count()), ("{\"n\":0,\"x\":\"plain\"}", 4));
    asked.format = Format::Parquet;
    let parquet = stand.run(asked.clone()).await;
    assert_eq!(parquet.done().rows, 4);
    std::fs::write(stand.files.path().join("again.parquet"), &parquet.data).unwrap();
    let again = FileRef { key: "again.parquet".into(), bytes: parquet.data.len() as u64 };
    let rows = stand.rows("SELECT n, x FROM v ORDER BY n", &[stand.view(&["v"], vec![again])]).await;
    assert_eq!(rows, json!([[0, "plain"], [1, null], [2, ""], [3, "a,\"b\"\r\n"]]));
    // No rows: still a file.
    asked.sql = "SELECT n, x FROM v WHERE n > 10".into();
    asked.format = Format::Csv;
    assert_eq!(stand.run(asked).await.text(), "n,x\r\n");
}

#[tokio::test]
async fn wrong_names_and_types_are_told_without_the_sql() {
    let stand = Stand::new();
    let file = stand.write("a.parquet", vec![("block_number", numbers(0, 4))]);
    let view = stand.view(&["v"], vec![file]);
    for (sql, error, says) in [
        ("SELECT block_numbr FROM v", Failure::InvalidSql, "did you mean `block_number`"),
        ("SELECT upper(1, 'sesame') FROM v", Failure::InvalidSql, "expects 1 argument"),
        ("SELECT block_number FROM v a, v b", Failure::InvalidSql, "more than one relation"),
        ("SELECT 1 / (block_number - block_number) FROM v", Failure::QueryFailed, "division by zero"),
        ("SELECT CAST('sesame' AS BIGINT) + block_number FROM v", Failure::QueryFailed, ""),
        ("SELECT (SELECT block_number FROM v)", Failure::QueryFailed, ""),
        ("SELECT * FROM nowhere", Failure::InvalidSql, "'nowhere'"),
    ] {
        let answer = stand.run(ask(sql, std::slice::from_ref(&view))).await;
        let failed = answer.failed();
        assert_eq!(failed.error, error, "{sql}: {}", failed.message);
        assert!(failed.message.contains(says) && !failed.message.contains("sesame"), "{sql}: {}", failed.message);
    }
}

#[tokio::test]
async fn a_folder_cannot_be_left() {
    let stand = Stand::new();
    let outside = tempfile::tempdir().unwrap();
    let file = stand.write("in/a.parquet", vec![("n", numbers(0, 4))]);
    std::fs::copy(stand.files.path().join("in/a.parquet"), outside.path().join("a.parquet")).unwrap();
    std::os::unix::fs::symlink(outside.path(), stand.files.path().join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("a.parquet"), stand.files.path().join("in/l.parquet")).unwrap();
    let up = format!("../{}/a.parquet", outside.path().file_name().unwrap().to_str().unwrap());
    let absolute = outside.path().join("a.parquet").to_str().unwrap().to_owned();
    for key in ["link/a.parquet", "in/l.parquet", "in/../in/a.parquet", "in", "in//a.parquet", &up, &absolute] {
        let granted = FileRef { key: key.into(), bytes: file.bytes };
        let answer = stand.run(ask("SELECT * FROM v", &[stand.view(&["v"], vec![granted])])).await;
        let failed = answer.failed();
        assert_eq!(failed.error, Failure::ObjectStoreUnavailable, "{key}");
        assert!(!failed.message.contains("parquet"), "{}", failed.message);
    }
    assert_eq!(stand.rows("SELECT count(*) FROM v", &[stand.view(&["v"], vec![file])]).await, json!([[4]]));
}

#[tokio::test]
async fn what_is_no_parquet_is_said_so() {
    let stand = Stand::new();
    std::fs::write(stand.files.path().join("x.parquet"), vec![b'x'; 100]).unwrap();
    let view = stand.view(&["v"], vec![FileRef { key: "x.parquet".into(), bytes: 100 }]);
    let answer = stand.run(ask("SELECT * FROM v", &[view])).await;
    assert_eq!(answer.failed().error, Failure::QueryFailed);
    assert!(answer.failed().message.contains("not valid Parquet"), "{}", answer.failed().message);
}

/// Every function of the list is there, as far as it can be called with these arguments.
#[tokio::test]
async fn listed_functions_are_known() {
    let stand = Stand::new();
    let file = stand.write("a.parquet", vec![("n", numbers(0, 4))]);
    let view = stand.view(&["v"], vec![file]);
    for name in tenure_query::gate::functions::listed() {
        let mut known = false;
        for call in [format!("SELECT {name}() FROM v"), format!("SELECT {name}() OVER () FROM v")] {
            let answer = stand.run(ask(&call, std::slice::from_ref(&view))).await;
            known |= !matches!(&answer.end, Err(failed) if failed.message.contains("Invalid function"));
        }
        assert!(known, "{name}");
    }
}
