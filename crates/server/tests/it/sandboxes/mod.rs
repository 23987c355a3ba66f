//! Sandboxes over HTTP, on real workers with the provider `process`.

mod kit;
mod slice;
