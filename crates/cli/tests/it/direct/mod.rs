//! Workers that receive wake-ups themselves, from a real Redis and from a server that speaks as SQS does.
mod binary;
mod control_plane;
mod kit;
mod sdk;
