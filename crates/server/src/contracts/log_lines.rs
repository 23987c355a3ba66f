//! Lines of task logs, as every contract sends them.

use std::fmt;

use tenure_contract::pull::LogLine;
use tenure_core::{Timestamp, limits};

use super::pull::without_nul;
use crate::error::Fault;
use crate::redact::Redactor;

const LINES: usize = 1_000;
const LINE_BYTES: usize = 8 << 10;
/// Of the lines of one attempt in one request, as JSON. What is over is left out.
const PIECE_BYTES: usize = 64 << 10;

pub fn check(lines: &[LogLine], field: impl fmt::Display) -> Result<(), Fault> {
    if lines.len() > LINES {
        return Err(Fault::invalid(field.to_string(), &format!("must have at most {LINES} lines")));
    }
    Ok(())
}

/// The lines as they are kept, without secrets. What is too much is left out, and says so.
pub fn kept(lines: &[LogLine], dropped: Option<u64>, redactor: &Redactor) -> String {
    let note = |text: String| LogLine { at: None, stream: Some("log".to_owned()), text };
    let dropped = dropped.filter(|dropped| *dropped > 0);
    let mut kept: Vec<LogLine> = Vec::with_capacity(lines.len() + 2);
    kept.extend(dropped.map(|dropped| note(format!("[{dropped} lines were dropped by the worker]"))));
    let mut bytes = 0;
    for (at, line) in lines.iter().enumerate() {
        let text = without_nul(limits::cut(&redactor.clean(&line.text), LINE_BYTES));
        // Control characters take six bytes each in JSON.
        bytes += 64 + serde_json::to_string(&text).map_or(0, |json| json.len());
        if bytes > PIECE_BYTES {
            kept.push(note(format!("[{} lines were dropped: too many at once]", lines.len() - at)));
            break;
        }
        let stream = line.stream.as_deref().filter(|stream| matches!(*stream, "stdout" | "stderr"));
        kept.push(LogLine {
            at: line.at.as_deref().and_then(|at| Timestamp::parse(at).ok()).map(|at| at.to_string()),
            stream: Some(stream.unwrap_or("log").to_owned()),
            text,
        });
    }
    serde_json::to_string(&kept).unwrap_or_else(|_| "[]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_an_item_is_bounded() {
        let redactor = Redactor::default();
        let line = |text: &str| LogLine { text: text.to_owned(), ..LogLine::default() };
        let text = kept(&vec![line(&"\u{1}".repeat(20_000)); 1_000], Some(7), &redactor);
        assert!(text.len() < PIECE_BYTES + 1_000, "{}", text.len());
        let lines: Vec<LogLine> = serde_json::from_str(&text).unwrap();
        assert_eq!(lines[0].text, "[7 lines were dropped by the worker]");
        assert!(lines.last().unwrap().text.ends_with("lines were dropped: too many at once]"), "{lines:?}");
    }
}
