//! Real handshakes on loopback: who gets in, who is refused and when, and what a swap of certificates does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod binding;
mod client_auth;
mod files;
mod server_auth;
mod stand;
mod swap;
