//! The shape of the workspace, and the evidence that its documentation cites.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod arrows;
mod docs;
mod evidence;
mod mutants;
