//! What code in a sandbox cannot do. Each test fails if the guard that it is about is removed.

use tenure_sandbox::{Provider, RuntimeId};

use super::Machine;
use crate::kit::{read, sh, text, write};

/// Runs a line of Perl, which can make any system call, and returns what it prints.
async fn perl(machine: &Machine, id: &RuntimeId, line: &str) -> String {
    text(&machine.provider, id, &format!("perl -e '{line}'")).await
}

/// A sandbox as an ordinary user and one as root inside.
async fn both_users(test: &str) -> Option<(Machine, [RuntimeId; 2])> {
    let machine = Machine::new(test)?;
    if !cfg!(target_arch = "x86_64") || !std::path::Path::new("/usr/bin/perl").exists() {
        tenure_testkit::skip(test, "the numbers of the system calls are of x86_64, and Perl makes them");
        return None;
    }
    let user = machine.spawn().await.id;
    let root = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    Some((machine, [user, root]))
}

async fn end(machine: &Machine, ids: &[RuntimeId]) {
    for id in ids {
        machine.provider.destroy(id).await.expect("an end");
    }
}

#[tokio::test]
async fn clone_makes_no_namespaces_and_clone3_does_not_exist() {
    let Some((machine, ids)) = both_users("clone_makes_no_namespaces").await else { return };
    for id in &ids {
        // clone with CLONE_NEWUSER, CLONE_NEWNS and CLONE_NEWNET; unshare; setns: EPERM.
        for call in [
            "56, 0x10000011, 0, 0, 0, 0",
            "56, 0x20011, 0, 0, 0, 0",
            "56, 0x40000011, 0, 0, 0, 0",
            "272, 0x10000000",
            "308, 0, 0",
        ] {
            let line = format!("$r = syscall({call}); exit 0 if $r == 0; print $r, \" \", $!+0");
            assert_eq!(perl(&machine, id, &line).await, "-1 1", "{call}");
        }
        // clone3: ENOSYS, whatever its arguments.
        assert_eq!(perl(&machine, id, "print syscall(435, 0, 0), \" \", $!+0").await, "-1 38");
        // What the child prints counts only if its parent waits: with the command everything in it ends.
        let fork = "$p = fork(); print defined $p ? 1 : 0; wait if $p";
        assert_eq!(perl(&machine, id, fork).await, "11", "an ordinary fork works");
    }
    end(&machine, &ids).await;
}

#[tokio::test]
async fn sockets_that_a_network_namespace_does_not_confine_are_refused() {
    let Some((machine, ids)) = both_users("sockets_that_a_network_namespace").await else { return };
    for id in &ids {
        // AF_VSOCK, AF_ALG, AF_PACKET, AF_BLUETOOTH, AF_NETLINK with another protocol than route.
        for socket in ["40, 1, 0", "38, 5, 0", "17, 3, 0", "31, 1, 0", "16, 3, 9", "16, 3, 15"] {
            let line = format!("print syscall(41, {socket}), \" \", $!+0");
            assert_eq!(perl(&machine, id, &line).await, "-1 1", "{socket}");
        }
        for socket in ["1, 1, 0", "2, 1, 0", "10, 1, 0", "16, 3, 0"] {
            let line = format!("print syscall(41, {socket}) >= 0 ? \"yes\" : $!+0");
            assert_eq!(perl(&machine, id, &line).await, "yes", "{socket}");
        }
    }
    end(&machine, &ids).await;
}

#[tokio::test]
async fn calls_that_reach_into_the_kernel_are_refused() {
    let Some((machine, ids)) = both_users("calls_that_reach_into_the_kernel").await else { return };
    // mount, umount2, pivot_root, chroot, ptrace, process_vm_readv, bpf, perf_event_open, keyctl, add_key, io_uring_setup,
    // userfaultfd, open_by_handle_at, init_module, finit_module, kexec_load, swapon, reboot, open_tree, move_mount, fsopen,
    // mount_setattr, pidfd_getfd, syslog, iopl, settimeofday.
    let calls = [
        165, 166, 155, 161, 101, 310, 321, 298, 250, 248, 425, 323, 304, 175, 313, 246, 167, 169, 428, 429, 430, 442,
        438, 103, 172, 164,
    ];
    for id in &ids {
        for call in calls {
            let line = format!("print syscall({call}, 0, 0, 0, 0, 0), \" \", $!+0");
            assert_eq!(perl(&machine, id, &line).await, "-1 1", "system call {call}");
        }
        // TIOCSTI on a terminal of its own, and the 32-bit numbers of x32.
        let sti = "open(T, \"<\", \"/dev/null\"); $b = \"x\"; print syscall(16, fileno(T), 0x5412, $b), \" \", $!+0";
        assert_eq!(perl(&machine, id, sti).await, "-1 1");
        assert_eq!(perl(&machine, id, "print syscall(0x40000000 + 39), \" \", $!+0").await, "-1 1", "x32");
    }
    end(&machine, &ids).await;
}

#[tokio::test]
async fn what_the_kernel_tells_about_the_machine_is_masked() {
    let Some(machine) = Machine::new("what_the_kernel_tells") else { return };
    let provider = &machine.provider;
    let user = machine.spawn().await.id;
    let root = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    for id in [&user, &root] {
        for name in
            ["keys", "key-users", "kallsyms", "timer_list", "kcore", "kmsg", "sysrq-trigger", "modules", "vmallocinfo"]
        {
            let size = sh(provider, id, &format!("test ! -e /proc/{name} || cat /proc/{name} | wc -c")).await;
            let size = String::from_utf8_lossy(&size.stdout).trim().to_owned();
            assert!(size.is_empty() || size == "0", "/proc/{name} has {size} bytes");
        }
        for file in [
            "/proc/sysrq-trigger",
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/1/mem",
            "/proc/1/oom_score_adj",
        ] {
            assert_ne!(sh(provider, id, &format!("echo 0 > {file}")).await.exit().code, 0, "{file} can be written");
        }
        for path in ["/proc/1/root/", "/proc/1/cwd/", "/proc/1/fd/", "/proc/1/exe", "/proc/1/environ"] {
            assert_ne!(sh(provider, id, &format!("ls {path} && cat {path}")).await.exit().code, 0, "{path} is open");
        }
        assert_ne!(sh(provider, id, "mknod /tmp/disk b 254 0").await.exit().code, 0);
        let mounts = text(provider, id, "cat /proc/self/mountinfo").await;
        let host = machine.dir.path().to_string_lossy().into_owned();
        assert!(!mounts.contains(&host) && !mounts.contains("ext4") && !mounts.contains("/home"), "{mounts}");
        let groups = text(provider, id, "cat /proc/self/cgroup").await;
        assert!(!groups.contains("tenure") && !groups.contains(&id.0), "{groups}");
        assert_eq!(text(provider, id, "ls /sys").await, "");
    }
    end(&machine, &[user, root]).await;
}

#[tokio::test]
async fn the_host_image_has_no_secrets_and_commands_no_privileges() {
    let Some(machine) = Machine::new("the_host_image_has_no_secrets") else { return };
    let provider = &machine.provider;
    let root = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    for path in [
        "/etc/shadow",
        "/etc/ssh",
        "/root",
        "/home",
        "/var",
        "/run",
        "/etc/ssl/private",
        "/etc/machine-id",
        "/work",
        "/boot",
        "/mnt",
    ] {
        assert_eq!(sh(provider, &root, &format!("ls -d {path}")).await.exit().code, 2, "{path} is visible");
    }
    let status = text(provider, &root, "cat /proc/self/status").await;
    for line in [
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    assert_eq!(text(provider, &root, "ls /proc/self/fd | wc -l").await, "4\n", "0, 1, 2 and the directory itself");
    assert_eq!(text(provider, &root, "env | cut -d= -f1 | sort | tr '\\n' ' '").await, "HOME LANG PATH PWD ");
    // A program that is setuid in the sandbox gives nothing.
    let user = machine.spawn().await.id;
    assert_eq!(text(provider, &user, "cp /usr/bin/id /tmp/id; chmod 6755 /tmp/id; /tmp/id -u").await, "1000\n");
    sh(provider, &user, "kill -9 1; kill -9 -1; kill -TERM 1").await;
    assert_eq!(text(provider, &user, "echo alive").await, "alive\n", "the first process cannot be killed from inside");
    end(&machine, &[user, root]).await;
}

#[tokio::test]
async fn a_link_never_leads_a_file_call_to_the_host() {
    let Some(machine) = Machine::new("a_link_never_leads_a_file_call") else { return };
    let provider = &machine.provider;
    let secret = machine.dir.path().join("secret");
    std::fs::write(&secret, "of the host").expect("a file");
    let id = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    let secret = secret.to_string_lossy().into_owned();
    text(
        provider,
        &id,
        &format!("ln -s {secret} a; ln -s /proc/1/root{secret} b; ln -s /proc/self/root c; mkfifo f; ln -s / d"),
    )
    .await;
    for path in [
        "a",
        "b",
        &format!("c{secret}"),
        "f",
        &format!("d/{secret}"),
        "../../../etc/shadow",
        "/proc/1/environ",
        "/dev/zero",
    ] {
        let found =
            tokio::time::timeout(crate::kit::PATIENCE, read(provider, &id, path)).await.expect("an answer in time");
        assert!(found.is_err(), "{path} was read: {:?}", found.map(|bytes| bytes.len()));
    }
    assert!(write(provider, &id, "/proc/sys/kernel/hostname", b"x").await.is_err());
    assert_eq!(std::fs::read_to_string(&secret).expect("a file"), "of the host");
    end(&machine, &[id]).await;
}

#[tokio::test]
async fn system_calls_are_filtered_unless_the_filter_is_off() {
    let test = "system_calls_are_filtered_unless_the_filter_is_off";
    for (seccomp, mode) in [(true, "2\n"), (false, "0\n")] {
        let Some(machine) = Machine::with(test, |settings| settings.seccomp = seccomp) else { return };
        let id = machine.spawn().await.id;
        assert_eq!(text(&machine.provider, &id, "sed -n 's/^Seccomp:[[:space:]]*//p' /proc/self/status").await, mode);
    }
}
