use std::time::{Duration, Instant};

use tenure_sandbox::{Command, ErrorKind};

use super::{Bench, cases, cases_of_docker};
use crate::kit::{read, read_until, run, sh, text, write};

cases!(
    files_are_written_read_listed_moved_changed_and_deleted,
    paths_that_lead_outside_are_refused,
    planted_links_stay_inside,
    racing_links_stay_inside,
    fifos_and_devices_are_refused_and_do_not_block,
    names_with_newlines_and_without_utf_8_are_handled,
    files_of_commands_and_of_calls_are_the_same,
    a_large_file_is_streamed,
    a_sparse_file_does_not_fill_memory,
);

cases_of_docker!(
    files_are_written_read_listed_moved_changed_and_deleted,
    paths_that_lead_outside_are_refused,
    planted_links_stay_inside,
    racing_links_stay_inside,
    fifos_and_devices_are_refused_and_do_not_block,
    names_with_newlines_and_without_utf_8_are_handled,
    files_of_commands_and_of_calls_are_the_same,
    a_large_file_is_streamed,
    a_sparse_file_does_not_fill_memory,
);

async fn files_are_written_read_listed_moved_changed_and_deleted(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    write(provider, &id, "/workspace/a/b.txt", b"hello").await.expect("a write");
    assert_eq!(read(provider, &id, "a/b.txt").await.expect("content"), b"hello");
    let info = provider.stat_file(&id, "a/b.txt").await.expect("a file");
    assert_eq!((info.path.as_str(), info.size, info.mode, info.is_dir), ("/workspace/a/b.txt", 5, 0o644, false));
    assert!(info.modified.elapsed().expect("a time in the past") < Duration::from_secs(3600));
    let listed = provider.list_files(&id, "/workspace").await.expect("a list");
    assert_eq!(
        listed.iter().map(|file| (file.path.as_str(), file.is_dir)).collect::<Vec<_>>(),
        [("/workspace/a", true)]
    );
    assert_eq!(provider.glob_files(&id, "/workspace/**/*.txt").await.expect("a list"), ["/workspace/a/b.txt"]);
    assert!(provider.glob_files(&id, "*.rs").await.expect("a list").is_empty());
    provider.chmod_file(&id, "a/b.txt", 0o755).await.expect("a mode");
    provider.move_file(&id, "a/b.txt", "/tmp/c").await.expect("a move, to another file system if it is one");
    assert_eq!(provider.stat_file(&id, "/tmp/c").await.expect("a file").mode, 0o755);
    assert_eq!(provider.stat_file(&id, "a/b.txt").await.expect_err("gone").kind(), ErrorKind::NotFound);
    assert_eq!(provider.delete_file(&id, "/workspace", false).await.expect_err("not empty").kind(), ErrorKind::Invalid);
    provider.delete_file(&id, "a", true).await.expect("a deletion");
    provider.delete_file(&id, "/tmp/c", false).await.expect("a deletion");
    assert_eq!(provider.delete_file(&id, "/tmp/c", false).await.expect_err("gone").kind(), ErrorKind::NotFound);
    assert!(provider.list_files(&id, "/workspace").await.expect("a list").is_empty());
    assert_eq!(provider.list_files(&id, "missing").await.expect_err("absent").kind(), ErrorKind::NotFound);
}

async fn paths_that_lead_outside_are_refused(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let invalid =
        |result: tenure_sandbox::Result<()>| assert_eq!(result.expect_err("a refusal").kind(), ErrorKind::Invalid);
    for path in ["../../etc/passwd", "../../../etc/shadow", "/../etc/passwd", "a/../../../x", "a\0b", ""] {
        invalid(write(provider, &id, path, b"x").await);
        invalid(read(provider, &id, path).await.map(drop));
        invalid(provider.delete_file(&id, path, true).await);
        invalid(provider.chmod_file(&id, path, 0o777).await);
        invalid(provider.move_file(&id, path, "x").await);
        invalid(provider.move_file(&id, "x", path).await);
        invalid(provider.list_files(&id, path).await.map(drop));
        invalid(provider.glob_files(&id, path).await.map(drop));
    }
    invalid(provider.chmod_file(&id, "/workspace", 0o10_000).await);
    invalid(provider.delete_file(&id, "/", true).await);
}

/// A file of the host that no sandbox has.
fn secret(bench: &Bench) -> std::path::PathBuf {
    let outside = bench.folder.path().join("outside");
    std::fs::create_dir_all(&outside).expect("a folder");
    std::fs::write(outside.join("secret"), "secret").expect("a file");
    outside
}

fn untouched(outside: &std::path::Path) {
    let names: Vec<_> = std::fs::read_dir(outside).expect("a list").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(names, ["secret"]);
    assert_eq!(std::fs::read(outside.join("secret")).expect("content"), b"secret");
}

async fn planted_links_stay_inside(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let outside = secret(bench);
    let link = format!(
        "ln -s {0} dir && ln -s {0}/secret file && ln -s ../../../../../../../../..{0} up && ln -s /proc/self/root magic",
        outside.display()
    );
    assert_eq!(text(provider, &id, &link).await, "");
    let magic = format!("magic{}/secret", outside.display());
    for path in ["dir/secret", "file", "up/secret", magic.as_str()] {
        assert!(read(provider, &id, path).await.is_err(), "{path}");
        assert!(provider.stat_file(&id, path).await.is_err(), "{path}");
        assert!(provider.chmod_file(&id, path, 0o777).await.is_err(), "{path}");
        assert!(provider.move_file(&id, path, "moved").await.is_err() || path == "file", "{path}");
    }
    for path in ["dir", "up"] {
        assert!(provider.list_files(&id, path).await.is_err(), "{path}");
        assert!(provider.delete_file(&id, &format!("{path}/secret"), true).await.is_err(), "{path}");
        let _ = write(provider, &id, &format!("{path}/new"), b"x").await;
    }
    write(provider, &id, "file", b"mine").await.expect("a link is replaced");
    assert_eq!(read(provider, &id, "file").await.expect("content"), b"mine");
    provider.delete_file(&id, "dir", true).await.expect("the link itself is removed");
    untouched(&outside);
}

async fn racing_links_stay_inside(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let outside = secret(bench);
    let line = format!(
        "mkdir real && echo public > real/secret && ln -s {} link && echo up
         while :; do mv -T real x; mv -T x real; mv -T link x; mv -T x link; done",
        outside.display()
    );
    let mut swapper = provider.exec(&id, Command::shell(&line, &[])).await.expect("a command");
    read_until(&mut swapper, "up").await;
    let end = Instant::now() + Duration::from_secs(20);
    let (mut met, mut missed) = (0, 0);
    while (met < 20 || missed < 20) && Instant::now() < end {
        match read(provider, &id, "x/secret").await {
            Ok(content) => {
                assert_eq!(content, b"public\n");
                met += 1;
            }
            Err(_) => missed += 1,
        }
        let _ = write(provider, &id, "x/new", b"x").await;
        let _ = provider.chmod_file(&id, "x/secret", 0o600).await;
        let _ = provider.delete_file(&id, "x/new", true).await;
    }
    drop(swapper);
    untouched(&outside);
}

async fn fifos_and_devices_are_refused_and_do_not_block(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    assert_eq!(text(provider, &id, "mkfifo fifo").await, "");
    let call = async {
        assert_eq!(read(provider, &id, "fifo").await.expect_err("a refusal").kind(), ErrorKind::Invalid);
        assert_eq!(write(provider, &id, "fifo", b"x").await.expect_err("a refusal").kind(), ErrorKind::Invalid);
        // Where there is a /dev in the sandbox, it is not read either.
        for device in ["/dev/zero", "/dev/null", "/dev/tty"] {
            assert!(read(provider, &id, device).await.is_err(), "{device}");
        }
        provider.delete_file(&id, "fifo", false).await.expect("a deletion");
    };
    tokio::time::timeout(crate::kit::PATIENCE, call).await.expect("no call blocks");
}

async fn names_with_newlines_and_without_utf_8_are_handled(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    write(provider, &id, "a\nb", b"x").await.expect("a write");
    assert_eq!(text(provider, &id, "mkdir d; touch \"d/$(printf 'odd-\\377')\"; cat a*").await, "x");
    let listed = provider.list_files(&id, "d").await.expect("a list");
    assert_eq!(listed[0].path, "/workspace/d/odd-\u{fffd}");
    assert_eq!(provider.glob_files(&id, "a*").await.expect("a list"), ["/workspace/a\nb"]);
    provider.delete_file(&id, "d", true).await.expect("a deletion");
    assert_eq!(provider.stat_file(&id, "d").await.expect_err("gone").kind(), ErrorKind::NotFound);
}

async fn files_of_commands_and_of_calls_are_the_same(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    write(provider, &id, "script", b"#!/bin/sh\necho ran \"$@\" > out\n").await.expect("a write");
    provider.chmod_file(&id, "script", 0o755).await.expect("a mode");
    let output = run(provider, &id, Command::argv(["./script", "well"])).await.expect("an exit");
    assert_eq!(output.exit().code, 0, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(read(provider, &id, "out").await.expect("content"), b"ran well\n");
    assert_eq!(text(provider, &id, "mkdir made && chmod 700 made && cp out made/x && rm out").await, "");
    assert_eq!(read(provider, &id, "made/x").await.expect("content"), b"ran well\n");
    provider.delete_file(&id, "made", true).await.expect("a deletion of what a command made");
    assert_eq!(sh(provider, &id, "test -e made").await.exit().code, 1);
    write(provider, &id, "made/again", b"x").await.expect("a write");
    assert_eq!(text(provider, &id, "rm -r made && ls").await, "script\n", "a command removes what a call made");
}

async fn a_large_file_is_streamed(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let content: Vec<u8> =
        (0..64 << 20_u32).map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    write(provider, &id, "large", &content).await.expect("a write");
    assert_eq!(text(provider, &id, "wc -c < large").await.trim(), content.len().to_string());
    assert!(read(provider, &id, "large").await.expect("content") == content, "the content differs");
}

async fn a_sparse_file_does_not_fill_memory(bench: &mut Bench) {
    use tokio::io::AsyncReadExt;
    let (provider, id) = (bench.provider(), bench.spawn().await);
    assert_eq!(text(provider, &id, "truncate -s 1099511627776 huge").await, "");
    let mut file = provider.read_file(&id, "huge").await.expect("a file");
    assert_eq!(file.info.size, 1 << 40);
    let mut start = vec![1; 1 << 20];
    file.content.read_exact(&mut start).await.expect("the beginning");
    assert!(start.iter().all(|byte| *byte == 0));
    drop(file);
    provider.delete_file(&id, "huge", false).await.expect("a deletion");
}
