pub mod history;
pub mod ledger;
pub mod plan;
pub mod proxy;
pub mod rng;
