//! A transaction in few trips: questions travel together with its begin, and writes with its commit.

use futures_util::future::{BoxFuture, FutureExt, join_all, try_join_all};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::conn::{Conn, Pool, commit_failed, failed};
use super::{Postgres, load, sql};
use crate::error::StoreError;
use tenure_core::time::Timestamp;

type Result<T> = std::result::Result<T, StoreError>;
pub type Params<'a> = Vec<&'a (dyn ToSql + Sync)>;

/// A statement and its parameters.
pub struct Ask<'a>(pub &'static str, pub Params<'a>);

/// A statement that writes; the name is that of the step.
pub struct Write<'a>(pub &'static str, pub &'static str, pub Params<'a>);

/// A transaction that has begun. Dropped, it is rolled back.
pub struct Deal<'s> {
    store: &'s Postgres,
    conn: Conn,
    pub operation: &'static str,
}

impl<'s> Deal<'s> {
    /// Begins a transaction and asks. The answers come in the order of the questions; a question that waits for a lock
    /// holds up those after it, which therefore see what is true once it has the lock.
    pub async fn begin(
        store: &'s Postgres,
        pool: &Pool,
        operation: &'static str,
        asks: Vec<Ask<'_>>,
    ) -> Result<(Self, Answers)> {
        store.faults.before(operation)?;
        let deal = Self { store, conn: Conn::get(pool).await?, operation };
        let answers = deal.send(asks, true).await?;
        store.faults.after("begin")?;
        Ok((deal, answers))
    }

    /// Asks without a transaction, in one trip: the answers may be of different moments.
    pub async fn look(
        store: &'s Postgres,
        pool: &Pool,
        operation: &'static str,
        asks: Vec<Ask<'_>>,
    ) -> Result<Answers> {
        let deal = Self { store, conn: Conn::get(pool).await?, operation };
        let answers = deal.send(asks, false).await?;
        deal.conn.give_back();
        Ok(answers)
    }

    pub async fn ask(&self, asks: Vec<Ask<'_>>) -> Result<Answers> {
        self.send(asks, false).await
    }

    async fn send(&self, asks: Vec<Ask<'_>>, begin: bool) -> Result<Answers> {
        let fail = |error| failed(self.operation, error);
        let conn = &self.conn;
        let mut statements: Vec<(Statement, &Params<'_>)> = Vec::with_capacity(asks.len());
        for Ask(sql, params) in &asks {
            statements.push((conn.prepare_cached(sql).await.map_err(fail)?, params));
        }
        let mut sent: Vec<BoxFuture<'_, std::result::Result<Vec<Row>, tokio_postgres::Error>>> = Vec::new();
        if begin {
            sent.push(async { conn.batch_execute("BEGIN").await.map(|()| Vec::new()) }.boxed());
        }
        for (statement, params) in &statements {
            sent.push(async move { conn.query(statement, params).await }.boxed());
        }
        // Polled in order, so sent in order.
        let mut answers = try_join_all(sent).await.map_err(fail)?.into_iter();
        if begin {
            answers.next();
        }
        Ok(Answers { operation: self.operation, rows: answers })
    }

    /// Writes and commits. The answers come in the order of the writes.
    pub async fn commit(self, writes: Vec<Write<'_>>) -> Result<Answers> {
        let (store, conn, operation) = (self.store, self.conn, self.operation);
        let mut statements: Vec<(Statement, &Params<'_>)> = Vec::with_capacity(writes.len());
        for Write(step, sql, params) in &writes {
            store.faults.before(step)?;
            statements.push((conn.prepare_cached(sql).await.map_err(|error| failed(operation, error))?, params));
        }
        store.faults.before("commit")?;
        let shared = &conn;
        let mut sent: Vec<BoxFuture<'_, std::result::Result<Vec<Row>, tokio_postgres::Error>>> = Vec::new();
        for (statement, params) in &statements {
            sent.push(async move { shared.query(statement, params).await }.boxed());
        }
        sent.push(async { shared.batch_execute("COMMIT").await.map(|()| Vec::new()) }.boxed());
        // Should one statement fail, the server turns the commit into a rollback.
        let answers = join_all(sent).await.into_iter().collect::<std::result::Result<Vec<_>, _>>();
        let mut answers = answers.map_err(commit_failed)?;
        answers.pop();
        store.faults.after("commit")?;
        drop(statements);
        conn.give_back();
        Ok(Answers { operation, rows: answers.into_iter() })
    }

    /// Ends it without a change.
    pub async fn end(self) -> Result<()> {
        self.conn.batch_execute("ROLLBACK").await.map_err(|error| failed(self.operation, error))?;
        self.conn.give_back();
        Ok(())
    }
}

/// What a transaction was answered, in order.
pub struct Answers {
    operation: &'static str,
    rows: std::vec::IntoIter<Vec<Row>>,
}

impl Answers {
    pub fn skip(&mut self) {
        self.rows.next();
    }

    /// The first row of the last answer.
    pub fn last(self) -> Option<Row> {
        self.rows.last().and_then(|rows| rows.into_iter().next())
    }

    pub fn all<T>(&mut self, read: impl Fn(&Row) -> std::result::Result<T, tokio_postgres::Error>) -> Result<Vec<T>> {
        let rows = self.rows.next().unwrap_or_default();
        rows.iter().map(read).collect::<std::result::Result<_, _>>().map_err(|error| failed(self.operation, error))
    }

    pub fn one<T>(
        &mut self,
        read: impl Fn(&Row) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> Result<Option<T>> {
        Ok(self.all(read)?.into_iter().next())
    }

    /// The answer to [`clock`].
    pub fn now(&mut self, store: &Postgres) -> Result<Timestamp> {
        let read = self.one(load::clock)?;
        Ok(store.clock.read_from(read.unwrap_or(Timestamp::MIN)).now)
    }
}

/// Asks for the time, as of when all locks asked for before are held.
pub fn clock<'a>() -> Ask<'a> {
    Ask(sql::CLOCK, Vec::new())
}
