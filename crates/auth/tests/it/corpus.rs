//! Replays what the fuzz targets were given and have found.

#[path = "../../../../fuzz/src/targets/api_key.rs"]
mod api_key;
#[path = "../../../../fuzz/src/targets/forge.rs"]
mod forge;
#[path = "../../../../fuzz/src/targets/leak.rs"]
mod leak;
#[path = "../../../../fuzz/src/targets/oidc.rs"]
mod oidc;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay;
#[path = "../../../../fuzz/src/targets/task.rs"]
mod task;
#[path = "../../../../fuzz/src/targets/worker.rs"]
mod worker;

use crate::tokens::vectors;

#[test]
fn the_corpus_of_hmac_worker_tokens_holds() {
    replay::corpus("worker_token_hmac", worker::hmac);
}

#[test]
fn the_corpus_of_ed25519_worker_tokens_holds() {
    replay::corpus("worker_token_ed25519", worker::ed25519);
}

#[test]
fn the_corpus_of_task_tokens_holds() {
    replay::corpus("task_jwt", task::jwt);
}

#[test]
fn the_corpus_of_user_tokens_holds() {
    replay::corpus("oidc_jwt", oidc::jwt);
}

#[test]
fn the_corpus_of_api_keys_holds() {
    replay::corpus("api_key", api_key::digest);
}
