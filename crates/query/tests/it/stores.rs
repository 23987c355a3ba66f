//! The same rows in both data stores.

use std::sync::Arc;

use serde_json::Value;
use tenure_contract::query::process::{Column, DataStore as WireStore, Source, Table as WireTable, View};
use tenure_core::dag::{DatasetId, Schema};
use tenure_data::{Access, DataStore, Rows, Table};
use tenure_testkit::Postgres;

use crate::support::Stand;

pub const ORG: &str = "11111111-2222-3333-4444-555555555555";

pub struct Stores {
    stores: Vec<Arc<dyn DataStore>>,
    table: Table,
    _folder: tempfile::TempDir,
    _database: tenure_testkit::Database,
}

impl Stores {
    pub async fn new(schema: Arc<Schema>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Postgres::shared().await.database().await;
        let stores: Vec<Arc<dyn DataStore>> = vec![
            Arc::new(tenure_data::Sqlite::new(folder.path().join("data.db"))),
            Arc::new(tenure_data::Postgres::new(database.url(), None).unwrap()),
        ];
        let table = Table::new(DatasetId::parse("018c385a-9fb1-9509-0e89-33fe3b7b1aa9").unwrap(), schema);
        for store in &stores {
            store.ensure(&table).await.unwrap();
        }
        Self { stores, table, _folder: folder, _database: database }
    }

    pub async fn append(&self, org: &str, rows: &[Value]) {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        for store in &self.stores {
            let org = uuid::Uuid::parse_str(org).unwrap();
            let rows = Rows::parse(&self.table.schema, org, lines.as_bytes()).unwrap();
            store.append(&self.table, vec![rows]).await.unwrap();
        }
    }

    /// Rows of the organisation as `v`, in each data store.
    pub async fn views(&self, org: &str) -> Vec<View> {
        let mut views = Vec::new();
        for store in &self.stores {
            let reading = store.reading(&self.table).await.unwrap();
            let place = match reading.access {
                Access::Sqlite { path } => WireStore::Sqlite { path: path.to_str().unwrap().into() },
                Access::Postgres { url, schema, .. } => {
                    WireStore::Postgres { url: url.to_string(), schema: schema.into() }
                }
            };
            let column = |column: &tenure_core::dag::Column| Column {
                name: column.name.to_string(),
                kind: column.kind.to_string(),
                nullable: column.nullable,
            };
            let table = WireTable {
                store: place,
                name: reading.table,
                columns: reading.columns.iter().map(column).collect(),
                org_id: org.to_owned(),
                upto: reading.upto.unwrap_or(0),
                after: 0,
            };
            views.push(View { names: vec!["v".into()], source: Source::Table(table), condition: None });
        }
        views
    }

    /// The same answer of both data stores.
    pub async fn rows(&self, stand: &Stand, org: &str, sql: &str) -> Value {
        let mut answers = Vec::new();
        for view in self.views(org).await {
            answers.push(stand.rows(sql, &[view]).await);
        }
        assert_eq!(answers[0], answers[1], "{sql}");
        answers.remove(0)
    }
}
