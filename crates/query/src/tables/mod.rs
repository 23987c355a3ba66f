//! Tables of the data store as relations.
//!
//! Columns and conditions are chosen where the rows are, and rows come in batches of bounded size: a table never has to fit
//! into memory. SQL for the data store is made here from names that the control plane has sent and from bound values; no
//! text of the caller is in it. Every statement leaves out rows of other organisations and rows that came after the query
//! began.

mod batch;
mod condition;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use tenure_contract::query::process::{DataStore, Failure, Table};
use tenure_core::dag::schema::{ColumnType, ORG_COLUMN};

use self::condition::{Dialect, Statement};
use crate::failure::Wrong;
use crate::session;

/// The number of a row, in the order of commits.
const SEQUENCE: &str = "_seq";
/// How often one query may read tables. Each time takes a connection of its own.
pub const SCANS: usize = 16;

/// A table as a query sees it: its declared columns and then `_seq`.
#[derive(Debug)]
pub struct Rows {
    table: Table,
    columns: Vec<Column>,
    schema: SchemaRef,
    /// Scans of all tables of the query.
    scans: Arc<AtomicUsize>,
}

#[derive(Debug, Clone)]
struct Column {
    name: String,
    kind: ColumnType,
}

impl Rows {
    pub fn new(table: &Table, scans: Arc<AtomicUsize>) -> Result<Self, Wrong> {
        let declared = session::schema(&table.columns)?;
        let mut columns = Vec::with_capacity(table.columns.len() + 1);
        for column in &table.columns {
            let kind = column.kind.parse().map_err(|_| odd("a column has an unknown type"))?;
            columns.push(Column { name: column.name.clone(), kind });
        }
        if !columns.iter().any(|column| column.name == ORG_COLUMN) {
            return Err(odd("a table has no column of its organisation"));
        }
        columns.push(Column { name: SEQUENCE.into(), kind: ColumnType::Int64 });
        let mut fields: Vec<_> = declared.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(SEQUENCE, DataType::Int64, false)));
        Ok(Self { table: table.clone(), columns, schema: Arc::new(Schema::new(fields)), scans })
    }

    fn dialect(&self) -> Dialect {
        match &self.table.store {
            DataStore::Sqlite { .. } => Dialect::Sqlite,
            DataStore::Postgres { .. } => Dialect::Postgres,
        }
    }

    /// What is asked of the data store.
    fn statement(&self, chosen: &[usize], filters: &[Expr]) -> Statement {
        let mut statement = Statement::new(self.dialect(), &self.columns);
        statement.select(chosen.iter().map(|at| &self.columns[*at]));
        let name = condition::quoted(&self.table.name);
        statement.from(match &self.table.store {
            DataStore::Sqlite { .. } => name,
            DataStore::Postgres { schema, .. } => format!("{}.{name}", condition::quoted(schema)),
        });
        statement.of_org(&self.table.org_id);
        statement.between(self.table.after, self.table.upto);
        filters.iter().for_each(|filter| statement.and_if_possible(filter));
        statement
    }
}

fn odd(message: &str) -> Wrong {
    Wrong::new(Failure::MalformedRequest, message)
}

#[async_trait]
impl TableProvider for Rows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// What the data store leaves out is left out again by the engine, which alone decides.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let judge = |filter: &&Expr| {
            let mut statement = Statement::new(self.dialect(), &self.columns);
            match statement.condition(filter) {
                Some(_) => TableProviderFilterPushDown::Inexact,
                None => TableProviderFilterPushDown::Unsupported,
            }
        };
        Ok(filters.iter().map(judge).collect())
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.scans.fetch_add(1, Ordering::SeqCst) >= SCANS {
            let message = format!("the query reads tables more than {SCANS} times: read less at once");
            return Err(DataFusionError::External(Box::new(Wrong::new(Failure::QueryFailed, message))));
        }
        let chosen: Vec<usize> = match projection {
            Some(chosen) => chosen.clone(),
            None => (0..self.columns.len()).collect(),
        };
        let schema: SchemaRef = Arc::new(self.schema.project(&chosen)?);
        let scan = Scan {
            store: self.table.store.clone(),
            statement: self.statement(&chosen, filters),
            kinds: chosen.iter().map(|at| self.columns[*at].kind).collect(),
            schema: Arc::clone(&schema),
        };
        let plan = StreamingTableExec::try_new(schema, vec![Arc::new(scan)], None, [], false, limit)?;
        Ok(Arc::new(plan))
    }
}

/// One pass over the rows of a table.
#[derive(Debug, Clone)]
struct Scan {
    store: DataStore,
    statement: Statement,
    /// Of the chosen columns.
    kinds: Vec<ColumnType>,
    schema: SchemaRef,
}

impl PartitionStream for Scan {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        match &self.store {
            DataStore::Sqlite { path } => sqlite::stream(path.into(), self.clone()),
            DataStore::Postgres { url, .. } => postgres::stream(url.clone(), self.clone()),
        }
    }
}

fn external(wrong: Wrong) -> DataFusionError {
    DataFusionError::External(Box::new(wrong))
}

/// The data store does not answer, or not as it should. What it says may hold an address.
fn unavailable() -> DataFusionError {
    external(Wrong::new(Failure::DataStoreUnavailable, "the data store cannot be read now: try again"))
}
