//! Queries over Parquet beside plain DataFusion on the same files in the same run, and how soon a small query answers.
//!
//! `cargo bench -p tenure-query -- --scale 1`: rows as in TPC-H at that scale; 1 is 1 GB of text. The default is small.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on fails, and prints what it measured"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Date32Array, Decimal128Array, Int64Array, RecordBatch, StringArray};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use tenure_contract::query::process::{Ask, Bounds, FileRef, Format, Frame, Frames, Place, Source, View};
use tenure_query::run::{Runner, Settings};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of `lineitem`, at scale 1.
const LINES: f64 = 6_000_000.0;
/// Rows that are made and written at a time.
const CHUNK: i64 = 100_000;
const ROUNDS: usize = 5;
const SMALL_ROUNDS: usize = 200;
/// Files of the larger tables.
const FILES: i64 = 8;

const QUERIES: [(&str, &str); 5] = [
    (
        "pricing summary",
        "SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price, \
         sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price, avg(l_quantity) AS avg_qty, count(*) AS count_order \
         FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus ORDER BY 1, 2",
    ),
    (
        "revenue change",
        "SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem WHERE l_shipdate >= DATE '1994-01-01' \
         AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24",
    ),
    (
        "shipping priority",
        "SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate FROM customer \
         JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey WHERE c_mktsegment = 'BUILDING' \
         AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15' GROUP BY l_orderkey, o_orderdate \
         ORDER BY revenue DESC, o_orderdate LIMIT 10",
    ),
    (
        "order priority",
        "SELECT o_orderpriority, count(*) AS order_count FROM orders WHERE o_orderdate >= DATE '1993-07-01' \
         AND EXISTS (SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_returnflag = 'R') \
         GROUP BY o_orderpriority ORDER BY 1",
    ),
    (
        "large customers",
        "SELECT c_custkey, c_mktsegment, sum(l_quantity) AS quantity FROM customer JOIN orders ON c_custkey = o_custkey \
         JOIN lineitem ON l_orderkey = o_orderkey GROUP BY c_custkey, c_mktsegment HAVING sum(l_quantity) > 300 \
         ORDER BY quantity DESC, c_custkey LIMIT 100",
    ),
];

/// A number for a row that is the same in every run.
fn mixed(row: i64, salt: u64) -> i64 {
    let mut z = (row as u64).wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 2) as i64
}

fn int(rows: &[i64], value: impl Fn(i64) -> i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| value(*row))))
}

fn money(rows: &[i64], value: impl Fn(i64) -> i64) -> ArrayRef {
    let values = Decimal128Array::from_iter_values(rows.iter().map(|row| i128::from(value(*row))));
    Arc::new(values.with_precision_and_scale(15, 2).unwrap())
}

/// A day from 1992 on.
fn day(rows: &[i64], salt: u64) -> ArrayRef {
    Arc::new(Date32Array::from_iter_values(rows.iter().map(|row| 8_035 + (mixed(*row, salt) % 2_500) as i32)))
}

fn word(rows: &[i64], salt: u64, words: &[&str]) -> ArrayRef {
    let at = |row: &i64| words[(mixed(*row, salt) % words.len() as i64) as usize];
    Arc::new(StringArray::from_iter_values(rows.iter().map(at)))
}

fn lineitem(rows: &[i64], orders: i64) -> RecordBatch {
    RecordBatch::try_from_iter([
        ("l_orderkey", int(rows, |row| mixed(row, 1) % orders)),
        ("l_partkey", int(rows, |row| mixed(row, 2) % 200_000)),
        ("l_quantity", money(rows, |row| (mixed(row, 3) % 50 + 1) * 100)),
        ("l_extendedprice", money(rows, |row| mixed(row, 4) % 10_000_000)),
        ("l_discount", money(rows, |row| mixed(row, 5) % 11)),
        ("l_returnflag", word(rows, 6, &["A", "N", "R"])),
        ("l_linestatus", word(rows, 7, &["O", "F"])),
        ("l_shipdate", day(rows, 8)),
        ("l_comment", word(rows, 9, &["carefully", "quickly final deposits", "furiously", "slyly ironic accounts"])),
    ])
    .unwrap()
}

fn orders(rows: &[i64], customers: i64) -> RecordBatch {
    let priorities = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"];
    RecordBatch::try_from_iter([
        ("o_orderkey", int(rows, |row| row)),
        ("o_custkey", int(rows, |row| mixed(row, 10) % customers)),
        ("o_orderdate", day(rows, 11)),
        ("o_orderpriority", word(rows, 12, &priorities)),
        ("o_totalprice", money(rows, |row| mixed(row, 13) % 50_000_000)),
    ])
    .unwrap()
}

fn customer(rows: &[i64]) -> RecordBatch {
    let segments = ["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"];
    RecordBatch::try_from_iter([("c_custkey", int(rows, |row| row)), ("c_mktsegment", word(rows, 14, &segments))])
        .unwrap()
}

/// Writes a table and returns its files and their size.
fn write(folder: &Path, name: &str, rows: i64, files: i64, batch: impl Fn(&[i64]) -> RecordBatch) -> Vec<FileRef> {
    std::fs::create_dir_all(folder.join(name)).unwrap();
    let per_file = rows / files + 1;
    let one = |file: i64| {
        let key = format!("{name}/{file}.parquet");
        let (from, to) = (file * per_file, rows.min((file + 1) * per_file));
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let schema = batch(&[0]).schema();
        let out = std::fs::File::create(folder.join(&key)).unwrap();
        let mut writer = ArrowWriter::try_new(out, schema, Some(properties)).unwrap();
        let mut at = from;
        while at < to {
            let rows: Vec<i64> = (at..to.min(at + CHUNK)).collect();
            writer.write(&batch(&rows)).unwrap();
            at += CHUNK;
        }
        writer.close().unwrap();
        FileRef { bytes: folder.join(&key).metadata().unwrap().len(), key }
    };
    (0..files).map(one).collect()
}

struct Bench {
    folder: tempfile::TempDir,
    views: Vec<View>,
    runner: Arc<Runner>,
}

impl Bench {
    fn new(scale: f64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lines = (LINES * scale) as i64;
        let (order_count, customers) = (lines / 4 + 1, lines / 40 + 1);
        let tables = [
            ("lineitem", write(folder.path(), "lineitem", lines, FILES, |rows| lineitem(rows, order_count))),
            ("orders", write(folder.path(), "orders", order_count, FILES, |rows| orders(rows, customers))),
            ("customer", write(folder.path(), "customer", customers, 1, customer)),
        ];
        let bytes: u64 = tables.iter().flat_map(|(_, files)| files).map(|file| file.bytes).sum();
        println!("scale {scale}: {lines} lines, {} MB of Parquet", bytes / 1_000_000);
        let place = Place::Folder { path: folder.path().to_str().unwrap().into() };
        let view = |(name, files): (&str, Vec<FileRef>)| View {
            names: vec![name.into()],
            source: Source::Files { place: place.clone(), files, columns: Vec::new() },
            condition: None,
        };
        let views = tables.map(view).into();
        let spill = folder.path().join("spill");
        std::fs::create_dir(&spill).unwrap();
        let timeout = Duration::from_secs(600);
        let runner = Runner::new(Settings { at_once: 4, waiting: 16, memory_bytes: 512 << 20, timeout, spill });
        Self { folder, views, runner }
    }

    fn ask(&self, sql: &str) -> Ask {
        let bounds = Bounds { rows: Some(1_000), bytes: Some(10 << 20), timeout_ms: 600_000, memory_bytes: 512 << 20 };
        Ask { query_id: "q".into(), sql: sql.into(), views: self.views.clone(), format: Format::Rows, bounds }
    }

    /// From the request to its first row, and to its end. Rows are counted.
    async fn ours(&self, sql: &str) -> (Duration, Duration, u64) {
        let began = Instant::now();
        let mut receive = self.runner.start(self.ask(sql));
        let (mut frames, mut first) = (Frames::default(), None);
        while let Some(piece) = receive.recv().await {
            frames.push(&piece);
            while let Some(frame) = frames.take().unwrap() {
                match frame {
                    Frame::Begun(_) => {}
                    Frame::Data(_) => {
                        first.get_or_insert_with(|| began.elapsed());
                    }
                    Frame::Done(done) => {
                        let took = began.elapsed();
                        return (first.unwrap_or(took), took, done.rows);
                    }
                    Frame::Failed(failed) => panic!("{sql}: {failed:?}"),
                }
            }
        }
        panic!("no end of {sql}");
    }

    /// A session, its tables and the query, as a program that embeds DataFusion would do it.
    async fn plain(&self, sql: &str) -> (Duration, u64) {
        let began = Instant::now();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(cores.min(4)));
        for view in &self.views {
            let name = view.names[0].as_str();
            let path = self.folder.path().join(name).to_str().unwrap().to_owned();
            context.register_parquet(name, path, ParquetReadOptions::default()).await.unwrap();
        }
        let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
        (began.elapsed(), batches.iter().map(|batch| batch.num_rows() as u64).sum())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn scale() -> f64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--scale").skip(1);
    arguments.next().map_or(0.01, |text| text.parse().expect("--scale takes a number"))
}

#[tokio::main]
async fn main() {
    let bench = Bench::new(scale());
    let mut shares = Vec::new();
    for (name, sql) in QUERIES {
        // Once for the files to be in memory.
        let (expected, counted) = (bench.plain(sql).await.1, bench.ours(sql).await.2);
        assert_eq!(expected, counted, "{name}");
        let (mut ours, mut plain, mut share) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (theirs, _) = bench.plain(sql).await;
            let (_, took, _) = bench.ours(sql).await;
            share.push(took.as_secs_f64() / theirs.as_secs_f64());
            ours.push(took.as_secs_f64() * 1e3);
            plain.push(theirs.as_secs_f64() * 1e3);
        }
        let share = median(share);
        println!("{name}: {:.1} ms, plain {:.1} ms, {:+.1} %", median(ours), median(plain), 100.0 * (share - 1.0));
        shares.push(share);
    }
    println!("median of the queries: {:+.1} % over plain DataFusion", 100.0 * (median(shares) - 1.0));
    let mut first = Vec::new();
    for row in 0..SMALL_ROUNDS {
        let sql = format!("SELECT c_custkey, c_mktsegment FROM customer WHERE c_custkey = {row}");
        first.push(bench.ours(&sql).await.0.as_secs_f64() * 1e3);
    }
    println!("first row of a small query: median {:.1} ms", median(first));
}
