//! HTTP to addresses that others chose.
