//! Replays what the fuzz target was given and has found.

#[path = "../../../../fuzz/src/targets/config.rs"]
mod config;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_configuration_files_holds() {
    replay::corpus("config_yaml", config::yaml);
}
