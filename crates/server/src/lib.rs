//! The HTTP face of Tenure: worker contracts, user API, metrics.
