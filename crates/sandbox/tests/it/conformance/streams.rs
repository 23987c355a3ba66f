use std::time::Duration;

use tenure_sandbox::{Command, Event, OutputStream};

use super::{Bench, cases};
use crate::kit::{PATIENCE, read, read_until, sh, text};

cases!(
    output_arrives_before_the_command_ends,
    ten_thousand_tiny_writes_arrive_in_order,
    no_byte_is_lost_when_the_command_ends,
    binary_output_arrives_intact,
    a_slow_reader_blocks_the_command_in_bounded_memory,
    exactly_one_event_ends_a_stream,
    both_streams_are_kept_apart,
    a_long_line_is_streamed,
    the_log_has_the_last_lines,
);

async fn output_arrives_before_the_command_ends(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let line = "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second";
    let mut execution = provider.exec(&id, Command::shell(line, &[])).await.expect("a command");
    read_until(&mut execution, "first\n").await;
    crate::kit::write(provider, &id, "go", b"").await.expect("a write");
    let output = execution.output(100).await.expect("an exit");
    assert_eq!(output.stdout, b"second\n");
}

async fn ten_thousand_tiny_writes_arrive_in_order(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let line = "i=0; while [ $i -lt 10000 ]; do echo $i; i=$((i+1)); done";
    let expected: String = (0..10_000).map(|number| format!("{number}\n")).collect();
    assert!(text(provider, &id, line).await == expected, "the output differs");
}

async fn no_byte_is_lost_when_the_command_ends(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    for length in [1, 100, 4096, 65536, 65537, 200_000] {
        for _ in 0..8 {
            let line = format!("head -c {length} /dev/zero; printf end >&2");
            let output = sh(provider, &id, &line).await;
            assert_eq!((output.stdout.len(), output.stderr.as_slice()), (length, b"end".as_slice()));
        }
    }
    // Also from a terminal, which passes bytes on in its own time.
    if provider.capabilities().terminal {
        for _ in 0..20 {
            let mut command = Command::shell("i=0; while [ $i -lt 200 ]; do echo line-$i; i=$((i+1)); done", &[]);
            command.terminal = Some(tenure_sandbox::Terminal { rows: 24, columns: 80 });
            let output = provider.exec(&id, command).await.expect("a command").output(1 << 20).await.expect("an exit");
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            assert!(text.ends_with("line-199\r\n"), "{:?}", &text[text.len().saturating_sub(50)..]);
        }
    }
}

async fn binary_output_arrives_intact(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let output = sh(provider, &id, "head -c 1000000 /dev/urandom | tee copy").await;
    assert_eq!(output.stdout.len(), 1_000_000);
    assert!(output.stdout == read(provider, &id, "copy").await.expect("content"), "the output differs");
}

/// 256 MiB, most of which would stay in memory if the reader did not slow the command down.
async fn a_slow_reader_blocks_the_command_in_bounded_memory(bench: &mut Bench) {
    // A length of its own by which this command is found: the same case runs for other providers at the same time.
    let length = (256 << 20) + std::process::id() as usize;
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let line = format!("head -c {length} /dev/zero; touch done");
    let mut execution = provider.exec(&id, Command::shell(&line, &[])).await.expect("a command");
    let mut seen = 0;
    while seen < 1 << 20 {
        match execution.next().await {
            Some(Event::Output(chunk)) => seen += chunk.bytes.len(),
            other => panic!("{other:?}"),
        }
    }
    let before = resident_bytes();
    tenure_testkit::wait_until_blocked(&length.to_string(), PATIENCE).await;
    assert!(provider.stat_file(&id, "done").await.is_err(), "the command was not slowed down");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 128 << 20, "{grown} bytes more for a reader that waits");
    let output = loop {
        match execution.next().await {
            Some(Event::Output(chunk)) => seen += chunk.bytes.len(),
            Some(Event::Exited(exit)) => break exit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((seen, output.code), (length, 0));
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("numbers");
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

async fn exactly_one_event_ends_a_stream(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    for (line, timeout) in [("echo x", None), ("exit 3", None), ("sleep 100", Some(Duration::from_millis(50)))] {
        let mut command = Command::shell(line, &[]);
        command.timeout = timeout;
        let mut execution = provider.exec(&id, command).await.expect("a command");
        let mut ends = 0;
        while let Some(event) = execution.next().await {
            assert_eq!(ends, 0, "{line}: {event:?} after the end");
            ends += usize::from(!matches!(event, Event::Output(_)));
        }
        assert_eq!(ends, 1, "{line}");
    }
}

async fn both_streams_are_kept_apart(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let line = "i=0; while [ $i -lt 500 ]; do echo out; echo err >&2; i=$((i+1)); done";
    let mut execution = provider.exec(&id, Command::shell(line, &[])).await.expect("a command");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(event) = execution.next().await {
        if let Event::Output(chunk) = event {
            match chunk.stream {
                OutputStream::Stdout => out.extend_from_slice(&chunk.bytes),
                OutputStream::Stderr => err.extend_from_slice(&chunk.bytes),
            }
        }
    }
    assert!(out == "out\n".repeat(500).as_bytes() && err == "err\n".repeat(500).as_bytes());
}

/// One line of 100 MB, without an end.
async fn a_long_line_is_streamed(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let line = "head -c 100000000 /dev/zero | tr '\\0' x";
    let mut execution = provider.exec(&id, Command::shell(line, &[])).await.expect("a command");
    let mut length = 0;
    while let Some(event) = execution.next().await {
        if let Event::Output(chunk) = event {
            assert!(chunk.bytes.len() <= tenure_sandbox::MAX_CHUNK_BYTES);
            length += chunk.bytes.len();
        }
    }
    assert_eq!(length, 100_000_000);
    let logged: usize = provider.console_log(&id, 0).await.expect("a log").iter().map(String::len).sum();
    assert!((1..2 << 20).contains(&logged), "{logged} bytes are kept of it");
}

async fn the_log_has_the_last_lines(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    assert!(provider.console_log(&id, 0).await.expect("a log").is_empty());
    sh(provider, &id, "i=0; while [ $i -lt 50 ]; do echo line-$i; i=$((i+1)); done").await;
    assert_eq!(provider.console_log(&id, 2).await.expect("a log"), ["line-48", "line-49"]);
    assert_eq!(provider.console_log(&id, 0).await.expect("a log").len(), 50);
    sh(provider, &id, "echo error >&2").await;
    assert_eq!(provider.console_log(&id, 1).await.expect("a log"), ["error"]);
    assert_eq!(provider.console_log(&id, 1000).await.expect("a log").len(), 51);
    // Endless output does not fill memory.
    sh(provider, &id, "yes | head -c 5000000").await;
    let kept: usize = provider.console_log(&id, 0).await.expect("a log").iter().map(|line| line.len() + 1).sum();
    assert!(kept < 2 << 20, "{kept} bytes are kept");
}
