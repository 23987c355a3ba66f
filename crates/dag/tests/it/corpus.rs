//! Replays what the fuzz targets were given and have found.

use proptest::prelude::*;

use super::support::EXAMPLE;

#[path = "../../../../fuzz/src/targets/dag.rs"]
mod dag;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_dags_holds() {
    replay::corpus("dag_yaml", dag::yaml);
}

#[test]
fn the_corpus_of_conditions_holds() {
    replay::corpus("dag_where", dag::condition);
}

/// Pieces that mean something in YAML or in a DAG.
const PIECES: [&str; 24] = [
    "&a ",
    "*a",
    "!!int ",
    "- ",
    "? ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "\n",
    "\t",
    "'",
    "\"",
    "|",
    "---\n",
    "#",
    "<<: ",
    "~",
    "99999999999999999999",
    "é",
    "where: \"a = 1\"",
    "from: { job: decode, output: 0 }",
    "name: decode",
];

proptest! {
    /// The example with a few edits: near enough to a DAG that every rule is reached.
    #[test]
    fn no_edit_of_a_dag_makes_the_parser_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, prop::option::of(prop::sample::select(&PIECES[..]))), 1..5)
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, removed, piece) in edits {
            let start = at.index(text.len());
            let end = text.len().min(start + removed);
            text.splice(start..end, piece.unwrap_or_default().chars());
            prop_assume!(!text.is_empty());
        }
        dag::yaml(text.iter().collect::<String>().as_bytes());
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[ -~\n\té&*!{}\\[\\]:?|>#-]{0,200}") {
        dag::yaml(text.as_bytes());
        dag::condition(text.as_bytes());
    }
}
