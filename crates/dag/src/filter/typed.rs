use std::sync::Arc;

use tenure_core::dag::value::{date, is_decimal, timestamp, uuid};
use tenure_core::dag::{Column, ColumnType, Filter, Literal};

/// A part of a condition that does not fit the columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    pub field: Arc<str>,
    pub fault: Fault,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the dataset has no such column")]
    UnknownField,
    #[error("a column of type {0} cannot be compared with {1}")]
    Value(ColumnType, &'static str),
    #[error("a column of type {0} has no order: use = or !=")]
    Order(ColumnType),
    #[error("a column of type {0} takes only IS NULL and IS NOT NULL")]
    Opaque(ColumnType),
    #[error("LIKE takes a column of type text, not {0}")]
    Like(ColumnType),
}

/// Everything in a condition that does not fit the columns.
pub fn check(filter: &Filter, columns: &[Column]) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    walk(filter, columns, &mut misfits);
    misfits
}

fn walk(filter: &Filter, columns: &[Column], misfits: &mut Vec<Misfit>) {
    let (field, fault) = match filter {
        Filter::And(parts) | Filter::Or(parts) => {
            return parts.iter().for_each(|part| walk(part, columns, misfits));
        }
        Filter::Not(inner) => return walk(inner, columns, misfits),
        Filter::Compare { op, field, value } => {
            (field, column(columns, field).and_then(|kind| compared(kind, value, op.orders())))
        }
        Filter::In { field, values } => {
            let all = |kind| values.iter().try_for_each(|value| compared(kind, value, false));
            (field, column(columns, field).and_then(all))
        }
        Filter::Like { field, .. } => (field, column(columns, field).and_then(like)),
        Filter::IsNull { field } => (field, column(columns, field).map(|_| ())),
    };
    if let Err(fault) = fault {
        misfits.push(Misfit { field: field.clone(), fault });
    }
}

pub(super) fn column(columns: &[Column], field: &str) -> Result<ColumnType, Fault> {
    columns.iter().find(|column| &*column.name == field).map(|column| column.kind).ok_or(Fault::UnknownField)
}

fn like(kind: ColumnType) -> Result<(), Fault> {
    if kind == ColumnType::Text { Ok(()) } else { Err(Fault::Like(kind)) }
}

fn compared(kind: ColumnType, value: &Literal, orders: bool) -> Result<(), Fault> {
    if matches!(kind, ColumnType::Jsonb | ColumnType::Bytes) {
        return Err(Fault::Opaque(kind));
    }
    let fits = match (kind, value) {
        (ColumnType::Text, Literal::Text(_))
        | (ColumnType::Bool, Literal::Bool(_))
        | (ColumnType::Int64, Literal::Int(_))
        | (ColumnType::Float64 | ColumnType::Decimal { .. }, Literal::Int(_) | Literal::Float(_)) => true,
        (ColumnType::Int32, Literal::Int(value)) => i32::try_from(*value).is_ok(),
        (ColumnType::Uuid, Literal::Text(text)) => uuid(text).is_some(),
        (ColumnType::Decimal { .. }, Literal::Text(text)) => is_decimal(text),
        (ColumnType::Date, Literal::Text(text)) => date(text).is_some(),
        (ColumnType::Timestamptz, Literal::Text(text)) => timestamp(text).is_some(),
        _ => false,
    };
    match fits {
        false => Err(Fault::Value(kind, described(kind, value))),
        true if orders && kind == ColumnType::Bool => Err(Fault::Order(kind)),
        true => Ok(()),
    }
}

fn described(kind: ColumnType, value: &Literal) -> &'static str {
    match (kind, value) {
        (ColumnType::Int32, Literal::Int(_)) => "an integer beyond 32 bits",
        (ColumnType::Uuid, Literal::Text(_)) => "a text that is not a UUID",
        (ColumnType::Decimal { .. }, Literal::Text(_)) => "a text that is not a decimal number",
        (ColumnType::Date, Literal::Text(_)) => "a text that is not a date such as '2025-12-31'",
        (ColumnType::Timestamptz, Literal::Text(_)) => "a text that is not a time such as '2025-12-31T12:00:00Z'",
        (_, Literal::Bool(_)) => "a boolean",
        (_, Literal::Int(_)) => "an integer",
        (_, Literal::Float(_)) => "a number with a fraction",
        (_, Literal::Text(_)) => "a text",
    }
}
