use std::time::Duration;

use tenure_sandbox::{Command, ErrorKind, Signal, Terminal};

use super::{Bench, cases, cases_of_docker};
use crate::kit::{read_until, run, sh, text, write};

cases!(
    a_command_has_an_exit_code_and_output,
    a_program_that_does_not_exist_is_127_and_one_that_cannot_run_is_126,
    arguments_reach_the_program_without_a_shell,
    only_variables_of_the_sandbox_and_the_command_are_visible,
    a_command_runs_in_its_working_directory,
    wrong_commands_are_invalid,
    a_command_reads_its_stdin,
    stdin_that_nobody_reads_does_not_block_for_ever,
    a_signal_reaches_the_command,
    a_terminal_has_a_size_and_can_be_resized,
    a_terminal_ends_at_the_end_of_input,
);

cases_of_docker!(
    a_command_has_an_exit_code_and_output,
    a_program_that_does_not_exist_is_127_and_one_that_cannot_run_is_126,
    arguments_reach_the_program_without_a_shell,
    only_variables_of_the_sandbox_and_the_command_are_visible,
    a_command_runs_in_its_working_directory,
    wrong_commands_are_invalid,
    a_command_reads_its_stdin,
    stdin_that_nobody_reads_does_not_block_for_ever,
    a_signal_reaches_the_command,
    a_terminal_has_a_size_and_can_be_resized,
    a_terminal_ends_at_the_end_of_input,
);

async fn a_command_has_an_exit_code_and_output(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let output = sh(provider, &id, "echo hello; echo oops >&2").await;
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (b"hello\n".as_slice(), b"oops\n".as_slice()));
    assert_eq!(output.exit().code, 0);
    assert_eq!(sh(provider, &id, "exit 7").await.exit().code, 7);
    assert_eq!(sh(provider, &id, "kill -9 $$").await.exit().code, 137);
    assert_eq!(sh(provider, &id, "kill -15 $$").await.exit().code, 143);
}

async fn a_program_that_does_not_exist_is_127_and_one_that_cannot_run_is_126(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let output = run(provider, &id, Command::argv(["no-such-program"])).await.expect("an exit");
    assert_eq!(output.exit().code, 127);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-program"));
    write(provider, &id, "text", b"not a program").await.expect("a write");
    let output = run(provider, &id, Command::argv(["./text"])).await.expect("an exit");
    assert_eq!(output.exit().code, 126);
}

async fn arguments_reach_the_program_without_a_shell(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let odd = "$HOME `id` ; * 'x' \n ü";
    let output = run(provider, &id, Command::argv(["printf", "%s|", odd, "", "-"])).await.expect("an exit");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{odd}||-|"));
    let shell = Command::shell("printf %s", &[odd.to_owned()]);
    assert_eq!(String::from_utf8_lossy(&run(provider, &id, shell).await.expect("an exit").stdout), odd);
}

async fn only_variables_of_the_sandbox_and_the_command_are_visible(bench: &mut Bench) {
    let provider = bench.provider();
    let mut spec = bench.spec("sb-1");
    spec.env.insert("FROM_SPEC".to_owned(), "spec".to_owned());
    spec.env.insert("BOTH".to_owned(), "spec".to_owned());
    let id = provider.spawn(spec).await.expect("a sandbox").id;
    let mut command = Command::argv(["env"]);
    command.env.insert("BOTH".to_owned(), "command".to_owned());
    let output = run(provider, &id, command).await.expect("an exit");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut names: Vec<_> = text.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["BOTH", "FROM_SPEC", "HOME", "LANG", "PATH"], "{text}");
    assert!(text.contains("BOTH=command\n") && text.contains("FROM_SPEC=spec\n"), "{text}");
    // Cargo sets this for the test itself.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let descriptors = self::text(provider, &id, "ls /proc/self/fd").await;
    assert_eq!(descriptors.split_whitespace().filter(|fd| *fd != "3").collect::<Vec<_>>(), ["0", "1", "2"]);
}

async fn a_command_runs_in_its_working_directory(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    assert!(text(provider, &id, "pwd").await.trim_end().ends_with("/workspace"));
    write(provider, &id, "sub/file", b"x").await.expect("a write");
    for workdir in ["sub", "/workspace/sub"] {
        let mut command = Command::argv(["cat", "file"]);
        command.workdir = Some(workdir.to_owned());
        assert_eq!(run(provider, &id, command).await.expect("an exit").stdout, b"x");
    }
    for workdir in ["missing", "../../..", "sub/file"] {
        let mut command = Command::argv(["true"]);
        command.workdir = Some(workdir.to_owned());
        let error = run(provider, &id, command).await.expect_err("a refusal");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{workdir}: {error}");
    }
}

async fn wrong_commands_are_invalid(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let mut odd_name = Command::argv(["true"]);
    odd_name.env.insert("A=B".to_owned(), String::new());
    for command in [Command::argv::<String>([]), Command::argv([""]), Command::argv(["a\0b"]), odd_name] {
        assert_eq!(run(provider, &id, command).await.expect_err("a refusal").kind(), ErrorKind::Invalid);
    }
}

async fn a_command_reads_its_stdin(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    assert_eq!(text(provider, &id, "cat").await, "", "without stdin it is empty");
    let mut command = Command::argv(["sha256sum"]);
    command.stdin = true;
    let execution = provider.exec(&id, command).await.expect("a command");
    let control = execution.control();
    let feed = async {
        // More than a pipe holds.
        for _ in 0..64 {
            control.write_stdin(vec![b'x'; 65536].into()).await.expect("accepted");
        }
        control.close_stdin().await.expect("closed");
    };
    let (output, ()) = tokio::join!(execution.output(1000), feed);
    let output = String::from_utf8(output.expect("an exit").stdout).expect("UTF-8");
    // Of 4 MiB of x.
    assert!(output.starts_with("baa7a6d36ffa957552df230235c2d51d735f28d49c58a5f3438a3a973a25a37d"), "{output}");
}

async fn stdin_that_nobody_reads_does_not_block_for_ever(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let mut command = Command::shell("exec <&-; echo closed; exit 3", &[]);
    command.stdin = true;
    let execution = provider.exec(&id, command).await.expect("a command");
    let control = execution.control();
    let feed = async {
        for _ in 0..64 {
            control.write_stdin(vec![b'x'; 65536].into()).await.expect("not an error");
        }
    };
    let (output, ()) = tokio::join!(execution.output(1000), feed);
    assert_eq!(output.expect("an exit").exit().code, 3);
}

async fn a_signal_reaches_the_command(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    let line = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut execution = provider.exec(&id, Command::shell(line, &[])).await.expect("a command");
    read_until(&mut execution, "ready").await;
    execution.control().signal(Signal::Term).await.expect("sent");
    read_until(&mut execution, "got").await;
    assert_eq!(execution.output(10).await.expect("an exit").exit().code, 5);
    let mut execution = provider.exec(&id, Command::shell("echo ready; sleep 1000", &[])).await.expect("a command");
    read_until(&mut execution, "ready").await;
    execution.control().signal(Signal::Kill).await.expect("sent");
    assert_eq!(execution.output(10).await.expect("an exit").exit().code, 137);
}

async fn a_terminal_has_a_size_and_can_be_resized(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    if !provider.capabilities().terminal {
        return;
    }
    let mut command = Command::shell("tty >/dev/null && echo is-tty; stty size; read line; stty size; echo $TERM", &[]);
    command.terminal = Some(Terminal { rows: 33, columns: 77 });
    command.stdin = true;
    command.timeout = Some(Duration::from_secs(60));
    let mut execution = provider.exec(&id, command).await.expect("a command");
    let seen = read_until(&mut execution, "33 77").await;
    assert!(seen.contains("is-tty"), "{seen}");
    let control = execution.control();
    control.resize(Terminal { rows: 11, columns: 22 }).await.expect("a size");
    control.write_stdin("go\n".into()).await.expect("accepted");
    read_until(&mut execution, "11 22").await;
    assert_eq!(execution.output(1000).await.expect("an exit").exit().code, 0);
    let plain = provider.exec(&id, Command::shell("sleep 1000", &[])).await.expect("a command");
    let error = plain.control().resize(Terminal { rows: 1, columns: 1 }).await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

async fn a_terminal_ends_at_the_end_of_input(bench: &mut Bench) {
    let (provider, id) = (bench.provider(), bench.spawn().await);
    if !provider.capabilities().terminal {
        return;
    }
    let mut command = Command::argv(["cat"]);
    command.terminal = Some(Terminal { rows: 24, columns: 80 });
    command.stdin = true;
    let mut execution = provider.exec(&id, command).await.expect("a command");
    execution.control().write_stdin("abc\n".into()).await.expect("accepted");
    read_until(&mut execution, "abc\r\nabc").await;
    execution.control().close_stdin().await.expect("closed");
    assert_eq!(execution.output(1000).await.expect("an exit").exit().code, 0);
}
