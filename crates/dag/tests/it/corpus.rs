//! Replays what the fuzz targets were given and have found.

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
