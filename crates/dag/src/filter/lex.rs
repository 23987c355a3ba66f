use super::{WhereError, valid_field};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Field(String),
    Word(Keyword),
    Text(String),
    Int(i64),
    Float(f64),
    Symbol(&'static str),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyword {
    And,
    Or,
    Not,
    In,
    Is,
    Like,
    Null,
    True,
    False,
}

const KEYWORDS: [(&str, Keyword); 9] = [
    ("and", Keyword::And),
    ("or", Keyword::Or),
    ("not", Keyword::Not),
    ("in", Keyword::In),
    ("is", Keyword::Is),
    ("like", Keyword::Like),
    ("null", Keyword::Null),
    ("true", Keyword::True),
    ("false", Keyword::False),
];

/// Longer symbols first.
const SYMBOLS: [&str; 10] = ["<=", ">=", "<>", "!=", "=", "<", ">", "(", ")", ","];

pub(super) fn keyword(word: &str) -> Option<Keyword> {
    KEYWORDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, keyword)| *keyword)
}

pub(super) fn is_word(text: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(part)
}

/// The tokens with their positions in characters.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, WhereError> {
    let mut lexer = Lexer { rest: text, position: 1 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip(lexer.rest.len() - lexer.rest.trim_start().len());
        let position = lexer.position;
        let token = lexer.next()?;
        let end = token == Token::End;
        tokens.push((position, token));
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    rest: &'a str,
    position: usize,
}

impl<'a> Lexer<'a> {
    fn skip(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.position += taken.chars().count();
        self.rest = rest;
        taken
    }

    fn while_char(&self, matches: impl Fn(char) -> bool) -> usize {
        self.rest.find(|c| !matches(c)).unwrap_or(self.rest.len())
    }

    fn next(&mut self) -> Result<Token, WhereError> {
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| self.rest.starts_with(symbol)) {
            self.skip(symbol.len());
            return Ok(Token::Symbol(symbol));
        }
        match first {
            '\'' => self.quoted('\'').map(Token::Text),
            '"' => {
                let position = self.position;
                let name = self.quoted('"')?;
                if !valid_field(&name) {
                    return Err(WhereError::new(position, "a field has 1 to 128 bytes and no control characters"));
                }
                Ok(Token::Field(name))
            }
            '0'..='9' | '.' | '+' | '-' => self.number(),
            c if c.is_ascii_alphabetic() || c == '_' => self.word(),
            ';' => Err(self.error("';' is not allowed: a condition is one expression")),
            c => Err(self.error(format!("unexpected character '{}'", c.escape_default()))),
        }
    }

    fn error(&self, message: impl Into<String>) -> WhereError {
        WhereError::new(self.position, message)
    }

    fn word(&mut self) -> Result<Token, WhereError> {
        let position = self.position;
        let word = self.skip(self.while_char(|c| c.is_ascii_alphanumeric() || c == '_'));
        match keyword(word) {
            Some(keyword) => Ok(Token::Word(keyword)),
            None if valid_field(word) => Ok(Token::Field(word.to_owned())),
            None => Err(WhereError::new(position, "a field has at most 128 bytes")),
        }
    }

    /// A doubled quote stands for the quote itself.
    fn quoted(&mut self, quote: char) -> Result<String, WhereError> {
        let start = self.position;
        self.skip(1);
        let mut text = String::new();
        loop {
            let Some(end) = self.rest.find(quote) else {
                return Err(WhereError::new(start, format!("the {quote} is never closed")));
            };
            text.push_str(self.skip(end));
            self.skip(1);
            if !self.rest.starts_with(quote) {
                break;
            }
            text.push(quote);
            self.skip(1);
        }
        if text.contains('\0') {
            return Err(WhereError::new(start, "a text cannot contain a NUL character"));
        }
        Ok(text)
    }

    fn number(&mut self) -> Result<Token, WhereError> {
        let position = self.position;
        let sign = usize::from(self.rest.starts_with(['+', '-']));
        let mut length =
            sign + self.rest[sign..].find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.rest.len() - sign);
        if self.rest[length..].starts_with(['e', 'E']) {
            let exponent = &self.rest[length + 1..];
            let signed = usize::from(exponent.starts_with(['+', '-']));
            let digits = exponent[signed..].find(|c: char| !c.is_ascii_digit()).unwrap_or(exponent.len() - signed);
            length += 1 + signed + digits;
        }
        let text = self.skip(length);
        if self.rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            return Err(WhereError::new(position, "a number is followed by a letter: put texts in single quotes"));
        }
        literal(text)
            .ok_or_else(|| WhereError::new(position, "not a number of 64 bits: write large decimals in single quotes"))
    }
}

fn literal(text: &str) -> Option<Token> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !unsigned.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(Token::Int);
    }
    text.parse().ok().filter(|value: &f64| value.is_finite()).map(Token::Float)
}
