//! Hostile callers: what they hold is bounded, and what is not theirs is of no use to them.

mod bodies;
mod connections;
mod holders;
mod memory;
mod odd;
mod pages;
mod streams;
mod web_pages;
