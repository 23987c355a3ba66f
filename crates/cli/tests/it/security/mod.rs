//! The real binary under attack and under change: secrets stay secret, keys and certificates change while it serves,
//! and what is set up wrongly does not start.

mod attack;
mod bootstrap;
mod canary;
mod certs;
mod kit;
mod leaks;
mod load;
mod logging;
mod memory;
mod mutants;
mod refusals;
mod reload;
mod secrets;
mod tls;
