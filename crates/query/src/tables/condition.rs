//! A statement for the data store: chosen columns, and conditions that it can judge.
//!
//! A condition may let through too much, never too little: the engine judges every row again.

use std::fmt::Write as _;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Operator};
use tenure_core::dag::schema::{ColumnType, ORG_COLUMN};

use super::{Column, SEQUENCE};

/// Values of one list.
const LIST: usize = 1_000;
/// Values of one statement; conditions beyond are left to the engine.
const VALUES: usize = 5_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
}

/// A bound value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Uuid(String),
    /// Microseconds since 1970.
    Time(i64),
    /// `YYYY-MM-DD`
    Date(String),
}

#[derive(Debug, Clone)]
pub struct Statement {
    dialect: Dialect,
    columns: Vec<Column>,
    text: String,
    pub values: Vec<Value>,
}

/// An identifier in SQL.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Statement {
    pub(super) fn new(dialect: Dialect, columns: &[Column]) -> Self {
        Self { dialect, columns: columns.to_vec(), text: String::new(), values: Vec::new() }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Without columns the number of rows is all that is asked for.
    pub(super) fn select<'a>(&mut self, columns: impl Iterator<Item = &'a Column>) {
        let shown = columns.map(|column| {
            let name = quoted(&column.name);
            match (self.dialect, column.kind) {
                (Dialect::Postgres, ColumnType::Decimal { .. } | ColumnType::Jsonb) => format!("{name}::text"),
                _ => name,
            }
        });
        let shown: Vec<String> = shown.collect();
        self.text = format!("SELECT {}", if shown.is_empty() { "1".to_owned() } else { shown.join(", ") });
    }

    pub fn from(&mut self, table: String) {
        let _ = write!(self.text, " FROM {table}");
    }

    pub fn of_org(&mut self, org: &str) {
        let org = self.bind(Value::Uuid(org.to_ascii_lowercase()));
        let _ = write!(self.text, " WHERE {} = {org}", quoted(ORG_COLUMN));
    }

    pub fn between(&mut self, after: i64, upto: i64) {
        let (after, upto) = (self.bind(Value::Int(after)), self.bind(Value::Int(upto)));
        let sequence = quoted(SEQUENCE);
        let _ = write!(self.text, " AND {sequence} > {after} AND {sequence} <= {upto}");
    }

    pub fn and_if_possible(&mut self, filter: &Expr) {
        if let Some(condition) = self.condition(filter) {
            let _ = write!(self.text, " AND {condition}");
        }
    }

    fn bind(&mut self, value: Value) -> String {
        let cast = match &value {
            Value::Int(_) => "int8",
            Value::Float(_) => "float8",
            Value::Bool(_) => "bool",
            Value::Text(_) => "text",
            Value::Uuid(_) => "text::uuid",
            Value::Time(_) => "timestamptz",
            Value::Date(_) => "text::date",
        };
        self.values.push(value);
        match self.dialect {
            Dialect::Sqlite => format!("?{}", self.values.len()),
            Dialect::Postgres => format!("${}::{cast}", self.values.len()),
        }
    }

    /// The condition in SQL; `None` if the data store cannot judge it, or not as the engine does.
    pub fn condition(&mut self, filter: &Expr) -> Option<String> {
        let bound = self.values.len();
        let condition = self.translate(filter);
        if condition.is_none() {
            self.values.truncate(bound);
        }
        condition
    }

    fn translate(&mut self, filter: &Expr) -> Option<String> {
        if self.values.len() > VALUES {
            return None;
        }
        match filter {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
                match (self.condition(left), self.condition(right)) {
                    (Some(left), Some(right)) => Some(format!("({left} AND {right})")),
                    (one, other) => one.or(other),
                }
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                Some(format!("({left} OR {right})"))
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (&**left, &**right) {
                (Expr::Column(column), Expr::Literal(value, _)) => self.compare(&column.name, *op, value),
                (Expr::Literal(value, _), Expr::Column(column)) => self.compare(&column.name, op.swap()?, value),
                _ => None,
            },
            Expr::Between(Between { expr, negated: false, low, high }) => match (&**expr, &**low, &**high) {
                (Expr::Column(column), Expr::Literal(low, _), Expr::Literal(high, _)) => {
                    let low = self.compare(&column.name, Operator::GtEq, low)?;
                    let high = self.compare(&column.name, Operator::LtEq, high)?;
                    Some(format!("({low} AND {high})"))
                }
                _ => None,
            },
            Expr::InList(InList { expr, list, negated: false }) if list.len() <= LIST => {
                let Expr::Column(column) = &**expr else { return None };
                let equal = list.iter().map(|item| match item {
                    Expr::Literal(value, _) => self.compare(&column.name, Operator::Eq, value),
                    _ => None,
                });
                let equal: Vec<String> = equal.collect::<Option<_>>()?;
                (!equal.is_empty()).then(|| format!("({})", equal.join(" OR ")))
            }
            Expr::IsNull(inner) => self.is_null(inner, "IS NULL"),
            Expr::IsNotNull(inner) => self.is_null(inner, "IS NOT NULL"),
            _ => None,
        }
    }

    fn is_null(&self, inner: &Expr, test: &str) -> Option<String> {
        let Expr::Column(column) = inner else { return None };
        self.kind(&column.name)?;
        Some(format!("{} {test}", quoted(&column.name)))
    }

    fn kind(&self, name: &str) -> Option<ColumnType> {
        self.columns.iter().find(|column| column.name == name).map(|column| column.kind)
    }

    fn compare(&mut self, name: &str, op: Operator, value: &ScalarValue) -> Option<String> {
        // The engine orders -0 before 0, data stores do not.
        let op = match (op, value) {
            (Operator::Lt, ScalarValue::Float64(Some(0.0))) => Operator::LtEq,
            (Operator::Gt, ScalarValue::Float64(Some(0.0))) => Operator::GtEq,
            (op, _) => op,
        };
        let sign = match op {
            Operator::Eq => "=",
            Operator::Lt => "<",
            Operator::LtEq => "<=",
            Operator::Gt => ">",
            Operator::GtEq => ">=",
            _ => return None,
        };
        let value = self.value(self.kind(name)?, op, value)?;
        Some(format!("{} {sign} {}", quoted(name), self.bind(value)))
    }

    /// The value for a column of this type, if both data stores compare such values as the engine does.
    fn value(&self, kind: ColumnType, op: Operator, value: &ScalarValue) -> Option<Value> {
        let text = || match value {
            ScalarValue::Utf8(text) | ScalarValue::Utf8View(text) | ScalarValue::LargeUtf8(text) => text.clone(),
            _ => None,
        };
        match kind {
            ColumnType::Int32 | ColumnType::Int64 => integer(value).map(Value::Int),
            ColumnType::Float64 => match value {
                ScalarValue::Float64(Some(number)) if number.is_finite() => Some(Value::Float(*number)),
                _ => None,
            },
            // The order of texts depends on the collation.
            ColumnType::Text if op == Operator::Eq => text().filter(|text| !text.contains('\0')).map(Value::Text),
            ColumnType::Uuid if op == Operator::Eq => {
                let canonical = |text: &String| uuid::Uuid::try_parse(text).is_ok_and(|uuid| uuid.to_string() == *text);
                text().filter(canonical).map(Value::Uuid)
            }
            ColumnType::Bool if op == Operator::Eq => match value {
                ScalarValue::Boolean(Some(is)) => Some(Value::Bool(*is)),
                _ => None,
            },
            // Before 1970 and beyond 9999 the texts of SQLite are not in order.
            ColumnType::Timestamptz => match value {
                ScalarValue::TimestampMicrosecond(Some(at), _) if (0..TIME_END).contains(at) => Some(Value::Time(*at)),
                _ => None,
            },
            ColumnType::Date => match value {
                ScalarValue::Date32(Some(days)) if (0..DATE_END).contains(days) => date(*days).map(Value::Date),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The end of the year 9998.
const TIME_END: i64 = 253_370_764_800_000_000;
const DATE_END: i32 = 2_932_531;

fn date(days: i32) -> Option<String> {
    let date = jiff::civil::date(1970, 1, 1).checked_add(jiff::Span::new().days(days)).ok()?;
    Some(date.to_string())
}

fn integer(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Int8(number) => number.map(i64::from),
        ScalarValue::Int16(number) => number.map(i64::from),
        ScalarValue::Int32(number) => number.map(i64::from),
        ScalarValue::Int64(number) => *number,
        ScalarValue::UInt8(number) => number.map(i64::from),
        ScalarValue::UInt16(number) => number.map(i64::from),
        ScalarValue::UInt32(number) => number.map(i64::from),
        ScalarValue::UInt64(number) => number.and_then(|number| i64::try_from(number).ok()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{col, lit};

    use super::*;

    fn columns() -> Vec<Column> {
        let of = |(name, kind): (&str, &str)| Column { name: name.into(), kind: kind.parse().unwrap() };
        let kinds = [
            ("org_id", "uuid"),
            ("n", "int64"),
            ("t", "text"),
            ("at", "timestamptz"),
            ("d", "decimal(10,2)"),
            ("f", "float64"),
        ];
        kinds.map(of).to_vec()
    }

    fn translated(dialect: Dialect, filter: &Expr) -> (Option<String>, usize) {
        let mut statement = Statement::new(dialect, &columns());
        let condition = statement.condition(filter);
        (condition, statement.values.len())
    }

    #[test]
    fn values_are_bound_and_never_text() {
        let filter = col("t").eq(lit("x' OR 1=1 --")).and(col("n").gt_eq(lit(7_i64)));
        assert_eq!(translated(Dialect::Sqlite, &filter), (Some(r#"("t" = ?1 AND "n" >= ?2)"#.into()), 2));
        let postgres = r#"("t" = $1::text AND "n" >= $2::int8)"#;
        assert_eq!(translated(Dialect::Postgres, &filter), (Some(postgres.into()), 2));
        assert_eq!(quoted(r#"a"b"#), r#""a""b""#);
    }

    #[test]
    fn what_the_data_store_judges_differently_is_left_to_the_engine() {
        for filter in [
            col("t").gt(lit("a")),
            col("t").eq(lit("a\0")),
            col("t").like(lit("a%")),
            col("d").eq(lit(1_i64)),
            col("n").not_eq(lit(1_i64)),
            col("n").eq(col("n")),
            col("gone").eq(lit(1_i64)),
            Expr::Not(Box::new(col("n").eq(lit(1_i64)))),
        ] {
            assert_eq!(translated(Dialect::Postgres, &filter), (None, 0), "{filter}");
        }
        // Of two conditions one is enough, of two choices it is not.
        let half = col("t").gt(lit("a")).and(col("n").eq(lit(1_i64)));
        assert_eq!(translated(Dialect::Sqlite, &half), (Some(r#""n" = ?1"#.into()), 1));
        let choice = col("n").eq(lit(1_i64)).or(col("t").gt(lit("a")));
        assert_eq!(translated(Dialect::Sqlite, &choice), (None, 0));
    }

    #[test]
    fn both_zeros_are_found_by_either() {
        for zero in [0.0, -0.0] {
            let (less, greater) = (col("f").lt(lit(zero)), col("f").gt(lit(zero)));
            assert_eq!(translated(Dialect::Sqlite, &less), (Some(r#""f" <= ?1"#.into()), 1));
            assert_eq!(translated(Dialect::Sqlite, &greater), (Some(r#""f" >= ?1"#.into()), 1));
        }
        assert_eq!(translated(Dialect::Sqlite, &col("f").lt(lit(0.5))), (Some(r#""f" < ?1"#.into()), 1));
    }

    #[test]
    fn dates_are_written_as_data_stores_have_them() {
        assert_eq!(date(0).as_deref(), Some("1970-01-01"));
        assert_eq!(date(19_782).as_deref(), Some("2024-02-29"));
        assert_eq!(date(DATE_END).as_deref(), Some("9998-12-31"));
    }
}
