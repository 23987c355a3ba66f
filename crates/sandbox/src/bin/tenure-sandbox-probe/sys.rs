#![allow(unsafe_code, reason = "the probe makes system calls that no library offers, with arguments made for it")]

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

use super::Refusal;

/// Makes a system call.
pub fn call(number: libc::c_long, args: [usize; 6]) -> Result<i64, i32> {
    // SAFETY: the arguments are numbers, or pointers to memory that outlives the call, as the call expects.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    if result < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(result) }
}

/// Makes a system call that must not be available. It counts as refused only if it was not carried out at all: an answer
/// that depends on the arguments shows that it is available.
pub fn forbidden(number: libc::c_long, args: [usize; 6]) -> Result<String, Refusal> {
    match call(number, args) {
        Ok(result) => Ok(format!("result {result}")),
        Err(errno @ (libc::EPERM | libc::ENOSYS | libc::EACCES)) => Err(Refusal::Errno(errno)),
        Err(errno) => Ok(format!("available: {}", errno_name(errno))),
    }
}

/// Runs code in a child and returns what it returns, or the signal that killed it.
pub fn in_child(run: impl FnOnce() -> String) -> Result<String, i32> {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: this process has one thread, so the child may do everything that this one may.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process");
    if child == 0 {
        drop(reader);
        let line = run();
        let _ = rustix::io::write(&writer, line.as_bytes());
        // SAFETY: ends the child without the parent's clean-up.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut line = String::new();
    let _ = std::fs::File::from(reader).read_to_string(&mut line);
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if libc::WIFSIGNALED(status) { Err(libc::WTERMSIG(status)) } else { Ok(line) }
}

/// A system call through the entry of 32-bit programs. `Err` is the errno.
#[cfg(target_arch = "x86_64")]
pub fn call_32(number: i32) -> Result<i32, i32> {
    let result: i32;
    // SAFETY: the call has no arguments that matter. `rbx` is kept, because the compiler uses it.
    unsafe {
        std::arch::asm!(
            "push rbx", "xor ebx, ebx", "int 0x80", "pop rbx",
            inlateout("eax") number => result,
            in("ecx") 0, in("edx") 0,
        );
    }
    if result < 0 { Err(-result) } else { Ok(result) }
}

/// A clone with flags; the child exits at once.
pub fn clone(flags: i32) -> Result<String, Refusal> {
    // SAFETY: without a stack and without shared memory this is a fork.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    match result {
        0 => {
            // SAFETY: ends the new process.
            unsafe { libc::_exit(0) }
        }
        pid if pid > 0 => {
            // SAFETY: waits for that child.
            unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
            Ok("a process in new namespaces".to_owned())
        }
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

pub fn socket(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Refusal> {
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor is new and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn errno_name(errno: i32) -> String {
    match errno {
        libc::EPERM => "EPERM".to_owned(),
        libc::ENOENT => "ENOENT".to_owned(),
        libc::ESRCH => "ESRCH".to_owned(),
        libc::EBADF => "EBADF".to_owned(),
        libc::EACCES => "EACCES".to_owned(),
        libc::EFAULT => "EFAULT".to_owned(),
        libc::EINVAL => "EINVAL".to_owned(),
        libc::EROFS => "EROFS".to_owned(),
        libc::ENOSYS => "ENOSYS".to_owned(),
        libc::ENETUNREACH => "ENETUNREACH".to_owned(),
        libc::ECONNREFUSED => "ECONNREFUSED".to_owned(),
        libc::EAFNOSUPPORT => "EAFNOSUPPORT".to_owned(),
        other => format!("errno {other}"),
    }
}
