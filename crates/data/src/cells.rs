//! Values of a column, one for each row.

use tenure_core::dag::ColumnType;
use uuid::Uuid;

/// The values of one column.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    Uuid(Vec<Option<Uuid>>),
    /// Texts, and what is written as one: `decimal`, `date`, `jsonb`.
    Text(Texts),
    Bool(Vec<Option<bool>>),
    Int(Vec<Option<i64>>),
    Float(Vec<Option<f64>>),
    /// Microseconds since 1970.
    Time(Vec<Option<i64>>),
    Bytes(Bytes),
}

impl Cells {
    pub(crate) fn of(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Uuid => Self::Uuid(Vec::new()),
            ColumnType::Bool => Self::Bool(Vec::new()),
            ColumnType::Int32 | ColumnType::Int64 => Self::Int(Vec::new()),
            ColumnType::Float64 => Self::Float(Vec::new()),
            ColumnType::Timestamptz => Self::Time(Vec::new()),
            ColumnType::Bytes => Self::Bytes(Bytes::default()),
            ColumnType::Text | ColumnType::Decimal { .. } | ColumnType::Date | ColumnType::Jsonb => {
                Self::Text(Texts::default())
            }
        }
    }

    pub(crate) fn push_null(&mut self) {
        match self {
            Self::Uuid(cells) => cells.push(None),
            Self::Text(cells) => cells.0.push(None),
            Self::Bool(cells) => cells.push(None),
            Self::Int(cells) | Self::Time(cells) => cells.push(None),
            Self::Float(cells) => cells.push(None),
            Self::Bytes(cells) => cells.push(None),
        }
    }
}

/// Byte strings, one after the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bytes {
    data: Vec<u8>,
    /// Where each ends, and whether there is one.
    ends: Vec<(u32, bool)>,
}

impl Bytes {
    pub(crate) fn push(&mut self, value: Option<&[u8]>) {
        self.data.extend_from_slice(value.unwrap_or_default());
        // A batch has at most `BATCH_BYTES`.
        let end = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        self.ends.push((end, value.is_some()));
    }

    pub fn get(&self, row: usize) -> Option<&[u8]> {
        let (end, is_there) = *self.ends.get(row)?;
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before].0);
        is_there.then(|| &self.data[start as usize..end as usize])
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// Texts, one after the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Texts(pub(crate) Bytes);

impl Texts {
    pub(crate) fn push(&mut self, value: &str) {
        self.0.push(Some(value.as_bytes()));
    }

    pub fn get(&self, row: usize) -> Option<&str> {
        // Only texts are pushed.
        self.0.get(row).map(|bytes| std::str::from_utf8(bytes).unwrap_or_default())
    }
}
