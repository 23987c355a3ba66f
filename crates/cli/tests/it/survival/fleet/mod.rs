//! Sandboxes of the control plane, while control planes and workers are killed and restarted.

mod caps;
mod kit;
mod rolling;
mod spawns;
