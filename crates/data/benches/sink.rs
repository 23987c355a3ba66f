//! Rows a second from JSON lines to the table, on SQLite and Postgres, beside a plain insert of the same rows in the same run.
//!
//! `cargo bench -p tenure-data`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on fails, and prints what it measured"
)]

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::dag::{Column, DatasetId, Schema};
use tenure_data::{DataStore, Rows, Sqlite, Table};
use tenure_testkit::Postgres;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const ORG: Uuid = Uuid::from_u128(0x0190_c0de_0000_7000_8000_0000_0000_0001);
const BATCH: usize = 50_000;
const BATCHES: usize = 8;
const ROUNDS: usize = 5;

fn schema() -> Schema {
    let kinds = [
        ("org_id", "uuid", false),
        ("dedupe_key", "text", false),
        ("severity", "text", true),
        ("chain_id", "int64", false),
        ("payload", "jsonb", true),
        ("event_time", "timestamptz", false),
    ];
    let column = |(name, kind, nullable): (&str, &str, bool)| Column {
        name: name.into(),
        kind: kind.parse().unwrap(),
        nullable,
    };
    Schema { columns: kinds.map(column).into(), unique: vec!["org_id".into(), "dedupe_key".into()], indexes: vec![] }
}

fn lines(batch: usize) -> Vec<u8> {
    let mut text = String::new();
    for n in batch * BATCH..(batch + 1) * BATCH {
        let _ = writeln!(
            text,
            "{{\"dedupe_key\":\"job:10143:{n}\",\"severity\":\"warning\",\"chain_id\":10143,\"payload\":{{\"block\":{n}}},\
             \"event_time\":\"2025-12-27T12:00:00Z\"}}"
        );
    }
    text.into_bytes()
}

/// From the bytes of batches to committed rows.
async fn sink(store: &dyn DataStore, table: &Table, batches: &[Vec<u8>]) -> Duration {
    store.ensure(table).await.unwrap();
    let began = Instant::now();
    for lines in batches {
        let rows = Rows::parse(&table.schema, ORG, lines).unwrap();
        store.append(table, vec![rows]).await.unwrap();
    }
    began.elapsed()
}

/// A plain `COPY` of the same rows as text into a table with the same indexes.
async fn copy(client: &Client, round: usize, batches: &[Vec<u8>]) -> Duration {
    let create = format!(
        "CREATE TABLE raw{round} (_seq bigint PRIMARY KEY, org_id uuid NOT NULL, dedupe_key text NOT NULL, severity text,
             chain_id bigint NOT NULL, payload jsonb, event_time timestamptz NOT NULL);
         CREATE UNIQUE INDEX ON raw{round} (org_id, dedupe_key)"
    );
    client.batch_execute(&create).await.unwrap();
    let texts: Vec<bytes::Bytes> = (0..batches.len())
        .map(|batch| {
            let row = |n: usize| {
                format!("{n}\t{ORG}\tjob:10143:{n}\twarning\t10143\t{{\"block\":{n}}}\t2025-12-27T12:00:00Z\n")
            };
            (batch * BATCH..(batch + 1) * BATCH).map(row).collect::<String>().into()
        })
        .collect();
    let began = Instant::now();
    for text in texts {
        let into = client.copy_in(&format!("COPY raw{round} FROM STDIN")).await.unwrap();
        let mut into = std::pin::pin!(into);
        futures_util::SinkExt::send(&mut into, text).await.unwrap();
        into.finish().await.unwrap();
    }
    began.elapsed()
}

fn rate(time: Duration) -> f64 {
    (BATCH * BATCHES) as f64 / time.as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() {
    let batches: Vec<Vec<u8>> = (0..BATCHES).map(lines).collect();
    let schema = Arc::new(schema());
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::new(folder.path().join("data.db"));
    let database = Postgres::shared().await.database().await;
    let postgres = tenure_data::Postgres::new(database.url(), None).unwrap();
    let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let (mut file, mut server, mut share) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let table = Table::new(DatasetId::from_u128(round as u128 + 1), Arc::clone(&schema));
        file.push(rate(sink(&sqlite, &table, &batches).await));
        let rows = rate(sink(&postgres, &table, &batches).await);
        let raw = rate(copy(&client, round, &batches).await);
        println!("round {round}: sqlite {:.0} rows/s, postgres {rows:.0} rows/s, COPY {raw:.0} rows/s", file[round]);
        server.push(rows);
        share.push(rows / raw);
    }
    let (file, server, share) = (median(file), median(server), 100.0 * median(share));
    println!("median: sqlite {file:.0} rows/s, postgres {server:.0} rows/s, {share:.0} % of COPY");
}
