//! Rows of a Postgres, in a transaction that cannot write.

use std::error::Error;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use futures_util::TryStreamExt;
use tenure_core::dag::schema::ColumnType;
use tenure_core::dag::value;
use tenure_store::postgres::PostgresAddress;
use tokio::sync::mpsc;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_util::task::AbortOnDropHandle;

use super::batch::{Batches, Cell};
use super::condition::Value;
use super::{Scan, unavailable};

/// Batches that wait to be taken.
const AHEAD: usize = 2;
const CONNECT: Duration = Duration::from_secs(5);
/// 2000-01-01, where Postgres begins to count.
const EPOCH_DAYS: i64 = 10_957;
const EPOCH_US: i64 = EPOCH_DAYS * 86_400_000_000;

const BEGIN: &str = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

pub fn stream(url: String, scan: Scan) -> SendableRecordBatchStream {
    let mut builder = RecordBatchReceiverStreamBuilder::new(scan.schema.clone(), AHEAD);
    let batches = builder.tx();
    builder.spawn(async move { read(&url, scan, &batches).await });
    builder.build()
}

async fn read(
    url: &str,
    scan: Scan,
    send: &mpsc::Sender<Result<RecordBatch, DataFusionError>>,
) -> Result<(), DataFusionError> {
    let PostgresAddress { mut config, tls } = PostgresAddress::parse(url).map_err(|_| unavailable())?;
    config.connect_timeout(CONNECT).application_name("tenure-query");
    let connecting = tokio::time::timeout(CONNECT * 2, config.connect(tls)).await;
    let (client, connection) = connecting.map_err(|_| unavailable())?.map_err(lost)?;
    // It ends with this scan, even if there are rows left.
    let _connection = AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = connection.await;
    }));
    client.batch_execute(BEGIN).await.map_err(lost)?;
    let statement = client.prepare(scan.statement.text()).await.map_err(lost)?;
    // Rows come as fast as they are taken; what is on its way is bounded.
    let rows = client.query_raw(&statement, scan.statement.values.iter().map(Bound)).await.map_err(lost)?;
    let mut rows = std::pin::pin!(rows);
    let kinds = scan.kinds.clone();
    let mut batches = Batches::new(scan.schema, scan.kinds)?;
    while let Some(row) = rows.try_next().await.map_err(lost)? {
        for (at, kind) in kinds.iter().enumerate() {
            let raw: Option<Raw<'_>> = row.try_get(at).map_err(lost)?;
            push(&mut batches, at, *kind, raw)?;
        }
        if let Some(batch) = batches.end_row()?
            && send.send(Ok(batch)).await.is_err()
        {
            return Ok(());
        }
    }
    if let Some(batch) = batches.take()? {
        // Nobody waits for it if this fails.
        let _ = send.send(Ok(batch)).await;
    }
    Ok(())
}

/// What Postgres says may hold names and values.
fn lost(error: tokio_postgres::Error) -> DataFusionError {
    tracing::warn!(code = error.code().map(tokio_postgres::error::SqlState::code), "a data store failed");
    unavailable()
}

fn push(batches: &mut Batches, at: usize, kind: ColumnType, raw: Option<Raw<'_>>) -> Result<(), DataFusionError> {
    let Some(Raw(bytes)) = raw else { return batches.push(at, Cell::Null) };
    let text = || std::str::from_utf8(bytes).map_err(|_| unavailable());
    match kind {
        ColumnType::Text | ColumnType::Decimal { .. } => batches.push(at, Cell::Text(text()?)),
        // As the sink has written it: Postgres has its own spelling.
        ColumnType::Jsonb => {
            let json = value::json(text()?).ok_or_else(unavailable)?;
            batches.push(at, Cell::Text(&json))
        }
        ColumnType::Uuid => {
            let uuid = uuid::Uuid::from_bytes(fixed(bytes)?);
            batches.push(at, Cell::Text(uuid.hyphenated().encode_lower(&mut [0; uuid::fmt::Hyphenated::LENGTH])))
        }
        ColumnType::Bool => batches.push(at, Cell::Int(i64::from(fixed::<1>(bytes)?[0] != 0))),
        ColumnType::Int32 => batches.push(at, Cell::Int(i32::from_be_bytes(fixed(bytes)?).into())),
        ColumnType::Int64 => batches.push(at, Cell::Int(i64::from_be_bytes(fixed(bytes)?))),
        ColumnType::Float64 => batches.push(at, Cell::Float(f64::from_be_bytes(fixed(bytes)?))),
        ColumnType::Date => batches.push(at, Cell::Int(i64::from(i32::from_be_bytes(fixed(bytes)?)) + EPOCH_DAYS)),
        ColumnType::Timestamptz => {
            batches.push(at, Cell::Int(i64::from_be_bytes(fixed(bytes)?).saturating_add(EPOCH_US)))
        }
        ColumnType::Bytes => batches.push(at, Cell::Bytes(bytes)),
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], DataFusionError> {
    bytes.try_into().map_err(|_| unavailable())
}

/// A value as it comes from the server.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A value as it goes to the server.
#[derive(Debug)]
struct Bound<'a>(&'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self.0 {
            Value::Int(number) => number.to_sql(ty, out),
            Value::Float(number) => number.to_sql(ty, out),
            Value::Bool(is) => is.to_sql(ty, out),
            Value::Text(text) | Value::Uuid(text) | Value::Date(text) => text.to_sql(ty, out),
            Value::Time(at) => {
                out.put_i64(at.saturating_sub(EPOCH_US));
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
