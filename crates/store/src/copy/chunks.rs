//! Rows of a table, some at a time, so that a table of any size is copied in little memory.

use std::pin::Pin;

use futures_util::TryStreamExt;
use rusqlite::types::Value;
use tokio::sync::mpsc;
use tokio_postgres::{Row, RowStream};

use super::postgres::Kind;
use crate::error::StoreError;
use crate::postgres::failed;

/// Rows that are passed on together, at most.
const ROWS: usize = 500;
/// Bytes beyond which fewer rows are.
const BYTES: usize = 8 << 20;

pub enum Chunks {
    /// From a thread that reads a file.
    Sent(mpsc::Receiver<Result<Vec<Vec<Value>>, StoreError>>),
    /// A stream must not be asked again after its end.
    Streamed(Option<Pin<Box<RowStream>>>, Vec<Kind>),
}

#[derive(Default)]
pub struct Chunk {
    pub rows: Vec<Vec<Value>>,
    bytes: usize,
}

impl Chunk {
    pub fn push(&mut self, row: Vec<Value>) {
        let bytes = row.iter().map(|value| match value {
            Value::Text(text) => text.len(),
            Value::Blob(bytes) => bytes.len(),
            _ => 8,
        });
        self.bytes += bytes.sum::<usize>();
        self.rows.push(row);
    }

    pub fn is_full(&self) -> bool {
        self.rows.len() >= ROWS || self.bytes >= BYTES
    }
}

impl Chunks {
    /// `None` after the last row.
    pub async fn next(&mut self) -> Result<Option<Vec<Vec<Value>>>, StoreError> {
        match self {
            Self::Sent(receiver) => receiver.recv().await.transpose(),
            Self::Streamed(stream, kinds) => {
                let mut chunk = Chunk::default();
                while let Some(rows) = stream.as_mut().filter(|_| !chunk.is_full()) {
                    match rows.try_next().await.map_err(|error| failed("read a table", error))? {
                        Some(row) => chunk.push(values(&row, kinds).map_err(|error| failed("read a table", error))?),
                        None => *stream = None,
                    }
                }
                Ok((!chunk.rows.is_empty()).then_some(chunk.rows))
            }
        }
    }
}

fn values(row: &Row, kinds: &[Kind]) -> Result<Vec<Value>, tokio_postgres::Error> {
    let values = kinds.iter().enumerate().map(|(at, kind)| {
        let value = match kind.on_the_way() {
            "bigint" => row.try_get::<_, Option<i64>>(at)?.map(Value::Integer),
            "double precision" => row.try_get::<_, Option<f64>>(at)?.map(Value::Real),
            "bytea" => row.try_get::<_, Option<Vec<u8>>>(at)?.map(Value::Blob),
            _ => row.try_get::<_, Option<String>>(at)?.map(Value::Text),
        };
        Ok(value.unwrap_or(Value::Null))
    });
    values.collect()
}
