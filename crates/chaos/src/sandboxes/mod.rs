//! Sandboxes of the control plane under faults.

pub mod checker;
pub mod history;
