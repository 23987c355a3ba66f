//! The user API. Its routes are in [`crate::api`].

use crate::api;

use super::Dialect;

pub const DIALECT: Dialect =
    Dialect { name: None, owns: |_| true, router: api::router, refuse: |fault, id| fault.for_user(id) };
