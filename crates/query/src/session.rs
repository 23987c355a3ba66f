//! A DataFusion session that can read the views of one query and nothing else.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column as ColumnName, DataFusionError, TableReference};
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::context::{SQLOptions, SessionContext};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{SessionStateBuilder, SessionStateDefaults};
use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::functions_window::all_default_window_functions;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::object_store::ObjectStore;
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement;
use tenure_contract::query::process::{Ask, Column, Failure, Source, View};
use tenure_core::dag::filter::{Comparison, Filter, Literal};
use tenure_core::dag::schema::ColumnType;
use url::Url;

use crate::failure::Wrong;
use crate::files::Granted;
use crate::gate::{self, functions};
use crate::tables::Rows;

/// Of intermediate results on disk, for one query.
const SPILL_BYTES: u64 = 8 << 30;
/// Files of all views of a query.
pub const FILES: usize = 20_000;
/// The share of the memory that a sort keeps for the merge of what it has put on disk.
const SORT_SHARE: usize = 32;
/// Rows that are computed at a time.
const BATCH_ROWS: usize = 8_192;

/// A query that is ready to run.
pub struct Planned {
    pub context: SessionContext,
    pub plan: LogicalPlan,
    /// The names of the views that it reads.
    pub reads: Vec<String>,
}

/// Judges and plans a query. Intermediate results that do not fit into memory go to `spill`, which exists.
pub async fn plan(ask: &Ask, memory_bytes: usize, spill: &Path) -> Result<Planned, Wrong> {
    let names: BTreeSet<String> = ask.views.iter().flat_map(|view| view.names.iter().cloned()).collect();
    let passed = gate::pass(&ask.sql, &names)?;
    let runtime = runtime(memory_bytes, spill).map_err(|error| Wrong::running(&error))?;
    let context = SessionContext::new_with_state(state(runtime, memory_bytes));
    let read = ask.views.iter().filter(|view| view.names.iter().any(|name| passed.reads.contains(name)));
    let scans = Arc::new(AtomicUsize::new(0));
    for (number, view) in read.enumerate() {
        attach(&context, number, view, &scans).await?;
    }
    let state = context.state();
    let plan = state.statement_to_plan(Statement::Statement(Box::new(passed.statement))).await;
    let plan = plan.map_err(|error| Wrong::planning(&error))?;
    // The gate has refused these already.
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    options.verify_plan(&plan).map_err(|error| Wrong::planning(&error))?;
    Ok(Planned { context, plan, reads: passed.reads.into_iter().collect() })
}

fn runtime(memory_bytes: usize, spill: &Path) -> Result<Arc<RuntimeEnv>, DataFusionError> {
    let disk = DiskManagerBuilder::default()
        .with_mode(DiskManagerMode::Directories(vec![spill.to_owned()]))
        .with_max_temp_directory_size(SPILL_BYTES);
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(memory_bytes)))
        .with_disk_manager_builder(disk)
        .with_object_store_registry(Arc::new(Attached::default()))
        .build_arc()
}

/// Only what is listed is there: no other functions, table functions, file formats, factories or catalogs.
fn state(runtime: Arc<RuntimeEnv>, memory_bytes: usize) -> SessionState {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let config = SessionConfig::new()
        .with_information_schema(false)
        .with_create_default_catalog_and_schema(true)
        .with_batch_size(BATCH_ROWS)
        .with_sort_spill_reservation_bytes(memory_bytes / SORT_SHARE)
        // A column whose least and greatest value are equal is taken for a constant, but NaN is in neither of them.
        .with_collect_statistics(false)
        .with_target_partitions(cores.min(4));
    let mut scalar = datafusion::functions::all_default_functions();
    scalar.retain(|function| known(function.name(), function.aliases()));
    let mut aggregate = all_default_aggregate_functions();
    aggregate.retain(|function| known(function.name(), function.aliases()));
    let mut window = all_default_window_functions();
    window.retain(|function| known(function.name(), function.aliases()));
    SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_expr_planners(SessionStateDefaults::default_expr_planners())
        .with_scalar_functions(scalar)
        .with_aggregate_functions(aggregate)
        .with_window_functions(window)
        .build()
}

fn known(name: &str, aliases: &[String]) -> bool {
    functions::is_registered(name) || aliases.iter().any(|alias| functions::is_registered(alias))
}

/// Stores by the name that a view has for its files. Unlike that of DataFusion it begins empty, without the file system.
#[derive(Debug, Default)]
struct Attached(Mutex<HashMap<String, Arc<dyn ObjectStore>>>);

impl Attached {
    fn key(url: &Url) -> String {
        format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default())
    }
}

impl ObjectStoreRegistry for Attached {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(Self::key(url), store)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>, DataFusionError> {
        let stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = stores.get(&Self::key(url)).cloned();
        found.ok_or_else(|| DataFusionError::Internal("no such object store is attached".into()))
    }
}

async fn attach(context: &SessionContext, number: usize, view: &View, scans: &Arc<AtomicUsize>) -> Result<(), Wrong> {
    let table: Arc<dyn TableProvider> = match &view.source {
        Source::Files { place: _, files, columns } if files.is_empty() => Arc::new(EmptyTable::new(schema(columns)?)),
        Source::Files { place, files, columns: _ } => {
            if files.len() > FILES {
                let message = format!("a dataset has more than {FILES} files: compact it");
                return Err(Wrong::new(Failure::QueryFailed, message));
            }
            let store = Granted::new(number, place, files.clone())
                .map_err(|_| Wrong::new(Failure::ObjectStoreUnavailable, "the object store cannot be used"))?;
            listing(context, number, store).await?
        }
        Source::Refused(failed) => return Err(Wrong(failed.clone())),
        Source::Table(table) => Arc::new(Rows::new(table, Arc::clone(scans))?),
    };
    let filtered = match &view.condition {
        None => table,
        Some(condition) => {
            let filter: Filter = serde_json::from_str(condition.as_str())
                .map_err(|_| Wrong::new(Failure::MalformedRequest, "a condition of a view cannot be read"))?;
            let rows = context.read_table(table).and_then(|rows| rows.filter(expression(&filter)));
            rows.map_err(|error| condition_does_not_fit(&error))?.into_view()
        }
    };
    for name in &view.names {
        context
            .register_table(TableReference::bare(name.as_str()), Arc::clone(&filtered))
            .map_err(|error| Wrong::planning(&error))?;
    }
    Ok(())
}

fn condition_does_not_fit(error: &DataFusionError) -> Wrong {
    let Wrong(failed) = Wrong::planning(error);
    Wrong::new(Failure::QueryFailed, format!("`where` of an input does not fit its dataset: {}", failed.message))
}

async fn listing(context: &SessionContext, number: usize, store: Granted) -> Result<Arc<dyn TableProvider>, Wrong> {
    let prepared = async {
        let url = ListingTableUrl::parse(format!("tenure://view{number}/{number}/"))?;
        context.register_object_store(url.object_store().as_ref(), Arc::new(store));
        let options = ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
        let config = ListingTableConfig::new(url).with_listing_options(options);
        let config = config.infer_schema(&context.state()).await?;
        ListingTable::try_new(config)
    };
    let table = prepared.await.map_err(|error: DataFusionError| Wrong::running(&error))?;
    Ok(Arc::new(table))
}

/// Declared columns as the engine has them.
pub fn schema(columns: &[Column]) -> Result<SchemaRef, Wrong> {
    let field = |column: &Column| {
        let kind = data_type(&column.kind).ok_or_else(|| {
            Wrong::new(Failure::MalformedRequest, "a column has a type that this query process does not know")
        })?;
        Ok(Field::new(&column.name, kind, column.nullable))
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, Wrong>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

fn data_type(word: &str) -> Option<DataType> {
    Some(match word.parse().ok()? {
        ColumnType::Uuid | ColumnType::Text | ColumnType::Jsonb => DataType::Utf8,
        ColumnType::Bool => DataType::Boolean,
        ColumnType::Int32 => DataType::Int32,
        ColumnType::Int64 => DataType::Int64,
        ColumnType::Float64 => DataType::Float64,
        ColumnType::Date => DataType::Date32,
        ColumnType::Timestamptz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        ColumnType::Bytes => DataType::Binary,
        ColumnType::Decimal { precision, scale } => DataType::Decimal128(precision, i8::try_from(scale).ok()?),
    })
}

/// `where` of an input as an expression over the columns of its dataset.
fn expression(filter: &Filter) -> Expr {
    let column = |field: &str| Expr::Column(ColumnName::from_name(field));
    let joined = |parts: &[Filter], join: fn(Expr, Expr) -> Expr, none: bool| {
        parts.iter().map(expression).reduce(join).unwrap_or_else(|| lit(none))
    };
    match filter {
        Filter::And(parts) => joined(parts, Expr::and, true),
        Filter::Or(parts) => joined(parts, Expr::or, false),
        Filter::Not(inner) => Expr::Not(Box::new(expression(inner))),
        Filter::Compare { op, field, value } => {
            let (left, right) = (column(field), literal(value));
            match op {
                Comparison::Eq => left.eq(right),
                Comparison::Ne => left.not_eq(right),
                Comparison::Lt => left.lt(right),
                Comparison::Le => left.lt_eq(right),
                Comparison::Gt => left.gt(right),
                Comparison::Ge => left.gt_eq(right),
            }
        }
        Filter::In { field, values } => column(field).in_list(values.iter().map(literal).collect(), false),
        Filter::Like { field, pattern } => column(field).like(lit(&**pattern)),
        Filter::IsNull { field } => column(field).is_null(),
    }
}

fn literal(value: &Literal) -> Expr {
    match value {
        Literal::Bool(value) => lit(*value),
        Literal::Int(value) => lit(*value),
        Literal::Float(value) => lit(*value),
        Literal::Text(value) => lit(&**value),
    }
}
