//! Values of rows as columns of a batch.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float64Builder, Int32Builder,
    Int64Builder, RecordBatch, RecordBatchOptions, StringBuilder, TimestampMicrosecondBuilder,
};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::DataFusionError;
use jiff::Timestamp;
use jiff::civil::Date;
use tenure_contract::query::process::Failure;
use tenure_core::dag::schema::ColumnType;

use super::external;
use crate::failure::Wrong;

/// Rows of a batch.
const ROWS: usize = 8_192;
/// A batch is handed on when so much is in it.
const BYTES: usize = 4 << 20;

/// A value as a data store has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell<'a> {
    Null,
    /// Also days and microseconds since 1970, and 0 and 1.
    Int(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

enum Builder {
    Text(StringBuilder),
    Bool(BooleanBuilder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float(Float64Builder),
    Date(Date32Builder),
    Time(TimestampMicrosecondBuilder),
    Bytes(BinaryBuilder),
    Decimal(Decimal128Builder, u32),
}

/// Rows on their way into a batch.
pub struct Batches {
    schema: SchemaRef,
    kinds: Vec<ColumnType>,
    builders: Vec<Builder>,
    rows: usize,
    bytes: usize,
}

impl Batches {
    pub fn new(schema: SchemaRef, kinds: Vec<ColumnType>) -> Result<Self, DataFusionError> {
        let builders = kinds.iter().map(|kind| builder(*kind)).collect::<Result<_, _>>()?;
        Ok(Self { schema, kinds, builders, rows: 0, bytes: 0 })
    }

    /// Adds a value to a column. Every column gets one for each row.
    pub fn push(&mut self, at: usize, cell: Cell<'_>) -> Result<(), DataFusionError> {
        self.bytes += match cell {
            Cell::Text(text) => text.len(),
            Cell::Bytes(bytes) => bytes.len(),
            _ => 8,
        };
        append(&mut self.builders[at], cell).ok_or_else(|| {
            let message = "a row of a table does not fit its schema";
            external(Wrong::new(Failure::QueryFailed, message))
        })
    }

    /// A row is complete. Returns a batch if it is time for one.
    pub fn end_row(&mut self) -> Result<Option<RecordBatch>, DataFusionError> {
        self.rows += 1;
        if self.rows >= ROWS || self.bytes >= BYTES { self.take() } else { Ok(None) }
    }

    /// What is left.
    pub fn take(&mut self) -> Result<Option<RecordBatch>, DataFusionError> {
        if self.rows == 0 {
            return Ok(None);
        }
        let fresh = self.kinds.iter().map(|kind| builder(*kind)).collect::<Result<_, _>>()?;
        let builders = std::mem::replace(&mut self.builders, fresh);
        let columns = builders.into_iter().map(finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        (self.rows, self.bytes) = (0, 0);
        Ok(Some(batch))
    }
}

fn builder(kind: ColumnType) -> Result<Builder, DataFusionError> {
    Ok(match kind {
        ColumnType::Uuid | ColumnType::Text | ColumnType::Jsonb => Builder::Text(StringBuilder::new()),
        ColumnType::Bool => Builder::Bool(BooleanBuilder::new()),
        ColumnType::Int32 => Builder::Int32(Int32Builder::new()),
        ColumnType::Int64 => Builder::Int64(Int64Builder::new()),
        ColumnType::Float64 => Builder::Float(Float64Builder::new()),
        ColumnType::Date => Builder::Date(Date32Builder::new()),
        ColumnType::Timestamptz => Builder::Time(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
        ColumnType::Bytes => Builder::Bytes(BinaryBuilder::new()),
        ColumnType::Decimal { precision, scale } => {
            let signed = i8::try_from(scale).unwrap_or(i8::MAX);
            let builder = Decimal128Builder::new().with_precision_and_scale(precision, signed)?;
            Builder::Decimal(builder, u32::from(scale))
        }
    })
}

fn append(builder: &mut Builder, cell: Cell<'_>) -> Option<()> {
    match (builder, cell) {
        (Builder::Text(column), Cell::Null) => column.append_null(),
        (Builder::Bool(column), Cell::Null) => column.append_null(),
        (Builder::Int32(column), Cell::Null) => column.append_null(),
        (Builder::Int64(column), Cell::Null) => column.append_null(),
        (Builder::Float(column), Cell::Null) => column.append_null(),
        (Builder::Date(column), Cell::Null) => column.append_null(),
        (Builder::Time(column), Cell::Null) => column.append_null(),
        (Builder::Bytes(column), Cell::Null) => column.append_null(),
        (Builder::Decimal(column, _), Cell::Null) => column.append_null(),
        (Builder::Text(column), Cell::Text(text)) => column.append_value(text),
        (Builder::Bool(column), Cell::Int(is @ (0 | 1))) => column.append_value(is == 1),
        (Builder::Int32(column), Cell::Int(number)) => column.append_value(i32::try_from(number).ok()?),
        (Builder::Int64(column), Cell::Int(number)) => column.append_value(number),
        (Builder::Float(column), Cell::Float(number)) => column.append_value(number),
        (Builder::Date(column), Cell::Int(days)) => column.append_value(i32::try_from(days).ok()?),
        (Builder::Date(column), Cell::Text(text)) => column.append_value(days(text)?),
        (Builder::Time(column), Cell::Int(micros)) => column.append_value(micros),
        (Builder::Time(column), Cell::Text(text)) => {
            column.append_value(text.parse::<Timestamp>().ok()?.as_microsecond());
        }
        (Builder::Bytes(column), Cell::Bytes(bytes)) => column.append_value(bytes),
        (Builder::Decimal(column, scale), Cell::Text(text)) => column.append_value(decimal(text, *scale)?),
        _ => return None,
    }
    Some(())
}

fn finish(builder: Builder) -> ArrayRef {
    match builder {
        Builder::Text(mut column) => Arc::new(column.finish()),
        Builder::Bool(mut column) => Arc::new(column.finish()),
        Builder::Int32(mut column) => Arc::new(column.finish()),
        Builder::Int64(mut column) => Arc::new(column.finish()),
        Builder::Float(mut column) => Arc::new(column.finish()),
        Builder::Date(mut column) => Arc::new(column.finish()),
        Builder::Time(mut column) => Arc::new(column.finish()),
        Builder::Bytes(mut column) => Arc::new(column.finish()),
        Builder::Decimal(mut column, _) => Arc::new(column.finish()),
    }
}

/// Days since 1970.
fn days(text: &str) -> Option<i32> {
    let date: Date = text.parse().ok()?;
    // Not by way of a timestamp: the last day of the calendar has none.
    jiff::civil::date(1970, 1, 1).until(date).ok().map(|span| span.get_days())
}

/// `-12.5` with a scale of 2 is -1250.
fn decimal(text: &str, scale: u32) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let missing = scale.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    if whole.is_empty() || !plain(whole) || !plain(fraction) {
        return None;
    }
    let number: i128 = format!("{whole}{fraction}").parse().ok()?;
    number.checked_mul(10_i128.checked_pow(missing)?)?.checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, scale, number) in [
            ("12.5", 2, Some(1_250)),
            ("-12.5", 2, Some(-1_250)),
            ("0", 0, Some(0)),
            ("-0.01", 2, Some(-1)),
            ("99999999999999999999999999999999999999", 0, Some(99_999_999_999_999_999_999_999_999_999_999_999_999)),
            ("1.234", 2, None),
            ("1e3", 2, None),
            (".5", 2, None),
            ("", 2, None),
        ] {
            assert_eq!(decimal(text, scale), number, "{text}");
        }
    }

    #[test]
    fn days_count_from_1970() {
        assert_eq!(days("1970-01-01"), Some(0));
        assert_eq!(days("1969-12-31"), Some(-1));
        assert_eq!(days("2024-02-29"), Some(19_782));
        assert_eq!((days("0001-01-01"), days("9999-12-31")), (Some(-719_162), Some(2_932_896)));
        assert_eq!(days("yesterday"), None);
    }
}
