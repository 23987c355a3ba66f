//! Namespaces, and system calls that no command in a sandbox needs.

use super::sys::{call, clone, forbidden};
use super::{Attempt, Refusal};

/// Makes an attempt from a system call with fixed arguments. A text is passed as a pointer.
macro_rules! syscall {
    ($number:ident $(, $arg:expr)* $(,)?) => {
        || {
            let mut args = [0_usize; 6];
            let given: &[usize] = &[$($arg as usize),*];
            args[..given.len()].copy_from_slice(given);
            forbidden(libc::$number, args)
        }
    };
}

const NONE: *const u8 = c"none".as_ptr().cast();
const TMP: *const u8 = c"/tmp".as_ptr().cast();
const ROOT: *const u8 = c"/".as_ptr().cast();
const TMPFS: *const u8 = c"tmpfs".as_ptr().cast();
/// What would change something for other processes is tried on this path, so that a probe outside of a sandbox does no
/// harm. An answer about the path shows that the call is available.
const ABSENT: *const u8 = c"/no-such-directory".as_ptr().cast();
const NAME: *const u8 = c"probe".as_ptr().cast();
/// Room for what a call may read or write.
static ZEROS: [u64; 64] = [0; 64];

pub const ATTEMPTS: &[(&str, Attempt)] = &[
    ("mount-tmpfs", syscall!(SYS_mount, NONE, ABSENT, TMPFS, 0, 0)),
    ("mount-bind", syscall!(SYS_mount, ROOT, ABSENT, 0, libc::MS_BIND, 0)),
    ("mount-writable-again", syscall!(SYS_mount, NONE, ABSENT, 0, libc::MS_REMOUNT | libc::MS_BIND, 0)),
    ("mount-private", syscall!(SYS_mount, NONE, ABSENT, 0, libc::MS_REC | libc::MS_PRIVATE, 0)),
    ("umount", syscall!(SYS_umount2, ABSENT, libc::MNT_DETACH)),
    ("fsopen", syscall!(SYS_fsopen, TMPFS, 0)),
    ("fspick", syscall!(SYS_fspick, libc::AT_FDCWD, ROOT, 0)),
    ("fsmount", syscall!(SYS_fsmount, -1_isize, 0, 0)),
    // OPEN_TREE_CLONE
    ("open-tree", syscall!(SYS_open_tree, libc::AT_FDCWD, ROOT, 1)),
    ("move-mount", syscall!(SYS_move_mount, -1_isize, c"".as_ptr(), libc::AT_FDCWD, ABSENT, 4)),
    ("mount-setattr", syscall!(SYS_mount_setattr, libc::AT_FDCWD, ABSENT, 0, ZEROS.as_ptr(), 32)),
    ("pivot-root", syscall!(SYS_pivot_root, ABSENT, ABSENT)),
    ("chroot", syscall!(SYS_chroot, TMP)),
    ("unshare-user", syscall!(SYS_unshare, libc::CLONE_NEWUSER)),
    ("unshare-mount", syscall!(SYS_unshare, libc::CLONE_NEWNS)),
    ("unshare-net", syscall!(SYS_unshare, libc::CLONE_NEWNET)),
    ("unshare-cgroup", syscall!(SYS_unshare, libc::CLONE_NEWCGROUP)),
    ("clone-user", || clone(libc::CLONE_NEWUSER)),
    ("clone-user-mount-pid", || clone(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID)),
    ("clone-net", || clone(libc::CLONE_NEWNET)),
    ("clone3-user", clone3_user),
    ("setns-own-mount", || setns("/proc/self/ns/mnt")),
    ("setns-first-user", || setns("/proc/1/ns/user")),
    ("ptrace-first", syscall!(SYS_ptrace, libc::PTRACE_SEIZE, 1, 0, 0)),
    ("ptrace-attach-first", syscall!(SYS_ptrace, libc::PTRACE_ATTACH, 1, 0, 0)),
    ("read-memory-of-first", syscall!(SYS_process_vm_readv, 1, ZEROS.as_ptr(), 0, ZEROS.as_ptr(), 0, 0)),
    ("write-memory-of-first", syscall!(SYS_process_vm_writev, 1, ZEROS.as_ptr(), 0, ZEROS.as_ptr(), 0, 0)),
    ("kcmp-first", syscall!(SYS_kcmp, 1, 1, 0, 0, 0)),
    ("take-descriptor-of-first", take_descriptor),
    // BPF_MAP_CREATE, BPF_PROG_LOAD
    ("bpf-map", syscall!(SYS_bpf, 0, ZEROS.as_ptr(), 64)),
    ("bpf-program", syscall!(SYS_bpf, 5, ZEROS.as_ptr(), 64)),
    ("perf-event", syscall!(SYS_perf_event_open, ZEROS.as_ptr(), 0, -1_isize, -1_isize, 0)),
    ("keyctl", syscall!(SYS_keyctl, 1, 0, 0, 0, 0)),
    ("add-key", syscall!(SYS_add_key, 0, NAME, NAME, 5, -4_isize)),
    ("request-key", syscall!(SYS_request_key, 0, NAME, 0, 0)),
    ("io-uring", syscall!(SYS_io_uring_setup, 1, ZEROS.as_ptr())),
    ("userfaultfd", syscall!(SYS_userfaultfd, 0)),
    ("userfaultfd-user-only", syscall!(SYS_userfaultfd, 1)),
    ("open-by-handle", syscall!(SYS_open_by_handle_at, libc::AT_FDCWD, ZEROS.as_ptr(), 0)),
    ("init-module", syscall!(SYS_init_module, ZEROS.as_ptr(), 8, c"".as_ptr())),
    ("finit-module", syscall!(SYS_finit_module, -1_isize, c"".as_ptr(), 0)),
    ("delete-module", syscall!(SYS_delete_module, c"no-such-module".as_ptr(), libc::O_NONBLOCK)),
    ("kexec", syscall!(SYS_kexec_load, 0, 0, ZEROS.as_ptr(), 1 << 20)),
    // A wrong magic number: nothing happens where it is allowed.
    ("reboot", syscall!(SYS_reboot, 0, 0, 0, 0)),
    ("swapon", syscall!(SYS_swapon, c"/no-such-file".as_ptr(), 0)),
    ("swapoff", syscall!(SYS_swapoff, c"/no-such-file".as_ptr())),
    ("set-clock", syscall!(SYS_clock_settime, 99, ZEROS.as_ptr())),
    ("adjust-clock", syscall!(SYS_clock_adjtime, 99, ZEROS.as_ptr())),
    ("acct", syscall!(SYS_acct, c"/no-such-file".as_ptr())),
    ("quotactl", syscall!(SYS_quotactl, 0xff_ffff, c"/no-such-file".as_ptr(), 0, 0)),
    // SYSLOG_ACTION_READ_ALL
    ("kernel-log", syscall!(SYS_syslog, 3, ZEROS.as_ptr(), 8)),
    ("fanotify", syscall!(SYS_fanotify_init, 0, 0)),
    ("set-host-name", syscall!(SYS_sethostname, ZEROS.as_ptr(), 500)),
    ("lookup-dcookie", syscall!(SYS_lookup_dcookie, 0, ZEROS.as_ptr(), 8)),
    #[cfg(target_arch = "x86_64")]
    ("iopl", syscall!(SYS_iopl, 3)),
    #[cfg(target_arch = "x86_64")]
    ("ioperm", syscall!(SYS_ioperm, 0, 8, 1)),
    #[cfg(target_arch = "x86_64")]
    ("x32-entry", || match call(0x4000_0000 | libc::SYS_getpid, [0; 6]) {
        Ok(pid) => Ok(format!("pid {pid}")),
        Err(errno) => Err(Refusal::Errno(errno)),
    }),
    #[cfg(target_arch = "x86_64")]
    ("int-0x80-entry", || {
        const GETPID: i32 = 20;
        super::sys::call_32(GETPID).map(|pid| format!("pid {pid}")).map_err(Refusal::Errno)
    }),
    ("terminal-input", || inject(libc::TIOCSTI as usize)),
    // TIOCLINUX
    ("terminal-paste", || inject(0x541C)),
];

fn clone3_user() -> Result<String, Refusal> {
    let mut args = [0_u64; 11];
    args[0] = libc::CLONE_NEWUSER as u64;
    args[4] = libc::SIGCHLD as u64;
    match call(libc::SYS_clone3, [args.as_ptr() as usize, size_of_val(&args), 0, 0, 0, 0]) {
        // This is the new process, or its parent.
        Ok(0) => std::process::exit(0),
        Ok(pid) => Ok(format!("pid {pid}")),
        Err(errno) => Err(Refusal::Errno(errno)),
    }
}

fn setns(path: &str) -> Result<String, Refusal> {
    use std::os::fd::AsRawFd;
    let namespace = std::fs::File::open(path)?;
    forbidden(libc::SYS_setns, [namespace.as_raw_fd() as usize, 0, 0, 0, 0, 0])
}

fn take_descriptor() -> Result<String, Refusal> {
    let process = call(libc::SYS_pidfd_open, [1, 0, 0, 0, 0, 0]).map_err(Refusal::Errno)?;
    forbidden(libc::SYS_pidfd_getfd, [process as usize, 0, 0, 0, 0, 0])
}

/// Puts input into a terminal, as a program that ends could do for the shell that follows it.
fn inject(request: usize) -> Result<String, Refusal> {
    let byte = b'x';
    forbidden(libc::SYS_ioctl, [0, request, (&raw const byte) as usize, 0, 0, 0])
}
