//! Statements of the corpus that are named for their verdict, spelled in other ways: the verdict stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use proptest::prelude::*;
use tenure_query::gate;

use crate::corpus::sql;

static ACCEPTED: LazyLock<Vec<String>> = LazyLock::new(|| named("accepted-"));
static REFUSED: LazyLock<Vec<String>> = LazyLock::new(|| named("refused-"));
/// Those that are refused for more than how they stand alone.
static REFUSED_ANYWHERE: LazyLock<Vec<String>> = LazyLock::new(|| {
    let alone = |sql: &&String| !matches!(sql.as_str(), "VALUES (1)" | "SELECT 1;;");
    REFUSED.iter().filter(alone).cloned().collect()
});

fn named(verdict: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/sql_gate");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(verdict));
    paths.sort();
    assert!(paths.len() >= 20, "{verdict}: {}", paths.len());
    paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

fn reads(sql: &str) -> Result<BTreeSet<String>, gate::Refused> {
    let attached = ["dataset", "raw_logs", "call"].map(String::from).into();
    sql::pass(sql.as_bytes());
    gate::pass(sql, &attached).map(|passed| passed.reads)
}

#[test]
fn statements_have_the_verdict_that_they_are_named_for() {
    for sql in &*ACCEPTED {
        assert!(reads(sql).is_ok(), "{sql}: {}", reads(sql).unwrap_err());
    }
    for sql in &*REFUSED {
        assert!(reads(sql).is_err(), "{sql}");
    }
}

/// What may stand for white space.
const FILLERS: &[&str] =
    &[" ", "\n", "\t", "\r\n", "  ", " /**/ ", " /* ; */ ", " -- x\n", " /* /* in */ it */ ", "\n--;\n\n"];

/// The same tokens with other white space, comments and cases. Texts and quoted names stay.
fn respelled(sql: &str, choices: &[u8]) -> String {
    let dialect = PostgreSqlDialect {};
    let Ok(tokens) = Tokenizer::new(&dialect, sql).with_unescape(false).tokenize() else { return sql.to_owned() };
    let mut choices = choices.iter().cycle();
    let mut choice = || usize::from(*choices.next().unwrap());
    let mut text = String::new();
    for token in tokens {
        match token {
            Token::Whitespace(_) => text.push_str(FILLERS[choice() % FILLERS.len()]),
            Token::Word(word) if word.quote_style.is_none() => {
                let flip = |c: char| if choice() % 2 == 0 { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
                text.extend(word.value.chars().map(flip));
            }
            other => text.push_str(&other.to_string()),
        }
    }
    text
}

/// Ways to put a query into another one. It must be the whole statement, without its semicolon.
const AROUND: &[(&str, &str)] = &[
    ("SELECT * FROM (", ") w"),
    ("WITH w AS (", ") SELECT * FROM w"),
    ("SELECT 1 WHERE 1 IN (", ")"),
    ("SELECT 1 WHERE EXISTS (", ")"),
    ("SELECT (", ")"),
    ("(", ")"),
    ("SELECT 1 UNION ALL (", ")"),
    ("SELECT * FROM dataset w LEFT JOIN (", ") v ON true"),
    ("SELECT sum(n) FILTER (WHERE n IN (", ")) FROM dataset"),
    ("SELECT CASE WHEN EXISTS (", ") THEN 1 END"),
    ("SELECT count(*) OVER (ORDER BY (", ")) FROM dataset"),
    ("WITH dataset AS (", ") SELECT * FROM dataset"),
    ("SELECT * FROM (WITH v AS (SELECT 1) SELECT * FROM v) w, LATERAL (", ") v"),
];

fn nested(sql: &str, around: &[usize]) -> String {
    let mut text = sql.trim_end().trim_end_matches(';').to_owned();
    // A comment to the end of the line would swallow what follows.
    text.push('\n');
    for way in around {
        let (before, after) = AROUND[way % AROUND.len()];
        text = format!("{before}{text}{after}");
    }
    text
}

const ATTACHED: &[&str] = &["dataset", "raw_logs", "call"];

/// They look like others, are invisible, or are spaces elsewhere.
const STRANGE: &[&str] = &[
    "\u{a0}", "\u{200b}", "\u{202e}", "\u{2028}", "\u{ff1b}", "\u{2019}", "\u{feff}", "\u{130}", "\u{212a}", "\u{0}",
    "\u{1a}", "\u{37e}",
];

proptest! {
    #[test]
    fn another_spelling_has_the_same_verdict(at in any::<prop::sample::Index>(), choices in prop::collection::vec(any::<u8>(), 1..64)) {
        let accepted = at.get::<String>(&ACCEPTED);
        let text = respelled(accepted, &choices);
        prop_assert_eq!(reads(&text), reads(accepted), "{}", text);
        let text = respelled(at.get::<String>(&REFUSED), &choices);
        prop_assert!(reads(&text).is_err(), "{}", text);
    }

    #[test]
    fn what_is_refused_is_refused_inside_of_another_query(
        at in any::<prop::sample::Index>(), around in prop::collection::vec(any::<usize>(), 1..5), choices in prop::collection::vec(any::<u8>(), 1..64)
    ) {
        let text = nested(at.get::<String>(&REFUSED_ANYWHERE), &around);
        prop_assert!(reads(&text).is_err(), "{}", text);
        let text = respelled(&text, &choices);
        prop_assert!(reads(&text).is_err(), "{}", text);
    }

    #[test]
    fn what_is_accepted_is_accepted_inside_of_another_query(
        at in any::<prop::sample::Index>(), around in prop::collection::vec(any::<usize>(), 1..4)
    ) {
        let accepted = at.get::<String>(&ACCEPTED);
        let text = nested(accepted, &around);
        let inside = reads(&text);
        prop_assert!(inside.is_ok(), "{}: {}", text, inside.unwrap_err());
        // Nothing that the statement reads is left out.
        prop_assert!(inside.unwrap().is_superset(&reads(accepted).unwrap()), "{}", text);
    }

    /// A name of a CTE is that CTE in its query, and an attached relation outside of it.
    #[test]
    fn a_name_means_what_is_in_scope(name in prop::sample::select(ATTACHED), choices in prop::collection::vec(any::<u8>(), 1..64)) {
        for (sql, is_read) in [
            (format!("WITH {name} AS (SELECT 1 AS n) SELECT n FROM {name}"), false),
            (format!("WITH {name} AS (SELECT n FROM {name}) SELECT n FROM {name}"), true),
            (format!("SELECT * FROM (WITH {name} AS (SELECT 1 AS n) SELECT n FROM {name}) a, {name}"), true),
            (format!("SELECT (WITH {name} AS (SELECT 1 AS n) SELECT max(n) FROM {name})"), false),
            (format!("WITH {name} AS (SELECT 1 AS n), w AS (SELECT n FROM {name}) SELECT n FROM w"), false),
            (format!("WITH w AS (SELECT n FROM {name}), {name} AS (SELECT 1 AS n) SELECT n FROM w"), true),
        ] {
            let text = respelled(&sql, &choices);
            prop_assert_eq!(reads(&text).map(|reads| reads.contains(name)), Ok(is_read), "{}", text);
        }
    }

    #[test]
    fn no_strange_character_leads_past_the_gate(
        at in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(),
        strange in prop::sample::select(STRANGE)
    ) {
        let refused = at.get::<String>(&REFUSED);
        let places: Vec<usize> = refused.char_indices().map(|(at, _)| at).collect();
        let mut text = refused.clone();
        text.insert_str(*place.get(&places), strange);
        // It may become something else that is allowed, such as a longer name of a column; never a relation or function.
        sql::pass(text.as_bytes());
    }
}
