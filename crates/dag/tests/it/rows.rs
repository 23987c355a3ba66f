//! Conditions on real rows: both databases against a reference that knows three truth values.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rusqlite::types::Value as Bound;
use rusqlite::{Connection, params_from_iter};
use tenure_core::dag::{Column, Comparison, Filter, Literal};
use tenure_dag::filter::{Dialect, Param, compile, from_map, parse};
use tenure_testkit::Postgres;
use tokio_postgres::types::ToSql;

type Row = (Option<String>, Option<i64>, Option<f64>, Option<bool>);

const ROWS: &str =
    "CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT, n INTEGER, f REAL, b INTEGER, moment TEXT, amount TEXT)";

fn columns() -> Vec<Column> {
    let kinds = [
        ("s", "text"),
        ("n", "int64"),
        ("f", "float64"),
        ("b", "bool"),
        ("moment", "timestamptz"),
        ("amount", "decimal(20,4)"),
    ];
    let column = |(name, kind): (&str, &str)| Column { name: name.into(), kind: kind.parse().unwrap(), nullable: true };
    kinds.into_iter().map(column).collect()
}

fn bound(param: &Param) -> Bound {
    match param {
        Param::Bool(value) => Bound::from(*value),
        Param::Int(value) => Bound::from(*value),
        Param::Float(value) => Bound::from(*value),
        Param::Text(value) => Bound::from(value.clone()),
    }
}

fn table(rows: &[Row]) -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(ROWS).unwrap();
    for (id, (s, n, f, b)) in rows.iter().enumerate() {
        let id = i64::try_from(id).unwrap();
        connection.execute("INSERT INTO t (id, s, n, f, b) VALUES (?1, ?2, ?3, ?4, ?5)", (id, s, n, f, b)).unwrap();
    }
    connection
}

fn matching(connection: &Connection, filter: &Filter) -> Vec<i64> {
    let sql = compile(filter, &columns(), Dialect::Sqlite, 1).unwrap();
    let mut statement = connection.prepare(&format!("SELECT id FROM t WHERE {} ORDER BY id", sql.text)).unwrap();
    let rows = statement.query_map(params_from_iter(sql.params.iter().map(bound)), |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// `None` is SQL's unknown.
fn holds(filter: &Filter, row: &Row) -> Option<bool> {
    match filter {
        Filter::And(parts) => {
            let all: Vec<_> = parts.iter().map(|part| holds(part, row)).collect();
            if all.contains(&Some(false)) { Some(false) } else { (!all.contains(&None)).then_some(true) }
        }
        Filter::Or(parts) => {
            let all: Vec<_> = parts.iter().map(|part| holds(part, row)).collect();
            if all.contains(&Some(true)) { Some(true) } else { (!all.contains(&None)).then_some(false) }
        }
        Filter::Not(inner) => holds(inner, row).map(|held| !held),
        Filter::Compare { op, field, value } => order(field, row, value).map(|order| match op {
            Comparison::Eq => order.is_eq(),
            Comparison::Ne => order.is_ne(),
            Comparison::Lt => order.is_lt(),
            Comparison::Le => order.is_le(),
            Comparison::Gt => order.is_gt(),
            Comparison::Ge => order.is_ge(),
        }),
        Filter::In { field, values } => {
            let equal: Vec<_> =
                values.iter().map(|value| order(field, row, value).map(std::cmp::Ordering::is_eq)).collect();
            if equal.contains(&Some(true)) { Some(true) } else { (!equal.contains(&None)).then_some(false) }
        }
        Filter::Like { pattern, .. } => {
            row.0.as_ref().map(|text| like(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>()))
        }
        Filter::IsNull { field } => Some(match &**field {
            "s" => row.0.is_none(),
            "n" => row.1.is_none(),
            "f" => row.2.is_none(),
            _ => row.3.is_none(),
        }),
    }
}

fn order(field: &str, row: &Row, value: &Literal) -> Option<std::cmp::Ordering> {
    match (field, value) {
        ("s", Literal::Text(value)) => row.0.as_ref().map(|own| own.as_bytes().cmp(value.as_bytes())),
        ("n", Literal::Int(value)) => row.1.map(|own| own.cmp(value)),
        ("f", Literal::Float(value)) => row.2.and_then(|own| own.partial_cmp(value)),
        ("b", Literal::Bool(value)) => row.3.map(|own| own.cmp(value)),
        other => panic!("{other:?}"),
    }
}

fn like(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('%', rest)) => (0..=text.len()).any(|skipped| like(rest, &text[skipped..])),
        Some(('_', rest)) => !text.is_empty() && like(rest, &text[1..]),
        Some((c, rest)) => text.first() == Some(c) && like(rest, &text[1..]),
    }
}

const LETTERS: &str = "[aAbé%_*?\\[\\]\\\\'-]{0,3}";

fn row() -> impl Strategy<Value = Row> {
    let float = prop::option::of((-3..3_i32).prop_map(|n| f64::from(n) / 2.0));
    (prop::option::of(LETTERS), prop::option::of(-2..3_i64), float, prop::option::of(any::<bool>()))
}

fn leaf() -> impl Strategy<Value = Filter> {
    let value = prop_oneof![
        LETTERS.prop_map(|text| ("s", Literal::Text(text.into()))),
        (-2..3_i64).prop_map(|n| ("n", Literal::Int(n))),
        (-3..3_i32).prop_map(|n| ("f", Literal::Float(f64::from(n) / 2.0))),
    ];
    let compare = (prop::sample::select(Comparison::ALL.to_vec()), value)
        .prop_map(|(op, (field, value))| Filter::Compare { op, field: field.into(), value });
    let member = prop::collection::vec(-2..3_i64, 1..3)
        .prop_map(|values| Filter::In { field: "n".into(), values: values.into_iter().map(Literal::Int).collect() });
    let pattern = LETTERS.prop_map(|pattern| Filter::Like { field: "s".into(), pattern: pattern.into() });
    let null = prop::sample::select(vec!["s", "n", "f", "b"]).prop_map(|field| Filter::IsNull { field: field.into() });
    let flag = any::<bool>().prop_map(|value| Filter::Compare {
        op: Comparison::Eq,
        field: "b".into(),
        value: Literal::Bool(value),
    });
    prop_oneof![3 => compare, 1 => member, 2 => pattern, 1 => null, 1 => flag]
}

fn filters() -> impl Strategy<Value = Filter> {
    leaf().prop_recursive(3, 10, 3, |inner| {
        let parts = prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            parts.clone().prop_map(|parts| Filter::and(parts).unwrap()),
            parts.prop_map(|parts| Filter::or(parts).unwrap()),
            inner.prop_map(Filter::negated),
        ]
    })
}

proptest! {
    #[test]
    fn sqlite_finds_the_rows_of_the_reference(rows in prop::collection::vec(row(), 1..12), filter in filters()) {
        let expected: Vec<i64> = (0_i64..).zip(&rows).filter(|(_, row)| holds(&filter, row) == Some(true)).map(|(id, _)| id).collect();
        prop_assert_eq!(matching(&table(&rows), &filter), expected);
    }
}

#[test]
fn both_forms_find_the_same_rows() {
    let row = |s: Option<&str>, n: Option<i64>| (s.map(ToOwned::to_owned), n, None, None);
    let rows = [
        row(Some("info"), Some(1)),
        row(Some("warning"), Some(1)),
        row(Some("info"), Some(2)),
        row(None, Some(1)),
        row(Some("info"), None),
    ];
    let map = serde_json::json!({"s": ["info", "warning"], "n": 1});
    let connection = table(&rows);
    let by_map = matching(&connection, &from_map(map.as_object().unwrap()).unwrap());
    assert_eq!(by_map, [0, 1]);
    assert_eq!(matching(&connection, &parse("s IN ('info', 'warning') AND n = 1").unwrap()), by_map);
    assert_eq!(matching(&connection, &parse("s = 'x'' OR 1=1 --'").unwrap()), Vec::<i64>::new());
}

#[test]
fn times_and_decimals_compare_by_value() {
    let connection = table(&[]);
    connection
        .execute("INSERT INTO t (id, moment, amount) VALUES (1, '2025-12-31T10:00:00.000000Z', '9.5'), (2, '2025-12-31T10:00:00.500000Z', '10.25')", [])
        .unwrap();
    let found = |text: &str| matching(&connection, &parse(text).unwrap());
    assert_eq!(found("moment = '2025-12-31T12:00:00+02:00'"), [1]);
    assert_eq!(found("moment > '2025-12-31T10:00:00Z'"), [2]);
    assert_eq!(found("amount > '9.75'"), [2]);
    assert_eq!(found("amount IN (9.5, '10.2500')"), [1, 2]);
}

const POSTGRES_ROWS: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, s TEXT, n BIGINT, f DOUBLE PRECISION, b BOOLEAN, \
    moment TIMESTAMPTZ, amount NUMERIC(20,4), small INTEGER, day DATE, who UUID)";

async fn postgres() -> (tenure_testkit::Database, tokio_postgres::Client) {
    let database = Postgres::shared().await.database().await;
    let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(POSTGRES_ROWS).await.unwrap();
    (database, client)
}

fn boxed(param: &Param) -> Box<dyn ToSql + Sync + Send> {
    match param {
        Param::Bool(value) => Box::new(*value),
        Param::Int(value) => Box::new(*value),
        Param::Float(value) => Box::new(*value),
        Param::Text(value) => Box::new(value.clone()),
    }
}

async fn matching_postgres(client: &tokio_postgres::Client, filter: &Filter, columns: &[Column]) -> Vec<i64> {
    let sql = compile(filter, columns, Dialect::Postgres, 1).unwrap();
    let params: Vec<_> = sql.params.iter().map(boxed).collect();
    let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
    let text = format!("SELECT id FROM t WHERE {} ORDER BY id", sql.text);
    let rows = client.query(&text, &params).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn postgres_finds_the_rows_of_the_reference() {
    const CONDITIONS: usize = 300;
    let (_database, client) = postgres().await;
    let mut runner = TestRunner::deterministic();
    let rows = prop::collection::vec(row(), 100).new_tree(&mut runner).unwrap().current();
    for (id, (s, n, f, b)) in (0_i64..).zip(&rows) {
        let insert = "INSERT INTO t (id, s, n, f, b) VALUES ($1, $2, $3, $4, $5)";
        client.execute(insert, &[&id, s, n, f, b]).await.unwrap();
    }
    for _ in 0..CONDITIONS {
        let filter = filters().new_tree(&mut runner).unwrap().current();
        let expected: Vec<i64> =
            (0_i64..).zip(&rows).filter(|(_, row)| holds(&filter, row) == Some(true)).map(|(id, _)| id).collect();
        assert_eq!(matching_postgres(&client, &filter, &columns()).await, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn every_type_is_compared_by_value_on_postgres() {
    let (_database, client) = postgres().await;
    client
        .batch_execute(
            "INSERT INTO t (id, moment, amount, small, day, who) VALUES
                (1, '2025-12-31T10:00:00Z', 9.5, 1, '2025-12-31', '0190c0de-0000-7000-8000-000000000001'),
                (2, '2025-12-31T10:00:00.5Z', 10.25, 2, '2026-01-01', '0190c0de-0000-7000-8000-000000000002')",
        )
        .await
        .unwrap();
    let further = [("small", "int32"), ("day", "date"), ("who", "uuid")];
    let further = further.map(|(name, kind)| Column { name: name.into(), kind: kind.parse().unwrap(), nullable: true });
    let columns: Vec<Column> = columns().into_iter().chain(further).collect();
    for (text, expected) in [
        ("moment = '2025-12-31T12:00:00+02:00'", &[1][..]),
        ("moment > '2025-12-31T10:00:00Z'", &[2]),
        ("amount > '9.75'", &[2]),
        ("amount IN (9.5, '10.2500')", &[1, 2]),
        ("amount < 10", &[1]),
        ("small >= 2", &[2]),
        ("day < '2026-01-01'", &[1]),
        ("who = '0190C0DE-0000-7000-8000-000000000002'", &[2]),
    ] {
        assert_eq!(matching_postgres(&client, &parse(text).unwrap(), &columns).await, expected, "{text}");
    }
}
