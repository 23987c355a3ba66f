//! Replays what the fuzz targets were given and have found.

#[path = "../../../../fuzz/src/targets/buffer.rs"]
mod buffer;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_rows_holds() {
    replay::corpus("buffer_rows", buffer::rows);
}

#[test]
fn the_corpus_of_messages_holds() {
    replay::corpus("buffer_message", buffer::message);
}
