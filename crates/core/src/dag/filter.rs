//! The condition of an input as a typed tree. Nothing is evaluated here: rows are filtered where they are read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How deep a condition may be nested.
pub const DEPTH: usize = 16;
/// A condition as text.
pub const TEXT_BYTES: usize = 4 << 10;

/// A condition. `and` and `or` have two parts or more and none of their own kind: build them with [`Filter::and`] and
/// [`Filter::or`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Node", try_from = "Node")]
pub enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Compare {
        op: Comparison,
        field: Arc<str>,
        value: Literal,
    },
    /// Not empty.
    In {
        field: Arc<str>,
        values: Vec<Literal>,
    },
    Like {
        field: Arc<str>,
        pattern: Arc<str>,
    },
    IsNull {
        field: Arc<str>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Comparison {
    pub const ALL: [Self; 6] = [Self::Eq, Self::Ne, Self::Lt, Self::Le, Self::Gt, Self::Ge];

    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Eq => "=",
            Self::Ne => "!=",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
        }
    }

    /// Whether it asks for the order of two values, not only whether they are equal.
    pub const fn orders(self) -> bool {
        !matches!(self, Self::Eq | Self::Ne)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    Bool(bool),
    Int(i64),
    /// Finite; made by [`Literal::float`].
    Float(f64),
    Text(Arc<str>),
}

impl Filter {
    /// All of them. Parts that are `and` themselves are merged; `None` without any part.
    pub fn and(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut all = Vec::new();
        for part in parts {
            match part {
                Self::And(inner) => all.extend(inner),
                part => all.push(part),
            }
        }
        one_or(all, Self::And)
    }

    /// At least one of them. Parts that are `or` themselves are merged; `None` without any part.
    pub fn or(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut all = Vec::new();
        for part in parts {
            match part {
                Self::Or(inner) => all.extend(inner),
                part => all.push(part),
            }
        }
        one_or(all, Self::Or)
    }

    pub fn negated(self) -> Self {
        Self::Not(Box::new(self))
    }

    /// Levels of the tree; a single comparison is one.
    pub fn depth(&self) -> usize {
        1 + match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().map(Self::depth).max().unwrap_or(0),
            Self::Not(inner) => inner.depth(),
            _ => 0,
        }
    }
}

fn one_or(mut parts: Vec<Filter>, join: fn(Vec<Filter>) -> Filter) -> Option<Filter> {
    if parts.len() > 1 { Some(join(parts)) } else { parts.pop() }
}

/// A node as it is written in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Node {
    op: Op,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    args: Option<Vec<Filter>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    And,
    Or,
    Not,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    Like,
    IsNull,
}

/// A node whose parts do not fit its `op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("`and`, `or` and `not` take `args` and nothing else; `not` takes one")]
    Args,
    #[error("a comparison takes `field` and `value`")]
    Leaf,
    #[error("the value does not fit the operation")]
    Value,
}

impl From<Filter> for Node {
    fn from(filter: Filter) -> Self {
        let join = |op, args| Self { op, args: Some(args), field: None, value: None };
        let leaf = |op, field, value| Self { op, args: None, field: Some(field), value: Some(value) };
        match filter {
            Filter::And(parts) => join(Op::And, parts),
            Filter::Or(parts) => join(Op::Or, parts),
            Filter::Not(inner) => join(Op::Not, vec![*inner]),
            Filter::Compare { op, field, value } => leaf(op.into(), field, value.json()),
            Filter::In { field, values } => leaf(Op::In, field, values.iter().map(Literal::json).collect()),
            Filter::Like { field, pattern } => leaf(Op::Like, field, Value::from(&*pattern)),
            // A reader that asks for the value of every comparison finds the right one.
            Filter::IsNull { field } => leaf(Op::IsNull, field, Value::Bool(true)),
        }
    }
}

impl TryFrom<Node> for Filter {
    type Error = Malformed;

    fn try_from(node: Node) -> Result<Self, Malformed> {
        match (node.op, node.args, node.field, node.value) {
            (Op::And, Some(args), None, None) => Self::and(args).ok_or(Malformed::Args),
            (Op::Or, Some(args), None, None) => Self::or(args).ok_or(Malformed::Args),
            (Op::Not, Some(mut args), None, None) if args.len() == 1 => {
                args.pop().map(Self::negated).ok_or(Malformed::Args)
            }
            (Op::And | Op::Or | Op::Not, ..) => Err(Malformed::Args),
            (op, None, Some(field), value) => leaf(op, field, value),
            _ => Err(Malformed::Leaf),
        }
    }
}

fn leaf(op: Op, field: Arc<str>, value: Option<Value>) -> Result<Filter, Malformed> {
    match (op, value) {
        (Op::IsNull, None | Some(Value::Bool(true))) => Ok(Filter::IsNull { field }),
        (Op::IsNull, Some(_)) => Err(Malformed::Value),
        (_, None) => Err(Malformed::Leaf),
        (Op::In, Some(Value::Array(values))) if !values.is_empty() => {
            let values = values.iter().map(|value| Literal::of_json(value).ok_or(Malformed::Value));
            Ok(Filter::In { field, values: values.collect::<Result<_, _>>()? })
        }
        (Op::Like, Some(Value::String(pattern))) => Ok(Filter::Like { field, pattern: pattern.into() }),
        (op, Some(value)) => {
            let op = Comparison::of(op).ok_or(Malformed::Value)?;
            Ok(Filter::Compare { op, field, value: Literal::of_json(&value).ok_or(Malformed::Value)? })
        }
    }
}

impl From<Comparison> for Op {
    fn from(op: Comparison) -> Self {
        match op {
            Comparison::Eq => Self::Eq,
            Comparison::Ne => Self::Ne,
            Comparison::Lt => Self::Lt,
            Comparison::Le => Self::Le,
            Comparison::Gt => Self::Gt,
            Comparison::Ge => Self::Ge,
        }
    }
}

impl Comparison {
    fn of(op: Op) -> Option<Self> {
        Self::ALL.into_iter().find(|comparison| Op::from(*comparison) == op)
    }
}

impl Literal {
    pub fn json(&self) -> Value {
        match self {
            Self::Bool(value) => Value::from(*value),
            Self::Int(value) => Value::from(*value),
            Self::Float(value) => Value::from(*value),
            Self::Text(value) => Value::from(&**value),
        }
    }

    /// `None` for a number that is not finite, or has so many digits that JSON would change the last one: a stored
    /// condition must be the one that was written.
    pub fn float(value: f64) -> Option<Self> {
        let stored: Option<f64> = serde_json::from_str(&Value::from(value).to_string()).ok();
        (stored == Some(value)).then_some(Self::Float(value))
    }

    /// `None` for null, arrays, objects, and numbers that 64 bits do not hold.
    pub fn of_json(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(Self::Bool(*value)),
            Value::Number(number) if number.is_i64() => number.as_i64().map(Self::Int),
            Value::Number(number) if number.is_f64() => number.as_f64().and_then(Self::float),
            Value::String(text) => Some(Self::Text(text.as_str().into())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tree(value: Value) -> Result<Filter, serde_json::Error> {
        serde_json::from_value(value)
    }

    #[test]
    fn nodes_are_written_as_the_contract_shows() {
        let text = r#"{"op":"and","args":[{"op":"eq","field":"severity","value":"critical"},{"op":"in","field":"chain_id","value":[1,10143]},{"op":"not","args":[{"op":"like","field":"name","value":"a%"}]},{"op":"or","args":[{"op":"is_null","field":"x","value":true},{"op":"ge","field":"y","value":1.5}]}]}"#;
        let read: Filter = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(read.depth(), 3);
    }

    #[test]
    fn nodes_of_the_same_kind_are_merged() {
        let leaf = |field: &str| json!({"op": "eq", "field": field, "value": true});
        let nested = json!({"op": "and", "args": [{"op": "and", "args": [leaf("a"), leaf("b")]}, leaf("c")]});
        let flat = json!({"op": "and", "args": [leaf("a"), leaf("b"), leaf("c")]});
        assert_eq!(tree(nested).unwrap(), tree(flat).unwrap());
        assert_eq!(tree(json!({"op": "or", "args": [leaf("a")]})).unwrap(), tree(leaf("a")).unwrap());
    }

    #[test]
    fn nodes_that_make_no_sense_are_refused() {
        let a = json!({"op": "eq", "field": "a", "value": 1});
        for wrong in [
            json!({"op": "and", "args": []}),
            json!({"op": "not", "args": [a, a]}),
            json!({"op": "and", "field": "a", "value": 1}),
            json!({"op": "eq", "field": "a"}),
            json!({"op": "eq", "field": "a", "value": null}),
            json!({"op": "eq", "field": "a", "value": [1]}),
            json!({"op": "eq", "field": "a", "value": 1, "args": []}),
            json!({"op": "eq", "field": "a", "value": 18_446_744_073_709_551_615_u64}),
            json!({"op": "in", "field": "a", "value": []}),
            json!({"op": "in", "field": "a", "value": 1}),
            json!({"op": "in", "field": "a", "value": [null]}),
            json!({"op": "like", "field": "a", "value": 1}),
            json!({"op": "is_null", "field": "a", "value": false}),
            json!({"op": "xor", "args": [a]}),
        ] {
            assert!(tree(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
