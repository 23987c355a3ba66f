//! Where in the SQL an error is.

use tenure_client::ClientError;

use crate::exit::Stop;
use crate::output::clean;

/// Characters of a line of SQL that are shown around the place.
const AROUND: usize = 60;

/// An error that names a line and a column shows them.
pub fn pointed(error: ClientError, sql: &str) -> anyhow::Error {
    let ClientError::Api { error: word, message, .. } = &error else { return error.into() };
    if word != "invalid_sql" {
        return error.into();
    }
    let snippet = place(message).and_then(|(line, column)| snippet(sql, line, column));
    let stop = Stop::usage(message.clone());
    match snippet {
        Some(snippet) => stop.details(snippet).into(),
        None => stop.into(),
    }
}

/// The first `line N, column N` of a message, counted from 1.
fn place(message: &str) -> Option<(usize, usize)> {
    let (_, rest) = message.split_once("line ")?;
    let (line, rest) = rest.split_once(", column ")?;
    let column: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((line.parse().ok()?, column.parse().ok()?))
}

/// The line, and a mark below the column.
fn snippet(sql: &str, line: usize, column: usize) -> Option<String> {
    let text: Vec<char> = sql.lines().nth(line.checked_sub(1)?)?.chars().collect();
    let at = column.checked_sub(1)?.min(text.len());
    let from = at.saturating_sub(AROUND);
    let shown: String = text[from..text.len().min(at + AROUND)].iter().collect();
    let number = line.to_string();
    let before: String = text[from..at].iter().collect();
    let blank = " ".repeat(console::measure_text_width(&clean(&before)));
    Some(format!("{number} | {}\n{} | {blank}^", clean(&shown), " ".repeat(number.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_read_from_the_message() {
        assert_eq!(place("line 2, column 6: the relation 'x' is none of the datasets"), Some((2, 6)));
        assert_eq!(place("the SQL is refused: line 12, column 1"), Some((12, 1)));
        for message in ["", "line 2", "line x, column 1", "line 2, column x", "two statements"] {
            assert_eq!(place(message), None, "{message}");
        }
    }

    #[test]
    fn a_mark_is_below_the_column() {
        assert_eq!(snippet("SELECT 1\nFROM other", 2, 6).unwrap(), "2 | FROM other\n  |      ^");
        // Wide and tabbed text before it, and a place after the end.
        assert_eq!(snippet("SELECT '日',\tx", 1, 13).unwrap(), "1 | SELECT '日', x\n  |              ^");
        assert_eq!(snippet("SELECT", 1, 99).unwrap(), "1 | SELECT\n  |       ^");
        assert!(snippet("SELECT", 2, 1).is_none() && snippet("SELECT", 0, 0).is_none());
        let long = snippet(&format!("SELECT {}", "x, ".repeat(200)), 1, 300).unwrap();
        let (line, mark) = long.split_once('\n').unwrap();
        assert!(line.chars().count() <= 4 + 2 * AROUND && mark.chars().count() == 4 + AROUND + 1, "{long}");
    }
}
