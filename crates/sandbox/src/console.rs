use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of lines that a sandbox keeps. Older lines go.
const MAX_BYTES: usize = 256 * 1024;

/// A longer line is cut into several.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// The last lines that the commands of a sandbox wrote.
#[derive(Debug, Clone, Default)]
pub(crate) struct Console(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<Box<str>>,
    bytes: usize,
}

impl Console {
    /// The last `count` lines, oldest first; 0 means all.
    pub(crate) fn last(&self, count: usize) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped = if count == 0 { 0 } else { lines.lines.len().saturating_sub(count) };
        lines.lines.iter().skip(skipped).map(|line| line.to_string()).collect()
    }

    /// Takes the bytes of one stream of one command.
    pub(crate) fn writer(&self) -> ConsoleWriter {
        ConsoleWriter { console: self.clone(), partial: Vec::new() }
    }

    fn push(&self, line: &[u8]) {
        let line: Box<str> = String::from_utf8_lossy(line).into();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.bytes += cost(&line);
        lines.lines.push_back(line);
        while lines.bytes > MAX_BYTES {
            let Some(oldest) = lines.lines.pop_front() else { break };
            lines.bytes -= cost(&oldest);
        }
    }
}

/// An empty line takes room too.
fn cost(line: &str) -> usize {
    line.len() + size_of::<Box<str>>()
}

/// Gathers the bytes of a stream to lines. What is left at the end is a line too.
#[derive(Debug)]
pub(crate) struct ConsoleWriter {
    console: Console,
    partial: Vec<u8>,
}

impl ConsoleWriter {
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            self.extend(piece);
            if pieces.peek().is_some() {
                let line = std::mem::take(&mut self.partial);
                self.console.push(line.strip_suffix(b"\r").unwrap_or(&line));
            }
        }
    }

    fn extend(&mut self, mut piece: &[u8]) {
        while self.partial.len() + piece.len() > MAX_LINE_BYTES {
            let (head, tail) = piece.split_at(MAX_LINE_BYTES - self.partial.len());
            self.partial.extend_from_slice(head);
            self.console.push(&std::mem::take(&mut self.partial));
            piece = tail;
        }
        self.partial.extend_from_slice(piece);
    }
}

impl Drop for ConsoleWriter {
    fn drop(&mut self) {
        if !self.partial.is_empty() {
            self.console.push(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_streams_are_kept_apart_and_counted() {
        let console = Console::default();
        let (mut out, mut err) = (console.writer(), console.writer());
        out.write(b"on");
        err.write(b"error\r\n");
        out.write(b"e\ntwo");
        drop(out);
        assert_eq!(console.last(0), ["error", "one", "two"]);
        assert_eq!(console.last(2), ["one", "two"]);
        assert_eq!(console.last(9).len(), 3);
    }

    #[test]
    fn memory_is_bounded_for_long_lines_and_for_empty_ones() {
        let console = Console::default();
        let mut writer = console.writer();
        for _ in 0..1000 {
            writer.write(&[b'x'; 10_000]);
            assert!(writer.partial.len() <= MAX_LINE_BYTES);
        }
        writer.write(&[b'\n'; 1_000_000]);
        let lines = console.last(0);
        assert!(lines.len() <= MAX_BYTES / size_of::<Box<str>>());
        assert!(lines.iter().all(|line| line.len() <= MAX_LINE_BYTES));
    }
}
