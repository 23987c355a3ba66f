//! The system calls that a sandbox can make: a list of allowed ones, with conditions on a few. Everything else fails
//! with `EPERM`. Calls of another architecture kill the process.
//!
//! The agent is under the list, and so is every command. Commands have a second filter: `clone3` answers `ENOSYS`
//! there, because a filter cannot see its flags and libc then uses `clone`, whose flags are filtered. The agent starts
//! commands in their group by it.
//!
//! A filter costs the most when it is installed: the kernel compiles it, and runs it for every number to find calls that are
//! always allowed. So the list is compiled once in the zygote, and calls that are allowed with any arguments are found by
//! their ranges before anything else.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, sock_filter,
};

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;

/// What the kernel calls the architecture.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Offsets in what a filter sees of a call.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Flags of `clone` that make namespaces.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

static LIST: LazyLock<Result<BpfProgram, String>> = LazyLock::new(|| list().map_err(|error| error.to_string()));

/// The second filter. Only the list looks at the architecture.
const OF_COMMANDS: [sock_filter; 4] = [
    load(NUMBER),
    jump(libc::BPF_JEQ, libc::SYS_clone3 as u32, 0, 1),
    answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    answer(libc::SECCOMP_RET_ALLOW),
];

/// Compiles the list, so that processes that this one is copied to have it.
pub(crate) fn prepare() {
    LazyLock::force(&LIST);
}

/// Puts this process, and all that it starts, under the list.
pub(crate) fn confine_agent() -> io::Result<()> {
    let list = LIST.as_ref().map_err(|error| io::Error::other(error.as_str()))?;
    apply_filter(list).map_err(io::Error::other)
}

/// Applies the second filter. Async-signal-safe.
pub(crate) fn confine_command() -> io::Result<()> {
    // An error of the crate would allocate when it is converted: only its kind matters in a child.
    apply_filter(&OF_COMMANDS).map_err(|_| io::Error::from_raw_os_error(libc::EPERM))
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | code) as u16, jt, jf, k }
}

const fn load(k: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k }
}

const fn answer(k: u32) -> sock_filter {
    sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k }
}

/// Calls that are allowed with any arguments, then those that are judged by their arguments.
fn list() -> io::Result<BpfProgram> {
    let number = |call: i64| u32::try_from(call).map_err(io::Error::other);
    let mut program = vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, AUDIT_ARCH, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    for calls in runs(CALLS.iter().chain(LEGACY_CALLS).copied()) {
        program.push(jump(libc::BPF_JGE, number(*calls.start())?, 0, 2));
        program.push(jump(libc::BPF_JGT, number(*calls.end())?, 1, 0));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
    }
    program.extend(by_arguments()?);
    Ok(program)
}

/// Numbers that follow each other, as ranges.
fn runs(calls: impl Iterator<Item = i64>) -> Vec<RangeInclusive<i64>> {
    let mut calls: Vec<i64> = calls.collect();
    calls.sort_unstable();
    calls.dedup();
    calls.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some(*run.first()?..=*run.last()?)).collect()
}

fn by_arguments() -> io::Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    rules.insert(libc::SYS_clone, vec![rule(&[(0, SeccompCmpOp::MaskedEq(NEW_NAMESPACES), 0)])?]);
    // Other families, AF_VSOCK for one, are not confined by a network namespace.
    let family = |family: i32| rule(&[(0, SeccompCmpOp::Eq, family as u64)]);
    rules.insert(
        libc::SYS_socket,
        vec![
            family(libc::AF_UNIX)?,
            family(libc::AF_INET)?,
            family(libc::AF_INET6)?,
            rule(&[(0, SeccompCmpOp::Eq, libc::AF_NETLINK as u64), (2, SeccompCmpOp::Eq, libc::NETLINK_ROUTE as u64)])?,
        ],
    );
    rules.insert(libc::SYS_socketpair, vec![family(libc::AF_UNIX)?]);
    // Both put characters into the input of a terminal.
    rules.insert(
        libc::SYS_ioctl,
        vec![rule(&[(1, SeccompCmpOp::Ne, libc::TIOCSTI), (1, SeccompCmpOp::Ne, libc::TIOCLINUX)])?],
    );
    let persona = |value: u64| rule(&[(0, SeccompCmpOp::Eq, value)]);
    rules.insert(
        libc::SYS_personality,
        vec![persona(0)?, persona(libc::ADDR_NO_RANDOMIZE as u64)?, persona(0xffff_ffff)?],
    );
    let filter = SeccompFilter::new(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow, ARCH);
    filter.and_then(BpfProgram::try_from).map_err(io::Error::other)
}

fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> io::Result<SeccompRule> {
    // The kernel looks at the low half of these arguments only, and so does the filter.
    let conditions = conditions
        .iter()
        .map(|(argument, operator, value)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(io::Error::other)?;
    SeccompRule::new(conditions).map_err(io::Error::other)
}

/// Calls that are allowed with any arguments, on every architecture.
const CALLS: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_adjtimex,
    libc::SYS_bind,
    libc::SYS_brk,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_chdir,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_connect,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_getcpu,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getitimer,
    libc::SYS_getpeername,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrlimit,
    libc::SYS_get_robust_list,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_getxattr,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_ioprio_get,
    libc::SYS_ioprio_set,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_kill,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_listen,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lseek,
    libc::SYS_lsetxattr,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mq_getsetattr,
    libc::SYS_mq_notify,
    libc::SYS_mq_open,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_unlink,
    libc::SYS_mremap,
    libc::SYS_mseal,
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pipe2,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_prlimit64,
    libc::SYS_pselect6,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_remap_file_pages,
    libc::SYS_removexattr,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_yield,
    libc::SYS_seccomp,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_sendfile,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setitimer,
    libc::SYS_setpgid,
    libc::SYS_setpriority,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setrlimit,
    libc::SYS_set_robust_list,
    libc::SYS_setsid,
    libc::SYS_setsockopt,
    libc::SYS_set_tid_address,
    libc::SYS_setuid,
    libc::SYS_setxattr,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_shmget,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_sysinfo,
    libc::SYS_tee,
    libc::SYS_tgkill,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_times,
    libc::SYS_tkill,
    libc::SYS_truncate,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_vmsplice,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_clone3,
];

/// Calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const LEGACY_CALLS: &[i64] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_ctl_old,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_wait_old,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_futimesat,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_inotify_init,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_ustat,
    libc::SYS_vfork,
];

#[cfg(not(target_arch = "x86_64"))]
const LEGACY_CALLS: &[i64] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    /// What a filter answers to a call whose arguments are all zero.
    fn judge(program: &[sock_filter], number: u32, arch: u32) -> u32 {
        let (mut at, mut value) = (0, 0_u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let code = u32::from(code);
            let jump = |met: bool| usize::from(if met { jt } else { jf });
            match code & 7 {
                libc::BPF_LD => {
                    value = match k {
                        NUMBER => number,
                        ARCHITECTURE => arch,
                        _ => 0,
                    };
                }
                libc::BPF_ALU => value &= k,
                libc::BPF_RET => return k,
                libc::BPF_JMP => {
                    at += match code & 0xf0 {
                        libc::BPF_JA => k as usize,
                        libc::BPF_JEQ => jump(value == k),
                        libc::BPF_JGT => jump(value > k),
                        libc::BPF_JGE => jump(value >= k),
                        other => panic!("jump {other:#x}"),
                    };
                }
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn every_number_has_the_answer_of_the_list() {
        let program = list().unwrap();
        let by_arguments = [
            // With arguments that are zero, each of them is allowed but `socket` and `socketpair`.
            (libc::SYS_clone, libc::SECCOMP_RET_ALLOW),
            (libc::SYS_ioctl, libc::SECCOMP_RET_ALLOW),
            (libc::SYS_personality, libc::SECCOMP_RET_ALLOW),
            (libc::SYS_socket, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            (libc::SYS_socketpair, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        ];
        for number in 0..1_000_i64 {
            let listed = CALLS.contains(&number) || LEGACY_CALLS.contains(&number);
            let expected = by_arguments.iter().find(|(call, _)| *call == number).map_or_else(
                || if listed { libc::SECCOMP_RET_ALLOW } else { libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 },
                |(_, answer)| *answer,
            );
            assert_eq!(judge(&program, number as u32, AUDIT_ARCH), expected, "{number}");
            assert_eq!(judge(&program, number as u32, AUDIT_ARCH ^ 1), libc::SECCOMP_RET_KILL_PROCESS, "{number}");
            // The same calls in the x32 form.
            let x32 = number as u32 | 0x4000_0000;
            assert_eq!(judge(&program, x32, AUDIT_ARCH), libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, "{number}");
            let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
            let expected = if number == libc::SYS_clone3 { refused } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(judge(&OF_COMMANDS, number as u32, AUDIT_ARCH), expected, "{number}");
        }
    }
}
