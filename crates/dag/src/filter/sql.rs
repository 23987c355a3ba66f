//! Conditions as SQL. Values are bound, never written into the text, and rows match in the same way on both databases:
//!
//! - `LIKE` distinguishes case and has no escape character. SQLite's does neither, so it becomes `GLOB` there.
//! - Texts are ordered by their bytes, whatever the collation of the database is.
//! - SQLite keeps a `timestamptz` as text in UTC with microseconds (`2025-12-31T12:00:00.000000Z`), a `uuid` in lower
//!   case, a `date` as `2025-12-31`. It compares a `decimal` as a number of 64 bits.

use tenure_core::dag::{Column, ColumnType, Filter, Literal, value};

use super::typed::{self, Misfit};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
}

/// A value to bind. On Postgres each has the type that the text casts it from: `bool`, `int8`, `float8`, `text`.
#[derive(Debug, Clone, PartialEq)]
pub enum Param {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sql {
    pub text: String,
    pub params: Vec<Param>,
}

/// The condition as an expression. Its parameters are numbered from `first`.
pub fn compile(filter: &Filter, columns: &[Column], dialect: Dialect, first: usize) -> Result<Sql, Vec<Misfit>> {
    let misfits = typed::check(filter, columns);
    if !misfits.is_empty() {
        return Err(misfits);
    }
    let mut writer = Writer { columns, dialect, first, sql: Sql { text: String::new(), params: Vec::new() } };
    writer.filter(filter);
    Ok(writer.sql)
}

struct Writer<'a> {
    columns: &'a [Column],
    dialect: Dialect,
    first: usize,
    sql: Sql,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) {
        self.sql.text.push_str(text);
    }

    fn filter(&mut self, filter: &Filter) {
        match filter {
            Filter::And(parts) => self.join(parts, " AND "),
            Filter::Or(parts) => self.join(parts, " OR "),
            Filter::Not(inner) => {
                self.push("NOT (");
                self.filter(inner);
                self.push(")");
            }
            Filter::Compare { op, field, value } => {
                let kind = self.kind(field);
                self.operand(field, kind);
                self.push(" ");
                self.push(op.symbol());
                self.push(" ");
                self.value(kind, value);
                if kind == ColumnType::Text && op.orders() && self.dialect == Dialect::Postgres {
                    self.push(" COLLATE \"C\"");
                }
            }
            Filter::In { field, values } => {
                let kind = self.kind(field);
                self.operand(field, kind);
                self.push(" IN (");
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        self.push(", ");
                    }
                    self.value(kind, value);
                }
                self.push(")");
            }
            Filter::Like { field, pattern } => self.like(field, pattern),
            Filter::IsNull { field } => {
                self.column(field);
                self.push(" IS NULL");
            }
        }
    }

    fn join(&mut self, parts: &[Filter], between: &str) {
        self.push("(");
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.push(between);
            }
            self.filter(part);
        }
        self.push(")");
    }

    /// The condition was checked: each of its fields is a column.
    fn kind(&self, field: &str) -> ColumnType {
        typed::column(self.columns, field).unwrap_or(ColumnType::Text)
    }

    fn column(&mut self, field: &str) {
        let quoted = format!("\"{}\"", field.replace('"', "\"\""));
        self.push(&quoted);
    }

    fn operand(&mut self, field: &str, kind: ColumnType) {
        if matches!(kind, ColumnType::Decimal { .. }) && self.dialect == Dialect::Sqlite {
            self.push("CAST(");
            self.column(field);
            self.push(" AS REAL)");
        } else {
            self.column(field);
        }
    }

    fn like(&mut self, field: &str, pattern: &str) {
        self.column(field);
        match self.dialect {
            Dialect::Sqlite => {
                self.push(" GLOB ");
                self.bind(Param::Text(glob(pattern)), "");
            }
            Dialect::Postgres => {
                self.push(" LIKE ");
                self.bind(Param::Text(pattern.to_owned()), "::text");
                self.push(" ESCAPE ''");
            }
        }
    }

    fn value(&mut self, kind: ColumnType, value: &Literal) {
        if matches!(kind, ColumnType::Decimal { .. }) && self.dialect == Dialect::Sqlite {
            self.push("CAST(");
            self.bind(param(kind, value), "");
            self.push(" AS REAL)");
        } else {
            self.bind(param(kind, value), cast(kind, value));
        }
    }

    /// `cast` is what Postgres needs to know; SQLite compares what it is given.
    fn bind(&mut self, param: Param, cast: &str) {
        let number = self.first + self.sql.params.len();
        match self.dialect {
            Dialect::Sqlite => self.push(&format!("?{number}")),
            Dialect::Postgres => self.push(&format!("${number}{cast}")),
        }
        self.sql.params.push(param);
    }
}

fn param(kind: ColumnType, value: &Literal) -> Param {
    match (kind, value) {
        (_, Literal::Bool(value)) => Param::Bool(*value),
        (_, Literal::Int(value)) => Param::Int(*value),
        (_, Literal::Float(value)) => Param::Float(*value),
        (ColumnType::Uuid, Literal::Text(text)) => Param::Text(text.to_lowercase()),
        (ColumnType::Timestamptz, Literal::Text(text)) => {
            let instant = value::timestamp(text);
            Param::Text(instant.map_or_else(|| text.to_string(), |instant| format!("{instant:.6}")))
        }
        (_, Literal::Text(text)) => Param::Text(text.to_string()),
    }
}

const fn cast(kind: ColumnType, value: &Literal) -> &'static str {
    match (kind, value) {
        (_, Literal::Bool(_)) => "::bool",
        (_, Literal::Int(_)) => "::int8",
        (ColumnType::Decimal { .. }, Literal::Float(_)) => "::float8::numeric",
        (_, Literal::Float(_)) => "::float8",
        (ColumnType::Uuid, _) => "::text::uuid",
        (ColumnType::Decimal { .. }, _) => "::text::numeric",
        (ColumnType::Date, _) => "::text::date",
        (ColumnType::Timestamptz, _) => "::text::timestamptz",
        _ => "::text",
    }
}

/// A pattern of `LIKE` as one of `GLOB`.
fn glob(pattern: &str) -> String {
    let mut glob = String::with_capacity(pattern.len());
    for c in pattern.chars() {
        match c {
            '%' => glob.push('*'),
            '_' => glob.push('?'),
            '*' | '?' | '[' => {
                glob.push('[');
                glob.push(c);
                glob.push(']');
            }
            c => glob.push(c),
        }
    }
    glob
}
