//! The same random rows as Parquet files, in SQLite and in Postgres give the same answers to random queries. For queries
//! that SQLite understands alike, its own answer is the same too.

use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use datafusion::arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array,
    StringArray, TimestampMicrosecondArray,
};
use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::types::ValueRef;
use serde_json::{Value, json};
use tenure_contract::query::process::View;
use tenure_core::dag::{Column, DatasetId, Schema};
use tenure_data::{Access, DataStore, Rows, Sqlite, Table};
use uuid::Uuid;

use crate::support::{Stand, ask};

const ORG: Uuid = Uuid::from_u128(0x0190_c0de_0000_7000_8000_0000_0000_0001);
/// Of one run. `TENURE_DIFFERENTIAL` asks for more.
const QUERIES: usize = 60;

const COLUMNS: [(&str, &str); 12] = [
    ("key", "text"),
    ("n", "int64"),
    ("small", "int32"),
    ("b", "bool"),
    ("f", "float64"),
    ("s", "text"),
    ("amount", "decimal(20,4)"),
    ("day", "date"),
    ("at", "timestamptz"),
    ("payload", "jsonb"),
    ("raw", "bytes"),
    ("id", "uuid"),
];
/// Those that SQLite keeps as what they are.
const PLAIN: [&str; 5] = ["key", "n", "small", "f", "s"];
const TEXTS: [&str; 14] = ["", "a", "A", "ab", "aB", "b", "Zebra", "_", "%", "a_b", "it's", "é", "日本", "a\tb"];

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap() % sides
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.roll(of.len())]
    }

    fn number(&mut self, sides: usize) -> i64 {
        i64::try_from(self.roll(sides)).unwrap()
    }
}

/// A value of a column; each but the key may be missing.
fn value(dice: &mut Dice, column: &str, row: usize) -> Value {
    if column != "key" && dice.roll(6) == 0 {
        return Value::Null;
    }
    match column {
        "key" => json!(format!("k{row}")),
        "n" => json!(dice.number(2_000_001) - 1_000_000),
        "small" => json!(dice.number(8)),
        "b" => json!(dice.roll(2) == 0),
        "f" => json!((dice.number(20_001) - 10_000) as f64 / 8.0),
        "s" => json!(dice.one(&TEXTS)),
        "amount" => json!(format!("{}.{:04}", dice.number(2_001) - 1_000, dice.number(10_000))),
        "day" => json!(format!("20{:02}-{:02}-{:02}", dice.number(60), dice.number(12) + 1, dice.number(28) + 1)),
        "at" => json!(format!(
            "19{:02}-02-03T{:02}:05:06.{:06}Z",
            40 + dice.number(60),
            dice.number(24),
            dice.number(1_000_000)
        )),
        "payload" => json!({"zz": dice.number(9), "a": [dice.one(&TEXTS), null, true], "b": {}}),
        "raw" => json!(STANDARD.encode((0..dice.roll(5)).map(|_| dice.roll(256) as u8).collect::<Vec<_>>())),
        _ => json!(Uuid::from_u128(dice.roll(1 << 30) as u128 * 0x1_0001).to_string()),
    }
}

/// The values of a column as the engine has them in files.
fn array(kind: &str, values: &[&Value]) -> ArrayRef {
    let texts = || values.iter().map(|value| value.as_str());
    match kind {
        "int64" => Arc::new(values.iter().map(|value| value.as_i64()).collect::<Int64Array>()),
        "int32" => {
            let numbers = values.iter().map(|value| value.as_i64().map(|number| i32::try_from(number).unwrap()));
            Arc::new(numbers.collect::<Int32Array>())
        }
        "bool" => Arc::new(values.iter().map(|value| value.as_bool()).collect::<BooleanArray>()),
        "float64" => Arc::new(values.iter().map(|value| value.as_f64()).collect::<Float64Array>()),
        "decimal(20,4)" => {
            let digits = texts().map(|text| text.map(|text| text.replace('.', "").parse::<i128>().unwrap()));
            Arc::new(digits.collect::<Decimal128Array>().with_precision_and_scale(20, 4).unwrap())
        }
        "date" => {
            let day = |text: &str| {
                let date: Date = text.parse().unwrap();
                (date - Date::new(1970, 1, 1).unwrap()).get_days()
            };
            Arc::new(texts().map(|text| text.map(day)).collect::<Date32Array>())
        }
        "timestamptz" => {
            let micros = texts().map(|text| text.map(|text| text.parse::<Timestamp>().unwrap().as_microsecond()));
            Arc::new(micros.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
        }
        "bytes" => {
            let bytes: Vec<Option<Vec<u8>>> =
                texts().map(|text| text.map(|text| STANDARD.decode(text).unwrap())).collect();
            Arc::new(bytes.iter().map(|bytes| bytes.as_deref()).collect::<BinaryArray>())
        }
        "jsonb" => {
            let texts: Vec<Option<String>> =
                values.iter().map(|value| (!value.is_null()).then(|| value.to_string())).collect();
            Arc::new(texts.iter().map(|text| text.as_deref()).collect::<StringArray>())
        }
        _ => Arc::new(texts().collect::<StringArray>()),
    }
}

fn schema() -> Arc<Schema> {
    let column =
        |(name, kind): (&str, &str)| Column { name: name.into(), kind: kind.parse().unwrap(), nullable: name != "key" };
    let mut columns = vec![Column { name: "org_id".into(), kind: "uuid".parse().unwrap(), nullable: false }];
    columns.extend(COLUMNS.map(column));
    Arc::new(Schema { columns, unique: vec!["org_id".into(), "key".into()], indexes: Vec::new() })
}

/// A dataset of so many rows.
struct Dataset {
    name: &'static str,
    table: Table,
    rows: Vec<Vec<Value>>,
}

impl Dataset {
    fn new(dice: &mut Dice, name: &'static str, count: usize) -> Self {
        let table = Table::new(DatasetId::from_u128(u128::from(name.as_bytes()[0])), schema());
        let rows = (0..count).map(|row| COLUMNS.iter().map(|(column, _)| value(dice, column, row)).collect()).collect();
        Self { name, table, rows }
    }

    /// In several files, so that several are read at once.
    fn files(&self, stand: &Stand) -> View {
        let part = |(at, rows): (usize, &[Vec<Value>])| {
            let columns = COLUMNS.iter().enumerate().map(|(column, (name, kind))| {
                let values: Vec<&Value> = rows.iter().map(|row| &row[column]).collect();
                (*name, array(kind, &values))
            });
            let org: Vec<Value> = rows.iter().map(|_| json!(ORG.to_string())).collect();
            let org = [("org_id", array("uuid", &org.iter().collect::<Vec<_>>()))];
            stand.write(&format!("{}/{at}.parquet", self.name), org.into_iter().chain(columns).collect())
        };
        let files = self.rows.chunks(self.rows.len().div_ceil(3)).enumerate().map(part).collect();
        stand.view(&[self.name], files)
    }

    async fn put(&self, store: &dyn DataStore) {
        let mut lines = String::new();
        for row in &self.rows {
            let object: serde_json::Map<String, Value> =
                COLUMNS.iter().map(|(name, _)| (*name).to_owned()).zip(row.iter().cloned()).collect();
            writeln!(lines, "{}", Value::Object(object)).unwrap();
        }
        store.ensure(&self.table).await.unwrap();
        let rows = Rows::parse(&self.table.schema, ORG, lines.as_bytes()).unwrap();
        assert_eq!(store.append(&self.table, vec![rows]).await.unwrap().rows, self.rows.len() as u64);
    }
}

/// A random query. It says itself in which order its rows come, or says nothing.
struct Query {
    sql: String,
    ordered: bool,
    /// SQLite reads it alike.
    plain: bool,
}

/// What is said of a query while it is made.
struct Maker<'a> {
    dice: &'a mut Dice,
    plain: bool,
}

impl Maker<'_> {
    fn column(&mut self) -> &'static str {
        if self.plain { self.dice.one(&PLAIN) } else { COLUMNS[self.dice.roll(COLUMNS.len())].0 }
    }

    /// A literal of the type of a column.
    fn literal(&mut self, column: &str) -> String {
        let found = loop {
            let row = self.dice.roll(300);
            let found = value(self.dice, column, row);
            if !found.is_null() {
                break found;
            }
        };
        let text = found.as_str().unwrap_or_default().replace('\'', "''");
        match column {
            "n" | "small" | "f" => found.to_string(),
            "b" => found.to_string().to_uppercase(),
            "amount" => text,
            "day" => format!("DATE '{text}'"),
            "at" => format!("TIMESTAMP '{}'", text.trim_end_matches('Z')),
            _ => format!("'{text}'"),
        }
    }

    fn condition(&mut self, of: &str, depth: usize) -> String {
        if depth > 0 && self.dice.roll(2) == 0 {
            let (left, right) = (self.condition(of, depth - 1), self.condition(of, depth - 1));
            return match self.dice.roll(3) {
                0 => format!("({left} AND {right})"),
                1 => format!("({left} OR {right})"),
                _ => format!("NOT ({left})"),
            };
        }
        let column = self.column();
        let name = format!("{of}{column}");
        match (column, self.dice.roll(6)) {
            (_, 0) => format!("{name} IS {}NULL", self.dice.one(&["", "NOT "])),
            ("b", _) => format!("{name} IS {}TRUE", self.dice.one(&["", "NOT "])),
            ("raw", _) => {
                format!("encode({name}, 'hex') {} '{:02x}'", self.dice.one(&["<", ">=", "="]), self.dice.roll(256))
            }
            ("payload", _) => format!("{name} LIKE '%\"zz\":{}%'", self.dice.roll(9)),
            ("s" | "key" | "id", 1) => {
                let pattern = self.dice.one(&["a%", "%b", "%_%", "_", "k1%", "", "0%", "%é%"]);
                format!("{name} {}LIKE '{pattern}'", self.dice.one(&["", "NOT "]))
            }
            (_, 2) => {
                let list: Vec<String> = (0..=self.dice.roll(4)).map(|_| self.literal(column)).collect();
                format!("{name} {}IN ({})", self.dice.one(&["", "NOT "]), list.join(", "))
            }
            (_, 3) => format!("{name} BETWEEN {} AND {}", self.literal(column), self.literal(column)),
            _ => format!("{name} {} {}", self.dice.one(&["=", "<>", "<", "<=", ">", ">="]), self.literal(column)),
        }
    }

    fn aggregate(&mut self, of: &str) -> String {
        let column = self.column();
        match (self.dice.roll(5), column) {
            (0, _) => "count(*)".to_owned(),
            (1, _) => format!("count({of}{column})"),
            (2, "n" | "small" | "amount") => format!("sum({of}{column})"),
            (3, "small") => format!("avg({of}small)"),
            (4, _) => format!("count(DISTINCT {of}{column})"),
            (_, "b" | "raw") => format!("count({of}{column})"),
            (at, _) => format!("{}({of}{column})", if at % 2 == 0 { "min" } else { "max" }),
        }
    }

    /// All columns decide, so that rows which are equal in all of them are the only ones without an order.
    fn order(&mut self, columns: usize) -> String {
        let by = (1..=columns).map(|at| {
            let (way, nulls) = (self.dice.one(&["ASC", "DESC"]), self.dice.one(&["FIRST", "LAST"]));
            format!("{at} {way} NULLS {nulls}")
        });
        format!(" ORDER BY {}", by.collect::<Vec<_>>().join(", "))
    }
}

fn query(dice: &mut Dice, plain: bool) -> Query {
    let kind = dice.roll(7);
    let mut maker = Maker { dice, plain };
    let (mut sql, columns) = match kind {
        0 | 1 => {
            let columns: Vec<&str> = (0..=maker.dice.roll(4)).map(|_| maker.column()).collect();
            let distinct = maker.dice.one(&["", "DISTINCT "]);
            let condition = maker.condition("", 2);
            let list: Vec<String> = columns.iter().enumerate().map(|(at, name)| format!("{name} AS c{at}")).collect();
            (format!("SELECT {distinct}{} FROM t WHERE {condition}", list.join(", ")), columns.len())
        }
        2 => {
            let by = maker.dice.one(&["small", "s", "n % 3", "small + 1"]);
            let (one, two) = (maker.aggregate(""), maker.aggregate(""));
            let condition = maker.condition("", 1);
            let having = maker.dice.one(&["", " HAVING count(*) > 2"]);
            (format!("SELECT {by} AS g, {one} AS a, {two} AS b FROM t WHERE {condition} GROUP BY {by}{having}"), 3)
        }
        3 => {
            let join = maker.dice.one(&["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
            let (one, two) = (maker.aggregate("t."), maker.aggregate("u."));
            let condition = maker.condition("t.", 1);
            (format!("SELECT {one} AS a, {two} AS b FROM t {join} u ON t.small = u.small WHERE {condition}"), 2)
        }
        4 => {
            let (outer, inner) = (maker.condition("", 1), maker.condition("", 1));
            let not = maker.dice.one(&["", "NOT "]);
            let sql = format!(
                "SELECT count(*) AS a, min(key) AS b FROM t WHERE ({outer}) AND small {not}IN (SELECT small FROM u WHERE {inner} AND small IS NOT NULL)"
            );
            (sql, 2)
        }
        5 => {
            let column = maker.column();
            let set = maker.dice.one(&["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]);
            let (one, two) = (maker.condition("", 1), maker.condition("", 1));
            (format!("SELECT {column} AS a FROM t WHERE {one} {set} SELECT {column} FROM u WHERE {two}"), 1)
        }
        _ => {
            let condition = maker.condition("", 1);
            let sql = format!(
                "WITH w AS (SELECT key, small, row_number() OVER (PARTITION BY small ORDER BY key) AS r FROM t WHERE {condition}) \
                 SELECT small AS a, r AS b, key AS c FROM w WHERE r <= 3"
            );
            (sql, 3)
        }
    };
    let ordered = maker.dice.roll(2) == 0;
    if ordered {
        let order = maker.order(columns);
        let limit = maker.dice.roll(20);
        write!(sql, "{order} LIMIT {}", limit + 1).unwrap();
    }
    Query { sql, ordered, plain }
}

/// Rows in an order of their own, unless they have one. JSON is the same in whatever order its keys are.
fn settled(rows: Value, ordered: bool) -> Vec<String> {
    let mut rows: Vec<String> = rows.as_array().unwrap().iter().map(Value::to_string).collect();
    if !ordered {
        rows.sort();
    }
    rows
}

/// What SQLite itself says.
fn by_sqlite(file: &rusqlite::Connection, sql: &str) -> Value {
    let mut statement = file.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let count = statement.column_count();
    let rows = statement.query_map([], |row| {
        let cell = |at: usize| match row.get_ref(at).unwrap() {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => json!(number),
            ValueRef::Real(number) => json!(number),
            ValueRef::Text(text) => json!(std::str::from_utf8(text).unwrap()),
            ValueRef::Blob(bytes) => json!(STANDARD.encode(bytes)),
        };
        Ok(Value::Array((0..count).map(cell).collect()))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

fn sqlite_file(access: &Access, datasets: &[Dataset]) -> rusqlite::Connection {
    let Access::Sqlite { path } = access else { panic!("not a file") };
    let file = rusqlite::Connection::open(path).unwrap();
    file.execute_batch("PRAGMA case_sensitive_like = ON").unwrap();
    for dataset in datasets {
        let view = format!("CREATE TEMP VIEW {} AS SELECT * FROM \"{}\"", dataset.name, dataset.table.name());
        file.execute_batch(&view).unwrap();
    }
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_rows_give_the_same_answers_wherever_they_are() {
    let mut dice = Dice(0x7e17);
    let datasets = [Dataset::new(&mut dice, "t", 300), Dataset::new(&mut dice, "u", 60)];
    let stand = Stand::new();
    let sqlite = Sqlite::new(stand.files.path().join("data.db"));
    for dataset in &datasets {
        dataset.put(&sqlite).await;
    }
    let own = sqlite_file(&sqlite.reading(&datasets[0].table).await.unwrap().access, &datasets);
    let mut sources = vec![("files", datasets.iter().map(|dataset| dataset.files(&stand)).collect::<Vec<_>>())];
    let wanted = std::env::var("TENURE_DIFFERENTIAL").ok().and_then(|text| text.parse().ok()).unwrap_or(QUERIES);
    let (mut rows, mut judged) = (0, 0);
    for number in 0..wanted {
        let Query { sql, ordered, plain } = query(&mut dice, number % 2 == 0);
        let mut answers = Vec::new();
        for (name, views) in &mut sources {
            let answer = stand.run(ask(&sql, views)).await;
            let Ok(done) = &answer.end else { panic!("{name}: {sql}\n{:?}", answer.end) };
            if done.truncated {
                break;
            }
            answers.push((*name, settled(answer.rows(), ordered)));
        }
        if plain && !answers.is_empty() {
            answers.push(("SQLite itself", settled(by_sqlite(&own, &sql), ordered)));
            judged += 1;
        }
        for pair in answers.windows(2) {
            assert_eq!(pair[0].1, pair[1].1, "{} and {}: {sql}", pair[0].0, pair[1].0);
        }
        rows += answers.first().map_or(0, |(_, rows)| rows.len());
    }
    // Queries without rows would show nothing.
    assert!(rows > wanted * 5 && judged > wanted / 3, "{rows} rows, {judged} judged");
}
