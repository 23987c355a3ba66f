//! Which SQL is run: an allow-list on the parsed tree.
//!
//! The tree that passes is the tree that is planned; the text is not parsed again. Structures are taken apart field by
//! field, so that a construct that a later parser knows does not compile before somebody has judged it.

mod expression;
pub mod functions;
mod relation;

use std::collections::BTreeSet;
use std::fmt;

use datafusion::sql::sqlparser::ast::{Ident, ObjectName, ObjectNamePart, Statement, Value, ValueWithSpan};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Location, Token};

pub const SQL_BYTES: usize = 64 << 10;
pub const LITERAL_BYTES: usize = 4_096;
pub const DEPTH: usize = 64;

/// A chain of operators nests as deep as it is long, and it takes stack to parse one and to drop it.
const STACK_BYTES: usize = 128 << 20;
/// Longer names are not repeated in messages.
const SHOWN_BYTES: usize = 64;

/// Why SQL is not run. It names the construct, and repeats nothing of the text but plain names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    construct: String,
    at: Option<(u64, u64)>,
}

impl Refused {
    fn new(construct: impl Into<String>) -> Self {
        Self { construct: construct.into(), at: None }
    }

    fn at(mut self, place: Location) -> Self {
        // Line 0 stands for an unknown place.
        self.at = (place.line > 0).then_some((place.line, place.column));
        self
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((line, column)) => write!(f, "line {line}, column {column}: {}", self.construct),
            None => f.write_str(&self.construct),
        }
    }
}

impl std::error::Error for Refused {}

type Verdict = Result<(), Refused>;

/// A query that may run.
#[derive(Debug, Clone)]
pub struct Passed {
    pub statement: Statement,
    /// The attached names that it reads.
    pub reads: BTreeSet<String>,
}

/// Judges SQL. `attached` are the names of the views.
pub fn pass(sql: &str, attached: &BTreeSet<String>) -> Result<Passed, Refused> {
    if sql.len() > SQL_BYTES {
        return Err(Refused::new(format!("the SQL has more than {SQL_BYTES} bytes")));
    }
    if sql.contains('\0') {
        return Err(Refused::new("the SQL has a character NUL"));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sql-gate".into()).stack_size(STACK_BYTES);
        let judge = thread.spawn_scoped(scope, || judge_text(sql, attached));
        let judge = judge.map_err(|_| Refused::new("the SQL cannot be parsed now: the server is out of memory"))?;
        judge.join().unwrap_or_else(|_| Err(Refused::new("the SQL cannot be parsed")))
    })
}

fn judge_text(sql: &str, attached: &BTreeSet<String>) -> Result<Passed, Refused> {
    let statement = parse(sql)?;
    let mut gate = Gate { attached, scopes: Vec::new(), reads: BTreeSet::new(), depth: 0 };
    match &statement {
        Statement::Query(query) => gate.top(query)?,
        other => return Err(Refused::new(format!("{} is not allowed: only SELECT is", keyword(other)))),
    }
    let reads = gate.reads;
    Ok(Passed { statement, reads })
}

/// One statement, with at most one semicolon after it.
fn parse(sql: &str) -> Result<Statement, Refused> {
    let dialect = PostgreSqlDialect {};
    // Levels of the parser are finer than those of the tree. What nests too deep is refused by either.
    let parser = Parser::new(&dialect).with_recursion_limit(DEPTH * 4);
    let mut parser = parser.try_with_sql(sql).map_err(|error| unreadable(&error, None))?;
    let parsed = parser.parse_statement();
    let statement = parsed.map_err(|error| unreadable(&error, Some(parser.peek_token().span.start)))?;
    let ended = parser.consume_token(&Token::SemiColon);
    let next = parser.peek_token();
    if next.token == Token::EOF {
        return Ok(statement);
    }
    let construct = if ended { "only one statement is allowed" } else { "the SQL goes on after its end" };
    Err(Refused::new(construct).at(next.span.start))
}

/// What the parser says holds parts of the SQL; of that only what it expected is repeated.
fn unreadable(error: &ParserError, place: Option<Location>) -> Refused {
    let text = match error {
        ParserError::RecursionLimitExceeded => return too_deep(),
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
    };
    let expected = text.strip_prefix("Expected: ").and_then(|text| text.split_once(", found: "));
    let expected = expected.map(|(expected, _)| expected);
    let plain = |text: &&str| text.len() <= SHOWN_BYTES && !text.contains(['\'', '"', '$']);
    let refused = match expected.filter(plain) {
        Some(expected) => Refused::new(format!("the SQL cannot be parsed: expected {expected}")),
        None => Refused::new("the SQL cannot be parsed"),
    };
    match place {
        Some(place) => refused.at(place),
        None => refused,
    }
}

fn too_deep() -> Refused {
    Refused::new(format!("the SQL is nested deeper than {DEPTH} levels: IN replaces a long chain of OR"))
}

/// The first word of a statement, as the parser writes it.
fn keyword(statement: &Statement) -> String {
    let text = statement.to_string();
    let word: String = text.chars().take_while(char::is_ascii_alphabetic).take(SHOWN_BYTES).collect();
    if word.is_empty() { "this statement".into() } else { word.to_ascii_uppercase() }
}

/// What was judged so far.
struct Gate<'a> {
    attached: &'a BTreeSet<String>,
    /// Names of CTEs, the innermost query last.
    scopes: Vec<BTreeSet<String>>,
    reads: BTreeSet<String>,
    depth: usize,
}

impl Gate<'_> {
    fn deeper(&mut self, judge: impl FnOnce(&mut Self) -> Verdict) -> Verdict {
        if self.depth >= DEPTH {
            return Err(too_deep());
        }
        self.depth += 1;
        let verdict = judge(self);
        self.depth -= 1;
        verdict
    }

    fn each<'t, T: 't>(
        &mut self,
        items: impl IntoIterator<Item = &'t T>,
        judge: impl Fn(&mut Self, &T) -> Verdict,
    ) -> Verdict {
        items.into_iter().try_for_each(|item| judge(self, item))
    }

    fn literal(&self, ValueWithSpan { value, span }: &ValueWithSpan) -> Verdict {
        let length = match value {
            Value::Number(text, _) => text.to_string().len(),
            Value::SingleQuotedString(text)
            | Value::EscapedStringLiteral(text)
            | Value::UnicodeStringLiteral(text)
            | Value::NationalStringLiteral(text)
            | Value::HexStringLiteral(text) => text.len(),
            Value::DollarQuotedString(text) => text.value.len(),
            Value::Boolean(_) | Value::Null => 0,
            Value::Placeholder(_) => return Err(Refused::new("placeholders are not allowed").at(span.start)),
            _ => return Err(Refused::new("this kind of literal is not allowed").at(span.start)),
        };
        if length > LITERAL_BYTES {
            let construct = format!("a literal has more than {LITERAL_BYTES} bytes");
            return Err(Refused::new(construct).at(span.start));
        }
        Ok(())
    }
}

/// A name without a qualifier, as the planner compares it.
fn unqualified(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] => Some(normal(ident)),
        _ => None,
    }
}

fn normal(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_ascii_lowercase() }
}

fn place_of(name: &ObjectName) -> Location {
    match name.0.first() {
        Some(ObjectNamePart::Identifier(ident)) => ident.span.start,
        _ => Location::empty(),
    }
}

/// A name for a message: plain ones only, since others may be paths or anything else.
fn shown(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.len() <= SHOWN_BYTES && !name.is_empty() && name.chars().all(plain) {
        format!(" '{name}'")
    } else {
        String::new()
    }
}

/// What else there is, for a name that there is not.
fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    tenure_contract::suggest::meant(tenure_contract::suggest::nearest(name, known))
}
