use tenure_sandbox::{ErrorKind, Provider, RuntimeId, Stream};
use tokio::io::AsyncReadExt;

use super::Machine;
use crate::kit::{sh, text};

async fn snapshot(machine: &Machine, id: &RuntimeId) -> Vec<u8> {
    let mut archive = machine.provider.snapshot(id).await.expect("an archive");
    let mut bytes = Vec::new();
    archive.read_to_end(&mut bytes).await.expect("bytes");
    bytes
}

fn stream(bytes: &[u8]) -> Stream {
    Box::pin(std::io::Cursor::new(bytes.to_vec()))
}

#[tokio::test]
async fn a_snapshot_holds_what_was_written_changed_and_removed() {
    let Some(machine) = Machine::new("a_snapshot_holds_what_was_written") else { return };
    let provider = &machine.provider;
    let id = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    text(
        provider,
        &id,
        "echo one > a; mkdir d; ln -s ../a d/link; ln a hard; chmod 640 a; chown 1000:33 d; rm -r /usr/share/doc; rm -r /usr/lib/os-release; \
         echo new > /etc/timezone; rm -r /usr/share/man; mkdir /usr/share/man; echo m > /usr/share/man/m; mkfifo fifo",
    )
    .await;
    let archive = snapshot(&machine, &id).await;
    let look = "cat a d/link hard /etc/timezone; stat -c '%a %u:%g %h' a; stat -c %u:%g d; ls /usr/share/doc 2>&1 | head -1; \
                ls /usr/share/man; ls /usr/lib/os-release 2>&1";
    let before = text(provider, &id, &format!("{look}; true")).await;
    text(provider, &id, "rm -r a d hard; echo other > /etc/timezone; echo later > later").await;

    let wanted = provider.restore(&id, stream(&archive)).await;
    wanted.expect("restored");
    assert_eq!(text(provider, &id, &format!("{look}; true")).await, before);
    assert_ne!(sh(provider, &id, "ls later").await.exit().code, 0, "what came later is gone");
    // Another sandbox of the same image can be filled as well.
    let other = machine.spawn_with(|spec| spec.user_id = Some(0)).await.id;
    provider.restore(&other, stream(&archive)).await.expect("restored");
    assert_eq!(text(provider, &other, &format!("{look}; true")).await, before);
    for id in [id, other] {
        provider.destroy(&id).await.expect("an end");
    }
}

#[tokio::test]
async fn a_damaged_or_cut_archive_leaves_the_sandbox_as_it_was() {
    let Some(machine) = Machine::new("a_damaged_or_cut_archive") else { return };
    let provider = &machine.provider;
    let id = machine.spawn().await.id;
    text(provider, &id, "head -c 3000000 /dev/urandom > noise; echo kept > kept").await;
    let archive = snapshot(&machine, &id).await;
    text(provider, &id, "rm noise").await;
    let mut damaged = archive.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    for bytes in [&damaged[..], &archive[..archive.len() / 2], &archive[..archive.len() - 20], b"", b"no archive"] {
        let error = provider.restore(&id, stream(bytes)).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(text(provider, &id, "cat kept; ls").await, "kept\nkept\n");
    provider.destroy(&id).await.expect("an end");
}

#[tokio::test]
async fn a_sparse_file_does_not_make_an_endless_archive() {
    let Some(machine) = Machine::new("a_sparse_file_does_not_make") else { return };
    let provider = &machine.provider;
    let id = machine.spawn().await.id;
    text(provider, &id, "truncate -s 100G sparse").await;
    let error = provider.snapshot(&id).await.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::ResourceLimit, "{error}");
    assert_eq!(text(provider, &id, "echo alive").await, "alive\n", "commands go on");
    provider.destroy(&id).await.expect("an end");
}
