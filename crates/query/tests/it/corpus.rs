//! Replays what the fuzz target of the gate was given and has found, and mutations of what must be refused.

use proptest::prelude::*;

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;
#[path = "../../../../fuzz/src/targets/sql.rs"]
pub mod sql;

#[test]
fn the_corpus_of_the_gate_holds() {
    replay::corpus("sql_gate", sql::pass);
}

/// Pieces that mean something in SQL.
const PIECES: &[&str] = &[
    "SELECT ",
    "FROM ",
    "WITH x AS (",
    "RECURSIVE ",
    ") ",
    "(",
    "'",
    "\"",
    "$$",
    "--",
    "/*",
    "*/",
    ";",
    ".",
    ",",
    "*",
    " UNION ",
    " JOIN ",
    " ON true ",
    "raw_logs",
    "dataset",
    "other",
    "information_schema.tables",
    "x.csv",
    "read_text('x')",
    "abs(",
    " IN (SELECT 1) ",
    "INSERT INTO ",
    " INTO x ",
    " FOR UPDATE",
    "EXPLAIN ",
    "SET x=1",
    "LATERAL ",
    "UNNEST(",
    "ARRAY[",
    "::text",
    " OVER (",
    " FILTER (WHERE ",
    "CASE WHEN ",
    " END ",
    "VALUES (1)",
    "TABLE ",
    "E'\\",
    "U&\"",
    "\0",
    "é",
    "\u{202e}",
];

const SEEDS: &[&str] = &[
    "WITH x AS (SELECT n FROM raw_logs WHERE a = 'b') SELECT count(*), max(n) FROM x JOIN dataset USING (n) GROUP BY 1",
    "SELECT * FROM (SELECT * FROM dataset) d WHERE n IN (SELECT n FROM raw_logs) ORDER BY 1 LIMIT 5;",
    "SELECT sum(n) FILTER (WHERE n > 0) OVER (PARTITION BY a ORDER BY b) FROM raw_logs UNION ALL SELECT 1",
    "SELECT * FROM \"x.csv\"",
    "WITH x AS (DELETE FROM raw_logs RETURNING n) SELECT * FROM x",
];

proptest! {
    #[test]
    fn no_edit_leads_past_the_gate(
        seed in prop::sample::select(SEEDS),
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..20_usize, prop::option::of(prop::sample::select(PIECES))), 1..5)
    ) {
        let mut text: Vec<char> = seed.chars().collect();
        for (at, removed, piece) in edits {
            let start = at.index(text.len());
            let end = text.len().min(start + removed);
            text.splice(start..end, piece.unwrap_or_default().chars());
            prop_assume!(!text.is_empty());
        }
        sql::pass(text.iter().collect::<String>().as_bytes());
    }

    #[test]
    fn no_text_leads_past_the_gate(pieces in prop::collection::vec(prop::sample::select(PIECES), 1..12)) {
        sql::pass(pieces.concat().as_bytes());
    }
}
