//! The HTTP face of Tenure: worker contracts, user API, events, metrics.
//!
//! [`run`] serves a bound listener until it is told to stop, then drains: long polls end, accepted commands finish.

mod api;
mod contracts;
mod error;
mod http;
mod limits;
pub mod openapi;
mod render;
mod request;
mod state;
mod validate;

pub use http::run;
pub use state::ServerConfig;
