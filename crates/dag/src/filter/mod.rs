//! Conditions on the rows of an input: as text, as a map, as a typed tree, and as SQL with bound parameters.
//!
//! ```text
//! or        = and { OR and }
//! and       = not { AND not }
//! not       = NOT not | ( or ) | field test
//! test      = ( = | != | <> | < | <= | > | >= ) literal
//!           | [NOT] IN ( literal { , literal } )
//!           | [NOT] LIKE 'text'
//!           | IS [NOT] NULL
//! ```
//!
//! A field is a word, or any name in double quotes. A literal is a number, `TRUE`, `FALSE` or a text in single quotes.

mod lex;
mod map;
mod parse;
mod print;
mod sql;
mod typed;

pub use map::from_map;
pub use parse::parse;
pub use print::print;
pub use sql::{Dialect, Param, Sql, compile};
pub use typed::{Fault, Misfit, check};

/// A field of a condition.
pub const FIELD_BYTES: usize = 128;

/// Why a text or a map is not a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at character {position})")]
pub struct WhereError {
    /// In characters of the text, counted from 1; 1 for a map.
    pub position: usize,
    pub message: String,
}

impl WhereError {
    fn new(position: usize, message: impl Into<String>) -> Self {
        Self { position, message: message.into() }
    }
}

fn valid_field(name: &str) -> bool {
    !name.is_empty() && name.len() <= FIELD_BYTES && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests;
