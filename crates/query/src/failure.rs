//! What a failed query is told as. What DataFusion says may hold values, paths and parts of the SQL: it is taken apart.

use datafusion::arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError};
use tenure_contract::query::process::{Failed, Failure};
use tenure_contract::suggest;

use crate::gate::Refused;

/// Of a message of the planner.
const MESSAGE_BYTES: usize = 300;

pub fn failed(error: Failure, message: impl Into<String>) -> Failed {
    Failed { error, message: message.into() }
}

impl From<Refused> for Wrong {
    fn from(refused: Refused) -> Self {
        Self(failed(Failure::InvalidSql, refused.to_string()))
    }
}

/// A query that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong(pub Failed);

impl Wrong {
    pub fn new(error: Failure, message: impl Into<String>) -> Self {
        Self(failed(error, message))
    }

    /// An error of planning: the SQL does not fit the data.
    pub fn planning(error: &DataFusionError) -> Self {
        match error.find_root() {
            DataFusionError::SchemaError(error, _) => Self::new(Failure::InvalidSql, schema(error)),
            DataFusionError::Plan(text) | DataFusionError::NotImplemented(text) => {
                Self::new(Failure::InvalidSql, format!("the query cannot be planned: {}", masked(text)))
            }
            DataFusionError::Diagnostic(_, inner) => Self::planning(inner),
            DataFusionError::Collection(errors) if !errors.is_empty() => Self::planning(&errors[0]),
            other => Self::running(other),
        }
    }

    /// An error while rows are computed.
    pub fn running(error: &DataFusionError) -> Self {
        let message = match error.find_root() {
            DataFusionError::ResourcesExhausted(text) if text.contains("disk") || text.contains("temp") => {
                return Self::new(
                    Failure::QueryMemoryExceeded,
                    "the query needs more space for intermediate results than it may use: read less, or aggregate earlier",
                );
            }
            DataFusionError::ResourcesExhausted(_) => {
                return Self::new(
                    Failure::QueryMemoryExceeded,
                    "the query needs more memory than it may use: read less, or aggregate earlier",
                );
            }
            DataFusionError::ObjectStore(_) => {
                return Self::new(Failure::ObjectStoreUnavailable, "a file of a dataset cannot be read: try again");
            }
            DataFusionError::External(source) => match source.downcast_ref::<Self>() {
                Some(wrong) => return wrong.clone(),
                None => "the query failed",
            },
            DataFusionError::ArrowError(error, _) => arrow(error),
            DataFusionError::ParquetError(_) => "a file of a dataset is not valid Parquet",
            DataFusionError::Execution(text) if text.contains("more than one row") => {
                "a subquery that must give one value gives more than one row"
            }
            DataFusionError::Execution(text) if text.starts_with("Divide by zero") => "division by zero",
            DataFusionError::IoError(_) => "the query process cannot read or write an intermediate result",
            DataFusionError::NotImplemented(_) => "the query uses something that is not supported for these types",
            DataFusionError::ExecutionJoin(_) => "the query engine failed on this query",
            _ => "the query failed",
        };
        Self::new(Failure::QueryFailed, message)
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Wrong {}

impl From<ArrowError> for Wrong {
    fn from(error: ArrowError) -> Self {
        Self::new(Failure::QueryFailed, arrow(&error))
    }
}

fn arrow(error: &ArrowError) -> &'static str {
    match error {
        ArrowError::DivideByZero => "division by zero",
        ArrowError::ArithmeticOverflow(_) => "a number is out of the range of its type",
        ArrowError::CastError(_) => "a value cannot be converted to the type that the query asks for: try TRY_CAST",
        ArrowError::ParseError(_) => "a text cannot be read as a value of the type that the query asks for",
        ArrowError::ParquetError(_) => "a file of a dataset is not valid Parquet",
        _ => "the query failed on a value",
    }
}

fn schema(error: &SchemaError) -> String {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let known: Vec<&str> = valid_fields.iter().map(|column| column.name()).collect();
            let near = suggest::meant(suggest::nearest(field.name(), known.iter().copied()));
            format!("no column named {}{near}", plain(field.name()))
        }
        SchemaError::AmbiguousReference { field } => {
            format!("the column {} is in more than one relation: qualify it", plain(field.name()))
        }
        SchemaError::DuplicateUnqualifiedField { name } | SchemaError::DuplicateQualifiedField { name, .. } => {
            format!("two columns are named {}: give one an alias", plain(name))
        }
    }
}

/// An identifier of the SQL, if it cannot be a value.
fn plain(name: &str) -> String {
    let fine = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ' ');
    if name.len() <= 64 && name.chars().all(fine) { format!("'{name}'") } else { "of that name".into() }
}

/// The first line without the texts in quotes.
fn masked(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut out = String::with_capacity(line.len());
    for (at, part) in line.split('\'').enumerate() {
        match at {
            0 => out.push_str(part),
            odd if odd % 2 == 1 => out.push_str("'…'"),
            _ => out.push_str(part),
        }
    }
    tenure_core::limits::cut(&out, MESSAGE_BYTES).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_sql_are_not_repeated() {
        assert_eq!(masked("no x for 'secret' and 'it''s' here\nmore"), "no x for '…' and '…''…' here");
        assert_eq!(masked("open 'secret"), "open '…'");
    }

    #[test]
    fn values_and_paths_are_not_repeated() {
        let cast = ArrowError::CastError("Cannot cast string 'secret' to value of Int64 type".into());
        let wrong = Wrong::running(&DataFusionError::ArrowError(Box::new(cast), None));
        assert_eq!(wrong.0.error, Failure::QueryFailed);
        assert!(!wrong.0.message.contains("secret"), "{wrong}");
    }
}
