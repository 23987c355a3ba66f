//! What Redis answers about entries of a stream.

use std::sync::Arc;

use redis::Value;

use crate::wake::{body, is_of_jobs, task_id, task_of};
use crate::{Delivery, Receipt};

/// An entry as a stream holds it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: Arc<str>,
    /// `None` if it is not a wake-up.
    wake: Option<(Arc<str>, Option<i64>)>,
}

/// Adds a wake-up to the stream `key` of a queue.
pub(super) fn add(pipeline: &mut redis::Pipeline, key: &str, queue: &str, task: &str, enqueue: i64) {
    pipeline.cmd("XADD").arg(key).arg("*");
    if is_of_jobs(queue) {
        pipeline.arg("body").arg(body(task));
    } else {
        pipeline.arg("job_id").arg(task).arg("enqueue_id").arg(enqueue);
    }
}

impl Entry {
    pub(super) fn is_wake_up(&self) -> bool {
        self.wake.is_some()
    }

    pub(super) fn delivery(self, queue: &Arc<str>) -> Option<Delivery> {
        let (task, enqueue) = self.wake?;
        let receipt = Receipt { queue: queue.clone(), handle: self.id.clone() };
        Some(Delivery { queue: queue.clone(), task, enqueue, message_id: self.id, receipt })
    }
}

/// Entries, as `XRANGE` and `XAUTOCLAIM` list them. Those that were deleted meanwhile come as nil and are left out.
pub(super) fn entries(queue: &str, list: &Value) -> Vec<Entry> {
    let Value::Array(list) = list else { return Vec::new() };
    list.iter().filter_map(|value| entry(queue, value)).collect()
}

/// The entries of an `XREADGROUP` of one stream: `[[key, entries]]`, or nil.
pub(super) fn entries_of_read(queue: &str, answer: &Value) -> Vec<Entry> {
    let Value::Array(streams) = answer else { return Vec::new() };
    match streams.first() {
        Some(Value::Array(stream)) => stream.get(1).map(|list| entries(queue, list)).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// `[next, entries, …]`, the answer of `XAUTOCLAIM`. No `next` at the end.
pub(super) fn claimed(queue: &str, answer: &Value) -> (Option<String>, Vec<Entry>) {
    let Value::Array(parts) = answer else { return (None, Vec::new()) };
    let next = parts.first().and_then(text).filter(|next| *next != "0-0").map(str::to_owned);
    (next, parts.get(1).map(|list| entries(queue, list)).unwrap_or_default())
}

/// Names and bodies of entries, whatever they are, from the answer of `XREADGROUP`.
pub(super) fn read_bodies(answer: &Value) -> Vec<(Arc<str>, String)> {
    let Value::Array(streams) = answer else { return Vec::new() };
    match streams.first() {
        Some(Value::Array(stream)) => stream.get(1).map(bodies).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The same from the answer of `XAUTOCLAIM`.
pub(super) fn claimed_bodies(answer: &Value) -> Vec<(Arc<str>, String)> {
    let Value::Array(parts) = answer else { return Vec::new() };
    parts.get(1).map(bodies).unwrap_or_default()
}

/// An entry without a text in `body` has an empty one.
fn bodies(list: &Value) -> Vec<(Arc<str>, String)> {
    let Value::Array(list) = list else { return Vec::new() };
    let read = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let id = parts.first().and_then(text)?.into();
        let body = parts.get(1).and_then(|fields| field(fields, "body")).unwrap_or_default();
        Some((id, body.to_owned()))
    };
    list.iter().filter_map(read).collect()
}

/// The id behind which everything is new, from `XINFO STREAM`.
pub(super) fn last_id(answer: &Value) -> Option<&str> {
    let Value::Array(fields) = answer else { return None };
    let mut pairs = fields.chunks_exact(2);
    pairs.find(|pair| text(&pair[0]) == Some("last-generated-id")).and_then(|pair| text(&pair[1]))
}

/// The names in the answer of `XINFO GROUPS`.
pub(super) fn group_names(answer: &Value) -> impl Iterator<Item = &str> {
    let groups = if let Value::Array(groups) = answer { groups.as_slice() } else { &[] };
    groups.iter().filter_map(|group| {
        let Value::Array(fields) = group else { return None };
        let mut pairs = fields.chunks_exact(2);
        pairs.find(|pair| text(&pair[0]) == Some("name")).and_then(|pair| text(&pair[1]))
    })
}

fn entry(queue: &str, value: &Value) -> Option<Entry> {
    let Value::Array(parts) = value else { return None };
    let id = parts.first().and_then(text)?.into();
    Some(Entry { id, wake: parts.get(1).and_then(|fields| wake_up(queue, fields)) })
}

fn wake_up(queue: &str, fields: &Value) -> Option<(Arc<str>, Option<i64>)> {
    if is_of_jobs(queue) {
        return Some((task_of(field(fields, "body")?)?, None));
    }
    Some((task_id(field(fields, "job_id")?)?, Some(field(fields, "enqueue_id")?.parse().ok()?)))
}

fn field<'a>(fields: &'a Value, name: &str) -> Option<&'a str> {
    let Value::Array(fields) = fields else { return None };
    let mut pairs = fields.chunks_exact(2);
    pairs.find(|pair| text(&pair[0]) == Some(name)).and_then(|pair| text(&pair[1]))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Redis refuses a whole command for one id that it cannot read.
pub(super) fn is_entry_id(text: &str) -> bool {
    let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u64>().is_ok();
    match text.split_once('-') {
        Some((time, sequence)) => number(time) && number(sequence),
        None => number(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_redis_can_read_is_an_entry_id() {
        for good in ["1705312800000-0", "0-0", "7", "18446744073709551615-18446744073709551615"] {
            assert!(is_entry_id(good), "{good}");
        }
        for bad in ["", "-", "1-", "-1", "1-2-3", "+1-0", "18446744073709551616-0", "(1-0", "*", "$"] {
            assert!(!is_entry_id(bad), "{bad}");
        }
    }
}
