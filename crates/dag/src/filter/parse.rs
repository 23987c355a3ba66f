use std::sync::Arc;

use tenure_core::dag::filter::{DEPTH, TEXT_BYTES};
use tenure_core::dag::{Comparison, Filter, Literal};

use super::WhereError;
use super::lex::{Keyword, Token, tokens};

/// Reads a condition.
pub fn parse(text: &str) -> Result<Filter, WhereError> {
    if text.len() > TEXT_BYTES {
        return Err(WhereError::new(1, format!("a condition has at most {TEXT_BYTES} bytes")));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, nesting: 0 };
    let filter = parser.or()?;
    if *parser.peek() != Token::End {
        return Err(parser.error("expected AND, OR or the end"));
    }
    if filter.depth() > DEPTH {
        return Err(too_deep(1));
    }
    Ok(filter)
}

fn too_deep(position: usize) -> WhereError {
    WhereError::new(position, format!("a condition may be nested {DEPTH} levels deep"))
}

struct Parser {
    /// Ends with `End`.
    tokens: Vec<(usize, Token)>,
    next: usize,
    nesting: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    fn position(&self) -> usize {
        let last = self.tokens.last();
        self.tokens.get(self.next).or(last).map_or(1, |(position, _)| *position)
    }

    fn error(&self, message: impl Into<String>) -> WhereError {
        WhereError::new(self.position(), message)
    }

    /// Whether the next token was this one.
    fn take(&mut self, token: &Token) -> bool {
        let taken = self.peek() == token;
        self.next += usize::from(taken);
        taken
    }

    fn word(&mut self, keyword: Keyword) -> bool {
        self.take(&Token::Word(keyword))
    }

    fn symbol(&mut self, symbol: &'static str) -> Result<(), WhereError> {
        if self.take(&Token::Symbol(symbol)) { Ok(()) } else { Err(self.error(format!("expected '{symbol}'"))) }
    }

    fn or(&mut self) -> Result<Filter, WhereError> {
        let mut parts = vec![self.and()?];
        while self.word(Keyword::Or) {
            parts.push(self.and()?);
        }
        Filter::or(parts).ok_or_else(|| self.error("expected a condition"))
    }

    fn and(&mut self) -> Result<Filter, WhereError> {
        let mut parts = vec![self.not()?];
        while self.word(Keyword::And) {
            parts.push(self.not()?);
        }
        Filter::and(parts).ok_or_else(|| self.error("expected a condition"))
    }

    fn not(&mut self) -> Result<Filter, WhereError> {
        if self.word(Keyword::Not) {
            return self.nested(|parser| Ok(parser.not()?.negated()));
        }
        if self.take(&Token::Symbol("(")) {
            return self.nested(|parser| {
                let inner = parser.or()?;
                parser.symbol(")")?;
                Ok(inner)
            });
        }
        self.test()
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Result<Filter, WhereError>) -> Result<Filter, WhereError> {
        self.nesting += 1;
        if self.nesting > DEPTH {
            return Err(too_deep(self.position()));
        }
        let filter = read(self)?;
        self.nesting -= 1;
        Ok(filter)
    }

    fn test(&mut self) -> Result<Filter, WhereError> {
        let field = self.field()?;
        if let Some(op) = self.comparison() {
            return Ok(Filter::Compare { op, field, value: self.literal()? });
        }
        if self.word(Keyword::Is) {
            let negated = self.word(Keyword::Not);
            if !self.word(Keyword::Null) {
                return Err(self.error("expected NULL or NOT NULL after IS"));
            }
            return Ok(negate(negated, Filter::IsNull { field }));
        }
        let negated = self.word(Keyword::Not);
        if self.word(Keyword::In) {
            return Ok(negate(negated, Filter::In { field, values: self.literals()? }));
        }
        if self.word(Keyword::Like) {
            return Ok(negate(negated, Filter::Like { field, pattern: self.pattern()? }));
        }
        if matches!(self.peek(), Token::Symbol("(")) {
            return Err(self.error("functions are not allowed"));
        }
        Err(self.error("expected a comparison, IN, LIKE or IS NULL after the field"))
    }

    fn field(&mut self) -> Result<Arc<str>, WhereError> {
        let Token::Field(name) = self.peek() else {
            return Err(self.error("expected a field: a condition compares a field with a literal"));
        };
        let name = name.as_str().into();
        self.next += 1;
        Ok(name)
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let Token::Symbol(symbol) = self.peek() else { return None };
        let symbol = if *symbol == "<>" { "!=" } else { symbol };
        let op = Comparison::ALL.into_iter().find(|op| op.symbol() == symbol)?;
        self.next += 1;
        Some(op)
    }

    fn literals(&mut self) -> Result<Vec<Literal>, WhereError> {
        self.symbol("(")?;
        if matches!(self.peek(), Token::Field(word) if word.eq_ignore_ascii_case("select")) {
            return Err(self.error("subqueries are not allowed"));
        }
        let mut values = vec![self.literal()?];
        while self.take(&Token::Symbol(",")) {
            values.push(self.literal()?);
        }
        self.symbol(")")?;
        Ok(values)
    }

    fn literal(&mut self) -> Result<Literal, WhereError> {
        let value = match self.peek() {
            Token::Text(text) => Literal::Text(text.as_str().into()),
            Token::Int(value) => Literal::Int(*value),
            Token::Float(value) => Literal::float(*value)
                .ok_or_else(|| self.error("the number has too many digits: write large decimals in single quotes"))?,
            Token::Word(Keyword::True) => Literal::Bool(true),
            Token::Word(Keyword::False) => Literal::Bool(false),
            Token::Word(Keyword::Null) => {
                return Err(self.error("nothing equals NULL: use IS NULL or IS NOT NULL"));
            }
            Token::Field(_) => {
                return Err(self.error("expected a literal: texts are written in single quotes"));
            }
            Token::Symbol("(") => return Err(self.error("subqueries are not allowed")),
            _ => return Err(self.error("expected a literal")),
        };
        self.next += 1;
        Ok(value)
    }

    fn pattern(&mut self) -> Result<Arc<str>, WhereError> {
        let Token::Text(text) = self.peek() else {
            return Err(self.error("expected a pattern in single quotes after LIKE"));
        };
        let text = text.as_str().into();
        self.next += 1;
        Ok(text)
    }
}

fn negate(negated: bool, filter: Filter) -> Filter {
    if negated { filter.negated() } else { filter }
}
