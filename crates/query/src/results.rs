//! Results as bytes, in each format.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;
use tenure_contract::query::process::{Bounds, Done, Failure, Format, ResultColumn};

use crate::failure::Wrong;
use crate::values;

/// A row group is written when so much of it is in memory.
const ROW_GROUP_BYTES: usize = 32 << 20;

pub fn columns(schema: &Schema) -> Vec<ResultColumn> {
    let column = |field: &Arc<datafusion::arrow::datatypes::Field>| ResultColumn {
        name: field.name().clone(),
        kind: values::word(field.data_type()),
    };
    schema.fields().iter().map(column).collect()
}

/// Writes batches until the bounds are reached.
pub struct Results {
    schema: SchemaRef,
    writer: Writer,
    bounds: Bounds,
    done: Done,
}

enum Writer {
    Rows,
    JsonLines,
    Csv { begun: bool },
    Parquet(Box<ArrowWriter<Sink>>, Sink),
}

/// Where the Parquet writer puts its bytes, and where they are taken from.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn parquet(_: ParquetError) -> Wrong {
    Wrong::new(Failure::QueryFailed, "the result cannot be written as Parquet: a column has a type that it lacks")
}

impl Results {
    pub fn new(format: Format, schema: SchemaRef, bounds: Bounds) -> Result<Self, Wrong> {
        let names_count = matches!(format, Format::JsonLines | Format::Parquet);
        let mut names: Vec<&String> = schema.fields().iter().map(|field| field.name()).collect();
        names.sort_unstable();
        if names_count && names.windows(2).any(|pair| pair[0] == pair[1]) {
            let message = "two columns of the result have the same name: give one an alias";
            return Err(Wrong::new(Failure::InvalidSql, message));
        }
        let writer = match format {
            Format::Rows => Writer::Rows,
            Format::JsonLines => Writer::JsonLines,
            Format::Csv => Writer::Csv { begun: false },
            Format::Parquet => {
                let sink = Sink::default();
                let compression = Compression::ZSTD(ZstdLevel::default());
                let properties = WriterProperties::builder().set_compression(compression).build();
                let writer = ArrowWriter::try_new(sink.clone(), Arc::clone(&schema), Some(properties));
                Writer::Parquet(Box::new(writer.map_err(parquet)?), sink)
            }
        };
        Ok(Self { schema, writer, bounds, done: Done { rows: 0, bytes: 0, truncated: false } })
    }

    /// Whether more rows are of no use.
    pub fn is_full(&self) -> bool {
        self.done.truncated
    }

    /// The bytes of a batch, as far as they are known.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, Wrong> {
        let room = self.bounds.rows.map_or(u64::MAX, |rows| rows.saturating_sub(self.done.rows));
        let rows = batch.num_rows().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.done.truncated |= rows < batch.num_rows();
        let bytes = if let Writer::Parquet(writer, sink) = &mut self.writer {
            writer.write(&batch.slice(0, rows)).map_err(parquet)?;
            if writer.in_progress_size() > ROW_GROUP_BYTES {
                writer.flush().map_err(parquet)?;
            }
            self.done.rows += rows as u64;
            sink.take()
        } else {
            self.text(batch, rows)?
        };
        self.count(bytes)
    }

    /// What is left when all batches are written.
    pub fn finish(mut self) -> Result<(Vec<u8>, Done), Wrong> {
        let rest = match &mut self.writer {
            Writer::Parquet(writer, sink) => {
                writer.finish().map_err(parquet)?;
                sink.take()
            }
            Writer::Csv { begun: false } => self.header(),
            _ => Vec::new(),
        };
        let rest = self.count(rest)?;
        Ok((rest, self.done))
    }

    /// A file is whole or there is none. Rows of an answer were cut before.
    fn count(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, Wrong> {
        self.done.bytes += bytes.len() as u64;
        match self.bounds.bytes {
            Some(limit) if self.done.bytes > limit => {
                let message = format!("the result has more than {limit} bytes: read less, or aggregate");
                Err(Wrong::new(Failure::QueryFailed, message))
            }
            _ => Ok(bytes),
        }
    }

    fn text(&mut self, batch: &RecordBatch, rows: usize) -> Result<Vec<u8>, Wrong> {
        let columns = batch.columns().iter().map(values::unpacked).collect::<Result<Vec<_>, _>>()?;
        let mut out = Vec::new();
        if let Writer::Csv { begun: begun @ false } = &mut self.writer {
            *begun = true;
            out = self.header();
        }
        for row in 0..rows {
            let before = out.len();
            match &self.writer {
                Writer::Rows => {
                    if self.done.rows > 0 {
                        out.push(b',');
                    }
                    array(&mut out, &columns, row)?;
                }
                Writer::JsonLines => self.object(&mut out, &columns, row)?,
                Writer::Csv { .. } => line(&mut out, &columns, row)?,
                Writer::Parquet(..) => {}
            }
            let total = self.done.bytes + out.len() as u64;
            if matches!(self.writer, Writer::Rows) && self.bounds.bytes.is_some_and(|limit| total > limit) {
                out.truncate(before);
                self.done.truncated = true;
                break;
            }
            self.done.rows += 1;
        }
        Ok(out)
    }

    fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, field) in self.schema.fields().iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            quoted(&mut out, field.name());
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    fn object(&self, out: &mut Vec<u8>, columns: &[ArrayRef], row: usize) -> Result<(), Wrong> {
        out.push(b'{');
        for (at, (field, column)) in self.schema.fields().iter().zip(columns).enumerate() {
            if at > 0 {
                out.push(b',');
            }
            values::text(out, field.name());
            out.push(b':');
            values::write(out, column.as_ref(), row)?;
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }
}

fn array(out: &mut Vec<u8>, columns: &[ArrayRef], row: usize) -> Result<(), Wrong> {
    out.push(b'[');
    for (at, column) in columns.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        values::write(out, column.as_ref(), row)?;
    }
    out.push(b']');
    Ok(())
}

/// One record of CSV: values as in JSON, texts without its quotes, NULL as nothing at all.
fn line(out: &mut Vec<u8>, columns: &[ArrayRef], row: usize) -> Result<(), Wrong> {
    for (at, column) in columns.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        if column.is_null(row) {
            continue;
        }
        let mut value = Vec::new();
        values::write(&mut value, column.as_ref(), row)?;
        match serde_json::from_slice::<String>(&value) {
            Ok(text) => quoted(out, &text),
            Err(_) => quoted(out, &String::from_utf8_lossy(&value)),
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn quoted(out: &mut Vec<u8>, text: &str) {
    if !text.is_empty() && !text.contains(['"', ',', '\r', '\n']) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    out.push(b'"');
}
