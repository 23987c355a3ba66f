//! Bodies of the dispatch contract, in the spellings of deployed workers, well meant or not.

use serde_json::{Map, Value};
use tenure_contract::dispatch::dialect::{self, Unreadable};

const MESSAGE_BYTES: usize = 400;
/// Every field that some reader looks at.
const FIELDS: [&str; 24] = [
    "task_id",
    "worker_id",
    "claim_id",
    "attempt",
    "lease_token",
    "status",
    "outcome",
    "retryable",
    "error",
    "error_message",
    "outputs",
    "datasets_published",
    "events",
    "invalidations",
    "operator_state",
    "dataset_uuid",
    "dedupe_scope",
    "schema_hash",
    "batch_uri",
    "content_type",
    "batch_size_bytes",
    "records",
    "sql",
    "limit",
];

/// Gives a body to every reader. What is refused is refused in few words, without the lease token. What is accepted
/// means the same with fields that are null, fields that are not known, and other white space.
pub fn body(data: &[u8]) {
    let fields = match serde_json::from_slice(data) {
        Ok(Value::Object(fields)) => Some(fields),
        _ => None,
    };
    let fields = fields.as_ref();
    same(data, fields, dialect::claim);
    same(data, fields, dialect::heartbeat);
    same(data, fields, dialect::events);
    same(data, fields, dialect::query);
    same(data, fields, dialect::complete);
    same(data, fields, |body| {
        let request = dialect::buffer_publish(body)?;
        // Rows are kept as they were sent, white space included.
        let records = request.records.as_deref().map(serde_json::from_str::<Value>).transpose();
        let mut rest = request;
        rest.records = None;
        Ok((rest, records.ok()))
    });
    if let Ok(request) = dialect::complete(data) {
        let canonical: Value = serde_json::from_str(request.canonical.as_str()).expect("the canonical text is JSON");
        is_bare(&canonical);
        assert_eq!(canonical.to_string(), request.canonical.as_str(), "one spelling");
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    fields: Option<&Map<String, Value>>,
    read: impl Fn(&[u8]) -> Result<T, Unreadable>,
) {
    let read_of = |value: &Value| read(value.to_string().as_bytes());
    match (read(data), fields) {
        (Ok(request), Some(fields)) => {
            let mut padded = fields.clone();
            FIELDS.iter().filter(|name| !fields.contains_key(**name)).for_each(|name| {
                padded.insert((*name).to_owned(), Value::Null);
            });
            padded.insert("a field that nobody knows".to_owned(), Value::Bool(true));
            assert_eq!(read_of(&Value::Object(padded)).as_ref(), Ok(&request));
        }
        // Rows may hold what nobody has to understand here, such as a number that no type can hold.
        (Ok(_), None) => assert!(data.trim_ascii_start().starts_with(b"{"), "only an object is a request"),
        (Err(Unreadable::Malformed(message)), fields) => {
            assert!(message.len() < MESSAGE_BYTES, "a message of {} bytes", message.len());
            let token = fields.and_then(|fields| fields.get("lease_token")?.as_str());
            // A word that our own messages have is not a secret.
            if let Some(token) = token.filter(|token| token.len() == 36 && token.bytes().any(|it| it.is_ascii_digit()))
            {
                assert!(!message.contains(token), "{message}");
            }
        }
        (Err(Unreadable::Unsupported { field }), fields) => {
            assert!(fields.is_some_and(|fields| fields.contains_key(field)), "{field} was not sent");
        }
    }
}

/// Neither nulls nor empty lists.
fn is_bare(value: &Value) {
    match value {
        Value::Null => panic!("null is absent"),
        Value::Array(items) => items.iter().for_each(is_bare),
        Value::Object(fields) => fields.values().for_each(|value| {
            assert!(value.as_array().is_none_or(|items| !items.is_empty()), "an empty list is absent");
            is_bare(value);
        }),
        _ => {}
    }
}
