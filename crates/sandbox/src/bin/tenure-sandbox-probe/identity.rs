//! What the process may do, and whether it can become more.

use std::fs;

use super::sys::{call, forbidden};
use super::{Attempt, Refusal};

pub const ATTEMPTS: &[(&str, Attempt)] = &[
    ("capabilities-effective", || zero("CapEff")),
    ("capabilities-permitted", || zero("CapPrm")),
    ("capabilities-bounding", || zero("CapBnd")),
    ("capabilities-ambient", || zero("CapAmb")),
    ("new-privileges", || equal("NoNewPrivs", "1")),
    ("system-call-filter", || equal("Seccomp", "2")),
    ("supplementary-groups", || equal("Groups", "")),
    ("become-another-user", || became(call(libc::SYS_setuid, [54_321, 0, 0, 0, 0, 0]))),
    ("become-another-group", || became(call(libc::SYS_setgid, [54_321, 0, 0, 0, 0, 0]))),
    ("set-groups", || became(call(libc::SYS_setgroups, [0, 0, 0, 0, 0, 0]))),
    ("raise-open-files", || raise(libc::RLIMIT_NOFILE)),
    ("raise-priority", || forbidden(libc::SYS_setpriority, [0, 0, (-20_isize) as usize, 0, 0, 0])),
    ("real-time", || {
        let priority = 1_i32;
        forbidden(libc::SYS_sched_setscheduler, [0, libc::SCHED_FIFO as usize, (&raw const priority) as usize, 0, 0, 0])
    }),
    ("core-dumps", || {
        let line = limits_line("Max core file size")?;
        if line.contains(" 0 ") { Err(Refusal::Absent("core dumps".to_owned())) } else { Ok(line) }
    }),
];

fn status(field: &str) -> Result<String, Refusal> {
    let text = fs::read_to_string("/proc/self/status")?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.unwrap_or_default().trim().to_owned())
}

/// Succeeds if any capability is there.
fn zero(field: &str) -> Result<String, Refusal> {
    let value = status(field)?;
    if value.chars().all(|digit| digit == '0') { Err(Refusal::Absent(field.to_owned())) } else { Ok(value) }
}

/// Succeeds if the guard is not there.
fn equal(field: &str, guarded: &str) -> Result<String, Refusal> {
    let value = status(field)?;
    if value == guarded {
        Err(Refusal::Absent(format!("{field} is {value:?}")))
    } else {
        Ok(format!("{field} is {value:?}"))
    }
}

fn became(result: Result<i64, i32>) -> Result<String, Refusal> {
    result.map(|_| "changed".to_owned()).map_err(Refusal::Errno)
}

fn raise(resource: libc::__rlimit_resource_t) -> Result<String, Refusal> {
    let limit = [u64::MAX >> 1, u64::MAX >> 1];
    let args = [0, resource as usize, limit.as_ptr() as usize, 0, 0, 0];
    call(libc::SYS_prlimit64, args).map(|_| "raised".to_owned()).map_err(Refusal::Errno)
}

fn limits_line(name: &str) -> Result<String, Refusal> {
    let text = fs::read_to_string("/proc/self/limits")?;
    Ok(text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned())
}
