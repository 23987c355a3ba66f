//! Reads batches: all rows, or the first thing that is wrong.

use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tenure_core::dag::schema::ORG_COLUMN;
use tenure_core::dag::{Column, ColumnType, Schema, value};
use uuid::Uuid;

use crate::cells::Cells;

/// A batch as it was sent.
pub const BATCH_BYTES: usize = 16 << 20;
/// Rows of a batch.
pub const ROWS: usize = 500_000;
/// Rows of a batch times columns of its table: what a batch takes in memory follows from it.
pub const CELLS: usize = 4_000_000;
/// The name of an unknown field is shown up to this length.
const FIELD_SHOWN: usize = 64;

/// What is wrong with a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct Fault {
    /// Counted from 1, blank lines included. With inline records it is the number of the record.
    pub line: u64,
    pub code: FaultCode,
    /// Names columns and never values.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultCode {
    InvalidUtf8,
    InvalidJson,
    UnknownField,
    DuplicateField,
    WrongType,
    NullValue,
    ForeignOrg,
    TooManyRows,
    BatchTooLarge,
}

impl FaultCode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidUtf8 => "invalid_utf8",
            Self::InvalidJson => "invalid_json",
            Self::UnknownField => "unknown_field",
            Self::DuplicateField => "duplicate_field",
            Self::WrongType => "wrong_type",
            Self::NullValue => "null_value",
            Self::ForeignOrg => "foreign_org",
            Self::TooManyRows => "too_many_rows",
            Self::BatchTooLarge => "batch_too_large",
        }
    }
}

/// Rows that fit a schema, by columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    rows: usize,
    columns: Vec<Cells>,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// In the order of the schema.
    pub fn columns(&self) -> &[Cells] {
        &self.columns
    }

    /// Reads JSON lines. Blank lines are skipped. `org` is whose rows they are: it is filled in where a row does not say.
    pub fn parse(schema: &Schema, org: Uuid, lines: &[u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(schema, org);
        if lines.len() > BATCH_BYTES {
            let message = format!("the batch has more than {BATCH_BYTES} bytes: publish it in parts");
            return Err(reader.fault(FaultCode::BatchTooLarge, message));
        }
        let text = match std::str::from_utf8(lines) {
            Ok(text) => text,
            Err(error) => {
                let before = &lines[..error.valid_up_to()];
                reader.line = 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64;
                return Err(reader.fault(FaultCode::InvalidUtf8, "the line is not UTF-8"));
            }
        };
        for line in text.split('\n') {
            reader.line += 1;
            let line = line.trim_ascii();
            if !line.is_empty() {
                let mut json = serde_json::Deserializer::from_str(line);
                let read = RowSeed(&mut reader).deserialize(&mut json).and_then(|()| json.end());
                read.map_err(|error| reader.explain(&error))?;
            }
        }
        Ok(reader.rows())
    }

    /// Reads a JSON array of objects.
    pub fn of_records(schema: &Schema, org: Uuid, records: &str) -> Result<Self, Fault> {
        let mut reader = Reader::new(schema, org);
        let mut json = serde_json::Deserializer::from_str(records);
        let read = RecordsSeed(&mut reader).deserialize(&mut json).and_then(|()| json.end());
        read.map_err(|error| reader.explain(&error))?;
        Ok(reader.rows())
    }
}

struct Reader<'a> {
    schema: &'a Schema,
    org: Uuid,
    by_name: HashMap<&'a str, usize>,
    rows: usize,
    columns: Vec<Cells>,
    /// The row that has set a column last, counted from 1.
    set_by: Vec<usize>,
    line: u64,
    fault: Option<(FaultCode, String)>,
}

impl<'a> Reader<'a> {
    fn new(schema: &'a Schema, org: Uuid) -> Self {
        let columns = &schema.columns;
        Self {
            schema,
            org,
            by_name: columns.iter().enumerate().map(|(at, column)| (&*column.name, at)).collect(),
            rows: 0,
            columns: columns.iter().map(|column| Cells::of(column.kind)).collect(),
            set_by: vec![0; columns.len()],
            line: 0,
            fault: None,
        }
    }

    fn rows(self) -> Rows {
        Rows { rows: self.rows, columns: self.columns }
    }

    fn fault(&self, code: FaultCode, message: impl Into<String>) -> Fault {
        Fault { line: self.line.max(1), code, message: message.into() }
    }

    /// What `error` is about: a fault that was noted, or text that is no JSON.
    fn explain(&mut self, error: &serde_json::Error) -> Fault {
        match self.fault.take() {
            Some((code, message)) => self.fault(code, message),
            None if error.is_eof() => self.fault(FaultCode::InvalidJson, "the JSON ends too early"),
            None => {
                let column = error.column();
                self.fault(FaultCode::InvalidJson, format!("not a JSON object (at column {column})"))
            }
        }
    }

    fn note<E: serde::de::Error>(&mut self, code: FaultCode, message: impl Into<String>) -> E {
        self.fault = Some((code, message.into()));
        E::custom("refused")
    }

    /// Begins a row.
    fn begin<E: serde::de::Error>(&mut self) -> Result<(), E> {
        if self.rows >= ROWS || (self.rows + 1) * self.columns.len() > CELLS {
            let limit = ROWS.min(CELLS / self.columns.len().max(1));
            return Err(
                self.note(FaultCode::TooManyRows, format!("the batch has more than {limit} rows: publish it in parts"))
            );
        }
        self.rows += 1;
        Ok(())
    }

    /// Fills in what the row has left out.
    fn end<E: serde::de::Error>(&mut self) -> Result<(), E> {
        for at in 0..self.columns.len() {
            if self.set_by[at] == self.rows {
                continue;
            }
            self.null(at)?;
        }
        Ok(())
    }

    /// No value, which for the organisation means the one that is known.
    fn null<E: serde::de::Error>(&mut self, at: usize) -> Result<(), E> {
        let schema = self.schema;
        let column = &schema.columns[at];
        match &mut self.columns[at] {
            Cells::Uuid(cells) if &*column.name == ORG_COLUMN => cells.push(Some(self.org)),
            _ if !column.nullable => {
                return Err(self.note(FaultCode::NullValue, format!("column `{}` needs a value", column.name)));
            }
            cells => cells.push_null(),
        }
        Ok(())
    }
}

struct RecordsSeed<'r, 'a>(&'r mut Reader<'a>);

impl<'de> DeserializeSeed<'de> for RecordsSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for RecordsSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        loop {
            self.0.line += 1;
            if records.next_element_seed(RowSeed(self.0))?.is_none() {
                return Ok(());
            }
        }
    }
}

struct RowSeed<'r, 'a>(&'r mut Reader<'a>);

impl<'de> DeserializeSeed<'de> for RowSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let reader = self.0;
        reader.begin()?;
        // Rows of a batch mostly have their fields in one order.
        let mut likely = 0;
        while let Some(at) = fields.next_key_seed(FieldSeed { reader: &mut *reader, likely })? {
            if reader.set_by[at] == reader.rows {
                let name = &reader.schema.columns[at].name;
                return Err(reader.note(FaultCode::DuplicateField, format!("column `{name}` is there twice")));
            }
            reader.set_by[at] = reader.rows;
            fields.next_value_seed(CellSeed { reader: &mut *reader, at })?;
            likely = at + 1;
        }
        reader.end()
    }
}

struct FieldSeed<'r, 'a> {
    reader: &'r mut Reader<'a>,
    likely: usize,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_, '_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<usize, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldSeed<'_, '_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a column")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<usize, E> {
        if self.reader.schema.columns.get(self.likely).is_some_and(|column| &*column.name == name) {
            return Ok(self.likely);
        }
        self.reader.by_name.get(name).copied().ok_or_else(|| {
            let shown: String = name.chars().filter(|c| !c.is_control()).take(FIELD_SHOWN).collect();
            self.reader.note(FaultCode::UnknownField, format!("the dataset has no column `{shown}`"))
        })
    }
}

struct CellSeed<'r, 'a> {
    reader: &'r mut Reader<'a>,
    at: usize,
}

impl<'a> CellSeed<'_, 'a> {
    fn column(&self) -> &'a Column {
        &self.reader.schema.columns[self.at]
    }

    fn misfit<E: serde::de::Error>(self, found: &str) -> E {
        let Column { name, kind, .. } = self.column();
        let expected = match kind {
            ColumnType::Uuid => "a UUID as text",
            ColumnType::Text => "a text without NUL",
            ColumnType::Bool => "true or false",
            ColumnType::Int32 => "an integer of 32 bits",
            ColumnType::Int64 => "an integer of 64 bits",
            ColumnType::Float64 => "a number",
            ColumnType::Decimal { .. } => "a number, or a text of digits, that fits",
            ColumnType::Date => "a date such as 2025-12-31",
            ColumnType::Timestamptz => "a time such as 2025-12-31T12:00:00Z",
            ColumnType::Jsonb => "JSON without NUL",
            ColumnType::Bytes => "base64 as text",
        };
        self.reader.note(FaultCode::WrongType, format!("column `{name}` is {kind}: expected {expected}, found {found}"))
    }

    fn cells(&mut self) -> &mut Cells {
        &mut self.reader.columns[self.at]
    }

    /// A value whose text counts: numbers are read exactly, and JSON has one form.
    fn exact<'de, D: Deserializer<'de>>(mut self, json: D) -> Result<(), D::Error> {
        let raw = <&RawValue as serde::Deserialize>::deserialize(json)?.get();
        if raw == "null" {
            return self.reader.null(self.at);
        }
        match self.cells() {
            Cells::Float(cells) => match value::float(raw) {
                Some(number) => cells.push(Some(number)),
                None => return Err(self.misfit(kind_of(raw))),
            },
            Cells::Text(cells) => match value::json(raw) {
                Some(text) => cells.push(&text),
                None => return Err(self.misfit("JSON that cannot be kept")),
            },
            _ => return Err(self.misfit(kind_of(raw))),
        }
        Ok(())
    }
}

/// A word for a value that is JSON.
fn kind_of(raw: &str) -> &'static str {
    match raw.as_bytes().first() {
        Some(b'"') => "a text",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        Some(b't' | b'f') => "a boolean",
        _ => "a larger number",
    }
}

impl<'de> DeserializeSeed<'de> for CellSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        match self.column().kind {
            ColumnType::Jsonb | ColumnType::Float64 => self.exact(json),
            _ => json.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for CellSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.reader.null(self.at)
    }

    fn visit_bool<E: serde::de::Error>(mut self, value: bool) -> Result<(), E> {
        match self.cells() {
            Cells::Bool(cells) => cells.push(Some(value)),
            _ => return Err(self.misfit("a boolean")),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(mut self, number: i64) -> Result<(), E> {
        match (self.column().kind, self.cells()) {
            (ColumnType::Int32, _) if i32::try_from(number).is_err() => return Err(self.misfit("a larger integer")),
            (_, Cells::Int(cells)) => cells.push(Some(number)),
            (ColumnType::Decimal { .. }, _) => return self.decimal(&number.to_string()),
            _ => return Err(self.misfit("an integer")),
        }
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        if let Ok(number) = i64::try_from(number) {
            return self.visit_i64(number);
        }
        match self.column().kind {
            ColumnType::Decimal { .. } => self.decimal(&number.to_string()),
            _ => Err(self.misfit("a larger integer")),
        }
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        match self.column().kind {
            ColumnType::Decimal { .. } => {
                // The shortest text for the number, which is the one that was written unless digits were lost.
                let text = number.to_string();
                let digits = text.bytes().filter(u8::is_ascii_digit).skip_while(|digit| *digit == b'0').count();
                if digits > f64::DIGITS as usize {
                    return Err(self.misfit("a number of many digits, to be sent as a text"));
                }
                self.decimal(&text)
            }
            _ => Err(self.misfit("a number with a fraction")),
        }
    }

    fn visit_str<E: serde::de::Error>(mut self, text: &str) -> Result<(), E> {
        let kind = self.column().kind;
        match (kind, self.cells()) {
            (ColumnType::Text, Cells::Text(cells)) if !text.contains('\0') => cells.push(text),
            (ColumnType::Uuid, _) => return self.uuid(text),
            (ColumnType::Decimal { .. }, _) => return self.decimal(text),
            (ColumnType::Date, Cells::Text(cells)) if value::date(text).is_some() => cells.push(text),
            (ColumnType::Timestamptz, Cells::Time(cells)) => match value::timestamp(text) {
                Some(time) => cells.push(Some(time.as_microsecond())),
                None => return Err(self.misfit("another text")),
            },
            (ColumnType::Bytes, Cells::Bytes(cells)) => match STANDARD.decode(text) {
                Ok(bytes) => cells.push(Some(&bytes)),
                Err(_) => return Err(self.misfit("another text")),
            },
            (ColumnType::Text, _) => return Err(self.misfit("a text with NUL")),
            (ColumnType::Date, _) => return Err(self.misfit("another text")),
            _ => return Err(self.misfit("a text")),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(self.misfit("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(self.misfit("an object"))
    }
}

impl CellSeed<'_, '_> {
    fn uuid<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let Some(found) = value::uuid(text) else { return Err(self.misfit("another text")) };
        let column = self.column();
        if &*column.name == ORG_COLUMN && found != self.reader.org {
            let message = format!("column `{ORG_COLUMN}` names another organisation: leave it out");
            return Err(self.reader.note(FaultCode::ForeignOrg, message));
        }
        if let Cells::Uuid(cells) = &mut self.reader.columns[self.at] {
            cells.push(Some(found));
        }
        Ok(())
    }

    fn decimal<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let ColumnType::Decimal { precision, scale } = self.column().kind else { return Err(self.misfit("a number")) };
        let Some(kept) = value::decimal(text, precision, scale) else {
            return Err(self.misfit("another number or text"));
        };
        if let Cells::Text(cells) = &mut self.reader.columns[self.at] {
            cells.push(&kept);
        }
        Ok(())
    }
}
