//! The HTTP face of Tenure: worker contracts, user API, sandboxes, events, metrics.
//!
//! [`run`] serves a bound listener until it is told to stop, then drains: long polls end, accepted commands finish.

mod access;
mod api;
mod audit;
mod connection;
mod contracts;
mod dispatch;
mod error;
mod front;
mod http;
mod identity;
mod limits;
mod live;
mod memory;
mod objects;
pub mod openapi;
mod page;
mod per_address;
mod push;
mod query;
mod redact;
mod request;
mod run_plan;
mod sandboxes;
mod schedules;
mod stall;
mod state;
mod tenants;
mod transports;
mod validate;
mod watchers;
mod well_formed;

pub use access::{Access, KeyBy, RateLimit};
pub use dispatch::{CredentialBackend, CredentialBroker, DispatchConfig, DispatchSecrets, LambdaTarget};
pub use http::{Listeners, log_access, run};
pub use identity::oidc::{KeySource, OidcAccess};
pub use identity::task_keys::{SharedTaskKeys, Unverified};
pub use live::Live;
pub use push::{PushTargets, PushTest, PushTestReport, Verdict as PushVerdict};
pub use query::{Endpoint as QueryEndpoint, NO_PROCESS as NO_QUERY_PROCESS, QueryConfig, QueryPlace, QueryProcess};
pub use sandboxes::{Preview, SandboxConfig, SandboxOffer};
pub use state::ServerConfig;
pub use transports::Transports;
