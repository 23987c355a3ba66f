use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tenure_core::dag::{Column, ColumnType, Comparison, Filter, Literal};

use super::*;

fn tree(text: &str) -> Value {
    json!(parse(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

#[test]
fn texts_become_trees() {
    let eq = |field: &str, value: Value| json!({"op": "eq", "field": field, "value": value});
    for (text, expected) in [
        ("a = 1", eq("a", json!(1))),
        ("a='it''s'", eq("a", json!("it's"))),
        ("a = TRUE", eq("a", json!(true))),
        ("a = -1.5e3", eq("a", json!(-1500.0))),
        ("a = -9223372036854775808", eq("a", json!(i64::MIN))),
        ("\"and\" = 1", eq("and", json!(1))),
        ("\"a\"\"b\" = 1", eq("a\"b", json!(1))),
        ("a <> 1", json!({"op": "ne", "field": "a", "value": 1})),
        ("a != 1", json!({"op": "ne", "field": "a", "value": 1})),
        ("a < 1", json!({"op": "lt", "field": "a", "value": 1})),
        ("a <= 1", json!({"op": "le", "field": "a", "value": 1})),
        ("a > 1", json!({"op": "gt", "field": "a", "value": 1})),
        ("a >= 1", json!({"op": "ge", "field": "a", "value": 1})),
        ("a in (1, 'b')", json!({"op": "in", "field": "a", "value": [1, "b"]})),
        ("a NOT IN (1)", json!({"op": "not", "args": [{"op": "in", "field": "a", "value": [1]}]})),
        ("a LIKE 'x%'", json!({"op": "like", "field": "a", "value": "x%"})),
        ("a NOT LIKE 'x%'", json!({"op": "not", "args": [{"op": "like", "field": "a", "value": "x%"}]})),
        ("a IS NULL", json!({"op": "is_null", "field": "a", "value": true})),
        ("a IS NOT NULL", json!({"op": "not", "args": [{"op": "is_null", "field": "a", "value": true}]})),
        ("NOT a = 1", json!({"op": "not", "args": [eq("a", json!(1))]})),
        (
            "a = 1 AND b = 2 AND (c = 3)",
            json!({"op": "and", "args": [eq("a", json!(1)), eq("b", json!(2)), eq("c", json!(3))]}),
        ),
        (
            "a = 1 OR b = 2 AND c = 3",
            json!({"op": "or", "args": [eq("a", json!(1)), {"op": "and", "args": [eq("b", json!(2)), eq("c", json!(3))]}]}),
        ),
        (
            "(a = 1 OR b = 2) AND c = 3",
            json!({"op": "and", "args": [{"op": "or", "args": [eq("a", json!(1)), eq("b", json!(2))]}, eq("c", json!(3))]}),
        ),
    ] {
        assert_eq!(tree(text), expected, "{text}");
    }
}

#[test]
fn refused_texts_say_where_and_why() {
    let deep = format!("{}a = 1{}", "(".repeat(17), ")".repeat(17));
    let nots = format!("{} a = 1", "NOT ".repeat(17));
    let long = format!("a = '{}'", "x".repeat(4096));
    for (text, position, part) in [
        ("", 1, "expected a field"),
        ("a", 2, "expected a comparison"),
        ("a =", 4, "expected a literal"),
        ("a = b", 5, "single quotes"),
        ("a = \"b\"", 5, "single quotes"),
        ("a = NULL", 5, "IS NULL"),
        ("1 = a", 1, "expected a field"),
        ("a = 1;", 6, "';'"),
        ("a = 1 b = 2", 7, "AND, OR or the end"),
        ("a = 1)", 6, "AND, OR or the end"),
        ("(a = 1", 7, "expected ')'"),
        ("lower(a) = 'x'", 6, "functions"),
        ("a = (SELECT 1)", 5, "subqueries"),
        ("a IN (SELECT b FROM c)", 7, "subqueries"),
        ("a IN ()", 7, "expected a literal"),
        ("a IN (1,)", 9, "expected a literal"),
        ("a IS 1", 6, "NULL or NOT NULL"),
        ("a LIKE 1", 8, "pattern"),
        ("a NOT = 1", 7, "expected a comparison"),
        ("a = 'x", 5, "never closed"),
        ("a = 1x", 5, "followed by a letter"),
        ("a = 9223372036854775808", 5, "64 bits"),
        ("a = 1e999", 5, "64 bits"),
        ("a = 1.2.3", 5, "64 bits"),
        ("a = -", 5, "64 bits"),
        ("a = 'é' § b", 9, "unexpected character"),
        ("a = 'x\0'", 5, "NUL"),
        ("a -- b", 3, "64 bits"),
        ("a = 1.5365594871129159e-179", 5, "too many digits"),
        ("\"\" = 1", 1, "128 bytes"),
        (&deep, 18, "16 levels"),
        (&nots, 70, "16 levels"),
        (&long, 1, "4096 bytes"),
    ] {
        match parse(text) {
            Ok(tree) => panic!("{text}: {tree:?}"),
            Err(error) => {
                assert!(error.message.contains(part), "{text}: {error}");
                assert_eq!(error.position, position, "{text}: {error}");
            }
        }
    }
    assert!(parse(&format!("{}a = 1{}", "(".repeat(16), ")".repeat(16))).is_ok());
    assert!(parse(&format!("a = '{}'", "x".repeat(4090))).is_ok());
}

#[test]
fn maps_and_texts_become_the_same_trees() {
    let map = |value: Value| value.as_object().cloned().unwrap();
    let both = from_map(&map(json!({"severity": ["info", "warning"], "chain_id": 10143}))).unwrap();
    assert_eq!(both, parse("chain_id = 10143 AND severity IN ('info', 'warning')").unwrap());
    assert_eq!(from_map(&map(json!({"a": true}))).unwrap(), parse("a = TRUE").unwrap());
    for wrong in [
        json!({}),
        json!({"a": null}),
        json!({"a": []}),
        json!({"a": [null]}),
        json!({"a": {"b": 1}}),
        json!({"a": [[1]]}),
        json!({"": 1}),
        json!({"a": 18_446_744_073_709_551_615_u64}),
        json!({"a": "\0"}),
        json!({"a": "x".repeat(5000)}),
    ] {
        assert!(from_map(&map(wrong.clone())).is_err(), "{wrong}");
    }
}

fn columns() -> Vec<Column> {
    let kinds =
        ["uuid", "text", "bool", "int32", "int64", "float64", "decimal(10,2)", "date", "timestamptz", "jsonb", "bytes"];
    let column = |kind: &&str| Column {
        name: kind.split('(').next().unwrap().into(),
        kind: kind.parse().unwrap(),
        nullable: true,
    };
    kinds.iter().map(column).collect()
}

#[test]
fn values_fit_the_columns() {
    for fits in [
        "uuid = '0190C0DE-0000-7000-8000-000000000001'",
        "text = 'x'",
        "text > 'x'",
        "text LIKE 'x'",
        "bool = TRUE",
        "bool IN (TRUE, FALSE)",
        "int32 = 2147483647",
        "int64 >= 2147483648",
        "float64 < 1",
        "float64 < 1.5",
        "decimal = 1",
        "decimal = 1.5",
        "decimal = '123456789012345678901234567890.12'",
        "date = '2025-12-31'",
        "timestamptz = '2025-12-31T12:00:00Z'",
        "timestamptz = '2025-12-31T12:00:00.5+02:00'",
        "jsonb IS NULL",
        "bytes IS NOT NULL",
    ] {
        assert_eq!(check(&parse(fits).unwrap(), &columns()), [], "{fits}");
    }
    let value = |kind: ColumnType, what| Fault::Value(kind, what);
    for (wrong, fault) in [
        ("missing = 1", Fault::UnknownField),
        ("missing IS NULL", Fault::UnknownField),
        ("TEXT = 'x'", Fault::UnknownField),
        ("uuid = 'x'", value(ColumnType::Uuid, "a text that is not a UUID")),
        ("text = 1", value(ColumnType::Text, "an integer")),
        ("text IN ('a', 1)", value(ColumnType::Text, "an integer")),
        ("bool = 1", value(ColumnType::Bool, "an integer")),
        ("bool < TRUE", Fault::Order(ColumnType::Bool)),
        ("int32 = 2147483648", value(ColumnType::Int32, "an integer beyond 32 bits")),
        ("int64 = 1.5", value(ColumnType::Int64, "a number with a fraction")),
        ("int64 = '1'", value(ColumnType::Int64, "a text")),
        ("float64 = TRUE", value(ColumnType::Float64, "a boolean")),
        (
            "decimal = '1e5'",
            value(ColumnType::Decimal { precision: 10, scale: 2 }, "a text that is not a decimal number"),
        ),
        ("date = '31.12.2025'", value(ColumnType::Date, "a text that is not a date such as '2025-12-31'")),
        (
            "timestamptz = '2025-12-31'",
            value(ColumnType::Timestamptz, "a text that is not a time such as '2025-12-31T12:00:00Z'"),
        ),
        ("jsonb = 'x'", Fault::Opaque(ColumnType::Jsonb)),
        ("bytes = 'x'", Fault::Opaque(ColumnType::Bytes)),
        ("int64 LIKE 'x'", Fault::Like(ColumnType::Int64)),
    ] {
        let found: Vec<Fault> =
            check(&parse(wrong).unwrap(), &columns()).into_iter().map(|misfit| misfit.fault).collect();
        assert_eq!(found, [fault], "{wrong}");
    }
    assert_eq!(check(&parse("a = 1 AND (b = 1 OR NOT c = 1)").unwrap(), &columns()).len(), 3);
}

#[test]
fn values_are_bound() {
    let hostile = "text = '''; DROP TABLE x; --' AND int64 IN (1, 2) OR NOT text LIKE 'a_%*' AND timestamptz > '2025-12-31T12:00:00+02:00'";
    let filter = parse(hostile).unwrap();
    let sqlite = compile(&filter, &columns(), Dialect::Sqlite, 1).unwrap();
    assert_eq!(
        sqlite.text,
        r#"(("text" = ?1 AND "int64" IN (?2, ?3)) OR (NOT ("text" GLOB ?4) AND "timestamptz" > ?5))"#
    );
    let text = |text: &str| Param::Text(text.to_owned());
    let time = text("2025-12-31T10:00:00.000000Z");
    let injected = text("'; DROP TABLE x; --");
    assert_eq!(sqlite.params, [injected.clone(), Param::Int(1), Param::Int(2), text("a?*[*]"), time.clone()]);
    let postgres = compile(&filter, &columns(), Dialect::Postgres, 3).unwrap();
    assert_eq!(
        postgres.text,
        r#"(("text" = $3::text AND "int64" IN ($4::int8, $5::int8)) OR (NOT ("text" LIKE $6::text ESCAPE '') AND "timestamptz" > $7::text::timestamptz))"#
    );
    assert_eq!(postgres.params, [injected, Param::Int(1), Param::Int(2), text("a_%*"), time]);
    let odd = vec![Column { name: "a\"b".into(), kind: ColumnType::Bool, nullable: true }];
    let quoted = compile(&parse("\"a\"\"b\" IS NULL").unwrap(), &odd, Dialect::Sqlite, 1).unwrap();
    assert_eq!(quoted.text, r#""a""b" IS NULL"#);
    assert!(compile(&parse("missing = 1").unwrap(), &columns(), Dialect::Sqlite, 1).is_err());
}

fn field() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_][a-z0-9_]{0,8}", Just("and".to_owned()), Just("NULL".to_owned()), "[ -~é]{1,10}"]
}

fn literal() -> impl Strategy<Value = Literal> {
    prop_oneof![
        any::<bool>().prop_map(Literal::Bool),
        any::<i64>().prop_map(Literal::Int),
        any::<f64>().prop_filter_map("fits JSON", Literal::float),
        "[ -~é\n]{0,12}".prop_map(|text| Literal::Text(text.into())),
    ]
}

fn leaf() -> impl Strategy<Value = Filter> {
    let comparison = (proptest::sample::select(Comparison::ALL.to_vec()), field(), literal());
    prop_oneof![
        comparison.prop_map(|(op, field, value)| Filter::Compare { op, field: field.into(), value }),
        (field(), prop::collection::vec(literal(), 1..4))
            .prop_map(|(field, values)| Filter::In { field: field.into(), values }),
        (field(), "[ -~]{0,8}")
            .prop_map(|(field, pattern)| Filter::Like { field: field.into(), pattern: pattern.into() }),
        field().prop_map(|field| Filter::IsNull { field: field.into() }),
    ]
}

fn any_filter() -> impl Strategy<Value = Filter> {
    leaf().prop_recursive(5, 24, 3, |inner| {
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
    fn what_is_printed_is_read(filter in any_filter()) {
        let text = print(&filter);
        prop_assume!(text.len() <= tenure_core::dag::filter::TEXT_BYTES);
        prop_assert_eq!(parse(&text), Ok(filter), "{}", text);
    }

    #[test]
    fn trees_are_stored_as_json(filter in any_filter()) {
        let text = serde_json::to_string(&filter).unwrap();
        prop_assert_eq!(serde_json::from_str::<Filter>(&text).unwrap(), filter);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-z '\"()=<>!,;.0-9eEé\\-]{0,60}|.{0,60}") {
        if let Ok(filter) = parse(&text) {
            prop_assert_eq!(parse(&print(&filter)), Ok(filter));
        }
    }

    #[test]
    fn maps_are_the_conjunction_of_their_fields(fields in prop::collection::btree_map("[a-z]{1,4}", -9..9_i64, 1..5)) {
        let map: Map<String, Value> = fields.iter().map(|(field, value)| (field.clone(), json!(value))).collect();
        let quoted = |(field, value): (&String, &i64)| format!("\"{field}\" = {value}");
        let text: Vec<String> = fields.iter().map(quoted).collect();
        prop_assert_eq!(from_map(&map), parse(&text.join(" AND ")));
    }
}
