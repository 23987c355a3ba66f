//! What the fuzz targets check. The tests `corpus` of `tenure-auth`, `tenure-config` and `tenure-dag` include the same
//! files and replay `corpus/`, so that what was found once stays found.

pub mod targets {
    pub mod api_key;
    pub mod config;
    pub mod dag;
    pub mod forge;
    pub mod leak;
    pub mod oidc;
    pub mod task;
    #[path = "../../../crates/auth/tests/it/tokens/vectors.rs"]
    pub mod vectors;
    pub mod worker;
}
