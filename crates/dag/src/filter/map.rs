use serde_json::{Map, Value};
use tenure_core::dag::filter::TEXT_BYTES;
use tenure_core::dag::{Comparison, Filter, Literal};

use super::{WhereError, print, valid_field};

/// A condition as a map: each field equals its value, or is one of a list.
pub fn from_map(map: &Map<String, Value>) -> Result<Filter, WhereError> {
    let parts = map.iter().map(|(field, value)| part(field, value)).collect::<Result<Vec<_>, _>>()?;
    let filter = Filter::and(parts).ok_or_else(|| WhereError::new(1, "the map is empty: leave `where` out"))?;
    if print(&filter).len() > TEXT_BYTES {
        return Err(WhereError::new(1, format!("a condition has at most {TEXT_BYTES} bytes as text")));
    }
    Ok(filter)
}

fn part(field: &str, value: &Value) -> Result<Filter, WhereError> {
    if !valid_field(field) {
        return Err(WhereError::new(1, "a field has 1 to 128 bytes and no control characters"));
    }
    match value {
        Value::Array(values) if values.is_empty() => {
            Err(WhereError::new(1, format!("the list of '{field}' is empty: no row would match")))
        }
        Value::Array(values) => {
            let values = values.iter().map(|value| literal(field, value)).collect::<Result<_, _>>()?;
            Ok(Filter::In { field: field.into(), values })
        }
        value => Ok(Filter::Compare { op: Comparison::Eq, field: field.into(), value: literal(field, value)? }),
    }
}

fn literal(field: &str, value: &Value) -> Result<Literal, WhereError> {
    let wrong = match value {
        Value::Null => format!("nothing equals null: write `where: \"{field} IS NULL\"`"),
        Value::String(text) if text.contains('\0') => format!("the text of '{field}' contains a NUL character"),
        Value::Number(_) => format!("the number of '{field}' exceeds 64 bits: put it in quotes"),
        _ => format!("'{field}' takes a literal or a list of literals"),
    };
    let text_is_whole = !matches!(value, Value::String(text) if text.contains('\0'));
    Literal::of_json(value).filter(|_| text_is_whole).ok_or_else(|| WhereError::new(1, wrong))
}
