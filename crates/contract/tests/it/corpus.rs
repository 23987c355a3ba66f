//! Replays what the fuzz target was given and has found.

#[path = "../../../../fuzz/src/targets/dispatch.rs"]
mod dispatch;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_dispatch_bodies_holds() {
    replay::corpus("dispatch_body", dispatch::body);
}
