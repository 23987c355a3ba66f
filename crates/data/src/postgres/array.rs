//! A column as an array of Postgres.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};

use crate::cells::Cells;

/// 2000-01-01, in microseconds since 1970: where Postgres begins to count.
const EPOCH_US: i64 = 946_684_800_000_000;

#[derive(Debug)]
pub(super) struct Array<'a>(pub &'a Cells);

impl Array<'_> {
    fn len(&self) -> usize {
        match self.0 {
            Cells::Uuid(cells) => cells.len(),
            Cells::Text(cells) => cells.0.len(),
            Cells::Bool(cells) => cells.len(),
            Cells::Int(cells) | Cells::Time(cells) => cells.len(),
            Cells::Float(cells) => cells.len(),
            Cells::Bytes(cells) => cells.len(),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        match self.0 {
            Cells::Uuid(cells) => each(out, cells, |uuid| *uuid.as_bytes()),
            Cells::Bool(cells) => each(out, cells, |is| [u8::from(*is)]),
            Cells::Int(cells) => each(out, cells, |number| number.to_be_bytes()),
            Cells::Float(cells) => each(out, cells, |number| number.to_be_bytes()),
            Cells::Time(cells) => each(out, cells, |at| (at - EPOCH_US).to_be_bytes()),
            Cells::Text(cells) => all(out, &cells.0),
            Cells::Bytes(cells) => all(out, cells),
        }
    }
}

/// The length of a value that is not there.
const NULL: i32 = -1;

fn each<T, const N: usize>(out: &mut BytesMut, cells: &[Option<T>], bytes: impl Fn(&T) -> [u8; N]) {
    out.reserve(cells.len() * (N + 4));
    for cell in cells {
        match cell {
            Some(value) => {
                out.put_i32(N as i32);
                out.put_slice(&bytes(value));
            }
            None => out.put_i32(NULL),
        }
    }
}

fn all(out: &mut BytesMut, cells: &crate::cells::Bytes) {
    for row in 0..cells.len() {
        match cells.get(row) {
            Some(value) => {
                // A batch has at most 16 MiB.
                out.put_i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
                out.put_slice(value);
            }
            None => out.put_i32(NULL),
        }
    }
}

impl ToSql for Array<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Kind::Array(element) = ty.kind() else { return Err("the parameter is not an array".into()) };
        // One dimension, perhaps with nulls, counted from 1.
        out.put_i32(1);
        out.put_i32(1);
        out.put_u32(element.oid());
        out.put_i32(i32::try_from(self.len())?);
        out.put_i32(1);
        self.put(out);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), Kind::Array(_))
    }

    to_sql_checked!();
}
