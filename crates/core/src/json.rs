//! JSON that is carried as text, and the one comparison that is made of it.

use serde_json::Value;

/// Whether two texts are the same JSON value: order of keys and white space do not matter, `1` and `1.0` are equal.
pub fn same_value(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    match (serde_json::from_str::<Value>(a), serde_json::from_str::<Value>(b)) {
        (Ok(a), Ok(b)) => equal(&a, &b),
        _ => false,
    }
}

/// The same for values that may be absent.
pub fn same(a: Option<&str>, b: Option<&str>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => same_value(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            // Two integers are compared as integers: as floats, large neighbours would be one.
            a == b || ((a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64())
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_as_values() {
        assert!(same_value(r#"{"a":1,"b":[true,null]}"#, r#"{ "b": [true, null], "a": 1.0 }"#));
        assert!(!same_value(r#"{"a":1}"#, r#"{"a":1,"b":null}"#));
        assert!(!same_value(r#"[1,2]"#, r#"[2,1]"#));
        assert!(!same_value(r#""1""#, "1"));
        assert!(!same_value("9007199254740993", "9007199254740992"));
    }
}
