//! The client against real workers, and against servers that are none.

mod kit;
mod methods;
