use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use super::clone::{CLONE_INTO_CGROUP, CloneArgs};
use super::spawn::before_exec_error;

/// Where programs are looked for if the environment does not say it.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
const SHELL: &CStr = c"/bin/sh";
/// Of the new process until it executes its program.
const STACK_BYTES: usize = 128 << 10;
/// The status of a process that could not execute its program.
const NOT_EXECUTED: c_int = 127;

/// A program to start, in the form that the kernel wants it in: nothing is allocated between the start and the exec.
#[derive(Debug)]
pub(crate) struct Program {
    /// Files that are tried one after the other.
    files: Vec<CString>,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    /// The program `args[0]`, looked for in the `PATH` of `env` unless it is a path. `args` is not empty.
    pub(crate) fn new<'a>(
        args: &[String],
        env: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> io::Result<Self> {
        let text = |bytes: String| CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
        let mut path = DEFAULT_PATH.to_owned();
        let mut variables = Vec::new();
        for (name, value) in env {
            if name == "PATH" {
                path.clone_from(value);
            }
            variables.push(text(format!("{name}={value}"))?);
        }
        let name = args.first().map_or("", String::as_str);
        let files: Vec<String> = match name {
            "" => Vec::new(),
            name if name.contains('/') => vec![name.to_owned()],
            // An empty part is the working directory.
            name => {
                path.split(':').map(|dir| if dir.is_empty() { name.into() } else { format!("{dir}/{name}") }).collect()
            }
        };
        Ok(Self {
            files: files.into_iter().map(text).collect::<io::Result<_>>()?,
            args: args.iter().cloned().map(text).collect::<io::Result<_>>()?,
            env: variables,
        })
    }
}

/// What the new process reads. It lives in memory that both processes see.
struct Start<'a> {
    files: &'a [CString],
    args: Vec<*const c_char>,
    /// For a file that is not a program: the shell, the file, the other arguments.
    script_args: Vec<*const c_char>,
    env: Vec<*const c_char>,
    streams: [RawFd; 3],
    step: &'a Step<'a>,
    /// Whether the process was started in its group.
    in_group: bool,
    error: c_int,
}

/// What a new process does before its program. It is told whether it was started in its group.
pub(crate) type Step<'a> = dyn Fn(bool) -> io::Result<()> + 'a;

/// Starts a program and returns its process id once it is executed, without a copy of this process's memory: that takes
/// longer than everything else, and each page that this process writes afterwards is copied.
///
/// The new process has `streams` as stdin, stdout and stderr, and runs `step` before the program. The step must be
/// async-signal-safe: it may make system calls on what it captured, and neither allocate nor lock. It runs with every signal
/// blocked, on a small stack. This thread waits meanwhile; others do not.
///
/// Until the exec, a process that could trace the new one could write to the memory of this one. A process that starts programs for
/// others must therefore not be dumpable, as the agents of sandboxes are not: the memory is what counts, whichever process it is
/// reached through.
///
/// If a `group` of the unified cgroup hierarchy is given, the process starts in it where the kernel can do that: a process
/// that enters a group later waits until all processors have noticed, which takes milliseconds.
pub(crate) fn spawn_program(
    program: &Program,
    streams: [BorrowedFd<'_>; 3],
    group: Option<BorrowedFd<'_>>,
    step: &Step<'_>,
) -> io::Result<i32> {
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let args = pointers(&program.args);
    let mut script_args = vec![SHELL.as_ptr(), ptr::null()];
    script_args.extend_from_slice(args.get(1..).unwrap_or(&[ptr::null()]));
    // Numbers above those of the streams, so that none is replaced before it is used.
    let mut moved: Vec<OwnedFd> = Vec::new();
    let mut numbers = streams.map(|stream| stream.as_raw_fd());
    for (number, stream) in numbers.iter_mut().zip(streams).filter(|(number, _)| **number < 3) {
        let copy = rustix::io::fcntl_dupfd_cloexec(stream, 3)?;
        *number = copy.as_raw_fd();
        moved.push(copy);
    }
    let mut start = Start {
        files: &program.files,
        args,
        script_args,
        env: pointers(&program.env),
        streams: numbers,
        step,
        in_group: group.is_some(),
        // A process that is killed before it executes has been started, and its status says what happened.
        error: 0,
    };
    let mut stack = Box::<[u8]>::new_uninit_slice(STACK_BYTES);
    // SAFETY: the child runs `child` on `stack`, whose upper end is aligned to 16 bytes, and with CLONE_VFORK this thread waits
    // until the child has executed a program or ended: `start` and `stack` outlive its use of them, and nothing else touches
    // them. The child makes system calls only, as `step` promises, so that it changes nothing in the shared memory but `start`,
    // its stack and this thread's errno. Its files, signals, credentials and limits are its own. All signals are blocked until
    // the child has put back their defaults, so that no handler of this process runs in it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let end = stack.as_mut_ptr().add(STACK_BYTES);
        let end = end.sub(end.addr() % 16).cast::<c_void>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        let mut started = Err(io::Error::from_raw_os_error(libc::ENOSYS));
        if let Some(group) = group {
            let low = stack.as_mut_ptr();
            let mut args = CloneArgs {
                flags: flags as u64 | CLONE_INTO_CGROUP,
                exit_signal: libc::SIGCHLD as u64,
                stack: low.addr() as u64,
                stack_size: (end.addr() - low.addr()) as u64,
                cgroup: group.as_raw_fd() as u64,
                ..CloneArgs::default()
            };
            started = clone_into_group(&raw mut args, (&raw mut start).cast());
        }
        if started.is_err() {
            start.in_group = false;
            let pid = libc::clone(child, end, flags | libc::SIGCHLD, (&raw mut start).cast());
            started = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        let pid = started?;
        drop(moved);
        match ptr::read_volatile(&raw const start.error) {
            0 => Ok(pid),
            error => {
                while libc::waitpid(pid, ptr::null_mut(), 0) < 0 && *libc::__errno_location() == libc::EINTR {}
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }
}

/// Calls `clone3`, for which libc has no function. The new process calls [`child`] with `start`, and ends when that returns.
///
/// # Safety
/// `args` describes a stack of this process whose upper end is aligned to 16 bytes, and which nobody uses until the new process
/// has executed a program or ended; `start` is what [`child`] needs. The flags make this thread wait until then.
unsafe fn clone_into_group(args: *mut CloneArgs, start: *mut c_void) -> io::Result<c_int> {
    let result: isize;
    let run: extern "C" fn(*mut c_void) -> c_int = child;
    // SAFETY: in this process the kernel changes only the registers that are named. The new process begins after the call with
    // zero as its result, on a stack of its own, and never reaches the end of the block: it uses no memory of this frame.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") args,
            in("rsi") size_of::<CloneArgs>(),
            in("r12") run,
            in("r13") start,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "mov x8, {exit}",
            "svc 0",
            "brk 1",
            "2:",
            exit = const libc::SYS_exit_group,
            inlateout("x0") args => result,
            in("x1") size_of::<CloneArgs>(),
            in("x8") libc::SYS_clone3,
            in("x20") run,
            in("x21") start,
        );
    }
    match c_int::try_from(result).map_err(io::Error::other)? {
        pid if pid > 0 => Ok(pid),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Runs in the new process, which ends if this returns.
extern "C" fn child(start: *mut c_void) -> c_int {
    // SAFETY: `spawn_program` passes its own `Start`, which nobody else uses until this process has executed or ended.
    let start = unsafe { &mut *start.cast::<Start<'_>>() };
    let error = match become_ready(start) {
        Ok(()) => execute(start),
        Err(error) => before_exec_error(&error),
    };
    // SAFETY: a plain write to a field of a valid reference. It is volatile because this process ends right after it.
    unsafe { ptr::write_volatile(&raw mut start.error, error) };
    NOT_EXECUTED
}

fn become_ready(start: &Start<'_>) -> io::Result<()> {
    for (number, stream) in (0..).zip(start.streams) {
        // SAFETY: no pointer is passed.
        if unsafe { libc::dup2(stream, number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    (start.step)(start.in_group)
}

/// Executes the first file that is a program, as `execvp` does. Returns why there is none.
fn execute(start: &mut Start<'_>) -> c_int {
    let (mut refused, mut last) = (None, libc::ENOENT);
    for file in start.files {
        // SAFETY: the lists end with null, and their texts end with NUL and live in `Program`.
        let mut error = unsafe {
            libc::execve(file.as_ptr(), start.args.as_ptr(), start.env.as_ptr());
            *libc::__errno_location()
        };
        if error == libc::ENOEXEC {
            if let Some(script) = start.script_args.get_mut(1) {
                *script = file.as_ptr();
            }
            // SAFETY: as above.
            error = unsafe {
                libc::execve(SHELL.as_ptr(), start.script_args.as_ptr(), start.env.as_ptr());
                *libc::__errno_location()
            };
        }
        match error {
            libc::EACCES => refused = Some(error),
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => last = error,
            error => return error,
        }
    }
    refused.unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;
    use std::os::fd::AsFd;

    use super::*;
    use crate::sys::{before_exec, take_status};

    fn run(args: &[&str], path: &str, step: &Step<'_>) -> io::Result<String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let env = BTreeMap::from([("PATH".to_owned(), path.to_owned()), ("A".to_owned(), "b c".to_owned())]);
        let null = std::fs::File::open("/dev/null").unwrap();
        let (mut ours, theirs) = io::pipe().unwrap();
        let streams = [null.as_fd(), theirs.as_fd(), null.as_fd()];
        let pid = spawn_program(&Program::new(&args, &env).unwrap(), streams, None, step)?;
        drop(theirs);
        let mut text = String::new();
        ours.read_to_string(&mut text).unwrap();
        while take_status(pid).is_none() {
            std::thread::yield_now();
        }
        Ok(text)
    }

    #[test]
    fn a_program_is_found_by_its_path_or_its_name_and_gets_its_variables() {
        let fine = |_| Ok(());
        assert_eq!(run(&["/bin/sh", "-c", "echo $A $0", "x"], "", &fine).unwrap(), "b c x\n");
        assert_eq!(run(&["sh", "-c", "echo $A"], "/nowhere:/bin", &fine).unwrap(), "b c\n");
        assert_eq!(run(&["echo", "hi"], "/usr/bin:/bin", &fine).unwrap(), "hi\n");
    }

    #[test]
    fn a_file_without_a_header_is_a_script_of_the_shell() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "echo script $1 $A\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("/nowhere:{}", folder.path().display());
        assert_eq!(run(&["script", "one"], &path, &|_| Ok(())).unwrap(), "script one b c\n");
    }

    #[test]
    fn what_cannot_be_started_says_why_and_leaves_no_process() {
        let fine = |_| Ok(());
        let number = |args: &[&str], path: &str, step: &Step<'_>| run(args, path, step).unwrap_err();
        assert_eq!(number(&["nothing-here"], "/bin:/usr/bin", &fine).raw_os_error(), Some(libc::ENOENT));
        assert_eq!(number(&[""], "/bin", &fine).raw_os_error(), Some(libc::ENOENT));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(number(&[&file.path().to_string_lossy()], "", &fine).raw_os_error(), Some(libc::EACCES));
        assert_eq!(number(&["/bin/sh/x"], "", &fine).raw_os_error(), Some(libc::ENOTDIR));
        let refused = number(&["sh"], "/bin", &|_| Err(io::Error::from_raw_os_error(libc::EPERM)));
        assert_eq!(before_exec(&refused).and_then(|error| error.raw_os_error()), Some(libc::EPERM));
    }

    #[test]
    fn a_group_that_cannot_be_used_is_left_to_the_step() {
        let args = ["true".to_owned()];
        let env = BTreeMap::from([("PATH".to_owned(), "/bin:/usr/bin".to_owned())]);
        // Not a group.
        let null = std::fs::File::open("/dev/null").unwrap();
        let step = |in_group: bool| if in_group { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(()) };
        let streams = [null.as_fd(), null.as_fd(), null.as_fd()];
        let pid = spawn_program(&Program::new(&args, &env).unwrap(), streams, Some(null.as_fd()), &step).unwrap();
        while take_status(pid).is_none() {
            std::thread::yield_now();
        }
    }
}
