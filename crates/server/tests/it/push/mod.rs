//! Tasks that are pushed to a worker over HTTP.

mod answers;
mod by_hand;
mod circuits;
mod crashes;
mod guard;
mod kit;
mod many;
mod queues;
mod slots;
