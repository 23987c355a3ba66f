//! Rows of a file of SQLite, which is opened read-only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use jiff::Timestamp;
use rusqlite::types::{ToSqlOutput, Value as SqliteValue, ValueRef};
use rusqlite::{Connection, InterruptHandle, OpenFlags, Row};
use tokio::sync::{mpsc, oneshot};

use super::batch::{Batches, Cell};
use super::condition::Value;
use super::{Scan, unavailable};

/// Batches that wait to be taken.
const AHEAD: usize = 2;
const BUSY: Duration = Duration::from_secs(5);

/// Ends the statement of a connection when it is dropped.
struct Interrupt(InterruptHandle);

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.interrupt();
    }
}

pub fn stream(path: PathBuf, scan: Scan) -> SendableRecordBatchStream {
    let mut builder = RecordBatchReceiverStreamBuilder::new(scan.schema.clone(), AHEAD);
    let batches = builder.tx();
    let (opened, handle) = oneshot::channel();
    let (working, mut worked) = mpsc::channel::<()>(1);
    // A thread cannot be stopped from outside, but the statement that it runs can: this is dropped with the stream.
    builder.spawn(async move {
        if let Ok(handle) = handle.await {
            let _interrupt = Interrupt(handle);
            worked.recv().await;
        }
        Ok(())
    });
    builder.spawn_blocking(move || {
        let _working = working;
        let connection = open(&path).map_err(|_| unavailable())?;
        let _ = opened.send(connection.get_interrupt_handle());
        read(&connection, scan, &batches)
    });
    builder.build()
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.execute_batch("PRAGMA query_only = ON; PRAGMA trusted_schema = OFF")?;
    Ok(connection)
}

fn read(
    connection: &Connection,
    scan: Scan,
    send: &mpsc::Sender<Result<RecordBatch, DataFusionError>>,
) -> Result<(), DataFusionError> {
    let columns = scan.kinds.len();
    let mut batches = Batches::new(scan.schema, scan.kinds)?;
    let mut statement = connection.prepare(scan.statement.text()).map_err(|_| unavailable())?;
    for (at, value) in scan.statement.values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, bound(value)).map_err(|_| unavailable())?;
    }
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next().map_err(|_| unavailable())? {
        for at in 0..columns {
            batches.push(at, cell(row, at)?)?;
        }
        if let Some(batch) = batches.end_row()?
            && send.blocking_send(Ok(batch)).is_err()
        {
            return Ok(());
        }
    }
    if let Some(batch) = batches.take()? {
        // Nobody waits for it if this fails.
        let _ = send.blocking_send(Ok(batch));
    }
    Ok(())
}

fn cell<'r>(row: &'r Row<'_>, at: usize) -> Result<Cell<'r>, DataFusionError> {
    Ok(match row.get_ref(at).map_err(|_| unavailable())? {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Int(number),
        ValueRef::Real(number) => Cell::Float(number),
        ValueRef::Text(text) => Cell::Text(std::str::from_utf8(text).map_err(|_| unavailable())?),
        ValueRef::Blob(bytes) => Cell::Bytes(bytes),
    })
}

fn bound(value: &Value) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(match value {
        Value::Int(number) => SqliteValue::Integer(*number),
        Value::Float(number) => SqliteValue::Real(*number),
        Value::Bool(is) => SqliteValue::Integer((*is).into()),
        Value::Text(text) | Value::Uuid(text) | Value::Date(text) => SqliteValue::Text(text.clone()),
        // As the sink writes times: in UTC with microseconds.
        Value::Time(at) => match Timestamp::from_microsecond(*at) {
            Ok(at) => SqliteValue::Text(format!("{at:.6}")),
            Err(_) => SqliteValue::Null,
        },
    })
}
