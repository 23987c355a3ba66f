//! What a process says: the end of its output, and the result in it.

use std::collections::VecDeque;
use std::path::Path;

use tenure_client::{Json, OutputLog, TaskError};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::folder::read_small;
use crate::builtin::{Keep, bounded_text};

pub(crate) const RESULT_BYTES: usize = 1 << 20;

/// The last bytes of an output.
#[derive(Debug)]
pub(crate) struct LastBytes {
    limit: usize,
    bytes: VecDeque<u8>,
    /// Something before these bytes was dropped.
    cut: bool,
}

impl LastBytes {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: VecDeque::new(), cut: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..over);
        self.cut |= over > 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The end of the output, with what is no UTF-8 replaced.
    pub(crate) fn text(&self) -> String {
        let (first, second) = self.bytes.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).into_owned()
    }

    /// The last line with something in it, if its beginning is still there.
    fn last_line<'a>(&self, text: &'a str) -> Option<&'a str> {
        let text = text.trim_end();
        match text.rsplit_once('\n') {
            Some((_, line)) => Some(line.trim()),
            None if self.cut => None,
            None => Some(text.trim()),
        }
    }
}

/// The last bytes of a stream.
#[derive(Debug)]
pub(crate) struct Tail<R> {
    /// Absent once it has ended.
    stream: Option<R>,
    last: LastBytes,
    buffer: Vec<u8>,
    log: Option<OutputLog>,
}

impl<R: AsyncRead + Unpin> Tail<R> {
    pub(crate) fn new(stream: Option<R>, limit: usize) -> Self {
        Self { stream, last: LastBytes::new(limit), buffer: vec![0; 16 << 10], log: None }
    }

    /// Everything that is read is also logged.
    pub(crate) fn logged(self, log: OutputLog) -> Self {
        Self { log: Some(log), ..self }
    }

    /// The last line is logged, also without an end.
    pub(crate) fn end_log(&mut self) {
        self.log = None;
    }

    pub(crate) fn last(&self) -> &LastBytes {
        &self.last
    }

    /// Reads some more; waits for ever once the stream has ended. Nothing is lost if it is dropped while waiting.
    pub(crate) async fn read(&mut self) {
        let Some(stream) = &mut self.stream else { return std::future::pending().await };
        match stream.read(&mut self.buffer).await {
            Ok(0) | Err(_) => self.stream = None,
            Ok(count) => {
                self.last.push(&self.buffer[..count]);
                if let Some(log) = &mut self.log {
                    log.push(&self.buffer[..count]);
                }
            }
        }
    }

    pub(crate) async fn read_all(&mut self) {
        while self.stream.is_some() {
            self.read().await;
        }
    }
}

/// The result of a process that succeeded: JSON in the result file, or else JSON in the last line of standard output,
/// or else the end of standard output as a text.
pub(crate) async fn result(file: &Path, stdout: &LastBytes) -> Result<Json, TaskError> {
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || read_small(&path, RESULT_BYTES as u64)).await;
    let in_file = read.unwrap_or(Ok(None)).map_err(too_large)?;
    Ok(result_of(in_file, stdout))
}

pub(crate) fn too_large(size: u64) -> TaskError {
    let message = format!("the result file has {size} bytes, the limit is {RESULT_BYTES}");
    TaskError::permanent("RESULT_TOO_LARGE", message)
}

/// As [`result`], of the content of the file, if there is one.
pub(crate) fn result_of(in_file: Option<Vec<u8>>, stdout: &LastBytes) -> Json {
    if let Some(json) = in_file.and_then(|bytes| parse(std::str::from_utf8(&bytes).ok()?)) {
        return json;
    }
    let text = stdout.text();
    stdout.last_line(&text).and_then(parse).unwrap_or_else(|| bounded_text(&text, RESULT_BYTES, Keep::End))
}

fn parse(text: &str) -> Option<Json> {
    Json::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tail(output: &[u8], limit: usize) -> LastBytes {
        let mut tail = Tail::new(Some(output), limit);
        tail.read_all().await;
        tail.last
    }

    async fn result_of(output: &str) -> String {
        let stdout = tail(output.as_bytes(), RESULT_BYTES).await;
        result(Path::new("/nowhere/result.json"), &stdout).await.unwrap().as_str().to_owned()
    }

    #[tokio::test]
    async fn the_last_line_with_json_is_the_result() {
        assert_eq!(result_of("starting\n{\"rows\": 10}\n\n").await, "{\"rows\": 10}");
        assert_eq!(result_of("7").await, "7");
        assert_eq!(result_of("{\"rows\": 1}\nbye\n").await, "\"{\\\"rows\\\": 1}\\nbye\\n\"");
        assert_eq!(result_of("").await, "\"\"");
    }

    #[tokio::test]
    async fn only_the_end_of_long_output_is_kept() {
        let tail = tail("äbcdef\ng\n".as_bytes(), 6).await;
        assert_eq!(tail.text(), "def\ng\n"[..6]);
        assert_eq!(tail.last_line(&tail.text()), Some("g"));
    }

    #[tokio::test]
    async fn a_line_without_its_beginning_is_no_result() {
        // What is left of the line happens to be JSON.
        let tail = tail(b"100", 2).await;
        assert_eq!(tail.last_line(&tail.text()), None);
        let result = result(Path::new("/nowhere/result.json"), &tail).await.unwrap();
        assert_eq!(result.as_str(), "\"00\"");
    }
}
