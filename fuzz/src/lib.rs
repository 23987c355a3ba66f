//! What the fuzz targets check. Tests of `tenure-auth`, `tenure-bundle`, `tenure-config`, `tenure-contract`, `tenure-dag`, `tenure-data`, `tenure-query`
//! and `tenure-core` include the same
//! files and replay `corpus/`, so that what was found once stays found.

pub mod targets {
    pub mod api_key;
    pub mod buffer;
    pub mod bundle;
    pub mod config;
    pub mod dag;
    pub mod dispatch;
    pub mod forge;
    pub mod leak;
    pub mod objects;
    pub mod oidc;
    pub mod sql;
    pub mod task;
    #[path = "../../../crates/auth/tests/it/tokens/vectors.rs"]
    pub mod vectors;
    pub mod worker;
}
