//! The output of a command as text: characters stay whole, and what is not UTF-8 is kept byte by byte.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tenure_contract::worker_rpc as wire;
use tenure_sandbox::{Error, Event, Execution, Exit, OutputStream};
use tokio::time::{Instant, sleep_until};

use super::settings::RpcTimes;

/// The most that one line of a stream carries. Escaped and encoded it stays below the longest line.
const PIECE_BYTES: usize = 32 << 10;

/// What a reader of an execution gets next.
#[derive(Debug)]
pub(super) enum Item {
    Chunk(wire::Chunk),
    /// Nothing happened for a while.
    Silence,
    Exited(Exit),
    Failed(Error),
}

/// A running command whose output is read as text. It holds no more than the execution does and one chunk.
#[derive(Debug)]
pub(super) struct Reading {
    execution: Execution,
    text: Text,
    end: Option<Item>,
    ended: bool,
    silence: Duration,
    wait: Duration,
}

impl Reading {
    pub(super) fn new(execution: Execution, times: &RpcTimes) -> Self {
        let (text, end, ended) = (Text::default(), None, false);
        Self { execution, text, end, ended, silence: times.keep_alive, wait: times.split_character }
    }

    /// None after `Exited` or `Failed`, of which there is exactly one. May be canceled.
    pub(super) async fn next(&mut self) -> Option<Item> {
        let silent_at = Instant::now() + self.silence;
        loop {
            if let Some(chunk) = self.text.ready.pop_front() {
                return Some(Item::Chunk(chunk));
            }
            if let Some(end) = self.end.take() {
                self.ended = true;
                return Some(end);
            }
            if self.ended {
                return None;
            }
            let split_at = self.text.held_since.map(|since| since + self.wait);
            tokio::select! {
                biased;
                event = self.execution.next() => match event {
                    Some(Event::Output(chunk)) => self.text.push(chunk.stream, &chunk.bytes),
                    Some(Event::Exited(exit)) => self.finish(Item::Exited(exit)),
                    Some(Event::Failed(error)) => self.finish(Item::Failed(error)),
                    None => self.finish(Item::Failed(Error::internal("the command ended without an exit code"))),
                },
                () = sleep_until(split_at.unwrap_or(silent_at)), if split_at.is_some() => self.text.flush(),
                () = sleep_until(silent_at) => return Some(Item::Silence),
            }
        }
    }

    fn finish(&mut self, end: Item) {
        self.text.flush();
        self.end = Some(end);
    }
}

/// Turns bytes into chunks of text.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub ready: VecDeque<wire::Chunk>,
    /// The beginning of a character, of stdout and of stderr.
    held: [Vec<u8>; 2],
    held_since: Option<Instant>,
}

impl Text {
    pub(super) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let held = &mut self.held[stream as usize];
        let joined;
        let bytes = if held.is_empty() {
            bytes
        } else {
            held.extend_from_slice(bytes);
            joined = std::mem::take(held);
            &joined[..]
        };
        let (whole, rest) = bytes.split_at(bytes.len() - split_character(bytes));
        self.held[stream as usize].extend_from_slice(rest);
        self.emit(stream, whole);
        if self.held.iter().all(Vec::is_empty) {
            self.held_since = None;
        } else if !rest.is_empty() {
            self.held_since = Some(Instant::now());
        }
    }

    /// Gives up waiting for the rest of a character.
    pub(super) fn flush(&mut self) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let held = std::mem::take(&mut self.held[stream as usize]);
            self.emit(stream, &held);
        }
        self.held_since = None;
    }

    fn emit(&mut self, stream: OutputStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut end = bytes.len().min(PIECE_BYTES);
            if end < bytes.len() {
                end -= split_character(&bytes[..end]);
            }
            let (piece, rest) = bytes.split_at(end);
            self.ready.push_back(chunk(stream, piece));
            bytes = rest;
        }
    }
}

fn chunk(stream: OutputStream, bytes: &[u8]) -> wire::Chunk {
    let (data, data_b64) = lossy(bytes);
    let stream = match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    wire::Chunk { stream: stream.to_owned(), data, data_b64 }
}

/// The text of some bytes, and the bytes themselves if the text is not all that they are.
pub(super) fn lossy(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(STANDARD.encode(bytes))),
    }
}

/// How many bytes at the end are the beginning of a character.
fn split_character(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .find(|count| {
            let end = std::str::from_utf8(&bytes[bytes.len() - count..]);
            end.is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &mut Text) -> Vec<(String, Option<String>)> {
        text.ready.drain(..).map(|chunk| (chunk.data, chunk.data_b64)).collect()
    }

    #[test]
    fn a_character_that_is_split_between_two_reads_stays_whole() {
        let sentence = "häß 漢字 🦀!";
        for cut in 0..sentence.len() {
            let mut text = Text::default();
            text.push(OutputStream::Stdout, &sentence.as_bytes()[..cut]);
            text.push(OutputStream::Stdout, &sentence.as_bytes()[cut..]);
            assert!(text.held_since.is_none());
            let all = texts(&mut text);
            assert!(all.iter().all(|(_, exact)| exact.is_none()), "{cut}: {all:?}");
            assert_eq!(all.iter().map(|(data, _)| data.as_str()).collect::<String>(), sentence);
        }
    }

    #[test]
    fn the_streams_do_not_mix() {
        let crab = "🦀".as_bytes();
        let mut text = Text::default();
        text.push(OutputStream::Stdout, &crab[..2]);
        text.push(OutputStream::Stderr, b"warn");
        text.push(OutputStream::Stdout, &crab[2..]);
        assert_eq!(texts(&mut text), [("warn".to_owned(), None), ("🦀".to_owned(), None)]);
    }

    #[test]
    fn what_is_not_utf_8_is_kept_exactly() {
        let mut text = Text::default();
        text.push(OutputStream::Stdout, b"\xff");
        assert_eq!(texts(&mut text), [("\u{fffd}".to_owned(), Some("/w==".to_owned()))]);
        text.push(OutputStream::Stdout, b"a\xf0\x9f");
        assert_eq!(texts(&mut text), [("a".to_owned(), None)]);
        assert!(text.held_since.is_some());
        text.flush();
        assert_eq!(texts(&mut text), [("\u{fffd}".to_owned(), Some(STANDARD.encode(b"\xf0\x9f")))]);
    }

    #[test]
    fn a_long_chunk_is_divided_at_characters_and_no_line_is_too_long() {
        for bytes in ["ä".repeat(50_000).into_bytes(), vec![1; 65_536], vec![0xff; 65_536], {
            let mut mixed = vec![1; 65_535];
            mixed.push(0xff);
            mixed
        }] {
            let mut text = Text::default();
            text.push(OutputStream::Stdout, &bytes);
            text.flush();
            let mut found = Vec::new();
            for chunk in text.ready.drain(..) {
                match &chunk.data_b64 {
                    Some(exact) => found.extend(STANDARD.decode(exact).expect("base64")),
                    None => found.extend_from_slice(chunk.data.as_bytes()),
                }
                let line = wire::StreamLine {
                    id: "x".repeat(512),
                    worker_id: "w".repeat(512),
                    result: Some(chunk),
                    ..wire::StreamLine::default()
                };
                assert!(serde_json::to_vec(&line).expect("JSON").len() < wire::MAX_LINE_BYTES);
            }
            assert_eq!(found, bytes);
        }
    }
}
