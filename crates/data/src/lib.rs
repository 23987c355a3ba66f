//! The data store: rows of buffered datasets, in a table per dataset.
//!
//! [`Rows::parse`] turns a batch into columns, or says which line is wrong and why. [`DataStore::append`] writes batches in
//! one transaction and numbers their rows in the column `_seq`. Transactions of one dataset run one after the other, so a
//! row that is committed later has a higher number: a reader that has seen everything up to n never misses a row below n.
//! A row whose `unique` columns are those of another row is left out, so a batch that comes again changes nothing.
//!
//! SQLite and Postgres behave in the same way. [`Access`] says how a reader reaches the tables without writing to them.

mod access;
mod cells;
mod error;
mod postgres;
mod rows;
mod sqlite;
mod store;
mod table;

pub use access::{Access, Reading};
pub use cells::{Bytes, Cells, Texts};
pub use error::DataError;
pub use postgres::Postgres;
pub use rows::{BATCH_BYTES, CELLS, Fault, FaultCode, ROWS, Rows};
pub use sqlite::Sqlite;
pub use store::{Appended, DataStore};
pub use table::{SEQUENCE, Table, table_name};
