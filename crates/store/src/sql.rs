//! SQL is kept in one file per table and dialect. A line `-- name: ready_get` starts a statement, which ends where the
//! next one starts. Both dialects use the same names in the same order, so that the files can be read side by side.
//!
//! The statements become constants at compile time: a constant without a statement, a statement without a constant, or
//! a different order fails the build.

const MARK: &str = "-- name: ";

/// Declares a constant for each statement in `sql/<table>.sql`, next to the calling file.
macro_rules! statements {
    ($($table:ident { $($name:ident)* })*) => {
        $(
            mod $table {
                pub const NAMES: &[&str] = &[$(stringify!($name)),*];
                pub const TEXTS: [&str; NAMES.len()] =
                    crate::sql::cut(include_str!(concat!("sql/", stringify!($table), ".sql")), NAMES);
            }
            $(pub const $name: &str = $table::TEXTS[crate::sql::position($table::NAMES, stringify!($name))];)*
        )*

        #[cfg(test)]
        pub const ALL: &[&[&str]] = &[$($table::NAMES),*];
    };
}
pub(crate) use statements;

/// Cuts a file into the statements called `names`.
pub const fn cut<const N: usize>(text: &'static str, names: &[&str]) -> [&'static str; N] {
    let mut texts = [""; N];
    let mut rest = text.split_at(mark(text)).1;
    let mut n = 0;
    while !rest.is_empty() {
        assert!(n < N, "a statement at the end of this file has no constant");
        let (name, body) = rest.split_at(MARK.len()).1.split_at(names[n].len());
        assert!(is_name(name, names[n]), "the constants and the statements of this file differ in name or order");
        assert!(body.as_bytes()[0] == b'\n', "the name of a statement in this file is longer than its constant");
        let (statement, after) = body.split_at(mark(body));
        texts[n] = statement.trim_ascii();
        rest = after;
        n += 1;
    }
    assert!(n == N, "a constant of this file has no statement");
    texts
}

pub const fn position(names: &[&str], name: &str) -> usize {
    let mut n = 0;
    while !is_name(names[n], name) {
        n += 1;
    }
    n
}

/// Where the next statement starts, or the end of the text.
const fn mark(text: &str) -> usize {
    let (text, mark) = (text.as_bytes(), MARK.as_bytes());
    let mut start = 0;
    while start < text.len() {
        let mut same = 0;
        while same < mark.len() && start + same < text.len() && text[start + same] == mark[same] {
            same += 1;
        }
        if same == mark.len() {
            return start;
        }
        start += 1;
    }
    text.len()
}

/// Constants are in upper case, statements in lower case.
const fn is_name(name: &str, constant: &str) -> bool {
    name.eq_ignore_ascii_case(constant)
}

#[cfg(test)]
mod tests {
    use crate::{postgres, sqlite};

    const TEXT: &str = "-- About the table.\n-- name: a_get\n-- Why.\nSELECT 1\n\n-- name: a_put\nINSERT\n";

    fn names(all: &[&[&'static str]]) -> Vec<&'static str> {
        all.concat()
    }

    #[test]
    fn a_file_is_cut_at_its_marks() {
        assert_eq!(super::cut(TEXT, &["A_GET", "A_PUT"]), ["-- Why.\nSELECT 1", "INSERT"]);
    }

    #[test]
    #[should_panic(expected = "differ in name or order")]
    fn a_constant_without_its_statement_fails() {
        super::cut::<2>(TEXT, &["A_GET", "A_SET"]);
    }

    #[test]
    #[should_panic(expected = "no constant")]
    fn a_statement_without_a_constant_fails() {
        super::cut::<1>(TEXT, &["A_GET"]);
    }

    #[test]
    #[should_panic(expected = "no statement")]
    fn a_constant_after_the_last_statement_fails() {
        super::cut::<3>(TEXT, &["A_GET", "A_PUT", "A_SET"]);
    }

    #[test]
    fn the_dialects_have_their_common_statements_in_the_same_order() {
        let (one, other) = (names(sqlite::sql::ALL), names(postgres::sql::ALL));
        let common = |names: &[&'static str], others: &[&str]| -> Vec<&'static str> {
            names.iter().copied().filter(|name| others.contains(name)).collect()
        };
        assert_eq!(common(&one, &other), common(&other, &one));
        assert!(common(&one, &other).len() > 100, "most statements exist in both dialects");
    }
}
