//! HTTP to addresses that others chose: push targets, webhooks, key sets.
//!
//! Whoever can make a server send requests can aim them at what only the server reaches. So every address is judged
//! where it is connected to: after the name was resolved, with no second look-up in between. Redirects are not
//! followed, proxies of the environment are ignored, and little of an answer is read.

mod address;
mod client;
mod error;
mod resolve;
mod target;

pub use address::{Class, Policy, class};
pub use client::{Answer, ClientCert, Opened, Outbound, Request, Trust};
pub use error::{OutboundError, Refused};
pub use resolve::{Resolver, SystemResolver};
pub use target::Target;

pub use bytes::Bytes;
pub use ipnet::IpNet;
pub use reqwest::{Method, StatusCode, header};
