//! Group commit, timers, reaper and wake-ups around the store; usable as a library.
