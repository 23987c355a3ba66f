use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use tempfile::TempDir;

use super::*;

/// A root with `workspace` in it, and beside it a directory that must not be reached.
struct Place {
    folder: TempDir,
    root: Root,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        fs::create_dir_all(folder.path().join("root/workspace")).expect("a root");
        fs::create_dir(folder.path().join("outside")).expect("a directory");
        fs::write(folder.path().join("outside/secret"), "secret").expect("a file");
        fs::write(folder.path().join("outside/outside-only"), "").expect("a file");
        let root = Root::open(&folder.path().join("root")).expect("a root");
        Self { folder, root }
    }

    fn outside(&self) -> std::path::PathBuf {
        self.folder.path().join("outside")
    }

    fn inside(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("root").join(path)
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<()> {
        let mut file = self.root.create(path, 0o644)?;
        file.write_all(content).expect("room");
        file.commit()
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let (_, mut file) = self.root.read(path)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).expect("content");
        Ok(content)
    }

    fn untouched(&self) {
        let list = fs::read_dir(self.outside()).expect("a list");
        let mut names: Vec<_> = list.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["outside-only", "secret"]);
        assert_eq!(fs::read(self.outside().join("secret")).expect("content"), b"secret");
        let mode = fs::metadata(self.outside().join("secret")).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }
}

fn kind<T: fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("a refusal").kind()
}

#[test]
fn a_file_is_written_read_moved_changed_and_deleted() {
    let place = Place::new();
    place.write("a/b/c.txt", b"hello").expect("a write");
    assert_eq!(place.read("/workspace/a/b/c.txt").expect("content"), b"hello");
    place.write("a/b/c.txt", b"again").expect("a write");
    let info = place.root.stat("a/b/c.txt").expect("a file");
    assert_eq!((info.path.as_str(), info.size, info.mode, info.is_dir), ("/workspace/a/b/c.txt", 5, 0o644, false));
    place.root.chmod("a/b/c.txt", 0o755).expect("a mode");
    place.root.rename("a/b/c.txt", "/d").expect("a move");
    assert_eq!(place.root.stat("/d").expect("a file").mode, 0o755);
    assert_eq!(kind(place.read("a/b/c.txt")), ErrorKind::NotFound);
    let listed: Vec<_> = place.root.list("/").expect("a list").into_iter().map(|f| (f.path, f.is_dir)).collect();
    assert_eq!(listed, [("/d".to_owned(), false), ("/workspace".to_owned(), true)]);
    place.root.delete("/d", false).expect("a deletion");
    assert_eq!(kind(place.root.delete("/d", false)), ErrorKind::NotFound);
    assert_eq!(kind(place.root.delete("a", false)), ErrorKind::Invalid);
    place.root.delete("a", true).expect("a deletion");
    assert!(place.root.list("/workspace").expect("a list").is_empty());
}

#[test]
fn a_write_that_is_not_completed_leaves_nothing() {
    let place = Place::new();
    place.write("kept", b"before").expect("a write");
    let mut file = place.root.create("kept", 0o600).expect("a file");
    file.write_all(b"half").expect("room");
    assert_eq!(place.read("kept").expect("content"), b"before");
    drop(file);
    let names: Vec<_> = place.root.list("/workspace").expect("a list").into_iter().map(|file| file.path).collect();
    assert_eq!(names, ["/workspace/kept"]);
}

#[test]
fn planted_links_lead_nowhere_outside() {
    let place = Place::new();
    let outside = place.outside();
    symlink(&outside, place.inside("workspace/absolute")).expect("a link");
    symlink("../../outside", place.inside("workspace/relative")).expect("a link");
    symlink(outside.join("secret"), place.inside("workspace/file")).expect("a link");
    symlink("/proc/self/root", place.inside("workspace/magic")).expect("a link");
    for path in ["absolute/secret", "relative/secret", "file", "magic/etc/passwd"] {
        assert_eq!(kind(place.read(path)), ErrorKind::NotFound, "{path}");
        assert!(place.root.chmod(path, 0o777).is_err(), "{path}");
        assert!(place.root.stat(path).is_err(), "{path}");
    }
    for path in ["absolute", "relative"] {
        assert!(place.root.list(path).is_err());
        assert!(place.write(&format!("{path}/new"), b"x").is_err());
        assert!(place.root.delete(&format!("{path}/secret"), true).is_err());
        assert!(place.root.glob(&format!("{path}/*")).expect("a list").is_empty());
        place.root.delete(path, true).expect("the link itself goes");
    }
    place.write("file", b"mine").expect("a link is replaced");
    assert_eq!(place.read("file").expect("content"), b"mine");
    place.untouched();
}

#[test]
fn links_work_inside_the_root_as_if_it_were_the_whole_system() {
    let place = Place::new();
    place.write("/data/file", b"inside").expect("a write");
    symlink("/data", place.inside("workspace/link")).expect("a link");
    symlink("../../../../data", place.inside("workspace/up")).expect("a link");
    assert_eq!(place.read("link/file").expect("content"), b"inside");
    assert_eq!(place.read("up/file").expect("content"), b"inside");
    place.write("link/new/file", b"x").expect("a write");
    assert!(place.inside("data/new/file").exists());
    symlink("loop", place.inside("workspace/loop")).expect("a link");
    assert_eq!(kind(place.read("loop")), ErrorKind::Invalid);
}

/// Exchanges a directory and a link to the outside while every call is made on it.
#[test]
fn links_that_are_swapped_during_a_call_lead_nowhere_outside() {
    let place = Place::new();
    let (real, link) = (place.inside("workspace/x"), place.inside("workspace/y"));
    fs::create_dir(&real).expect("a directory");
    fs::write(real.join("secret"), "public").expect("a file");
    symlink(place.outside(), &link).expect("a link");
    let stop = AtomicBool::new(false);
    let mut seen = [0_u32; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE).expect("an exchange");
            }
        });
        let _stop = StopOnDrop(&stop);
        let end = Instant::now() + Duration::from_secs(10);
        // Until both sides of the race were met often.
        while seen.iter().any(|count| *count < 60) && Instant::now() < end {
            match place.read("x/secret") {
                Ok(content) => {
                    assert_eq!(content, b"public");
                    seen[0] += 1;
                }
                Err(_) => seen[1] += 1,
            }
            let _ = place.write("x/new", b"x");
            let _ = place.write("x/deep/new", b"x");
            let _ = place.root.chmod("x/secret", 0o600);
            let _ = place.root.rename("x/new", "x/other");
            let _ = place.root.delete("x/deep", true);
            let _ = place.root.delete("x/other", true);
            let mut paths = place.root.glob("/workspace/*/*").expect("a list");
            paths.extend(place.root.list("x").unwrap_or_default().into_iter().map(|file| file.path));
            assert!(paths.iter().all(|path| !path.ends_with("outside-only")), "{paths:?}");
        }
    });
    assert!(seen.iter().all(|count| *count > 0), "the race was not run: {seen:?}");
    place.untouched();
}

/// A failed assertion ends the swapper too.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn fifos_sockets_and_directories_are_not_read_and_do_not_block() {
    let place = Place::new();
    let fifo = place.inside("workspace/fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    let _socket = std::os::unix::net::UnixListener::bind(place.inside("workspace/socket")).expect("a socket");
    for path in ["fifo", "socket", "/workspace", "/"] {
        assert_eq!(kind(place.read(path)), ErrorKind::Invalid, "{path}");
        assert_eq!(kind(place.write(path, b"x")), ErrorKind::Invalid, "{path}");
    }
    assert_eq!(kind(place.root.chmod("fifo", 0o600)), ErrorKind::Invalid);
    place.root.delete("fifo", false).expect("a deletion");
}

#[test]
fn devices_are_refused() {
    let place = Place::new();
    let device = place.inside("workspace/null");
    let made = rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3));
    // Only root makes devices. For others a sandbox has none either.
    if made.is_ok() {
        assert_eq!(kind(place.read("null")), ErrorKind::Invalid);
        assert_eq!(kind(place.write("null", b"x")), ErrorKind::Invalid);
        assert_eq!(kind(place.root.chmod("null", 0o600)), ErrorKind::Invalid);
    }
}

#[test]
fn wrong_paths_are_invalid() {
    let place = Place::new();
    place.write("file", b"x").expect("a write");
    for path in ["../../etc/passwd", "../../../etc/shadow", "/../x", "a\0b", "", "file/x"] {
        assert_eq!(kind(place.read(path)), ErrorKind::Invalid, "{path:?}");
        assert_eq!(kind(place.write(path, b"x")), ErrorKind::Invalid, "{path:?}");
        assert_eq!(kind(place.root.delete(path, true)), ErrorKind::Invalid, "{path:?}");
    }
    assert_eq!(kind(place.root.chmod("file", 0o10000)), ErrorKind::Invalid);
    assert_eq!(kind(place.root.delete("/", true)), ErrorKind::Invalid);
    assert_eq!(kind(place.root.rename("/", "/x")), ErrorKind::Invalid);
    assert_eq!(kind(place.write(&"n".repeat(300), b"x")), ErrorKind::Invalid);
}

#[test]
fn names_with_newlines_are_kept_and_others_than_utf_8_are_shown_with_replacements() {
    let place = Place::new();
    place.write("a\nb", b"x").expect("a write");
    fs::create_dir(place.inside("workspace/d")).expect("a directory");
    let odd = std::ffi::OsStr::from_bytes(b"odd-\xff");
    fs::write(place.inside("workspace/d").join(odd), "x").expect("a file");
    assert_eq!(place.read("a\nb").expect("content"), b"x");
    assert_eq!(place.root.list("d").expect("a list")[0].path, "/workspace/d/odd-\u{fffd}");
    assert_eq!(place.root.glob("**/odd*").expect("a list"), ["/workspace/d/odd-\u{fffd}"]);
    assert_eq!(place.root.glob("a*").expect("a list"), ["/workspace/a\nb"]);
    place.root.delete("d", true).expect("a deletion");
    assert_eq!(kind(place.root.stat("d")), ErrorKind::NotFound);
}

#[test]
fn patterns_match_below_the_root() {
    let place = Place::new();
    for path in ["a.rs", "b.txt", "src/c.rs", "src/deep/d.rs", "src/deep/[x]"] {
        place.write(path, b"x").expect("a write");
    }
    let glob = |pattern: &str| place.root.glob(pattern).expect("a list");
    assert_eq!(glob("*.rs"), ["/workspace/a.rs"]);
    assert_eq!(glob("**/*.rs"), ["/workspace/a.rs", "/workspace/src/c.rs", "/workspace/src/deep/d.rs"]);
    assert_eq!(glob("/**/d.rs"), ["/workspace/src/deep/d.rs"]);
    assert_eq!(
        glob("src/**"),
        ["/workspace/src/c.rs", "/workspace/src/deep", "/workspace/src/deep/[x]", "/workspace/src/deep/d.rs"]
    );
    assert_eq!(glob("src/*/[c-e].rs"), ["/workspace/src/deep/d.rs"]);
    assert_eq!(glob("src/deep/\\[x\\]"), ["/workspace/src/deep/[x]"]);
    assert_eq!(glob("src/c.rs"), ["/workspace/src/c.rs"]);
    assert!(glob("nothing/*").is_empty());
    assert!(glob("nothing").is_empty());
    assert_eq!(kind(place.root.glob("[a")), ErrorKind::Invalid);
    assert_eq!(kind(place.root.glob("../../*")), ErrorKind::Invalid);
}

#[test]
fn a_pattern_that_matches_too_much_is_refused() {
    let place = Place::new();
    for index in 0..10_001 {
        fs::write(place.inside(&format!("workspace/{index}")), "").expect("a file");
    }
    assert_eq!(kind(place.root.glob("*")), ErrorKind::ResourceLimit);
    assert_eq!(place.root.glob("*1").expect("a list").len(), 1000);
}

/// Deeper than a path can name and than descriptors can be open.
#[test]
fn a_very_deep_tree_is_removed() {
    let place = Place::new();
    let mut directory = place.root.directory(&SandboxPath::parse("/workspace").expect("a path")).expect("a directory");
    for _ in 0..3000 {
        rustix::fs::mkdirat(&directory, "dddddddd", Mode::RWXU).expect("a directory");
        directory = rustix::fs::openat(&directory, "dddddddd", rustix::fs::OFlags::PATH, Mode::empty()).expect("it");
    }
    drop(directory);
    place.root.delete("dddddddd", true).expect("a deletion");
    assert!(place.root.list("/workspace").expect("a list").is_empty());
}

#[test]
fn directories_that_their_owner_closed_are_removed() {
    let place = Place::new();
    place.write("closed/inner/file", b"x").expect("a write");
    for path in ["workspace/closed/inner", "workspace/closed"] {
        fs::set_permissions(place.inside(path), fs::Permissions::from_mode(0o000)).expect("a mode");
    }
    place.root.delete("/workspace", true).expect("a deletion");
    assert!(!Path::exists(&place.inside("workspace")));
}

#[test]
fn a_full_disk_is_a_limit_and_a_wrong_right_is_invalid() {
    assert_eq!(failed("write", &"/x", Errno::NOSPC).kind(), ErrorKind::ResourceLimit);
    let error = failed("write", &"/x", Errno::ACCESS);
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, "cannot write /x: Permission denied"));
}
