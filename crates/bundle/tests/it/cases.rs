//! Every rule of a bundle, and a file that breaks it.

use serde_json::{Value, json};

use super::zip::{Bundle, MANIFEST, entry, hex};

/// What a file is refused as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Invalid,
    TooLarge,
}

pub struct Case {
    pub name: &'static str,
    pub zip: Vec<u8>,
    pub refused: Refused,
    /// Part of the message.
    pub says: &'static str,
}

const CODE: &[u8] = b"console.log('{}')\n";

pub fn good() -> Bundle {
    Bundle::new("node", &[("index.js", CODE), ("lib/a.js", b"exports.a = 1\n")])
}

/// A bundle whose only file has this path.
fn at(path: &str) -> Bundle {
    Bundle::new("node", &[(path, CODE)])
}

fn files(count: usize) -> Bundle {
    let names: Vec<String> = (0..count).map(|n| format!("f{n}.js")).collect();
    Bundle::new("node", &names.iter().map(|name| (name.as_str(), &b""[..])).collect::<Vec<_>>())
}

/// Files of this size that compress to next to nothing.
fn zeros(count: usize, bytes: usize) -> Bundle {
    let (names, zeros): (Vec<String>, _) = ((0..count).map(|n| format!("f{n}.js")).collect(), vec![0; bytes]);
    Bundle::new("node", &names.iter().map(|name| (name.as_str(), &zeros[..])).collect::<Vec<_>>())
}

fn file(bundle: &mut Bundle, key: &str, value: Value) {
    bundle.manifest["files"][0][key] = value;
}

pub fn accepted() -> Vec<(&'static str, Vec<u8>)> {
    let descriptors = good().change(|b| b.entries.iter_mut().for_each(|entry| entry.described_after = true));
    let stored = good().change(|b| b.entries.iter_mut().for_each(|entry| entry.deflate = false));
    let long: String = (0..40).map(|_| "a".repeat(20) + "/").collect::<String>() + "x.py";
    vec![
        ("two files", good().build()),
        ("data descriptors", descriptors.build()),
        ("stored", stored.build()),
        ("an executable file", good().change(|b| b.entries[1].mode = 0o100_755).build()),
        ("no mode", good().change(|b| b.entries[1].mode = 0).build()),
        ("an empty file", Bundle::new("python", &[("main.py", b"")]).build()),
        ("a long path", Bundle::new("python", &[(&long, b"x")]).build()),
        ("names with dots and blanks", at("a..b/.hidden/c d...js").build()),
        ("as many files as the manifest has room for", files(600).build()),
        ("as large a file as there may be", zeros(1, 32 << 20).build()),
        ("variables", good().with("env_allowlist", json!(["A", "_B2"])).build()),
    ]
}

pub fn refused() -> Vec<Case> {
    let mut cases = structure();
    cases.extend(manifests());
    cases.extend(paths());
    cases.extend(limits());
    cases
}

fn invalid(name: &'static str, zip: Vec<u8>, says: &'static str) -> Case {
    Case { name, zip, refused: Refused::Invalid, says }
}

fn too_large(name: &'static str, zip: Vec<u8>, says: &'static str) -> Case {
    Case { name, zip, refused: Refused::TooLarge, says }
}

fn structure() -> Vec<Case> {
    let built = |change: fn(&mut Bundle)| good().change(change).build();
    let mut trailing = good().build();
    trailing.extend_from_slice(b"more");
    let mut prelude = b"#!/bin/sh\n".to_vec();
    prelude.extend(good().build());
    let cut = good().build().split_off(40);
    let zip64 = {
        let mut zip = good().build();
        let end = zip.split_off(zip.len() - 22);
        zip.extend_from_slice(b"PK\x06\x07");
        zip.extend_from_slice(&[0; 16]);
        zip.extend(end);
        zip
    };
    vec![
        invalid("nothing", Vec::new(), "zip"),
        invalid("text", b"hello".to_vec(), "zip"),
        invalid("the end of a bundle", cut, ""),
        invalid("bytes at the end", trailing, "follow the end"),
        invalid("bytes at the beginning", prelude, "belong to no entry"),
        invalid("bytes between entries", built(|b| b.entries[1].before = b"hidden".to_vec()), "belong to no entry"),
        invalid("no manifest", super::zip::zip(&good().entries), "has no bundle_manifest.json"),
        invalid("two manifests", built(|b| b.entries.push(entry(MANIFEST, "{}"))), "twice"),
        invalid("a name twice", built(|b| b.entries.push(b.entries[0].clone())), "twice"),
        invalid("entries at the same place", built(|b| b.entries[1].at = Some(0)), "differ"),
        invalid("entries that overlap", overlapping(), "overlap"),
        invalid("another local name", built(|b| b.entries[0].local_name = Some(b"other.js".to_vec())), "differ"),
        invalid("a symbolic link", built(|b| b.entries[0].mode = 0o120_777), "symbolic link"),
        invalid("a device", built(|b| b.entries[0].mode = 0o020_666), "regular file"),
        invalid("a folder", built(|b| b.entries.push(entry("folder/", ""))), "ends with '/'"),
        invalid("a folder by its mode", built(|b| b.entries[0].mode = 0o040_755), "regular file"),
        invalid("encrypted", built(|b| b.entries[0].flags = 1), "encrypted"),
        invalid("strongly encrypted", built(|b| b.entries[0].flags = 1 << 6), "encrypted"),
        invalid("hidden headers", built(|b| b.entries[0].flags = 1 << 13), "encrypted"),
        invalid("another method", built(|b| b.entries[0].method = Some(14)), "compression method"),
        invalid("no deflate stream", built(|b| (b.entries[0].deflate, b.entries[0].method) = (false, Some(8))), ""),
        invalid("zip64 sizes", built(|b| b.entries[0].extra = vec![1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "zip64"),
        invalid("a zip64 directory", zip64, ""),
        invalid("a name that is not UTF-8", built(|b| b.entries[0].name = vec![0xff, 0xfe]), "UTF-8"),
        invalid("an entry that is not declared", built(|b| b.entries.push(entry("x.js", "1"))), "does not list 'x.js'"),
        invalid("a declared file that is missing", built(|b| drop(b.entries.pop())), "is not in the zip file"),
        invalid("other content", built(|b| b.entries[0].content[0] = b'C'), "sha256"),
        invalid("more content", built(|b| b.entries[0].content.push(b' ')), "bytes of the manifest"),
        invalid(
            "a size that is not true",
            built(|b| (b.entries[0].said, b.entries[0].content) = (Some(18), vec![b'x'; 4096])),
            "bytes of the manifest",
        ),
    ]
}

/// An entry lies in the data of the one before it.
fn overlapping() -> Vec<u8> {
    let inner = good().build();
    let files: [(&str, &[u8]); 3] = [("index.js", CODE), ("inner", &inner), ("lib/a.js", b"exports.a = 1\n")];
    let mut outer = Bundle::new("node", &files).change(|b| b.entries[1].deflate = false);
    let zip = outer.build();
    let starts: Vec<usize> = (0..zip.len() - 4).filter(|at| zip[*at..].starts_with(b"PK\x03\x04")).collect();
    // The last header is that of the entry itself, the one before that of the bundle inside.
    let inside = starts.iter().rev().nth(1).copied().unwrap();
    outer.entries[2].at = Some(u32::try_from(inside).unwrap());
    outer.build()
}

fn manifests() -> Vec<Case> {
    let with = |key: &str, value: Value| good().with(key, value).build();
    let of_file = |key: &str, value: Value| good().change(|b| file(b, key, value)).build();
    let without = |key: &str| good().change(|b| drop(b.manifest.as_object_mut().unwrap().remove(key))).build();
    let text = |text: &str| good().change(|b| b.text = Some(text.as_bytes().to_vec())).build();
    let own = good().change(|b| {
        let listed = json!({"path": MANIFEST, "sha256": hex(b""), "bytes": 0});
        b.manifest["files"].as_array_mut().unwrap().push(listed);
    });
    let twice = good().change(|b| {
        let first = b.manifest["files"][0].clone();
        b.manifest["files"].as_array_mut().unwrap().push(first);
    });
    let double = serde_json::to_string(&good().manifest).unwrap().replacen('{', "{\"runtime\":\"node\",", 1);
    vec![
        invalid("a manifest that is not JSON", text("{"), "bundle_manifest.json"),
        invalid("a manifest that is a list", text("[]"), "bundle_manifest.json"),
        invalid("a key twice", text(&double), "duplicate"),
        invalid("an unknown key", with("entrypiont", json!("x")), "unknown field"),
        invalid("an unknown key of a file", of_file("mode", json!(420)), "unknown field"),
        invalid("no schema version", without("schema_version"), "schema_version"),
        invalid("another schema version", with("schema_version", json!(2)), "schema_version is 2"),
        invalid("no runtime", without("runtime"), "runtime"),
        invalid("another runtime", with("runtime", json!("ruby")), "ruby"),
        invalid("no entrypoint", without("entrypoint"), "entrypoint"),
        invalid("an entrypoint that is not listed", with("entrypoint", json!("main.js")), "'main.js' is not among"),
        invalid("no files", without("files"), "files"),
        invalid("a manifest that lists itself", own.build(), "must not list itself"),
        invalid("a file listed twice", twice.build(), "listed twice"),
        invalid("a hash in capitals", of_file("sha256", json!(hex(CODE).to_uppercase())), "64 lower-case"),
        invalid("a short hash", of_file("sha256", json!("ab")), "64 lower-case"),
        invalid(
            "a hash with a prefix",
            of_file("sha256", json!(format!("sha256:{}", &hex(CODE)[7..]))),
            "64 lower-case",
        ),
        invalid("a negative size", of_file("bytes", json!(-1)), "bundle_manifest.json"),
        invalid("a size in words", of_file("bytes", json!("18")), "bundle_manifest.json"),
        invalid("another size", of_file("bytes", json!(17)), "17 bytes of the manifest"),
        invalid("a variable in small letters", with("env_allowlist", json!(["threshold"])), "env_allowlist"),
        invalid("a variable that begins with a digit", with("env_allowlist", json!(["1A"])), "env_allowlist"),
        invalid("a variable without a name", with("env_allowlist", json!([""])), "env_allowlist"),
        invalid("a variable with a blank", with("env_allowlist", json!(["A B"])), "env_allowlist"),
        invalid("a variable twice", with("env_allowlist", json!(["A", "A"])), "listed twice"),
    ]
}

fn paths() -> Vec<Case> {
    let listed = |path: &str| good().change(|b| file(b, "path", json!(path))).build();
    vec![
        invalid("an absolute path", at("/etc/passwd").build(), "is not relative"),
        invalid("a path up", at("../x.js").build(), "'.' or '..'"),
        invalid("a path up in between", at("a/../../x.js").build(), "'.' or '..'"),
        invalid("a path with a dot", at("./x.js").build(), "'.' or '..'"),
        invalid("a backslash", at("a\\b.js").build(), "backslash"),
        invalid("NUL", at("a\0.js").build(), "NUL"),
        invalid("a control character", at("a\n.js").build(), "control character"),
        invalid("an empty segment", at("a//b.js").build(), "empty segment"),
        invalid("a slash at the end", at("a/").build(), "ends with '/'"),
        invalid("an empty path", listed(""), "is empty"),
        invalid("a listed path up", listed("../x"), "'.' or '..'"),
        invalid("a listed absolute path", listed("/x"), "is not relative"),
        invalid("a path that is too long", at(&"a".repeat(256)).build(), "too long"),
        invalid("a file in a file", Bundle::new("node", &[("a", CODE), ("a/b", CODE)]).build(), "a file and a folder"),
    ]
}

fn limits() -> Vec<Case> {
    let long = serde_json::to_string(&good().manifest).unwrap() + &" ".repeat(64 << 10);
    let declared = |bytes: u64| good().change(|b| file(b, "bytes", json!(bytes))).build();
    let many = files(1_001);
    let undeclared = many.clone().change(|b| b.manifest["files"].as_array_mut().unwrap().truncate(1_000));
    vec![
        too_large("a manifest that is too long", good().change(|b| b.text = Some(long.into_bytes())).build(), "65536"),
        too_large("too many files", many.build(), "1000 files"),
        too_large("too many entries", undeclared.build(), "1000 files"),
        too_large("a file that is too large", zeros(1, (32 << 20) + 1).build(), "33554432"),
        too_large("a file that says so", declared(33_554_433), "33554432"),
        too_large("too much in total", zeros(9, 32 << 20).build(), "268435456"),
    ]
}
