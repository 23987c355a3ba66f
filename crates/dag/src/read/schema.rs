//! `publish.{dataset}.schema`.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_core::dag::schema::{COLUMNS, ORG_COLUMN};
use tenure_core::dag::{Column, ColumnType, Schema};

use super::fields::{Fields, IDENTIFIER_RULE, is_identifier};
use crate::problem::{Code, quoted};
use crate::yaml::{Content, Node};

/// Added by the platform.
const SEQUENCE: &str = "_seq";
const INDEXES: usize = 32;

pub(super) fn read(publish: &Fields<'_, '_>, buffered: bool) -> Option<Schema> {
    let fields = publish.map("schema", &["columns", "unique", "indexes"])?;
    fields.required("columns")?;
    let columns = columns(&fields)?;
    let unique = fields.names("unique", COLUMNS, is_identifier, IDENTIFIER_RULE);
    let indexes = indexes(&fields, &columns);
    match &unique {
        Some(unique) => {
            unique_columns(&fields, unique, &columns);
        }
        None if buffered && fields.get("unique").is_none() => {
            fields.missing("unique", "a buffered dataset needs 'unique', which says which rows are the same");
        }
        None => {}
    }
    Some(Schema { columns, unique: unique.unwrap_or_default(), indexes })
}

fn columns(fields: &Fields<'_, '_>) -> Option<Vec<Column>> {
    let items = fields.list("columns")?;
    if !(1..=COLUMNS).contains(&items.len()) {
        fields.error("columns", Code::OutOfRange, format!("a schema has 1 to {COLUMNS} columns"));
        return None;
    }
    let mut names = BTreeSet::new();
    let read = |(index, item): (usize, &Node)| {
        let place = fields.place.key("columns").index(index);
        let column = Fields::of(item, place, fields.report, &["name", "type", "nullable"])?;
        let read = self::column(&column)?;
        if !names.insert(read.name.clone()) {
            column.error("name", Code::InvalidSchema, format!("the column '{}' is declared twice", read.name));
        }
        Some(read)
    };
    // All are read, so that all errors are found.
    let columns: Vec<Option<Column>> = items.iter().enumerate().map(read).collect();
    columns.into_iter().collect()
}

fn column(fields: &Fields<'_, '_>) -> Option<Column> {
    let name = fields.required_text("name");
    let kind = fields.required_text("type");
    let nullable = fields.boolean("nullable").unwrap_or(true);
    if let Some(name) = name {
        if !is_identifier(name) {
            let message = format!("'{}' is not a column: {IDENTIFIER_RULE}", quoted(name));
            fields.error("name", Code::InvalidName, message);
        } else if name == SEQUENCE {
            fields.error("name", Code::InvalidSchema, "the column '_seq' is added by the platform");
        }
    }
    let parsed = kind.and_then(|kind| kind.parse::<ColumnType>().ok());
    if let (Some(kind), None) = (kind, parsed) {
        let meant = fields.report.meant(kind, ColumnType::NAMES);
        let known = ColumnType::NAMES.join(", ");
        let message = format!("'{}' is not a column type ({known}){meant}", quoted(kind));
        fields.error("type", Code::InvalidSchema, message);
    }
    let name = name?;
    if let Some(kind) = parsed.filter(|kind| name == ORG_COLUMN && *kind != ColumnType::Uuid) {
        fields.error("type", Code::InvalidSchema, format!("the column '{ORG_COLUMN}' has type uuid, not {kind}"));
    }
    Some(Column { name: name.into(), kind: parsed?, nullable })
}

fn unique_columns(fields: &Fields<'_, '_>, unique: &[Arc<str>], columns: &[Column]) {
    if !unique.iter().any(|name| &**name == ORG_COLUMN) {
        let message = format!("'unique' must contain '{ORG_COLUMN}': rows of two organisations never conflict");
        fields.error("unique", Code::InvalidSchema, message);
    }
    for (index, name) in unique.iter().enumerate() {
        known(fields, "unique", index, name, columns);
    }
}

fn indexes(fields: &Fields<'_, '_>, columns: &[Column]) -> Vec<Vec<Arc<str>>> {
    let Some(items) = fields.list("indexes") else { return Vec::new() };
    if items.len() > INDEXES {
        fields.error("indexes", Code::OutOfRange, format!("at most {INDEXES} indexes are allowed"));
        return Vec::new();
    }
    let read = |(index, item): (usize, &Node)| {
        let place = fields.place.key("indexes").index(index);
        let Content::List(names) = &item.content else {
            let message = format!("an index is a list of columns, not {}", item.kind());
            fields.report.error(item.at, &place, Code::WrongType, message);
            return Vec::new();
        };
        if names.is_empty() {
            fields.report.error(item.at, &place, Code::OutOfRange, "an index has at least one column");
        }
        let name = |(position, node): (usize, &Node)| -> Option<Arc<str>> {
            let place = place.index(position);
            let name = super::fields::text(node, &place, fields.report)?;
            if !columns.iter().any(|column| &*column.name == name) {
                let meant = fields.report.meant(name, columns.iter().map(|column| &*column.name));
                let message = format!("no column named '{}'{meant}", quoted(name));
                fields.report.error(node.at, &place, Code::UnknownColumn, message);
            }
            Some(name.into())
        };
        names.iter().enumerate().filter_map(name).collect()
    };
    items.iter().enumerate().map(read).collect()
}

fn known(fields: &Fields<'_, '_>, key: &str, index: usize, name: &str, columns: &[Column]) {
    if columns.iter().any(|column| &*column.name == name) {
        return;
    }
    let meant = fields.report.meant(name, columns.iter().map(|column| &*column.name));
    let at = fields.list(key).and_then(|items| items.get(index)).map_or(fields.at, |item| item.at);
    let message = format!("no column named '{}'{meant}", quoted(name));
    fields.report.error(at, &fields.place.key(key).index(index), Code::UnknownColumn, message);
}
