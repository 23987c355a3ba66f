//! The user API over HTTP: submitting, listing, watching and redriving tasks.

mod events;
mod health;
mod lists;
mod metrics;
mod queues;
mod redrive;
mod schedules;
mod submits;
mod task_logs;
mod tenants;
mod webhooks;
mod why;
mod workers;
