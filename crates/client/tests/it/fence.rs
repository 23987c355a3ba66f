//! Writes of an attempt that was superseded, held against the guards.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use tenure_client::fence::object::{self, HttpObjects, Objects, PutError, Version};
use tenure_client::fence::{Fence, Stale, http, sql};
use tenure_client::{Json, TaskContext, TaskError, TestLease};
use tenure_testkit::{Database, Postgres};
use tokio::net::TcpListener;

/// The same task, held by an old attempt and by the one that took over.
fn holders() -> (TaskContext, TaskContext) {
    let first = TestLease::new("report", &"2025-01-15");
    let second = first.attempt(2, None::<Json>);
    let (old, new) = (first.context(), second.context());
    assert!(old.fence() < new.fence());
    (old, new)
}

async fn connect(database: &Database) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn is_stale<T>(result: Result<T, TaskError>) -> bool {
    matches!(result, Err(error) if error.message().ends_with("is stale"))
}

/// A table with a column for the fence.
async fn write_row(db: &tokio_postgres::Client, task: &TaskContext, rows: i64) -> Result<(), TaskError> {
    let fence = task.guard();
    let statement = "INSERT INTO report (day, rows, fence) VALUES ('2025-01-15', $1, $2) \
         ON CONFLICT (day) DO UPDATE SET rows = excluded.rows, fence = excluded.fence \
         WHERE report.fence <= excluded.fence";
    sql::written(&fence, db.execute(statement, &[&rows, &fence.as_i64()]).await?)?;
    Ok(())
}

#[tokio::test]
async fn a_stale_holders_row_is_refused_by_postgres() {
    let database = Postgres::shared().await.database().await;
    let db = connect(&database).await;
    db.batch_execute("CREATE TABLE report (day text PRIMARY KEY, rows bigint, fence bigint)").await.unwrap();
    let (old, new) = holders();
    write_row(&db, &old, 1).await.unwrap();
    write_row(&db, &new, 2).await.unwrap();
    write_row(&db, &new, 3).await.unwrap();
    assert!(is_stale(write_row(&db, &old, 4).await));
    let rows: i64 = db.query_one("SELECT rows FROM report", &[]).await.unwrap().get(0);
    assert_eq!(rows, 3);
    // The same by an UPDATE.
    let update = "UPDATE report SET rows = $1, fence = $2 WHERE day = '2025-01-15' AND fence <= $2";
    let changed = db.execute(update, &[&5_i64, &old.guard().as_i64()]).await.unwrap();
    assert_eq!(sql::written(&old.guard(), changed), Err(old.guard().stale()));
    let changed = db.execute(update, &[&5_i64, &new.guard().as_i64()]).await.unwrap();
    assert_eq!(sql::written(&new.guard(), changed), Ok(()));
}

/// A transaction that begins with the fence.
async fn write_facts(db: &mut tokio_postgres::Client, task: &TaskContext, fact: &str) -> Result<(), TaskError> {
    let fence = task.guard();
    let transaction = db.transaction().await?;
    let raised = transaction.execute(sql::RAISE, &[&fence.task_id(), &fence.as_i64()]).await?;
    sql::written(&fence, raised)?;
    transaction.execute("INSERT INTO facts VALUES ($1)", &[&fact]).await?;
    transaction.commit().await?;
    Ok(())
}

#[tokio::test]
async fn a_stale_holders_transaction_is_refused_by_postgres() {
    let database = Postgres::shared().await.database().await;
    let (mut one, mut other) = (connect(&database).await, connect(&database).await);
    one.batch_execute(sql::CREATE_TABLE).await.unwrap();
    one.batch_execute("CREATE TABLE facts (fact text)").await.unwrap();
    let (old, new) = holders();
    write_facts(&mut one, &old, "by the old one, in time").await.unwrap();

    // The new holder is inside its transaction when the old one comes: that one waits, and is then refused.
    let transaction = other.transaction().await.unwrap();
    let raised = transaction.execute(sql::RAISE, &[&new.task_id(), &new.guard().as_i64()]).await.unwrap();
    assert_eq!(raised, 1);
    let late = tokio::spawn(async move { (write_facts(&mut one, &old, "by the old one, late").await, one) });
    let waiting = "SELECT count(*) FROM pg_stat_activity \
         WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let watch = connect(&database).await;
    tenure_testkit::wait_until("the old holder waits", std::time::Duration::from_secs(30), async || {
        watch.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    transaction.execute("INSERT INTO facts VALUES ('by the new one')", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    let (refused, one) = late.await.unwrap();
    assert!(is_stale(refused));
    let facts = one.query("SELECT fact FROM facts", &[]).await.unwrap();
    let facts: Vec<String> = facts.iter().map(|row| row.get(0)).collect();
    assert_eq!(facts, ["by the old one, in time", "by the new one"]);
}

#[test]
fn a_stale_holders_transaction_is_refused_by_sqlite() {
    let mut db = rusqlite::Connection::open_in_memory().unwrap();
    db.execute_batch(sql::CREATE_TABLE).unwrap();
    db.execute_batch("CREATE TABLE facts (fact TEXT)").unwrap();
    let mut write = |task: &TaskContext, fact: &str| -> Result<(), TaskError> {
        let fence = task.guard();
        let transaction = db.transaction()?;
        let raised = transaction.execute(sql::RAISE, (fence.task_id(), fence.as_i64()))?;
        sql::written(&fence, raised as u64)?;
        transaction.execute("INSERT INTO facts VALUES ($1)", [fact])?;
        Ok(transaction.commit()?)
    };
    let (old, new) = holders();
    write(&old, "one").unwrap();
    write(&new, "two").unwrap();
    write(&new, "three").unwrap();
    assert!(is_stale(write(&old, "four")));
    let count: i64 = db.query_row("SELECT count(*) FROM facts", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 3);
}

/// Objects by key: their task and fence as they were sent, content and number of the version.
type Shelf = Arc<Mutex<HashMap<String, ([String; 2], Bytes, u64)>>>;

/// As the Python SDK has them too.
const METADATA: [&str; 2] = ["x-amz-meta-tenure-task", "x-amz-meta-tenure-fence"];

/// An object store with conditional puts, as S3 has them.
async fn object_store() -> (HttpObjects, Shelf) {
    async fn head(State(shelf): State<Shelf>, Path(key): Path<String>) -> (StatusCode, HeaderMap) {
        let mut headers = HeaderMap::new();
        let shelf = shelf.lock().unwrap();
        let Some((metadata, _, version)) = shelf.get(&key) else { return (StatusCode::NOT_FOUND, headers) };
        for (name, value) in METADATA.into_iter().zip(metadata) {
            headers.insert(name, value.parse().unwrap());
        }
        headers.insert("etag", format!("\"{version}\"").parse().unwrap());
        (StatusCode::OK, headers)
    }
    async fn put(
        State(shelf): State<Shelf>,
        Path(key): Path<String>,
        headers: HeaderMap,
        content: Bytes,
    ) -> StatusCode {
        let mut shelf = shelf.lock().unwrap();
        let current = shelf.get(&key).map(|(_, _, version)| *version);
        let expected = headers.get("if-match").map(|etag| etag.to_str().unwrap().trim_matches('"').parse().unwrap());
        assert!(expected.is_some() != headers.contains_key("if-none-match"), "one condition, always");
        if current != expected {
            return StatusCode::PRECONDITION_FAILED;
        }
        let metadata = METADATA.map(|name| headers[name].to_str().unwrap().to_owned());
        shelf.insert(key, (metadata, content, current.unwrap_or_default() + 1));
        StatusCode::OK
    }
    let shelf = Shelf::default();
    let app = Router::new().route("/bucket/{*key}", get(head).put(put)).with_state(Arc::clone(&shelf));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let base = format!("http://{}/bucket", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (HttpObjects::new(reqwest::Client::new(), base), shelf)
}

#[tokio::test]
async fn a_stale_holders_object_is_refused() {
    let (objects, shelf) = object_store().await;
    let (old, new) = holders();
    object::put(&objects, "days/2025-01-15", b"one", &old.guard()).await.unwrap();
    object::put(&objects, "days/2025-01-15", b"two", &new.guard()).await.unwrap();
    object::put(&objects, "days/2025-01-15", b"three", &new.guard()).await.unwrap();
    let refused = object::put(&objects, "days/2025-01-15", b"four", &old.guard()).await.unwrap_err();
    assert!(matches!(refused, PutError::Stale(Stale { fence: 1, .. })), "{refused}");
    let (metadata, content, _) = shelf.lock().unwrap()["days/2025-01-15"].clone();
    assert_eq!((metadata, &content[..]), ([new.task_id().to_owned(), "2".to_owned()], &b"three"[..]));
}

#[tokio::test]
async fn an_object_of_another_task_stays_as_it_is() {
    let (objects, shelf) = object_store().await;
    let (task, other) = (holders().1.guard(), Fence::new("other", 1));
    object::put(&objects, "key", b"one", &other).await.unwrap();
    // Neither a lower fence nor one that cannot be read makes it anybody's.
    for metadata in [["other", "1"], [task.task_id(), "1x"], ["", "1"]] {
        shelf.lock().unwrap().get_mut("key").unwrap().0 = metadata.map(ToOwned::to_owned);
        let refused = object::put(&objects, "key", b"two", &task).await.unwrap_err();
        assert!(matches!(refused, PutError::Foreign), "{refused}");
        assert_eq!(&shelf.lock().unwrap()["key"].1[..], b"one");
    }
}

/// Lets the new holder write just before a put of the old one, which has looked at the fence before.
struct Between<'a> {
    objects: &'a HttpObjects,
    new: Mutex<Option<Fence>>,
}

impl Objects for Between<'_> {
    type Error = object::HttpError;

    async fn version(&self, key: &str) -> Result<Option<Version>, Self::Error> {
        self.objects.version(key).await
    }

    async fn put_if(
        &self,
        key: &str,
        content: &[u8],
        fence: &Fence,
        replaced: Option<&Version>,
    ) -> Result<bool, Self::Error> {
        let new = self.new.lock().unwrap().take();
        if let Some(new) = new {
            object::put(self.objects, key, b"new", &new).await.unwrap();
        }
        self.objects.put_if(key, content, fence, replaced).await
    }
}

#[tokio::test]
async fn a_holder_that_turns_stale_while_it_writes_an_object_is_refused() {
    for existing in [false, true] {
        let (objects, shelf) = object_store().await;
        let (old, new) = holders();
        if existing {
            object::put(&objects, "key", b"before", &old.guard()).await.unwrap();
        }
        let between = Between { objects: &objects, new: Mutex::new(Some(new.guard())) };
        let refused = object::put(&between, "key", b"old", &old.guard()).await.unwrap_err();
        assert!(matches!(refused, PutError::Stale(_)), "{refused}");
        assert_eq!(&shelf.lock().unwrap()["key"].1[..], b"new");
    }
}

/// A service that keeps the highest fence of each task with its data.
#[tokio::test]
async fn a_stale_holders_call_is_refused() {
    type Ledger = Arc<Mutex<HashMap<String, (u64, String)>>>;
    async fn charge(State(ledger): State<Ledger>, headers: HeaderMap, body: String) -> StatusCode {
        let Some(fence) = http::from_headers(&headers) else { return StatusCode::PRECONDITION_REQUIRED };
        let mut ledger = ledger.lock().unwrap();
        let highest = ledger.get(fence.task_id()).map(|(highest, _)| *highest);
        if fence.check(highest).is_err() {
            return StatusCode::PRECONDITION_FAILED;
        }
        ledger.insert(fence.task_id().to_owned(), (fence.value(), body));
        StatusCode::OK
    }
    let ledger = Ledger::default();
    let app = Router::new().route("/charge", post(charge)).with_state(Arc::clone(&ledger));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/charge", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let (old, new) = holders();
    let client = reqwest::Client::new();
    let call = async |task: &TaskContext, text: &'static str| {
        let request = client.post(&url).headers(http::headers(&task.guard())).body(text);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(call(&old, "one").await, 200);
    assert_eq!(call(&new, "two").await, 200);
    assert_eq!(call(&old, "three").await, 412);
    assert_eq!(ledger.lock().unwrap()[old.task_id()], (2, "two".to_owned()));
    assert_eq!(client.post(&url).send().await.unwrap().status().as_u16(), 428);
}
